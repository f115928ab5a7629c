"""Streams of small batches whose undecided rows are pooled: rows that leave make room for others, and focus batches stay full.

The loop is that of loop.py. Between its halves, rows that stay may wait for rows of other batches at the same look.
"""

import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from glancefocus.errors import BadSetting
from glancefocus.look import Aim, Look, Scene, frames_of, padded_alike, sizes_of
from glancefocus.loop import ExitRule, LookingNetwork, Policy, Recorder, look_closer, policy_for, release
from glancefocus.outcome import Outcome, OutcomeRecorder
from glancefocus.region import Region
from glancefocus.values import BatchSize, WaitingMs, checked

FULL_BATCH = 32
HELD_BATCHES = 8
"""Rows wait until this number of full batches has come after them. A scene is held in memory until its last row has left."""


def look_at_stream(
    net: LookingNetwork,
    scenes: Iterable[Scene | None],
    exit_rule: ExitRule,
    *,
    full_batch: int = FULL_BATCH,
    wait_ms: float | None = None,
    policy: Policy | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Outcome]:
    """The outcome of every scene, in their order; the same as look_until_sure gives for each alone (but for a random score).

    scenes      None among them: nothing has arrived. A live source yields None now and then, so that wait_ms is kept
    full_batch  rows that are computed together, where that many are waiting
    wait_ms     longest time that a row waits for rows of other batches; None: no limit
    policy      chooses where to look; None: see loop.policy_for
    clock       seconds, counting up
    """
    merged = MergedLooks(net, exit_rule, full_batch=full_batch, wait_ms=wait_ms, policy=policy, clock=clock)
    return _outcomes(merged, scenes)


def _outcomes(merged: "MergedLooks", scenes: Iterable[Scene | None]) -> Iterator[Outcome]:
    for scene in scenes:
        if scene is not None:
            merged.add(scene)
        del scene  # so that it is not in memory any more, if all of its rows have left, when the next one is read
        merged.look_on()
        yield from merged.finished()
    merged.look_on(all_rows=True)
    yield from merged.finished()


class PooledLooks:
    """The two halves of the loop, and between them the rows that wait for their next look.

    exit_rule, policy, recorder  as for loop.run_looks
    waiting                      {number of the look that they have taken: rows}
    """

    def __init__(self, net: LookingNetwork, exit_rule: ExitRule, policy: Policy, recorder: Recorder) -> None:
        self.net = net
        self.exit_rule = exit_rule
        self.policy = policy
        self.recorder = recorder
        self.waiting: dict[int, WaitingRows] = {}

    def glance(self, scene: Scene, first_row: int, since: float) -> None:
        """Glance at a scene; rows below their threshold wait for the next look.

        first_row  number of its first row; every row has a number of its own
        since      when it came
        """
        look = self.exit_rule.calibrated(self.net.glance(scene))
        self.settle(replace(look, rows=look.rows + first_row), since, first_row)

    def look_closer(self, number: int, most_rows: float = math.inf) -> int:
        """The next look of the rows that have taken `number` looks; returns how many rows that are.

        most_rows  where more are waiting, those that came first
        """
        taken = self.waiting[number].take(most_rows)
        if not self.waiting[number].rows:
            del self.waiting[number]
        look, aim = taken.joined()
        look = look_closer(self.net, look, aim, self.exit_rule, self.policy)
        self.settle(look, taken.since, taken.first_row)
        return look.count

    def settle(self, look: Look, since: float, first_row: float) -> None:
        """Release the rows that are above their threshold; the others wait."""
        staying = release(look, self.exit_rule, self.policy, self.recorder)
        if staying is not None:
            self.wait(*staying, since, first_row)

    def wait(self, look: Look, aim: Aim | None, since: float, first_row: float) -> None:
        """These rows wait for their next look."""
        self.waiting.setdefault(look.number, WaitingRows()).add(look, aim, since, first_row)


