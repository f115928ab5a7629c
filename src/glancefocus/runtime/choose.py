"""Opens a network in a runtime by its name, or in the fastest one here. Graphs and measured choices are kept in the cache.

Beside each graph of the cache lies its SHA-256. A graph that does not have it, or another one, is written again and never run.
"""

import copy
import importlib.util
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glancefocus.errors import BadSetting, GlancefocusError, UnknownName
from glancefocus.files import Cache, cache_folder, fingerprint, lock, write_text
from glancefocus.machine import check_threads, device_name, read_json
from glancefocus.network.model import GlanceFocus
from glancefocus.network.parts import Part, take_apart, whole_backbone, with_best
from glancefocus.runtime.backends import CompiledRunner, EagerRunner, OnnxRunner, OpenVinoRunner, as_tuple, device_of
from glancefocus.runtime.onnx_writing import (
    REWRITING_VERSION,
    hash_file,
    is_whole,
    note_hash,
    part_fingerprint,
    write_light,
    write_onnx,
)
from glancefocus.runtime.runner import PartsRunner, RunPart
from glancefocus.settings import NetworkSettings
from glancefocus.values import BatchSize, Threads, checked

CHOICES_FILE = "runtimes.json"
_MOST_BYTES = 1 << 20
MEASURING_VERSION = 3  # choices that another version measured are measured again


RUNTIMES = ("plain", "eager", "compile", "onnx", "openvino")
AUTO = "auto"


@dataclass(frozen=True)
class RuntimeOptions:
    """Options of a runtime beyond its name.

    graphs         onnx, openvino: a folder with exported graphs of this network, float or int8, instead of the cache
    light_weights  onnx: int8 weights in memory-bound layers, see onnx_writing.py; meant for small batches
    mode           compile: of torch.compile
    """

    graphs: Path | None = None
    light_weights: bool = False
    mode: str = "default"


_OPTIONS_OF = {
    "plain": (),
    "eager": (),
    "compile": ("mode",),
    "onnx": ("graphs", "light_weights"),
    "openvino": ("graphs",),
}


def open_runtime(
    net: GlanceFocus,
    name: str,
    *,
    threads: int | None = None,
    batch: int | None = None,
    cache: Cache = "default",
    options: RuntimeOptions | None = None,
) -> GlanceFocus:
    """The same network, computed by the runtime of this name; answers are the same, but for int8 weights.

    name     plain, eager, compile, onnx, openvino; or auto: the fastest of those installed, measured once and remembered
    threads  of the CPU; torch has one number for the whole process, which is set. None: unchanged
    batch    images looked at together, for which auto chooses; None: 1
    cache    where graphs and choices are kept
    """
    options = RuntimeOptions() if options is None else options
    check_name(name)
    if threads is not None:
        set_threads(threads)
    check_threads()
    if name == AUTO:
        if options != RuntimeOptions():
            raise BadSetting("the runtime 'auto' chooses by itself. Name a runtime to give it options.")
        return _open_fastest(net, 1 if batch is None else batch, cache)
    _check_options(name, options)
    net = net.computed_by(None)
    if name == "plain":
        return plain(net).computed_by(None, name)
    parts = take_apart(net)
    if name in ("onnx", "openvino"):
        parts = [with_best(part) for part in parts]
    runner = PartsRunner.of(net, _run_parts(name, parts, cache, options))
    light = options.light_weights
    return net.computed_by(runner, runtime_words(name, light_weights=light), light_weights=light)


def runtime_words(name: str, *, light_weights: bool) -> str:
    """The name of a runtime as it is shown, and under which measured milliseconds are kept."""
    return f"{name}, light weights" if light_weights else name


