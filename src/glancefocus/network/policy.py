"""Policies beside the learnt one: random aims and random views for training, and baselines to compare with."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glancefocus.errors import BadSetting
from glancefocus.look import Aim, Look, Scene
from glancefocus.loop import LookingNetwork, Policy
from glancefocus.network.model import GlanceFocus
from glancefocus.network.modules import LearntPolicy
from glancefocus.network.places import UnlearntPolicy, centre_or_corner
from glancefocus.settings import NetworkSettings


class RandomPolicy:
    """Aims anywhere, uniformly: stage I trains with it, and it is the least that a learnt policy must beat.

    candidates  numbers of the candidate views, of which one is drawn, see draw_candidate
    """

    def __init__(
        self, candidates: Sequence[int] = (0,), generator: torch.Generator | None = None, *, each_row: bool = False
    ) -> None:
        self.candidates = candidates
        self.generator = generator
        self.each_row = each_row

    def aim(self, look: Look) -> Aim:
        # Drawn on the CPU, so that a seed gives the same aims on every device.
        where = torch.rand(look.count, 2, generator=self.generator).to(look.logits.device)
        return Aim(where=where, candidate=draw_candidate(self.candidates, look, self.generator, self.each_row))


class RandomCandidates:
    """The network's policy, with candidate views drawn at random (paper, section 4.2: in all training stages).

    candidates  numbers of the views to draw from; None: all
    """

    def __init__(
        self,
        policy: LearntPolicy | UnlearntPolicy,
        generator: torch.Generator | None = None,
        *,
        each_row: bool = False,
        candidates: Sequence[int] | None = None,
    ) -> None:
        self.policy = policy
        self.candidates = policy.candidates if candidates is None else candidates
        self.generator = generator
        self.each_row = each_row

    def aim(self, look: Look) -> Aim:
        return self.policy.aim(look, draw_candidate(self.candidates, look, self.generator, self.each_row))


class OneCandidate:
    """The network's policy, with the same candidate view for every look.

    candidate  number of the view
    """

    def __init__(self, policy: LearntPolicy | UnlearntPolicy, candidate: int) -> None:
        self.policy = policy
        self.candidate = candidate

    def aim(self, look: Look) -> Aim:
        return self.policy.aim(look, self.candidate)


class InTurns:
    """Several policies that take turns: the first one aims the first focus look, the next one the second, and so on."""

    def __init__(self, policies: Sequence[Policy]) -> None:
        self.policies = policies

    def aim(self, look: Look) -> Aim:
        return self.policies[(look.number - 1) % len(self.policies)].aim(look)


def draw_candidate(
    candidates: Sequence[int], look: Look, generator: torch.Generator | None, each_row: bool = False
) -> int | Tensor:
    """The candidate view of the next look: one for the whole batch, so that it is computed at once, or one for each row.

    With a single candidate nothing is drawn from the generator.
    """
    if len(candidates) == 1:
        return candidates[0]
    drawn = torch.randint(len(candidates), (look.count if each_row else 1,), generator=generator)
    return torch.tensor(candidates)[drawn].to(look.logits.device) if each_row else candidates[int(drawn)]


class EvidencePolicy:
    """Aims where the glance encoder finds its evidence for its own answer, then at the next strongest place: needs no training.

    The evidence is the class activation map of the glance: each cell's features times the weights of the class. Cells that a look
    has covered do not count any more (non-maximum suppression). The memory is the evidence that is left, cell by cell.

    candidate  number of the view of every look; None: the last one
    """

    def __init__(self, net: GlanceFocus, candidate: int | None = None) -> None:
        if net.settings.first_view != "glance":
            raise BadSetting(
                f"this policy reads a glance, and the first look of this network is {net.settings.first_words}."
            )
        self.net = net
        self.candidate = len(net.candidates) - 1 if candidate is None else candidate
        view, settings = net.candidates[self.candidate], net.settings.view
        self.share = view.share_of(settings.height_px, settings.width_px)

    def aim(self, look: Look) -> Aim:
        left = self._evidence(look) if look.policy_memory is None else look.policy_memory
        side = math.isqrt(left.shape[1])
        cells = left.reshape(-1, 1, side, side)
        # Odd, so that a window has a cell in its middle.
        reach = max(0, (max(1, round(self.share * side)) - 1) // 2)
        held = F.avg_pool2d(F.pad(cells, [reach] * 4), 2 * reach + 1, stride=1).flatten(1)
        best = held.argmax(dim=1)
        row, column = best // side, best % side
        # The place whose window lies in the middle of a look of this extent.
        centre = (torch.stack([row, column], dim=1) + 0.5) / side
        where = ((centre - self.share / 2) / max(1 - self.share, 1e-6)).clamp(0, 1)
        steps = torch.arange(side, device=cells.device)
        near_row = (steps - row[:, None]).abs() <= reach
        near_column = (steps - column[:, None]).abs() <= reach
        covered = near_row[:, :, None] & near_column[:, None, :]
        return Aim(where=where, candidate=self.candidate, memory=left.masked_fill(covered.flatten(1), 0.0))

    def _evidence(self, look: Look) -> Tensor:
        """(B, cells) evidence for the glance's own answer, not below 0; the energy of the map if the head is not linear in it."""
        head = self.net.glance_encoder.backbone.get_classifier()
        map_ = look.map.float()
        if isinstance(head, nn.Linear) and head.in_features == map_.shape[1]:
            weight = head.weight[look.best[1]].float()
            map_ = map_ * (weight - head.weight.float().mean(dim=0))[:, :, None, None]
        return map_.sum(dim=1).clamp_min(0).flatten(1)


class CentreCornerPolicy:
    """The centre first, then the four corners, then the centre again and so on (paper, ablation study).

    candidate       number of the view of every look
    patches_before  1: the first look saw the centre already
    """

    def __init__(self, candidate: int = 0, patches_before: int = 0) -> None:
        self.candidate = candidate
        self.patches_before = patches_before

    @staticmethod
    def of(settings: NetworkSettings, candidate: int) -> "CentreCornerPolicy":
        """For a network: the corners come first where its first look sees the centre."""
        return CentreCornerPolicy(candidate, 1 if settings.first_view == "centre" else 0)

    def aim(self, look: Look) -> Aim:
        return Aim(where=centre_or_corner(look, self.patches_before), candidate=self.candidate)


class RandomFirstViews:
    """A network without a glance, for training: the places of its random first views are drawn anew for every batch.

    generator  not drawn from: its seed gives that of an own one, so what others draw from it stays the same
    """

    def __init__(self, net: GlanceFocus, generator: torch.Generator) -> None:
        self.net = net
        self.generator = torch.Generator().manual_seed(generator.initial_seed() ^ _FIRST_VIEWS)

    def glance(self, scene: Scene) -> Look:
        return self.net.glance(scene, torch.rand(scene.count, 2, generator=self.generator))

    def focus(self, look: Look, aim: Aim) -> Look:
        return self.net.focus(look, aim)


_FIRST_VIEWS = 0x6C6F6F6B


def learning_network(net: GlanceFocus, generator: torch.Generator) -> LookingNetwork:
    """The network as it is trained: with random first views that are drawn from a generator, where it has such."""
    return RandomFirstViews(net, generator) if net.settings.first_view == "random" else net
