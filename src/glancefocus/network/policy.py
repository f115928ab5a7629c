"""Policies choose where to look next: a learnt one, and two baselines to compare it with."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glancefocus.look import Aim, Look, rows_by_candidate
from glancefocus.settings import GLANCE, PolicySettings


class Aimed(NamedTuple):
    """where (B, 2) in [0, 1] as (y, x); memory (B, units) the policy's after this look; value (B,) what the critic expects."""

    where: Tensor
    memory: Tensor
    value: Tensor


class LearntPolicy(nn.Module):
    """The patch proposal network pi: reduces the map, remembers with a GRU, aims with an actor, expects with a critic.

    Its memory travels in the Look. With several candidate views (paper, section 4.2) maps are upsampled to the largest after the
    convolution, and the views of the last and of the next look are given to the GRU one-hot. The maps of a clip's frames are
    reduced by the same convolution, frame by frame, then seen together.

    glance_side  side of the glance's feature map
    sides        the same for each candidate view
    codes        the code of each candidate, and last that of the glance, see NetworkSettings.view_codes
    frames       of a clip; their maps lie one after the other in the map's channels
    run          computes `forward` instead of these modules, where another runner does, see model.Runner
    """

    def __init__(
        self,
        settings: PolicySettings,
        map_channels: int,
        glance_side: int,
        sides: tuple[int, ...],
        codes: tuple[int, ...],
        frames: int = 1,
    ) -> None:
        super().__init__()
        self.glance_side = glance_side
        self.sides = sides
        self.codes = codes
        self.frames = frames
        self.side = max(glance_side, *sides)
        self.several = len(sides) > 1
        code_features = max(codes) + 1 + len(sides) if self.several else 0
        if settings.head == "conv":
            kernel = settings.conv_kernel
            self.conv: nn.Module = nn.Conv2d(
                map_channels // frames, settings.conv_channels, kernel, padding=kernel // 2, bias=False
            )
            self.linears = nn.Sequential(
                nn.Linear(frames * settings.conv_channels * self.side**2, settings.units),
                nn.ReLU(),
            )
        else:
            self.conv = nn.Identity()
            self.linears = nn.Sequential(
                nn.Linear(map_channels * self.side**2, settings.linear_units),
                nn.ReLU(),
                nn.Linear(settings.linear_units, settings.units),
                nn.ReLU(),
            )
        self.gru = nn.GRUCell(settings.units + code_features, settings.units)
        self.actor = nn.Linear(settings.units, 2)
        self.critic = nn.Linear(settings.units, 1)
        self.run: Callable[[Tensor, int, Tensor | None, Tensor | None], Aimed] | None = None

    def aim(self, look: Look, candidate: int | Tensor | None = None) -> Aim:
        """Where to look next, without exploring.

        candidate  number of the next look's candidate view, for all rows or (B,); None: the last one, which is the largest
        """
        following = len(self.sides) - 1 if candidate is None else candidate
        next_code = self.next_code(following, look.map)
        run = self if self.run is None else self.run
        if isinstance(look.candidate, int):
            aimed: Aimed = run(look.map, look.candidate, look.policy_memory, next_code)
        else:
            aimed = self._aim_by_candidate(run, look, look.candidate, next_code)
        return Aim(where=aimed.where, candidate=following, memory=aimed.memory, mean=aimed.where, value=aimed.value)

    def _aim_by_candidate(
        self, run: Callable[..., Aimed], look: Look, candidate: Tensor, next_code: Tensor | None
    ) -> Aimed:
        """The same for rows whose last looks had different views, which are computed view by view."""
        groups = rows_by_candidate(candidate)
        memory, aimed = look.policy_memory, []
        for last, rows in groups:
            side = self.side_of(last)
            own_memory = None if memory is None else memory[rows]
            own_code = None if next_code is None else next_code[rows]
            aimed.append(run(look.map[rows, :, :side, :side], last, own_memory, own_code))
        order = torch.cat([rows for _, rows in groups]).argsort()
        return Aimed(*(torch.cat(parts)[order] for parts in zip(*aimed, strict=True)))

    def forward(self, map_: Tensor, last: int, memory: Tensor | None, next_code: Tensor | None = None) -> Aimed:
        """Where to look after a look at this candidate, or at GLANCE.

        map_       (B, channels, S, S) of the last look
        memory     (B, units) the policy's before it; None at the glance
        next_code  (B, candidates) one-hot: the view of the next look; None where there is only one candidate
        """
        memory = self.remember(self.perceive(map_, last), last, next_code, memory)
        return Aimed(self.mean(memory), memory, self.value(memory))

    def next_code(self, candidate: int | Tensor, like: Tensor) -> Tensor | None:
        """(B, candidates) one-hot: the view of the next look; None where there is only one candidate."""
        return one_hot(candidate, len(self.sides), like) if self.several else None

    def side_of(self, candidate: int) -> int:
        """Side of the feature map of a look at this candidate, or at GLANCE."""
        return self.glance_side if candidate == GLANCE else self.sides[candidate]

    def perceive(self, map_: Tensor, last: int | Tensor) -> Tensor:
        """(B, units) what the policy sees in a map (B, channels, S, S) of looks at a candidate, one for all rows or (B,)."""
        if isinstance(last, Tensor):
            groups = rows_by_candidate(last)
            sides = [self.side_of(each) for each, _ in groups]
            seen = [
                self.perceive(map_[rows, :, :side, :side], each)
                for (each, rows), side in zip(groups, sides, strict=True)
            ]
            return torch.cat(seen)[torch.cat([rows for _, rows in groups]).argsort()]
        rows, channels = map_.shape[0], map_.shape[1] // self.frames
        reduced = self.conv(map_.reshape(rows * self.frames, channels, *map_.shape[2:]))
        if reduced.shape[-1] != self.side or reduced.shape[-2] != self.side:
            reduced = F.interpolate(reduced, size=(self.side, self.side), mode="bilinear", align_corners=False)
        if isinstance(self.conv, nn.Conv2d):
            reduced = reduced.relu()
        perceived: Tensor = self.linears(reduced.reshape(rows, -1))
        return perceived

    def remember(
        self, perceived: Tensor, last: int | Tensor, next_code: Tensor | None, memory: Tensor | None
    ) -> Tensor:
        """(B, units) the policy's memory after this look; with several candidates the GRU also gets the last and the next view."""
        if next_code is not None:
            # GLANCE is -1, and codes[-1] is that of the glance.
            codes = torch.as_tensor(self.codes, device=perceived.device)
            last_code = one_hot(codes[last], max(self.codes) + 1, perceived)
            perceived = torch.cat([perceived, last_code, next_code], dim=1)
        remembered: Tensor = self.gru(perceived, memory)
        return remembered

    def mean(self, memory: Tensor) -> Tensor:
        """(B, 2) in [0, 1]: where the actor aims."""
        where: Tensor = self.actor(memory).sigmoid()
        return where

    def value(self, memory: Tensor) -> Tensor:
        """(B,) what the critic expects of looking on."""
        value: Tensor = self.critic(memory)[:, 0]
        return value


def one_hot(number: int | Tensor, count: int, like: Tensor) -> Tensor:
    """(B, count) with a one at each row's number, in the type and for the rows of another tensor."""
    rows = torch.as_tensor(number, device=like.device).expand(like.shape[0])
    return (rows[:, None] == torch.arange(count, device=like.device)[None]).to(like.dtype)


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
    """The learnt policy, with candidate views drawn at random (paper, section 4.2: in all training stages)."""

    def __init__(
        self, policy: LearntPolicy, generator: torch.Generator | None = None, *, each_row: bool = False
    ) -> None:
        self.policy = policy
        self.generator = generator
        self.each_row = each_row

    def aim(self, look: Look) -> Aim:
        return self.policy.aim(look, draw_candidate(range(len(self.policy.sides)), look, self.generator, self.each_row))


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
