"""Built-in worlds: data sets that are drawn from a seed and kept on disk, opened by name.

A folder of the cache contains one file per array and `about.json`, with what was drawn and checksums of the files. It is written
atomically; one that was damaged later is drawn again. The arrays are mapped into memory, so that only what is used is loaded.
"""

import json
import math
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glancefocus.data import gestures, signs
from glancefocus.data.gestures import GesturesSettings
from glancefocus.data.images import LARGE_PIXELS
from glancefocus.data.scene_splits import drawn_scenes
from glancefocus.data.signs import SignsSettings
from glancefocus.data.splits import MemorySplit, Split
from glancefocus.data.wide_signs import WideSignsSettings
from glancefocus.errors import BadData, BadSetting, UnknownName
from glancefocus.files import Cache, cache_folder, fingerprint, lock, remove_unfinished, replace_folder, write_text
from glancefocus.interrupts import children_without_signals
from glancefocus.machine import cache_path, open_file, read_json
from glancefocus.progress import Progress, progress_of
from glancefocus.settings import ViewSettings

WORLDS = ("signs", "gestures")
SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class World:
    """A world by name, its number of scenes (train, val, test), how they are drawn, and how far training may shift them."""

    name: str
    scenes: tuple[int, int, int]
    seed: int
    signs: SignsSettings
    gestures: GesturesSettings
    shift_px: int = 0


def world_classes(name: str) -> tuple[str, ...]:
    """The classes of a world."""
    return gestures.CLASSES if name == "gestures" else signs.CLASSES


def open_world(world: World, view: ViewSettings, frames: int, progress: Progress | None) -> Iterator[tuple[str, Split]]:
    """The splits train, val and test of a world. Refuses a world of images for a network of clips, and the reverse."""
    of_clips = world.name == "gestures"
    if of_clips != (frames > 1):
        what, other = ("clips", "images") if of_clips else ("images", "clips")
        raise BadData(f"{world.name} consists of {what}, but the network takes {other}. Choose another preset.")
    if of_clips and world.gestures.frames != frames:
        raise BadData(
            f"the clips of gestures have {world.gestures.frames} frames, but the network takes {frames}. "
            f"Draw them with --set data.gestures.frames={frames}."
        )
    wide = None if of_clips else drawn_by_region(world.signs)
    if wide is not None and world.shift_px > 0:
        raise BadSetting(
            f"scenes of {wide.height}x{wide.width} px are drawn region by region, and are not shifted, but got shift_px="
            f"{world.shift_px}. Leave it out: training has new scenes in every epoch."
        )
    for name, count in zip(SPLITS, world.scenes, strict=True):
        if wide is not None:
            yield name, drawn_scenes(name, count, [wide], view, world.seed)
            continue
        report = progress_of(progress, f"drawing {name} scenes")
        settings = world.gestures if of_clips else world.signs
        drawn = draw_split(name, count, settings, world.seed, progress=report)
        yield name, MemorySplit(drawn.images, drawn.labels, view, boxes=drawn.boxes, shift_px=world.shift_px)


def drawn_by_region(settings: SignsSettings) -> WideSignsSettings | None:
    """The settings of scenes that are so large that only the regions that are looked at are drawn; None: they are drawn whole."""
    if settings.height * settings.width <= LARGE_PIXELS:
        return None
    return WideSignsSettings(**asdict(settings))


class Scenes(NamedTuple):
    """A finished split.

    images  (N, 3, H, W) uint8, or clips, (N, F, 3, H, W); mapped from the cache if there is one, so that only what is used takes
            memory
    labels  (N,) int64, an index into the classes of the world
    boxes   (N, 4) float32, (top, left, bottom, right) in px of the speed limit, or of the amber disc, the same in all frames; NaN
            for the class `none`; for measuring where the policy looks, never for training
    """

    images: Tensor
    labels: Tensor
    boxes: Tensor


