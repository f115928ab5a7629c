"""Operating points, thresholds for any budget along a stored curve of them, and the milliseconds of looks."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NotRequired, TypedDict

import numpy as np

from glancefocus.errors import BadBudget
from glancefocus.loop import frozen


class Point(TypedDict):
    """An operating point: thresholds, and what they cost and achieve on some images.

    thresholds         one for each look; with several candidate views one row for each look
    mean_macs, mean_ms mean cost of an answer; milliseconds where latency was measured
    budget_macs, budget_ms  the budget that the thresholds were chosen for
    accuracy           share of right answers, counted; `_low` and `_high` are the ends of its 95 % interval
    expected_accuracy  how often answers with such scores are right: more reliable than a count when few images chose the thresholds
    exits_per_look     number of images that stop after each look
    accuracy_of_exits  accuracy of the images that stop after each look; None where no image does
    patches_per_look_and_size  number of patches of each size in each focus look, with several candidate views
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


def thresholds_at(curve: Sequence[Point], budget: float, cost_of: Callable[[Point], float]) -> Any | None:
    """Thresholds that spend the budget, interpolated between the two points around it; None where all points cost more.

    Points that cost more and achieve less than another one are ignored. With several candidate views, thresholds also choose the
    next view and cannot be interpolated: the most expensive point within the budget is taken.
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


def thresholds_within(
    curve: Sequence[Point],
    budget: float,
    spent: tuple[float, float],
    unit: Unit,
    shape: tuple[int, int],
    cost_of: Callable[[Point], float] | None = None,
) -> Sequence[Any]:
    """The most accurate stored thresholds whose mean cost is within the budget. Raises BadBudget.

    spent    the cost of one glance, and of every look
    shape    numbers of looks and of candidate views
    cost_of  the mean cost of a point; None: its multiply-adds
    """
    refuse_budget(budget, spent[0], unit)
    if budget >= spent[1]:
        return stay_thresholds(*shape)
    points = [p for p in curve if "mean_macs" in p and (unit == "macs" or "exits_per_look" in p)]
    if not points:
        raise BadBudget(
            "this bundle has no operating points to choose from. Solve them with `gf budget BUNDLE DATA`, "
            "or give thresholds or a number of looks instead."
        )
    # No point was measured between one glance and the cheapest point; to stop every image at the glance always fits.
    found = thresholds_at(points, budget, cost_of or (lambda point: float(point["mean_macs"])))
    return leave_thresholds(*shape) if found is None else found


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


@dataclass(frozen=True)
class Latency:
    """Milliseconds an image, the median of several measurements.

    device      its name
    threads     of the CPU that were used
    batch_size  images looked at together
    glance_ms   the first look
    focus_ms    (T - 1, K): look 2, 3, ... with each candidate view that thresholds choose among; the aim is part of the look
    runtime     the runtime that was measured; None: the network's own torch modules
    """

    device: str
    threads: int
    batch_size: int
    glance_ms: float
    focus_ms: tuple[tuple[float, ...], ...]
    runtime: str | None = None

    @property
    def words(self) -> str:
        """Where and how it was measured."""
        runtime = "" if self.runtime is None else f", {self.runtime}"
        return (
            f"{self.device}, {self.threads} thread{'' if self.threads == 1 else 's'}, batch {self.batch_size}{runtime}"
        )

    @property
    def ms_after_look(self) -> tuple[float, ...]:
        """Leaving after look 1, 2, ... T, with the largest patches, or with the views in their order."""
        return tuple(itertools.accumulate([self.glance_ms, *(sizes[-1] for sizes in self.focus_ms)]))

    def ms_of_tree(self) -> tuple[float, ...]:
        """Leaving after every sequence of candidate views, in the order of a look table's nodes."""
        level, tree = [self.glance_ms], [self.glance_ms]
        for sizes in self.focus_ms:
            level = [spent + ms for spent in level for ms in sizes]
            tree += level
        return tuple(tree)

    def mean_ms(self, point: Mapping[str, Any]) -> float:
        """What an operating point costs on average, from how many patches were looked at."""
        images = sum(point["exits_per_look"])
        patches = patches_of(point)
        spent = sum(
            n * ms
            for look, sizes in zip(patches, self.focus_ms, strict=True)
            for n, ms in zip(look, sizes, strict=True)
        )
        return float(self.glance_ms + spent / images)

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)


def patches_of(point: Mapping[str, Any]) -> list[Sequence[int]]:
    """(T - 1, K) how many patches of each size an operating point looks at in look 2, 3, ..."""
    if "patches_per_look_and_size" in point:
        return list(point["patches_per_look_and_size"])
    exits = point["exits_per_look"]
    return [[sum(exits[look:])] for look in range(1, len(exits))]
