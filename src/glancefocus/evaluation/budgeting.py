"""Thresholds for a budget, with what they cost and achieve on images that did not choose them, and an interval for new images."""

from dataclasses import dataclass

import numpy as np

from glancefocus.early_exit.budget import aim_below, check_budget, folds_for, solve_within
from glancefocus.early_exit.cross_fit import cross_fitted
from glancefocus.early_exit.forecast import Forecast, forecast_of_choosers, forecast_of_others
from glancefocus.early_exit.look_table import LookTable, Thresholds
from glancefocus.evaluation.findings import Point

BEST_ACCURACY = "the best accuracy, at the lowest cost"
"""What a bundle notes where its thresholds were chosen for no budget."""


@dataclass(frozen=True)
class Budgeted:
    """Thresholds and what is known of them.

    on_choosers  the point of the images that chose them, which flatters them
    on_others    the point of images that were judged by thresholds which they did not choose
    forecast     what to expect on new images
    binds        whether the budget is less than every look for every image; False without a budget
    """

    thresholds: Thresholds
    on_choosers: Point
    on_others: Point
    forecast: Forecast
    binds: bool


def within_budget(
    choosing: LookTable,
    budget: float | None,
    *,
    measuring: LookTable | None = None,
    solver: str | None = None,
    seed: int = 0,
) -> Budgeted:
    """Thresholds that should cost at most the budget on new images, or, without one, the cheapest that are as good as the best.

    measuring  other images to measure them on; None: those that chose, each judged by thresholds that others of them chose
    """
    binds = budget is not None and check_budget(choosing, budget)
    aim = aim_below(choosing, budget, solver=solver, seed=seed) if budget is not None and binds else None

    def choose(table: LookTable) -> Thresholds:
        return solve_within(table, aim, solver=solver, seed=seed)

    thresholds = choose(choosing)
    if measuring is not None:
        on_others, forecast = measuring.point(thresholds), forecast_of_others(measuring, thresholds)
    else:
        judged = cross_fitted(choosing, choose, folds_for(choosing), seed)
        on_others = choosing.point_of_exits(judged.node, thresholds)
        forecast = forecast_of_choosers(choosing, thresholds, judged)
    return Budgeted(np.asarray(thresholds), choosing.point(thresholds), on_others, forecast, binds)
