"""Labelled images to measure a trained network on: splits of a data set, with labels counted as the network does.

Which images trained the network its bundle remembers (split_record), by their content: wherever they lie and whatever they are
called, they are in the split `train` here and in no other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from glancefocus.data.checking import Progress, check_files, without_missing
from glancefocus.data.class_names import class_numbers
from glancefocus.data.content import Content
from glancefocus.data.csv_lists import read_labelled_csv
from glancefocus.data.datasets import DataSettings, open_data, read_labelled_folder
from glancefocus.data.joined_splits import JoinedSplit
from glancefocus.data.media import Medium, medium_of
from glancefocus.data.split_record import CHOOSING, SplitRecord
from glancefocus.data.splits import AugmentSettings, FileSplit, Row, Split
from glancefocus.data.worlds import WORLDS
from glancefocus.errors import BadData, UnknownName
from glancefocus.settings import ViewSettings

WHOLE = "all"
"""The split of a data set that has none."""


@dataclass
class Labelled:
    """A data set to measure on.

    splits     {name: split} of train, val and test as far as they are there; one named `all` where the data is in one piece and
               none of it is known from training
    whole      everything in one
    trained    how many images in `whole` are known to have trained the network
    moved      how many of them are not in a split `train` of the data, so that they would have been measured
    new        of data that is known from training: how many images were not there then
    bad_files  what is wrong with files that were skipped
    remarks    sentences on how the data was read
    contents   of files whose size is that of a file known from training
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

    classes  of the network; data with a label that is not among them is refused, but ImageNet's classes may have any of their names
    frames   1 for images; more for clips of so many frames
    record   of the data that trained the network; None: it is not known, and the data's own splits are taken as they are
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
    """Rows in the data's own splits, with labels of the network; bad files and remarks go into `labelled`."""
    if not path.exists():
        raise UnknownName("data set", settings.source, WORLDS, "Name a folder, a CSV file or a built-in world.")
    if path.is_file():
        rows, found = read_labelled_csv(path, labelled.remarks)
    else:
        rows, found = medium.published(path) or read_labelled_folder(path, medium)
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

    What trained is `train`, whatever the data says. What did not keeps the data's own split, but is held out where that is
    `train`, or where there is none. Data of which nothing is known from training stays as it is.
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
    """How to open this data: a built-in world as it was drawn for training, or, by another network, at its view's size."""
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
    return f"{source} has the label {foreign[0]!r}, which the bundle does not know. Its classes are {known}."
