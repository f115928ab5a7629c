"""`gf predict`: answers for files or for the frames of a camera. Unreadable files are listed, the others are still answered.

Answers are written in the order of the files, as soon as they are computed. Memory does not grow with the number of files.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from glancefocus.cli.main import (
    BundleName,
    Display,
    Flag,
    Json,
    LightWeights,
    OutputName,
    Runtime,
    Threads,
    command_options,
    display,
)
from glancefocus.cli.predict_output import (
    Drawn,
    LineOutput,
    Output,
    Summary,
    TableOutput,
    bars_when_needed,
    chosen_form,
    draw,
    make_folder,
    opened_output,
    print_remarks,
    standard_input,
)
from glancefocus.errors import BadImage, BadSetting, UnknownName
from glancefocus.progress import Progress
from glancefocus.values import Answer, BatchSize, Count, Looks, MaxPixels, Milliseconds, MultiplyAdds, Threshold

if TYPE_CHECKING:
    from glancefocus.bundle.bundle import Bundle
    from glancefocus.bundle.predicting import Viewed


@command_options
@dataclass(frozen=True)
class PredictOptions:
    """Options of `gf predict`."""

    bundle: BundleName
    files: Annotated[list[str] | None, Parameter(allow_leading_hyphen=True)] = None  # a lone - is standard input
    """Image files, folders of images, or - for one image on standard input. A network for clips takes video files, folders of
    frames, and folders of these."""
    _: KW_ONLY
    looks: Looks | None = None
    """Take exactly this many looks at every picture, without early exit."""
    thresholds: Annotated[list[Threshold] | None, Parameter(consume_multiple=True)] = None
    """Stop after a look when the score is above its threshold: one number for each look, the glance included, except the last. Put
    this option after FILES: gf predict BUNDLE photo.jpg --thresholds 0.9 0.8. A network with several candidate views needs one
    number for each view, look by look, unless it zooms."""
    budget_macs: MultiplyAdds | None = None
    """Target for the mean cost of a picture in multiply-adds, such as 2e8. The thresholds for it come from the curve (thresholds
    for a range of budgets) that `gf train` and `gf budget` store in the bundle."""
    budget_ms: Milliseconds | None = None
    """Target for the mean time of a picture in milliseconds. Needs the time of each look on this device: run `gf budget --ms`
    first, which measures and stores it."""
    deadline_ms: Milliseconds | None = None
    """Time limit for each batch of pictures. No look is started that would exceed it; the answer is that of the last finished
    look. The glance is always taken. Default: no limit."""
    topk: Count = 1
    """Number of most likely classes to list."""
    draw: Path | None = None
    """Write every picture to this folder, with the looks drawn on it; for a clip, four of its frames; for a large picture, an
    overview with the looks, and each look as a separate picture. If the folder that holds the picture has the name of a class,
    boxes of right and wrong answers have different colours."""
    batch_size: BatchSize = 32
    """Number of pictures processed together; fewer if they are large."""
    merge_batches: bool | None = None
    """Pool the undecided pictures of several batches, so that batches stay full. The answers do not change (with --light-weights a
    few may). Default: on if there are several batches and no --deadline-ms."""
    max_pixels: MaxPixels | None = None
    """Skip pictures with more pixels than this, and report them. Default: 179 million; 17 billion for pyramids (files with the
    picture in several sizes, cut into tiles), of which only the parts that are looked at are decoded."""
    camera: str | None = None
    """Instead of files: the number of a camera (0 is the first), an address such as rtsp://..., or a video file, whose frames are
    classified one by one. If a camera or an address sends frames faster than they are classified, only the latest one is used.
    Press Ctrl-C to stop."""
    max_frames: Count | None = None
    """With --camera: stop after this many answers."""
    ray: Flag = False
    """Answer on a Ray cluster: the one whose address is in the environment variable RAY_ADDRESS; without it, Ray is started on this
    machine. FILES is one folder, one Parquet file or one .tar file (WebDataset). The answers are written to the folder --output as
    Parquet files. After an interruption the same command continues."""
    runtime: Runtime = None
    light_weights: LightWeights = False
    threads: Threads = None
    json: Json = False
    jsonl: Flag = False
    """Print one line of JSON for each picture as soon as it is classified."""
    csv: Flag = False
    """Print CSV, one row for each picture as soon as it is classified."""
    output: Annotated[Path | None, OutputName] = None
    """Write JSON lines, CSV or JSON to this file. If none of --jsonl, --csv and --json is given, the suffix of the file (.jsonl,
    .csv, .json) chooses the format."""

    def __post_init__(self) -> None:
        for word in self.files or ():
            if word.startswith("-") and word != "-":
                names = [f"--{one.name.replace('_', '-')}" for one in fields(self) if one.kw_only]
                raise UnknownName(
                    "option", word, names, "To name a file that begins with a hyphen, write its folder, too: ./-a.png."
                )
        if bool(self.files) == (self.camera is not None):
            raise BadSetting("name the pictures or folders to look at, or a --camera, and not both.")
        if self.max_frames is not None and self.camera is None:
            raise BadSetting("--max-frames is for --camera only. Leave it out, or name a camera.")
        if not self.ray:
            chosen_form(self.forms, self.output)

    @property
    def forms(self) -> dict[str, bool]:
        """The formats for programs, and whether each was requested."""
        return {"json": self.json, "jsonl": self.jsonl, "csv": self.csv}

    def stopping(self, choices: int) -> dict[str, Any]:
        """When to stop, as Bundle.predict takes it; choices: see NetworkSettings.view_choices."""
        thresholds: Sequence[Any] | None = self.thresholds
        if thresholds is not None and choices > 1:
            thresholds = _by_look(thresholds, choices)
        return {
            "thresholds": thresholds,
            "looks": self.looks,
            "budget_macs": self.budget_macs,
            "budget_ms": self.budget_ms,
        }


def predict(options: PredictOptions) -> int:
    """Classify pictures or clips, and show the number of looks, where they were, and what they cost.

    Each picture is looked at until its score is above a threshold. The thresholds are those that `gf train` or `gf budget` stored
    in the bundle, unless you give one of --looks, --thresholds, --budget-macs and --budget-ms. Instead of a bundle you can give
    the address of a server that `gf serve` has started: http://host:8000, or http://host:8000#name for one of several bundles.

    Example: gf predict runs/signs/bundle photo.jpg folder/ --draw drawings

    Example: gf predict runs/signs/bundle folder/ -o answers.csv

    Example: gf predict runs/signs/bundle --camera 0

    Example: gf predict http://127.0.0.1:8000 folder/

    Example: gf predict runs/signs/bundle folder/ --ray -o answers
    """
    if options.bundle.startswith(("http://", "https://")):
        return _predict_on_server(options)
    if options.ray:
        from glancefocus.cli.predict_server import predict_on_ray

        return predict_on_ray(options)
    from glancefocus.bundle.bundle import load

    bundle = load(
        options.bundle,
        runtime=options.runtime,
        threads=options.threads,
        batch=options.batch_size if options.camera is None else 1,
        light_weights=options.light_weights,
    )
    if options.draw is not None:
        make_folder(options.draw)
    return _predict_files(bundle, options) if options.camera is None else _predict_camera(bundle, options)


def _predict_files(bundle: "Bundle", options: PredictOptions) -> int:
    """Write the answers; 0 if all files were answered, 2 if some could not be read."""
    files = _Files(bundle, options)
    count = len(files.names)
    # A single batch has nothing to be pooled with.
    merge = False if options.merge_batches is None and count <= options.batch_size else options.merge_batches
    outcomes = bundle.predict_stream(
        files.pictures(),
        batch_size=options.batch_size,
        full_batch=options.batch_size,
        deadline_ms=options.deadline_ms,
        merge=merge,
        **options.stopping(bundle.settings.view_choices),
    )
    summary = Summary(bundle.costs.backbone_macs, "pictures" if bundle.settings.frames == 1 else "clips")
    return _write_answers(files.answers(outcomes), count, summary, options, files)


def _predict_on_server(options: PredictOptions) -> int:
    """The same with the answers of a server."""
    from glancefocus.cli.predict_server import ServerBundle, open_server

    client, name = open_server(options.bundle, options)
    with client:
        bundle = ServerBundle(client, name)
        frames = bundle.info["frames"]
        names = _names(options.files or (), frames)
        stopping = {name: value for name, value in options.stopping(1).items() if name != "budget_ms"}
        answers = bundle.answers(names, options.topk, deadline_ms=options.deadline_ms, **stopping)
        summary = Summary(bundle.info["backbone_macs"], "pictures" if frames == 1 else "clips")
        return _write_answers(answers, len(names), summary, options)


def _write_answers(
    answers: Iterator[tuple[Answer, str, Sequence[str]]],
    count: int,
    summary: Summary,
    options: PredictOptions,
    files: "_Files | None" = None,
) -> int:
    """Print or store the answers, then errors and notes; files: those that are read here, not by a server."""
    errors: list[str] = []
    notes: list[str] = []
    form = chosen_form(options.forms, options.output)
    try:
        with ExitStack() as stack:
            quiet = count <= options.batch_size
            shown = stack.enter_context(display(for_programs=form is not None, quiet=quiet))
            if files is not None:
                files.progress = bars_when_needed(stack) if quiet else shown.progress
            output = _output(stack, shown, form, options)
            for answer, stopped, remarks in answers:
                output.write(answer, stopped)
                summary.add(answer)
                errors += [answer["error"]] if "error" in answer else []
                notes += remarks
                shown.progress("looking", summary.answered + summary.failed, count)
    finally:
        ends = [summary.words()] if count > 1 and summary.answered else []
        print_remarks([*errors, *(f"note: {note}" for note in notes), *ends])
    return 2 if errors else 0


def _output(stack: ExitStack, shown: Display, form: str | None, options: PredictOptions) -> Output:
    if form is not None:
        return stack.enter_context(opened_output(form, options.output))
    table = TableOutput(shown.show, options.topk)
    stack.callback(table.close)
    return table


@dataclass(frozen=True)
class _Waiting:
    """A file that was read and has no answer yet, or cannot be answered.

    error    what is wrong with it; None: nothing
    drawn    to draw on
    remarks  notes that are also printed on standard error
    """

    index: int
    name: str
    error: str | None = None
    drawn: Drawn | None = None
    remarks: Sequence[str] = ()


class _Files:
    """Reads the files for Bundle.predict_stream, and puts its outcomes and the errors back into the order of the files.

    names     every file, and what is wrong with it if that is known before it is read
    progress  reports the making of tiles of very large pictures; set before the first is read
    """

    def __init__(self, bundle: "Bundle", options: PredictOptions) -> None:
        self.bundle = bundle
        self.options = options
        self.names = _names(options.files or (), bundle.settings.frames)
        self.progress: Progress | None = None
        self._waiting: deque[_Waiting] = deque()

    def pictures(self) -> Iterator["Viewed"]:
        """The files that can be read."""
        from glancefocus.bundle.predicting import ahead

        with ahead([name for name, _ in self.names], self._view) as take:
            for index, (name, error) in enumerate(self.names):
                try:
                    if error is not None:
                        raise BadImage(error)
                    viewed = take(index)
                except BadImage as problem:
                    text = str(problem)
                    named = name == "-" or name in text
                    self._waiting.append(_Waiting(index, name, text if named else f"{name}: {text}"))
                    continue
                remarks = [note for note in viewed.notes if note != viewed.placement.note]
                drawn = Drawn(viewed.pictures, viewed.picture_scale, viewed.file) if viewed.pictures else None
                self._waiting.append(_Waiting(index, name, None, drawn, remarks))
                yield viewed
                del viewed, drawn  # so that it is not in memory any more when the next file is read

    def _view(self, name: Any) -> "Viewed":
        return self.bundle.view(
            standard_input() if name == "-" else name,
            max_pixels=self.options.max_pixels,
            keep_pictures=self.options.draw is not None,
            progress=self.progress,
        )

    def answers(self, outcomes: Iterator[Any]) -> Iterator[tuple[Answer, str, Sequence[str]]]:
        """(answer, why it stopped, remarks) of every file, in their order."""
        for outcome in outcomes:
            for row, answer in enumerate(outcome.answers(self.options.topk)):
                yield from self._errors()
                file = self._waiting.popleft()
                problem = outcome.problems[row] if outcome.problems else ""
                if problem:
                    yield {"file": file.name, "error": problem}, "", ()
                    continue
                if self.options.draw is not None and file.drawn is not None:
                    draw(outcome, row, file.name, file.drawn, self.options.draw, file.index)
                yield {**answer, "file": file.name}, outcome.stopped(row), file.remarks
            del outcome
        yield from self._errors()

    def _errors(self) -> Iterator[tuple[Answer, str, Sequence[str]]]:
        """The unreadable files that come next."""
        while self._waiting and self._waiting[0].error is not None:
            file = self._waiting.popleft()
            yield {"file": file.name, "error": file.error}, "", ()


def _names(files: Sequence[str], frames: int) -> list[tuple[str, str | None]]:
    """(file, None) for every file, those in folders included; (folder, what is wrong) for a folder without any."""
    from glancefocus.data.clips import find_clips
    from glancefocus.data.folders import find_pictures

    names: list[tuple[str, str | None]] = []
    for file in files:
        try:
            if file == "-" or (frames == 1 and not Path(file).is_dir()):
                names.append((str(Path(file)), None))
                continue
            found = find_pictures([file]) if frames == 1 else find_clips([file])
            names += [(str(path), None) for path in found]
        except BadImage as error:
            names.append((file, str(error)))
    if names.count(("-", None)) > 1:
        raise BadSetting("standard input can be read only once, but - was given several times.")
    return names


def _by_look(numbers: Sequence[float], sizes: int) -> list[list[float]]:
    """Thresholds as a list for each look."""
    if len(numbers) % sizes:
        raise BadSetting(
            f"this network has {sizes} candidate views: give {sizes} thresholds for each look, but got {len(numbers)}."
        )
    return [list(numbers[start : start + sizes]) for start in range(0, len(numbers), sizes)]


def _predict_camera(bundle: "Bundle", options: PredictOptions) -> int:
    """Answer frames until there are no more, or enough, or Ctrl-C; then print the summary. Returns 0."""
    from glancefocus.data.frame_streams import FrameStream

    source = options.camera or ""
    if bundle.settings.frames > 1:
        raise BadSetting(
            f"this network looks at clips of {bundle.settings.frames} frames, but --camera answers single frames. "
            "Give video files without --camera, or use a network for images."
        )
    stopping = options.stopping(bundle.settings.view_choices)
    bundle.exit_rule(**stopping)  # refuses a wrong budget before the camera is opened
    summary = Summary(bundle.costs.backbone_macs, "frames")
    form = chosen_form(options.forms, options.output)
    with ExitStack() as stack:
        stream = stack.enter_context(FrameStream(source, options.max_pixels))
        output: Output = LineOutput()
        if form is not None:
            output = stack.enter_context(opened_output(form, options.output, with_frames=True))
        try:
            summary.started = time.perf_counter()
            for frame in stream.frames():
                outcome = bundle.predict(frame.picture, deadline_ms=options.deadline_ms, **stopping)
                (answer,) = outcome.answers(options.topk)
                place = {"frame": frame.number, "seconds": round(frame.seconds, 3)}
                output.write({**answer, "file": source, **place}, outcome.stopped(0))
                if options.draw is not None:
                    draw(outcome, 0, source, Drawn([frame.picture]), options.draw, frame.number)
                summary.add(answer)
                if summary.answered == options.max_frames:
                    break
        except KeyboardInterrupt:
            pass  # the usual way to end
        summary.dropped = stream.dropped
    print_remarks([summary.words()])
    return 0
