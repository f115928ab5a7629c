"""Where data comes from: folders of classes, a CSV of path and label, a published set of clips, or a built-in world by its name."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from glancefocus.data.checking import (
    Content,
    check_files,
    hold_out,
    small_classes,
    without_copies,
    without_missing,
)
from glancefocus.data.clips import clips_inside
from glancefocus.data.held_images import held_bytes, hold
from glancefocus.data.lists import read_labelled_csv
from glancefocus.data.media import Medium, Pictures, medium_of
from glancefocus.data.split_record import RecordedFile, SplitRecord, recorded_files
from glancefocus.data.splits import AugmentSettings, FileSplit, Row, Split
from glancefocus.data.worlds.names import WORLDS, GesturesSettings, SignsSettings, World, open_world, world_classes
from glancefocus.errors import BadBundle, BadData, BadSetting, UnknownName
from glancefocus.progress import Progress
from glancefocus.settings import ViewSettings, check_fields, from_plain
from glancefocus.values import LONGEST_CLASS_NAME, BadFiles, InnerShare, Mebibytes, Scenes, Seed, Workers, text_of


def check_class_names(names: Iterable[str], source: str) -> None:
    """Refuse class names that cannot be written to a file: of folders whose names are not UTF-8, empty ones, endless ones."""
    for name in names:
        if not name.strip():
            raise BadData(f"{source} has a class without a name. Give it one.")
        try:
            text_of(name, "a class name", LONGEST_CLASS_NAME)
        except BadSetting as error:
            raise BadData(f"{source}: {error} Rename the class.") from None


_PICTURES = Pictures()


@dataclass(frozen=True)
class DataSettings:
    """What to learn from.

    source         a folder, a CSV, or the name of a built-in world
    val_share      of the images of each class, held out where the data has no val/ of its own; None: a fifth, and of small sets
                   more, see holding_out.hold_out
    max_bad_files  so many unreadable files are listed and skipped; one more stops
    in_memory      view the images once and hold them (no random crops then; flips and shifts stay)
    hold_mib       pictures are decoded once and held in memory, random crops included, where they take no more than this; 0:
                   every epoch reads the files
    scenes         (train, val, test) of a built-in world
    signs, gestures  how their scenes are drawn
    """

    source: str
    val_share: InnerShare | None = None
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
    remarks    sentences on the data: classes with too few images, a first line of a CSV that was taken for names, copies
    record     which files are in which split, with hashes of their content; None where it was not asked for, and of built-in worlds
    """

    train: Split
    val: Split
    classes: tuple[str, ...]
    test: Split | None = None
    bad_files: list[str] = field(default_factory=list)
    odd_files: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    record: SplitRecord | None = None


def open_data(
    settings: DataSettings,
    view: ViewSettings,
    progress: Progress | None = None,
    *,
    frames: int = 1,
    recorded: bool = False,
    before: SplitRecord | None = None,
) -> Data:
    """The data set that the settings name, seen through this view.

    frames    1 for images; more for clips of so many frames
    recorded  hash every file, for the record of the split
    before    of the data that trained the network before, where it was trained before: these images are not held out from it
    """
    if settings.source in WORLDS:
        shift_px = settings.augment.shift_px
        world = World(
            settings.source, settings.scenes, settings.world_seed, settings.signs, settings.gestures, shift_px
        )
        splits = dict(open_world(world, view, frames, progress))
        return Data(splits["train"], splits["val"], world_classes(settings.source), splits["test"])
    path, medium = Path(settings.source), medium_of(frames)
    files = _split_files(settings, path, medium, progress, recorded=recorded, before=before)
    splits = {}
    for name in ("train", "val", "test"):
        chosen = [(file, label) for split, file, label in files.rows if split == name]
        if chosen:
            labels = torch.tensor([label for _, label in chosen])
            split = medium.split([file for file, _ in chosen], labels, view, settings.augment)
            splits[name] = _held(split, name, settings, medium, progress)
    for name in ("train", "val"):
        if name not in splits:
            raise BadData(f"{path} has no readable {medium.noun} for {name}.")
    if len(set(splits["train"].labels.tolist())) < 2:
        raise BadData(f"{path} has readable training {medium.noun} of one class only; there must be at least two.")
    return Data(
        splits["train"],
        splits["val"],
        files.classes,
        splits.get("test"),
        files.bad,
        files.odd,
        files.remarks,
        files.record,
    )


@dataclass
class _Files:
    """The files of a data set, checked and split."""

    rows: list[Row]
    classes: tuple[str, ...]
    bad: list[str]
    odd: list[str]
    remarks: list[str]
    record: SplitRecord | None


def _split_files(
    settings: DataSettings,
    path: Path,
    medium: Medium,
    progress: Progress | None,
    *,
    recorded: bool,
    before: SplitRecord | None,
) -> _Files:
    remarks: list[str] = []
    rows, classes = _read_rows(path, medium, remarks)
    bad: list[str] = []
    odd: list[str] = []
    contents: dict[Path, Content | None] = {}
    names_val = any(split == "val" for split, _, _ in rows)
    if path.is_file():
        rows, bad = without_missing(rows, path, settings.max_bad_files)
    if settings.check_files or recorded:
        checked = check_files(
            rows,
            medium,
            read=settings.check_files,
            hashed=(lambda size: True) if recorded else None,
            max_bad_files=settings.max_bad_files - len(bad),
            progress=progress,
        )
        rows, bad, odd = checked.rows, bad + checked.bad, checked.odd
        contents = {file: content for (_, file, _), content in zip(rows, checked.contents, strict=True)}
    if not names_val:
        rows = hold_out(rows, settings.val_share, settings.world_seed)
    remarks += small_classes(rows, classes, medium.noun)
    record = None
    if recorded:
        trained = [] if before is None else [file for file in before.files() if file.split == "train"]
        rows, copies = without_copies(rows, contents, medium.noun, {file.content.digest for file in trained})
        remarks += copies
        hashes = [content for _, file, _ in rows if (content := contents[file]) is not None]
        record = SplitRecord.of(
            settings.source,
            classes,
            [*recorded_files(rows, hashes, path), *_not_among(trained, hashes)],
            val_share=settings.val_share,
            seed=settings.world_seed,
        )
    return _Files(rows, classes, bad, odd, remarks, record)


