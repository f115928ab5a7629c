"""Opens a network in a runtime by its name, or in the fastest one here."""

import copy
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from glancefocus.errors import BadSetting, GlancefocusError, UnknownName
from glancefocus.files import Cache
from glancefocus.network.model import GlanceFocus
from glancefocus.network.parts import Part, take_apart, whole_backbone, with_best
from glancefocus.runtime.auto import made_up_images, measure, recall, remember, situation
from glancefocus.runtime.forking import check_threads
from glancefocus.runtime.graphs import graphs_in, graphs_of
from glancefocus.runtime.onnx import OnnxRunner
from glancefocus.runtime.openvino import OpenVinoRunner
from glancefocus.runtime.runner import PartsRunner, RunPart
from glancefocus.runtime.torch import CompiledRunner, EagerRunner, as_tuple, device_of
from glancefocus.values import BatchSize, Threads, checked

RUNTIMES = ("plain", "eager", "compile", "onnx", "openvino")
AUTO = "auto"


@dataclass(frozen=True)
class RuntimeOptions:
    """Options of a runtime beyond its name.

    graphs         onnx, openvino: a folder with exported graphs of this network, float or int8, instead of the cache
    light_weights  onnx: int8 weights in memory-bound layers, see int8.py; meant for small batches
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
) -> Callable[[Tensor], Tensor]:
    """images (B, 3, H, W) of the view's size -> logits (B, classes): the plain backbone with its own head, in the same runtime.

    Clips are (B, frames, 3, H, W).
    """
    options = RuntimeOptions() if options is None else options
    check_name(name, RUNTIMES)
    _check_options(name, options)
    if threads is not None:
        set_threads(threads)
    net = net.computed_by(None)
    part = whole_backbone(plain(net) if name == "plain" else net)
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
