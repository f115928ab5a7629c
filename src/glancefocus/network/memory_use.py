"""How much memory a network takes to be loaded and to look at one picture, worked out on the meta device before it is built."""

from typing import Any

import torch
from torch import Tensor, nn

from glancefocus.network.multiply_adds import count_parameters, on_meta
from glancefocus.settings import NetworkSettings

_FLOAT_BYTES = 4


def weight_bytes(settings: NetworkSettings) -> int:
    """What the weights take in float32."""
    return _FLOAT_BYTES * count_parameters(settings)


def loading_bytes(settings: NetworkSettings) -> int:
    """The least that it takes to load the network and to look once: the weights twice, as they are made and as they are read, and
    what goes into and comes out of the largest layer."""
    largest = max(settings.glance_px, *(settings.patch_px if settings.looks > 1 else ()))
    encoder = on_meta(settings).glance_encoder
    return 2 * weight_bytes(settings) + _FLOAT_BYTES * _largest_layer(encoder, settings.frames, largest)


def _largest_layer(encoder: nn.Module, frames: int, px: int) -> int:
    """How many numbers go into and come out of the layer where they are most."""
    most = 0

    def note(module: nn.Module, given: tuple[Any, ...], made: Any) -> None:
        nonlocal most
        most = max(most, sum(tensor.numel() for tensor in (*given, made) if isinstance(tensor, Tensor)))

    layers = [module for module in encoder.modules() if not list(module.children())]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    try:
        with torch.device("meta"), torch.no_grad():
            encoder(torch.empty(frames, 3, px, px))
    finally:
        for hook in hooks:
            hook.remove()
    return most
