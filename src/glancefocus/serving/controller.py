"""The budget controller: under load it moves along the bundle's curve to cheaper thresholds, and back when the load falls.

It contains no threads, no HTTP and no network: its inputs are latencies and queue lengths, its output the thresholds in force.
"""

import itertools
import math
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
_TOO_LATE, _EARLY = 0.8, 0.5  # shares of the limit: above the first the budget falls, below the second it rises
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
    """Pictures that are answered in a second of computing; earlier ones count less and less."""

    pictures: float = 0.0
    seconds: float = 0.0

    def add(self, pictures: int, seconds: float) -> None:
        kept = math.exp(-seconds / _RATE_S)
        self.pictures = kept * self.pictures + pictures
        self.seconds = kept * self.seconds + seconds

    def seconds_for(self, pictures: int) -> float:
        """How long these pictures would take; 0 before anything was measured."""
        return pictures * self.seconds / self.pictures if self.pictures > 0.5 else 0.0


@dataclass
class BudgetController:
    """Keeps the latency of 99 of 100 requests within a limit, as long as the cheapest thresholds can.

    levels      from the most expensive to the cheapest thresholds
    limit_ms    the limit; None: the most expensive thresholds stay in force
    level       the one in force
    """

    levels: Sequence[Stopping]
    limit_ms: float | None = None
    clock: Callable[[], float] = time.perf_counter
    level: int = 0
    throughput: Throughput = field(default_factory=Throughput)
    _changed: float = -math.inf
    _latencies: deque[tuple[float, float]] = field(default_factory=deque)

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
        if came >= self._changed:  # earlier ones waited for pictures with other thresholds
            now = self.clock()
            self._latencies.append((now, 1000 * (now - came)))

    def p99_ms(self) -> float:
        """Latency that 99 of 100 pictures of the last seconds stayed within, since the last change; 0 without any."""
        earliest = self.clock() - _REMEMBERED_S
        while self._latencies and self._latencies[0][0] < earliest:
            self._latencies.popleft()
        ordered = sorted(latency for _, latency in self._latencies)
        return ordered[math.ceil(0.99 * len(ordered)) - 1] if ordered else 0.0

    def adjust(self, pending: int) -> None:
        """Move to a cheaper or to a more expensive level, if it is time to; pending: pictures without an answer."""
        if self.limit_ms is None:
            return
        now = self.clock()
        if now - self._changed < _FALL_S:
            return
        share = max(self.p99_ms(), 1000 * self.throughput.seconds_for(pending)) / self.limit_ms
        if share > _FAR_TOO_LATE:
            self._move_to(len(self.levels) - 1, now)
        elif share > _TOO_LATE:
            self._move_to(self.level + 1, now)
        elif share < _EARLY and now - self._changed >= _RISE_S:
            self._move_to(self.level - 1, now)

    def refuses(self, pending: int) -> bool:
        """Whether a new request should be refused: it would be late even with the cheapest thresholds."""
        if self.limit_ms is None or not self.is_cheapest:
            return False
        return 1000 * self.throughput.seconds_for(pending) > self.limit_ms

    def _move_to(self, level: int, now: float) -> None:
        level = min(max(0, level), len(self.levels) - 1)
        if level != self.level:
            self.level, self._changed = level, now
            self._latencies.clear()
