"""Assesses a bundle from look records: curves, exit scores, patch sizes, calibration. No network is run here."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from glancefocus.bundle.bundle import Bundle
from glancefocus.evaluation.findings import Findings
from glancefocus.evaluation.records import reliability
from glancefocus.exits.budget import aim_below, check_budget, folds_for, solve_at, solve_within
from glancefocus.exits.curve import Point, best_thresholds, stay_thresholds
from glancefocus.exits.forecast import Forecast, cross_fitted, forecast_of_choosers, forecast_of_others
from glancefocus.exits.record import LookRecord
from glancefocus.exits.score import SCORES
from glancefocus.exits.table import LookTable, Thresholds

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


FOLDS = 5


def assess(
    bundle: Bundle,
    record: LookRecord,
    choosing: LookRecord | None = None,
    *,
    chose: bool = False,
    points: int = 40,
    seed: int = 0,
) -> Findings:
    """Everything that can be said of a bundle on the images of a record.

    choosing  the record of other images, on which thresholds are chosen; None: the bundle's own curve is measured, and what it does
              not hold (other scores, fixed sizes) is chosen on one half of the images and measured on the other, both ways
    chose     these images chose the bundle's thresholds and curve, which are therefore not measured on them: instead thresholds
              are chosen in the same way on some of the images and measured on the others, in turns
    """
    table = look_table(bundle, record)
    chooser = None if choosing is None else look_table(bundle, choosing)
    if chooser is None and bundle.curve and not chose:
        curve = [
            _measured(table, p["thresholds"], float(p.get("budget_macs", p.get("mean_macs", 0)))) for p in bundle.curve
        ]
        chosen_on = str(bundle.notes.get("thresholds_chosen_on", "other images"))
    else:
        curve = solved(chooser, table, _grid(table, points), seed)
        chosen_on = _halves() if choosing is None else f"{choosing.about.source}, {choosing.about.split}"
    latency = bundle.latency_here()
    largest = table.fixed_size(table.sizes - 1)
    bins = [
        reliability(torch.from_numpy(np.array(record.confidence[:, node])), torch.from_numpy(np.array(right)))
        for node, right in zip(largest_nodes(table), largest.correct.T, strict=True)
    ]
    return Findings(
        data=f"{record.about.source}, {record.about.split}",
        chosen_on=chosen_on,
        images=len(table),
        score=bundle.score,
        patch_px=list(bundle.settings.patch_px),
        accuracy_after_look=table.accuracy_after_look,
        macs_after_look=list(bundle.costs.macs_after_look),
        backbone_macs=bundle.costs.backbone_macs,
        curve=sorted(curve, key=lambda p: float(p["budget_macs"])),
        chosen=_cross_fitted_point(bundle, table, seed) if chose else point_with_exits(table, own_thresholds(bundle)),
        ms_after_look=None if latency is None else list(latency.ms_after_look),
        device=None if latency is None else latency.words,
        fixed_size_curves=_fixed_sizes(bundle, table, chooser, points, seed),
        scores=_scores(bundle, record, choosing, seed),
        reliability=[found for found, _ in bins],
        calibration_error=[error for _, error in bins],
    )


def own_thresholds(bundle: Bundle) -> Any:
    """Those that predict stops by; without any, such that nobody leaves early."""
    stay = stay_thresholds(bundle.settings.looks, len(bundle.settings.patch_px))
    return stay if bundle.thresholds is None else bundle.thresholds


def look_table(bundle: Bundle, record: LookRecord, score: str | None = None, seed: int = 0) -> LookTable:
    """The look table of a record for one score (the bundle's own), with the bundle's costs and, where measured here, times."""
    score = bundle.score if score is None else score
    latency = bundle.latency_here()
    macs = bundle.costs.macs_of_tree(aims_first=score == "value")
    return record.table(macs, score=score, ms=None if latency is None else latency.ms_of_tree(), seed=seed)


def solved(chooser: LookTable | None, table: LookTable, budgets: Sequence[float], seed: int = 0) -> list[Point]:
    """An operating point of the table for every budget, with thresholds chosen on another one; None: on halves, crosswise."""
    if chooser is not None:
        found = solve_at(chooser, budgets, seed=seed)
        return [_measured(table, thresholds, budget) for thresholds, budget in zip(found, budgets, strict=True)]
    one, two = halves(len(table), seed)
    parts = [
        solved(table.rows(choosing), table.rows(measuring), budgets, seed)
        for choosing, measuring in ((one, two), (two, one))
    ]
    return [_pooled(first, second) for first, second in zip(*parts, strict=True)]


def halves(count: int, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Two halves of the images, in an order that the seed decides."""
    order = np.random.default_rng(seed).permutation(count)
    return np.sort(order[: count // 2]), np.sort(order[count // 2 :])


def largest_nodes(table: LookTable) -> list[int]:
    """The node of every look with patches of the largest size: the last of its level."""
    return [int(level[-1]) for level in table.levels(np.arange(table.score.shape[1]))]


def with_interval(point: Point, images: int) -> Point:
    """The point with the 95 % interval of its accuracy."""
    low, high = wilson_interval(point["accuracy"], images)
    return {**point, "accuracy_low": low, "accuracy_high": high}


def wilson_interval(share: float, images: int) -> tuple[float, float]:
    """The 95 % interval of an accuracy: Wilson's, which is not empty where every answer was right, or none."""
    z = 1.959964
    middle = (share + z * z / (2 * images)) / (1 + z * z / images)
    half = z / (1 + z * z / images) * math.sqrt(share * (1 - share) / images + z * z / (4 * images * images))
    # Rounding must not put the accuracy itself outside, where it is 0 or 1.
    return min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half))


def _measured(table: LookTable, thresholds: Any, budget: float) -> Point:
    point = table.point(np.asarray(thresholds, dtype=np.float32))
    return with_interval({"budget_macs": float(budget), **point}, len(table))


def _pooled(one: Point, two: Point) -> Point:
    """One point of two halves; its thresholds are those of the first."""
    counts = [sum(point["exits_per_look"]) for point in (one, two)]
    pooled: dict[str, Any] = {**one}
    other: dict[str, Any] = {**two}
    for name in ("mean_macs", "mean_ms", "accuracy"):
        if name in one:
            pooled[name] = float(np.average([pooled[name], other[name]], weights=counts))
    for name in ("exits_per_look", "patches_per_look_and_size"):
        if name in one:
            pooled[name] = (np.asarray(pooled[name]) + np.asarray(other[name])).tolist()
    return with_interval(cast(Point, pooled), sum(counts))


def point_with_exits(table: LookTable, thresholds: Any) -> Point:
    """The point of some thresholds, and how right those are that leave after each look."""
    array = np.asarray(thresholds, dtype=np.float32)
    return _with_exits(table, table.exits(array), thresholds)


def _cross_fitted_point(bundle: Bundle, table: LookTable, seed: int) -> Point:
    """What thresholds achieve that were chosen as the bundle's were, each image being judged by those that others chose.

    The bundle's are either the cheapest that are as good as the best, or were chosen for a budget; that is then what they cost on
    these images.
    """
    own = own_thresholds(bundle)
    if bundle.thresholds is None or len(table) < 2:
        return point_with_exits(table, own)
    budget = table.point(np.asarray(own, dtype=np.float32))["mean_macs"]
    told = bundle.notes.get("thresholds_for")
    best = told == BEST_ACCURACY if told is not None else bundle.thresholds == best_thresholds(bundle.curve)

    def choose(others: LookTable) -> Thresholds:
        if best:
            return solve_within(others, None, seed=seed)
        return solve_at(others, [budget], seed=seed)[0]

    folds = FOLDS if table.sizes == 1 else 2  # with several sizes choosing takes seconds
    return _with_exits(table, cross_fitted(replace(table, unit="macs"), choose, folds, seed).node, own)


def _with_exits(table: LookTable, nodes: NDArray[np.int64], thresholds: Any) -> Point:
    array = np.asarray(thresholds, dtype=np.float32)
    right = table.correct[np.arange(len(table)), nodes]
    look = np.repeat(np.arange(table.looks), [len(level) for level in table.levels(table.macs)])[nodes]
    shares = [float(right[look == t].mean()) if (look == t).any() else None for t in range(table.looks)]
    return with_interval({**table.point_of_exits(nodes, array), "accuracy_of_exits": shares}, len(table))


def _fixed_sizes(
    bundle: Bundle, table: LookTable, chooser: LookTable | None, points: int, seed: int
) -> dict[int, list[Point]]:
    if table.sizes == 1:
        return {}
    curves = {}
    for index, px in enumerate(bundle.settings.patch_px):
        own = table.fixed_size(index)
        budgets = [b for b in _grid(table, points) if b <= own.dearest * (1 + 1e-9)]
        curves[px] = solved(None if chooser is None else chooser.fixed_size(index), own, budgets, seed)
    return curves


def _scores(bundle: Bundle, record: LookRecord, choosing: LookRecord | None, seed: int) -> dict[str, list[Point]]:
    """The same budgets by every exit score; with several patch sizes those of the largest."""
    curves: dict[str, list[Point]] = {}
    for score in SCORES:
        table = look_table(bundle, record, score, seed)
        chooser = None if choosing is None else look_table(bundle, choosing, score, seed + 1)
        if table.sizes > 1:
            table = table.fixed_size(table.sizes - 1)
            chooser = None if chooser is None else chooser.fixed_size(chooser.sizes - 1)
        cheapest, dearest = bundle.costs.macs_of_tree(aims_first=True)[0], bundle.costs.macs_after_look[-1]
        curves[score] = solved(
            chooser, replace(table, unit="macs"), np.linspace(cheapest, dearest, 8)[1:-1].tolist(), seed
        )
    return curves


def _grid(table: LookTable, points: int) -> list[float]:
    return [float(b) for b in np.linspace(table.macs[0], table.macs.max(), points)]


def _halves() -> str:
    return "parts of these images for the other parts, in turns"