def draw_split(
    split: str,
    count: int,
    settings: SignsSettings | GesturesSettings,
    seed: int,
    *,
    cache: Cache = "default",
    progress: Callable[[int, int], None] | None = None,
    workers: int = 1,
) -> Scenes:
    """The first `count` scenes of a split of signs or gestures, by the kind of the settings; the classes in equal shares.

    Scene i depends on seed, split, i and settings only, not on count or workers.

    split     train, val or test, which have no scene in common
    cache     where the scenes are kept, see files.Cache; None: in memory only
    progress  called with (scenes drawn, count) after each scene; not called if the scenes are in the cache
    workers   processes that draw; more than one needs a main module that can be imported
    """
    of_clips = isinstance(settings, GesturesSettings)
    world, version = ("gestures", gestures.DRAWING_VERSION) if of_clips else ("signs", signs.DRAWING_VERSION)
    if split not in SPLITS:
        raise UnknownName(f"split of {world}", split, SPLITS, f"Choose one of {', '.join(SPLITS)}.")
    for name, number, least in (("count", count, 1), ("seed", seed, 0), ("workers", workers, 1)):
        if not isinstance(number, int) or number < least:
            raise BadSetting(f"{name} of {world} is {number}. Choose a whole number of at least {least}.")
    frames = (settings.frames,) if isinstance(settings, GesturesSettings) else ()
    shapes: Shapes = {
        "clips" if of_clips else "images": ((count, *frames, 3, settings.height, settings.width), "|u1"),
        "labels": ((count,), "<i8"),
        "boxes": ((count, 4), "<f4"),
    }
    scenes = _drawn(partial(draw_one, split, settings, seed), count, workers, progress)
    about = Drawn(world, version, split, count, seed, asdict(settings))
    return Scenes(*kept_scenes(scenes, shapes, about, cache).values())


def draw_one(split: str, settings: SignsSettings | GesturesSettings, seed: int, index: int) -> "Scene":
    """Image (3, H, W) or clip (F, 3, H, W), label and box (4,) of one scene."""
    of_clips = isinstance(settings, GesturesSettings)
    label = balanced_label(len(world_classes("gestures" if of_clips else "signs")), split, seed, index)
    draw: Callable[..., Any] = gestures.draw_clip if of_clips else signs.draw_scene
    picture, box = draw(settings, label, scene_stream(split, seed, index))
    corners = np.array(box if box is not None else [np.nan] * 4, dtype=np.float32)
    return np.moveaxis(picture, -1, -3), np.array(label), corners


def _drawn(
    draw: "Callable[[int], Scene]", count: int, workers: int, progress: Callable[[int, int], None] | None
) -> "Iterator[Scene]":
    """Each scene in turn; drawing starts with the first one that is requested."""

    def in_order() -> "Iterator[Scene]":
        if workers == 1:
            yield from map(draw, range(count))
            return
        # spawn: a forked process would inherit the locks of torch's threads
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            stride = 32 * workers  # so that no more than this many scenes wait in memory to be written
            for start in range(0, count, stride):
                with children_without_signals():
                    drawn = pool.map(draw, range(start, min(start + stride, count)), chunksize=4)
                yield from drawn

    for number, scene in enumerate(in_order(), start=1):
        yield scene
        if progress is not None:
            progress(number, count)


ABOUT_FILE = "about.json"
_CHECKED_BLOCKS, _BLOCK_BYTES = 1024, 1 << 20
_MOST_ABOUT_BYTES, _LEFT_FREE_BYTES = 1 << 20, 256 << 20

Shapes = dict[str, tuple[tuple[int, ...], str]]
"""{name: (shape, type in numpy's notation)} of the arrays of a split; the first axis counts scenes."""
Scene = tuple[NDArray[Any], ...]
"""The part of one scene in every array, in the order of the arrays."""


@dataclass(frozen=True)
class Drawn:
    """Everything that the scenes of a split depend on; settings are plain values."""

    world: str
    drawing_version: int
    split: str
    count: int
    seed: int
    settings: dict[str, Any]


def kept_scenes(scenes: Iterable[Scene], shapes: Shapes, about: Drawn, cache: Cache) -> dict[str, Tensor]:
    """The arrays of a split: from the cache if they are there, otherwise drawn and kept there.

    scenes  an iterator: nothing is drawn unless it is used
    cache   None: the arrays are in memory only
    """
    if cache is None:
        return _hold_in_memory(scenes, shapes)
    try:
        return _kept_in(cache_folder(cache), scenes, shapes, about)
    except OSError as error:
        place = error.filename or (cache_path() if cache == "default" else cache)
        raise BadSetting(
            f"the scenes of {about.world} cannot be kept in {place} ({error.strerror or error}). "
            "Make room there, or set GLANCEFOCUS_CACHE to a folder that can be written."
        ) from error