def open_backbone(
    net: GlanceFocus,
    name: str,
    *,
    threads: int | None = None,
    cache: Cache = "default",
    options: RuntimeOptions | None = None,
    size: tuple[int, int] | None = None,
) -> Callable[[Tensor], Tensor]:
    """images (B, 3, H, W) -> logits (B, classes): the plain backbone with its own head, in the same runtime.

    size  (H, W) of the images; None: that of the view. Clips are (B, frames, 3, H, W).
    """
    options = RuntimeOptions() if options is None else options
    check_name(name, RUNTIMES)
    _check_options(name, options)
    if threads is not None:
        set_threads(threads)
    net = net.computed_by(None)
    part = whole_backbone(plain(net) if name == "plain" else net, size)
    if name == "plain":
        return torch.inference_mode()(lambda images: as_tuple(part.module(images))[0])
    run = _run_parts(name, [part], cache, options)
    return lambda images: run(part.name, images)[0]


def _open_fastest(net: GlanceFocus, batch: int, cache: Cache) -> GlanceFocus:
    """The runtime that was measured to be the fastest here before, or is measured now.

    Compiling takes minutes, and is measured only on a GPU, where it pays.
    """
    batch = checked(BatchSize, batch, "batch")
    device = next(net.parameters()).device
    slow = ("plain", "compile") if device.type == "cpu" else ("plain",)
    candidates = [name for name in installed(device) if name not in slow]
    key = situation(net.settings, device, batch)
    chosen = recall(key, cache)
    if chosen in candidates:
        return open_runtime(net, chosen, cache=cache)
    opened: dict[str, GlanceFocus] = {}
    for name in candidates:
        try:
            opened[name] = open_runtime(net, name, cache=cache)
        except GlancefocusError:
            if name == "eager":  # which works for every network
                raise
    ms = measure(opened, made_up_images(net.settings, batch, device))
    fastest = min(ms, key=ms.__getitem__)
    remember(key, fastest, ms, cache)
    return opened[fastest]


def installed(device: torch.device) -> tuple[str, ...]:
    """The runtimes whose packages are installed and that compute on this device."""
    on_cpu = ("onnx", "openvino") if device.type == "cpu" else ()
    here = [name for name in on_cpu if all(map(importlib.util.find_spec, _PACKAGES[name]))]
    return ("plain", "eager", "compile", *here)


_PACKAGES = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "openvino": ("onnx", "onnxscript", "openvino")}


def plain(net: GlanceFocus) -> GlanceFocus:
    """A copy as torch makes it: contiguous, no batch norm folded."""
    return copy.deepcopy(net).eval().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload,no-any-return]


def check_name(name: str, known: Sequence[str] = (*RUNTIMES, AUTO)) -> None:
    if name not in known:
        raise UnknownName("runtime", name, known, f"There are {', '.join(known)}.")


def set_threads(threads: int) -> None:
    """Set the number of threads of torch, and of every runtime opened from now on."""
    threads = checked(Threads, threads, "threads")
    check_threads(threads)
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)


def _check_options(name: str, options: RuntimeOptions) -> None:
    default = RuntimeOptions()
    for option in ("graphs", "light_weights", "mode"):
        if getattr(options, option) != getattr(default, option) and option not in _OPTIONS_OF[name]:
            takers = [runtime for runtime in RUNTIMES if option in _OPTIONS_OF[runtime]]
            raise BadSetting(f"{option} is for the runtime {' or '.join(takers)}, not for {name!r}. Leave it out.")


def _run_parts(name: str, parts: Sequence[Part], cache: Cache, options: RuntimeOptions) -> RunPart:
    if name == "eager":
        return EagerRunner(parts)
    if name == "compile":
        return CompiledRunner(parts, mode=options.mode)
    device = device_of(parts)
    if device.type != "cpu":
        raise BadSetting(
            f"the runtime {name!r} computes on the CPU, but the network is on {device}. Load it with device='cpu'."
        )
    if options.graphs is not None:
        return _run_graphs(name, graphs_in(options.graphs, parts))
    with graphs_of(parts, cache, light_weights=options.light_weights) as graphs:
        return _run_graphs(name, graphs)


