"""Where data comes from: folders of classes, a CSV of path and label, a published set of clips, or a built-in world by its name."""

import csv
import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from glancefocus.data.clips import clips_inside
from glancefocus.data.held_pictures import held_bytes, hold
from glancefocus.data.media import Medium, Pictures, medium_of
from glancefocus.data.splits import AugmentSettings, FileSplit, Row, Split
from glancefocus.data.worlds import WORLDS, GesturesSettings, SignsSettings, World, open_world, world_classes
from glancefocus.errors import BadData, BadImage, UnknownName
from glancefocus.ranges import BadFiles, InnerShare, Mebibytes, Scenes, Seed, Workers
from glancefocus.settings import ViewSettings, check_fields

Progress = Callable[[str, int, int], None]
_PICTURES = Pictures()


@dataclass(frozen=True)
class DataSettings:
    """What to learn from.

    source         a folder, a CSV, or the name of a built-in world
    val_share      of the images of each class, held out where the data has no val/ of its own
    max_bad_files  so many unreadable files are listed and skipped; one more stops
    in_memory      view the images once and hold them (no random crops then; flips and shifts stay)
    hold_mib       pictures are decoded once and held in memory, random crops included, where they take no more than this; 0:
                   every epoch reads the files
    scenes         (train, val, test) of a built-in world
    signs, gestures  how their scenes are drawn
    """

    source: str
    val_share: InnerShare = 0.2
    max_bad_files: BadFiles = 10
    check_files: bool = True
    in_memory: bool = False
    hold_mib: Mebibytes = 1024
    workers: Workers = 2
    augment: AugmentSettings = field(default_factory=AugmentSettings)
    scenes: tuple[Scenes, Scenes, Scenes] = (4000, 500, 1000)
    signs: SignsSettings = field(default_factory=SignsSettings)
    gestures: GesturesSettings = field(default_factory=GesturesSettings)
    world_seed: Seed = 0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass
class Data:
    """A data set, ready: `test` is there only where the data has one.

    bad_files  what is wrong with files that are left out
    odd_files  what is odd about files that are used, such as clips with fewer frames than are looked at
    """

    train: Split
    val: Split
    classes: tuple[str, ...]
    test: Split | None = None
    bad_files: list[str] = field(default_factory=list)
    odd_files: list[str] = field(default_factory=list)


def open_data(settings: DataSettings, view: ViewSettings, progress: Progress | None = None, *, frames: int = 1) -> Data:
    """The data set that the settings name, seen through this view.

    frames  1 for images; more for clips of so many frames
    """
    if settings.source in WORLDS:
        shift_px = settings.augment.shift_px
        world = World(
            settings.source, settings.scenes, settings.world_seed, settings.signs, settings.gestures, shift_px
        )
        splits = dict(open_world(world, view, frames, progress))
        return Data(splits["train"], splits["val"], world_classes(settings.source), splits["test"])
    path, medium = Path(settings.source), medium_of(frames)
    rows, classes = _read_rows(path, settings.val_share, settings.world_seed, medium)
    bad: list[str] = []
    odd: list[str] = []
    if settings.check_files:
        rows, bad = without_bad_files(rows, settings.max_bad_files, progress, medium, odd)
    splits = {}
    for name in ("train", "val", "test"):
        chosen = [(file, label) for split, file, label in rows if split == name]
        if chosen:
            labels = torch.tensor([label for _, label in chosen])
            split = medium.split([file for file, _ in chosen], labels, view, settings.augment)
            splits[name] = _held(split, name, settings, medium, progress)
    for name in ("train", "val"):
        if name not in splits:
            raise BadData(f"{path} has no readable {medium.noun} for {name}.")
    if len(set(splits["train"].labels.tolist())) < 2:
        raise BadData(f"{path} has readable training {medium.noun} of one class only; there must be at least two.")
    return Data(splits["train"], splits["val"], classes, splits.get("test"), bad, odd)


def open_small(
    settings: DataSettings,
    view: ViewSettings,
    side_px: int,
    scenes: tuple[int, int],
    progress: Progress | None,
    frames: int,
) -> Data:
    """A built-in world in small scenes, (train, val) of them; what is in them is as large as in whole ones."""
    world = settings.source
    drawn = replace(getattr(settings, world), height=side_px, width=side_px)
    least = 5  # nobody looks at the test scenes
    # By less, so that as large a share of a scene is moved out of sight.
    shift_px = settings.augment.shift_px * side_px // max(view.height_px, view.width_px)
    augment = replace(settings.augment, shift_px=shift_px)
    small = replace(settings, scenes=(*scenes, least), augment=augment, **{world: drawn})
    return open_data(small, replace(view, height_px=side_px, width_px=side_px), progress, frames=frames)


