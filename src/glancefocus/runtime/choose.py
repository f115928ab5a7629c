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
from glancefocus.runtime.at_once import AtOnce
from glancefocus.runtime.auto import Looking, made_up_images, measure, recall, remember, situation
from glancefocus.runtime.forking import check_threads
from glancefocus.runtime.graphs import graphs_in, graphs_of
from glancefocus.runtime.network import PartsNetwork, Runner
from glancefocus.runtime.one_graph import fits_one_graph
from glancefocus.runtime.onnx import OnnxAllLooks, OnnxRunner, onnx_has_gpu
from glancefocus.runtime.openvino import OpenVinoRunner
from glancefocus.runtime.torch import CompiledRunner, EagerRunner, as_tuple
from glancefocus.settings import NetworkSettings
from glancefocus.values import BatchSize, Threads, checked

RUNTIMES = ("plain", "eager", "compile", "onnx", "openvino")
AUTO = "auto"


@dataclass(frozen=True)
class RuntimeOptions:
    """What a runtime can be told beyond its name.

    graphs         onnx, openvino: a folder with exported graphs of this network, float or int8, instead of the cache
    light_weights  on a CPU: int8 weights where reading them takes the time. eager, onnx: in classifier and policy, see
                   light_heads.py; onnx: in the encoders' last layers too, see few_places.py. Meant for small batches
    half           eager, compile on a GPU: half precision
    cuda_graphs    eager on a GPU: recorded for every bucket of batch sizes
    mode           compile: of torch.compile; reduce-overhead fills batches up to buckets
    """

    graphs: Path | None = None
    light_weights: bool = False
    half: bool = False
    cuda_graphs: bool = False
    mode: str = "default"


_TAKES = {
    "plain": (),
    "eager": ("light_weights", "half", "cuda_graphs"),
    "compile": ("half", "mode"),
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
) -> GlanceFocus | PartsNetwork:
    """A network that answers as this one does, computed by the runtime of this name.

    name     plain, eager, compile, onnx, openvino; or auto: the fastest of those here, measured once and remembered
    threads  of the CPU; torch has one number for the whole process, which is set. None: as it is
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
    if name == "plain":
        return plain(net)
    parts = take_apart(net)
    if name in ("onnx", "openvino"):
        parts = [with_best(part) for part in parts]
    run, units = _runner(name, parts, cache, options), net.policy.gru.hidden_size
    # Without a cache the graphs are gone by the time that somebody looks at a single image.
    kept = cache is not None or options.graphs is not None
    at_once = _at_once(run, net.settings, units) if kept and fits_one_graph(net.settings) else None
    return PartsNetwork(net.settings, run, net.policy.map_sides, units, name, at_once)


def _at_once(run: Runner, settings: NetworkSettings, policy_units: int) -> AtOnce | None:
    """Who takes all looks at a single image, where the runtime has graphs with loops."""
    if not isinstance(run, OnnxRunner) or run.device.type != "cpu":
        return None
    return AtOnce(settings, OnnxAllLooks(run.graphs, settings, policy_units, run.threads))


def runtime_words(name: str, *, light_weights: bool) -> str:
    """A runtime as people read it, and as measured milliseconds are kept by."""
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

    Of clips (B, frames, 3, H, W).
    """
    options = RuntimeOptions() if options is None else options
    check_name(name, RUNTIMES)
    _check_options(name, options)
    if threads is not None:
        set_threads(threads)
    part = whole_backbone(plain(net) if name == "plain" else net)
    if name == "plain":
        return torch.inference_mode()(lambda images: as_tuple(part.module(images))[0])
    run = _runner(name, [part], cache, options)
    return lambda images: run(part.name, images)[0]


def _open_fastest(net: GlanceFocus, batch: int, cache: Cache) -> GlanceFocus | PartsNetwork:
    """The runtime that was the fastest here before, or else is now.

    Compiling takes minutes and is measured only on a GPU, where it pays.
    """
    batch = checked(BatchSize, batch, "batch")
    device = next(net.parameters()).device
    slow = ("plain", "compile") if device.type == "cpu" else ("plain",)
    candidates = [name for name in installed(device) if name not in slow]
    key = situation(net.settings, device, batch)
    chosen = recall(key, cache)
    if chosen in candidates:
        return open_runtime(net, chosen, cache=cache)
    opened: dict[str, Looking] = {}
    for name in candidates:
        try:
            opened[name] = open_runtime(net, name, cache=cache)
        except GlancefocusError:
            if name == "eager":  # which every network can be run by
                raise
    ms = measure(opened, made_up_images(net.settings, batch, device))
    fastest = min(ms, key=ms.__getitem__)
    remember(key, fastest, ms, cache)
    return opened[fastest]  # type: ignore[return-value]


def installed(device: torch.device) -> tuple[str, ...]:
    """The runtimes whose packages are here and that compute on this device."""
    here = [name for name in ("onnx", "openvino") if all(map(importlib.util.find_spec, _PACKAGES[name]))]
    if device.type == "cuda":
        here = [name for name in here if name == "onnx" and onnx_has_gpu()]
    return ("plain", "eager", "compile", *here)


_PACKAGES = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "openvino": ("onnx", "onnxscript", "openvino")}


def plain(net: GlanceFocus) -> GlanceFocus:
    """A copy as torch makes it: contiguous, nothing folded."""
    return copy.deepcopy(net).eval().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload,no-any-return]


def check_name(name: str, known: Sequence[str] = (*RUNTIMES, AUTO)) -> None:
    if name not in known:
        raise UnknownName("runtime", name, known, f"There are {', '.join(known)}.")


def set_threads(threads: int) -> None:
    """Let torch, and every runtime opened from now on, use so many threads."""
    threads = checked(Threads, threads, "threads")
    check_threads(threads)
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)


def _check_options(name: str, options: RuntimeOptions) -> None:
    default = RuntimeOptions()
    for option in ("graphs", "light_weights", "half", "cuda_graphs", "mode"):
        if getattr(options, option) != getattr(default, option) and option not in _TAKES[name]:
            takers = [runtime for runtime in RUNTIMES if option in _TAKES[runtime]]
            raise BadSetting(f"{option} is for the runtime {' or '.join(takers)}, not for {name!r}. Leave it out.")


def _runner(name: str, parts: Sequence[Part], cache: Cache, options: RuntimeOptions) -> Runner:
    device = next(parts[0].module.parameters()).device
    if options.light_weights and device.type != "cpu":
        raise BadSetting(
            f"light weights are for processors, where reading weights takes the time, but the network is on {device}. "
            "Leave them out, or load it with device='cpu'."
        )
    if name == "eager":
        return EagerRunner(parts, half=options.half, cuda_graphs=options.cuda_graphs, light_heads=options.light_weights)
    if name == "compile":
        return CompiledRunner(parts, mode=options.mode, buckets=options.mode == "reduce-overhead", half=options.half)
    if name == "openvino" and device.type != "cpu":
        raise BadSetting(f"OpenVINO computes on the CPU, but the network is on {device}. Load it with device='cpu'.")
    if options.graphs is not None:
        return _graph_runner(name, graphs_in(options.graphs, parts), device)
    with graphs_of(parts, cache, light_weights=options.light_weights) as graphs:
        return _graph_runner(name, graphs, device)


def _graph_runner(name: str, graphs: dict[str, Path], device: torch.device) -> Runner:
    return OnnxRunner(graphs, device=device) if name == "onnx" else OpenVinoRunner(graphs)