def _kept_in(cache: Path, scenes: Iterable[Scene], shapes: Shapes, about: Drawn) -> dict[str, Tensor]:
    folder = cache / f"{about.world}-{about.split}-{fingerprint(asdict(about))[:16]}"
    with lock(folder.with_suffix(".lock"), wait=True):  # if several processes need the same scenes, one draws them
        tensors = _open(folder, shapes)
        if tensors is None:
            _refuse_to_fill(cache, shapes, about.world)
            remove_unfinished(cache, folder.name)
            _write(folder, scenes, shapes, about)
            tensors = _open(folder, shapes)
    if tensors is None:
        raise BadSetting(
            f"{folder} does not contain what was just written to it. Set GLANCEFOCUS_CACHE to another disk."
        )
    return tensors


def _refuse_to_fill(cache: Path, shapes: Shapes, world: str) -> None:
    """Refuse scenes that do not fit on the disk, before the first is drawn."""
    wanted = sum(math.prod(shape) * np.dtype(kind).itemsize for shape, kind in shapes.values())
    free = shutil.disk_usage(cache).free
    if wanted + _LEFT_FREE_BYTES > free:
        raise BadSetting(
            f"the scenes of {world} would take {wanted / 1e9:,.1f} GB, but {cache} has {free / 1e9:,.1f} GB left. "
            "Draw fewer or smaller scenes (--scenes), make room there, or set GLANCEFOCUS_CACHE to another disk."
        )


def _hold_in_memory(scenes: Iterable[Scene], shapes: Shapes) -> dict[str, Tensor]:
    arrays = {name: np.empty(shape, dtype=kind) for name, (shape, kind) in shapes.items()}
    for index, scene in enumerate(scenes):
        for array, part in zip(arrays.values(), scene, strict=True):
            array[index] = part
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _write(folder: Path, scenes: Iterable[Scene], shapes: Shapes, about: Drawn) -> None:
    """Write the scenes one by one into a new folder, then put it in place.

    Not through a memory map: on a full disk that kills the process, while an ordinary write raises an error.
    """
    with replace_folder(folder) as aside:
        files = {name: (aside / f"{name}.npy").open("wb") for name in shapes}
        try:
            for name, (shape, kind) in shapes.items():
                header = {"shape": shape, "descr": kind, "fortran_order": False}
                np.lib.format.write_array_header_1_0(files[name], header)
            for scene in scenes:
                for (name, (_, kind)), part in zip(shapes.items(), scene, strict=True):
                    files[name].write(np.asarray(part, dtype=kind).tobytes())
            for file in files.values():
                file.flush()
                os.fsync(file.fileno())
        finally:
            for file in files.values():
                file.close()
        checksums = {name: _checksum(aside / f"{name}.npy") for name in files}
        write_text(aside / ABOUT_FILE, json.dumps(asdict(about) | {"checksums": checksums}, indent=2))


def _open(folder: Path, shapes: Shapes) -> dict[str, Tensor] | None:
    """The arrays in this folder, or None if it is missing or damaged."""
    try:
        checksums = read_json(folder / ABOUT_FILE, _MOST_ABOUT_BYTES)["checksums"]
        tensors = {}
        for name, (shape, kind) in shapes.items():
            path = folder / f"{name}.npy"
            # "c" (copy on write): a tensor must be writable, but changes must not reach the file
            array = np.load(path, mmap_mode="c", allow_pickle=False)
            if array.shape != shape or array.dtype.str != kind or checksums[name] != _checksum(path):
                return None
            tensors[name] = torch.from_numpy(array)
    except Exception:  # numpy fails in many ways on damaged bytes; the scenes are drawn again
        return None
    return tensors


def _checksum(path: Path) -> int:
    """CRC of the length and of 1,024 evenly spaced blocks of 1 MiB: all of a file up to 1 GiB, samples of a larger one."""
    size = path.stat().st_size
    total = zlib.crc32(str(size).encode())
    with open_file(path) as file:
        for start in range(0, size, max(_BLOCK_BYTES, size // _CHECKED_BLOCKS)):
            file.seek(start)
            total = zlib.crc32(file.read(_BLOCK_BYTES), total)
    return total


_LABEL_STREAM, _SCENE_STREAM = 0, 1


def scene_stream(split: str, seed: int, index: int) -> np.random.SeedSequence:
    """The random stream of scene `index` of a split."""
    return _stream(split, seed, _SCENE_STREAM, index)


def balanced_label(classes: int, split: str, seed: int, index: int) -> int:
    """The class of scene `index`: each group of scenes has every class once, so that any number of scenes is balanced."""
    group, place = divmod(index, classes)
    rng = np.random.default_rng(_stream(split, seed, _LABEL_STREAM, group))
    return int(rng.permutation(classes)[place])


def _stream(split: str, seed: int, stream: int, index: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=(zlib.crc32(split.encode()), stream, index))