def classes_of(source: str, frames: int = 1) -> tuple[str, ...]:
    """The classes of a data set, without reading any image or clip."""
    return world_classes(source) if source in WORLDS else _read_rows(Path(source), 0.5, 0, medium_of(frames))[1]


def split_rows(settings: DataSettings, medium: Medium) -> tuple[list[Row], tuple[str, ...]]:
    """Every file with its split and label, and the classes; no file is read."""
    return _read_rows(Path(settings.source), settings.val_share, settings.world_seed, medium)


def _read_rows(path: Path, val_share: float, seed: int, medium: Medium) -> tuple[list[Row], tuple[str, ...]]:
    """A published set of clips, class folders, or a CSV."""
    if not path.exists():
        raise UnknownName("data set", str(path), WORLDS, "Name a folder, a CSV file or a built-in world.")
    if path.is_file():
        return read_csv(path, val_share, seed)
    return medium.published(path) or read_folder(path, val_share, seed, medium)


def read_folder(
    path: Path, val_share: float, seed: int, medium: Medium = _PICTURES
) -> tuple[list[Row], tuple[str, ...]]:
    """train/CLASS/file and val/CLASS/file (also test/), or CLASS/file with a seeded share held out."""
    rows, classes = read_labelled_folder(path, medium)
    if (path / "train").is_dir():
        classes = _class_folders(path / "train")
        if not (path / "val").is_dir():
            rows = _hold_out(rows, val_share, seed)
    else:
        rows = _hold_out([("train", file, label) for _, file, label in rows], val_share, seed)
    if len(classes) < 2:
        raise BadData(f"{path} has one class only ({classes[0]!r}). A classifier needs at least two class folders.")
    return rows, classes


def read_labelled_folder(path: Path, medium: Medium = _PICTURES) -> tuple[list[Row], tuple[str, ...]]:
    """train/CLASS/file, val/CLASS/file and test/CLASS/file as far as they are there; or CLASS/file, the split `all`."""
    names = [name for name in ("train", "val", "test") if (path / name).is_dir()]
    if not names:
        classes = _class_folders(path)
        return [("all", file, label) for file, label in _files_of(path, classes, medium)], classes
    classes = _class_folders(path / names[0])
    rows: list[Row] = []
    for name in names:
        foreign = [c for c in _class_folders(path / name) if c not in classes]
        if foreign and names[0] == "train":
            raise BadData(
                f"{path / name} has the class {foreign[0]!r}, which {path / 'train'} has not. Every class must be in train."
            )
        classes += tuple(foreign)
        rows += [(name, file, label) for file, label in _files_of(path / name, classes, medium)]
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
    if lines and lines[0][0].strip().lower() in ("path", "file", "filename", "image", "clip", "video"):
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
    rows: list[Row],
    max_bad_files: int,
    progress: Progress | None = None,
    medium: Medium = _PICTURES,
    odd: list[str] | None = None,
) -> tuple[list[Row], list[str]]:
    """The rows whose files can be read, and what is wrong with the others; too many of these stop.

    odd  is added to where a file is used although something is odd about it
    """

    def problem(row: Row) -> str | None:
        try:
            notes = medium.check(row[1])
        except BadImage as error:
            return str(error)
        if odd is not None:
            odd.extend(notes)
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


def _held(split: FileSplit, name: str, settings: DataSettings, medium: Medium, progress: Progress | None) -> Split:
    """The split in memory, if that is asked for or takes little; training pictures so that they can still be cropped anew."""
    tell = None if progress is None else _named(progress, f"reading {name}")
    if settings.in_memory:
        return split.in_memory(tell)
    fits = held_bytes(len(split), split.view, settings.augment) <= settings.hold_mib << 20
    if medium.noun != "images" or split.view.fit == "whole" or not fits:
        return split
    return hold(split, tell) if name == "train" else split.in_memory(tell)


def _named(progress: Progress, what: str) -> Callable[[int, int], None]:
    return lambda done, total: progress(what, done, total)


def _class_folders(path: Path) -> tuple[str, ...]:
    classes = tuple(sorted(p.name for p in path.iterdir() if p.is_dir() and not p.name.startswith(".")))
    if not classes:
        raise BadData(f"{path} has no class folders. Put the images of each class into a folder named like it.")
    return classes


def _files_of(path: Path, classes: tuple[str, ...], medium: Medium) -> list[tuple[Path, int]]:
    folders = [(path / name, label) for label, name in enumerate(classes)]
    files = [(file, label) for folder, label in folders if folder.is_dir() for file in medium.find(folder)]
    if not files:
        hint = " They hold clips: name a number of --frames." if _hold_clips(path, classes, medium) else ""
        raise BadData(f"the class folders of {path} hold no {medium.noun}.{hint}")
    return files


def _hold_clips(path: Path, classes: tuple[str, ...], medium: Medium) -> bool:
    return medium.noun == "images" and any(clips_inside(path / name) for name in classes if (path / name).is_dir())


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
