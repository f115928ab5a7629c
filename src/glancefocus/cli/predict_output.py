"""What `gf predict` prints: a table for people, JSON, JSON lines or CSV for programs, and a summary of all pictures at the end."""

import contextlib
import io
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

from rich.table import Table
from rich.text import Text

from glancefocus.errors import BadSetting
from glancefocus.escaping import lines_kept
from glancefocus.export.standalone.predict import FIELDS, AnswerWriter
from glancefocus.files import write_text

FORMS = ("json", "jsonl", "csv")
ROWS_PER_TABLE = 100

Answer = dict[str, Any]


class Output(Protocol):
    """Where answers go.

    stopped  why the picture stopped, for people, see Outcome.stopped
    """

    def write(self, said: Answer, stopped: str) -> None: ...

    def close(self) -> None: ...


def chosen_form(flags: dict[str, bool], output: Path | None) -> str | None:
    """The form that was asked for by an option, or by the suffix of the file to write; None: a table for people."""
    asked = [form for form, on in flags.items() if on]
    if len(asked) > 1:
        raise BadSetting(f"answers are written in one form: leave --{asked[0]} or --{asked[1]} out.")
    if asked or output is None:
        return asked[0] if asked else None
    form = output.suffix.lower().lstrip(".")
    if form not in FORMS:
        raise BadSetting(
            f"what should {output} hold? Add --jsonl, --csv or --json, or name a file that ends in .jsonl, .csv or .json."
        )
    return form


class TableOutput:
    """Tables of some rows each, as they come."""

    def __init__(self, show: Callable[[Table], None], topk: int) -> None:
        self.show = show
        self.topk = topk
        self._rows: list[tuple[Answer, str]] = []

    def write(self, said: Answer, stopped: str) -> None:
        if "error" in said:
            return
        self._rows.append((said, stopped))
        if len(self._rows) == ROWS_PER_TABLE:
            self.close()

    def close(self) -> None:
        rows, self._rows = self._rows, []
        if not rows:
            return
        noted = any(said["notes"] for said, _ in rows)
        table = Table()
        table.add_column("file", overflow="fold")
        for name in ("answer", "confidence", "looks", "stopped", "multiply-adds"):
            left = name in ("answer", "stopped")
            table.add_column(name, justify="left" if left else "right", no_wrap=name != "answer")
        if noted:
            table.add_column("note", overflow="fold")
        for said, stopped in rows:
            cells = [*self._cells(said, stopped), *(["\n".join(said["notes"])] if noted else [])]
            table.add_row(
                *(Text(lines_kept(text)) for text in cells)
            )  # rich takes [brackets] for markup, and :words: for pictures
        self.show(table)

    def _cells(self, said: Answer, stopped: str) -> list[str]:
        several = "\n".join(f"{one['label']} {one['confidence']:.3f}" for one in said["top"])
        return [
            said["file"],
            several if self.topk > 1 else said["label"],
            f"{said['confidence']:.3f}",
            str(said["looks"]),
            stopped,
            f"{said['cost_macs'] / 1e6:,.1f}M",
        ]


class WrittenOutput:
    """JSON, JSON lines or CSV, as they come, to standard output or a file."""

    def __init__(self, stream: TextIO, form: str, fields: Sequence[str], file: Path | None = None) -> None:
        self.writer = AnswerWriter(stream, form, fields)
        self.file = file

    def write(self, said: Answer, stopped: str) -> None:
        with cannot_be_written(self.file):
            self.writer.write(said)

    def close(self) -> None:
        with cannot_be_written(self.file):
            self.writer.close()


@contextmanager
def cannot_be_written(file: Path | None) -> Iterator[None]:
    """Turns a full disk and the like into a sentence; what happens to standard output is for whoever reads it."""
    try:
        yield
    except OSError as error:
        if file is None:
            raise
        raise BadSetting(f"{file} cannot be written: {error.strerror or error}. Choose another file.") from None


@contextmanager
def opened_output(form: str, file: Path | None, fields: Sequence[str] = FIELDS) -> Iterator[Output]:
    """Standard output, or a file. Lines of CSV and JSON lines are there as soon as they are answered; a JSON array in a file only
    when all are.

    Whoever interrupts gets what was answered until then, in a form that can be read.
    """
    with contextlib.ExitStack() as stack:
        if file is None:
            stream: TextIO = sys.stdout
        elif form == "json":
            stream = io.StringIO()
        else:
            with cannot_be_written(file):
                # Names of files need not be UTF-8; they are written as they are.
                stream = open(file, "w", encoding="utf-8", errors="surrogateescape", newline="")  # noqa: SIM115
            stack.callback(_close, stream)
        output = WrittenOutput(stream, form, fields, file)
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
    """In place of what is there; through a link, and into a device or pipe, which must not become a regular file."""
    place = Path(os.path.realpath(file))
    if place.exists() and not place.is_file():
        with place.open("w", encoding="utf-8") as stream:
            stream.write(text)
    else:
        write_text(place, text)


def _close(stream: TextIO) -> None:
    with contextlib.suppress(OSError):  # of a disk that is full, which was said already
        stream.close()


@dataclass
class Summary:
    """Adds up what was said of pictures, for one line at the end.

    backbone_macs  of the plain backbone
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

    def add(self, said: Answer) -> None:
        if "error" in said:
            self.failed += 1
            return
        self.answered += 1
        self.looks += said["looks"]
        self.macs += said["cost_macs"]
        self.above += said["sure"]
        self.upscaled += any(note.startswith("upscaled") for note in said["notes"])

    def words(self) -> str:
        """One line for people."""
        seconds = max(time.perf_counter() - self.started, 1e-9)
        text = f"{self.answered:,} {self.noun} in {seconds:.1f} s"
        if self.answered:
            mean_macs = self.macs / self.answered
            text += (
                f" ({self.answered / seconds:.1f} a second), on average {self.looks / self.answered:.2f} looks and "
                f"{mean_macs / 1e6:,.1f}M multiply-adds, {100 * mean_macs / self.backbone_macs:.0f} % of the backbone's; "
                f"{self.above:,} stopped above their threshold"
            )
        for count, words in (
            (self.upscaled, "upscaled to hold a patch"),
            (self.dropped, "dropped, as newer ones had come"),
            (self.failed, "could not be read"),
        ):
            text += f"; {count:,} {words}" if count else ""
        return text + "."
