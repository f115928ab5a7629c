"""Folds batch norms into the convolutions before them: one pass over the numbers less, and the same answers."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torch.overrides import TorchFunctionMode

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
