"""Keeps the scenes of built-in worlds on disk, opened without loading them.

A folder of the cache holds one file for each array and `about.json`, which says what was drawn and how the files must read. It is
written aside and renamed, so it is whole or not there; one that was damaged later is made again.
"""

import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glancefocus.errors import BadSetting

_CHECKED_BLOCKS, _BLOCK_BYTES = 1024, 1 << 20

Shapes = dict[str, tuple[tuple[int, ...], str]]
"""{name: (shape, type as numpy writes it)} of the arrays of a split; their first axis counts scenes."""
Scenes = Iterable[tuple[NDArray[Any], ...]]
"""One scene after the other: its part of each array, in their order."""


def default_cache_dir() -> Path:
    """Where made data is kept: $GLANCEFOCUS_CACHE, or else ~/.cache/glancefocus."""
    chosen = os.environ.get("GLANCEFOCUS_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "glancefocus"


def kept_scenes(
    scenes: Scenes, shapes: Shapes, about: dict[str, Any], cache: Path | Literal["default"] | None
) -> dict[str, Tensor]:
    """The arrays of a split: out of the cache where it has them, drawn and kept there otherwise.

    scenes  nothing is drawn before the first is asked for
    about   everything that the scenes depend on, with the names of the `world` and the `split`
    cache   None holds them in memory only
    """
    if cache is None:
        return _hold_in_memory(scenes, shapes)
    world = about["world"]
    name = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
    folder = (default_cache_dir() if cache == "default" else cache) / f"{world}-{about['split']}-{name}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(folder.with_suffix(".lock")):
            tensors = _open(folder, shapes)
            if tensors is None:
                _write(folder, scenes, shapes, about)
                tensors = _open(folder, shapes)
    except OSError as error:
        raise BadSetting(
            f"the scenes of {world} cannot be kept in {folder.parent} ({error.strerror or error}). "
            "Make room there, or set GLANCEFOCUS_CACHE to a folder that can be written."
        ) from error
    if tensors is None:
        raise BadSetting(
            f"{folder} reads differently from what was just written. Set GLANCEFOCUS_CACHE to another disk."
        )
    return tensors


def _hold_in_memory(scenes: Scenes, shapes: Shapes) -> dict[str, Tensor]:
    arrays = {name: np.empty(shape, dtype=kind) for name, (shape, kind) in shapes.items()}
    for index, scene in enumerate(scenes):
        for array, part in zip(arrays.values(), scene, strict=True):
            array[index] = part
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _write(folder: Path, scenes: Scenes, shapes: Shapes, about: dict[str, Any]) -> None:
    """Write the scenes one by one into a folder aside, then give it its name.

    Not through a memory map: on a full disk that ends the process, where an ordinary write says what is wrong.
    """
    aside = folder.with_suffix(".partial")
    shutil.rmtree(aside, ignore_errors=True)  # of a process that was killed
    aside.mkdir()
    try:
        files = {name: (aside / f"{name}.npy").open("wb") for name in shapes}
        try:
            for name, (shape, kind) in shapes.items():
                header = {"shape": shape, "descr": kind, "fortran_order": False}
                np.lib.format.write_array_header_1_0(files[name], header)
            for scene in scenes:
                for (name, (_, kind)), part in zip(shapes.items(), scene, strict=True):
                    files[name].write(np.asarray(part, dtype=kind).tobytes())
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


def _open(folder: Path, shapes: Shapes) -> dict[str, Tensor] | None:
    """The split in this folder, or None if it is not there or damaged."""
    try:
        checksums = json.loads((folder / "about.json").read_text())["checksums"]
        tensors = {}
        for name, (shape, kind) in shapes.items():
            path = folder / f"{name}.npy"
            # "c": a tensor must be writable; what is written to it stays in memory and never reaches the file
            array = np.load(path, mmap_mode="c", allow_pickle=False)
            if array.shape != shape or array.dtype.str != kind or checksums[name] != _checksum(path):
                return None
            tensors[name] = torch.from_numpy(array)
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None
    return tensors


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
