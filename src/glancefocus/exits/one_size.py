"""Thresholds for one candidate view: the paper's geometric rule (section 3.4), and a direct search for the highest accuracy."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from glancefocus.exits.table import (
    LookTable,
    Thresholds,
    Worth,
    check_budget,
    cost_and_accuracy,
    cost_and_worth,
    must_have_one_size,
)

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


def planned_exits(shares: Sequence[float], count: int) -> list[int]:
    """The look after which each of `count` images leaves, so that every part of the sequence keeps to these shares."""
    left = np.zeros(len(shares))
    plan = []
    for number in range(1, count + 1):
        look = int(np.argmax(np.asarray(shares) * number - left))
        left[look] += 1
        plan.append(look + 1)
    return plan


CELLS = 2**16  # combinations of cuts in one grid, at most
CELLS_AN_IMAGE = 16  # with few images a finer grid than this separates no more of them
FEWEST_CELLS = 2**12
COARSEST = 6  # a grid with fewer cuts for each look is not used
ROUNDS = 8  # later rounds spend a little more of the budget, but accuracy no longer rises

Cuts = NDArray[np.int64]
"""(T - 1,) for each look but the last, the smallest rank that stops; one more than the largest rank if no image stops."""


def direct_within(table: LookTable, budget: float, worth: Worth | None = None, *, spare: float = 0.0) -> Thresholds:
    """(T,) the most accurate thresholds whose mean cost on this table is within the budget.

    On this table they are never worse than those of the geometric rule, because the search starts from those. Among equally
    accurate thresholds it takes the most expensive: on new images, more looks are right more often.

    worth  (N, T) what is maximised instead of the number of right answers, see `expected_correct`
    spare  accuracy that may be given up to spend less, such as 0.001 for a tenth of a point
    """
    (best,), search = search_curve(table, [budget], worth)
    return search.thresholds(search.cheapen(best, best.right - spare * len(table)).cuts if spare > 0 else best.cuts)


def direct_curve(table: LookTable, budgets: Sequence[float], worth: Worth | None = None) -> list[Thresholds]:
    """The most accurate thresholds within each budget; a larger budget is never less accurate."""
    found, search = search_curve(table, budgets, worth)
    return [search.thresholds(best.cuts) for best in found]


def search_curve(table: LookTable, budgets: Sequence[float], worth: Worth | None) -> tuple[list["Found"], "CutSearch"]:
    """The best cuts within each budget, and the search that found them."""
    for budget in budgets:
        check_budget(table, budget)
    search, rule = CutSearch(table, worth), GeometricRule(table)
    grid = search.evaluate([search.spread(look) for look in range(table.looks - 1)])
    found: dict[float, Found] = {}
    best = search.at(search.cuts(table.leave()))
    for budget in sorted({min(budget, table.dearest) for budget in budgets}):
        limit = search.limit(budget)
        rules = [search.at(search.cuts(rule.within(budget, wide=wide))) for wide in (True, False)]
        starts = {tuple(start.cuts): start for start in (best, *rules, grid.best(limit)) if start}.values()
        improved = [search.improve(start, limit) for start in starts if start.cost <= limit]
        best = max((best, *rules, *improved))
        found[budget] = best
    return [found[min(budget, table.dearest)] for budget in budgets], search


@dataclass(frozen=True)
class Found:
    """Cuts, and what they achieve; the better of two is more accurate, or as accurate and more expensive.

    right  number of right answers, or the sum of their worth
    cost   mean cost
    """

    right: float
    cost: float
    cuts: Cuts

    def __lt__(self, other: "Found") -> bool:
        return (self.right, self.cost) < (other.right, other.cost)


@dataclass(frozen=True)
class Grid:
    """Every combination of some cuts of each look.

    candidates   the cuts of each look, ascending
    right, cost  one axis for each look: number of right answers, and mean cost
    """

    candidates: list[Cuts]
    right: NDArray[np.float64]
    cost: NDArray[np.float64]

    def best(self, limit: float) -> Found | None:
        """The best combination that costs at most the limit; None if there is none."""
        right = np.where(self.cost <= limit, self.right, -1)
        most = right.max()
        if most < 0:
            return None
        place = np.unravel_index(np.argmax(np.where(right == most, self.cost, -np.inf)), right.shape)
        cuts = np.asarray([own[at] for own, at in zip(self.candidates, place, strict=True)], dtype=np.int64)
        return Found(float(most), float(self.cost[place]), cuts)

    def cheapest(self, least: float) -> Found | None:
        """The cheapest combination with at least this number of right answers; None if there is none."""
        cost = np.where(self.right >= least, self.cost, np.inf)
        place = np.unravel_index(np.argmin(cost), cost.shape)
        if cost[place] == np.inf:
            return None
        cuts = np.asarray([own[at] for own, at in zip(self.candidates, place, strict=True)], dtype=np.int64)
        return Found(float(self.right[place]), float(self.cost[place]), cuts)


class CutSearch:
    """Searches among the cuts of one table."""

    def __init__(self, table: LookTable, worth: Worth | None = None) -> None:
        must_have_one_size(table)
        self.table = table
        self.worth = (table.correct if worth is None else worth).T.astype(np.float64)
        ranked = [np.unique(column, return_inverse=True) for column in table.score.T[:-1]]
        self.scores = [scores for scores, _ in ranked]  # the score of each rank, for each look
        self.rank = [rank.reshape(-1) for _, rank in ranked]  # the rank of each image, for each look
        self.gain = np.diff(self.worth, axis=0)
        self.step = np.diff(table.cost)
        self.cells = int(np.clip(CELLS_AN_IMAGE * len(table), FEWEST_CELLS, CELLS))
        self.groups = groups_of(table.looks - 1, self.cells)

    def limit(self, budget: float) -> float:
        """What a mean cost is compared with, so that rounding cannot bring the table's own sum above the budget."""
        if budget >= self.table.dearest:
            return np.inf
        whole = bool(np.all(self.table.cost % 1 == 0))  # sums of whole numbers are exact
        return budget if whole else budget * (1 - 1e-12)

    def cuts(self, thresholds: Thresholds) -> Cuts:
        pairs = zip(self.scores, thresholds[:-1], strict=True)
        return np.asarray([np.searchsorted(scores, threshold, side="right") for scores, threshold in pairs], np.int64)

    def thresholds(self, cuts: Cuts) -> Thresholds:
        """(T,) halfway between the lowest score that stops and the highest that goes on.

        1 where no image stops; -1 for all looks after the one at which the last image stops.
        """
        thresholds = np.full(self.table.looks, -1, dtype=np.float32)
        thresholds[-1] = 0
        here = np.ones(len(self.table), dtype=np.bool_)
        for look, cut in enumerate(cuts):
            leaves = here & (self.rank[look] >= cut)
            here &= ~leaves
            if not here.any():
                break
            last = self.rank[look][leaves].min(initial=len(self.scores[look]))
            none_leaves = last == len(self.scores[look])
            first = self.scores[look][self.rank[look][here].max()]
            thresholds[look] = 1 if none_leaves else between(first, self.scores[look][last])
        return thresholds

    def spread(self, look: int) -> Cuts:
        """As many cuts as a grid of all looks can hold, which divide the images evenly; all cuts if it can hold them."""
        count, top = grid_side(self.table.looks - 1, self.cells), len(self.scores[look])
        if top < count:
            return np.arange(top + 1)
        ranks = np.sort(self.rank[look])[np.linspace(0, len(self.table) - 1, count - 1).astype(np.int64)]
        return np.unique(np.append(ranks, top))

    def around(self, look: int, cut: int, count: int) -> Cuts:
        """Cuts on both sides of this one, dense nearby and sparse far away; all cuts if there are no more than `count`."""
        top = len(self.scores[look])
        if top < count:
            return np.arange(top + 1)
        down, up = (np.geomspace(1, max(room, 1), count // 2 - 1) for room in (cut, top - cut))
        return np.unique(np.clip(np.rint([*(cut - down), 0, cut, *(cut + up), top]), 0, top).astype(np.int64))

    def at(self, cuts: Cuts) -> Found:
        grid = self.evaluate([np.asarray([cut]) for cut in cuts])
        return Found(grid.right.item(), grid.cost.item(), cuts)

    def improve(self, found: Found, limit: float) -> Found:
        """Better cuts: move those of all looks together, then of two, then of one, until nothing improves."""
        for _ in range(ROUNDS):
            before = found
            for group in self.groups:
                found = max((found, self.near(found, group).best(limit) or found))
            if not before < found:
                break
        return found

    def cheapen(self, found: Found, least: float) -> Found:
        """Cheaper cuts with at least this number of right answers, moved in the same way."""
        for _ in range(ROUNDS):
            before = found.cost
            for group in self.groups:
                found = min((found, self.near(found, group).cheapest(least) or found), key=lambda one: one.cost)
            if not found.cost < before:
                break
        return found

    def near(self, found: Found, group: tuple[int, ...]) -> Grid:
        """The grid of cuts around these, in which only the looks of a group move."""
        side = len(self.table) + 2 if len(group) == 1 else grid_side(len(group), self.cells)
        return self.evaluate(
            [
                self.around(look, int(cut), side) if look in group else np.asarray([cut])
                for look, cut in enumerate(found.cuts)
            ]
        )

    def evaluate(self, candidates: list[Cuts]) -> Grid:
        """What every combination of these cuts achieves; the cuts of each look are ascending and distinct."""
        count = len(self.table)
        right: NDArray[np.float64] = np.asarray(self.worth[0].sum(), dtype=np.float64)
        cost: NDArray[np.float64] = np.asarray(self.table.cost[0] * count, dtype=np.float64)
        shape: list[int] = []
        here, cell = np.arange(count), np.zeros(count, dtype=np.int64)
        for look, cuts in enumerate(candidates):
            first = first_to_stay(cuts, len(self.scores[look]))[self.rank[look][here]]
            stays = first < len(cuts)
            here, cell = here[stays], cell[stays] * len(cuts) + first[stays]
            shape.append(len(cuts))
            gained = np.bincount(cell, self.gain[look][here], minlength=int(np.prod(shape)))
            there = np.bincount(cell, minlength=int(np.prod(shape)))
            right = right[..., None] + cumulated(gained.reshape(shape))
            cost = cost[..., None] + self.step[look] * cumulated(there.reshape(shape))
        return Grid(candidates, right, cost / count)


def first_to_stay(cuts: Cuts, ranks: int) -> NDArray[np.int64]:
    """(ranks + 1,) for each rank the index of the first cut above it."""
    marks = np.zeros(ranks + 1, dtype=np.int64)
    marks[cuts] = 1
    return np.cumsum(marks)


def cumulated(histogram: NDArray[np.float64] | NDArray[np.int64]) -> NDArray[np.float64]:
    """Cumulative sums along every axis."""
    sums = histogram.astype(np.float64)
    for axis in range(sums.ndim):
        if sums.shape[axis] > 1:
            np.cumsum(sums, axis=axis, out=sums)
    return sums


def between(low: np.float32, high: np.float32) -> np.float32:
    """Halfway from low to high, and always below high."""
    middle = np.float32((np.float64(low) + np.float64(high)) / 2)
    return middle if middle < high else np.nextafter(high, np.float32(-1))


def grid_side(looks: int, cells: int = CELLS) -> int:
    """The number of cuts of each look that a grid of this number of looks can hold."""
    return int(cells ** (1 / max(looks, 1)))


def groups_of(looks: int, cells: int = CELLS) -> list[tuple[int, ...]]:
    """The looks whose cuts are moved together: all of them (unless that grid is too coarse), every two, each one."""
    sizes = [size for size in (looks, 2, 1) if 1 <= size <= looks and grid_side(size, cells) >= COARSEST]
    return list(dict.fromkeys(group for size in sizes for group in itertools.combinations(range(looks), size)))