class MergedLooks(PooledLooks):
    """Scenes that are looked at together: `add` one, `look_on`, then take those that are `finished`."""

    recorder: OutcomeRecorder

    def __init__(
        self,
        net: LookingNetwork,
        exit_rule: ExitRule,
        *,
        full_batch: int = FULL_BATCH,
        wait_ms: float | None = None,
        policy: Policy | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        full_batch = checked(BatchSize, full_batch, "full_batch")
        if wait_ms is not None:
            wait_ms = checked(WaitingMs, wait_ms, "wait_ms")
        refuse_deadline(exit_rule.deadline)
        policy = policy_for(net, exit_rule) if policy is None else policy
        super().__init__(net, exit_rule, policy, OutcomeRecorder(exit_rule.looks))
        self.full_batch = full_batch
        self.wait_s = math.inf if wait_ms is None else wait_ms / 1000
        self.clock = clock
        self._counts: deque[int] = deque()
        self._rows = 0

    def add(self, scene: Scene) -> None:
        """Glance at a scene; rows below their threshold wait for the next look."""
        first_row = self._rows
        self._rows += scene.count
        self._counts.append(scene.count)
        self.glance(scene, first_row, self.clock())

    def look_on(self, *, all_rows: bool = False) -> None:
        """The next looks of the rows that need not wait any longer, or of all rows."""
        while (number := self._due(all_rows)) is not None:
            self.look_closer(number)

    def finished(self) -> Iterator[Outcome]:
        """The outcomes of the first scenes, in order, whose rows have all left."""
        while self._counts and self.recorder.finished(self._counts[0]):
            yield self.recorder.take(self._counts.popleft(), aims_first=self.exit_rule.score.needs_aim)

    def _due(self, all_rows: bool) -> int | None:
        """The look whose rows are next: the latest look with a full batch, else the earliest one with late rows, which fills up."""
        full = [number for number, waiting in self.waiting.items() if waiting.rows >= self.full_batch]
        if full:
            return max(full)
        latest, held = self.clock() - self.wait_s, self._rows - HELD_BATCHES * self.full_batch
        late = (n for n, w in self.waiting.items() if all_rows or w.since <= latest or w.first_row < held)
        return min(late, default=None)


@dataclass(frozen=True)
class _Stayed:
    """Rows that stayed after one look; see WaitingRows."""

    look: Look
    aim: Aim | None
    since: float
    first_row: float

    def rows(self, start: int, end: int) -> "_Stayed":
        """Some of these rows only."""
        rows = torch.arange(start, end, device=self.look.rows.device)
        return replace(self, look=self.look.at(rows), aim=None if self.aim is None else self.aim.keep(rows))


class WaitingRows:
    """Rows that wait for the same look, in the order in which they began to wait."""

    def __init__(self, parts: Iterable[_Stayed] = ()) -> None:
        self.parts = list(parts)

    @property
    def rows(self) -> int:
        """How many wait."""
        return sum(part.look.count for part in self.parts)

    @property
    def since(self) -> float:
        """When the first of their scenes came."""
        return min(part.since for part in self.parts)

    @property
    def first_row(self) -> float:
        """The first row of their scenes."""
        return min(part.first_row for part in self.parts)

    def add(self, look: Look, aim: Aim | None, since: float, first_row: float) -> None:
        self.parts.append(_Stayed(look, aim, since, first_row))

    def take(self, most_rows: float) -> "WaitingRows":
        """The first rows, at most `most_rows`, which wait no longer."""
        parts: list[_Stayed] = []
        left = most_rows
        while self.parts and left > 0:
            part = self.parts.pop(0)
            if part.look.count > left:
                self.parts.insert(0, part.rows(int(left), part.look.count))
                part = part.rows(0, int(left))
            parts.append(part)
            left -= part.look.count
        return WaitingRows(parts)

    def joined(self) -> tuple[Look, Aim | None]:
        """One look at all of them, with their next aim if it is known already."""
        aims = [part.aim for part in self.parts if part.aim is not None]
        return join_looks([part.look for part in self.parts]), join_aims(aims) if aims else None


def refuse_deadline(deadline: object | None) -> None:
    """Pooled batches cannot keep a deadline."""
    if deadline is not None:
        raise BadSetting(
            "a deadline is for one batch, but pooled batches wait for each other. Leave the deadline out, or turn pooling off."
        )


@torch.inference_mode()
def without_gradients(outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
    """The same, computed in inference mode; the caller is not in it."""
    yield from outcomes


def join_looks(looks: Sequence[Look]) -> Look:
    """Looks of the same number at several scenes as one look at all of them, in their order."""
    first = looks[0]
    if len(looks) == 1:
        return first
    aims = [look.aim for look in looks if look.aim is not None]
    return Look(
        number=first.number,
        scene=join_scenes([look.scene for look in looks]),
        candidate=join_candidates([(look.candidate, look.count) for look in looks]),
        aim=join_aims(aims) if aims else None,
        known_best=None,
        map=torch.cat(padded_alike([look.map for look in looks])),
        **_joined(looks, leave_out=("map",)),
    )


def join_aims(aims: Sequence[Aim]) -> Aim:
    """The aims of several batches as one, in their order."""
    if len(aims) == 1:
        return aims[0]
    return Aim(**_joined(aims), candidate=join_candidates([(aim.candidate, aim.count) for aim in aims]))


@dataclass(frozen=True)
class JoinedScenes:
    """Scenes one after the other, as one. No image is copied: each scene is asked for its own views."""

    scenes: tuple[Scene, ...]

    def __post_init__(self) -> None:
        frames = sorted({frames_of(scene) for scene in self.scenes})
        if len(frames) != 1:
            raise BadSetting(f"scenes that are joined must have the same number of frames, but these have {frames}.")

    @property
    def count(self) -> int:
        return sum(scene.count for scene in self.scenes)

    @property
    def frames(self) -> int:
        return frames_of(self.scenes[0])

    @property
    def sizes(self) -> Tensor:
        return torch.cat([sizes_of(scene) for scene in self.scenes])

    def view(self, region: Region) -> Tensor:
        regions = region.split([scene.count for scene in self.scenes])
        return torch.cat([scene.view(own) for scene, own in zip(self.scenes, regions, strict=True)])

    def keep(self, rows: Tensor) -> "Scene":
        places = [(number, row) for number, scene in enumerate(self.scenes) for row in range(scene.count)]
        kept = itertools.groupby((places[row] for row in rows.tolist()), key=lambda place: place[0])
        return join_scenes(
            [
                self.scenes[number].keep(torch.tensor([row for _, row in some], device=rows.device))
                for number, some in kept
            ]
        )


def join_scenes(scenes: Sequence[Scene]) -> Scene:
    """These scenes one after the other, as one."""
    flat = [inner for scene in scenes for inner in (scene.scenes if isinstance(scene, JoinedScenes) else [scene])]
    return flat[0] if len(flat) == 1 else JoinedScenes(tuple(flat))


def join_candidates(candidates: Sequence[tuple[int | Tensor, int]]) -> int | Tensor:
    """One candidate where all are the same, else (B,) int64; they are given as (candidate or (B,) candidates, rows)."""
    first = candidates[0][0]
    if all(isinstance(each, int) and each == first for each, _ in candidates):
        return first
    device = next((each.device for each, _ in candidates if isinstance(each, Tensor)), None)
    return torch.cat([torch.as_tensor(each, device=device).expand(count) for each, count in candidates])


def _joined(parts: Sequence[Any], leave_out: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """Every field that is a tensor in all of the parts, and not a candidate, one after the other."""
    names = [name for name in parts[0].__dataclass_fields__ if name not in ("candidate", *leave_out)]
    values = {name: [getattr(part, name) for part in parts] for name in names}
    return {name: torch.cat(v) for name, v in values.items() if all(isinstance(value, Tensor) for value in v)}
