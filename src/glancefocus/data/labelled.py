"""Labelled images to measure a trained network on: splits of a data set, with labels counted as the network does."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from glancefocus.data.datasets import (
    DataSettings,
    Progress,
    open_data,
    read_labelled_csv,
    read_labelled_folder,
    without_bad_files,
)
from glancefocus.data.media import Medium, medium_of
from glancefocus.data.splits import AugmentSettings, FileSplit, Row, Split
from glancefocus.data.worlds import WORLDS
from glancefocus.errors import BadData, UnknownName
from glancefocus.settings import ViewSettings

WHOLE = "all"
"""The split of a data set that has none."""


def open_labelled(
    settings: DataSettings,
    view: ViewSettings,
    classes: Sequence[str],
    progress: Progress | None = None,
    bad_files: list[str] | None = None,
    *,
    frames: int = 1,
) -> dict[str, Split]:
    """{name: split} of train, val and test as far as they are there; one named `all` where the data is in one piece.

    classes    of the network; data with a label that is not among them is refused
    bad_files  what is wrong with files that were skipped is added to it
    frames     1 for images; more for clips of so many frames
    """
    if settings.source in WORLDS:
        data = open_data(settings, view, progress, frames=frames)
        if tuple(data.classes) != tuple(classes):
            raise BadData(
                _foreign(settings.source, [c for c in data.classes if c not in classes] or data.classes, classes)
            )
        assert data.test is not None
        return {"train": data.train, "val": data.val, "test": data.test}
    path = Path(settings.source)
    if not path.exists():
        raise UnknownName("data set", settings.source, WORLDS, "Name a folder, a CSV file or a built-in world.")
    medium = medium_of(frames)
    if path.is_file():
        rows, found = read_labelled_csv(path)
    else:
        rows, found = medium.published(path) or read_labelled_folder(path, medium)
    foreign = [name for name in found if name not in classes]
    if foreign:
        raise BadData(_foreign(str(path), foreign, classes))
    number = {name: index for index, name in enumerate(classes)}
    if settings.check_files:
        rows, bad = without_bad_files(rows, settings.max_bad_files, progress, medium)
        if bad_files is not None:
            bad_files += bad
    return {
        name: _split(rows, name, found, number, view, medium)
        for name in ("train", "val", "test", WHOLE)
        if _has(rows, name)
    }


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


def _has(rows: list[Row], split: str) -> bool:
    return any(name == split for name, _, _ in rows)


def _split(
    rows: list[Row], split: str, found: Sequence[str], number: dict[str, int], view: ViewSettings, medium: Medium
) -> FileSplit:
    chosen = [(file, number[found[label]]) for name, file, label in rows if name == split]
    labels = torch.tensor([label for _, label in chosen])
    return medium.split([file for file, _ in chosen], labels, view, AugmentSettings(crop=1.0, flip=False))


def _foreign(source: str, foreign: Sequence[str], classes: Sequence[str]) -> str:
    known = ", ".join(classes[:6]) + (", ..." if len(classes) > 6 else "")
    return f"{source} has the label {foreign[0]!r}, which the bundle does not know. Its classes are {known}."
