"""Rows of a data set (split, file, label), read from class folders, a CSV, or the lists of a published set of clips.

No image or clip is opened here, except by `Medium.check`.
"""

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from glancefocus.data.augmentation import AugmentSettings
from glancefocus.data.clips import VIDEO_SUFFIXES, ClipFileSplit, clips_inside, holds_frames, read_clip
from glancefocus.data.folders import SUFFIXES, walk_visible
from glancefocus.data.large import is_large, read_shrunk
from glancefocus.data.published import read_published_pictures
from glancefocus.data.scene_splits import FileScenes
from glancefocus.data.splits import FileSplit, Row
from glancefocus.errors import BadData, BadSetting
from glancefocus.machine import open_file, read_json
from glancefocus.settings import ViewSettings


class Medium(Protocol):
    """What a data set consists of, pictures or clips: how they are found in a folder, checked, and made into a split."""

    noun: str

    def find(self, folder: Path) -> list[Path]:
        """All files in the folder of one class, sorted."""
        ...

    def check(self, file: Path) -> tuple[str, ...]:
        """Read a file as training does; raises BadImage if it cannot be used, returns remarks on it."""
        ...

    def split(self, files: list[Path], labels: Tensor, view: ViewSettings, augment: AugmentSettings) -> FileSplit: ...


class Pictures:
    """Image files."""

    noun = "images"

    def find(self, folder: Path) -> list[Path]:
        found = (Path(where, name) for where, names in walk_visible(folder) for name in names)
        pictures = (file for file in found if file.suffix.lower() in SUFFIXES and not file.name.startswith("."))
        return sorted(file for file in pictures if file.is_file())

    def check(self, file: Path) -> tuple[str, ...]:
        read_shrunk(file, 64)  # a huge one is not decoded whole
        return ()

    def split(self, files: list[Path], labels: Tensor, view: ViewSettings, augment: AugmentSettings) -> FileSplit:
        by_regions = view.fit == "whole" and any(map(is_large, files))
        return (FileScenes if by_regions else FileSplit)(files, labels, view, augment)


@dataclass(frozen=True)
class Clips:
    """Video files, and folders with the frames of a clip."""

    frames: int
    noun = "clips"

    def find(self, folder: Path) -> list[Path]:
        if holds_frames(folder):
            raise BadData(
                f"the class folder {folder} contains pictures instead of clips. "
                "Put the frames of each clip into a separate folder, or train a network for images (without --frames)."
            )
        return clips_inside(folder)

    def check(self, file: Path) -> tuple[str, ...]:
        return read_clip(file, self.frames, lambda picture: None).notes

    def split(self, files: list[Path], labels: Tensor, view: ViewSettings, augment: AugmentSettings) -> FileSplit:
        return ClipFileSplit(files, labels, view, augment, frames=self.frames)


def medium_of(frames: int) -> Medium:
    """Pictures for a network of one frame, clips for others."""
    return Pictures() if frames == 1 else Clips(frames)


# Names of columns in the first line of a CSV.
PATH_WORDS = frozenset(
    (
        *("path", "file", "filename", "file_name", "filepath", "file_path", "name", "id", "url", "image"),
        *("images", "image_path", "image_file", "image_name", "image_id", "imagepath", "img", "img_path"),
        *("img_name", "picture", "photo", "frame", "frames", "clip", "clip_path", "clips", "video", "video_path"),
        "videos",
    )
)
LABEL_WORDS = frozenset(
    (
        *("label", "labels", "label_name", "class", "classes", "class_name", "classname", "category"),
        *("categories", "target", "y", "species", "breed", "kind", "type", "tag"),
    )
)
SPLIT_WORDS = frozenset(("split", "set", "subset", "partition", "fold", "usage"))
_LINES_TRIED = 20
_PICTURES = Pictures()


def read_labelled_csv(path: Path, remarks: list[str] | None = None) -> tuple[list[Row], tuple[str, ...]]:
    """Rows and classes of a CSV of path,label or path,label,split; the first line may name the columns.

    Paths are relative to the CSV. If no line names a split, all rows are in the split `all`.

    remarks  gets a sentence if the first line was taken for column names and that may be wrong
    """
    lines = [line for line in _lines(path, "CSV of path,label", ",") if any(line)]
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
    """Rows and classes of entries (path, label, split or empty)."""
    for number, (file, label, _) in enumerate(entries, start=1):
        if not file or not label:
            raise BadData(
                f"{path}: entry {number} has no {'label' if file else 'path'}. Fill it in, or remove the line."
            )
    classes = tuple(sorted({label for _, label, _ in entries}))
    number_of = {name: number for number, name in enumerate(classes)}
    default = "train" if any(split for _, _, split in entries) else "all"
    foreign = {split for _, _, split in entries if split} - {"train", "val", "test"}
    if foreign:
        raise BadData(f"{path}: a split must be train, val or test, but got {min(foreign)!r}. Correct that column.")
    return [(split or default, path.parent / file, number_of[label]) for file, label, split in entries], classes


