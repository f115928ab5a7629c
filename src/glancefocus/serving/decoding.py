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

from glancefocus.bundle.predicting import Viewed, least_px, view
from glancefocus.data.images import read_picture, view_pixels
from glancefocus.errors import BadImage
from glancefocus.region import Placement
from glancefocus.settings import NetworkSettings


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


def decode(source: bytes | Path, name: str, settings: NetworkSettings, max_pixels: int) -> Decoded:
    """Read a picture or clip; runs in a process of its own. Raises BadImage."""
    if settings.frames > 1:
        clip = view(source, settings, max_pixels, keep_pictures=False)
        return Decoded(clip.image.numpy(), clip.placement, clip.notes)
    picture = read_picture(source, max_pixels=max_pixels, name=name)
    pixels, placement = view_pixels(picture, settings.view, least_px(settings))
    return Decoded(pixels.numpy(), placement, (placement.note,) if placement.note else ())


def _prepare_process() -> None:
    """Ignore Ctrl-C, which the server handles; compute in one thread; end with the server, however that ends."""
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
    """Processes that decode pictures. One that dies is replaced, and what it was decoding is tried once more.

    timeout_s  a picture that takes longer is refused, and its process is ended
    """

    def __init__(self, processes: int, timeout_s: float = 30.0) -> None:
        self.processes = processes
        self.timeout_s = timeout_s
        self.restarts = 0
        self._pool = self._new_pool()

    def _new_pool(self) -> ProcessPoolExecutor:
        # A forked process would lack the threads of torch.
        spawn = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self.processes, mp_context=spawn, initializer=_prepare_process)

    async def start(self) -> None:
        """Wait until the processes have started."""
        await asyncio.gather(*(self._run(_try_out) for _ in range(self.processes)))

    async def decode(self, source: bytes | Path, name: str, settings: NetworkSettings, max_pixels: int) -> Decoded:
        """See decode. Raises BadImage."""
        for _ in range(2):
            with contextlib.suppress(BrokenProcessPool):
                decoded: Decoded = await self._run(decode, source, name, settings, max_pixels)
                return decoded
        raise BadImage(f"{name} could not be decoded: the process that read it ended twice. Make the picture smaller.")

    async def _run(self, function: Any, *arguments: Any) -> Any:
        pool = self._pool
        try:
            async with asyncio.timeout(self.timeout_s):
                return await asyncio.wrap_future(pool.submit(function, *arguments))
        except BrokenProcessPool:
            self._replace(pool)
            raise
        except TimeoutError:
            self._replace(pool)
            raise BadImage(
                f"the picture could not be decoded in {self.timeout_s:g} seconds. Make it smaller, or try again."
            ) from None

    def _replace(self, broken: ProcessPoolExecutor) -> None:
        if self._pool is broken:  # else another request has replaced it
            self.restarts += 1
            self._pool = self._new_pool()
            _end(broken)

    def process_ids(self) -> list[int]:
        """The processes that run."""
        return list(self._pool._processes or ())

    def close(self) -> None:
        """End the processes."""
        _end(self._pool)


def _end(pool: ProcessPoolExecutor) -> None:
    """End a pool without waiting: its processes hold nothing that must be saved, and ignore polite signals."""
    processes = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=False)
    for process in processes:
        with contextlib.suppress(Exception):
            process.kill()
