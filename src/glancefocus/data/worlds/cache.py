"""Keeps the scenes of built-in worlds on disk and maps them into memory, so that only what is used is loaded.

A folder of the cache contains one file per array and `about.json`, with what was drawn and checksums of the files. It is written
atomically; one that was damaged later is drawn again.
"""

import json
import math
import os
import shutil
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glancefocus.errors import BadSetting
from glancefocus.files import (
    Cache,
    cache_folder,
    cache_path,
    fingerprint,
    lock,
    open_file,
    remove_unfinished,
    replace_folder,
    write_text,
)
from glancefocus.values import read_json

ABOUT_FILE = "about.json"
_CHECKED_BLOCKS, _BLOCK_BYTES = 1024, 1 << 20
_MOST_ABOUT_BYTES, _LEFT_FREE_BYTES = 1 << 20, 256 << 20

Shapes = dict[str, tuple[tuple[int, ...], str]]
"""{name: (shape, type in numpy's notation)} of the arrays of a split; the first axis counts scenes."""
Scenes = Iterable[tuple[NDArray[Any], ...]]
"""For each scene its part of every array, in the order of the arrays."""


@dataclass(frozen=True)
class Drawn:
    """Everything that the scenes of a split depend on; settings are plain values."""

    world: str
    drawing_version: int
    split: str
    count: int
    seed: int
    settings: dict[str, Any]


def kept_scenes(scenes: Scenes, shapes: Shapes, about: Drawn, cache: Cache) -> dict[str, Tensor]:
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


def _kept_in(cache: Path, scenes: Scenes, shapes: Shapes, about: Drawn) -> dict[str, Tensor]:
    folder = cache / f"{about.world}-{about.split}-{fingerprint(asdict(about))[:16]}"
    with lock(folder.with_suffix(".lock"), wait=True):  # if several processes want the same scenes, one draws them
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


def _hold_in_memory(scenes: Scenes, shapes: Shapes) -> dict[str, Tensor]:
    arrays = {name: np.empty(shape, dtype=kind) for name, (shape, kind) in shapes.items()}
    for index, scene in enumerate(scenes):
        for array, part in zip(arrays.values(), scene, strict=True):
            array[index] = part
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _write(folder: Path, scenes: Scenes, shapes: Shapes, about: Drawn) -> None:
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