def _is_header(lines: list[list[str]], folder: Path, remarks: list[str] | None, path: Path) -> bool:
    """Whether the first line names columns: its first cell is not a file, and it has typical names or other lines name files."""
    first = lines[0]
    if is_there(folder, first[0]):
        return False
    words = [_word(cell) for cell in first]
    if words[0] in PATH_WORDS or (set(words) & PATH_WORDS and set(words) & LABEL_WORDS):
        return True
    if Path(first[0]).suffix.lower() in SUFFIXES | VIDEO_SUFFIXES:
        return False  # the name of a missing file
    others = lines[1:]
    files = any(line and is_there(folder, line[0]) for line in others[:_LINES_TRIED])
    used = {line[1] for line in others if len(line) > 1}
    if not files or len(first) < 2 or first[1] in used:
        return False
    if words[1] not in LABEL_WORDS and remarks is not None:
        remarks.append(
            f"the first line of {path} ({','.join(first)}) was taken for column names, because {first[0]!r} is not a file."
        )
    return True


def _columns(lines: list[list[str]], folder: Path) -> list[int]:
    """The columns of path, label and split: those with typical names in the first line, or else the first three."""
    words = [_word(cell) for cell in lines[0]]
    paths, labels, splits = (
        [number for number, word in enumerate(words) if word in known]
        for known in (PATH_WORDS, LABEL_WORDS, SPLIT_WORDS)
    )
    if not paths or not labels or (paths[0], labels[0], len(words)) in ((0, 1, 2), (0, 1, 3)):
        return [0, 1, 2]
    sample = lines[1] if len(lines) > 1 else []
    files = [column for column in paths if column < len(sample) and is_there(folder, sample[column])]
    absent = len(words)  # a column that no line has
    return [(files or paths)[0], labels[0], splits[0] if splits else absent]


def _word(cell: str) -> str:
    return cell.lower().replace(" ", "_").replace("-", "_")


def is_there(folder: Path, cell: str) -> bool:
    """Whether a path names an existing file or folder."""
    try:
        return bool(cell) and (folder / cell).exists()
    except (OSError, ValueError):  # too long, or with a zero byte
        return False


def read_csv(path: Path, remarks: list[str] | None = None) -> tuple[list[Row], tuple[str, ...]]:
    """Rows and classes of a CSV to train on, see read_labelled_csv; rows without a split are for training."""
    rows, classes = read_labelled_csv(path, remarks)
    rows = [("train" if split == "all" else split, file, label) for split, file, label in rows]
    if len(classes) < 2:
        raise BadData(f"{path} has only one class ({classes[0]!r}). A classifier needs at least two.")
    seen = {label for name, _, label in rows if name == "train"}
    for split, _, label in rows:
        if label not in seen:
            raise BadData(f"{path}: the class {classes[label]!r} is in {split} but not in train.")
    return rows, classes


