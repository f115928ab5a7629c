"""Counts multiply-adds on the real modules at the real input sizes, without computing anything (on the meta device)."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from glancefocus.look import Aim, Look
from glancefocus.network.build import on_meta
from glancefocus.network.model import GlanceFocus
from glancefocus.network.modules import LearntPolicy
from glancefocus.outcome import Costs
from glancefocus.settings import NetworkSettings


def count_macs(compute: Callable[[], Any]) -> int:
    """Multiply-adds of the convolutions, matrix products and attentions in `compute`; torch counts two operations for each."""
    with FlopCounterMode(display=False) as counter:
        compute()
    return int(counter.get_total_flops()) // 2


def count_costs(settings: NetworkSettings) -> Costs:
    """The multiply-adds of each part of the network that the settings describe, for one image, or for all frames of one clip."""
    return count_network(on_meta(settings))


def count_backbone(settings: NetworkSettings, sizes: Sequence[tuple[int, int]]) -> dict[tuple[int, int], int | None]:
    """{(height, width): multiply-adds} of the plain backbone, head included, on an image or clip of each size in px.

    None for a size that the backbone does not take.
    """
    encoder = on_meta(settings).focus_encoder
    counted: dict[tuple[int, int], int | None] = {}
    with torch.device("meta"), torch.no_grad(), WithoutNorms():
        for height, width in sizes:
            images = torch.empty(settings.frames, 3, height, width)
            try:
                counted[height, width] = count_macs(lambda images=images: encoder.own_head(encoder(images).vector))  # type: ignore[misc]
            except (RuntimeError, AssertionError, ValueError):
                counted[height, width] = None
    return counted


def count_network(net: GlanceFocus) -> Costs:
    """The same for a network that is on the meta device already."""
    settings = net.settings
    with torch.device("meta"), torch.no_grad(), WithoutNorms():
        encoder, classifier = net.glance_encoder, net.classifier
        frames, view = settings.frames, settings.view
        whole = torch.empty(frames, 3, view.height_px, view.width_px)
        look = net.glance(whole if frames == 1 else whole[None])
        vector = look.features
        encoder_macs = {
            px: count_macs(lambda px=px: encoder(torch.empty(frames, 3, px, px)))  # type: ignore[misc]
            for px in {settings.glance_px, *(view.px for view in settings.candidates)}
        }

        def answer_look(memory: Tensor, number: int) -> Tensor:
            return classifier.answer(classifier.remember(net.classifier_input(encoder, vector), memory), number)

        answers = [count_macs(lambda: net.answer_glance(vector))]
        memory = look.memory
        for number in range(2, settings.looks + 1):
            answers.append(count_macs(lambda m=memory, n=number: answer_look(m, n)))  # type: ignore[misc]
            memory = classifier.remember(net.classifier_input(encoder, vector), memory)
        learnt = settings.looks > 1 and isinstance(net.policy, LearntPolicy)
        policy_macs = count_macs(lambda: net.policy.aim(look, 0)) if learnt else 0
        focus_policy_macs = {
            view.name: count_macs(lambda each=each: _aim_after(net, look, each))  # type: ignore[misc]
            for each, view in enumerate(settings.candidates)
        }
        own_head_macs = count_macs(lambda: encoder.own_head(vector))
        whole_image_macs = count_macs(lambda: encoder(whole))
    return Costs(
        encoder_macs=encoder_macs[settings.glance_px],
        encoder_with_head_macs=encoder_macs[settings.glance_px] + own_head_macs,
        focus_encoder_macs={view.name: encoder_macs[view.px] for view in settings.candidates},
        policy_macs=policy_macs,
        classifier_macs=tuple(answers),
        backbone_macs=whole_image_macs + own_head_macs,
        focus_policy_macs=focus_policy_macs if learnt and settings.looks > 2 else {},
        view_order=settings.view_order,
    )


class WithoutNorms(TorchFunctionMode):
    """Passes batch norms over: they have no products that count, and on the meta device take most of the time."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func is F.batch_norm else func(*args, **(kwargs or {}))


def _aim_after(net: GlanceFocus, look: Look, candidate: int) -> None:
    """One aim after a look at this candidate."""
    if not isinstance(net.policy, LearntPolicy):
        return
    side = net.policy.side_of(candidate)
    map_ = torch.empty(1, look.map.shape[1], side, side)
    aim = Aim(torch.empty(1, 2), candidate)
    net.policy.aim(replace(look, map=map_, candidate=candidate, aim=aim), candidate)
