"""One bundle that answers: its scheduler, its budget controller, and the pictures that wait for it."""

import asyncio
import math
import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from glancefocus.bundle.bundle import Bundle
from glancefocus.bundle.predicting import Viewed
from glancefocus.serving.controller import BudgetController, default_stopping, levels_of
from glancefocus.serving.jobs import Job, Stopping
from glancefocus.serving.metrics import Metrics
from glancefocus.serving.requests import Asked, Limits
from glancefocus.serving.scheduler import PATIENCE_MS, Answered, Batching, LookScheduler, LookTimes
from glancefocus.stream import FULL_BATCH
from glancefocus.values import Answer

_MOST_RULES = 1000
LoadBundle = Callable[[], Bundle]


@dataclass(frozen=True)
class ServiceSettings:
    """How requests are computed.

    batching        look or request, see LookScheduler
    full_batch      largest number of pictures in a batch
    latency_p99_ms  limit of the budget controller; None: no controller
    budget_macs     budget of requests without budget, thresholds or looks; None: the bundle's own thresholds
    decoders        processes that decode pictures
    limits          what is accepted
    """

    batching: Batching = "look"
    full_batch: int = FULL_BATCH
    latency_p99_ms: float | None = None
    budget_macs: float | None = None
    decoders: int = 1
    limits: Limits = field(default_factory=Limits)


@dataclass(eq=False)
class PictureJob(Job):
    """A job with the place for its answer.

    asked   the request
    answer  set in the event loop
    """

    asked: Asked = field(default_factory=Asked)
    answer: "asyncio.Future[Answer] | None" = None


class Served:
    """One bundle that answers, with its scheduler and its controller.

    pending   pictures that were accepted and have no answer, those that are being decoded included
    decoding  those of them that are being decoded
    requests  requests that these pictures belong to
    """

    def __init__(self, name: str, load: LoadBundle, settings: ServiceSettings) -> None:
        self.name = name
        self.settings = settings
        self.bundle = load()
        limit_ms = settings.latency_p99_ms
        usual = default_stopping(self.bundle, settings.budget_macs)
        self.controller = BudgetController([usual] if limit_ms is None else levels_of(self.bundle, usual), limit_ms)
        self.times = self._warm_up()
        self.scheduler = self._new_scheduler(self.times)
        self.inbox: queue.SimpleQueue[PictureJob] = queue.SimpleQueue()
        self.pending = self.decoding = self.requests = 0
        self._decoded_at = 0.0
        self._rules: dict[Any, Stopping] = {}

    def _new_scheduler(self, times: Sequence[LookTimes]) -> LookScheduler:
        return LookScheduler(
            self.bundle,
            self.controller.stopping,
            batching=self.settings.batching,
            full_batch=self.settings.full_batch,
            patience_ms=min(PATIENCE_MS, self.settings.latency_p99_ms or PATIENCE_MS),
            times=times,
        )

    def _warm_up(self) -> list[LookTimes]:
        """Look at grey pictures: memory is allocated, graphs are compiled, NaN is detected, and looks are timed."""
        network, most = self.bundle.settings, self.settings.full_batch
        shape = (3, network.view.height_px, network.view.width_px)
        grey = torch.full(shape if network.frames == 1 else (network.frames, *shape), 127, dtype=torch.uint8)
        self.bundle.predict([grey], looks=network.looks)  # raises if it answers NaN
        seconds: dict[tuple[int, int], float] = {}
        for count in (1, 2, most, 1, most):
            scheduler = self._new_scheduler([LookTimes(fixed_s=1e6)] * network.looks)
            every = Stopping(self.bundle.exit_rule(looks=network.looks))
            for _ in range(count):
                scheduler.add(Job(Viewed(grey), 0.0, every))
            while scheduler.pending:
                scheduler.step()
                if (step := scheduler.last_step) is not None:
                    place = (step.look, count)
                    seconds[place] = min(step.seconds, seconds.get(place, math.inf))
        return [
            LookTimes.measured(seconds[look, 1], seconds[look, most], most, 1 / (network.looks - look + 1))
            for look in range(1, network.looks + 1)
        ]

    def stopping_for(self, asked: Asked) -> Stopping | None:
        """The thresholds for the options of a request; None: those in force. Raises BadSetting and BadBudget.

        A budget is an upper limit: if the controller has set a smaller one, that one is used.
        """
        key = (asked.thresholds, asked.looks, asked.budget_macs)
        if key == (None, None, None):
            return None
        if key not in self._rules:
            rule = self.bundle.exit_rule(thresholds=asked.thresholds, looks=asked.looks, budget_macs=asked.budget_macs)
            if len(self._rules) >= _MOST_RULES:  # clients choose the keys
                self._rules.clear()
            self._rules[key] = Stopping(rule, asked.budget_macs)
        in_force = self.controller.stopping.budget_macs
        limited = self.controller.level > 0 and in_force is not None and asked.budget_macs is not None
        return None if limited and (in_force or 0) < (asked.budget_macs or 0) else self._rules[key]

    @property
    def full(self) -> float:
        """How much of the room for pictures and requests is taken; at 1 the next request is refused."""
        limits = self.settings.limits
        return max(self.pending / limits.waiting, self.requests / limits.requests)

    def adjust(self) -> None:
        """Let the controller react to the present load."""
        self.controller.adjust(self.pending, self.decoding, self.full)

    def note_decoded(self, began: float, now: float) -> None:
        """A picture was decoded now; it began, or began to wait for others, at this time."""
        self.controller.decoded.add(1, now - max(began, self._decoded_at))
        self._decoded_at = now

    def take_new(self) -> None:
        """Give the jobs that have arrived to the scheduler."""
        while not self.inbox.empty():
            self.scheduler.add(self.inbox.get())

    def compute(self, metrics: Metrics) -> list[Answered]:
        """Compute one look; returns the pictures that have stopped."""
        self.scheduler.stopping = self.controller.stopping
        answered = self.scheduler.step()
        if (step := self.scheduler.last_step) is not None:
            metrics.looked(self.name, step.look, step.rows, step.seconds)
            self.controller.computed(sum(len(each.jobs) for each in answered), step.seconds)
        for job in (job for each in answered for job in each.jobs):
            self.controller.answered(job.came)
        self.adjust()
        return answered

    def give_up(self) -> list[Job]:
        """All jobs, which cannot be answered because the network has failed; a new scheduler is ready for the next ones."""
        jobs = self.scheduler.jobs()
        self.scheduler = self._new_scheduler(self.times)
        return jobs
