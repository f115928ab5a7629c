"""Counts multiply-adds on the real modules at the real input sizes, without computing anything (on the meta device)."""

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from glancefocus.costs import Costs
from glancefocus.look import Look
from glancefocus.network.build import build
from glancefocus.network.model import GlanceFocus
from glancefocus.settings import NetworkSettings, from_plain, to_plain


def count_macs(compute: Callable[[], Any]) -> int:
    """Multiply-adds of the convolutions, matrix products and attentions in `compute`; torch counts two operations for each."""
    with FlopCounterMode(display=False) as counter:
        compute()
    return int(counter.get_total_flops()) // 2


def count_costs(settings: NetworkSettings) -> Costs:
    """The multiply-adds of each part of the network that the settings describe, for one image, or for all frames of one clip."""
    return count_network(on_meta(settings))


def count_parameters(settings: NetworkSettings) -> int:
    """How many numbers the network learns."""
    net = on_meta(settings)
    encoder = sum(p.numel() for p in net.glance_encoder.parameters())
    return sum(p.numel() for p in net.parameters()) + (0 if settings.shared_encoder else encoder)


def count_backbone(settings: NetworkSettings, sizes: Sequence[tuple[int, int]]) -> dict[tuple[int, int], int | None]:
    """{(height, width): multiply-adds} of the plain backbone, head included, on an image or clip of each size in px.

    None for a size that the backbone does not take.
    """
    encoder = on_meta(settings).focus_encoder
    counted: dict[tuple[int, int], int | None] = {}
    with torch.device("meta"), torch.no_grad(), _WithoutNorms():
        for height, width in sizes:
            images = torch.empty(settings.frames, 3, height, width)
            try:
                counted[height, width] = count_macs(lambda images=images: encoder.own_head(encoder(images).vector))  # type: ignore[misc]
            except (RuntimeError, AssertionError, ValueError):
                counted[height, width] = None
    return counted


@functools.lru_cache(maxsize=1)
def _on_meta_cached(settings: str) -> GlanceFocus:
    with torch.device("meta"):
        return build(from_plain(NetworkSettings, json.loads(settings)))


def on_meta(settings: NetworkSettings) -> GlanceFocus:
    """The network without values, its two encoders as one; made once for the same settings."""
    # One encoder does for counting: both have the same layers. Whoever asks for costs also asks for parameters.
    return _on_meta_cached(json.dumps(to_plain(replace(settings, shared_encoder=True))))


def count_network(net: GlanceFocus) -> Costs:
    """The same for a network that is on the meta device already."""
    settings = net.settings
    with torch.device("meta"), torch.no_grad(), _WithoutNorms():
        encoder, classifier = net.glance_encoder, net.classifier
        frames, view = settings.frames, settings.view
        whole = torch.empty(frames, 3, view.height_px, view.width_px)
        look = net.glance(whole if frames == 1 else whole[None])
        vector = look.features
        encoder_macs = {
            px: count_macs(lambda px=px: encoder(torch.empty(frames, 3, px, px)))  # type: ignore[misc]
            for px in {settings.glance_px, *settings.patch_px}
        }
        answers = [count_macs(lambda: net.answer_glance(vector))]
        memory = look.memory
        for number in range(2, settings.looks + 1):
            answers.append(count_macs(lambda m=memory, n=number: classifier.answer(classifier.remember(vector, m), n)))  # type: ignore[misc]
            memory = classifier.remember(vector, memory)
        policy_macs = count_macs(lambda: net.policy.aim(look)) if settings.looks > 1 else 0
        focus_policy_macs = {px: count_macs(lambda px=px: _aim_after(net, look, px)) for px in settings.patch_px}  # type: ignore[misc]
        own_head_macs = count_macs(lambda: encoder.own_head(vector))
        whole_image_macs = count_macs(lambda: encoder(whole))
    return Costs(
        encoder_macs=encoder_macs[settings.glance_px],
        encoder_with_head_macs=encoder_macs[settings.glance_px] + own_head_macs,
        focus_encoder_macs={px: encoder_macs[px] for px in settings.patch_px},
        policy_macs=policy_macs,
        classifier_macs=tuple(answers),
        backbone_macs=whole_image_macs + own_head_macs,
        focus_policy_macs=focus_policy_macs if settings.looks > 2 else {},
    )


class _WithoutNorms(TorchFunctionMode):
    """Passes batch norms over: they have no products that count, and on the meta device take most of the time."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func is F.batch_norm else func(*args, **(kwargs or {}))


def _aim_after(net: GlanceFocus, look: Look, px: int) -> None:
    """One aim after a patch of this size."""
    side = net.policy.map_sides[px]
    map_ = torch.empty(1, look.map.shape[1], side, side)
    net.policy.aim(replace(look, map=map_, px=px))


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
