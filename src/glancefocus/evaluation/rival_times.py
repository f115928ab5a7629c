"""Milliseconds of glancefocus and of its backbone at several sizes, measured in turns on this device."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from glancefocus.bundle import Bundle
from glancefocus.evaluation.bench import in_turns
from glancefocus.evaluation.latency import measure_latency
from glancefocus.evaluation.rivals import Size
from glancefocus.latency import device_name
from glancefocus.runtimes.choose import open_backbone

RUNTIME = "eager"


@dataclass(frozen=True)
class RivalTimes:
    """Medians for a single image, in milliseconds.

    ours    of leaving after every sequence of patch sizes, in the order of a look table's nodes
    resized  of the backbone at each size
    device  in words
    """

    ours: tuple[float, ...]
    resized: dict[Size, float]
    device: str


def measure_times(bundle: Bundle, sizes: Sequence[Size], *, rounds: int = 5, warm_up: int = 1) -> RivalTimes:
    """All of them once in every round, so that a busy moment hits all alike. Reading and resizing files is not part of it."""
    net, frames = bundle.net, bundle.settings.frames
    own = Bundle(net, bundle.classes, bundle.costs, score=bundle.score, temperatures=bundle.temperatures).use(RUNTIME)
    backbone = open_backbone(net, RUNTIME)
    looks: list[tuple[float, ...]] = []

    def ours() -> None:
        looks.append(measure_latency(own, repeats=1, warm_up=0).ms_of_tree())

    ways: dict[str, Callable[[], object]] = {"ours": ours}
    for size in sizes:
        shape = (1, 3, *size) if frames == 1 else (1, frames, 3, *size)
        images = torch.zeros(shape, device=bundle.device)
        ways[str(size)] = lambda images=images: backbone(images)  # type: ignore[misc]
    times = in_turns(ways, bundle.device, rounds, warm_up)
    return RivalTimes(
        ours=tuple(float(ms) for ms in np.median(np.asarray(looks[warm_up:]), axis=0)),
        resized={size: 1000 * float(np.median(times[str(size)])) for size in sizes},
        device=f"{device_name(bundle.device)}, {torch.get_num_threads()} threads, batch 1, {RUNTIME}",
    )