def without_missing(rows: list[Row], listed_in: Path, max_bad_files: int) -> tuple[list[Row], list[str]]:
    """The rows whose files exist, and a sentence for each missing file; too many missing files are refused."""
    there: list[Row] = []
    missing: list[Row] = []
    for row in rows:
        (there if is_there(row[1].parent, row[1].name) else missing).append(row)
    if len(missing) > max_bad_files or not there:
        names = ", ".join(str(file) for _, file, _ in missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise BadData(
            f"{len(missing)} of the {len(rows)} files in the list {listed_in} do not exist: {names}. "
            f"Paths are relative to the folder of the CSV, {listed_in.parent.resolve()}."
        )
    return there, [f"{listed_in} lists {file}, which does not exist." for _, file, _ in missing]


def read_folder(path: Path, medium: Medium = _PICTURES) -> tuple[list[Row], tuple[str, ...]]:
    """Rows and classes of train/CLASS/file and val/CLASS/file (and test/), or of CLASS/file, all for training."""
    rows, classes = read_labelled_folder(path, medium)
    if "train" in _folders(path):
        classes = _class_folders(path / "train")
    else:
        rows = [("train", file, label) for _, file, label in rows]
    if len(classes) < 2:
        raise BadData(f"{path} has only one class ({classes[0]!r}). A classifier needs at least two class folders.")
    return rows, classes


def read_labelled_folder(path: Path, medium: Medium = _PICTURES) -> tuple[list[Row], tuple[str, ...]]:
    """Rows and classes of train/CLASS/file, val/CLASS/file and test/CLASS/file; or of CLASS/file, in the split `all`."""
    folders = _folders(path)
    names = [name for name in ("train", "val", "test") if name in folders]
    if not names:
        classes = _class_folders(path)
        return [("all", file, label) for file, label in _files_of(path, classes, medium)], classes
    classes = _class_folders(path / names[0])
    rows: list[Row] = []
    for name in names:
        foreign = [c for c in _class_folders(path / name) if c not in classes]
        if foreign and names[0] == "train":
            raise BadData(
                f"{path / name} has the class {foreign[0]!r}, which is not in {path / 'train'}. Every class must be in train."
            )
        classes += tuple(foreign)
        rows += [(name, file, label) for file, label in _files_of(path / name, classes, medium)]
    return rows, classes


def _folders(path: Path) -> tuple[str, ...]:
    """The visible folders in a folder, sorted."""
    try:
        return tuple(sorted(p.name for p in path.iterdir() if p.is_dir() and not p.name.startswith(".")))
    except OSError as error:
        raise BadData(f"the folder {path} cannot be read: {error.strerror or error}. Check its permissions.") from None


def _class_folders(path: Path) -> tuple[str, ...]:
    classes = _folders(path)
    if not classes:
        raise BadData(
            f"{path} has no class folders. Put the images of each class into a folder with the name of the class."
        )
    return classes


def _files_of(path: Path, classes: tuple[str, ...], medium: Medium) -> list[tuple[Path, int]]:
    folders = [(path / name, label) for label, name in enumerate(classes)]
    files = [(file, label) for folder, label in folders if folder.is_dir() for file in medium.find(folder)]
    if not files:
        hint = " They contain clips: set the number of --frames." if _hold_clips(path, classes, medium) else ""
        raise BadData(f"the class folders of {path} contain no {medium.noun}.{hint}")
    return files


def _hold_clips(path: Path, classes: tuple[str, ...], medium: Medium) -> bool:
    return medium.noun == "images" and any(clips_inside(path / name) for name in classes if (path / name).is_dir())


_MOST_BYTES = 256 << 20  # for a list of clips
_SPLITS = {"train": "train", "validation": "val"}


def read_published(folder: Path, medium: Medium) -> tuple[list[Row], tuple[str, ...]] | None:
    """Rows and classes of a data set in its publisher's layout; None for other folders.

    Clips: Something-Something, Jester. Pictures: see published.py.

    A set with missing clips is refused.
    """
    if medium.noun != "clips":
        return read_published_pictures(folder)
    labels = labels_file(folder)
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
            raise BadData(f"{folder} has {labels.name} but not {file.name}. Download all lists of the data set.")
        for name, label in _entries(file):
            if label not in number:
                raise BadData(
                    f"{file} has the label {label!r}, which is not in {labels.name}. Download the lists again."
                )
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


def labels_file(folder: Path) -> Path | None:
    """The list of classes of a published set of clips; its name says which set it is."""
    for place in (folder, folder / "labels", folder / "annotations"):
        for pattern in ("something-something-v*-labels.*", "jester-v*-labels.csv", "labels.json"):
            found = sorted(file for file in place.glob(pattern) if file.suffix in (".csv", ".json"))
            if found:
                return found[0]
    return None


def _classes(file: Path) -> tuple[str, ...]:
    """The classes in the order of their numbers; those of a CSV, which has no numbers, are sorted, as in TSM."""
    if file.suffix == ".json":
        table = _json(file)
        if not isinstance(table, dict) or not all(str(number).isdecimal() for number in table.values()):
            raise BadData(f"{file} is not a table of labels and their numbers. Download it again.")
        return tuple(sorted(table, key=lambda label: int(table[label])))
    return tuple(sorted(line[0] for line in _published_lines(file)))


def _entries(file: Path) -> list[tuple[str, str]]:
    """(name of the clip, label) for each entry of a list."""
    if file.suffix != ".json":
        entries = [(line[0], line[1]) for line in _published_lines(file) if len(line) > 1]
        if not entries:
            raise BadData(f"{file} has no lines of clip;label. Download it again.")
        return entries
    try:
        # The template has its placeholders in brackets: Putting [something] on [something].
        return [(str(entry["id"]), entry["template"].replace("[", "").replace("]", "")) for entry in _json(file)]
    except (KeyError, TypeError, AttributeError):
        raise BadData(f"{file} is not a list of clips with `id` and `template`. Download it again.") from None


def _json(file: Path) -> Any:
    try:
        return read_json(file, _MOST_BYTES)
    except (BadSetting, OSError) as error:
        raise BadData(f"{file} cannot be read: {error}.") from None


def _lines(file: Path, what: str, delimiter: str) -> list[list[str]]:
    """The cells of each line of a file; `what` names the expected kind of file in errors."""
    try:
        with io.TextIOWrapper(open_file(file), newline="", encoding="utf-8-sig") as stream:
            return [[cell.strip() for cell in line] for line in csv.reader(stream, delimiter=delimiter)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadData(f"{file} is not a {what}: {error}.") from None
    except OSError as error:
        raise BadData(f"{file} cannot be read: {error.strerror or error}.") from None


def _published_lines(file: Path) -> list[list[str]]:
    return [line for line in _lines(file, "list of clip;label", ";") if line and line[0]]


def _clips_by_name(folder: Path, labels: Path) -> dict[str, Path]:
    """{name: clip} of the clips beside the lists; no clip is opened, because a set may have 200,000."""
    places = [p for p in sorted(folder.iterdir()) if p.is_dir() and p != labels.parent and not p.name.startswith(".")]
    found: dict[str, Path] = {}
    for place in [*places, folder]:
        for entry in place.iterdir():
            if entry.suffix.lower() in VIDEO_SUFFIXES:
                found.setdefault(entry.stem, entry)
            elif entry not in places and entry.is_dir():
                found.setdefault(entry.name, entry)
    return found
