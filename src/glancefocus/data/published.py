"""Rows of sets of pictures in their publishers' layouts: ImageNet, the Swedish traffic signs, shards of webdataset."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from glancefocus.data.folders import SUFFIXES, members_of, walk_visible
from glancefocus.data.splits import Row
from glancefocus.errors import BadData
from glancefocus.machine import open_file

_MOST_BYTES = 256 << 20  # of a list
Rows = tuple[list[Row], tuple[str, ...]]


def read_published_pictures(folder: Path) -> Rows | None:
    """Rows and classes of a published set of pictures; None for other folders."""
    readers: tuple[Callable[[Path], Rows | None], ...] = (_challenge, _imagenet_1k, _traffic_signs, _shards)
    return next((found for reader in readers if (found := reader(folder)) is not None), None)


def _text(file: Path) -> str:
    try:
        with open_file(file) as stream:
            content = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise BadData(f"{file} cannot be read: {error.strerror or error}. Check its permissions.") from None
    if len(content) > _MOST_BYTES:
        raise BadData(f"{file} has more than {_MOST_BYTES >> 20} MB, too many for a list. Download it again.")
    return content.decode("utf-8", "replace")


def _pictures(folder: Path) -> list[Path]:
    found = (Path(where, name) for where, names in walk_visible(folder) for name in names)
    return sorted(file for file in found if file.suffix.lower() in SUFFIXES and not file.name.startswith("."))


# ImageNet as the challenge has it (and Kaggle): LOC_synset_mapping.txt with the classes in their usual order, training images in a
# folder for each class, validation images in one folder, and their classes in LOC_val_solution.csv.

SYNSETS = "LOC_synset_mapping.txt"
SOLUTION = "LOC_val_solution.csv"


def _challenge(folder: Path) -> Rows | None:
    if not (folder / SYNSETS).is_file():
        return None
    classes = tuple(line.split(maxsplit=1)[0] for line in _text(folder / SYNSETS).splitlines() if line.strip())
    number = {name: label for label, name in enumerate(classes)}
    images = next(
        (
            place
            for place in (folder / "ILSVRC/Data/CLS-LOC", folder / "Data/CLS-LOC", folder)
            if (place / "train").is_dir()
        ),
        None,
    )
    if images is None:
        raise BadData(
            f"{folder} has {SYNSETS} but no ILSVRC/Data/CLS-LOC/train. Unpack the images of the challenge there."
        )
    rows: list[Row] = []
    for name in classes:
        rows += [
            ("train", file, number[name])
            for file in _pictures(images / "train" / name)
            if (images / "train" / name).is_dir()
        ]
    rows += _validation(folder, images / "val", number)
    if not rows:
        raise BadData(f"{images} holds no images. Unpack those of the challenge there.")
    return rows, classes


def _validation(folder: Path, images: Path, number: dict[str, int]) -> list[Row]:
    """Rows of the validation images: in a folder for each class, or in one folder, with their classes in a list."""
    if not images.is_dir():
        return []
    by_class = [
        ("val", file, number[name]) for name in number if (images / name).is_dir() for file in _pictures(images / name)
    ]
    if by_class:
        return by_class
    solution = folder / SOLUTION
    if not solution.is_file():
        raise BadData(
            f"{images} holds the validation images in one folder, so {SOLUTION}, which names their classes, is needed in {folder}."
        )
    answers = {}
    for line in csv.reader(io.StringIO(_text(solution))):
        if len(line) >= 2 and line[1].split() and line[1].split()[0] in number:
            answers[line[0]] = number[line[1].split()[0]]
    files = _pictures(images)
    unknown = [file.name for file in files if file.stem not in answers]
    if unknown:
        raise BadData(
            f"{len(unknown)} of {len(files)} validation images are not in {solution}, such as {unknown[0]}. Download it again."
        )
    return [("val", file, answers[file.stem]) for file in files]


# ImageNet as the hub's `imagenet-1k` has it once its archives are unpacked: flat folders whose file names end in the class.

_ENDING = re.compile(r".*_(n\d{8})$")


def _imagenet_1k(folder: Path) -> Rows | None:
    splits = {
        split: [place for place in sorted(folder.glob(f"{split}*")) if place.is_dir() and _is_flat(place)]
        for split in ("train", "val")
    }
    if not splits["train"] and not splits["val"]:
        return None
    found = [
        (split, file, match[1])
        for split, places in splits.items()
        for place in places
        for file in _pictures(place)
        if (match := _ENDING.match(file.stem))
    ]
    classes = tuple(sorted({name for _, _, name in found}))
    number = {name: label for label, name in enumerate(classes)}
    return [(split, file, number[name]) for split, file, name in found], classes


def _is_flat(folder: Path) -> bool:
    """Whether the first pictures directly in a folder have names such as n01440764_10026_n01440764.JPEG."""
    pictures = (file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES)
    first = next(pictures, None)
    return first is not None and _ENDING.match(first.stem) is not None


# The Swedish traffic signs (Larsson and Felsberg 2011) as speed limits (Katharopoulos and Fleuret 2019): Set1 trains, Set2 tests,
# and images whose limit is not clear are left out. That leaves 747 and 684 images.

LIMITS = {"50_SIGN": "50", "70_SIGN": "70", "80_SIGN": "80"}
SPEED_CLASSES = ("none", *LIMITS.values())
_VISIBILITIES = ("VISIBLE", "BLURRED", "SIDE_ROAD", "OCCLUDED")
_NUMBER = re.compile(r"[-+]?[0-9]*\.?[0-9]+")
ANNOTATIONS = "annotations.txt"


class Sign(NamedTuple):
    """One sign in an image.

    visibility  one of _VISIBILITIES
    area        of its box in square pixels
    name        such as 50_SIGN
    """

    visibility: str
    area: float
    name: str


def _traffic_signs(folder: Path) -> Rows | None:
    sets = {"train": folder / "Set1", "test": folder / "Set2"}
    if not all((place / ANNOTATIONS).is_file() for place in sets.values()):
        return None
    rows: list[Row] = []
    missing: list[Path] = []
    for split, place in sets.items():
        where = {file.name: file for file in _pictures(place)}
        for name, signs in read_signs(place / ANNOTATIONS):
            label = speed_limit(signs)
            if label is None:
                continue
            if name in where:
                rows.append((split, where[name], label))
            else:
                missing.append(place / name)
    if missing or not rows:
        such = f", such as {missing[0]}" if missing else ""
        raise BadData(
            f"{len(missing)} images of the annotations are not in {folder}{such}. Unpack Set1Part0 and Set2Part0 there."
        )
    return rows, SPEED_CLASSES


def read_signs(file: Path) -> list[tuple[str, list[Sign]]]:
    """(name of an image, its signs) for each line; signs that are only marked as miscellaneous are left out."""
    images = []
    for number, line in enumerate(_text(file).splitlines(), start=1):
        if not line.strip():
            continue
        name, colon, rest = line.strip().partition(":")
        if not colon:
            raise BadData(
                f"{file}: line {number} has no colon after the name of the image. Download the annotations again."
            )
        images.append((name, [sign for text in rest.split(";") if (sign := _sign(text, file, number)) is not None]))
    return images


def _sign(text: str, file: Path, line: int) -> Sign | None:
    parts = [part.strip() for part in text.split(",")]
    if parts == [""] or parts[0] == "MISC_SIGNS":
        return None
    # The numbers are right, bottom, left and top; some have a letter too many.
    sides = [_NUMBER.match(part) for part in parts[1:5]]
    if len(parts) < 7 or parts[0] not in _VISIBILITIES or not all(sides):
        raise BadData(
            f"{file}: line {line} has a sign that cannot be read ({text.strip()!r}). Download the annotations again."
        )
    right, bottom, left, top = (float(side[0]) for side in sides if side is not None)
    return Sign(parts[0], (right - left) * (bottom - top), parts[6])


def speed_limit(signs: list[Sign]) -> int | None:
    """The class of an image, see SPEED_CLASSES; None where it is not clear.

    An image without signs has no limit. The limit is that of the most visible and then largest speed sign, which must be visible;
    images with other signs only are left out.
    """
    if not signs:
        return 0
    limits = [sign for sign in signs if sign.name in LIMITS]
    if not limits:
        return None
    clearest = min(limits, key=lambda sign: (_VISIBILITIES.index(sign.visibility), -sign.area))
    return SPEED_CLASSES.index(LIMITS[clearest.name]) if clearest.visibility == "VISIBLE" else None


# Shards of webdataset. Members with the same name up to the first dot belong together: a picture, and its label in .cls (a number
# or a name), .txt or .json (with "label" or "cls").

CLASSES_FILE = "classes.txt"
_MOST_LABEL_BYTES = 1 << 20


def _shards(folder: Path) -> Rows | None:
    """Rows and classes of a folder with tar files; None if it has none.

    A shard whose name contains train, val or test is of that split. Labels that are numbers are the lines of classes.txt, where the
    folder has it.
    """
    shards = sorted(place for place in folder.glob("*.tar") if place.is_file())
    if not shards:
        return None
    found = [(_split_of(shard), file, label) for shard in shards for file, label in _labelled(shard)]
    if not found:
        raise BadData(f"the shards in {folder} hold no pictures with labels, such as 000001.jpg beside 000001.cls.")
    names = {label for _, _, label in found}
    numbered = all(name.isdecimal() for name in names)
    classes = tuple(sorted(names, key=int)) if numbered else tuple(sorted(names))
    number = {name: label for label, name in enumerate(classes)}
    if numbered and (folder / CLASSES_FILE).is_file():
        listed = _text(folder / CLASSES_FILE).splitlines()
        most = max(map(int, names))
        if most >= len(listed):
            raise BadData(
                f"{folder / CLASSES_FILE} has {len(listed)} lines, but a label is {most}, counted from 0. Add the missing ones."
            )
        classes, number = tuple(name.strip() for name in listed), {name: int(name) for name in names}
    return [(split, file, number[label]) for split, file, label in found], classes


def _split_of(shard: Path) -> str:
    return next((split for split in ("train", "val", "test") if split in shard.stem.lower()), "train")


def _labelled(shard: Path) -> Iterator[tuple[Path, str]]:
    """(picture, label) of every sample of a shard."""
    members = members_of(shard, shard.stat().st_mtime_ns)
    samples: dict[str, dict[str, str]] = {}
    for name in members:
        folder, _, file = name.rpartition("/")
        stem, _, suffix = file.partition(".")
        samples.setdefault(f"{folder}/{stem}", {})[suffix.lower()] = name
    with open_file(shard) as stream:
        for parts in samples.values():
            picture = next((name for suffix, name in parts.items() if f".{suffix}" in SUFFIXES), None)
            source = next((suffix for suffix in ("cls", "txt", "json") if suffix in parts), None)
            if picture is None or source is None:
                continue
            place = members[parts[source]]
            stream.seek(place.offset)
            yield (
                shard / picture,
                _label(stream.read(min(place.size, _MOST_LABEL_BYTES)), source, shard / parts[source]),
            )


def _label(content: bytes, suffix: str, file: Path) -> str:
    try:
        text = content.decode("utf-8").strip()
        if suffix == "json":
            plain: Any = json.loads(text)
            text = str(next(plain[key] for key in ("label", "cls", "class") if key in plain))
    except (ValueError, StopIteration, TypeError) as error:
        raise BadData(f"{file} holds no label that can be read: {error or 'it has neither label nor cls'}.") from None
    if not text:
        raise BadData(f"{file} holds no label: it is empty.")
    return text
