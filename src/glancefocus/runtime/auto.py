"""Measures which runtime is the fastest here, and remembers it."""

import json
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glancefocus.costs import device_name
from glancefocus.errors import BadSetting
from glancefocus.files import Cache, cache_folder, fingerprint, write_text
from glancefocus.network.model import GlanceFocus
from glancefocus.settings import NetworkSettings, to_plain
from glancefocus.values import read_json

CHOICES_FILE = "runtimes.json"
_MOST_BYTES = 1 << 20
MEASURING_VERSION = 3  # choices that another version measured are measured again


def measure(
    networks: Mapping[str, GlanceFocus], images: Tensor, *, repeats: int = 7, warm_up: int = 2
) -> dict[str, float]:
    """{runtime: median milliseconds} of a glance and one focus at these images, in turns: a busy moment affects all alike."""
    times: dict[str, list[float]] = {name: [] for name in networks}
    with torch.inference_mode():
        for turn in range(warm_up + repeats):
            for name, net in networks.items():
                started = time.perf_counter()
                _glance_and_focus(net, images)
                if images.is_cuda:
                    torch.cuda.synchronize(images.device)
                if turn >= warm_up:
                    times[name].append(1000 * (time.perf_counter() - started))
    return {name: statistics.median(spent) for name, spent in times.items()}


def _glance_and_focus(net: GlanceFocus, images: Tensor) -> None:
    look = net.glance(images)
    if net.settings.looks > 1:
        net.focus(look, net.policy.aim(look))


def made_up_images(
    settings: NetworkSettings, count: int, device: torch.device, generator: torch.Generator | None = None
) -> Tensor:
    """(count, 3, H, W) noise of the view's size, for clips (count, frames, 3, H, W)."""
    view = settings.view
    frames = () if settings.frames == 1 else (settings.frames,)
    shape = (count, *frames, 3, view.height_px, view.width_px)
    return torch.randn(shape, generator=generator or torch.Generator().manual_seed(0)).to(device)


def situation(settings: NetworkSettings, device: torch.device, batch: int) -> str:
    """What a choice depends on: the network but not its weights, the device, threads, batch, and torch."""
    network = fingerprint(to_plain(settings))[:12]
    threads = torch.get_num_threads()
    where = f"{device_name(device)}, threads {threads}, batch {batch}, torch {torch.__version__}, network {network}"
    return f"{where}, measured {MEASURING_VERSION}"


def recall(key: str, cache: Cache) -> str | None:
    """The runtime that was chosen in this situation before; a file that cannot be read is as good as none."""
    chosen = _choices(cache).get(key)
    runtime = chosen.get("runtime") if isinstance(chosen, dict) else None
    return runtime if isinstance(runtime, str) else None


def remember(key: str, runtime: str, ms: Mapping[str, float], cache: Cache) -> None:
    """Write a choice, and what it was made by, beside those that are there. Where nothing can be written, it is measured again."""
    file = _file(cache)
    if file is None:
        return
    choices = {
        **_choices(cache),
        key: {"runtime": runtime, "ms": {name: round(value, 3) for name, value in ms.items()}},
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps(choices, indent=1, allow_nan=False) + "\n")
    except (OSError, ValueError):
        return


def _choices(cache: Cache) -> dict[str, Any]:
    file = _file(cache)
    try:
        choices = read_json(file, _MOST_BYTES) if file is not None else {}
    except (OSError, BadSetting):
        return {}
    return choices if isinstance(choices, dict) else {}


def _file(cache: Cache) -> Path | None:
    if cache is None:
        return None
    try:
        return cache_folder(cache) / CHOICES_FILE
    except OSError:
        return None
