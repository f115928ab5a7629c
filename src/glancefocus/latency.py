"""How long looking takes on one device: a table of milliseconds, as costs.py is one of multiply-adds."""

import functools
import itertools
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from glancefocus.costs import MOST_LOOKS, MOST_SIZES
from glancefocus.typed import Fields, list_of, number_of

MOST_MS = 1e9


@dataclass(frozen=True)
class Latency:
    """Milliseconds an image, the median of several measurements.

    device      its name
    threads     of the CPU that were used
    batch_size  images looked at together
    glance_ms   the first look
    focus_ms    (T - 1, K): look 2, 3, ... with a patch of each size; the aim is part of the look
    runtime     who looked; None: the network as torch runs it
    """

    device: str
    threads: int
    batch_size: int
    glance_ms: float
    focus_ms: tuple[tuple[float, ...], ...]
    runtime: str | None = None

    @property
    def words(self) -> str:
        """Where and how it was measured."""
        runtime = "" if self.runtime is None else f", {self.runtime}"
        return f"{self.device}, {self.threads} threads, batch {self.batch_size}{runtime}"

    @property
    def ms_after_look(self) -> tuple[float, ...]:
        """Leaving after look 1, 2, ... T, with the largest patches."""
        return tuple(itertools.accumulate([self.glance_ms, *(sizes[-1] for sizes in self.focus_ms)]))

    def ms_of_tree(self) -> tuple[float, ...]:
        """Leaving after every sequence of patch sizes, in the order of a look table's nodes."""
        level, tree = [self.glance_ms], [self.glance_ms]
        for sizes in self.focus_ms:
            level = [spent + ms for spent in level for ms in sizes]
            tree += level
        return tuple(tree)

    def mean_ms(self, point: dict[str, Any]) -> float:
        """What an operating point costs on average, from how many patches were looked at."""
        images = sum(point["exits_per_look"])
        patches = patches_of(point)
        spent = sum(
            n * ms
            for look, sizes in zip(patches, self.focus_ms, strict=True)
            for n, ms in zip(look, sizes, strict=True)
        )
        return float(self.glance_ms + spent / images)

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_plain(plain: Any, where: str = "latency") -> "Latency":
        """Out of plain values; a field that cannot be meant is refused by its name."""
        fields = Fields(plain, where)
        ms = partial(number_of, least=0.0, most=MOST_MS)

        def sizes(value: Any, name: str) -> tuple[float, ...]:
            return tuple(list_of(value, name, MOST_SIZES, ms))

        return Latency(
            device=fields.text("device", 200),
            threads=fields.whole("threads", 1, 4096),
            batch_size=fields.whole("batch_size", 1, 65_536),
            glance_ms=fields.number("glance_ms", 0.0, MOST_MS),
            focus_ms=tuple(fields.listed("focus_ms", MOST_LOOKS, sizes)),
            runtime=None if fields.value("runtime", None) is None else fields.text("runtime", 200),
        )


def patches_of(point: dict[str, Any]) -> list[Sequence[int]]:
    """(T - 1, K) how many patches of each size an operating point looks at in look 2, 3, ..."""
    if "patches_per_look_and_size" in point:
        return list(point["patches_per_look_and_size"])
    exits = point["exits_per_look"]
    return [[sum(exits[look:])] for look in range(1, len(exits))]


def device_name(device: torch.device) -> str:
    """What people call it: the GPU's name, or the processor's."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else _processor_name()


@functools.lru_cache(maxsize=1)
def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine() or "CPU"
