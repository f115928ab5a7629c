"""Operating points: their type, reading them from files, and thresholds for any budget along a stored curve of them."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NotRequired, TypedDict, cast

import numpy as np

from glancefocus.errors import BadBudget, BadSetting
from glancefocus.values import Fields, list_of, number_of, whole_of


class Point(TypedDict):
    """An operating point: thresholds, and what they cost and achieve on some images.

    thresholds         one for each look; with several patch sizes one row for each look
    mean_macs, mean_ms mean cost of an answer; milliseconds where latency was measured
    budget_macs, budget_ms  the budget that the thresholds were chosen for
    accuracy           share of right answers, counted; `_low` and `_high` are the ends of its 95 % interval
    expected_accuracy  how often answers with such scores are right: more reliable than a count when few images chose the thresholds
    exits_per_look     number of images that stop after each look
    accuracy_of_exits  accuracy of the images that stop after each look; None where no image does
    patches_per_look_and_size  number of patches of each size in each focus look, with several patch sizes
    """

    thresholds: list[Any]
    mean_macs: NotRequired[float]
    mean_ms: NotRequired[float]
    budget_macs: NotRequired[float]
    budget_ms: NotRequired[float]
    accuracy: NotRequired[float]
    accuracy_low: NotRequired[float]
    accuracy_high: NotRequired[float]
    expected_accuracy: NotRequired[float]
    exits_per_look: NotRequired[list[int]]
    accuracy_of_exits: NotRequired[list[float | None]]
    patches_per_look_and_size: NotRequired[list[list[int]]]


Unit = Literal["macs", "ms"]
"""What budgets and costs are counted in: multiply-adds or milliseconds."""

MOST_POINTS = 100_000


def read_curve(plain: Any, where: str, looks: int, sizes: int) -> list[Point]:
    """Operating points from JSON, for a network with this number of looks and patch sizes; impossible values are refused."""
    return list_of(plain, where, MOST_POINTS, lambda value, name: _read_point(value, name, looks, sizes))


def _read_point(plain: Any, where: str, looks: int, sizes: int) -> Point:
    """Fields that are used are checked; unknown fields are kept as they are."""
    fields = Fields(plain, where)
    point = cast(Point, dict(fields.plain))
    point["thresholds"] = read_thresholds(fields.value("thresholds"), fields.name("thresholds"), looks, sizes)
    if "mean_macs" in point:
        point["mean_macs"] = fields.number("mean_macs", 0.0, 1e18)
    if "budget_macs" in point:
        point["budget_macs"] = fields.number("budget_macs", 0.0, 1e18)
    if "accuracy" in point:
        point["accuracy"] = fields.number("accuracy", 0.0, 1.0)
    if "exits_per_look" in point:
        exits = fields.listed("exits_per_look", looks, _count)
        if len(exits) != looks or sum(exits) < 1:
            raise BadSetting(f"{fields.name('exits_per_look')} must count images for each of {looks} looks.")
    if "patches_per_look_and_size" in point:
        rows = fields.listed("patches_per_look_and_size", looks, lambda v, n: list_of(v, n, sizes, _count))
        if [len(row) for row in rows] != [sizes] * (looks - 1):
            raise BadSetting(
                f"{fields.name('patches_per_look_and_size')} must have {looks - 1} rows of {sizes} counts."
            )
    return point


def read_thresholds(plain: Any, where: str, looks: int, sizes: int) -> list[Any]:
    """One number for each look; with several patch sizes a row for each look, with one number for each size."""

    def number(value: Any, name: str) -> float:
        return number_of(value, name, -1e6, 1e6)

    def row(value: Any, name: str) -> Any:
        return number(value, name) if sizes == 1 else list_of(value, name, sizes, number)

    read = list_of(plain, where, looks, row)
    if len(read) != looks or (sizes > 1 and any(len(each) != sizes for each in read)):
        each = "" if sizes == 1 else f" rows of {sizes}"
        raise BadSetting(f"{where} must have {looks}{each} thresholds, one for each look.")
    return read


def _count(value: Any, name: str) -> int:
    return whole_of(value, name, 0, 10**12)


def thresholds_at(curve: Sequence[Point], budget: float, cost_of: Callable[[Point], float]) -> Any | None:
    """Thresholds that spend the budget, interpolated between the two points around it; None where all points cost more.

    Points that cost more and achieve less than another one are ignored. With several patch sizes, thresholds also choose the next
    size and cannot be interpolated: the most expensive point within the budget is taken.
    """
    points = rising(sorted(curve, key=cost_of))
    within = [p for p in points if cost_of(p) <= budget]
    if not within:
        return None
    below = within[-1]
    if len(within) == len(points) or isinstance(below["thresholds"][0], Sequence):
        return below["thresholds"]
    above = points[len(within)]
    share = (budget - cost_of(below)) / (cost_of(above) - cost_of(below))
    mixed = (1 - share) * np.asarray(below["thresholds"]) + share * np.asarray(above["thresholds"])
    return mixed.tolist()


def mean_cost(point: Point, unit: Unit) -> float:
    """Mean cost of an answer at this point, in this unit."""
    return point["mean_macs"] if unit == "macs" else point["mean_ms"]


def budget_of(point: Point, unit: Unit) -> float:
    """The budget that the thresholds of this point were chosen for, in this unit."""
    return point["budget_macs"] if unit == "macs" else point["budget_ms"]


def rising(points: list[Point]) -> list[Point]:
    """The points that are at least as accurate as all cheaper ones; points without an accuracy are kept."""
    kept: list[Point] = []
    best = -1.0
    for point in points:
        accuracy = accuracy_of(point)
        if accuracy is None or accuracy >= best:
            kept.append(point)
            best = best if accuracy is None else accuracy
    return kept


def accuracy_of(point: Point) -> float | None:
    """The accuracy that a point is judged by: the expected one if there is one, otherwise the counted one."""
    return point.get("expected_accuracy", point.get("accuracy"))


def best_thresholds(curve: Sequence[Point]) -> Any | None:
    """The cheapest point within a tenth of a percentage point of the best; without accuracies the middle one."""
    if not curve:
        return None
    measured = [(accuracy, p) for p in curve if (accuracy := accuracy_of(p)) is not None and "mean_macs" in p]
    if not measured:
        return frozen(curve[len(curve) // 2]["thresholds"])
    best = max(accuracy for accuracy, _ in measured)
    good = [p for accuracy, p in measured if accuracy >= best - 0.001]
    return frozen(min(good, key=lambda p: p["mean_macs"])["thresholds"])


def frozen(thresholds: Sequence[Any]) -> tuple[Any, ...]:
    """Thresholds, or rows of them, as tuples of floats."""
    return tuple(frozen(t) if isinstance(t, (list, tuple)) else float(t) for t in thresholds)


def stay_thresholds(looks: int, sizes: int) -> list[Any]:
    """Thresholds with which every image takes every look, with patches of the largest size."""
    return [1.0] * (looks - 1) + [0.0] if sizes == 1 else [[-1.0] * (sizes - 1) + [1.0]] * (looks - 1) + [[0.0] * sizes]


def leave_thresholds(looks: int, sizes: int) -> list[Any]:
    """Thresholds with which every image stops after the glance."""
    return [-1.0] * (looks - 1) + [0.0] if sizes == 1 else [[-1.0] * sizes] * (looks - 1) + [[0.0] * sizes]


def refuse_budget(budget: float, glance: float, unit: str) -> None:
    """Refuse a budget that is less than one glance or not a finite number, with a hint if it looks like another unit."""
    word = {"macs": "multiply-adds", "ms": "ms"}[unit]
    if math.isnan(budget):
        raise BadBudget(f"a budget is a number of {word}, but got {budget}.")
    if budget == math.inf:
        raise BadBudget(f"a budget is a finite number of {word}, but got {budget}. Leave it out to allow every look.")
    if budget >= glance:
        return
    hint = "Raise the budget, or train with a smaller glance."
    if unit == "macs" and budget < glance / 1000:
        hint = "Multiply-adds are counted one by one, such as 2e8; milliseconds are given with --ms (budget_ms)."
    raise BadBudget(f"a budget of {budget:.3g} {word} is less than one glance ({glance:.3g}). {hint}")
