"""Labelled images for measuring a trained network: splits of a data set, with labels numbered as in the network.

The record of a bundle (split_record) identifies training images by their content: under any path and name they are in the
split `train` here and in no other.
"""

import functools
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from glancefocus.data.augmentation import AugmentSettings, mix
from glancefocus.data.lists import (
    Medium,
    medium_of,
    read_labelled_csv,
    read_labelled_folder,
    read_published,
    without_missing,
)
from glancefocus.data.scene_splits import chosen_images, joined_images
from glancefocus.data.sources import DataSettings, check_files, open_data
from glancefocus.data.split_record import CHOOSING, Content, SplitRecord
from glancefocus.data.splits import Batch, FileSplit, Row, Split
from glancefocus.data.worlds import WORLDS
from glancefocus.errors import BadData, UnknownName
from glancefocus.machine import ensure_torchvision
from glancefocus.progress import Progress
from glancefocus.settings import ViewSettings


class JoinedSplit:
    """The images of several splits in a row, for measuring; training does not use it."""

    def __init__(self, parts: Sequence[Split]) -> None:
        self.parts = list(parts)
        self.labels: Tensor = torch.cat([part.labels for part in parts]) if parts else torch.empty(0, dtype=torch.int64)
        self.boxes: Tensor | None = None
        self._ends = list(accumulate(len(part) for part in parts))

    @property
    def fixed(self) -> bool:
        return all(part.fixed for part in self.parts)

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, order: Sequence[Sequence[int]], seed: int | None = None, workers: int = 0) -> Iterator[Batch]:
        for indexes in order:
            found = list(self._of_parts(indexes, seed, workers))
            images, labels = joined_images([images for images, _ in found]), torch.cat([labels for _, labels in found])
            part_by_part = torch.tensor(sorted(range(len(indexes)), key=lambda place: self._part(indexes[place])))
            as_requested = part_by_part.argsort()
            yield chosen_images(images, as_requested), labels[as_requested]

    def _part(self, index: int) -> int:
        return bisect_right(self._ends, index)

    def _of_parts(self, indexes: Sequence[int], seed: int | None, workers: int) -> Iterator[Batch]:
        """The images of a batch, grouped by part."""
        for number, part in enumerate(self.parts):
            start = self._ends[number] - len(part)
            own = [index - start for index in indexes if self._part(index) == number]
            if own:
                yield from part.batches([own], seed, workers)


IMAGENET_CLASSES = 1000


def class_numbers(classes: Sequence[str], wanted: Iterable[str]) -> dict[str, int]:
    """{name: number} of the wanted names that are classes of the network; ImageNet's classes are found by any of their names."""
    own = {name: number for number, name in enumerate(classes)}
    wanted = set(wanted)
    if wanted <= own.keys() or not are_imagenet(classes):
        return {name: own[name] for name in wanted & own.keys()}
    known = {**_imagenet_numbers(), **own}
    return {name: known[name] for name in wanted & known.keys()}


def are_imagenet(classes: Sequence[str]) -> bool:
    """Whether these are ImageNet's 1,000 classes in their usual order, under any of their names."""
    if len(classes) != IMAGENET_CLASSES:
        return False
    return all(name in known for name, known in zip(classes, _imagenet_names(), strict=True))


def imagenet_classes(count: int) -> tuple[str, ...]:
    """Names of ImageNet's classes in their usual order if count is 1,000; plain numbers otherwise.

    A name is the first synonym; if two classes share it, the WordNet id is added.
    """
    if count != IMAGENET_CLASSES:
        return tuple(str(number) for number in range(count))
    return tuple(names[0] for names in _imagenet_names())


@functools.cache
def _imagenet_names() -> list[list[str]]:
    """Names of every class: ours, the WordNet id, all synonyms in one text, each synonym."""
    ensure_torchvision()
    from timm.data import ImageNetInfo

    info = ImageNetInfo("imagenet-1k")
    ids = [info.index_to_label_name(number) for number in range(IMAGENET_CLASSES)]
    synonyms = [info.index_to_description(number) for number in range(IMAGENET_CLASSES)]
    firsts = [words.split(",")[0] for words in synonyms]
    ours = [f"{name} ({ids[n]})" if firsts.count(name) > 1 else name for n, name in enumerate(firsts)]
    return [[ours[n], ids[n], synonyms[n], *synonyms[n].split(", ")] for n in range(IMAGENET_CLASSES)]


