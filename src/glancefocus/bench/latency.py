"""Measures how long each look takes on the device that a bundle is on, in the runtime that it uses."""

import functools
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from glancefocus.bundle.bundle import Bundle
from glancefocus.costs import Latency, device_name
from glancefocus.look import Look
from glancefocus.values import BatchSize, Count, checked


def measure_latency(bundle: Bundle, *, batch_size: int = 1, repeats: int = 15, warm_up: int = 3) -> Latency:
    """The median time of the glance, and of every later look with a patch of each size, aim included.

    Reading and viewing pictures is not part of it. Looks are measured in turns, so that a busy moment affects all alike.
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