def _run_graphs(name: str, graphs: dict[str, Path]) -> RunPart:
    return OnnxRunner(graphs) if name == "onnx" else OpenVinoRunner(graphs)


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
    network = fingerprint(settings.to_hash())[:12]
    threads = torch.get_num_threads()
    where = f"{device_name(device)}, threads {threads}, batch {batch}, torch {torch.__version__}, network {network}"
    return f"{where}, measured {MEASURING_VERSION}"


def recall(key: str, cache: Cache) -> str | None:
    """The runtime that was chosen in this situation before; a file that cannot be read counts as missing."""
    chosen = _choices(cache).get(key)
    runtime = chosen.get("runtime") if isinstance(chosen, dict) else None
    return runtime if isinstance(runtime, str) else None


def remember(key: str, runtime: str, ms: Mapping[str, float], cache: Cache) -> None:
    """Add a choice and its measurements to the file. Where it cannot be written, the next call measures again."""
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


MOST_KEPT_BYTES = 4 << 30


def graphs_in(folder: Path, parts: Sequence[Part]) -> dict[str, Path]:
    """{part: file} of a folder that was exported, float or int8: `glance.onnx`, `aim_96.onnx`, ..."""
    files = {part.name: folder / f"{part.name}.onnx" for part in parts}
    missing = [file.name for file in files.values() if not file.is_file()]
    if missing:
        raise BadSetting(
            f"{folder} has no graph {' and no '.join(missing)}, which this network needs. "
            "Export this bundle to it again, or leave the folder out."
        )
    return files


@contextmanager
def graphs_of(
    parts: Sequence[Part], cache: Cache = "default", *, light_weights: bool = False
) -> Iterator[dict[str, Path]]:
    """{part: file} for these weights, written where they are not in the cache yet; without a cache, until the block ends."""
    if cache is None:
        with tempfile.TemporaryDirectory(prefix="glancefocus-graphs-") as aside:
            yield _written(parts, Path(aside), light_weights)
        return
    try:
        folder = cache_folder(cache) / "graphs"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BadSetting(
            f"graphs cannot be kept in the cache folder: {error.strerror or error} ({error.filename or cache}). "
            "Set GLANCEFOCUS_CACHE to a folder that can be written."
        ) from None
    with _one_writer(folder):
        files = _written(parts, folder, light_weights)
    yield files


@contextmanager
def _one_writer(folder: Path) -> Iterator[None]:
    """If several processes need the same graphs, only one writes them; a read-only cache is not written to."""
    with ExitStack() as held:
        with suppress(OSError):
            held.enter_context(lock(folder / ".lock", wait=True))
        yield


def _written(parts: Sequence[Part], folder: Path, light_weights: bool) -> dict[str, Path]:
    files, fresh = {}, False
    for part in parts:
        file = folder / f"{part.name}-{part_fingerprint(part)}.onnx"
        if not is_whole(file):
            write_onnx(part, file)
            note_hash(file)
            fresh = True
        if light_weights:
            light = file.with_suffix(f".light{REWRITING_VERSION}.onnx")
            if not is_whole(light):
                write_light(part, file, light)
                note_hash(light)
                fresh = True
            file = light
        files[part.name] = file
        with suppress(OSError):  # a cache that can only be read
            for used in (file, hash_file(file)):
                os.utime(used)  # now
    if fresh:
        _forget_the_oldest(folder, keep=set(files.values()))
    return files


def _forget_the_oldest(folder: Path, keep: set[Path]) -> None:
    """Remove the graphs that were not used for the longest time, until the others take no more than MOST_KEPT_BYTES."""
    taken, others = 0, []
    names = tuple(file.name for file in keep)
    for file in folder.glob("[!.]*.onnx*"):
        with suppress(FileNotFoundError):  # another process may do the same
            stat = file.stat()
            if file.name.startswith(names):
                taken += stat.st_size
            else:
                others.append((stat.st_mtime, stat.st_size, file))
    for _, size, file in sorted(others, reverse=True):
        taken += size
        if taken > MOST_KEPT_BYTES:
            file.unlink(missing_ok=True)