@functools.cache
def _imagenet_numbers() -> dict[str, int]:
    """{name: number} of all names that mean one class only; also with underscores for spaces, as in folder names."""
    numbers: dict[str, int] = {}
    twice: set[str] = set()
    for number, names in enumerate(_imagenet_names()):
        for name in {*names, *(name.replace(" ", "_") for name in names)}:
            if numbers.setdefault(name, number) != number:
                twice.add(name)
    ours = {names[0]: number for number, names in enumerate(_imagenet_names())}
    return {name: number for name, number in numbers.items() if name not in twice} | ours


WHOLE = "all"
"""The split of a data set without splits."""


@dataclass
class Labelled:
    """A data set to measure on.

    splits     {name: split} of train, val and test, if present; one named `all` if the data has no splits and none of it is known
               from training
    whole      all images in one split
    trained    number of images in `whole` that are known as training images of the network
    moved      number of these that are not in a split `train` of the data, so that they would have been measured
    new        if some of the data is known from training: number of images that were not in it then
    bad_files  sentences on files that were skipped
    remarks    sentences on how the data was read
    contents   size and hash of files whose size is that of a file known from training
    """

    splits: dict[str, Split]
    whole: Split
    trained: int = 0
    moved: int = 0
    new: int = 0
    bad_files: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    contents: dict[Path, Content] = field(default_factory=dict)


def open_labelled(
    settings: DataSettings,
    view: ViewSettings,
    classes: Sequence[str],
    progress: Progress | None = None,
    *,
    frames: int = 1,
    record: SplitRecord | None = None,
) -> Labelled:
    """The data set to measure a network on.

    classes  of the network; data with other labels is refused, but ImageNet's classes may have any of their names
    frames   1 for images; the number of frames for clips
    record   of the training data; None: it is unknown, and the data's own splits are used
    """
    if settings.source in WORLDS:
        data = open_data(settings, view, progress, frames=frames)
        if tuple(data.classes) != tuple(classes):
            raise BadData(
                _foreign(settings.source, [c for c in data.classes if c not in classes] or data.classes, classes)
            )
        assert data.test is not None
        splits = {"train": data.train, "val": data.val, "test": data.test}
        return Labelled(splits, JoinedSplit(list(splits.values())))
    path, medium = Path(settings.source), medium_of(frames)
    labelled = Labelled({}, JoinedSplit([]))
    rows, contents = _checked_rows(settings, path, medium, classes, progress, record, labelled)
    labelled.contents = {file: content for file, content in contents.items() if content is not None}
    before = rows
    if record is not None:
        rows = _as_in_training(rows, contents, record, labelled)
    for name in ("train", "val", "test", WHOLE):
        own = [row for row in rows if row[0] == name]
        if own:
            labelled.splits[name] = _split(own, view, medium)
    labelled.whole = _split(before, view, medium)
    return labelled


def _checked_rows(
    settings: DataSettings,
    path: Path,
    medium: Medium,
    classes: Sequence[str],
    progress: Progress | None,
    record: SplitRecord | None,
    labelled: Labelled,
) -> tuple[list[Row], dict[Path, Content | None]]:
    """Rows in the data's own splits, with the network's labels; bad files and remarks are added to `labelled`."""
    if not path.exists():
        raise UnknownName("data set", settings.source, WORLDS, "Name a folder, a CSV file or a built-in world.")
    if path.is_file():
        rows, found = read_labelled_csv(path, labelled.remarks)
    else:
        rows, found = read_published(path, medium) or read_labelled_folder(path, medium)
    numbers = class_numbers(classes, found)
    foreign = [name for name in found if name not in numbers]
    if foreign:
        raise BadData(_foreign(str(path), foreign, classes))
    if path.is_file():
        rows, labelled.bad_files = without_missing(rows, path, settings.max_bad_files)
    contents: dict[Path, Content | None] = {}
    if settings.check_files or record is not None:
        checked = check_files(
            rows,
            medium,
            read=settings.check_files,
            hashed=None if record is None else record.may_know,
            max_bad_files=settings.max_bad_files - len(labelled.bad_files),
            progress=progress,
        )
        rows = checked.rows
        labelled.bad_files += checked.bad
        contents = {file: content for (_, file, _), content in zip(rows, checked.contents, strict=True)}
    return [(split, file, numbers[found[label]]) for split, file, label in rows], contents


