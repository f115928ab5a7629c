"""The most accurate thresholds for one patch size, by a direct search; and the expected accuracy that solvers maximise.

Whether one of 70 images is right at some look is mostly chance, and thresholds that follow it do not generalise. So solvers do not
count right answers. They add up how likely each answer is right given its score, from a smooth curve with three parameters for each
look that is fitted to all images.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from glancefocus.exits.geometric import GeometricRule, must_have_one_size
from glancefocus.exits.table import LookTable, Thresholds, check_budget

SMALLEST_CHANCE = 1e-5  # scores are clipped to [1e-5, 1 - 1e-5]; the logits of others would dominate the fit
PRIOR_OF_ALL = np.array([0.01, 0.3, 3.0])  # precision of the shared curve around 'as likely right as the score says'
PRIOR_OF_LOOK = np.array([1.0, 4.0, 20.0])  # precision of each look's own curve around the shared one
STEPS = 50

Curve = NDArray[np.float64]
"""(3,) the logit of being right is c0 + c1 z + c2 z^2, with z the logit of the score, standardised over the table."""


def expected_correct(table: LookTable) -> NDArray[np.float64]:
    """(N, nodes) how likely the answer of every image at every node is right, given its score there.

    One logistic curve for each node, with a prior around the curve fitted to all nodes together; the more images, the less the
    prior matters.
    """
    logit = logit_of(table.score)
    spread = float(logit.std())
    z = (logit - logit.mean()) / (spread if spread > 0 else 1.0)
    correct = table.correct.astype(np.float64)
    shared = fit_curve(z.ravel(), correct.ravel(), np.array([0.0, 1.0, 0.0]), PRIOR_OF_ALL)
    columns = [
        chance(fit_curve(own, right, shared, PRIOR_OF_LOOK), own) for own, right in zip(z.T, correct.T, strict=True)
    ]
    return np.stack(columns, axis=1)


def fit_curve(z: NDArray[np.float64], right: NDArray[np.float64], centre: Curve, precision: Curve) -> Curve:
    """The most likely curve for these answers, with a normal prior; by Newton's method, halving steps that go too far."""
    features = powers(z)

    def loss(curve: Curve) -> float:
        logit = features @ curve
        return float(np.logaddexp(0, logit).sum() - right @ logit + 0.5 * (precision * (curve - centre) ** 2).sum())

    curve, now = centre, loss(centre)
    for _ in range(STEPS):
        likely = chance(curve, z)
        slope = features.T @ (right - likely) - precision * (curve - centre)
        bend = (features * (likely * (1 - likely))[:, None]).T @ features + np.diag(precision)
        step = np.linalg.solve(bend, slope)
        size = 1.0
        while size > 1e-3 and loss(curve + size * step) > now:
            size /= 2
        if size <= 1e-3 or float(np.abs(size * step).max()) < 1e-7:
            break
        curve = curve + size * step
        now = loss(curve)
    return curve


def chance(curve: Curve, z: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N,) how likely answers are right."""
    return np.asarray(1 / (1 + np.exp(-np.clip(powers(z) @ curve, -30, 30))))


def powers(z: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.stack([np.ones_like(z), z, z * z], axis=1)


def logit_of(score: NDArray[np.float32]) -> NDArray[np.float64]:
    inside = np.clip(score.astype(np.float64), SMALLEST_CHANCE, 1 - SMALLEST_CHANCE)
    return np.asarray(np.log(inside / (1 - inside)))


CELLS = 2**16  # combinations of cuts in one grid, at most
CELLS_AN_IMAGE = 16  # with few images a finer grid than this separates no more of them
FEWEST_CELLS = 2**12
COARSEST = 6  # a grid with fewer cuts for each look is not used
ROUNDS = 8  # later rounds spend a little more of the budget, but accuracy no longer rises

Worth = NDArray[np.float64]
"""(N, nodes) the value of stopping there: 1 for a right answer, 0 for a wrong one, or how likely it is right."""

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
