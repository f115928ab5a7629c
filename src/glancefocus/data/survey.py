"""A quick look at a data set before anything is decided: how many files of each class in each split, and how large they are."""

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from glancefocus.data.datasets import DataSettings, split_rows
from glancefocus.data.media import medium_of
from glancefocus.data.worlds import WORLDS, world_classes
from glancefocus.files import open_file

_SAMPLED_FILES = 64


@dataclass(frozen=True)
class Survey:
    """What a data set holds.

    images    {split: {class: number of images or clips}}
    sides_px  the shorter sides of a sample of pictures; empty for clips and built-in worlds
    noun      images, clips or scenes
    """

    classes: tuple[str, ...]
    images: Mapping[str, Mapping[str, int]]
    sides_px: tuple[int, ...] = ()
    noun: str = "images"

    def count(self, split: str) -> int:
        return sum(self.images.get(split, {}).values())


def survey(settings: DataSettings, frames: int = 1) -> Survey:
    """Counts files, and reads the headers of a few; no picture is decoded."""
    if settings.source in WORLDS:
        names = ("train", "val", "test")
        counts = {name: {"": number} for name, number in zip(names, settings.scenes, strict=False)}
        return Survey(world_classes(settings.source), counts, noun="scenes")
    medium = medium_of(frames)
    rows, classes = split_rows(settings, medium)
    tallies: dict[str, Counter[str]] = {}
    for split, _, label in rows:
        tallies.setdefault(split, Counter())[classes[label]] += 1
    files = [file for _, file, _ in rows]
    sides = _sides(files) if medium.noun == "images" else ()
    return Survey(classes, tallies, sides, medium.noun)


def _sides(files: list[Path]) -> tuple[int, ...]:
    """The shorter sides of a sample of pictures; files that cannot be opened are left to the check of the files."""
    sample = random.Random(0).sample(files, min(len(files), _SAMPLED_FILES))
    sides = []
    for file in sample:
        try:
            with open_file(file) as stream, Image.open(stream) as picture:
                sides.append(min(picture.size))
        except Exception:  # damaged, hostile or no picture: plug-ins raise almost anything
            continue
    return tuple(sides)
