"""Parts as torch modules prepared for inference: batch norms folded, channels last, no gradients; optionally compiled."""

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
    """Images in the layout that convolutions prefer; clips and vectors as they are."""
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