def _not_among(trained: list[RecordedFile], hashes: list[Content]) -> list[RecordedFile]:
    """Files that trained a network before and are not in the data now; their labels were those of other classes."""
    here = {content.digest for content in hashes}
    return [file._replace(label=0) for file in trained if file.content.digest not in here]


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
    return world_classes(source) if source in WORLDS else _read_rows(Path(source), medium_of(frames))[1]


def split_rows(settings: DataSettings, medium: Medium) -> tuple[list[Row], tuple[str, ...]]:
    """Every file with its split and label, and the classes; no file is read."""
    rows, classes = _read_rows(Path(settings.source), medium)
    if not any(split == "val" for split, _, _ in rows):
        rows = hold_out(rows, settings.val_share, settings.world_seed)
    return rows, classes


def _read_rows(path: Path, medium: Medium, remarks: list[str] | None = None) -> tuple[list[Row], tuple[str, ...]]:
    """A published set of clips, class folders, or a CSV, in the splits that are named there; all others are `train`."""
    if not path.exists():
        raise UnknownName("data set", str(path), WORLDS, "Name a folder, a CSV file or a built-in world.")
    if path.is_file():
        rows, classes = read_csv(path, remarks)
    else:
        rows, classes = medium.published(path) or read_folder(path, medium)
    check_class_names(classes, str(path))
    return rows, classes


def read_folder(path: Path, medium: Medium = _PICTURES) -> tuple[list[Row], tuple[str, ...]]:
    """train/CLASS/file and val/CLASS/file (also test/), or CLASS/file, which are all for training."""
    rows, classes = read_labelled_folder(path, medium)
    if "train" in _folders(path):
        classes = _class_folders(path / "train")
    else:
        rows = [("train", file, label) for _, file, label in rows]
    if len(classes) < 2:
        raise BadData(f"{path} has one class only ({classes[0]!r}). A classifier needs at least two class folders.")
    return rows, classes


def read_labelled_folder(path: Path, medium: Medium = _PICTURES) -> tuple[list[Row], tuple[str, ...]]:
    """train/CLASS/file, val/CLASS/file and test/CLASS/file as far as they are there; or CLASS/file, the split `all`."""
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
                f"{path / name} has the class {foreign[0]!r}, which {path / 'train'} has not. Every class must be in train."
            )
        classes += tuple(foreign)
        rows += [(name, file, label) for file, label in _files_of(path / name, classes, medium)]
    return rows, classes


def read_csv(path: Path, remarks: list[str] | None = None) -> tuple[list[Row], tuple[str, ...]]:
    """Lines of path,label or path,label,split, see csv_lists; what has no split is for training."""
    rows, classes = read_labelled_csv(path, remarks)
    rows = [("train" if split == "all" else split, file, label) for split, file, label in rows]
    if len(classes) < 2:
        raise BadData(f"{path} has one class only ({classes[0]!r}). A classifier needs at least two.")
    seen = {label for name, _, label in rows if name == "train"}
    for split, _, label in rows:
        if label not in seen:
            raise BadData(f"{path}: the class {classes[label]!r} is in {split} but not in train.")
    return rows, classes


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


def _folders(path: Path) -> tuple[str, ...]:
    """The folders in a folder that are not hidden, sorted."""
    try:
        return tuple(sorted(p.name for p in path.iterdir() if p.is_dir() and not p.name.startswith(".")))
    except OSError as error:
        raise BadData(f"the folder {path} cannot be read: {error.strerror or error}. Check its permissions.") from None


def _class_folders(path: Path) -> tuple[str, ...]:
    classes = _folders(path)
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


MOST_WORLD_BYTES = 50_000_000_000
"""Of the scenes of a built-in world, all splits together: two and a half times those of the largest recipe."""


def noted_settings(notes: Mapping[str, Any]) -> DataSettings | None:
    """The settings of the data that a bundle was trained on; None where it does not say them."""
    stored = notes.get("data_settings")
    if stored is None:
        return None
    try:
        settings = from_plain(DataSettings, stored, "notes.data_settings")
    except BadSetting as error:
        raise BadBundle(f"the bundle is damaged: {error}") from None
    if settings.source in WORLDS and world_bytes(settings) > MOST_WORLD_BYTES:
        raise BadBundle(
            f"the bundle's notes.data_settings ask for {sum(settings.scenes):,} scenes of {settings.source}, "
            f"{world_bytes(settings) / 1e9:,.0f} GB in all. At most {MOST_WORLD_BYTES / 1e9:,.0f} GB are drawn for a bundle."
        )
    return settings


def world_bytes(settings: DataSettings) -> int:
    """What the pictures of a built-in world take on disk."""
    drawn = settings.gestures if settings.source == "gestures" else settings.signs
    frames = settings.gestures.frames if settings.source == "gestures" else 1
    return sum(settings.scenes) * frames * 3 * drawn.height * drawn.width
