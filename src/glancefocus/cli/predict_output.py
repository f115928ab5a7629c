"""What `gf predict` writes: a table for people; JSON, JSON lines or CSV for programs; drawings; and a summary at the end."""

import contextlib
import io
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TextIO

from rich.table import Table
from rich.text import Text

from glancefocus.cli.main import output
from glancefocus.errors import BadImage, BadSetting
from glancefocus.files import write_file, write_text
from glancefocus.progress import Progress
from glancefocus.values import Answer, lines_kept

if TYPE_CHECKING:
    from PIL import Image

    from glancefocus.data.file_scene import FilePicture
    from glancefocus.outcome import Outcome
    from glancefocus.region import Box

FORMS = ("json", "jsonl", "csv")
ROWS_PER_TABLE = 100


def make_folder(folder: Path) -> None:
    """Make the folder for drawings."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadSetting(f"the folder {folder} cannot be made: {error.strerror}. Choose another one.") from None


@dataclass(frozen=True)
class Drawn:
    """What the looks at a picture are drawn on.

    pictures  the picture, an overview of it, or frames of a clip
    scale     size of the pictures divided by the size of the original
    file      a large picture, whose looks are also drawn separately; None for others
    """

    pictures: "Sequence[Image.Image]"
    scale: float = 1.0
    file: "FilePicture | None" = None


def draw(outcome: "Outcome", row: int, name: str, drawn: Drawn, folder: Path, number: int) -> None:
    """Write a picture, or frames of a clip, with its looks drawn on it; the file is called by its number and name.

    Each focus look of a large picture is a separate file, with the number of the look at the end of its name.
    """
    from glancefocus.evaluation.boxes import draw_strip, looks_taken

    truth = Path(name).parent.name
    known = truth in (outcome.classes or ())

    def scaled(box: "Box") -> "Box":
        left, top, right, bottom = (round(side * drawn.scale) for side in box)
        return left, top, right, bottom

    first, boxes = outcome.first_box(row), [scaled(box) for box in outcome.boxes[row]]
    looks = looks_taken(outcome, row, boxes, truth if known else None, None if first is None else scaled(first))
    title = f"{Path(name).name}" + (f" (is {truth})" if known else "")
    notes = [f"stopped: {outcome.stopped(row)}", *(outcome.notes[row] if outcome.notes else ())]
    drawing = draw_strip(drawn.pictures, looks, title=title, notes=notes, trail=drawn.file is not None)
    stem = "stdin" if name == "-" else Path(name).stem[:50]  # file names have at most 255 bytes
    _save(drawing, folder / f"{number:05d}-{stem}.png")
    if drawn.file is None:
        return
    for look, (box, px) in enumerate(zip(outcome.boxes[row], outcome.patch_px[row].tolist(), strict=False), start=2):
        _save(drawn.file.cut(box, (px, px)), folder / f"{number:05d}-{stem}-look{look}.png")


def _save(drawing: "Image.Image", file: Path) -> None:
    try:
        write_file(file, lambda stream: drawing.save(stream, format="PNG"))
    except OSError as error:
        raise BadSetting(f"the drawing {file} cannot be written: {error.strerror or error}.") from None


class Output(Protocol):
    """A place to write answers to.

    stopped  why the looks at the picture stopped, for people; see Outcome.stopped
    """

    def write(self, answer: Answer, stopped: str) -> None: ...

    def close(self) -> None: ...


def chosen_form(flags: dict[str, bool], output: Path | None) -> str | None:
    """The format that an option or the suffix of the file chooses; None: a table for people."""
    given = [form for form, on in flags.items() if on]
    if len(given) > 1:
        raise BadSetting(f"answers are written in one format: leave --{given[0]} or --{given[1]} out.")
    if given or output is None:
        return given[0] if given else None
    form = output.suffix.lower().lstrip(".")
    if form not in FORMS:
        raise BadSetting(
            f"the format of {output} is unknown. Add --jsonl, --csv or --json, or name a file that ends in .jsonl, .csv or .json."
        )
    return form


class TableOutput:
    """Answers as tables for people, a table after every few rows."""

    def __init__(self, show: Callable[[Table], None], topk: int) -> None:
        self.show = show
        self.topk = topk
        self._rows: list[tuple[Answer, str]] = []

    def write(self, answer: Answer, stopped: str) -> None:
        if "error" in answer:
            return
        self._rows.append((answer, stopped))
        if len(self._rows) == ROWS_PER_TABLE:
            self.close()

    def close(self) -> None:
        rows, self._rows = self._rows, []
        if not rows:
            return
        noted = any(answer["notes"] for answer, _ in rows)
        table = Table()
        table.add_column("file", overflow="fold")
        for name in ("answer", "confidence", "looks", "stopped", "multiply-adds"):
            left = name in ("answer", "stopped")
            table.add_column(name, justify="left" if left else "right", no_wrap=name != "answer")
        if noted:
            table.add_column("note", overflow="fold")
        for answer, stopped in rows:
            cells = [*self._cells(answer, stopped), *(["\n".join(answer["notes"])] if noted else [])]
            # As Text: rich would read [brackets] as markup, and :words: as emoji.
            table.add_row(*(Text(lines_kept(text)) for text in cells))
        self.show(table)

    def _cells(self, answer: Answer, stopped: str) -> list[str]:
        several = "\n".join(f"{one['label']} {one['confidence']:.3f}" for one in answer["top"])
        return [
            answer["file"],
            several if self.topk > 1 else answer["label"],
            f"{answer['confidence']:.3f}",
            str(answer["looks"]),
            stopped,
            f"{answer['cost_macs'] / 1e6:,.1f}M",
        ]


class LineOutput:
    """One line for each frame of a camera, for people."""

    def __init__(self) -> None:
        self.console = output()

    def write(self, answer: Answer, stopped: str) -> None:
        line = (
            f"{answer['seconds']:8.2f} s  frame {answer['frame']:<5}  {answer['label']} {answer['confidence']:.3f}  "
            f"{answer['looks']} looks, {stopped}  {answer['cost_macs'] / 1e6:,.1f}M"
        )
        self.console.print(Text(lines_kept(line)), soft_wrap=True)

    def close(self) -> None:
        pass


class WrittenOutput:
    """Answers as JSON, JSON lines or CSV, on standard output or in a file."""

    def __init__(self, stream: TextIO, form: str, file: Path | None, with_frames: bool) -> None:
        from glancefocus.export.predict import FIELDS, FRAME_FIELDS, AnswerWriter

        self.writer = AnswerWriter(stream, form, (*FIELDS, *FRAME_FIELDS) if with_frames else FIELDS)
        self.file = file

    def write(self, answer: Answer, stopped: str) -> None:
        with cannot_be_written(self.file):
            self.writer.write(answer)

    def close(self) -> None:
        with cannot_be_written(self.file):
            self.writer.close()


@contextmanager
def cannot_be_written(file: Path | None) -> Iterator[None]:
    """Report a full disk and similar errors in a sentence; errors of standard output are passed on."""
    try:
        yield
    except OSError as error:
        if file is None:
            raise
        raise BadSetting(f"{file} cannot be written: {error.strerror or error}. Choose another file.") from None


@contextmanager
def opened_output(form: str, file: Path | None, *, with_frames: bool = False) -> Iterator[Output]:
    """Standard output, or a file. Each line of CSV or JSON lines is written at once; a JSON array in a file is written at the end.

    After an interruption the file holds all answers so far, and can be read.

    with_frames  the answers have the number and the time of a frame, too
    """
    with contextlib.ExitStack() as stack:
        if file is None:
            stream: TextIO = sys.stdout
        elif form == "json":
            stream = io.StringIO()
        else:
            with cannot_be_written(file):
                # File names need not be UTF-8; their bytes are written unchanged.
                stream = open(file, "w", encoding="utf-8", errors="surrogateescape", newline="")  # noqa: SIM115
            stack.callback(_close, stream)
        output = WrittenOutput(stream, form, file, with_frames)
        try:
            yield output
        except BaseException as error:
            if not isinstance(error, KeyboardInterrupt) and (output.writer.count == 0 or isinstance(error, OSError)):
                raise
            with contextlib.suppress(OSError):
                _finish(output, stream, file)
            raise
        _finish(output, stream, file)


def _finish(output: WrittenOutput, stream: TextIO, file: Path | None) -> None:
    output.close()
    if file is not None and isinstance(stream, io.StringIO):
        with cannot_be_written(file):
            _write_whole(file, stream.getvalue())


def _write_whole(file: Path, text: str) -> None:
    """Replace the file. Links are followed, and a device or pipe is written to, not replaced by a regular file."""
    place = Path(os.path.realpath(file))
    if place.exists() and not place.is_file():
        with place.open("w", encoding="utf-8") as stream:
            stream.write(text)
    else:
        write_text(place, text)


def _close(stream: TextIO) -> None:
    with contextlib.suppress(OSError):  # the disk is full, which was reported already
        stream.close()


@dataclass
class Summary:
    """Adds up the answers, for one line at the end.

    backbone_macs  multiply-adds of the plain backbone for one picture
    noun           pictures, clips or frames
    """

    backbone_macs: int
    noun: str = "pictures"
    answered: int = 0
    failed: int = 0
    looks: int = 0
    macs: int = 0
    above: int = 0
    upscaled: int = 0
    dropped: int = 0
    started: float = field(default_factory=time.perf_counter)

    def add(self, answer: Answer) -> None:
        if "error" in answer:
            self.failed += 1
            return
        self.answered += 1
        self.looks += answer["looks"]
        self.macs += answer["cost_macs"]
        self.above += answer["sure"]
        self.upscaled += any(note.startswith("upscaled") for note in answer["notes"])

    def words(self) -> str:
        """One line for people."""
        seconds = max(time.perf_counter() - self.started, 1e-9)
        noun = self.noun.removesuffix("s") if self.answered == 1 else self.noun
        text = f"{self.answered:,} {noun} in {seconds:.1f} s"
        if self.answered:
            mean_macs = self.macs / self.answered
            text += (
                f" ({self.answered / seconds:.1f} a second), on average {self.looks / self.answered:.2f} looks and "
                f"{mean_macs / 1e6:,.1f}M multiply-adds, {100 * mean_macs / self.backbone_macs:.0f} % of the backbone's; "
                f"{self.above:,} stopped above their threshold"
            )
        for count, words in (
            (self.upscaled, "upscaled to hold a patch"),
            (self.dropped, "dropped because newer ones had arrived"),
            (self.failed, "could not be read"),
        ):
            text += f"; {count:,} {words}" if count else ""
        return text + "."


def print_remarks(texts: Iterable[str]) -> None:
    """Errors, notes and the summary, for people; standard output has answers only."""
    for text in texts:
        print(f"gf: {lines_kept(text)}", file=sys.stderr)


def bars_when_needed(stack: ExitStack) -> Progress:
    """Progress bars that appear with the first report."""
    from glancefocus.cli.printing import progress_bars

    bars: list[Progress] = []

    def show(what: str, done: int, total: int) -> None:
        if not bars:
            bars.append(stack.enter_context(progress_bars()))
        bars[0](what, done, total)

    return show


def standard_input() -> bytes:
    """One picture from standard input."""
    from glancefocus.data.images import MAX_BYTES
    from glancefocus.machine import read_stream

    try:
        return read_stream(sys.stdin.buffer, MAX_BYTES)
    except OSError as error:
        raise BadImage(f"standard input cannot be read: {error.strerror or error}.") from None
