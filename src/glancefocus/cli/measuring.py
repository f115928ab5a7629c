"""What `gf evaluate` and `gf budget` share: options for measuring a bundle on labelled images, the bundle, and its look records."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

from cyclopts import Parameter

from glancefocus import values
from glancefocus.progress import Progress

if TYPE_CHECKING:
    from glancefocus.bundle.bundle import Bundle
    from glancefocus.evaluation.records import Records

LatencyFile = Annotated[
    Path | None,
    Parameter(
        help="Use milliseconds that were measured elsewhere, such as on a phone, instead of measuring them here: a JSON file with "
        "device, glance_ms, and focus_ms with one list for each focus look, which has one number for each candidate view. "
        "Optional: threads, batch_size, runtime."
    ),
]
TimedBatch = Annotated[
    values.BatchSize, Parameter(help="Number of images processed together when milliseconds are measured.")
]
ReadingProcesses = Annotated[
    values.Workers, Parameter(help="Number of processes that read files; 0: the main process reads them.")
]
SkippedFiles = Annotated[
    values.BadFiles, Parameter(help="Skip up to this many damaged files. Abort if there are more.")
]


class MeasuringOptions(Protocol):
    """The options that both verbs have."""

    @property
    def data(self) -> str: ...
    @property
    def latency_file(self) -> Path | None: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def runtime(self) -> str | None: ...
    @property
    def light_weights(self) -> bool: ...
    @property
    def threads(self) -> int | None: ...
    @property
    def workers(self) -> int: ...
    @property
    def max_bad_files(self) -> int: ...


def load_to_measure(folder: Path, options: MeasuringOptions) -> "Bundle":
    """The bundle in a folder, with the runtime of the options and the milliseconds of --latency-file."""
    from glancefocus.bundle.bundle import load
    from glancefocus.bundle.files import read_latency_file

    bundle = load(
        folder,
        runtime=options.runtime,
        threads=options.threads,
        batch=options.batch_size,
        light_weights=options.light_weights,
    )
    if options.latency_file is not None:
        bundle.elsewhere = read_latency_file(options.latency_file, bundle.settings)
    return bundle


def records_of(
    bundle: "Bundle", folder: Path, options: MeasuringOptions, progress: Progress, train_images: int | None = None
) -> "Records":
    """The look records of the data, stored beside the bundle.

    train_images  see Records
    """
    from glancefocus.evaluation.records import Records, looks_folder

    return Records(
        bundle,
        options.data,
        looks_folder(folder),
        workers=options.workers,
        max_bad_files=options.max_bad_files,
        progress=progress,
        train_images=train_images,
    )
