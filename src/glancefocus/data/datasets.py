"""Where data comes from: folders of classes, a CSV of path and label, or a built-in world by its name."""

import csv
import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch

from glancefocus.data.pictures import SUFFIXES, read_picture
from glancefocus.data.signs import CLASSES, SignsSettings, make_signs
from glancefocus.data.splits import AugmentSettings, FileSplit, MemorySplit, Split
from glancefocus.errors import BadData, BadImage, UnknownName
from glancefocus.settings import ViewSettings

WORLDS = ("signs",)
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class DataSettings:
    """What to learn from.

    source         a folder, a CSV, or the name of a built-in world
    val_share      of the images of each class, held out where the data has no val/ of its own
    max_bad_files  so many unreadable files are listed and skipped; one more stops
    in_memory      view the images once and hold them (no random crops then)
    scenes         (train, val, test) of a built-in world
    """

    source: str
    val_share: float = 0.2
    max_bad_files: int = 10
    check_files: bool = True
    in_memory: bool = False
    workers: int = 2
    augment: AugmentSettings = field(default_factory=AugmentSettings)
    scenes: tuple[int, ...] = (4000, 500, 1000)
    signs: SignsSettings = field(default_factory=SignsSettings)
    world_seed: int = 0


@dataclass
class Data:
    """A data set, ready: `test` is there only where the data has one."""

    train: Split
    val: Split
    classes: tuple[str, ...]
    test: Split | None = None
    bad_files: list[str] = field(default_factory=list)


def open_data(settings: DataSettings, view: ViewSettings, progress: Progress | None = None) -> Data:
    """The data set that the settings name, seen through this view."""
    if settings.source in WORLDS:
        return _open_signs(settings, view, progress)
    path = Path(settings.source)
    if not path.exists():
        raise UnknownName("data set", settings.source, WORLDS, "Name a folder, a CSV file or a built-in world.")
    if path.is_file():
        rows, classes = read_csv(path, settings.val_share, settings.world_seed)
    else:
        rows, classes = read_folder(path, settings.val_share, settings.world_seed)
    bad: list[str] = []
    if settings.check_files:
        rows, bad = without_bad_files(rows, settings.max_bad_files, progress)
    splits: dict[str, Split] = {}
    for name in ("train", "val", "test"):
        chosen = [(file, label) for split, file, label in rows if split == name]
        if chosen:
            labels = torch.tensor([label for _, label in chosen])
            split = FileSplit([file for file, _ in chosen], labels, view, settings.augment)
            told = None if progress is None else _named(progress, f"viewing {name}")
            splits[name] = split.in_memory(told) if settings.in_memory else split
    for name in ("train", "val"):
        if name not in splits:
            raise BadData(f"{path} has no readable images for {name}.")
    if len(set(splits["train"].labels.tolist())) < 2:
        raise BadData(f"{path} has readable training images of one class only; there must be at least two.")
    return Data(splits["train"], splits["val"], classes, splits.get("test"), bad)


def classes_of(source: str) -> tuple[str, ...]:
    """The classes of a data set, without reading any image."""
    if source in WORLDS:
        return CLASSES
    path = Path(source)
    if not path.exists():
        raise UnknownName("data set", source, WORLDS, "Name a folder, a CSV file or a built-in world.")
    return (read_csv if path.is_file() else read_folder)(path, 0.5, 0)[1]


Row = tuple[str, Path, int]  # split, file, label


def read_folder(path: Path, val_share: float, seed: int) -> tuple[list[Row], tuple[str, ...]]:
    """train/CLASS/file and val/CLASS/file (also test/), or CLASS/file with a seeded share held out."""
    rows, classes = read_labelled_folder(path)
    if (path / "train").is_dir():
        classes = _class_folders(path / "train")
        if not (path / "val").is_dir():
            rows = _hold_out(rows, val_share, seed)
    else:
        rows = _hold_out([("train", file, label) for _, file, label in rows], val_share, seed)
    if len(classes) < 2:
        raise BadData(f"{path} has one class only ({classes[0]!r}). A classifier needs at least two class folders.")
    return rows, classes


def read_labelled_folder(path: Path) -> tuple[list[Row], tuple[str, ...]]:
    """train/CLASS/file, val/CLASS/file and test/CLASS/file as far as they are there; or CLASS/file, the split `all`."""
    names = [name for name in ("train", "val", "test") if (path / name).is_dir()]
    if not names:
        classes = _class_folders(path)
        return [("all", file, label) for file, label in _files_of(path, classes)], classes
    classes = _class_folders(path / names[0])
    rows: list[Row] = []
    for name in names:
        foreign = [c for c in _class_folders(path / name) if c not in classes]
        if foreign and names[0] == "train":
            raise BadData(
                f"{path / name} has the class {foreign[0]!r}, which {path / 'train'} has not. Every class must be in train."
            )
        classes += tuple(foreign)
        rows += [(name, file, label) for file, label in _files_of(path / name, classes)]
    return rows, classes


