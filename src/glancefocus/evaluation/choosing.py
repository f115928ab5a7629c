"""Which images choose thresholds, and which others measure what they give."""

import functools
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.checking import check_files
from glancefocus.data.labelled import WHOLE, JoinedSplit, Labelled, open_labelled, world_settings
from glancefocus.data.media import medium_of
from glancefocus.data.sources import DataSettings, noted_settings
from glancefocus.data.split_record import CHOOSING, SplitRecord, recorded_files
from glancefocus.data.splits import FileSplit, Row, Split
from glancefocus.data.worlds.names import WORLDS
from glancefocus.errors import BadData, BadSetting
from glancefocus.evaluation.assess import halves
from glancefocus.evaluation.records import data_fingerprint, record_looks
from glancefocus.exits.record import ABOUT_FILE, LookRecord
from glancefocus.progress import Progress


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

    @functools.cached_property
    def labelled(self) -> Labelled:
        """The data, with labels counted as the bundle counts its classes; training images are in no split but `train`."""
        network = self.bundle.settings
        settings = world_settings(self.source, self._trained_on, network.view, network.frames)
        return open_labelled(
            replace(settings, max_bad_files=self.max_bad_files),
            network.view,
            self.bundle.classes,
            self.progress,
            frames=network.frames,
            record=self.bundle.split,
        )

    @functools.cached_property
    def _trained_on(self) -> DataSettings | None:
        return noted_settings(self.bundle.notes)

    @property
    def bad_files(self) -> list[str]:
        """What is wrong with files that were skipped."""
        return [] if self.made_before is not None else self.labelled.bad_files

    @property
    def splits(self) -> dict[str, Split]:
        """{name: split} of the data."""
        return self.labelled.splits

    def split(self, name: str) -> Split:
        """One of them, or everything."""
        return self.labelled.whole if name == WHOLE else self.splits[name]

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
            self.split(name),
            self.folder,
            source=self.source,
            name=name,
            workers=self.workers,
            progress=None if progress is None else functools.partial(progress, f"looking at {name}"),
        )

    def to_measure(self, split: str | None = None) -> str:
        """The split to measure on: the one that is asked for, or else test, val or what there is, but no training images."""
        if split is None:
            name = self.first_of("test", "val", WHOLE)
            if name is None and self.made_before is None and self.labelled.trained:
                raise BadData(
                    f"all {self.labelled.trained} {self._noun} in {self.source} trained this network: nothing is left to measure "
                    f"it on. Give other {self._noun}; --split train measures it on those that it has learnt from."
                )
            name = name or self.first_of("train")
        else:
            name = WHOLE if split == WHOLE and self.made_before is None else self.first_of(split)
        if name is None:
            raise BadData(f"{self.source} has no split {split!r}, only {', '.join(self.names)}.")
        return name

    def remarks(self, name: str) -> list[str]:
        """Sentences that belong beside figures on a split: whether training images are among those measured, or were left out."""
        if self.made_before is not None:
            return [_TRAINED.format(f"the {self._noun} of this look record")] if name == "train" else []
        remarks, known, noun = list(self.labelled.remarks), self._known_trained(name), self._noun
        count = len(self.split(name))
        if known:
            which = f"these {known} {noun}" if known == count else f"{known} of these {count} {noun}"
            remarks.append(_TRAINED.format(which))
        elif self.labelled.moved and name != "train":
            new = f" {self.labelled.new} {noun} are new since training." if self.labelled.new else ""
            remarks.append(
                f"{self.labelled.moved} of {len(self.labelled.whole)} {noun} in {self.source} trained this network and are left "
                f"out.{new}"
            )
        elif self._trained_on is not None and self.source not in WORLDS and not self._knows_training:
            remarks.append(
                f"this bundle does not say which {noun} trained it, so some of these may have; figures on them are too good. "
                "Train it again to know."
            )
        return remarks

    @property
    def _knows_training(self) -> bool:
        return self.bundle.split is not None and self.bundle.split.knows_training

    def _known_trained(self, name: str) -> int:
        """How many images of a split are known to have trained the network."""
        if self.source in WORLDS:
            same = self._trained_on is not None and self._trained_on.source == self.source
            return len(self.splits["train"]) if same and name in ("train", WHOLE) else 0
        return self.labelled.trained if name in ("train", WHOLE) else 0

    @property
    def _noun(self) -> str:
        return "images" if self.bundle.settings.frames == 1 else "clips"

    def chose(self, name: str) -> bool:
        """Whether any image of a split is among those that the bundle's thresholds were chosen on."""
        chosen_on = self.bundle.notes.get("thresholds_data")
        if self.made_before is not None:
            return bool(self.made_before.about.data == chosen_on)
        split, record = self.split(name), self.bundle.split
        if isinstance(split, FileSplit) and record is not None:
            was = (record.split_of(self.labelled.contents.get(file)) for file in split.files)
            if any(then is not None and then in record.chosen_by for then in was):
                return True
        parts = split.parts if isinstance(split, JoinedSplit) else [split]
        return chosen_on is not None and any(data_fingerprint(part) == chosen_on for part in parts)

    def remember_choosing(self, name: str) -> None:
        """Make the bundle remember that the images of this split chose its thresholds."""
        split = None if self.made_before is not None else self.split(name)
        if not isinstance(split, FileSplit):
            return
        record = self.bundle.split
        if record is None:
            record = SplitRecord.of(self.source, self.bundle.classes, [], val_share=None, seed=0)
        contents = self.labelled.contents
        was = {file: record.split_of(contents.get(file)) for file in split.files}
        others: list[Row] = [
            (CHOOSING, file, label)
            for file, label in zip(split.files, split.labels.tolist(), strict=True)
            if was[file] in (None, CHOOSING)
        ]
        added = []
        if others:
            medium, all_bad = medium_of(self.bundle.settings.frames), len(others)
            hashed = check_files(
                others, medium, read=False, hashed=lambda size: True, max_bad_files=all_bad, progress=self.progress
            )
            hashes = [content for content in hashed.contents if content is not None]
            added = recorded_files(hashed.rows, hashes, Path(self.source))
        chosen_by = sorted({then for then in was.values() if then is not None and then != CHOOSING})
        self.bundle.split = record.with_choosing([*chosen_by, *([CHOOSING] if added else [])], added)


