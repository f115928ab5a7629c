"""Which images choose thresholds, and which others measure what they give."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from glancefocus.bundle import Bundle
from glancefocus.data.labelled import WHOLE, open_labelled, world_settings
from glancefocus.data.noted_settings import noted_settings
from glancefocus.data.splits import Split
from glancefocus.early_exit.look_record import ABOUT_FILE, LookRecord
from glancefocus.errors import BadData, BadSetting
from glancefocus.evaluation.assess import halves
from glancefocus.evaluation.recording import record_looks

Progress = Callable[[str, int, int], None]


class Records:
    """The look records of a data set's splits, made when they are asked for, kept beside the bundle."""

    def __init__(
        self,
        bundle: Bundle,
        source: str,
        folder: Path,
        *,
        workers: int = 0,
        max_bad_files: int = 10,
        progress: Progress | None = None,
    ) -> None:
        """source is a data set, or the folder of one look record; folder is where records are kept."""
        self.bundle = bundle
        self.source = source
        self.folder = folder
        self.workers = workers
        self.max_bad_files = max_bad_files
        self.progress = progress
        self.bad_files: list[str] = []

    @functools.cached_property
    def splits(self) -> dict[str, Split]:
        """{name: split} of the data, with labels counted as the bundle counts its classes."""
        network, drawn = self.bundle.settings, noted_settings(self.bundle.notes)
        settings = world_settings(self.source, drawn, network.view, network.frames)
        settings = replace(settings, max_bad_files=self.max_bad_files)
        return open_labelled(
            settings, network.view, self.bundle.classes, self.progress, self.bad_files, frames=network.frames
        )

    @functools.cached_property
    def made_before(self) -> LookRecord | None:
        """The record that the source is, where it is one."""
        if not (Path(self.source) / ABOUT_FILE).is_file():
            return None
        record = LookRecord.load(Path(self.source))
        record.check_made_for(self.bundle.fingerprint)
        return record

    @property
    def names(self) -> list[str]:
        """The splits that there are."""
        return list(self.splits) if self.made_before is None else [self.made_before.about.split]

    def first_of(self, *wanted: str) -> str | None:
        """The first of these splits that is there."""
        return next((name for name in wanted if name in self.names), None)

    def of(self, name: str) -> LookRecord:
        """The record of a split."""
        if self.made_before is not None:
            return self.made_before
        progress = self.progress
        return record_looks(
            self.bundle,
            self.splits[name],
            self.folder,
            source=self.source,
            name=name,
            workers=self.workers,
            progress=None if progress is None else functools.partial(progress, f"looking at {name}"),
        )


@dataclass(frozen=True)
class Choice:
    """The images that thresholds are chosen on, and those that they are then measured on; rows of their records."""

    choosing: LookRecord
    choosing_rows: NDArray[np.int64]
    measuring: LookRecord
    measuring_rows: NDArray[np.int64]
    choosing_words: str
    measuring_words: str


def choose_images(records: Records, on: str, seed: int = 0) -> Choice:
    """Held-out images choose and others measure; on="train": training images choose, as in the paper.

    Where there is only one held-out split, one half of it chooses and the other measures.
    """
    first, second = choosing_and_measuring(records, on)
    record = records.of(first)
    source, rows = record.about.source, np.arange(record.about.images)
    if second is not None:
        other = records.of(second)
        others = np.arange(other.about.images)
        return Choice(record, rows, other, others, f"{source}, {first}", f"{source}, {second}")
    if len(rows) < 4:
        raise BadData(
            f"thresholds are chosen on some images and measured on others, but {source} has {len(rows)}. "
            "Give at least 4 images, better some hundred."
        )
    one, two = halves(len(rows), seed)
    return Choice(record, one, record, two, f"one half of {source}, {first}", f"the other half of {source}, {first}")


def choosing_and_measuring(records: Records, on: str) -> tuple[str, str | None]:
    """The split that chooses and the one that measures; None: the other half of the same."""
    if on not in ("held-out", "train"):
        raise BadSetting(f"thresholds are chosen on 'held-out' or 'train' images, but got {on!r}.")
    if on == "train":
        if records.first_of("train") is None:
            raise BadData(f"{records.source} has no training images. Leave --on out, or name data with train/.")
        return "train", records.first_of("test", "val")
    first = records.first_of("val", WHOLE, "test", "train")
    assert first is not None
    return first, records.first_of("test") if first == "val" else None


def looks_folder(bundle_folder: Path) -> Path:
    """Where the look records of a bundle are kept: beside it."""
    return bundle_folder.absolute().with_name(f"{bundle_folder.absolute().name}-looks")
