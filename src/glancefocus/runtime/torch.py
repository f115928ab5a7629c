"""Parts as torch modules made ready for answering: batch norms folded, channels last, no gradients."""

import copy
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torch.overrides import TorchFunctionMode

from glancefocus.errors import BadSetting, UnknownName
from glancefocus.network.parts import Part
from glancefocus.runtime.buckets import in_buckets
from glancefocus.runtime.cuda_graphs import CudaGraphs
from glancefocus.runtime.light_heads import lighten

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def fold_batch_norms(module: nn.Module, example: tuple[Tensor, ...]) -> int:
    """Fold, in this module itself, every batch norm that sees what one convolution gives and nobody else does; returns how many.

    The module is run once on the example to see who follows whom, so nothing needs to be known of its code. What a batch norm does
    besides normalising (timm's BatchNormAct2d holds an activation) stays in its place; others are left as they are.
    """
    pairs = _followers(module.eval(), example)
    for convolution, norm in pairs:
        _fold(convolution, norm)
        _replace(module, norm, getattr(norm, "act", None) or nn.Identity())
    return len(pairs)


def count_batch_norms(module: nn.Module) -> int:
    return sum(isinstance(inner, _NORMS) for inner in module.modules())


def _followers(module: nn.Module, example: tuple[Tensor, ...]) -> list[tuple[nn.Module, nn.Module]]:
    """(convolution, batch norm) wherever the one feeds only the other, and both are used once."""
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
    """Counts how many operations take a tensor and give another. It keeps all of them, so that no two ever have one id."""

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
    """Runs copies of the parts; the network that they came from stays as it is.

    half         on a GPU: weights and arithmetic in half precision; what goes in and out stays float32
    cuda_graphs  on a GPU: each part is recorded once for every bucket of batch sizes and then replayed, without Python in between
    light_heads  int8 weights in the heads, see light_heads.py
    """

    def __init__(
        self, parts: Sequence[Part], *, half: bool = False, cuda_graphs: bool = False, light_heads: bool = False
    ) -> None:
        self.device = device_of(parts)
        check_for_gpu(self.device, half=half, cuda_graphs=cuda_graphs)
        self.half = half
        self.modules = ready_modules(parts)
        if light_heads:
            lighten(self.modules.values())
        if half:
            for module in self.modules.values():
                module.half()
        self.graphs = CudaGraphs(self.modules) if cuda_graphs else None

    @torch.inference_mode()
    def __call__(self, part: str, *inputs: Tensor) -> Sequence[Tensor]:
        if self.half:
            inputs = tuple(tensor.half() for tensor in inputs)
        inputs = tuple(channels_last(tensor) for tensor in inputs)
        if self.graphs is not None:
            graphs = self.graphs
            outputs: Sequence[Tensor] = in_buckets(lambda *filled: graphs(part, *filled), inputs)
        else:
            outputs = as_tuple(self.modules[part](*inputs))
        return [tensor.float() for tensor in outputs] if self.half else outputs


def ready_modules(parts: Sequence[Part]) -> dict[str, nn.Module]:
    """Copies of the parts' modules, which share among them what the parts share, with batch norms folded, channels last."""
    copies = {part.name: module for part, module in zip(parts, _copies(parts), strict=True)}
    device = device_of(parts)
    for part in parts:
        module = copies[part.name].eval().requires_grad_(False)
        fold_batch_norms(module, tuple(tensor.to(device) for tensor in part.example(1)))
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return copies


def _copies(parts: Sequence[Part]) -> list[nn.Module]:
    return copy.deepcopy([part.module for part in parts])


def device_of(parts: Sequence[Part]) -> torch.device:
    """Where the weights are."""
    return next((p.device for part in parts for p in part.module.parameters()), torch.device("cpu"))


def channels_last(tensor: Tensor) -> Tensor:
    """Images laid out as convolutions like them; clips and vectors as they are."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def as_tuple(outputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The outputs of a part, also where there is only one."""
    return (outputs,) if isinstance(outputs, Tensor) else outputs


def check_for_gpu(device: torch.device, **wishes: bool) -> None:
    """Refuse on a CPU what only a GPU can do."""
    for name, wished in wishes.items():
        if wished and device.type != "cuda":
            raise BadSetting(
                f"{name} is for a GPU, but the network is on the {device.type}. Move it to a GPU, or leave {name} out."
            )


MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


class CompiledRunner:
    """Runs the parts of EagerRunner compiled, each when it is first used.

    mode     of torch.compile
    buckets  True: one fixed shape for every power of two, which batches are filled up to; needed for CUDA graphs
             (mode reduce-overhead). False: one kernel for one row, one for any number of rows
    backend  of torch.compile
    """

    def __init__(
        self,
        parts: Sequence[Part],
        *,
        mode: str = "default",
        buckets: bool = False,
        half: bool = False,
        backend: str = "inductor",
    ) -> None:
        if mode not in MODES:
            raise UnknownName("mode of torch.compile", mode, MODES, f"There are {', '.join(MODES)}.")
        device = device_of(parts)
        check_for_gpu(device, half=half)
        if backend == "inductor" and device.type == "cpu":
            check_compiler()
        self.buckets = buckets
        self.half = half
        self.modules = {
            name: torch.compile(
                module.half() if half else module,
                dynamic=not buckets,
                backend=backend,
                options=_options(mode) if backend == "inductor" else None,
            )
            for name, module in ready_modules(parts).items()
        }

    @torch.no_grad()  # weights are built into the code only while nobody asks for gradients
    def __call__(self, part: str, *inputs: Tensor) -> Sequence[Tensor]:
        if self.half:
            inputs = tuple(tensor.half() for tensor in inputs)
        inputs = tuple(channels_last(tensor) for tensor in inputs)
        outputs = in_buckets(self._run(part), inputs) if self.buckets else self._run(part)(*inputs)
        return [tensor.float() for tensor in outputs] if self.half else outputs

    def _run(self, part: str) -> Any:
        def run(*inputs: Tensor) -> Sequence[Tensor]:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
            outputs = as_tuple(self.modules[part](*inputs))
            return (
                [output.clone() for output in outputs] if outputs[0].is_cuda else outputs
            )  # the next run writes over them

        return run


def _options(mode: str) -> dict[str, Any]:
    """What torch.compile makes of a mode, with weights built into the code."""
    return {**torch._inductor.list_mode_options(mode), "freezing": True}


def check_compiler() -> None:
    """Refuse where torch would find no C++ compiler."""
    wanted = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(wanted) is None:
        raise BadSetting(
            f"the runtime 'compile' needs a C++ compiler, and there is no {wanted}. "
            "Install one, name it in the variable CXX, or use the runtime 'onnx'."
        )
