"""Inference backends: run the parts of a network in torch (eager or compiled), ONNX Runtime or OpenVINO."""

import copy
import ctypes
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torch.overrides import TorchFunctionMode

from glancefocus.errors import BadSetting, ForkedThreads, MissingExtra, UnknownName
from glancefocus.machine import watch
from glancefocus.network.parts import Part

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def fold_batch_norms(module: nn.Module, example: tuple[Tensor, ...]) -> int:
    """Fold batch norms into convolutions, in this module itself; returns how many were folded.

    A batch norm is folded if its input is the output of one convolution that nothing else uses. The module is run once on the
    example to find such pairs, so that its code does not matter. An activation inside the batch norm (timm's BatchNormAct2d) stays.
    """
    pairs = _followers(module.eval(), example)
    for convolution, norm in pairs:
        _fold(convolution, norm)
        _replace(module, norm, getattr(norm, "act", None) or nn.Identity())
    return len(pairs)


def count_batch_norms(module: nn.Module) -> int:
    return sum(isinstance(inner, _NORMS) for inner in module.modules())


def _followers(module: nn.Module, example: tuple[Tensor, ...]) -> list[tuple[nn.Module, nn.Module]]:
    """(convolution, batch norm) pairs where the first feeds only the second, and both run once."""
    by_output: dict[int, nn.Module] = {}
    fed: list[tuple[nn.Module, nn.Module, Tensor]] = []
    runs: dict[nn.Module, int] = {}

    def after_convolution(convolution: nn.Module, _inputs: Any, output: Tensor) -> None:
        by_output[id(output)] = convolution
        runs[convolution] = runs.get(convolution, 0) + 1

    def before_norm(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        runs[norm] = runs.get(norm, 0) + 1
        if id(inputs[0]) in by_output:
            fed.append((by_output[id(inputs[0])], norm, inputs[0]))

    hooks = [m.register_forward_hook(after_convolution) for m in module.modules() if isinstance(m, _CONVOLUTIONS)]
    hooks += [m.register_forward_pre_hook(before_norm) for m in module.modules() if isinstance(m, _NORMS)]
    try:
        with torch.no_grad(), _Uses() as uses:
            module(*example)
    finally:
        for hook in hooks:
            hook.remove()
    return [
        (convolution, norm)
        for convolution, norm, between in fed
        if runs[convolution] == 1 and runs[norm] == 1 and uses.count(between) == 1 and _foldable(convolution, norm)
    ]


class _Uses(TorchFunctionMode):
    """Counts how many operations use a tensor. It keeps every tensor, so that no two ever get the same id."""

    def __init__(self) -> None:
        super().__init__()
        self._takers: dict[int, int] = {}
        self._given: list[Tensor] = []

    def count(self, tensor: Tensor) -> int:
        return self._takers.get(id(tensor), 0)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        given = _tensors([result])
        self._given += given
        if given:
            for taken in {id(tensor) for tensor in _tensors([*args, *(kwargs or {}).values()])}:
                self._takers[taken] = self._takers.get(taken, 0) + 1
        return result


def _tensors(values: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            found += _tensors(value)
    return found


def _foldable(convolution: nn.Module, norm: nn.Module) -> bool:
    known = type(norm) in _NORMS or type(norm).__name__ == "BatchNormAct2d"  # another class may do more than normalise
    return known and norm.running_mean is not None and norm.running_var is not None


def _fold(convolution: Any, norm: Any) -> None:
    with torch.no_grad():
        convolution.weight, convolution.bias = fuse_conv_bn_weights(
            convolution.weight,
            convolution.bias,
            norm.running_mean,
            norm.running_var,
            norm.eps,
            norm.weight,
            norm.bias,
        )


def _replace(module: nn.Module, old: nn.Module, new: nn.Module) -> None:
    for parent in module.modules():
        for name, child in list(parent.named_children()):
            if child is old:
                setattr(parent, name, new)


class EagerRunner:
    """Runs copies of the parts; the network that they came from stays as it is."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.modules = ready_modules(parts)

    @torch.inference_mode()
    def __call__(self, part: str, *inputs: Tensor) -> Sequence[Tensor]:
        return as_tuple(self.modules[part](*map(channels_last, inputs)))


class CompiledRunner:
    """Runs the parts of EagerRunner compiled by torch, each when it is first used: minutes before the first answer.

    mode     of torch.compile; reduce-overhead records CUDA graphs on a GPU
    backend  of torch.compile
    """

    MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")

    def __init__(self, parts: Sequence[Part], *, mode: str = "default", backend: str = "inductor") -> None:
        if mode not in self.MODES:
            raise UnknownName("mode of torch.compile", mode, self.MODES, f"There are {', '.join(self.MODES)}.")
        if backend == "inductor" and device_of(parts).type == "cpu":
            check_compiler()
        # Freezing builds the weights into the compiled code.
        options = {**torch._inductor.list_mode_options(mode), "freezing": True} if backend == "inductor" else None
        self.modules = {
            name: torch.compile(module, dynamic=True, backend=backend, options=options)
            for name, module in ready_modules(parts).items()
        }

    @torch.no_grad()  # freezing works only without gradients
    def __call__(self, part: str, *inputs: Tensor) -> Sequence[Tensor]:
        return as_tuple(self.modules[part](*map(channels_last, inputs)))


def ready_modules(parts: Sequence[Part]) -> dict[str, nn.Module]:
    """Copies of the parts' modules with batch norms folded, channels last; the copies share what the parts share."""
    modules = copy.deepcopy([part.module for part in parts])
    device = device_of(parts)
    for part, module in zip(parts, modules, strict=True):
        module.eval().requires_grad_(False)
        fold_batch_norms(module, tuple(tensor.to(device) for tensor in part.example(1)))
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return {part.name: module for part, module in zip(parts, modules, strict=True)}


def device_of(parts: Sequence[Part]) -> torch.device:
    """The device of the weights."""
    return next((p.device for part in parts for p in part.module.parameters()), torch.device("cpu"))


def channels_last(tensor: Tensor) -> Tensor:
    """Images in the layout in which convolutions are fastest; clips and vectors as they are."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def as_tuple(outputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The outputs of a part, also where there is only one."""
    return (outputs,) if isinstance(outputs, Tensor) else outputs


def check_compiler() -> None:
    """Refuse where torch would find no C++ compiler."""
    wanted = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(wanted) is None:
        raise BadSetting(
            f"the runtime 'compile' needs a C++ compiler, and there is no {wanted}. "
            "Install one, name it in the variable CXX, or use the runtime 'onnx'."
        )


class OnnxRunner:
    """One session for each part, on the CPU. Several threads may call it at the same time.

    graphs   {part: file}; int8 graphs are run like any other
    threads  for one part; None: as many as torch uses
    """

    def __init__(self, graphs: Mapping[str, Path], *, threads: int | None = None) -> None:
        self.threads = torch.get_num_threads() if threads is None else threads
        self.lost_threads = False
        self.sessions = {part: open_session(file, self.threads) for part, file in graphs.items()}
        self._inputs = {part: [v.name for v in session.get_inputs()] for part, session in self.sessions.items()}
        self._outputs = {part: [v.name for v in session.get_outputs()] for part, session in self.sessions.items()}
        watch(self)

    def __call__(self, part: str, *inputs: Tensor) -> Sequence[Tensor]:
        if self.lost_threads:
            raise ForkedThreads(self.threads)
        arrays = (tensor.detach().contiguous().numpy() for tensor in inputs)
        given = dict(zip(self._inputs[part], arrays, strict=True))
        return [torch.from_numpy(output) for output in self.sessions[part].run(self._outputs[part], given)]

    def held(self) -> list[Any]:
        return list(self.sessions.values())


def open_session(graph: Path | bytes, threads: int) -> Any:
    """A session for a graph: a file, or the content of one."""
    try:
        import onnxruntime
    except ModuleNotFoundError:
        raise MissingExtra("onnxruntime", "export") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3  # errors
    # Threads spin while they wait for their share of a graph, but not from one run to the next: then they would take the cores
    # that resizing, cropping and the loop need.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    try:
        content = graph if isinstance(graph, bytes) else str(graph)
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        if "pybind11_state" not in type(error).__module__:  # ONNX Runtime's own error classes are not public
            raise
        name = "the graph of all looks" if isinstance(graph, bytes) else graph
        raise BadSetting(
            f"{name} is not a graph that ONNX Runtime can run ({str(error).splitlines()[0]}). Delete it or export it again."
        ) from None


class OpenVinoRunner:
    """One compiled graph for each part, on the CPU, in float32. Several threads may call it at the same time.

    graphs   {part: file}; ONNX, or OpenVINO's own XML
    threads  for one part; None: as many as torch uses
    """

    def __init__(self, graphs: Mapping[str, Path], *, threads: int | None = None) -> None:
        self.threads = torch.get_num_threads() if threads is None else threads
        self.lost_threads = False
        openvino = import_openvino()
        core = openvino.Core()
        hints = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",  # some processors would compute in bfloat16
            "INFERENCE_NUM_THREADS": self.threads,
        }
        self._compiled: dict[str, Any] = {}
        for part, file in graphs.items():
            try:
                self._compiled[part] = core.compile_model(str(file), "CPU", hints)
            except RuntimeError as error:
                raise BadSetting(
                    f"{file} is not a graph that OpenVINO can run ({str(error).strip().splitlines()[-1]}). "
                    "Delete it or export it again."
                ) from None

        # A request holds the inputs and outputs of one call. Those that are not in use wait here for the next call.
        self._idle: dict[str, list[Any]] = {part: [] for part in graphs}
        watch(self)

    def __call__(self, part: str, *inputs: Tensor) -> Sequence[Tensor]:
        if self.lost_threads:
            raise ForkedThreads(self.threads)
        given = [tensor.detach().contiguous().numpy() for tensor in inputs]
        try:
            request = self._idle[part].pop()
        except IndexError:
            request = self._compiled[part].create_infer_request()
        outputs = [torch.from_numpy(output) for output in request.infer(given, share_inputs=True).values()]
        self._idle[part].append(request)
        return outputs

    def __del__(self) -> None:
        self._idle, self._compiled = {}, {}
        _reset_signal_stack()

    def held(self) -> list[Any]:
        return [*self._compiled.values(), *(request for requests in self._idle.values() for request in requests)]


class _SignalStack(ctypes.Structure):
    """stack_t of the C library on Linux."""

    _fields_ = (("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


_NO_SIGNAL_STACK = 2  # SS_DISABLE


def _reset_signal_stack() -> None:
    """Let signals use the ordinary stack of this thread again.

    When OpenVINO frees a compiled graph, it may leave memory that is already freed as the stack for signal handlers. Python's
    handlers use that stack, so the next Ctrl-C would be a segmentation fault.
    """
    if sys.platform == "linux":
        with suppress(Exception):  # Python may be shutting down
            ctypes.CDLL(None).sigaltstack(ctypes.byref(_SignalStack(None, _NO_SIGNAL_STACK, 0)), None)


def import_openvino() -> Any:
    """The package, without the part of it that reports over the network that it is used, and keeps an id in the home folder."""
    modules: Any = sys.modules
    reports = "openvino_telemetry"
    blocked = reports not in modules
    if blocked:
        modules[reports] = None  # as if it were not installed; then OpenVINO has a stub for it
    try:
        import openvino
    except ModuleNotFoundError:
        raise MissingExtra("openvino", "openvino") from None
    finally:
        if blocked:
            del modules[reports]
    return openvino
