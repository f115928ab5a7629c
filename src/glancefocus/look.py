"""A Look: what one look saw, and everything that the next look needs. No state is kept anywhere else between looks."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from glancefocus.scene import Scene, join_scenes


@dataclass(frozen=True)
class Aim:
    """Where the next look goes.

    where      (B, 2) in [0, 1] as (y, x)
    candidate  number of the candidate view that the next look has, one for all rows or (B,) int64
    memory     (B, units) the policy's memory after aiming; None where the policy has none
    mean       (B, 2) where the policy would aim without exploring; None for policies that are not learnt
    value      (B,) what the critic expects of looking on; None where there is no critic
    log_prob   (B,) of `where`, where it was drawn from a distribution
    """

    where: Tensor
    candidate: int | Tensor
    memory: Tensor | None = None
    mean: Tensor | None = None
    value: Tensor | None = None
    log_prob: Tensor | None = None

    def keep(self, rows: Tensor) -> "Aim":
        """The aim of these rows, (K,) int64 or a mask (B,)."""
        return Aim(
            where=self.where[rows],
            candidate=_rows(self.candidate, rows),
            memory=_rows(self.memory, rows),
            mean=_rows(self.mean, rows),
            value=_rows(self.value, rows),
            log_prob=_rows(self.log_prob, rows),
        )

    @staticmethod
    def join(aims: Sequence["Aim"]) -> "Aim":
        """The aims of several batches as one, in their order."""
        return (
            aims[0]
            if len(aims) == 1
            else Aim(**_joined(aims), candidate=join_candidates([(aim.candidate, aim.count) for aim in aims]))
        )

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self.where.shape[0])


@dataclass(frozen=True)
class Look:
    """One look at the rows that are still being looked at.

    number         1 for the glance, 2 for the first focus, ...
    scene          what is being looked at, these rows only
    rows           (B,) int64 position of each row in the batch that the glance saw
    logits         (B, classes) the answer after this look
    vector         (B, features) the encoder's pooled features of this look; None where the runner does not give them (only the
                   network's own modules do, for training)
    map            (B, channels, S, S) the same, not pooled; a row seen at a smaller size fills the upper left part only. For clips
                   (B, frames x channels, S, S)
    candidate      number of the candidate view that this look had, one for all rows or (B,) int64; GLANCE for the glance
    memory         (B, ·) the classifier's memory, this look included
    policy_memory  (B, units) the policy's memory before it has seen this look; None at the glance
    aim            where this look was aimed; None for the glance
    known_best     `best`, where the runner has computed it already
    """

    number: int
    scene: Scene
    rows: Tensor
    logits: Tensor
    vector: Tensor | None
    map: Tensor
    candidate: int | Tensor
    memory: Tensor
    policy_memory: Tensor | None = None
    aim: Aim | None = None
    known_best: tuple[Tensor, Tensor] | None = None

    @property
    def count(self) -> int:
        """Number of rows that are still looked at."""
        return int(self.logits.shape[0])

    @functools.cached_property
    def best(self) -> tuple[Tensor, Tensor]:
        """(B,) the largest softmax probability, and (B,) int64 the class that has it."""
        if self.known_best is not None:
            return self.known_best
        confidence, answer = self.logits.float().softmax(dim=1).max(dim=1)
        return confidence, answer

    @property
    def confidence(self) -> Tensor:
        """(B,) the largest softmax probability."""
        return self.best[0]

    @property
    def features(self) -> Tensor:
        """`vector`, where it must be there: for looks of the network's own modules."""
        assert self.vector is not None, "only the network's own modules give the vector of a look"
        return self.vector

    def keep(self, mask: Tensor) -> "Look":
        """The same look at the rows where mask (B,) is true; the others are not copied."""
        return self if bool(mask.all()) else self.at(mask.nonzero(as_tuple=True)[0])

    def at(self, rows: Tensor) -> "Look":
        """The same look at these rows, (K,) int64, in this order; a row may be repeated."""
        return replace(
            self,
            scene=self.scene.keep(rows),
            rows=self.rows[rows],
            logits=self.logits[rows],
            vector=_rows(self.vector, rows),
            map=self.map[rows],
            candidate=_rows(self.candidate, rows),
            memory=self.memory[rows],
            policy_memory=_rows(self.policy_memory, rows),
            aim=None if self.aim is None else self.aim.keep(rows),
            known_best=self.known_best and (self.known_best[0][rows], self.known_best[1][rows]),
        )

    @staticmethod
    def join(looks: Sequence["Look"]) -> "Look":
        """Looks of the same number at several scenes as one look at all of them, in their order."""
        first = looks[0]
        if len(looks) == 1:
            return first
        aims = [look.aim for look in looks if look.aim is not None]
        return Look(
            number=first.number,
            scene=join_scenes([look.scene for look in looks]),
            candidate=join_candidates([(look.candidate, look.count) for look in looks]),
            aim=Aim.join(aims) if aims else None,
            known_best=None,
            map=torch.cat(padded_alike([look.map for look in looks])),
            **_joined(looks, leave_out=("map",)),
        )


def rows_by_candidate(candidate: Tensor) -> list[tuple[int, Tensor]]:
    """(candidate, rows) for every candidate view in a batch, so that each is computed as one batch; candidate (B,) int64."""
    return [(each, (candidate == each).nonzero(as_tuple=True)[0]) for each in sorted(set(candidate.tolist()))]


def join_candidates(candidates: Sequence[tuple[int | Tensor, int]]) -> int | Tensor:
    """One candidate where all are the same, else (B,) int64; they are given as (candidate or (B,) candidates, rows)."""
    first = candidates[0][0]
    if all(isinstance(each, int) and each == first for each, _ in candidates):
        return first
    device = next((each.device for each, _ in candidates if isinstance(each, Tensor)), None)
    return torch.cat([torch.as_tensor(each, device=device).expand(count) for each, count in candidates])


def padded_alike(maps: Sequence[Tensor]) -> list[Tensor]:
    """Maps of different sides, padded with zeros to the right and below to the largest."""
    side = max(map_.shape[-1] for map_ in maps)
    short = [side - map_.shape[-1] for map_ in maps]
    return [F.pad(map_, (0, less, 0, less)) if less else map_ for map_, less in zip(maps, short, strict=True)]


def _joined(parts: Sequence[Any], leave_out: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """Every field that is a tensor in all of the parts, and not a candidate, one after the other."""
    names = [name for name in parts[0].__dataclass_fields__ if name not in ("candidate", *leave_out)]
    values = {name: [getattr(part, name) for part in parts] for name in names}
    return {name: torch.cat(v) for name, v in values.items() if all(isinstance(value, Tensor) for value in v)}


def _rows(value: Any, rows: Tensor) -> Any:
    return value[rows] if isinstance(value, torch.Tensor) else value
