"""The service behind the HTTP server: bundles by name, a thread that computes looks, admission of requests, reloading, stopping.

Everything except the computing thread runs in the event loop. Jobs go to that thread through a queue, answers come back as calls
that the event loop makes.
"""

import asyncio
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from glancefocus.bundle.bundle import Bundle
from glancefocus.bundle.predicting import Viewed
from glancefocus.errors import BadImage, GlancefocusError, UnknownName
from glancefocus.loop import Deadline
from glancefocus.serving.controller import BudgetController, default_stopping, levels_of
from glancefocus.serving.decoding import Decoders
from glancefocus.serving.metrics import Metrics
from glancefocus.serving.requests import Asked, Limits, Refused, Upload, steps_of
from glancefocus.serving.scheduler import PATIENCE_MS, Answered, Batching, Job, LookScheduler, LookTimes, Stopping
from glancefocus.stream import FULL_BATCH
from glancefocus.values import Answer

_log = logging.getLogger(__name__)
_MOST_RULES = 1000
_IDLE_S = 0.25
_BODIES = 16  # bodies of the largest size that may be in memory at the same time
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

    pending  pictures that were accepted and have no answer, those that are being decoded included
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
        self.pending = 0
        self._stepped, self._was_idle = 0.0, True
        self._rules: dict[Any, Stopping] = {}

    def _new_scheduler(self, times: Sequence[LookTimes]) -> LookScheduler:
        return LookScheduler(
            self.bundle,
            self.controller.stopping,
            batching=self.settings.batching,
            full_batch=self.settings.full_batch,
            patience_ms=self.settings.latency_p99_ms or PATIENCE_MS,
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
            self._note_throughput(sum(len(each.jobs) for each in answered), step.seconds)
        for job in (job for each in answered for job in each.jobs):
            self.controller.answered(job.came)
        self.controller.adjust(self.pending)
        return answered

    def _note_throughput(self, answered: int, seconds: float) -> None:
        """Count the time since the last step, too, if pictures were waiting then: decoding may be what takes the time."""
        now = time.perf_counter()
        self.controller.throughput.add(answered, seconds if self._was_idle else now - self._stepped)
        self._stepped, self._was_idle = now, self.pending <= answered

    def give_up(self) -> list[Job]:
        """All jobs, which cannot be answered because the network has failed; a new scheduler is ready for the next ones."""
        jobs = self.scheduler.jobs()
        self.scheduler = self._new_scheduler(self.times)
        return jobs


class Service:
    """Answers requests with one or several bundles; `start` it in an event loop, and `stop` it there.

    bundles   {name: function that loads the bundle}; the first one is used for requests without a name
    decoders  processes that decode pictures, which the caller closes; None: the service starts its own
    """

    def __init__(
        self, bundles: Mapping[str, LoadBundle], settings: ServiceSettings, decoders: Decoders | None = None
    ) -> None:
        self.settings = settings
        self.limits = settings.limits
        self.decoders = decoders or Decoders(settings.decoders, settings.limits.answer_s / 4)
        self._owns_decoders = decoders is None
        self.metrics = Metrics()
        self.bundles = dict(bundles)
        self.served: dict[str, Served] = {}
        self.ready = False
        self.failure: Exception | None = None
        self.on_failure: Callable[[], None] = lambda: None
        self.running = 0
        self.received_bytes = 0
        self._computing: list[Served] = []
        self._wake = threading.Event()
        self._ending = False
        self._thread = threading.Thread(target=self._compute, name="looks", daemon=True)
        self._reloading = asyncio.Lock()

    def start(self) -> None:
        """Start to load the bundles, the processes and the thread; `ready` is set when all is done."""
        self._loop = asyncio.get_running_loop()
        self.loading = asyncio.create_task(self._load())

    async def _load(self) -> None:
        try:
            decoders = asyncio.create_task(self.decoders.start())
            for name, load in self.bundles.items():
                self._use(await asyncio.to_thread(Served, name, load, self.settings))
            await decoders
        except Exception as error:
            self.failure = error
            self.on_failure()
        else:
            self._thread.start()
            self.ready = True

    @property
    def computes(self) -> bool:
        """Whether the thread runs, or need not run yet."""
        return self._thread.is_alive() or not self.ready

    async def stop(self) -> None:
        """Answer what was accepted, and end."""
        self.ready = False
        self.loading.cancel()
        while any(served.pending for served in self._computing):
            await asyncio.sleep(0.01)
        self._ending = True
        self._wake.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)
        if self._owns_decoders:
            self.decoders.close()

    async def reload(self) -> list[str]:
        """Load all bundles again. Requests are answered meanwhile, and those in progress by the bundle that began them."""
        async with self._reloading:
            fresh = [await asyncio.to_thread(Served, name, load, self.settings) for name, load in self.bundles.items()]
            for served in fresh:
                self._use(served)
        return list(self.bundles)

    def reload_soon(self) -> None:
        """The same from a signal handler; if a bundle cannot be loaded, the old ones stay."""

        async def reload() -> None:
            try:
                _log.warning("reloaded %s", ", ".join(await self.reload()))
            except Exception as error:
                _log.error("the bundles were not reloaded, and the old ones stay: %s", error)

        def begin() -> None:
            self._reload = asyncio.ensure_future(reload())  # the event loop itself does not keep it

        self._loop.call_soon_threadsafe(begin)

    def _use(self, served: Served) -> None:
        replaced = self.served.get(served.name)
        self.served[served.name] = served
        # A bundle that was replaced computes what it has begun.
        self._computing = [old for old in self._computing if old.pending or old is not replaced] + [served]
        self._show(served)

    def named(self, name: str | None) -> Served:
        """The bundle of this name; None: the first one."""
        if name is None:
            return next(iter(self.served.values()))
        if name not in self.served:
            error = UnknownName("bundle", name, self.served, f"This server has {', '.join(self.served)}.")
            raise Refused(404, "unknown bundle", str(error))
        return self.served[name]

    def admit(self, body_bytes: int) -> None:
        """Refuse a request when there are too many; call `leave` in the end if this does not."""
        busy = self.running >= self.limits.requests
        if busy or self.received_bytes + body_bytes > _BODIES * self.limits.body_bytes:
            raise self._busy(next(iter(self.served.values())))
        self.running += 1
        self.received_bytes += body_bytes
        self.metrics.running.set(self.running)

    def leave(self, body_bytes: int) -> None:
        """A request that was admitted has ended."""
        self.running -= 1
        self.received_bytes -= body_bytes
        self.metrics.running.set(self.running)

    def _busy(self, served: Served) -> Refused:
        wait_s = max(1, math.ceil(served.controller.throughput.seconds_for(served.pending)))
        return Refused(
            503,
            "busy",
            f"the server is overloaded. Try again in {wait_s} seconds, or send fewer requests.",
            wait_s,
        )

    async def answer(self, asked: Asked, came: float) -> list[Answer]:
        """The answers for the pictures of a request, in their order; a picture that cannot be read has the field error.

        came  when the request arrived, in seconds of time.perf_counter
        """
        served = self.named(asked.bundle)
        stopping = served.stopping_for(asked)
        count = len(asked.uploads)
        if served.pending + count > self.limits.waiting or served.controller.refuses(served.pending):
            raise self._busy(served)
        served.pending += count
        try:
            async with asyncio.timeout(self.limits.answer_s):
                answers = await asyncio.gather(
                    *(self._answer(served, upload, asked, stopping, came) for upload in asked.uploads)
                )
        except TimeoutError:
            raise Refused(
                503, "timeout", f"there was no answer within {self.limits.answer_s:g} seconds. Try again later.", 1
            ) from None
        finally:
            served.pending -= count
            self._show(served)
        if all("error" in answer for answer in answers):
            raise Refused(422, "picture", "; ".join(answer["error"] for answer in answers[:3]))
        return answers

    async def _answer(
        self, served: Served, upload: Upload, asked: Asked, stopping: Stopping | None, came: float
    ) -> Answer:
        began = time.perf_counter()
        try:
            decoded = await self.decoders.decode(upload.source, upload.name, served.bundle.settings, self.limits.pixels)
        except BadImage as error:
            self.metrics.refused("picture")
            return {"file": upload.name, "error": str(error)}
        finally:
            self.metrics.decoding.observe(time.perf_counter() - began)
            self.metrics.restarts.set(self.decoders.restarts)
        limit_ms = asked.deadline_ms
        deadline = None if limit_ms is None else Deadline(time.perf_counter, came, came + limit_ms / 1000)
        job = PictureJob(decoded.viewed(), came, stopping, deadline, asked=asked)
        job.answer = self._loop.create_future()
        served.inbox.put(job)
        self._wake.set()
        try:
            return {**await job.answer, "file": upload.name}
        finally:
            job.cancelled = True  # the client is gone, or the answer is there

    def _compute(self) -> None:
        """The computing thread: always computes the look with the highest priority (`worth`), of all bundles."""
        while not self._ending:
            self._wake.wait(_IDLE_S)
            self._wake.clear()
            for served in self._computing:
                served.controller.adjust(served.pending)  # while there is nothing to do, the budget rises again
            while busy := self._busy_ones():
                served = max(busy, key=lambda each: each.scheduler.worth()) if len(busy) > 1 else busy[0]
                try:
                    answered = served.compute(self.metrics)
                except Exception as error:
                    _log.exception("a look of the bundle %s failed", served.name)
                    self._call(self._fail, served.give_up(), error)
                else:
                    if answered:
                        self._call(self._deliver, served, answered)

    def _busy_ones(self) -> list[Served]:
        for served in self._computing:
            served.take_new()
        return [served for served in self._computing if served.scheduler.pending]

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        self._loop.call_soon_threadsafe(function, *arguments)

    def _fail(self, jobs: Sequence[Job], error: Exception) -> None:
        sentence = str(error) if isinstance(error, GlancefocusError) else "a look could not be computed"
        for job in jobs:
            if isinstance(job, PictureJob) and job.answer is not None and not job.answer.done():
                job.answer.set_exception(Refused(503, "failed look", f"{sentence.rstrip('.')}. Try again later.", 1))

    def _deliver(self, served: Served, groups: Sequence[Answered]) -> None:
        for group in groups:
            jobs = [job for job in group.jobs if isinstance(job, PictureJob)]
            answers = group.outcome.answers(max(job.asked.topk for job in jobs))
            now = time.perf_counter()
            for row, (job, answer) in enumerate(zip(jobs, answers, strict=True)):
                if job.answer is None or job.answer.done():
                    continue
                budget = group.stopping.budget_macs
                answer |= {"top": answer["top"][: job.asked.topk], "budget_macs": budget}
                if job.asked.steps:
                    answer["steps"] = steps_of(group.outcome, row)
                self.metrics.answered(served.name, answer["looks"], answer["cost_macs"], now - job.came, budget)
                job.answer.set_result(answer)

    def show_all(self) -> None:
        """Update the metrics that describe the current state."""
        for served in self.served.values():
            self._show(served)

    def _show(self, served: Served) -> None:
        self.metrics.waiting.labels(served.name).set(served.pending)
        self.metrics.budget.labels(served.name).set(served.controller.stopping.budget_macs or math.nan)
        self.metrics.level.labels(served.name).set(served.controller.level)