def _as_in_training(
    rows: list[Row], contents: dict[Path, Content | None], record: SplitRecord, labelled: Labelled
) -> list[Row]:
    """The rows in the splits that they had in training.

    Training images are `train`, whatever split the data puts them in. Others keep the data's own split, but are held out if that
    is `train` or if there is none. If no image is known from training, nothing changes.
    """
    was = [record.split_of(contents.get(file)) for _, file, _ in rows]
    was = [None if split == CHOOSING else split for split in was]
    labelled.trained = was.count("train")
    if not any(was):
        return rows
    labelled.moved = sum(then == "train" and split != "train" for then, (split, _, _) in zip(was, rows, strict=True))
    labelled.new = was.count(None)
    others = "val" if {"train", "val"} & set(was) else "test"
    seen: list[Row] = []
    for then, (split, file, label) in zip(was, rows, strict=True):
        if then == "train":
            split = "train"
        elif split == WHOLE:
            split = then or others
        elif split == "train":
            split = "val"
        seen.append((split, file, label))
    return seen


def world_settings(source: str, stored: DataSettings | None, view: ViewSettings, frames: int = 1) -> DataSettings:
    """How to open this data: a built-in world as it was drawn for training, or at the size of the view if trained on other data."""
    if source not in WORLDS:
        return DataSettings(source=source)
    if stored is not None and stored.source == source:
        return stored
    settings = DataSettings(source=source, workers=0)
    height, width = view.height_px, view.width_px
    if source == "gestures":
        return replace(settings, gestures=replace(settings.gestures, frames=frames, height=height, width=width))
    return replace(settings, signs=replace(settings.signs, height=height, width=width))


def _split(rows: list[Row], view: ViewSettings, medium: Medium) -> FileSplit:
    labels = torch.tensor([label for _, _, label in rows])
    return medium.split([file for _, file, _ in rows], labels, view, AugmentSettings(crop=1.0, flip=False))


def _foreign(source: str, foreign: Sequence[str], classes: Sequence[str]) -> str:
    known = ", ".join(classes[:6]) + (", ..." if len(classes) > 6 else "")
    return f"{source} has the label {foreign[0]!r}, which is not a class of the bundle. Its classes are {known}."


class TrainingViews:
    """A number of training images, each augmented at random as in training, as in the released code of the paper.

    Images repeat, with other augmentations, where there are fewer.

    split    the training images
    count    how many are seen: each image once before any is seen again
    augment  of training; images of built-in data sets have their own
    """

    def __init__(self, split: Split, count: int, augment: AugmentSettings, seed: int = 0) -> None:
        self.split: Split = replace(split, augment=augment) if isinstance(split, FileSplit) else split
        self.augment = augment
        self.seed = seed
        passes = -(-count // len(split))
        orders = [
            torch.randperm(len(split), generator=torch.Generator().manual_seed(mix(seed, number)))
            for number in range(passes)
        ]
        self.rows = torch.cat(orders)[:count]
        self.labels: Tensor = split.labels[self.rows]
        self.boxes: Tensor | None = None

    @property
    def fixed(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, order: Sequence[Sequence[int]], seed: int | None = None, workers: int = 0) -> Iterator[Batch]:
        """See Split.batches; the same images every time, whatever the seed."""
        for indexes in order:
            found: list[Batch] = []
            seen: list[int] = []
            for number in sorted({index // len(self.split) for index in indexes}):
                own = [index for index in indexes if index // len(self.split) == number]
                rows = self.rows[own].tolist()
                found += self.split.batches([rows], mix(self.seed, number), workers)
                seen += own
            as_requested = torch.tensor([seen.index(index) for index in indexes])
            images, labels = joined_images([each for each, _ in found]), torch.cat([each for _, each in found])
            yield chosen_images(images, as_requested), labels[as_requested]
