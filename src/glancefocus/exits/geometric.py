"""The paper's rule for thresholds (section 3.4): the shares of images that stop after each look form a geometric series."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from glancefocus.exits.curve import Point, Unit, mean_cost
from glancefocus.exits.table import LookTable, Thresholds, check_budget

# The range of the released code: below 1 most images stop early, above 1 most stop late. The paper's rule is the half below 1.
RELEASED_RATIOS = tuple(np.arange(1, 40) / 20)
PAPER_RATIOS = tuple(ratio for ratio in RELEASED_RATIOS if ratio < 1)

# Ratios of the grid are at most a factor of 4 apart; bisection brings that to 1e-7, which moves less than one image.
HALVINGS = 24


def geometric_shares(ratio: float, looks: int) -> NDArray[np.float64]:
    """(T,) the share of images that should stop after each look: proportional to ratio^t, summing to 1."""
    shares = ratio ** np.arange(1, looks + 1, dtype=np.float64)
    return np.asarray(shares / shares.sum())


def geometric_thresholds(table: LookTable, ratio: float) -> Thresholds:
    """(T,) thresholds with which the geometric shares stop: at each look the highest scores of the images that are left.

    A look after which no image stops gets 1; the last one, after which all do, gets 0.
    """
    must_have_one_size(table)
    thresholds = np.ones(table.looks, dtype=np.float32)
    thresholds[-1] = 0
    here = table.score
    for look, share in enumerate(geometric_shares(ratio, table.looks)[:-1]):
        leaving = int(np.floor(len(table) * share))
        scores = here[:, look]
        if leaving < 1 or leaving > len(scores):
            continue
        surest = np.partition(scores, len(scores) - leaving)[len(scores) - leaving]
        # Images stop above our thresholds, but at or above the rule's: the next smaller number makes both the same.
        thresholds[look] = np.nextafter(surest, np.float32(-1))
        here = here[scores < surest]
    return thresholds


def geometric_curve(table: LookTable, ratios: Sequence[float] = RELEASED_RATIOS) -> list[Thresholds]:
    """Thresholds for every ratio, from cheap to expensive."""
    return [geometric_thresholds(table, ratio) for ratio in ratios]


def geometric_within(table: LookTable, budget: float, *, wide: bool = True) -> Thresholds:
    """(T,) the most expensive thresholds of the geometric rule whose mean cost on this table is within the budget.

    The ratio can be any number; it is found by bisection between those of a grid. wide=False: below 1, as in the paper. If even the
    smallest ratio costs too much, every image stops after the glance.
    """
    check_budget(table, budget)
    return GeometricRule(table).within(budget, wide=wide)


class GeometricRule:
    """The rule on one table. It caches the result of every ratio, because the budgets of a curve try many ratios again."""

    def __init__(self, table: LookTable) -> None:
        self.table = table
        self._tried: dict[float, tuple[float, float, Thresholds]] = {}
        # At the ends, (nearly) every image stops after the glance, or takes every look.
        steps = 1 + math.ceil(math.log(10 * len(table) + 10, 4))
        outer = np.geomspace(2.0, 20.0 * len(table) + 20, steps)
        inner = np.geomspace(1 / (20.0 * len(table) + 20), 0.04, steps)
        below = float(np.nextafter(1.0, 0.0))
        self._paper = [*inner.tolist(), *PAPER_RATIOS, below]
        self._wide = [*self._paper, *RELEASED_RATIOS[len(PAPER_RATIOS) :], *outer.tolist()]

    def within(self, budget: float, *, wide: bool) -> Thresholds:
        grid = self._wide if wide else self._paper
        tried = list(grid)
        too_dear = [number for number, ratio in enumerate(grid) if self._cost(ratio) > budget]
        if too_dear and too_dear[0] > 0:
            low, high = grid[too_dear[0] - 1], grid[too_dear[0]]
            for _ in range(HALVINGS):
                middle = math.sqrt(low * high)
                tried.append(middle)
                low, high = (middle, high) if self._cost(middle) <= budget else (low, middle)
        return self._dearest(tried, budget)

    def cheapest(self, worth: NDArray[np.float64], spare: float, *, wide: bool) -> Thresholds:
        """The cheapest thresholds of the grid whose mean worth is within `spare` of the best."""
        found = [
            (*cost_and_worth(self.table, thresholds, worth), thresholds)
            for thresholds in (self._try(ratio)[2] for ratio in (self._wide if wide else self._paper))
        ]
        best = max(value for _, value, _ in found)
        return min((one for one in found if one[1] >= best - spare), key=lambda one: one[0])[2]

    def _cost(self, ratio: float) -> float:
        return self._try(ratio)[0]

    def _try(self, ratio: float) -> tuple[float, float, Thresholds]:
        """Mean cost, accuracy, thresholds."""
        if ratio not in self._tried:
            thresholds = geometric_thresholds(self.table, ratio)
            self._tried[ratio] = (*cost_and_accuracy(self.table.point(thresholds), self.table.unit), thresholds)
        return self._tried[ratio]

    def _dearest(self, ratios: Iterable[float], budget: float) -> Thresholds:
        fitting = [found for found in map(self._try, ratios) if found[0] <= budget]
        return max(fitting, key=lambda found: found[:2])[2] if fitting else self.table.leave()


def must_have_one_size(table: LookTable) -> None:
    """Refuse tables of several patch sizes: their columns are nodes of a tree, not looks."""
    if table.sizes != 1:
        raise ValueError(f"the table has {table.sizes} patch sizes; take table.fixed_size(size), or a genetic search.")


def cost_and_accuracy(point: Point, unit: Unit) -> tuple[float, float]:
    """The mean cost of an operating point, in this unit, and its accuracy."""
    return mean_cost(point, unit), point["accuracy"]


def cost_and_worth(
    table: LookTable, thresholds: Thresholds, worth: NDArray[np.float64] | None = None
) -> tuple[float, float]:
    """The mean cost of thresholds on a table, and the mean worth of the answers; without worth, their accuracy."""
    if worth is None:
        return cost_and_accuracy(table.point(thresholds), table.unit)
    nodes = table.exits(thresholds)
    at_node = np.bincount(nodes, minlength=len(table.cost))
    return float(table.cost @ at_node / len(table)), float(worth[np.arange(len(table)), nodes].mean())


def planned_exits(shares: Sequence[float], count: int) -> list[int]:
    """The look after which each of `count` images leaves, so that every part of the sequence keeps to these shares."""
    left = np.zeros(len(shares))
    plan = []
    for number in range(1, count + 1):
        look = int(np.argmax(np.asarray(shares) * number - left))
        left[look] += 1
        plan.append(look + 1)
    return plan
