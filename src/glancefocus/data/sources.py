"""Opens a data set by its source: class folders, a CSV of path and label, a published set of clips, or a built-in world's name."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from glancefocus.data.augmentation import AugmentSettings
from glancefocus.data.classes import check_class_names, small_classes
from glancefocus.data.gestures import GesturesSettings
from glancefocus.data.lists import Medium, medium_of, read_csv, read_folder, read_published, without_missing
from glancefocus.data.signs import SignsSettings
from glancefocus.data.split_record import (
    Content,
    RecordedFile,
    SplitRecord,
    content_of,
    content_size,
    hold_out,
    recorded_files,
    without_copies,
)
from glancefocus.data.splits import FileSplit, Row, Split, held_bytes, hold
from glancefocus.data.worlds import WORLDS, World, drawn_by_region, open_world, world_classes
from glancefocus.errors import BadBundle, BadData, BadImage, BadSetting, UnknownName
from glancefocus.machine import usable_cores
from glancefocus.progress import Progress, progress_of
from glancefocus.settings import ViewSettings
from glancefocus.values import (
    BadFiles,
    InnerShare,
    Mebibytes,
    Scenes,
    Seed,
    Workers,
    check_fields,
    from_plain,
)


@dataclass
class Checked:
    """Rows whose files can be used.

    contents  size and hash of each of these rows' files; None if it was not requested
    bad       sentences on the files that are left out
    odd       remarks on files that are used, such as clips with fewer frames than the network needs
    """

    rows: list[Row] = field(default_factory=list)
    contents: list[Content | None] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)


def check_files(
    rows: Sequence[Row],
    medium: Medium,
    *,
    read: bool,
    hashed: Callable[[int], bool] | None,
    max_bad_files: int,
    progress: Progress | None = None,
) -> Checked:
    """Read and hash files, several at a time. Up to max_bad_files unreadable files are left out; more are refused.

    read    decode each file as training does; False: check only that it exists
    hashed  whether to hash a file of this size; None: hash none
    """

    def check(row: Row) -> tuple[Content | None, tuple[str, ...], str | None]:
        try:
            odd = medium.check(row[1]) if read else ()
            wanted = hashed is not None and hashed(content_size(row[1]))
            return content_of(row[1]) if wanted else None, odd, None
        except BadImage as error:
            return None, (), str(error)

    checked = Checked()
    what = "checking files" if read else "hashing files"
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        for number, (row, (content, odd, wrong)) in enumerate(zip(rows, pool.map(check, rows), strict=True), start=1):
            if wrong is None:
                checked.rows.append(row)
                checked.contents.append(content)
                checked.odd += odd
            else:
                checked.bad.append(wrong)
            if progress is not None:
                progress(what, number, len(rows))
    if not checked.rows:
        raise BadData(f"none of the {len(rows)} files can be read. The first error: {checked.bad[0]}")
    if len(checked.bad) > max_bad_files:
        shown = " ".join(checked.bad[:3])
        raise BadData(
            f"{len(checked.bad)} of {len(rows)} files cannot be read; at most {max_bad_files} may be skipped (--max-bad-files). "
            f"The first: {shown}"
        )
    return checked


MOST_DEFAULT_WORKERS = 2


def default_workers() -> int:
    """Number of reading processes where none is named: two, or one if only one core may be used. torch warns about more."""
    return min(MOST_DEFAULT_WORKERS, usable_cores())


def default_hold_mib() -> int:
    """Memory for pictures where none is named: an eighth of the machine's, in whole GiB, at least one and at most four."""
    import psutil

    total: int = psutil.virtual_memory().total
    return 1024 * max(1, min(4, round(total / (8 << 30))))


@dataclass(frozen=True)
class DataSettings:
    """Which data to train on, and how it is split and read.

    source         a folder, a CSV, or the name of a built-in world
    val_share      share of each class that is held out if the data has no val/ of its own; None: a fifth, or more of small sets,
                   see split_record.hold_out
    max_bad_files  skip up to this many unreadable files, then stop
    check_files    read every file once before training
    in_memory      decode the images once and hold them in memory, without random crops; flips and shifts remain
    hold_mib       decode pictures once and hold them in memory, random crops included, if they take no more than this; 0: read the
                   files in every epoch; the default is default_hold_mib
    workers        processes that read files; the default is default_workers
    scenes         number of scenes of a built-in world, as (train, val, test)
    signs, gestures  how the scenes are drawn
    """

    source: str
    val_share: InnerShare | None = None
    max_bad_files: BadFiles = 10
    check_files: bool = True
    in_memory: bool = False
    hold_mib: Mebibytes = field(default_factory=default_hold_mib)
    workers: Workers = field(default_factory=default_workers)
    augment: AugmentSettings = field(default_factory=AugmentSettings)
    scenes: tuple[Scenes, Scenes, Scenes] = (4000, 500, 1000)
    signs: SignsSettings = field(default_factory=SignsSettings)
    gestures: GesturesSettings = field(default_factory=GesturesSettings)
    world_seed: Seed = 0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass
class Data:
    """An opened data set.

    test       None if the data has no test split
    bad_files  sentences on files that are left out
    odd_files  remarks on files that are used, such as clips with fewer frames than the network needs
    remarks    sentences on the data: classes with too few images, column names in a CSV, copies
    record     which files are in which split, with hashes of their content; None if it was not requested, and for built-in worlds
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
    """The data set of these settings, with images prepared by this view.

    frames    1 for images; the number of frames for clips
    recorded  hash every file, for the record of the split
    before    the record of an earlier training of this network: its training images are not held out now
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
            lacking = {
                "train": f"to learn from. Add {medium.noun} to the split train, or check the files.",
                "val": f"to hold out for validation. Give at least two {medium.noun} of each class, or a split val.",
            }
            raise BadData(f"{path} has no readable {medium.noun} {lacking[name]}")
    if len(set(splits["train"].labels.tolist())) < 2:
        raise BadData(
            f"{path} has readable training {medium.noun} of only one class. Training needs at least two classes."
        )
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
    """Earlier training files that are not in the data now; their labels meant other classes, so they are set to 0."""
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
    """A built-in world with small scenes, (train, val) of them; the objects are as large as in the usual scenes."""
    world = settings.source
    drawn = replace(getattr(settings, world), height=side_px, width=side_px)
    least = 5  # the test scenes are not used
    # In proportion to the side, so that the same share of a scene can move out of sight.
    shift_px = settings.augment.shift_px * side_px // max(view.height_px, view.width_px)
    augment = replace(settings.augment, shift_px=shift_px)
    small = replace(settings, scenes=(*scenes, least), augment=augment, **{world: drawn})
    return open_data(small, replace(view, height_px=side_px, width_px=side_px), progress, frames=frames)


def classes_of(source: str, frames: int = 1) -> tuple[str, ...]:
    """The classes of a data set; no image or clip is read."""
    return world_classes(source) if source in WORLDS else _read_rows(Path(source), medium_of(frames))[1]


def split_rows(settings: DataSettings, medium: Medium) -> tuple[list[Row], tuple[str, ...]]:
    """All files with split and label, and the classes; no file is read."""
    rows, classes = _read_rows(Path(settings.source), medium)
    if not any(split == "val" for split, _, _ in rows):
        rows = hold_out(rows, settings.val_share, settings.world_seed)
    return rows, classes


def _read_rows(path: Path, medium: Medium, remarks: list[str] | None = None) -> tuple[list[Row], tuple[str, ...]]:
    """Rows and classes of a published set of clips, class folders, or a CSV; rows without a named split are `train`."""
    if not path.exists():
        raise UnknownName("data set", str(path), WORLDS, "Name a folder, a CSV file or a built-in world.")
    if path.is_file():
        rows, classes = read_csv(path, remarks)
    else:
        rows, classes = read_published(path, medium) or read_folder(path, medium)
    check_class_names(classes, str(path))
    return rows, classes


def _held(split: FileSplit, name: str, settings: DataSettings, medium: Medium, progress: Progress | None) -> Split:
    """The split in memory, if that is requested or takes little; training pictures so that each epoch can crop them anew."""
    report = progress_of(progress, f"reading {name}")
    if settings.in_memory:
        return split.in_memory(report)
    fits = held_bytes(len(split), split.view, settings.augment) <= settings.hold_mib << 20
    if medium.noun != "images" or split.view.fit == "whole" or not fits:
        return split
    return hold(split, report) if name == "train" else split.in_memory(report)


MOST_WORLD_BYTES = 50_000_000_000
"""Limit for all scenes of a built-in world: two and a half times those of the largest recipe."""


def settings_in_notes(notes: Mapping[str, Any]) -> DataSettings | None:
    """The settings of the data that a bundle was trained on; None if its notes do not contain them."""
    stored = notes.get("data_settings")
    if stored is None:
        return None
    try:
        settings = from_plain(DataSettings, stored, "notes.data_settings")
    except BadSetting as error:
        raise BadBundle(f"the bundle is damaged: {error}") from None
    if settings.source in WORLDS and world_bytes(settings) > MOST_WORLD_BYTES:
        raise BadBundle(
            f"the bundle's notes.data_settings request {sum(settings.scenes):,} scenes of {settings.source}, "
            f"{world_bytes(settings) / 1e9:,.0f} GB in all. At most {MOST_WORLD_BYTES / 1e9:,.0f} GB are drawn for a bundle."
        )
    return settings


def world_bytes(settings: DataSettings) -> int:
    """Bytes that the pictures of a built-in world take on disk; none where only regions of them are drawn."""
    if settings.source == "signs" and drawn_by_region(settings.signs) is not None:
        return 0
    drawn = settings.gestures if settings.source == "gestures" else settings.signs
    frames = settings.gestures.frames if settings.source == "gestures" else 1
    return sum(settings.scenes) * frames * 3 * drawn.height * drawn.width
