"""Continuous batching, look by look: pictures of many requests share every look, and leave as soon as they are decided.

The loop is that of loop.py, pooled as in stream.py. Here rows leave in any order, every row may have thresholds and a deadline of
its own, and `step` computes one look: that of the pool with the highest priority (`Pool.worth`). Which rows are computed together
never changes their answers. There are no threads here: service.py calls `step` in a thread.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

import torch
from torch import Tensor

from glancefocus.bundle.bundle import Bundle
from glancefocus.bundle.predicting import Facts, Viewed, described, scene_of
from glancefocus.data.images import normalise_small
from glancefocus.look import Aim, Look
from glancefocus.loop import score_named
from glancefocus.outcome import Outcome, OutcomeRecorder
from glancefocus.serving.jobs import Job, RowPolicy, RowRules, Stopping
from glancefocus.stream import FULL_BATCH, PooledLooks, WaitingRows

Batching = Literal["look", "request"]
PATIENCE_MS = 100.0
"""Pictures that have waited for this time count eight times; a shorter deadline counts as time that was waited."""
# Power of the time that was waited: with 1, long looks came so late that the 99 % latency was above that of whole requests.
_AGEING = 3
_FIXED_SHARE = 0.1  # a batch is full when what a look costs beside its rows is at most this share of its time
_EXITS_KEPT = 200  # exit shares are those of about this number of the latest rows
NOT_GLANCED = 0
"""Number of looks of pictures that have not been glanced at."""


@dataclass(frozen=True)
class Answered:
    """Pictures that have stopped in the same step, by the same thresholds: a row of the outcome for each job."""

    outcome: Outcome
    jobs: Sequence[Job]
    stopping: Stopping


@dataclass(frozen=True)
class Step:
    """What one step computed: which look (1 is the glance), of how many rows, in which time."""

    look: int
    rows: int
    seconds: float


@dataclass
class LookTimes:
    """How long one look takes, and how often it is the last one.

    fixed_s  beside its rows
    row_s    for each row
    exits    the share of rows that stop after it
    """

    fixed_s: float = 0.08
    row_s: float = 0.01
    exits: float = 0.5

    @classmethod
    def measured(cls, one_s: float, many_s: float, many: int, exits: float = 0.5) -> "LookTimes":
        """From the seconds of one row and of `many` rows."""
        row_s = max((many_s - one_s) / (many - 1) if many > 1 else one_s, 1e-6)
        return cls(max(0.0, one_s - row_s), row_s, exits)

    def seconds(self, rows: int) -> float:
        """Of a look at this number of rows."""
        return self.fixed_s + rows * self.row_s

    def full_batch(self) -> int:
        """With more rows the time for each would hardly fall, and others would wait for longer."""
        return max(1, math.ceil(self.fixed_s * (1 / _FIXED_SHARE - 1) / self.row_s))

    def stopped(self, rows: int, of: int) -> None:
        """This number of rows have stopped."""
        kept = math.exp(-of / _EXITS_KEPT)
        self.exits = kept * self.exits + (1 - kept) * rows / of


@dataclass(frozen=True)
class Pool:
    """Rows that could be computed next.

    number  of looks that they have taken
    rows    number of rows, at most a full batch
    since   mean time of their arrival
    """

    number: int
    rows: int
    since: float

    def worth(self, now: float, times: LookTimes, patience_s: float) -> float:
        """Answers that are expected for each second of the look; those that have waited for long count more.

        So short looks that answer many pictures come before long ones, until the pictures of these have waited: they count 8 times
        after patience_s, 27 times after twice that. Fuller batches come first if a look has a fixed cost.
        """
        waited = 1 + max(0.0, now - self.since) / patience_s
        return self.rows * times.exits * waited**_AGEING / times.seconds(self.rows)


class _Recorder(OutcomeRecorder):
    """The recorder, which also lists the rows that have left."""

    def __init__(self, looks: int) -> None:
        super().__init__(looks)
        self.left: list[int] = []

    def record(self, look: Look, leaving: Tensor, sure: Tensor) -> None:
        super().record(look, leaving, sure)
        self.left += [row for row, left in zip(look.rows.tolist(), leaving.tolist(), strict=True) if left]


class LookScheduler(PooledLooks):
    """Jobs that are looked at together: `add` some, then `step` until none is `pending`.

    stopping    the thresholds of jobs without their own; it may be replaced at any time, and then also stops rows that wait
    batching    look: a step computes the look with the highest priority. request: a batch of jobs is looked at until all of them
                have stopped, and only then answered (for comparison)
    full_batch  rows that are computed together, at most; fewer where more would not save time (LookTimes.full_batch)
    last_step   what the last step computed; None: nothing was waiting
    times       of every look, beginning with the glance
    """

    recorder: _Recorder

    def __init__(
        self,
        bundle: Bundle,
        stopping: Stopping,
        *,
        batching: Batching = "look",
        full_batch: int = FULL_BATCH,
        patience_ms: float = PATIENCE_MS,
        clock: Callable[[], float] = time.perf_counter,
        times: Sequence[LookTimes] | None = None,
    ) -> None:
        looks = bundle.settings.looks
        score = score_named(bundle.score, torch.Generator().manual_seed(0))
        self._jobs: dict[int, Job] = {}
        rules = RowRules([0.0] * looks, score, bundle.temperatures, None, self._jobs.__getitem__, self._stopping_of)
        super().__init__(bundle.net, rules, RowPolicy(bundle, rules), _Recorder(looks))
        self.bundle = bundle
        self.stopping = stopping
        self.batching = batching
        self.full_batch = full_batch
        self.patience_s = patience_ms / 1000
        self.clock = clock
        self.last_step: Step | None = None
        self.times = list(times or [LookTimes(exits=1 / (looks - number)) for number in range(looks)])
        self._new: deque[Job] = deque()
        self._stopped_by = stopping
        self._rows = 0
        self._left: list[tuple[int, Stopping]] = []

    def add(self, job: Job) -> None:
        """A job that waits for its glance."""
        self._new.append(job)

    @property
    def pending(self) -> int:
        """Jobs without an answer."""
        return len(self._new) + len(self._jobs)

    def jobs(self) -> list[Job]:
        return [*self._new, *self._jobs.values()]

    def pools(self) -> list[Pool]:
        """The rows that could be computed next, by the number of their looks."""
        pools = []
        for number, waiting in self.waiting.items():
            most, rows, times = self._most_rows(number), 0, 0.0
            for part in waiting.parts:
                taken = min(part.look.count, most - rows)
                rows, times = rows + taken, times + taken * part.since
                if rows == most:
                    break
            pools.append(Pool(number, rows, times / rows))
        if self._new:
            new = [job.since(self.patience_s) for job in islice(self._new, self._most_rows(NOT_GLANCED))]
            pools.append(Pool(NOT_GLANCED, len(new), sum(new) / len(new)))
        return pools

    def worth(self) -> float:
        """The priority of the next step; see Pool."""
        now = self.clock()
        return max((self._worth(pool, now) for pool in self.pools()), default=0.0)

    def _worth(self, pool: Pool, now: float) -> float:
        return pool.worth(now, self.times[pool.number], self.patience_s)

    def _most_rows(self, number: int) -> int:
        """Rows with this number of looks that are computed together."""
        return min(self.full_batch, self.times[number].full_batch())

    def next_look(self, now: float) -> int | None:
        """Rows with this number of looks are computed next; None: there are none."""
        pools = self.pools()
        if self.batching == "request":  # one batch at a time; new jobs wait until it has ended
            return max((pool.number for pool in pools), default=None)
        best = max(pools, key=lambda pool: (self._worth(pool, now), pool.number), default=None)
        return None if best is None else best.number

    @torch.inference_mode()
    def step(self) -> list[Answered]:
        """Compute one look, and return the pictures that have stopped."""
        self._new = deque(job for job in self._new if not job.cancelled)
        self._release_waiting()
        released = len(self.recorder.left)
        started = self.clock()
        number = self.next_look(started)
        self.last_step = None
        if number is not None:
            # A batch of whole requests stays together.
            most = math.inf if self.batching == "request" else self._most_rows(number)
            rows = self._glance() if number == NOT_GLANCED else self.look_closer(number, most)
            self.times[number].stopped(len(self.recorder.left) - released, rows)
            self.last_step = Step(number + 1, rows, self.clock() - started)
        return self._answered()

    def wait(self, look: Look, aim: Aim | None, since: float, first_row: float) -> None:
        times = [job.since(self.patience_s) for job in self._jobs_of(look)]
        super().wait(look, aim, sum(times) / len(times), first_row)

    def _stopping_of(self, job: Job) -> Stopping:
        return self.stopping if job.stopping is None else job.stopping

    def _glance(self) -> int:
        jobs = [self._new.popleft() for _ in range(min(self._most_rows(NOT_GLANCED), len(self._new)))]
        first_row = self._rows
        self._rows += len(jobs)
        self._jobs.update(zip(range(first_row, self._rows), jobs, strict=True))
        viewed = [self._normalised(job.viewed) for job in jobs if job.viewed is not None]
        for job in jobs:
            job.viewed = None  # so that images are not in memory any more when their rows have left
        self.glance(scene_of(self.bundle, viewed), first_row, 0.0)
        return len(jobs)

    def _normalised(self, viewed: Viewed) -> Viewed:
        """As Bundle.view gives it; pictures that are waiting are held as uint8, a quarter of the memory."""
        if not isinstance(viewed.image, Tensor) or viewed.image.dtype != torch.uint8:
            return viewed
        return replace(viewed, image=normalise_small(viewed.image, self.bundle.settings.view))

    def _release_waiting(self) -> None:
        """Rows that wait stop now if new thresholds say so, or if their deadline would pass with another look.

        They may have waited for longer than was expected when their last look ended.
        """
        changed, self._stopped_by = self.stopping is not self._stopped_by, self.stopping
        if not changed and not any(job.deadline is not None or job.cancelled for job in self._jobs.values()):
            return

        def may_stop(look: Look) -> bool:
            return any(_is_late(job, look) or (changed and job.stopping is None) for job in self._jobs_of(look))

        for number, waiting in list(self.waiting.items()):
            del self.waiting[number]
            for part in waiting.parts:
                if may_stop(part.look):
                    self.settle(part.look, part.since, part.first_row)
                else:
                    self.waiting.setdefault(number, WaitingRows()).parts.append(part)

    def _jobs_of(self, look: Look) -> list[Job]:
        return [self._jobs[row] for row in look.rows.tolist()]

    def _answered(self) -> list[Answered]:
        self._left += [(row, self._stopping_of(self._jobs[row])) for row in self.recorder.left]
        self.recorder.left = []
        if self.batching == "request" and self.waiting:
            return []
        left, self._left = self._left, []
        groups: dict[int, tuple[Stopping, list[int]]] = {}
        for row, stopping in left:
            groups.setdefault(id(stopping), (stopping, []))[1].append(row)
        answered = [self._described(stopping, rows) for stopping, rows in groups.values()]
        for row, _ in left:  # only now: if something fails above, no job is lost
            del self._jobs[row]
        return answered

    def _described(self, stopping: Stopping, rows: list[int]) -> Answered:
        jobs = [self._jobs[row] for row in rows]
        outcome = self.recorder.take_rows(rows, aims_first=stopping.rule.score.needs_aim)
        outcome = _cut_to(outcome, stopping.rule.looks)
        notes = tuple(job.notes for job in jobs)
        facts = Facts(
            tuple(job.placement for job in jobs if job.placement is not None),
            notes if any(notes) else (),
            torch.tensor([job.image_px for job in jobs]),
            (None,) * len(jobs),
        )
        return Answered(described(outcome, self.bundle, stopping.rule, facts), jobs, stopping)


def _is_late(job: Job, look: Look) -> bool:
    """Whether a job must not take another look."""
    return job.cancelled or (job.deadline is not None and not job.deadline.allows_another(look))


def _cut_to(outcome: Outcome, looks: int) -> Outcome:
    """The outcome with columns for this number of looks, the largest that its rule allows."""
    if outcome.answer_after.shape[1] == looks:
        return outcome
    return replace(
        outcome,
        where=outcome.where[:, : looks - 1],
        candidate=outcome.candidate[:, : looks - 1],
        answer_after=outcome.answer_after[:, :looks],
        confidence_after=outcome.confidence_after[:, :looks],
    )
