"""The built-in world `signs`: splits of road scenes made from a seed, kept on disk, opened without loading them.

A folder of the cache holds `images.npy`, `labels.npy`, `boxes.npy` and `about.json`, which says what was drawn
and how the files must read. It is written aside and renamed, so it is whole or not there;
one that was damaged later is made again.
"""

import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glancefocus.data.sign_scenes import CLASSES, DRAWING_VERSION, Box, SignsSettings, draw_scene
from glancefocus.errors import BadSetting, UnknownName

__all__ = ["CLASSES", "SPLITS", "Signs", "SignsSettings", "default_cache_dir", "draw_scene", "make_signs"]

SPLITS = ("train", "val", "test")

_LABEL_STREAM, _SCENE_STREAM = 0, 1
_CHECKED_BLOCKS, _BLOCK_BYTES = 1024, 1 << 20


@dataclass(frozen=True)
class Signs:
    """A finished split.

    images  (N, 3, H, W) uint8; mapped from the cache where there is one, so only what is looked at takes memory
    labels  (N,) int64, an index into classes
    boxes   (N, 4) float32, the speed limit's (top, left, bottom, right) in px, NaN for the class `none`;
            for measuring where the policy looks, never for training
    """

    images: Tensor
    labels: Tensor
    boxes: Tensor
    classes: tuple[str, ...] = CLASSES

    def __len__(self) -> int:
        return self.images.shape[0]


