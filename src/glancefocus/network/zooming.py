"""Coarse to fine: which view each look of a zooming network has in training.

Each focus look has the largest view that is clearly smaller than the region of the last look, down to pixels as they are; there it
stays, beside the last one. So the number of steps follows from the size of each image. (A trained network takes its views in their
order, see `view_in_order` in settings.py. In images in which each view is clearly smaller than the one before, that is the same.)
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from glancefocus.look import Aim, Look, sizes_of
from glancefocus.loop import Policy
from glancefocus.network.model import GlanceFocus
from glancefocus.network.policy import OneCandidate, RandomCandidates, RandomPolicy

CLEARLY_SMALLER = 0.75
"""A step goes to a view with at most this share of the last region's side."""


def next_view(net: GlanceFocus, look: Look) -> int | Tensor:
    """The candidate of the next look: one for all rows where it is the same, else (B,)."""
    sizes = sizes_of(look.scene)
    side = net.region_of(look)[:, 2:].amin(dim=1, keepdim=True)
    extents = torch.stack([net.extents_px(each, sizes) for each in range(len(net.candidates))], dim=1)
    px = torch.tensor([view.px for view in net.candidates], dtype=extents.dtype)
    # A view of fewer pixels than the encoder gets shows nothing new, unless there is no other.
    shown = extents >= px
    shown |= ~shown.any(dim=1, keepdim=True)
    smaller = shown & (extents <= CLEARLY_SMALLER * side)
    order = torch.arange(len(px), dtype=extents.dtype) / len(px)  # of equal ones the last, which has the most pixels
    largest = torch.where(smaller, extents + order, -torch.inf).argmax(dim=1)
    finest = torch.where(shown, extents - order, torch.inf).argmin(dim=1)
    chosen = torch.where(smaller.any(dim=1), largest, finest)
    first = int(chosen[0])
    return first if bool((chosen == first).all()) else chosen.to(look.logits.device)


class InSteps:
    """A policy whose looks have these views.

    policy  None: the network's own
    """

    def __init__(self, net: GlanceFocus, policy: Policy | None = None) -> None:
        self.net = net
        self.policy = policy

    def aim(self, look: Look) -> Aim:
        view = next_view(self.net, look)
        return (
            self.net.policy.aim(look, view) if self.policy is None else replace(self.policy.aim(look), candidate=view)
        )


class InOrder:
    """Another policy for a zooming network: its looks have the network's views in their order, as in prediction."""

    def __init__(self, net: GlanceFocus, policy: Policy) -> None:
        self.net = net
        self.policy = policy

    def aim(self, look: Look) -> Aim:
        (view,) = self.net.settings.next_views(look.number)
        return replace(self.policy.aim(look), candidate=view)


def own_aims(
    net: GlanceFocus,
    generator: torch.Generator | None = None,
    *,
    each_row: bool = False,
    candidates: Sequence[int] | None = None,
) -> Policy:
    """The network's policy with the views of training: drawn, see RandomCandidates, or in steps."""
    if net.settings.zoom:
        return InSteps(net)
    return RandomCandidates(net.policy, generator, each_row=each_row, candidates=candidates)


def random_aims(
    net: GlanceFocus, generator: torch.Generator, *, each_row: bool = False, candidates: Sequence[int]
) -> Policy:
    """Random aims, with the views of training."""
    drawn = RandomPolicy(candidates, generator, each_row=each_row)
    return InSteps(net, drawn) if net.settings.zoom else drawn


def compared(net: GlanceFocus, candidate: int, policy: Policy | None = None) -> Policy:
    """A policy that is compared with others. All of its looks have this candidate view; a zooming network takes its views in order.

    policy  None: the network's own
    """
    if net.settings.zoom:
        return net.policy if policy is None else InOrder(net, policy)
    return OneCandidate(net.policy, candidate) if policy is None else policy
