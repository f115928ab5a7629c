"""The budget controller: under load it moves along the bundle's curve to cheaper thresholds, and back when the load falls.

It starts no threads, and contains no HTTP and no network: its inputs are latencies and queue lengths, its output the thresholds in
force.
"""

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from glancefocus.bundle.bundle import Bundle
from glancefocus.exits.curve import Point, accuracy_of, best_thresholds, rising
from glancefocus.loop import frozen
from glancefocus.serving.jobs import Stopping

LEVELS = 16
"""Number of budgets between the most expensive and the cheapest one."""
# Shares of the limit: above the first the budget falls, or requests are refused; below the second it rises.
_TOO_LATE, _EARLY = 0.8, 0.5
_FALL_S, _RISE_S = 0.05, 0.5  # least time between two changes
_FAR_TOO_LATE = 1.5  # above this share of the limit the cheapest level follows at once
_REMEMBERED_S = 2.0
_RATE_S = 1.0


def default_stopping(bundle: Bundle, budget_macs: float | None = None) -> Stopping:
    """The thresholds of requests that do not name any: those for a budget, or the bundle's own."""
    if budget_macs is not None:
        return Stopping(bundle.exit_rule(budget_macs=budget_macs), budget_macs)
    return Stopping(bundle.exit_rule(), _budget_of_own(bundle))


def _budget_of_own(bundle: Bundle) -> float | None:
    """Mean cost of the bundle's own thresholds; None if its curve does not contain them."""
    if bundle.thresholds is None:
        return float(max(bundle.costs.macs_of_tree()))
    own = frozen(bundle.thresholds)
    costs = (point.get("mean_macs") for point in bundle.curve if frozen(point["thresholds"]) == own)
    return next((float(cost) for cost in costs if cost is not None), None)


def levels_of(bundle: Bundle, dearest: Stopping, count: int = LEVELS) -> list[Stopping]:
    """Thresholds from the most expensive to the cheapest ones: every picture stops after the glance. Raises BadBudget.

    Budgets fall by the same factor from level to level.
    """
    least = float(bundle.costs.macs_after_look[0])
    most = dearest.budget_macs or _cost_of_the_best(bundle.curve) or least
    if most <= least:
        return [dearest]
    budgets = [most * (least / most) ** (number / count) for number in range(1, count)] + [least]
    return [dearest, *(Stopping(bundle.exit_rule(budget_macs=budget), budget) for budget in budgets)]


def _cost_of_the_best(curve: Sequence[Point]) -> float | None:
    """Mean cost of the thresholds that best_thresholds chooses."""
    best = best_thresholds([point for point in curve if "mean_macs" in point])
    return next((float(point["mean_macs"]) for point in curve if frozen(point["thresholds"]) == best), None)


def promised_accuracy(curve: Sequence[Point], budget_macs: float) -> float | None:
    """The accuracy that the curve gives for a budget, interpolated; None: it has no accuracies, or the budget is below all."""
    measured = [point for point in curve if "mean_macs" in point and accuracy_of(point) is not None]
    points = rising(sorted(measured, key=lambda point: point["mean_macs"]))
    pairs = [(float(point["mean_macs"]), float(accuracy_of(point) or 0.0)) for point in points]
    if not pairs or budget_macs < pairs[0][0]:
        return None
    for (cost, accuracy), (next_cost, next_accuracy) in itertools.pairwise(pairs):
        if budget_macs < next_cost:
            return accuracy + (next_accuracy - accuracy) * (budget_macs - cost) / (next_cost - cost)
    return pairs[-1][1]


@dataclass
class Throughput:
    """Pictures that are answered, or decoded, in a second of doing that; earlier ones count less and less."""

    pictures: float = 0.0
    seconds: float = 0.0

    def add(self, pictures: int, seconds: float) -> None:
        kept = math.exp(-seconds / _RATE_S)
        self.pictures = kept * self.pictures + pictures
        self.seconds = kept * self.seconds + seconds

    def seconds_for(self, pictures: int) -> float:
        """How long these pictures would take; 0 before anything was measured."""
        return pictures * self.seconds / self.pictures if self.pictures > 0.5 else 0.0

    def expect(self, factor: float) -> None:
        """From now on a picture should take this many times as long; later measurements correct it."""
        self.seconds *= factor


