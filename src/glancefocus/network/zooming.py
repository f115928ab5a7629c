"""Policies for training and for comparisons, which have the views of a network that zooms where it does. See steps.py."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from glancefocus.look import Aim, Look
from glancefocus.loop import Policy
from glancefocus.network.model import GlanceFocus
from glancefocus.network.policy import OneCandidate, RandomCandidates, RandomPolicy
from glancefocus.network.steps import next_view


class InSteps:
    """Another policy for a zooming network: its looks have the views that those of the network's own policy have."""

    def __init__(self, net: GlanceFocus, policy: Policy) -> None:
        self.net = net
        self.policy = policy

    def aim(self, look: Look) -> Aim:
        return replace(self.policy.aim(look), candidate=next_view(self.net.candidates, look))


def own_aims(
    net: GlanceFocus,
    generator: torch.Generator | None = None,
    *,
    each_row: bool = False,
    candidates: Sequence[int] | None = None,
) -> Policy:
    """The network's policy with the views of training: drawn, see RandomCandidates; a zooming network takes its own."""
    if net.settings.zoom:
        return net.policy
    return RandomCandidates(net.policy, generator, each_row=each_row, candidates=candidates)


def random_aims(
    net: GlanceFocus, generator: torch.Generator, *, each_row: bool = False, candidates: Sequence[int]
) -> Policy:
    """Random aims, with the views of training."""
    drawn = RandomPolicy(candidates, generator, each_row=each_row)
    return InSteps(net, drawn) if net.settings.zoom else drawn


def compared(net: GlanceFocus, candidate: int, policy: Policy | None = None) -> Policy:
    """A policy that is compared with others. All of its looks have this candidate view; those of a zooming network go in steps.

    policy  None: the network's own
    """
    if net.settings.zoom:
        return net.policy if policy is None else InSteps(net, policy)
    return OneCandidate(net.policy, candidate) if policy is None else policy