_TRAINED = "{} trained this network: it has learnt them, and figures on new ones will be lower."


@dataclass(frozen=True)
class Choice:
    """The images that thresholds are chosen on, and those that they are then measured on; rows of their records.

    split      whose images choose
    crosswise  the same images measure: each is judged by thresholds that were chosen without it
    """

    choosing: LookRecord
    choosing_rows: NDArray[np.int64]
    measuring: LookRecord
    measuring_rows: NDArray[np.int64]
    choosing_words: str
    measuring_words: str
    split: str
    crosswise: bool = False


def choose_images(
    records: Records, on: str, seed: int = 0, split: str | None = None, *, in_halves: bool = False
) -> Choice:
    """Held-out images choose and others measure; on="train": training images choose, as in the paper.

    Where there is only one held-out split, all of its images choose, and each is judged by thresholds that others chose.

    in_halves  then one half chooses and the other measures
    """
    first, second = choosing_and_measuring(records, on, split)
    if second is not None:
        return _whole(records, first, second)
    return _halves(records, first, seed) if in_halves else _crosswise(records, first)


def apart(records: Records, name: str, seed: int = 0) -> Choice:
    """The images of a split measure, and others choose: those of val where test measures, otherwise one half of the split."""
    return _whole(records, "val", name) if name == "test" and "val" in records.names else _halves(records, name, seed)


def _whole(records: Records, first: str, second: str) -> Choice:
    one, two = records.of(first), records.of(second)
    rows = np.arange(one.about.images), np.arange(two.about.images)
    source = one.about.source
    return Choice(one, rows[0], two, rows[1], f"{source}, {first}", f"{source}, {second}", first)


def _crosswise(records: Records, name: str) -> Choice:
    record = _enough(records, name)
    rows, words = np.arange(record.about.images), f"{record.about.source}, {name}"
    return Choice(record, rows, record, rows, words, f"{words}, each by thresholds that others chose", name, True)


def _halves(records: Records, name: str, seed: int) -> Choice:
    record = _enough(records, name)
    source = record.about.source
    one, two = halves(record.about.images, seed)
    return Choice(
        record, one, record, two, f"one half of {source}, {name}", f"the other half of {source}, {name}", name
    )


def _enough(records: Records, name: str) -> LookRecord:
    """The record of a split that is to choose and to measure."""
    record = records.of(name)
    source, count = record.about.source, record.about.images
    if count < 4:
        raise BadData(
            f"thresholds are chosen on some images and measured on others, but {source} has {count}"
            f"{'' if name == WHOLE else f' in {name}'}. Give at least 4 images, better some hundred."
        )
    return record


def choosing_and_measuring(records: Records, on: str, split: str | None = None) -> tuple[str, str | None]:
    """The split that chooses and the one that measures; None: the same.

    split  that is to choose; None: by `on`, held-out images or training images
    """
    if on not in ("held-out", "train"):
        raise BadSetting(f"thresholds are chosen on 'held-out' or 'train' images, but got {on!r}.")
    if on == "train" and split not in (None, "train"):
        raise BadSetting(f"--on train and --split {split} say different things. Leave one of them out.")
    if on == "train" or split == "train":
        if records.first_of("train") is None:
            raise BadData(f"{records.source} has no training images. Leave --on out, or name data with train/.")
        return "train", records.first_of("test", "val")
    first = (records.first_of("val") if split is None else None) or records.to_measure(split)
    return first, records.first_of("test") if first == "val" else None


def looks_folder(bundle_folder: Path) -> Path:
    """Where the look records of a bundle are kept: beside it."""
    return bundle_folder.absolute().with_name(f"{bundle_folder.absolute().name}-looks")