def read_csv(path: Path, val_share: float, seed: int) -> tuple[list[Row], tuple[str, ...]]:
    """Lines of path,label or path,label,split; paths are relative to the CSV; a first line of names is passed over."""
    rows, classes = read_labelled_csv(path)
    rows = [("train" if split == "all" else split, file, label) for split, file, label in rows]
    if len(classes) < 2:
        raise BadData(f"{path} has one class only ({classes[0]!r}). A classifier needs at least two.")
    known = {row[0] for row in rows}
    for split in known - {"train"}:
        seen = {label for name, _, label in rows if name == "train"}
        foreign = {classes[label] for name, _, label in rows if name == split} - {classes[label] for label in seen}
        if foreign:
            raise BadData(f"{path}: the class {min(foreign)!r} is in {split} but not in train.")
    return (rows if "val" in known else _hold_out(rows, val_share, seed)), classes


def read_labelled_csv(path: Path) -> tuple[list[Row], tuple[str, ...]]:
    """The same as they stand there; where no line names a split, all are in the split `all`."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            lines = [line for line in csv.reader(stream) if line and any(cell.strip() for cell in line)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadData(f"{path} is not a CSV of path,label: {error}.") from None
    if lines and lines[0][0].strip().lower() in ("path", "file", "filename", "image"):
        lines = lines[1:]
    for number, line in enumerate(lines, start=1):
        if len(line) not in (2, 3):
            raise BadData(f"{path}: entry {number} has {len(line)} columns; each needs path,label or path,label,split.")
    if not lines:
        raise BadData(f"{path} is empty. Write lines of path,label.")
    classes = tuple(sorted({line[1].strip() for line in lines}))
    unnamed = "train" if any(len(line) == 3 for line in lines) else "all"
    rows: list[Row] = [
        (line[2].strip() if len(line) == 3 else unnamed, path.parent / line[0].strip(), classes.index(line[1].strip()))
        for line in lines
    ]
    foreign = {line[2].strip() for line in lines if len(line) == 3} - {"train", "val", "test"}
    if foreign:
        raise BadData(f"{path}: a split is train, val or test, but there is {min(foreign)!r}.")
    return rows, classes


def without_bad_files(
    rows: list[Row], max_bad_files: int, progress: Progress | None = None
) -> tuple[list[Row], list[str]]:
    """The rows whose files can be read, and what is wrong with the others; too many of these stop."""

    def problem(row: Row) -> str | None:
        try:
            read_picture(row[1])
        except BadImage as error:
            return str(error)
        return None

    good, bad = [], []
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        for number, (row, wrong) in enumerate(zip(rows, pool.map(problem, rows), strict=True), start=1):
            if wrong is None:
                good.append(row)
            else:
                bad.append(wrong)
            if progress is not None:
                progress("checking files", number, len(rows))
    if not good:
        raise BadData(f"none of the {len(rows)} files can be read. The first says: {bad[0]}")
    if len(bad) > max_bad_files:
        shown = " ".join(bad[:3])
        raise BadData(
            f"{len(bad)} of {len(rows)} files cannot be read, more than the {max_bad_files} that may be skipped "
            f"(--max-bad-files). The first: {shown}"
        )
    return good, bad


def _open_signs(settings: DataSettings, view: ViewSettings, progress: Progress | None) -> Data:
    if len(settings.scenes) != 3 or min(settings.scenes) < 5:
        raise BadData(f"scenes are three counts (train, val, test) of at least 5, but got {list(settings.scenes)}.")
    splits = {}
    for name, count in zip(("train", "val", "test"), settings.scenes, strict=True):
        told = None if progress is None else _named(progress, f"drawing {name} scenes")
        signs = make_signs(name, count, settings.signs, settings.world_seed, progress=told)
        splits[name] = MemorySplit(signs.images, signs.labels, view, flip=False, boxes=signs.boxes)
    return Data(splits["train"], splits["val"], CLASSES, splits["test"])


def _named(progress: Progress, what: str) -> Callable[[int, int], None]:
    return lambda done, total: progress(what, done, total)


def _class_folders(path: Path) -> tuple[str, ...]:
    classes = tuple(sorted(p.name for p in path.iterdir() if p.is_dir() and not p.name.startswith(".")))
    if not classes:
        raise BadData(f"{path} has no class folders. Put the images of each class into a folder named like it.")
    return classes


def _files_of(path: Path, classes: tuple[str, ...]) -> list[tuple[Path, int]]:
    files = [
        (file, label)
        for label, name in enumerate(classes)
        for file in sorted((path / name).rglob("*"))
        if file.suffix.lower() in SUFFIXES and file.is_file() and not file.name.startswith(".")
    ]
    if not files:
        raise BadData(f"the class folders of {path} hold no images.")
    return files


def _hold_out(rows: list[Row], val_share: float, seed: int) -> list[Row]:
    """A share of each class moved from train to val; which ones, the seed decides."""
    if not 0 < val_share < 1:
        raise BadData(f"val_share is a share between 0 and 1, but got {val_share}.")
    held: list[Row] = []
    for label in sorted({label for split, _, label in rows if split == "train"}):
        own = [row for row in rows if row[0] == "train" and row[2] == label]
        random.Random(seed * 1_000_003 + label).shuffle(own)
        count = min(max(1, round(val_share * len(own))), len(own) - 1)
        held += [("val", file, label) for _, file, _ in own[:count]] + own[count:]
    return held + [row for row in rows if row[0] != "train"]
