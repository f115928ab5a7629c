"""Policies choose where to look next: a learnt one, and two baselines to compare it with."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glancefocus.look import Aim, Look, rows_by_size
from glancefocus.settings import PolicySettings


class Aimed(NamedTuple):
    """where (B, 2) in [0, 1] as (y, x); memory (B, units) the policy's after this look; value (B,) what the critic expects."""

    where: Tensor
    memory: Tensor
    value: Tensor


class LearntPolicy(nn.Module):
    """The patch proposal network pi: reduces the map, remembers with a GRU, aims with an actor, expects with a critic.

    Its memory travels in the Look. With several patch sizes (paper, section 4.2) maps are upsampled to the largest after the
    convolution, and the sizes of the last and of the next patch are given to the GRU one-hot. The maps of a
    clip's frames are reduced by the same convolution, frame by frame, then seen together.

    map_sides  {px: side of the map} for the glance and for every patch size
    patch_px   the sizes of patches; the glance's size may be one of them
    frames     of a clip; their maps lie one after the other in the map's channels
    run        computes `forward` instead of these modules, where another runner does, see model.Runner
    """

    def __init__(
        self,
        settings: PolicySettings,
        map_channels: int,
        map_sides: dict[int, int],
        patch_px: tuple[int, ...],
        frames: int = 1,
    ) -> None:
        super().__init__()
        self.patch_px = patch_px
        self.frames = frames
        self.map_sides = map_sides
        self.side = max(map_sides.values())
        self.multi_scale = len(patch_px) > 1
        self.sizes = tuple(sorted(map_sides))
        code_features = len(self.sizes) + len(patch_px) if self.multi_scale else 0
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

    def aim(self, look: Look, patch_px: int | Tensor | None = None) -> Aim:
        """Where to look next, without exploring.

        patch_px  side of the next patch, for all rows or (B,); None: the only one there is, or the largest
        """
        next_px = max(self.patch_px) if patch_px is None else patch_px
        next_size = one_hot(next_px, self.patch_px, look.map) if self.multi_scale else None
        run = self if self.run is None else self.run
        if isinstance(look.px, int):
            aimed: Aimed = run(look.map, look.px, look.policy_memory, next_size)
        else:
            aimed = self._aim_by_size(run, look, look.px, next_size)
        return Aim(where=aimed.where, patch_px=next_px, memory=aimed.memory, mean=aimed.where, value=aimed.value)

    def _aim_by_size(self, run: Callable[..., Aimed], look: Look, px: Tensor, next_size: Tensor | None) -> Aimed:
        """The same for rows whose last looks had different sizes, which are computed size by size."""
        groups = rows_by_size(px)
        memory, aimed = look.policy_memory, []
        for size, rows in groups:
            side = self.map_sides[size]
            own_memory = None if memory is None else memory[rows]
            own_size = None if next_size is None else next_size[rows]
            aimed.append(run(look.map[rows, :, :side, :side], size, own_memory, own_size))
        order = torch.cat([rows for _, rows in groups]).argsort()
        return Aimed(*(torch.cat(parts)[order] for parts in zip(*aimed, strict=True)))

    def forward(self, map_: Tensor, px: int, memory: Tensor | None, next_size: Tensor | None = None) -> Aimed:
        """Where to look after a look of this size.

        map_       (B, channels, S, S) of the last look
        memory     (B, units) the policy's before it; None at the glance
        next_size  (B, sizes) one-hot over the patch sizes: that of the next patch; None where there is only one size
        """
        perceived = self.perceive(map_, px)
        if next_size is None:
            memory = self.remember(perceived, px, self.patch_px[0], memory)
        else:
            memory = self.remember_coded(perceived, px, next_size, memory)
        return Aimed(self.mean(memory), memory, self.value(memory))

    def perceive(self, map_: Tensor, px: int | Tensor) -> Tensor:
        """(B, units) what the policy sees in a map (B, channels, S, S) of looks of this size, one for all rows or (B,)."""
        if isinstance(px, Tensor):
            groups = rows_by_size(px)
            sides = [self.map_sides[size] for size, _ in groups]
            seen = [
                self.perceive(map_[rows, :, :side, :side], size)
                for (size, rows), side in zip(groups, sides, strict=True)
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
        self, perceived: Tensor, last_px: int | Tensor, next_px: int | Tensor, memory: Tensor | None
    ) -> Tensor:
        """(B, units) the policy's memory after this look."""
        if self.multi_scale:
            return self.remember_coded(perceived, last_px, one_hot(next_px, self.patch_px, perceived), memory)
        remembered: Tensor = self.gru(perceived, memory)
        return remembered

    def remember_coded(
        self, perceived: Tensor, last_px: int | Tensor, next_size: Tensor, memory: Tensor | None
    ) -> Tensor:
        """The same with several patch sizes; next_size (B, sizes) is one-hot: the size of the next patch."""
        last_size = one_hot(last_px, self.sizes, perceived)
        remembered: Tensor = self.gru(torch.cat([perceived, last_size, next_size], dim=1), memory)
        return remembered

    def mean(self, memory: Tensor) -> Tensor:
        """(B, 2) in [0, 1]: where the actor aims."""
        where: Tensor = self.actor(memory).sigmoid()
        return where

    def value(self, memory: Tensor) -> Tensor:
        """(B,) what the critic expects of looking on."""
        value: Tensor = self.critic(memory)[:, 0]
        return value