def default_cache_dir() -> Path:
    """Where made data is kept: $GLANCEFOCUS_CACHE, or else ~/.cache/glancefocus."""
    chosen = os.environ.get("GLANCEFOCUS_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "glancefocus"


def make_signs(
    split: str,
    count: int,
    settings: SignsSettings,
    seed: int,
    *,
    cache: Path | Literal["default"] | None = "default",
    progress: Callable[[int, int], None] | None = None,
    workers: int = 1,
) -> Signs:
    """The first `count` scenes of a split, the classes in equal shares.

    Scene i depends on seed, split, i and settings alone: neither their number nor that of the processes changes it.

    split     train, val or test: three streams that share no scene
    cache     folder to keep the scenes in; "default" is default_cache_dir(), None keeps them in memory only
    progress  called with (scenes drawn, count) after each scene; not called when the cache has them all
    workers   processes that draw; more than one needs a main module that can be imported
    """
    if split not in SPLITS:
        raise UnknownName("split of signs", split, SPLITS, f"Choose one of {', '.join(SPLITS)}.")
    for name, number, least in (("count", count, 1), ("seed", seed, 0), ("workers", workers, 1)):
        if not isinstance(number, int) or number < least:
            raise BadSetting(f"{name} of signs is {number}. Choose a whole number of at least {least}.")
    scenes = _drawn(split, count, settings, seed, workers, progress)
    if cache is None:
        return _hold_in_memory(scenes, count, settings)

    about: dict[str, Any] = {
        "world": "signs",
        "drawing_version": DRAWING_VERSION,
        "split": split,
        "count": count,
        "seed": seed,
        "settings": asdict(settings),
    }
    name = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
    folder = (default_cache_dir() if cache == "default" else cache) / f"signs-{split}-{name}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(folder.with_suffix(".lock")):
            signs = _open(folder, count, settings)
            if signs is None:
                _write(folder, scenes, count, settings, about)
                signs = _open(folder, count, settings)
    except OSError as error:
        raise BadSetting(
            f"the scenes of signs cannot be kept in {folder.parent} ({error.strerror or error}). "
            "Make room there, or set GLANCEFOCUS_CACHE to a folder that can be written."
        ) from error
    if signs is None:
        raise BadSetting(
            f"{folder} reads differently from what was just written. Set GLANCEFOCUS_CACHE to another disk."
        )
    return signs


def _label_of(split: str, seed: int, index: int) -> int:
    """Scenes come in groups of five with each class once, so that any number of them is balanced."""
    group, place = divmod(index, len(CLASSES))
    rng = np.random.default_rng(_stream(split, seed, _LABEL_STREAM, group))
    return int(rng.permutation(len(CLASSES))[place])


def _stream(split: str, seed: int, stream: int, index: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=(zlib.crc32(split.encode()), stream, index))


def _draw_one(split: str, settings: SignsSettings, seed: int, index: int) -> tuple[NDArray[np.uint8], Box | None]:
    return draw_scene(settings, _label_of(split, seed, index), _stream(split, seed, _SCENE_STREAM, index))


Scenes = Iterator[tuple[NDArray[np.uint8], int, NDArray[np.float32]]]


def _drawn(
    split: str,
    count: int,
    settings: SignsSettings,
    seed: int,
    workers: int,
    progress: Callable[[int, int], None] | None,
) -> Scenes:
    """Image (3, H, W), label and box (4,) of each scene in turn. Nothing is drawn before the first is asked for."""
    draw = partial(_draw_one, split, settings, seed)

    def in_order() -> Iterator[tuple[NDArray[np.uint8], Box | None]]:
        if workers == 1:
            yield from map(draw, range(count))
            return
        # spawn: a fork would copy the locks of torch's threads
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            stride = 32 * workers  # so that no more than this many scenes wait in memory to be written
            for start in range(0, count, stride):
                yield from pool.map(draw, range(start, min(start + stride, count)), chunksize=4)

    for index, (picture, box) in enumerate(in_order()):
        corners = np.array(box if box is not None else [np.nan] * 4, dtype=np.float32)
        yield picture.transpose(2, 0, 1), _label_of(split, seed, index), corners
        if progress is not None:
            progress(index + 1, count)


def _hold_in_memory(scenes: Scenes, count: int, settings: SignsSettings) -> Signs:
    images = torch.empty((count, 3, settings.height, settings.width), dtype=torch.uint8)
    labels = torch.empty(count, dtype=torch.int64)
    boxes = torch.empty((count, 4), dtype=torch.float32)
    for index, (image, label, box) in enumerate(scenes):
        images[index] = torch.from_numpy(image)
        labels[index] = label
        boxes[index] = torch.from_numpy(box)
    return Signs(images, labels, boxes)


def _shapes(count: int, settings: SignsSettings) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and type of each array in a folder of the cache."""
    return {
        "images": ((count, 3, settings.height, settings.width), "|u1"),
        "labels": ((count,), "<i8"),
        "boxes": ((count, 4), "<f4"),
    }


def _write(folder: Path, scenes: Scenes, count: int, settings: SignsSettings, about: dict[str, Any]) -> None:
    """Write the scenes one by one into a folder aside, then give it its name.

    Not through a memory map: on a full disk that ends the process, where an ordinary write says what is wrong.
    """
    aside = folder.with_suffix(".partial")
    shutil.rmtree(aside, ignore_errors=True)  # of a process that was killed
    aside.mkdir()
    try:
        files = {name: (aside / f"{name}.npy").open("wb") for name in _shapes(count, settings)}
        try:
            for name, (shape, kind) in _shapes(count, settings).items():
                header = {"shape": shape, "descr": kind, "fortran_order": False}
                np.lib.format.write_array_header_1_0(files[name], header)
            for image, label, box in scenes:
                files["images"].write(image.tobytes())
                files["labels"].write(np.array(label, dtype="<i8").tobytes())
                files["boxes"].write(box.astype("<f4").tobytes())
        finally:
            for file in files.values():
                file.close()
        checksums = {name: _checksum(aside / f"{name}.npy") for name in files}
        (aside / "about.json").write_text(json.dumps(about | {"checksums": checksums}, indent=2))
        for path in aside.iterdir():
            _flush_to_disk(path)
        shutil.rmtree(folder, ignore_errors=True)  # a damaged one
        aside.rename(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _open(folder: Path, count: int, settings: SignsSettings) -> Signs | None:
    """The split in this folder, or None if it is not there or damaged."""
    try:
        checksums = json.loads((folder / "about.json").read_text())["checksums"]
        tensors = {}
        for name, (shape, kind) in _shapes(count, settings).items():
            path = folder / f"{name}.npy"
            # "c": a tensor must be writable; what is written to it stays in memory and never reaches the file
            array = np.load(path, mmap_mode="c", allow_pickle=False)
            if array.shape != shape or array.dtype.str != kind or checksums[name] != _checksum(path):
                return None
            tensors[name] = torch.from_numpy(array)
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None
    return Signs(tensors["images"], tensors["labels"], tensors["boxes"])


def _checksum(path: Path) -> int:
    """Of a file's length and of 1,024 blocks of 1 MiB spread evenly: all of it up to 1 GiB, samples beyond."""
    size = path.stat().st_size
    total = zlib.crc32(str(size).encode())
    with path.open("rb") as file:
        for start in range(0, size, max(_BLOCK_BYTES, size // _CHECKED_BLOCKS)):
            file.seek(start)
            total = zlib.crc32(file.read(_BLOCK_BYTES), total)
    return total


def _flush_to_disk(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    """Let one process through at a time, so that several that want the same scenes draw them once."""
    try:
        import fcntl
    except ImportError:  # Windows: two processes at once may both draw, and the later one wins
        yield
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # ends with the process, however that ends
        yield
