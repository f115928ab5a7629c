"""The service behind the HTTP server: bundles by name, a thread that computes looks, admission of requests, reloading, stopping.

Everything except the computing thread runs in the event loop. Jobs go to that thread through a queue, answers come back as calls
that the event loop makes.
"""

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from glancefocus.errors import BadImage, GlancefocusError, UnknownName
from glancefocus.loop import Deadline
from glancefocus.serving.decoding import Decoders
from glancefocus.serving.jobs import Job, Stopping
from glancefocus.serving.metrics import Metrics
from glancefocus.serving.requests import PICTURE, Asked, Refused, Upload, steps_of
from glancefocus.serving.scheduler import Answered
from glancefocus.serving.served import LoadBundle, PictureJob, Served, ServiceSettings
from glancefocus.values import Answer

_log = logging.getLogger(__name__)
_IDLE_S = 0.25
_BODIES = 16  # bodies of the largest size that may be in memory at the same time


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
        self.dropped = 0  # accepted requests that were not answered, because the server had to end
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
        decoders = asyncio.create_task(self.decoders.start())
        try:
            for name, load in self.bundles.items():
                self._use(await asyncio.to_thread(Served, name, load, self.settings))
            await decoders
        except Exception as error:
            self.failure = error
            self.on_failure()
        else:
            self._thread.start()
            self.ready = True
        finally:
            decoders.cancel()  # it may still wait if a bundle could not be loaded, or if the server was stopped meanwhile

    @property
    def computes(self) -> bool:
        """Whether the thread runs, or need not run yet."""
        return self._thread.is_alive() or not self.ready

    @property
    def answers(self) -> bool:
        """Whether requests can be answered."""
        return self.ready and self._thread.is_alive()

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
        self._computing = [*self._computing, served]
        if replaced is not None:
            self._forget(replaced)
        self._show(served)

    def _forget(self, served: Served) -> None:
        """A bundle that was replaced computes what it has begun, and is then not in memory any more."""
        if not served.pending and self.served.get(served.name) is not served:
            self._computing = [each for each in self._computing if each is not served]

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
            for served in self.served.values():
                served.controller.adjust(served.pending, served.decoding, full=1.0)
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
        wait_s = max(1, math.ceil(served.controller.wait_s(served.pending, served.decoding)))
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
        full = served.pending + count > self.limits.waiting
        # Here, too: a step may take so long that many requests arrive meanwhile.
        served.controller.adjust(served.pending, served.decoding, 1.0 if full else served.full)
        if full or served.controller.refuses(served.pending, served.decoding):
            raise self._busy(served)
        served.pending += count
        served.requests += 1
        working = [
            asyncio.ensure_future(self._answer(served, upload, asked, stopping, came)) for upload in asked.uploads
        ]
        try:
            async with asyncio.timeout(self.limits.answer_s):
                answers = await asyncio.gather(*working)
        except TimeoutError:
            raise Refused(
                503, "timeout", f"there was no answer within {self.limits.answer_s:g} seconds. Try again later.", 1
            ) from None
        finally:
            for each in working:  # if one has failed, the others are not needed any more
                each.cancel()
            await asyncio.gather(*working, return_exceptions=True)
            served.pending -= count
            served.requests -= 1
            self._forget(served)
            self._show(served)
        if all("error" in answer for answer in answers):
            raise Refused(422, PICTURE, "; ".join(answer["error"] for answer in answers[:3]))
        return answers

    async def _answer(
        self, served: Served, upload: Upload, asked: Asked, stopping: Stopping | None, came: float
    ) -> Answer:
        began = time.perf_counter()
        served.decoding += 1
        try:
            decoded = await self.decoders.decode(upload.source, upload.name, served.bundle.settings, self.limits.pixels)
            served.note_decoded(began, time.perf_counter())
        except BadImage as error:
            self.metrics.refused(PICTURE)
            return {"file": upload.name, "error": str(error)}
        finally:
            served.decoding -= 1
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
            self._adjust_all()
            while busy := self._busy_ones():
                self._adjust_all()
                served = max(busy, key=lambda each: each.scheduler.worth()) if len(busy) > 1 else busy[0]
                try:
                    answered = served.compute(self.metrics)
                except Exception as error:
                    _log.exception("a look of the bundle %s failed", served.name)
                    self._call(self._fail, served.give_up(), error)
                else:
                    if answered:
                        self._call(self._deliver, served, answered)

    def _adjust_all(self) -> None:
        """While a bundle has nothing to do, its budget rises again."""
        for served in self._computing:
            served.adjust()

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
            try:
                self._deliver_group(served, group)
            except Exception as error:  # otherwise its requests would wait until their time is up
                _log.exception("answers of the bundle %s could not be delivered", served.name)
                self._fail(group.jobs, error)

    def _deliver_group(self, served: Served, group: Answered) -> None:
        jobs = [job for job in group.jobs if isinstance(job, PictureJob)]
        answers = group.outcome.answers(max(job.asked.topk for job in jobs))
        now, budget = time.perf_counter(), group.stopping.budget_macs
        for row, (job, answer) in enumerate(zip(jobs, answers, strict=True)):
            if job.answer is None or job.answer.done():
                continue
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
        if self.served.get(served.name) is not served:  # it was replaced
            return
        self.metrics.waiting.labels(served.name).set(served.pending)
        self.metrics.budget.labels(served.name).set(served.controller.stopping.budget_macs or math.nan)
        self.metrics.level.labels(served.name).set(served.controller.level)
