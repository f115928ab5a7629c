"""A Look: what one look saw, and everything that the next look needs. Nothing else remembers anything between looks."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from glancefocus.scene import Scene


@dataclass(frozen=True)
class Aim:
    """Where the next look goes.

    where     (B, 2) in [0, 1] as (y, x)
    patch_px  the side of the patch, one for all rows or (B,) int64
    memory    (B, units) the policy's memory after aiming; None where the policy has none
    mean      (B, 2) where the policy would aim without exploring; None where it has no opinion
    value     (B,) what the critic expects of looking on; None where there is no critic
    log_prob  (B,) of `where`, where it was drawn from a distribution
    """

    where: Tensor
    patch_px: int | Tensor
    memory: Tensor | None = None
    mean: Tensor | None = None
    value: Tensor | None = None
    log_prob: Tensor | None = None

    def keep(self, rows: Tensor) -> "Aim":
        return Aim(
            where=self.where[rows],
            patch_px=_rows(self.patch_px, rows),
            memory=_rows(self.memory, rows),
            mean=_rows(self.mean, rows),
            value=_rows(self.value, rows),
            log_prob=_rows(self.log_prob, rows),
        )


@dataclass(frozen=True)
class Look:
    """One look at the rows that are still being looked at.

    number         1 for the glance, 2 for the first focus, ...
    scene          what is being looked at, these rows only
    rows           (B,) int64 position of each row in the batch that the glance saw
    logits         (B, classes) the answer after this look
    vector         (B, features) what the encoder made of this look, pooled
    map            (B, channels, S, S) the same, not pooled; a row seen at a smaller size fills the upper left part only. Of a clip
                   (B, frames x channels, S, S)
    px             side of what this look saw, one for all rows or (B,) int64
    memory         (B, ·) the classifier's memory, this look included
    policy_memory  (B, units) the policy's memory before it has seen this look; None at the glance
    aim            where this look was aimed; None for the glance
    """

    number: int
    scene: Scene
    rows: Tensor
    logits: Tensor
    vector: Tensor
    map: Tensor
    px: int | Tensor
    memory: Tensor
    policy_memory: Tensor | None = None
    aim: Aim | None = None

    @property
    def count(self) -> int:
        return int(self.logits.shape[0])

    @property
    def confidence(self) -> Tensor:
        """(B,) the largest softmax probability."""
        return self.logits.float().softmax(dim=1).amax(dim=1)

    def keep(self, mask: Tensor) -> "Look":
        """The same look at the rows where mask (B,) is true; what is left out is not copied along."""
        return self if bool(mask.all()) else self.at(mask.nonzero(as_tuple=True)[0])

    def at(self, rows: Tensor) -> "Look":
        """The same look at these rows, (K,) int64, in this order; one may be named several times."""
        return replace(
            self,
            scene=self.scene.keep(rows),
            rows=self.rows[rows],
            logits=self.logits[rows],
            vector=self.vector[rows],
            map=self.map[rows],
            px=_rows(self.px, rows),
            memory=self.memory[rows],
            policy_memory=_rows(self.policy_memory, rows),
            aim=None if self.aim is None else self.aim.keep(rows),
        )


def rows_by_size(px: Tensor) -> list[tuple[int, Tensor]]:
    """(size, rows) for every patch size in a batch, so that each is computed in one go; px (B,) int64."""
    sizes = sorted(set(px.tolist()))
    return [(size, (px == size).nonzero(as_tuple=True)[0]) for size in sizes]


def _rows(value: Any, rows: Tensor) -> Any:
    return value[rows] if isinstance(value, torch.Tensor) else value
