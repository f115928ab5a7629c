"""Thresholds for a budget, from a look table; and a forecast of what they will cost and achieve on new images.

The forecast has 95 % intervals, also from few images. An image stops at one of a few nodes, each with its cost. How often it stops
at each is known from N images only. So shares that are plausible after N images are drawn many times (from a Dirichlet distribution
with Perks' prior), and new images are drawn with each. The interval holds 95 % of their mean costs. This works for 10,000 images,
and for 10 of which none took the last look.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glancefocus.errors import BadData, BadSetting
from glancefocus.exits.curve import Point, Unit, budget_of
from glancefocus.exits.genetic import genetic_front, genetic_within
from glancefocus.exits.one_size import GeometricRule, direct_curve, direct_within
from glancefocus.exits.table import LookTable, Thresholds, check_budget, cost_and_worth, expected_correct, look_of_nodes

SOLVERS = ("direct", "geometric", "geometric-paper", "genetic")
CURVE_FOLDS = 3  # a whole curve takes long to solve
SPARE = 0.001  # a tenth of a percentage point of accuracy is given up to spend less
SPARE_OF_WHOLE_VIEWS = 0.003  # the same where the last look is as good as the backbone, and costs as much
NEW_IMAGES = 3000
DRAWS = 8000
LEVEL = 0.95
GOOD_SHARE = 0.1  # an interval of ±10 % of the cost is good enough
STANDARD_ERRORS = 1.959964  # half of a 95 % interval of a normal distribution


def solve_within(
    table: LookTable, budget: float | None, *, solver: str | None = None, spare: float = SPARE, seed: int = 0
) -> Thresholds:
    """The thresholds within a budget that should be most accurate on new images.

    Without a budget: the cheapest thresholds whose accuracy is within `spare` of the best.

    What is maximised is not the count of right answers but the expected one (`expected_correct`): with few images the count depends
    on chance, and thresholds that follow it do not generalise. The paper's rule uses scores only, no answers.

    spare  accuracy that may be given up to spend less; the paper's rule within a budget ignores it and spends the whole budget
    """
    solver = check_solver(table.sizes, solver)
    if budget is not None:
        check_budget(table, budget)
    most = table.dearest if budget is None else budget
    if solver == "genetic":
        return genetic_within(table, most, expected_correct(table), spare=spare, seed=seed)
    if solver == "direct":
        return direct_within(table, most, expected_correct(table), spare=spare)
    rule, wide = GeometricRule(table), solver == "geometric"
    return (
        rule.cheapest(expected_correct(table), spare, wide=wide) if budget is None else rule.within(budget, wide=wide)
    )


def thresholds_of_a_run(table: LookTable, backbone_macs: float, seed: int = 0) -> Thresholds:
    """The thresholds that a run stores in its bundle: nearly the best accuracy, at the lowest cost.

    backbone_macs  a network with a view of the whole image can spend more than the plain backbone; here it must not
    """
    may_spend_more = table.dearest > backbone_macs
    spare = SPARE_OF_WHOLE_VIEWS if may_spend_more else SPARE
    return solve_within(table, backbone_macs if may_spend_more else None, spare=spare, seed=seed)


def aim_below(table: LookTable, budget: float, *, solver: str | None = None, seed: int = 0) -> float:
    """The budget to solve for, so that the mean cost on new images is about `budget`; never below one glance.

    Thresholds that just fit into a budget on the images they were chosen on cost a little more on other images. How much is
    estimated by cross-fitting and subtracted.
    """
    within = []

    def choose(part: LookTable) -> Thresholds:
        thresholds = solve_within(part, budget, solver=solver, spare=0.0, seed=seed)
        within.append(cost_and_worth(part, thresholds)[0])
        return thresholds

    excess = cross_fitted(table, choose, folds_for(table), seed).mean_cost - float(np.mean(within))
    return max(table.cheapest, budget - max(0.0, excess))


def folds_for(table: LookTable) -> int:
    """The number of groups for cross-fitting: more when there are few images, so that each choice still uses nearly all of them.

    With several candidate views there are fewer groups, because one choice takes seconds.
    """
    if table.sizes > 1:
        return 4
    return 10 if len(table) < 1000 else 5


def check_solver(sizes: int, solver: str | None) -> str:
    """The named solver, or the best one for this number of candidate views; one that does not fit is refused."""
    solver = ("genetic" if sizes > 1 else "direct") if solver is None else solver
    if solver not in SOLVERS:
        raise BadSetting(f"a solver is one of {', '.join(SOLVERS)}, but got {solver!r}.")
    if (solver == "genetic") != (sizes > 1):
        raise BadSetting(
            "with several candidate views thresholds are found by the solver 'genetic'."
            if sizes > 1
            else "the solver 'genetic' is for several candidate views; this network has one. Use direct or geometric."
        )
    return solver


def solve_curve(table: LookTable, points: int = 40, *, solver: str | None = None, seed: int = 0) -> list[Point]:
    """The best operating point within each of evenly spaced budgets, from the glance only to every look for every image.

    accuracy is counted on this table; expected_accuracy is how often answers with such scores are right. The expected accuracy
    never falls with a larger budget, unless the solver is the paper's rule.
    """
    budgets = np.linspace(table.cheapest, table.dearest, points).tolist()
    found = solve_at(table, budgets, solver=solver, seed=seed)
    likely = expected_correct(table)
    return [
        {
            **with_budget(table.point(thresholds), budget, table.unit),
            "expected_accuracy": cost_and_worth(table, thresholds, likely)[1],
        }
        for budget, thresholds in zip(budgets, found, strict=True)
    ]


def solve_at(
    table: LookTable, budgets: Sequence[float], *, solver: str | None = None, seed: int = 0
) -> list[Thresholds]:
    """Thresholds within each budget, like `solve_within` with spare=0: all of the budget is spent where that helps at all."""
    budgets, solver = list(budgets), check_solver(table.sizes, solver)
    for budget in budgets:
        check_budget(table, budget)
    if solver == "direct":
        found = direct_curve(table, budgets, expected_correct(table))
    elif solver == "genetic":
        worth = expected_correct(table)
        front = genetic_front(table, worth, budgets=budgets, seed=seed)
        found = affordable([(*cost_and_worth(table, th, worth), th) for th in front], budgets, table.leave())
    else:
        rule = GeometricRule(table)
        found = [rule.within(budget, wide=solver == "geometric") for budget in budgets]
    return [table.leave() if budget <= table.cheapest else th for budget, th in zip(budgets, found, strict=True)]


def cross_fitted_curve(
    table: LookTable, curve: Sequence[Point], *, solver: str | None = None, seed: int = 0
) -> list[Point]:
    """A solved curve measured by cross-fitting: each image is judged by thresholds chosen on other images, for the same budgets."""
    budgets = [budget_of(point, table.unit) for point in curve]
    nodes = cross_fitted_exits(table, budgets, CURVE_FOLDS, solver=solver, seed=seed)
    return [
        with_budget(table.point_of_exits(left, np.asarray(point["thresholds"], dtype=np.float32)), budget, table.unit)
        for point, budget, left in zip(curve, budgets, nodes, strict=True)
    ]


def cross_fitted_exits(
    table: LookTable, budgets: Sequence[float], folds: int, *, solver: str | None = None, seed: int = 0
) -> NDArray[np.int64]:
    """(budgets, N) the node where each image stops, for each budget with thresholds that were chosen on other images."""
    fold = fold_of_rows(len(table), folds, seed)
    nodes = np.zeros((len(budgets), len(table)), dtype=np.int64)
    for group in range(int(fold.max()) + 1) if table.looks > 1 and len(budgets) > 0 else ():
        rows = np.flatnonzero(fold == group)
        own = table.rows(rows)
        found = solve_at(table.rows(np.flatnonzero(fold != group)), budgets, solver=solver, seed=seed)
        nodes[:, rows] = [own.exits(thresholds) for thresholds in found]
    return nodes


def with_budget(point: Point, budget: float, unit: Unit) -> Point:
    """The point, with the budget that its thresholds were chosen for."""
    return {"budget_macs": budget, **point} if unit == "macs" else {"budget_ms": budget, **point}


def affordable(
    ranked: list[tuple[float, float, Thresholds]], budgets: list[float], otherwise: Thresholds
) -> list[Thresholds]:
    """For each budget the most accurate thresholds within it, the dearer of equals; ranked: (cost, accuracy, thresholds)."""
    chosen = []
    for budget in budgets:
        fitting = [entry for entry in ranked if entry[0] <= budget]
        best = max(fitting, key=lambda entry: (entry[1], entry[0]), default=None)
        chosen.append(otherwise if best is None else best[2])
    return chosen


@dataclass(frozen=True)
class CrossFitted:
    """Where every image stops with thresholds that were chosen on other images.

    node     (N,) the column of the table where the image stops
    look     (N,) the look of that column, counted from 0
    correct  (N,) bool
    cost     (N,) in the table's unit
    fold     (N,) the group of the image; its thresholds were chosen on all other groups
    looks    the number of looks
    unit     of the costs
    chosen   the thresholds applied to each group
    """

    node: NDArray[np.int64]
    look: NDArray[np.int64]
    correct: NDArray[np.bool_]
    cost: NDArray[np.float64]
    fold: NDArray[np.int64]
    looks: int
    unit: Unit
    chosen: tuple[Thresholds, ...]

    def __len__(self) -> int:
        return len(self.node)

    @property
    def accuracy(self) -> float:
        return float(self.correct.mean())

    @property
    def mean_cost(self) -> float:
        return float(self.cost.mean())

    @property
    def exits_per_look(self) -> list[int]:
        """The number of images that stop after each look."""
        return np.bincount(self.look, minlength=self.looks).tolist()  # type: ignore[no-any-return]


def cross_fitted(
    table: LookTable, choose: Callable[[LookTable], Thresholds], folds: int = 5, seed: int = 0
) -> CrossFitted:
    """Choose thresholds on all groups of images but one, and apply them to that one; in turn for every group.

    choose  table -> thresholds; called once for each group
    folds   number of groups, at most one for each image
    seed    of the grouping
    """
    if folds < 2:
        raise BadSetting(f"cross-fitting needs at least 2 groups of images, but got folds={folds}.")
    if len(table) < 2:
        raise BadData(f"cross-fitting needs at least 2 images, but got {len(table)}. Give more images.")
    fold = fold_of_rows(len(table), folds, seed)
    node = np.zeros(len(table), dtype=np.int64)
    chosen = []
    for group in range(int(fold.max()) + 1):
        rows = np.flatnonzero(fold == group)
        chosen.append(choose(table.rows(np.flatnonzero(fold != group))))
        node[rows] = table.rows(rows).exits(chosen[-1])
    return CrossFitted(
        node=node,
        look=look_of_nodes(table)[node],
        correct=np.asarray(table.correct[np.arange(len(table)), node]),
        cost=table.cost[node],
        fold=fold,
        looks=table.looks,
        unit=table.unit,
        chosen=tuple(chosen),
    )


def fold_of_rows(count: int, folds: int, seed: int = 0) -> NDArray[np.int64]:
    """(N,) a random group for every image; group sizes differ by at most one."""
    return np.random.default_rng(seed).permutation(np.arange(count) % min(folds, count))


@dataclass(frozen=True)
class Forecast:
    """What to expect on new images like those that were measured.

    cost, accuracy   means over the measured images, each with thresholds that were chosen without it
    *_low, *_high    the 95 % interval for the means over `new_images` other images
    images           number of measured images
    images_needed    number of images for which the interval of the cost would be ±10 %
    unit             of the cost
    """

    cost: float
    cost_low: float
    cost_high: float
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    images: int
    images_needed: int
    new_images: int
    unit: Unit

    @property
    def cost_share(self) -> float:
        """Half of the interval's width as a share of the cost."""
        return (self.cost_high - self.cost_low) / 2 / self.cost

    @property
    def too_few(self) -> bool:
        """Whether more images are needed for an interval of ±10 %."""
        return self.images < self.images_needed

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)


