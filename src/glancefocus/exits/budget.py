"""Thresholds for a budget, from a look table: the functions that other packages use."""

from collections.abc import Sequence

import numpy as np

from glancefocus.errors import BadSetting
from glancefocus.exits.curve import Point, Unit, budget_of
from glancefocus.exits.direct import direct_curve, direct_within, expected_correct
from glancefocus.exits.forecast import cross_fitted, fold_of_rows
from glancefocus.exits.genetic import genetic_front, genetic_within
from glancefocus.exits.geometric import (
    PAPER_RATIOS,
    RELEASED_RATIOS,
    GeometricRule,
    cost_and_worth,
    geometric_curve,
    geometric_shares,
    geometric_thresholds,
    geometric_within,
)
from glancefocus.exits.table import LookTable, Thresholds, check_budget, check_table

__all__ = [
    "PAPER_RATIOS",
    "RELEASED_RATIOS",
    "SOLVERS",
    "SPARE",
    "aim_below",
    "check_budget",
    "check_solver",
    "check_table",
    "cross_fitted_curve",
    "direct_curve",
    "direct_within",
    "folds_for",
    "genetic_front",
    "genetic_within",
    "geometric_curve",
    "geometric_shares",
    "geometric_thresholds",
    "geometric_within",
    "solve_at",
    "solve_curve",
    "solve_within",
]

SOLVERS = ("direct", "geometric", "geometric-paper", "genetic")
CURVE_FOLDS = 3  # a whole curve takes long to solve
SPARE = 0.001  # a tenth of a percentage point of accuracy is given up to spend less


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

    With several patch sizes there are fewer groups, because one choice takes seconds.
    """
    if table.sizes > 1:
        return 4
    return 10 if len(table) < 1000 else 5


def check_solver(sizes: int, solver: str | None) -> str:
    """The named solver, or the best one for this number of patch sizes; one that does not fit is refused."""
    solver = ("genetic" if sizes > 1 else "direct") if solver is None else solver
    if solver not in SOLVERS:
        raise BadSetting(f"a solver is one of {', '.join(SOLVERS)}, but got {solver!r}.")
    if (solver == "genetic") != (sizes > 1):
        raise BadSetting(
            "with several patch sizes thresholds are found by the solver 'genetic'."
            if sizes > 1
            else "the solver 'genetic' is for several patch sizes; this network has one. Use direct or geometric."
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
    fold = fold_of_rows(len(table), CURVE_FOLDS, seed)
    nodes = np.zeros((len(budgets), len(table)), dtype=np.int64)
    for group in range(int(fold.max()) + 1):
        rows = np.flatnonzero(fold == group)
        own = table.rows(rows)
        found = solve_at(table.rows(np.flatnonzero(fold != group)), budgets, solver=solver, seed=seed)
        nodes[:, rows] = [own.exits(thresholds) for thresholds in found]
    return [
        with_budget(table.point_of_exits(left, np.asarray(point["thresholds"], dtype=np.float32)), budget, table.unit)
        for point, budget, left in zip(curve, budgets, nodes, strict=True)
    ]


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