def one_hot(px: int | Tensor, sizes: tuple[int, ...], like: Tensor) -> Tensor:
    """(B, sizes) which of the sizes each row has."""
    rows = torch.as_tensor(px, device=like.device).expand(like.shape[0])
    known = torch.tensor(sizes, device=like.device)
    return (rows[:, None] == known[None]).to(like.dtype)


class RandomPolicy:
    """Aims anywhere, uniformly: stage I trains with it, and it is the least that a learnt policy must beat.

    patch_px  one size, or several of which one is drawn at random, see draw_px
    """

    def __init__(
        self, patch_px: int | tuple[int, ...], generator: torch.Generator | None = None, *, each_row: bool = False
    ) -> None:
        self.patch_px = (patch_px,) if isinstance(patch_px, int) else patch_px
        self.generator = generator
        self.each_row = each_row

    def aim(self, look: Look) -> Aim:
        # Drawn on the CPU, so that a seed gives the same aims on every device.
        where = torch.rand(look.count, 2, generator=self.generator).to(look.logits.device)
        return Aim(where=where, patch_px=draw_px(self.patch_px, look, self.generator, self.each_row))


class RandomSizes:
    """The learnt policy with patches of sizes drawn at random (paper, section 4.2: in all training stages)."""

    def __init__(
        self, policy: LearntPolicy, generator: torch.Generator | None = None, *, each_row: bool = False
    ) -> None:
        self.policy = policy
        self.generator = generator
        self.each_row = each_row

    def aim(self, look: Look) -> Aim:
        return self.policy.aim(look, draw_px(self.policy.patch_px, look, self.generator, self.each_row))


def draw_px(
    sizes: tuple[int, ...], look: Look, generator: torch.Generator | None, each_row: bool = False
) -> int | Tensor:
    """The size of the next patch: one for the whole batch, so that it is computed at once, or one for each row.

    With a single size nothing is drawn from the generator.
    """
    if not each_row or len(sizes) == 1:
        return draw_one_px(sizes, generator)
    drawn = torch.randint(len(sizes), (look.count,), generator=generator)
    return torch.tensor(sizes)[drawn].to(look.logits.device)


def draw_one_px(sizes: tuple[int, ...], generator: torch.Generator | None) -> int:
    """One of these sizes."""
    return sizes[0] if len(sizes) == 1 else sizes[int(torch.randint(len(sizes), (1,), generator=generator))]


class CentreCornerPolicy:
    """The centre first, then the four corners, then round again (paper, ablation study)."""

    ORDER = ((0.5, 0.5), (0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0))

    def __init__(self, patch_px: int) -> None:
        self.patch_px = patch_px

    def aim(self, look: Look) -> Aim:
        place = self.ORDER[(look.number - 1) % len(self.ORDER)]
        where = torch.tensor(place, device=look.logits.device).expand(look.count, 2)
        return Aim(where=where, patch_px=self.patch_px)
