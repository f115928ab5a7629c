"""A CSV that lists files with labels: path,label or path,label,split, with or without a first line of names."""

import csv
import io
from pathlib import Path
from typing import Any

from glancefocus.data.clips import VIDEO_SUFFIXES
from glancefocus.data.images import SUFFIXES
from glancefocus.data.splits import Row
from glancefocus.errors import BadData, BadSetting
from glancefocus.files import open_file
from glancefocus.values import read_json

PATH_WORDS = frozenset(
    (
        *("path", "file", "filename", "file_name", "filepath", "file_path", "name", "id", "url"),
        *(
            "image",
            "images",
            "image_path",
            "image_file",
            "image_name",
            "image_id",
            "imagepath",
            "img",
            "img_path",
            "img_name",
        ),
        *("picture", "photo", "frame", "frames", "clip", "clip_path", "clips", "video", "video_path", "videos"),
    )
)
LABEL_WORDS = frozenset(
    (
        *("label", "labels", "label_name", "class", "classes", "class_name", "classname", "category", "categories"),
        *("target", "y", "species", "breed", "kind", "type", "tag"),
    )
)
SPLIT_WORDS = frozenset(("split", "set", "subset", "partition", "fold", "usage"))
_LINES_TRIED = 20


def read_labelled_csv(path: Path, remarks: list[str] | None = None) -> tuple[list[Row], tuple[str, ...]]:
    """Rows and classes of a CSV; paths are relative to it. Where no line names a split, all are in the split `all`.

    remarks  is added to where a first line of names was assumed and may have been meant otherwise
    """
    try:
        with io.TextIOWrapper(open_file(path), newline="", encoding="utf-8-sig") as stream:
            lines = [[cell.strip() for cell in line] for line in csv.reader(stream)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadData(f"{path} is not a CSV of path,label: {error}.") from None
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror or error}.") from None
    lines = [line for line in lines if any(line)]
    order = [0, 1, 2]
    if lines and _is_header(lines, path.parent, remarks, path):
        order = _columns(lines, path.parent)
        lines = lines[1:]
    if not lines:
        raise BadData(f"{path} is empty. Write lines of path,label.")
    if order == [0, 1, 2]:
        for number, line in enumerate(lines, start=1):
            if len(line) not in (2, 3):
                raise BadData(
                    f"{path}: entry {number} has {len(line)} columns; each needs path,label or path,label,split."
                )
    entries = [[line[column] if column < len(line) else "" for column in order] for line in lines]
    return _rows(path, entries)


def _rows(path: Path, entries: list[list[str]]) -> tuple[list[Row], tuple[str, ...]]:
    """Rows of (path, label, split or nothing)."""
    for number, (file, label, _) in enumerate(entries, start=1):
        if not file or not label:
            raise BadData(
                f"{path}: entry {number} has no {'label' if file else 'path'}. Fill it in, or remove the line."
            )
    classes = tuple(sorted({label for _, label, _ in entries}))
    number_of = {name: number for number, name in enumerate(classes)}
    unnamed = "train" if any(split for _, _, split in entries) else "all"
    foreign = {split for _, _, split in entries if split} - {"train", "val", "test"}
    if foreign:
        raise BadData(f"{path}: a split is train, val or test, but there is {min(foreign)!r}.")
    return [(split or unnamed, path.parent / file, number_of[label]) for file, label, split in entries], classes


def _is_header(lines: list[list[str]], folder: Path, remarks: list[str] | None, path: Path) -> bool:
    """Whether the first line names columns: its first cell is no file, and its words are typical or other lines are files."""
    first = lines[0]
    if is_there(folder, first[0]):
        return False
    words = [_word(cell) for cell in first]
    if words[0] in PATH_WORDS or (set(words) & PATH_WORDS and set(words) & LABEL_WORDS):
        return True
    if Path(first[0]).suffix.lower() in SUFFIXES | VIDEO_SUFFIXES:
        return False  # a file that is missing
    others = lines[1:]
    files = any(line and is_there(folder, line[0]) for line in others[:_LINES_TRIED])
    used = {line[1] for line in others if len(line) > 1}
    if not files or len(first) < 2 or first[1] in used:
        return False
    if words[1] not in LABEL_WORDS and remarks is not None:
        remarks.append(
            f"the first line of {path} ({','.join(first)}) was taken for names of columns, since {first[0]!r} is not a file."
        )
    return True


def _columns(lines: list[list[str]], folder: Path) -> list[int]:
    """Which columns hold path, label and split: those with typical names in the first line, or else the first three."""
    words = [_word(cell) for cell in lines[0]]
    paths, labels, splits = (
        [number for number, word in enumerate(words) if word in known]
        for known in (PATH_WORDS, LABEL_WORDS, SPLIT_WORDS)
    )
    if not paths or not labels or (paths[0], labels[0], len(words)) in ((0, 1, 2), (0, 1, 3)):
        return [0, 1, 2]
    sample = lines[1] if len(lines) > 1 else []
    files = [column for column in paths if column < len(sample) and is_there(folder, sample[column])]
    beyond = len(words)  # a column that no line has
    return [(files or paths)[0], labels[0], splits[0] if splits else beyond]


def _word(cell: str) -> str:
    return cell.lower().replace(" ", "_").replace("-", "_")


def is_there(folder: Path, cell: str) -> bool:
    """Whether a path of a list names a file or a folder."""
    try:
        return bool(cell) and (folder / cell).exists()
    except (OSError, ValueError):  # too long, or with a zero byte
        return False


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
