"""Thresholds out of a look table and a budget: everything that users of this layer need."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from glancefocus.early_exit.checks import check_budget, check_table
from glancefocus.early_exit.direct import direct_curve, direct_within
from glancefocus.early_exit.geometric import (
    PAPER_RATIOS,
    RELEASED_RATIOS,
    cost_and_accuracy,
    geometric_curve,
    geometric_shares,
    geometric_thresholds,
    geometric_within,
)
from glancefocus.early_exit.look_table import LookTable, Thresholds
from glancefocus.early_exit.size_search import genetic_front, genetic_within

__all__ = [
    "PAPER_RATIOS",
    "RELEASED_RATIOS",
    "check_budget",
    "check_table",
    "direct_curve",
    "direct_within",
    "genetic_front",
    "genetic_within",
    "geometric_curve",
    "geometric_shares",
    "geometric_thresholds",
    "geometric_within",
    "solve_at",
    "solve_curve",
]


def solve_curve(table: LookTable, points: int = 40, *, seed: int = 0) -> list[dict[str, Any]]:
    """The best operating point within each of evenly spaced budgets, from leaving at the glance to every look for everybody.

    A dearer budget is never less accurate; where spending more achieves nothing, its point may be one of a cheaper budget.
    """
    budgets = np.linspace(table.cheapest, table.dearest, points).tolist()
    found = solve_at(table, budgets, seed=seed)
    return [
        {f"budget_{table.unit}": budget, **table.point(thresholds)}
        for budget, thresholds in zip(budgets, found, strict=True)
    ]


def solve_at(table: LookTable, budgets: Sequence[float], *, seed: int = 0) -> list[Thresholds]:
    """The best thresholds within each budget: directly searched with one patch size, by the genetic algorithm with several."""
    budgets = list(budgets)
    if table.sizes == 1:
        found = direct_curve(table, budgets)
    else:
        found = affordable(table, genetic_front(table, budgets=budgets, seed=seed), budgets)
    return [table.leave() if budget <= table.cheapest else th for budget, th in zip(budgets, found, strict=True)]


def affordable(table: LookTable, curve: list[Thresholds], budgets: list[float]) -> list[Thresholds]:
    """For each budget the most accurate thresholds of a curve that fit into it, of equal ones the dearest."""
    ranked = [(*cost_and_accuracy(table.point(thresholds), table.unit), thresholds) for thresholds in curve]
    chosen = []
    for budget in budgets:
        fitting = [entry for entry in ranked if entry[0] <= budget]
        best = max(fitting, key=lambda entry: (entry[1], entry[0]), default=None)
        chosen.append(table.leave() if best is None else best[2])
    return chosen