@dataclass
class BudgetController:
    """Keeps the latency of 99 of 100 requests within a limit, as long as the cheapest thresholds can. Any thread may call it.

    levels      from the most expensive to the cheapest thresholds
    limit_ms    the limit; None: the most expensive thresholds stay in force
    level       the one in force
    throughput  of computing, with the thresholds in force
    decoded     of decoding, which does not depend on them
    """

    levels: Sequence[Stopping]
    limit_ms: float | None = None
    clock: Callable[[], float] = time.perf_counter
    level: int = 0
    throughput: Throughput = field(default_factory=Throughput)
    decoded: Throughput = field(default_factory=Throughput)
    _changed: float = -math.inf
    _latencies: deque[tuple[float, float]] = field(default_factory=deque)
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    @property
    def stopping(self) -> Stopping:
        """The thresholds in force."""
        return self.levels[self.level]

    @property
    def is_cheapest(self) -> bool:
        """Whether there are no cheaper thresholds."""
        return self.level == len(self.levels) - 1

    def answered(self, came: float) -> None:
        """A picture that came at this time was answered now."""
        with self._lock:
            if came >= self._changed:  # earlier ones waited for pictures with other thresholds
                now = self.clock()
                self._latencies.append((now, 1000 * (now - came)))

    def computed(self, pictures: int, seconds: float) -> None:
        """A step took this time, and answered this number of pictures."""
        with self._lock:
            self.throughput.add(pictures, seconds)

    def p99_ms(self) -> float:
        """Latency that 99 of 100 pictures of the last seconds stayed within, since the last change; 0 without any."""
        with self._lock:
            earliest = self.clock() - _REMEMBERED_S
            while self._latencies and self._latencies[0][0] < earliest:
                self._latencies.popleft()
            ordered = sorted(latency for _, latency in self._latencies)
        return ordered[math.ceil(0.99 * len(ordered)) - 1] if ordered else 0.0

    def adjust(self, pending: int, decoding: int = 0, full: float = 0.0) -> None:
        """Move to a cheaper or to a more expensive level, if it is time to.

        pending  pictures without an answer; decoding: those of them that are not decoded yet
        full     how much of the room for requests is taken; at 1 the next one is refused, so the cheapest level must be in force
        """
        if self.limit_ms is None:
            return
        with self._lock:
            now = self.clock()
            if full >= 1:
                self._move_to(len(self.levels) - 1, now)
            if now - self._changed < _FALL_S:
                return
            share = max(self.p99_ms() / self.limit_ms, self._wait_share(pending, decoding), full)
            # Cheaper thresholds do not make decoding faster; requests can only be refused, at the cheapest ones.
            if share > _FAR_TOO_LATE or self._wait_share(0, decoding) > _TOO_LATE:
                self._move_to(len(self.levels) - 1, now)
            elif share > _TOO_LATE:
                self._move_to(self.level + 1, now)
            elif share < _EARLY and now - self._changed >= _RISE_S:
                self._move_to(self.level - 1, now)

    def refuses(self, pending: int, decoding: int = 0) -> bool:
        """Whether a new request should be refused: after these pictures it would be late even with the cheapest thresholds.

        While requests are refused, those that are accepted take as long as is allowed here, so it must be less than the limit.
        """
        with self._lock:
            return self.is_cheapest and pending > 0 and self._wait_share(pending + 1, decoding + 1) > _TOO_LATE

    def wait_s(self, pending: int, decoding: int = 0) -> float:
        """The time that these pictures would take; they are decoded while others are computed."""
        after_decoding = self.throughput.seconds_for(1) if decoding else 0.0
        return max(self.throughput.seconds_for(pending), self.decoded.seconds_for(decoding) + after_decoding)

    def _wait_share(self, pending: int, decoding: int) -> float:
        """The same as a share of the limit."""
        return 0.0 if self.limit_ms is None else 1000 * self.wait_s(pending, decoding) / self.limit_ms

    def _move_to(self, level: int, now: float) -> None:
        level = min(max(0, level), len(self.levels) - 1)
        if level == self.level:
            return
        before, after = self.levels[self.level].budget_macs, self.levels[level].budget_macs
        self.level, self._changed = level, now
        self._latencies.clear()
        if before and after:
            # Otherwise the queue would seem as long as before until new times were measured, and the budget would fall on.
            self.throughput.expect(after / before)