def forecast_of_others(table: LookTable, thresholds: Thresholds, *, new_images: int = NEW_IMAGES) -> Forecast:
    """A forecast from images that these thresholds were not chosen on."""
    node = table.exits(thresholds)
    return _forecast(table, node, np.asarray(table.correct[np.arange(len(table)), node]), 0.0, new_images)


def forecast_of_choosers(
    table: LookTable, thresholds: Thresholds, judged: CrossFitted, *, new_images: int = NEW_IMAGES
) -> Forecast:
    """A forecast from the images that these thresholds were chosen on, by cross-fitting.

    The thresholds of the groups cost a little more or less than these thresholds do; the mean difference on all images is
    corrected for. Other images would have led to other thresholds: how much that matters is estimated from the differences between
    groups (the jackknife), and widens the interval.
    """
    cost = cost_and_worth(table, thresholds)[0]
    others = np.asarray([cost_and_worth(table, chosen)[0] for chosen in judged.chosen])
    groups = len(others)
    spread = math.sqrt((groups - 1) / groups * float(np.square(others - others.mean()).sum()))
    return _forecast(table, judged.node, judged.correct, cost - float(others.mean()), new_images, spread)


def _forecast(
    table: LookTable,
    node: NDArray[np.int64],
    correct: NDArray[np.bool_],
    more: float,
    new_images: int,
    spread: float = 0.0,
) -> Forecast:
    """A forecast from images that stopped at these nodes.

    more    correction that is added to the cost
    spread  standard deviation of the cost due to the choice of images that thresholds were chosen on
    """
    random = np.random.default_rng(0)
    count = len(node)
    seen = np.bincount(node, minlength=len(table.cost))
    draws = mean_costs(seen, table.cost, new_images, random) + more
    draws += spread * np.random.default_rng(1).standard_normal(DRAWS)
    mean_cost, (low, high) = float(seen @ table.cost) / count + more, interval(draws)
    cost, *cost_interval = np.clip([mean_cost, low, high], table.cheapest, table.dearest).tolist()
    right = int(np.count_nonzero(correct))
    shares = random.beta(right + 0.5, count - right + 0.5, DRAWS)
    accuracy, *accuracy_interval = right / count, *interval(random.binomial(new_images, shares) / new_images)
    return Forecast(
        cost=cost,
        cost_low=min(cost, cost_interval[0]),
        cost_high=max(cost, cost_interval[1]),
        accuracy=accuracy,
        accuracy_low=min(accuracy, accuracy_interval[0]),
        accuracy_high=max(accuracy, accuracy_interval[1]),
        images=count,
        images_needed=images_needed((cost_interval[1] - cost_interval[0]) / 2, cost, count, new_images),
        new_images=new_images,
        unit=table.unit,
    )


