"""Pictures are decoded in other processes: a broken or hostile file cannot stop the server, and requests are read meanwhile."""

import asyncio
import contextlib
import io
import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from glancefocus.bundle.predicting import Reading, Viewed, least_px, view
from glancefocus.data.images import read_picture, view_pixels
from glancefocus.errors import BadImage
from glancefocus.machine import is_out_of_memory
from glancefocus.region import Placement
from glancefocus.settings import NetworkSettings

ATTEMPTS = 3
"""How often a picture is tried, if processes die while it is decoded."""


@dataclass(frozen=True)
class Decoded:
    """A picture or clip in the form that is cheap to send between processes.

    pixels  uint8 (3, H, W) of a picture; floats (frames, 3, H, W), normalised, of a clip
    """

    pixels: np.ndarray[Any, Any]
    placement: Placement
    notes: tuple[str, ...]

    def viewed(self) -> Viewed:
        """As Bundle.view gives it; the image of a picture is not normalised yet."""
        return Viewed(torch.from_numpy(self.pixels), self.placement, self.notes)


def decode(
    source: bytes | Path, name: str, settings: NetworkSettings, max_pixels: int, timeout_s: float = 0.0
) -> Decoded:
    """Read a picture or clip; runs in a process of its own, which ends after `timeout_s` (0: never). Raises BadImage."""
    _end_after(timeout_s)
    try:
        return _read(source, name, settings, max_pixels)
    finally:
        _end_after(0.0)


def _end_after(seconds: float) -> None:
    """End this process after some seconds, even in the middle of a decoder written in C; 0: do not."""
    if hasattr(signal, "setitimer"):  # not on Windows
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _read(source: bytes | Path, name: str, settings: NetworkSettings, max_pixels: int) -> Decoded:
    try:
        return _read_whole(source, name, settings, max_pixels)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise BadImage(f"{name} does not fit into memory. Make it smaller.") from None


def _read_whole(source: bytes | Path, name: str, settings: NetworkSettings, max_pixels: int) -> Decoded:
    if settings.frames > 1:
        clip = view(source, settings, Reading(max_pixels))
        assert isinstance(clip.image, torch.Tensor)  # only single pictures stay in their files
        return Decoded(clip.image.numpy(), clip.placement, clip.notes)
    picture = read_picture(source, max_pixels=max_pixels, name=name)
    pixels, placement = view_pixels(picture, settings.view, least_px(settings))
    return Decoded(pixels.numpy(), placement, (placement.note,) if placement.note else ())


def _prepare_process() -> None:
    """Ignore Ctrl-C, which the server handles; compute in one thread; end with the server, however that ends.

    Looks come first where cores are few: a picture that is decoded early would only wait.
    """
    if hasattr(os, "nice"):  # not on Windows
        os.nice(5)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    if parent is not None:

        def end_with_parent() -> None:
            parent.join()
            os._exit(0)

        threading.Thread(target=end_with_parent, daemon=True).start()


def _try_out() -> int:
    """Decode a small picture, so that everything is imported; returns the number of this process."""
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "PNG")
    read_picture(file.getvalue())
    return os.getpid()


class Decoders:
    """Processes that decode pictures. Those that die are replaced, and what they were decoding is tried again.

    timeout_s  the process of a picture that takes longer ends itself
    restarts   how often processes were replaced
    """

    def __init__(self, processes: int, timeout_s: float = 15.0) -> None:
        self.processes = processes
        self.timeout_s = timeout_s
        self.restarts = 0
        self._pool = self._new_pool()
        self._again = asyncio.Lock()
        self._closed = False

    def _new_pool(self) -> ProcessPoolExecutor:
        # A forked process would lack the threads of torch.
        spawn = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self.processes, mp_context=spawn, initializer=_prepare_process)

    async def start(self) -> None:
        """Wait until the processes have started."""
        await asyncio.gather(*(self._run(_try_out) for _ in range(self.processes)))

    async def decode(self, source: bytes | Path, name: str, settings: NetworkSettings, max_pixels: int) -> Decoded:
        """See decode. Raises BadImage."""
        # When one process dies, the pool fails for all pictures in it, so each of them is tried again: one at a time, because
        # together with the picture that ended the process all of them would fail again.
        for attempt in range(ATTEMPTS):
            with contextlib.suppress(BrokenProcessPool):
                async with self._again if attempt else contextlib.nullcontext():
                    decoded: Decoded = await self._run(decode, source, name, settings, max_pixels, self.timeout_s)
                    return decoded
        raise BadImage(
            f"{name} could not be decoded: it took longer than {self.timeout_s:g} seconds, or too much memory. Make it smaller."
        )

    async def _run(self, function: Any, *arguments: Any) -> Any:
        pool = self._pool
        try:
            return await asyncio.wrap_future(pool.submit(function, *arguments))
        except BrokenProcessPool:
            self._replace(pool)
            raise

    def _replace(self, broken: ProcessPoolExecutor) -> None:
        if self._pool is broken and not self._closed:  # else another request has replaced it
            self.restarts += 1
            self._pool = self._new_pool()
            _end(broken)

    def process_ids(self) -> list[int]:
        """The processes that run."""
        return list(self._pool._processes or ())

    def close(self) -> None:
        """End the processes."""
        self._closed = True
        _end(self._pool)


def _end(pool: ProcessPoolExecutor) -> None:
    """End a pool without waiting: its processes hold nothing that must be saved, and ignore SIGINT and SIGTERM."""
    processes = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=False)
    for process in processes:
        with contextlib.suppress(Exception):
            process.kill()
