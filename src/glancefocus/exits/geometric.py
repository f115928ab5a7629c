"""The paper's way to thresholds (section 3.4): the shares of images that leave after each look are a geometric series."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from glancefocus.exits.curve import Point, Unit, mean_cost
from glancefocus.exits.table import LookTable, Thresholds, check_budget

# The released code's range; below 1 most images leave early, above 1 most leave late. The paper's rule is the half below 1.
RELEASED_RATIOS = tuple(np.arange(1, 40) / 20)
PAPER_RATIOS = tuple(ratio for ratio in RELEASED_RATIOS if ratio < 1)

HALVINGS = (
    24  # ratios of the grid are at most a factor of 4 apart; so many bring that to 1e-7, less than one image moves
)


def geometric_shares(ratio: float, looks: int) -> NDArray[np.float64]:
    """(T,) the share of images that should leave after each look: proportional to ratio^t, summing to 1."""
    shares = ratio ** np.arange(1, looks + 1, dtype=np.float64)
    return np.asarray(shares / shares.sum())


def geometric_thresholds(table: LookTable, ratio: float) -> Thresholds:
    """(T,) thresholds that let the geometric shares leave: at each look the surest of those that are still there.

    A look from which nobody leaves gets 1; the last one gets 0, where everybody does.
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
        # We leave above a threshold, the rule at it or above: the least step below makes both the same.
        thresholds[look] = np.nextafter(surest, np.float32(-1))
        here = here[scores < surest]
    return thresholds


def geometric_curve(table: LookTable, ratios: Sequence[float] = RELEASED_RATIOS) -> list[Thresholds]:
    """Thresholds for every ratio, from cheap to dear."""
    return [geometric_thresholds(table, ratio) for ratio in ratios]


def geometric_within(table: LookTable, budget: float, *, wide: bool = True) -> Thresholds:
    """(T,) the dearest thresholds of the geometric rule whose mean cost on this table is within the budget.

    The ratio is any number, found between those of a grid by bisection; not wide: below 1, as in the paper. Where even the
    smallest ratio costs too much, everybody leaves at the glance.
    """
    check_budget(table, budget)
    return GeometricRule(table).within(budget, wide=wide)


class GeometricRule:
    """The rule on one table, which remembers what every ratio came to: budgets of one curve try many of the same."""

    def __init__(self, table: LookTable) -> None:
        self.table = table
        self._tried: dict[float, tuple[float, float, Thresholds]] = {}
        # At the ends (nearly) everybody leaves at the glance, or nobody before the last look.
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
        """The cheapest thresholds of the grid whose answers are worth as much as the best, but for so much on average."""
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
    """Columns are taken for looks, which those of a tree are not."""
    if table.sizes != 1:
        raise ValueError(f"the table has {table.sizes} patch sizes; take table.fixed_size(size), or a genetic search.")


def cost_and_accuracy(point: Point, unit: Unit) -> tuple[float, float]:
    """What an operating point costs on average, in this unit, and achieves."""
    return mean_cost(point, unit), point["accuracy"]


def cost_and_worth(
    table: LookTable, thresholds: Thresholds, worth: NDArray[np.float64] | None = None
) -> tuple[float, float]:
    """What thresholds cost on average on a table, and what the answers are worth; without a worth, how many are right."""
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
