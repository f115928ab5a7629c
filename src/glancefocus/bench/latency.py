"""Measures how long each look takes, on the bundle's device and in its runtime; and how long the rivals take."""

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from glancefocus.bench.wall_clock import in_turns
from glancefocus.bundle.bundle import Bundle
from glancefocus.costs import Latency, device_name
from glancefocus.look import Look
from glancefocus.runtime.choose import open_backbone
from glancefocus.values import BatchSize, Count, checked


def measure_latency(bundle: Bundle, *, batch_size: int = 1, repeats: int = 15, warm_up: int = 3) -> Latency:
    """The median time of the glance, and of every later look with a patch of each size, aim included.

    Reading and resizing files is not included. Looks are measured in turns, so that a busy moment affects all of them alike.
    """
    batch_size, repeats = checked(BatchSize, batch_size, "batch_size"), checked(Count, repeats, "repeats")
    settings, net = bundle.settings, bundle.net
    view = settings.view
    shape = (batch_size, settings.frames, 3, view.height_px, view.width_px)
    images = torch.zeros(shape, device=bundle.device)
    if settings.frames == 1:
        images = images[:, 0].contiguous(memory_format=torch.channels_last)
    times: dict[tuple[int, int], list[float]] = {}
    with torch.inference_mode():
        for turn in range(warm_up + repeats):
            look, spent = _timed(lambda: net.glance(images), images)
            _note(times, (1, 0), spent, turn >= warm_up)
            while look.number < settings.looks:
                looks = []
                for index, px in enumerate(settings.patch_px):
                    following, spent = _timed(functools.partial(_focus, bundle, look, px), images)
                    _note(times, (look.number + 1, index), spent, turn >= warm_up)
                    looks.append(following)
                look = looks[-1]
    median = {key: 1000 * statistics.median(values) / batch_size for key, values in times.items()}
    sizes = range(len(settings.patch_px))
    later = [tuple(median[look, size] for size in sizes) for look in range(2, settings.looks + 1)]
    return Latency(
        device=device_name(bundle.device),
        threads=torch.get_num_threads(),
        batch_size=batch_size,
        glance_ms=median[1, 0],
        focus_ms=tuple(later),
        runtime=bundle.runtime,
    )


def _focus(bundle: Bundle, look: Look, px: int) -> Look:
    return bundle.net.focus(look, bundle.net.policy.aim(look, px))


def _timed(work: Callable[[], Look], images: Tensor) -> tuple[Look, float]:
    started = time.perf_counter()
    look = work()
    if images.is_cuda:
        torch.cuda.synchronize(images.device)
    return look, time.perf_counter() - started


def _note(times: dict[tuple[int, int], list[float]], key: tuple[int, int], spent: float, counts: bool) -> None:
    if counts:
        times.setdefault(key, []).append(spent)


RIVALS_RUNTIME = "eager"
Size = tuple[int, int]
"""(height, width) in px."""


@dataclass(frozen=True)
class RivalTimes:
    """Medians for a single image, in milliseconds.

    ours     of leaving at each node of the look table
    resized  of the backbone at each image size
    device   for people
    """

    ours: tuple[float, ...]
    resized: dict[Size, float]
    device: str


def measure_rival_times(bundle: Bundle, sizes: Sequence[Size], *, rounds: int = 5, warm_up: int = 1) -> RivalTimes:
    """The times of a bundle and of its backbone at these image sizes, in turns. Reading and resizing files is not included."""
    net, frames = bundle.net, bundle.settings.frames
    own = Bundle(net, bundle.classes, bundle.costs, score=bundle.score, temperatures=bundle.temperatures)
    own.use(RIVALS_RUNTIME)
    backbone = open_backbone(net, RIVALS_RUNTIME)
    looks: list[tuple[float, ...]] = []

    def ours() -> None:
        looks.append(measure_latency(own, repeats=1, warm_up=0).ms_of_tree())

    ways: dict[str, Callable[[], object]] = {"ours": ours}
    for size in sizes:
        shape = (1, 3, *size) if frames == 1 else (1, frames, 3, *size)
        ways[str(size)] = functools.partial(backbone, torch.zeros(shape, device=bundle.device))
    times = in_turns(ways, bundle.device, rounds, warm_up)
    threads = torch.get_num_threads()
    return RivalTimes(
        ours=tuple(float(ms) for ms in np.median(np.asarray(looks[warm_up:]), axis=0)),
        resized={size: 1000 * statistics.median(times[str(size)]) for size in sizes},
        device=f"{device_name(bundle.device)}, {threads} thread{'s' if threads > 1 else ''}, batch 1, {RIVALS_RUNTIME}",
    )
