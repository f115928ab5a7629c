"""Light heads: the weights of GRUs and linear layers as int8.

A head uses each of its weights once for an image. At batch 1 it therefore waits for memory: the 9 million weights of the paper's
classifier do not fit a core's cache as float32, and a quarter of the bytes is a fraction of the time. Every row of a matrix has
its own scale, so that no weight moves by more than 1/127 of the largest in its row.
"""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glancefocus.network.encoder import Encoder

_FEW_ROWS = 4  # up to here the time goes into reading weights; beyond, into arithmetic, which float32 does faster
_BLOCK = 32  # torch's int8 product reads whole blocks of a row, also past its end


class LightLinear(nn.Module):
    """A linear layer with int8 weights.

    For many rows it computes with the same rounded weights as float32, so that an answer does not depend on the batch that it is in
    by more than the rounding of arithmetic (bfloat16 for few rows).
    """

    packed: Tensor
    scale: Tensor
    weight: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        scale = (weight.abs().amax(dim=1) / 127).clamp(min=torch.finfo(torch.float32).tiny).bfloat16()
        rounded = (weight / scale.float()[:, None]).round().clamp(-127, 127)
        self.missing = -weight.shape[1] % _BLOCK
        self.register_buffer("packed", F.pad(rounded, (0, self.missing)).to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("weight", rounded * scale.float()[:, None])
        self.register_buffer("bias", None if bias is None else bias.detach())

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.shape[0] > _FEW_ROWS:
            return F.linear(inputs, self.weight, self.bias)
        filled = F.pad(inputs.bfloat16(), (0, self.missing))
        product: Tensor = torch.ops.aten._weight_int8pack_mm(filled, self.packed, self.scale).float()
        return product if self.bias is None else product + self.bias


class LightGRUCell(nn.Module):
    """A GRU cell with int8 weights; the arithmetic of nn.GRUCell."""

    def __init__(self, cell: nn.GRUCell) -> None:
        super().__init__()
        self.seeing = LightLinear(cell.weight_ih, cell.bias_ih)
        self.remembering = LightLinear(cell.weight_hh, cell.bias_hh)

    def forward(self, inputs: Tensor, memory: Tensor | None = None) -> Tensor:
        if memory is None:
            assert self.remembering.bias is not None
            remembered, kept = self.remembering.bias.expand(inputs.shape[0], -1), torch.zeros(())
        else:
            remembered, kept = self.remembering(memory), memory
        see_reset, see_update, see_new = self.seeing(inputs).chunk(3, dim=1)
        keep_reset, keep_update, keep_new = remembered.chunk(3, dim=1)
        new = torch.tanh(see_new + torch.sigmoid(see_reset + keep_reset) * keep_new)
        update = torch.sigmoid(see_update + keep_update)
        return new + update * (kept - new)


def head_layers(module: nn.Module) -> dict[str, nn.GRUCell | nn.Linear]:
    """{name: layer} of the heads in a part: every GRU and linear layer outside of the encoder, and the encoder's own head."""
    inside: set[nn.Module] = set()
    for encoder in (inner for inner in module.modules() if isinstance(inner, Encoder)):
        own = encoder.backbone.get_classifier()
        inside |= set(encoder.modules()) - set(own if isinstance(own, tuple) else [own])
    return {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, (nn.GRUCell, nn.Linear)) and layer not in inside
    }


def lighten(modules: Iterable[nn.Module]) -> int:
    """Replace the layers of every head in these modules, which may share them; returns how many were replaced."""
    done: dict[nn.Module, nn.Module] = {}
    for module in modules:
        for name, layer in head_layers(module).items():
            if layer not in done:
                done[layer] = light(layer)
            parent, _, own_name = name.rpartition(".")
            setattr(module.get_submodule(parent), own_name, done[layer])
    return len(done)


def light(layer: nn.GRUCell | nn.Linear) -> nn.Module:
    """The same layer with int8 weights."""
    with torch.no_grad():
        return LightGRUCell(layer) if isinstance(layer, nn.GRUCell) else LightLinear(layer.weight, layer.bias)
