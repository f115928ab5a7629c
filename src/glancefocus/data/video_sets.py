"""Something-Something V1 and V2 and Jester as their publishers lay them out: lists of clips beside one folder that holds them all.

    something-something-v1-{labels,train,validation}.csv    20bn-something-something-v1/ID/00001.jpg
    something-something-v2-{labels,train,validation}.json   20bn-something-something-v2/ID.webm
    jester-v1-{labels,train,validation}.csv                 20bn-jester-v1/ID/00001.jpg

The lists may also lie in a folder `labels` or `annotations`, and be called labels.json, train.json and validation.json. Test clips
have no labels and are left out; the official validation clips are `val`.
"""

import csv
import io
from pathlib import Path
from typing import Any

from glancefocus.data.clips import VIDEO_SUFFIXES
from glancefocus.data.splits import Row
from glancefocus.errors import BadData, BadSetting
from glancefocus.files import open_file
from glancefocus.typed import read_json

_MOST_BYTES = 256 << 20  # of a list of clips
_SPLITS = {"train": "train", "validation": "val"}


def read_video_set(folder: Path) -> tuple[list[Row], tuple[str, ...]] | None:
    """Clips and classes of a published set; None where the folder is none. Clips of the lists that are not there are refused."""
    labels = _labels_file(folder)
    if labels is None:
        return None
    classes = _classes(labels)
    number = {name: index for index, name in enumerate(classes)}
    clips = _clips_by_name(folder, labels)
    rows: list[Row] = []
    missing: list[str] = []
    for word, split in _SPLITS.items():
        file = labels.with_name(labels.name.replace("labels", word))
        if not file.is_file():
            raise BadData(f"{folder} has {labels.name} but no {file.name} beside it. Fetch all lists of the data set.")
        for name, label in _entries(file):
            if label not in number:
                raise BadData(f"{file} has the label {label!r}, which {labels.name} does not name.")
            if name in clips:
                rows.append((split, clips[name], number[label]))
            else:
                missing.append(name)
    if not rows:
        raise BadData(
            f"none of the {len(missing)} clips of the lists in {labels.parent} are in {folder}. Unpack them there."
        )
    if missing:
        raise BadData(
            f"{len(missing)} of {len(missing) + len(rows)} clips of the lists are not in {folder}, such as {missing[0]}. "
            "Unpack all parts of the data set."
        )
    return rows, classes


def _labels_file(folder: Path) -> Path | None:
    for place in (folder, folder / "labels", folder / "annotations"):
        for pattern in ("something-something-v*-labels.*", "jester-v*-labels.csv", "labels.json"):
            found = sorted(file for file in place.glob(pattern) if file.suffix in (".csv", ".json"))
            if found:
                return found[0]
    return None


def _classes(file: Path) -> tuple[str, ...]:
    """In the order of their numbers; a CSV has none, and is sorted as TSM sorts it."""
    if file.suffix == ".json":
        table = _json(file)
        if not isinstance(table, dict) or not all(str(number).isdecimal() for number in table.values()):
            raise BadData(f"{file} is not a table of labels and their numbers.")
        return tuple(sorted(table, key=lambda label: int(table[label])))
    return tuple(sorted(line[0] for line in _lines(file)))


def _entries(file: Path) -> list[tuple[str, str]]:
    """(name of the clip, its label) of a list."""
    if file.suffix != ".json":
        entries = [(line[0], line[1]) for line in _lines(file) if len(line) > 1]
        if not entries:
            raise BadData(f"{file} has no lines of clip;label.")
        return entries
    try:
        # The template names its blanks in brackets: Putting [something] on [something].
        return [(str(entry["id"]), entry["template"].replace("[", "").replace("]", "")) for entry in _json(file)]
    except (KeyError, TypeError, AttributeError):
        raise BadData(f"{file} is not a list of clips with `id` and `template`.") from None


def _json(file: Path) -> Any:
    try:
        return read_json(file, _MOST_BYTES)
    except (BadSetting, OSError) as error:
        raise BadData(f"{file} cannot be read: {error}.") from None


def _lines(file: Path) -> list[list[str]]:
    try:
        with io.TextIOWrapper(open_file(file), newline="", encoding="utf-8-sig") as stream:
            lines = [[cell.strip() for cell in line] for line in csv.reader(stream, delimiter=";")]
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadData(f"{file} is not a list of clip;label: {error}.") from None
    except OSError as error:
        raise BadData(f"{file} cannot be read: {error.strerror or error}.") from None
    return [line for line in lines if line and line[0]]


def _clips_by_name(folder: Path, labels: Path) -> dict[str, Path]:
    """{ID: clip} of the one folder of clips beside the lists; a set of 200,000 clips is listed without opening any."""
    places = [p for p in sorted(folder.iterdir()) if p.is_dir() and p != labels.parent and not p.name.startswith(".")]
    found: dict[str, Path] = {}
    for place in [*places, folder]:
        for entry in place.iterdir():
            if entry.suffix.lower() in VIDEO_SUFFIXES:
                found.setdefault(entry.stem, entry)
            elif entry not in places and entry.is_dir():
                found.setdefault(entry.name, entry)
    return found
