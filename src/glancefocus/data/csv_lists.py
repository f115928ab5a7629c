"""A CSV that lists files with labels: path,label or path,label,split, with or without a first line of names."""

import csv
import io
from pathlib import Path

from glancefocus.data.clips import VIDEO_SUFFIXES
from glancefocus.data.pictures import SUFFIXES
from glancefocus.data.splits import Row
from glancefocus.errors import BadData
from glancefocus.files import open_file

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
