"""Policies beside the learnt one: random aims and random views for training, and baselines to compare with."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glancefocus.look import Aim, Look
from glancefocus.loop import Policy
from glancefocus.network.model import GlanceFocus
from glancefocus.network.modules import LearntPolicy


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
    """The learnt policy, with candidate views drawn at random (paper, section 4.2: in all training stages).

    candidates  numbers of the views to draw from; None: all
    """

    def __init__(
        self,
        policy: LearntPolicy,
        generator: torch.Generator | None = None,
        *,
        each_row: bool = False,
        candidates: Sequence[int] | None = None,
    ) -> None:
        self.policy = policy
        self.candidates = range(len(policy.sides)) if candidates is None else candidates
        self.generator = generator
        self.each_row = each_row

    def aim(self, look: Look) -> Aim:
        return self.policy.aim(look, draw_candidate(self.candidates, look, self.generator, self.each_row))


class OneCandidate:
    """The learnt policy, with the same candidate view for every look.

    candidate  number of the view
    """

    def __init__(self, policy: LearntPolicy, candidate: int) -> None:
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

    candidate  number of the view of every look
    """

    ORDER = ((0.5, 0.5), (0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0))

    def __init__(self, candidate: int = 0) -> None:
        self.candidate = candidate

    def aim(self, look: Look) -> Aim:
        place = self.ORDER[(look.number - 1) % len(self.ORDER)]
        where = torch.tensor(place, device=look.logits.device).expand(look.count, 2)
        return Aim(where=where, candidate=self.candidate)