def mean_costs(
    seen: NDArray[np.int64], cost: NDArray[np.float64], new_images: int, random: np.random.Generator
) -> NDArray[np.float64]:
    """(DRAWS,) plausible mean costs of new images; seen: the number of measured images that stopped at each node."""
    shares = random.dirichlet(seen + 1 / len(seen), DRAWS)
    return np.asarray(random.multinomial(new_images, shares) @ cost / new_images)


def interval(draws: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def images_needed(half: float, cost: float, images: int, new_images: int) -> int:
    """The number of images for an interval of ±10 %, given that `images` led to ± `half`; rounded up to two digits."""
    variance = (half / STANDARD_ERRORS) ** 2 / (1 / images + 1 / new_images)
    wanted = (GOOD_SHARE * cost / STANDARD_ERRORS) ** 2 - variance / new_images
    if variance == 0 or wanted <= 0:
        return images
    needed = max(math.ceil(variance / wanted - 1e-3), 1)
    step: int = 10 ** max(len(str(needed)) - 2, 0)
    return math.ceil(needed / step) * step


def wilson_interval(share: float, images: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share, which stays sensible near 0 and 1: no mistake on a few images does not mean none ever."""
    z = 1.959964
    middle = (share + z * z / (2 * images)) / (1 + z * z / images)
    half = z / (1 + z * z / images) * math.sqrt(share * (1 - share) / images + z * z / (4 * images * images))
    # At 0 or 1 rounding could put the share itself outside.
    return min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half))


def with_interval(point: Point, images: int) -> Point:
    """The point with the 95 % interval of its accuracy."""
    low, high = wilson_interval(point["accuracy"], images)
    return {**point, "accuracy_low": low, "accuracy_high": high}
