"""Everything that look records show about a bundle: curves, exit scores, candidate views, calibration, classes. No network runs."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypedDict, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glancefocus.bundle.bundle import Bundle
from glancefocus.errors import BadData
from glancefocus.evaluation.verdict import Verdict
from glancefocus.exits.budget import (
    cross_fitted,
    folds_for,
    solve_at,
    thresholds_of_a_run,
    wilson_interval,
    with_interval,
)
from glancefocus.exits.curve import Point, best_thresholds, stay_thresholds
from glancefocus.exits.record import STORED_SCORES, LookRecord
from glancefocus.exits.table import LookTable, Thresholds, look_of_nodes, stopping_at_random

if TYPE_CHECKING:  # it uses functions of this module
    from glancefocus.evaluation.every_look import AimsCheck


class Bin(TypedDict):
    """Answers with similar confidence: their mean confidence, the share that is right, and their number."""

    confidence: float
    accuracy: float
    count: float


def reliability(confidence: Tensor, correct: Tensor, bins: int = 10) -> tuple[list[Bin], float]:
    """The reliability diagram: bins of equal width over the confidence, and the expected calibration error in [0, 1]."""
    which = (confidence * bins).long().clamp(0, bins - 1)
    found: list[Bin] = []
    error = 0.0
    for number in range(bins):
        inside = which == number
        count = int(inside.sum())
        mean = float(confidence[inside].mean()) if count else (number + 0.5) / bins
        share = float(correct[inside].float().mean()) if count else 0.0
        found.append({"confidence": mean, "accuracy": share, "count": float(count)})
        error += count / len(confidence) * abs(mean - share)
    return found, error


BEST_ACCURACY = "the best accuracy, at the lowest cost"
"""The note in a bundle whose thresholds were chosen without a budget."""


@dataclass(frozen=True)
class Findings:
    """What an evaluation found: the report draws it, --json prints it, the CSV files hold it.

    Every accuracy is measured on images that the thresholds were not chosen on.

    data, chosen_on  for people: the images measured on, and the images that thresholds were chosen on
    accuracy_after_look, macs_after_look  if every image takes 1, 2, ... looks, with patches of the largest size, or views in order
    ms_after_look    None if no latency was measured; device is what it was measured on
    chosen           the point of the bundle's own thresholds, with accuracy_of_exits (per look; None if no image left)
    fixed_size_curves  {view: curve} of the same network with one of its candidate views; empty if it has only one
    scores           {score: curve} for other exit scores at the same budgets
    reliability, calibration_error  for each look: bins of the reliability diagram; expected calibration error in [0, 1]
    verdict, aims    the comparison with resized images; learnt aims against others, measured during training; None: not compared
    remarks          about the images, such as that training images were left out
    """

    data: str
    chosen_on: str
    images: int
    score: str
    views: list[str]
    accuracy_after_look: list[float]
    macs_after_look: list[int]
    backbone_macs: int
    curve: list[Point]
    chosen: Point
    ms_after_look: list[float] | None = None
    device: str | None = None
    fixed_size_curves: dict[str, list[Point]] = field(default_factory=dict)
    scores: dict[str, list[Point]] = field(default_factory=dict)
    reliability: list[list[Bin]] = field(default_factory=list)
    calibration_error: list[float] = field(default_factory=list)
    verdict: Verdict | None = None
    aims: "AimsCheck | None" = None
    remarks: list[str] = field(default_factory=list)

    @property
    def chooses_views(self) -> bool:
        """Whether the thresholds also choose among several views."""
        return isinstance(self.chosen["thresholds"][0], list | tuple)

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)


def assess(
    bundle: Bundle,
    record: LookRecord,
    choosing: LookRecord | None = None,
    *,
    chose: bool = False,
    points: int = 40,
    seed: int = 0,
) -> Findings:
    """Everything that the images of a record show about a bundle.

    choosing  the record of other images, to choose thresholds on; None: the bundle's own curve is measured. For what that does
              not hold (other scores, fixed sizes), thresholds are chosen on one half of the images and measured on the other,
              both ways
    chose     the bundle's thresholds were chosen on these very images, so measuring them here would be too optimistic: instead
              thresholds are chosen in the same way on some of the images and measured on the others, in turns
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
        chosen_on = _IN_TURNS if choosing is None else f"{choosing.about.source}, {choosing.about.split}"
    latency = bundle.latency_here()
    columns = [(record.confidence[:, node], table.correct[:, node]) for node in largest_nodes(table)]
    bins = [reliability(torch.from_numpy(np.array(sure)), torch.from_numpy(np.array(right))) for sure, right in columns]
    return Findings(
        data=f"{record.about.source}, {record.about.split}",
        chosen_on=chosen_on,
        images=len(table),
        score=bundle.score,
        views=[view.name for view in bundle.settings.candidates],
        accuracy_after_look=table.accuracy_after_look,
        macs_after_look=list(bundle.costs.macs_after_look),
        backbone_macs=bundle.costs.backbone_macs,
        curve=sorted(curve, key=lambda p: float(p["budget_macs"])),
        chosen=_with_exits(table, own_exits(bundle, table, chose=chose, seed=seed), own_thresholds(bundle)),
        ms_after_look=None if latency is None else list(latency.ms_after_look),
        device=None if latency is None else latency.words,
        fixed_size_curves=_fixed_sizes(bundle, table, chooser, points, seed),
        scores=_scores(bundle, record, choosing, seed),
        reliability=[found for found, _ in bins],
        calibration_error=[error for _, error in bins],
    )


def own_thresholds(bundle: Bundle) -> Any:
    """The thresholds that `predict` uses; for a bundle without any, thresholds with which every look is taken."""
    stay = stay_thresholds(bundle.settings.looks, bundle.settings.view_choices)
    return stay if bundle.thresholds is None else bundle.thresholds


def look_table(bundle: Bundle, record: LookRecord, score: str | None = None, seed: int = 0) -> LookTable:
    """The look table of a record for a score (None: the bundle's), with costs, and times if they were measured on this device."""
    score = bundle.score if score is None else score
    latency = bundle.latency_here()
    macs = bundle.costs.macs_of_tree(aims_first=score == "value")
    return record.table(macs, score=score, ms=None if latency is None else latency.ms_of_tree(), seed=seed)


def solved(chooser: LookTable | None, table: LookTable, budgets: Sequence[float], seed: int = 0) -> list[Point]:
    """An operating point for every budget, with thresholds chosen on another table; None: each half with those of the other."""
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
    """The rows of two random halves of the images."""
    order = np.random.default_rng(seed).permutation(count)
    return np.sort(order[: count // 2]), np.sort(order[count // 2 :])


def random_rows(count: int, most: int, seed: int = 0) -> NDArray[np.int64]:
    """At most this many random rows of a split, in order."""
    return np.sort(np.random.default_rng(seed).permutation(count)[:most])


def largest_nodes(table: LookTable) -> list[int]:
    """The node of every look with patches of the largest size: the last of its level."""
    return [int(level[-1]) for level in table.levels(np.arange(table.score.shape[1]))]


def _measured(table: LookTable, thresholds: Any, budget: float) -> Point:
    point = table.point(np.asarray(thresholds, dtype=np.float32))
    return with_interval({"budget_macs": float(budget), **point}, len(table))


def _pooled(one: Point, two: Point) -> Point:
    """One point for two halves of the images; its thresholds are those of the first half."""
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
    """The point of some thresholds, with the accuracy of the images that leave after each look."""
    return _with_exits(table, table.exits(np.asarray(thresholds, dtype=np.float32)), thresholds)


def own_exits(bundle: Bundle, table: LookTable, *, chose: bool, seed: int = 0) -> NDArray[np.int64]:
    """(N,) the node of the table where each image stops with the bundle's own thresholds.

    chose  the thresholds were chosen on these images, and applying them here would be too optimistic. Instead, each image stops by
           thresholds that are chosen in the same way on other images (cross-fitting): for the best accuracy, or for a budget, which
           is what the bundle's own cost on these images.
    """
    own = np.asarray(own_thresholds(bundle), dtype=np.float32)
    if not chose or bundle.thresholds is None or len(table) < 2:
        return table.exits(own)
    budget = table.point(own)["mean_macs"]
    goal = bundle.notes.get("thresholds_for")
    best = goal == BEST_ACCURACY if goal is not None else bundle.thresholds == best_thresholds(bundle.curve)

    def choose(others: LookTable) -> Thresholds:
        if best:
            return thresholds_of_a_run(others, bundle.costs.backbone_macs, seed)
        return solve_at(others, [budget], seed=seed)[0]

    return cross_fitted(replace(table, unit="macs"), choose, folds_for(table), seed).node


def _with_exits(table: LookTable, nodes: NDArray[np.int64], thresholds: Any) -> Point:
    right = table.correct[np.arange(len(table)), nodes]
    look = look_of_nodes(table)[nodes]
    shares = [float(right[look == t].mean()) if (look == t).any() else None for t in range(table.looks)]
    point = table.point_of_exits(nodes, np.asarray(thresholds, dtype=np.float32))
    return with_interval({**point, "accuracy_of_exits": shares}, len(table))


def _fixed_sizes(
    bundle: Bundle, table: LookTable, chooser: LookTable | None, points: int, seed: int
) -> dict[str, list[Point]]:
    if table.sizes == 1:
        return {}
    curves = {}
    for index, view in enumerate(bundle.settings.candidates):
        own = table.fixed_size(index)
        budgets = [b for b in _grid(table, points) if b <= own.dearest * (1 + 1e-9)]
        curves[view.name] = solved(None if chooser is None else chooser.fixed_size(index), own, budgets, seed)
    return curves


def _scores(bundle: Bundle, record: LookRecord, choosing: LookRecord | None, seed: int) -> dict[str, list[Point]]:
    """Every exit score at the same budgets; with several candidate views for the largest.

    random: as many images stop after each look as with the confidence, but chosen at random.
    """
    curves: dict[str, list[Point]] = {}
    learnt = bundle.settings.policy.kind == "learnt"
    for score in STORED_SCORES if learnt else STORED_SCORES[:2]:  # other policies have no critic
        table = look_table(bundle, record, score, seed)
        chooser = None if choosing is None else look_table(bundle, choosing, score, seed + 1)
        if table.sizes > 1:
            table = table.fixed_size(table.sizes - 1)
            chooser = None if chooser is None else chooser.fixed_size(chooser.sizes - 1)
        cheapest, dearest = bundle.costs.macs_of_tree(aims_first=True)[0], bundle.costs.macs_after_look[-1]
        curves[score] = solved(
            chooser, replace(table, unit="macs"), np.linspace(cheapest, dearest, 8)[1:-1].tolist(), seed
        )
    whole = look_table(bundle, record)
    own = whole.fixed_size(whole.sizes - 1)
    curves["random"] = [with_interval(stopping_at_random(own, p), len(own)) for p in curves["confidence"]]
    return curves


def _grid(table: LookTable, points: int) -> list[float]:
    return [float(b) for b in np.linspace(table.macs[0], table.macs.max(), points)]


_IN_TURNS = "parts of these images for the other parts, in turns"


@dataclass(frozen=True)
class Answers:
    """The final answer for every image of a record, with the bundle's own thresholds.

    label, answer  (N,) class indexes
    confidence     (N,) of the answer
    look           (N,) the look at which the image stopped, 0 for the glance
    """

    classes: tuple[str, ...]
    label: NDArray[np.int64]
    answer: NDArray[np.int64]
    confidence: NDArray[np.float64]
    look: NDArray[np.int64]

    @property
    def right(self) -> NDArray[np.bool_]:
        return np.asarray(self.label == self.answer)

    def __len__(self) -> int:
        return len(self.label)


@dataclass(frozen=True)
class ClassAccuracy:
    """The images of one class, how many of them are answered correctly, and the accuracy with its 95 % interval."""

    name: str
    images: int
    right: int
    accuracy: float
    low: float
    high: float


def answers_of(bundle: Bundle, record: LookRecord) -> Answers:
    """The answer for every image at the look where it stops."""
    count = len(bundle.classes)
    if int(record.label.max()) >= count or int(record.answer.max()) >= count:
        raise BadData(
            f"the look record has class indexes of {count} or more, but the bundle has {count} classes. Delete the record."
        )
    table = look_table(bundle, record)
    nodes = table.exits(np.asarray(own_thresholds(bundle), dtype=np.float32))
    rows = np.arange(len(table))
    return Answers(
        classes=tuple(bundle.classes),
        label=np.asarray(record.label, dtype=np.int64),
        answer=np.asarray(record.answer[rows, nodes], dtype=np.int64),
        confidence=np.asarray(record.confidence[rows, nodes], dtype=np.float64),
        look=look_of_nodes(table)[nodes],
    )


def confusion(answers: Answers) -> NDArray[np.int64]:
    """(classes, classes) images of each class (row) by their answer (column). For few classes: its size is their square."""
    count = len(answers.classes)
    flat = np.bincount(answers.label * count + answers.answer, minlength=count * count)
    return flat.reshape(count, count)


def accuracy_by_class(answers: Answers) -> list[ClassAccuracy]:
    """Every class that has images, the least accurate first."""
    count = len(answers.classes)
    of_class = np.bincount(answers.label, minlength=count)
    right_of_class = np.bincount(answers.label[answers.right], minlength=count)
    rows = []
    for name, images, right in zip(answers.classes, of_class.tolist(), right_of_class.tolist(), strict=True):
        if images:
            rows.append(ClassAccuracy(name, images, right, right / images, *wilson_interval(right / images, images)))
    return sorted(rows, key=lambda row: (row.accuracy, -row.images, row.name))


def frequent_confusions(answers: Answers, most: int) -> list[tuple[str, str, int]]:
    """(class, answer, images) of the most frequent mistakes."""
    wrong = ~answers.right
    pairs, counts = np.unique(np.stack([answers.label[wrong], answers.answer[wrong]]), axis=1, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:most]
    return [(answers.classes[pairs[0, i]], answers.classes[pairs[1, i]], int(counts[i])) for i in order]


def worst_mistakes(answers: Answers, most: int) -> list[int]:
    """Rows of wrong answers, the most confident first."""
    wrong = np.flatnonzero(~answers.right)
    return [int(row) for row in wrong[np.argsort(-answers.confidence[wrong], kind="stable")][:most]]


def examples(answers: Answers, each: int) -> list[tuple[str, list[int]]]:
    """For each look, (heading, rows) of a few images that stopped there with the right answer, of different classes if possible."""
    chosen = []
    for look in sorted(set(answers.look.tolist())):
        rows = np.flatnonzero(answers.right & (answers.look == look))
        words = "Answered at the glance" if look == 0 else f"Answered after {look + 1} looks"
        chosen.append((words, _mixed(rows, answers.label, each)))
    return [(words, rows) for words, rows in chosen if rows]


def _mixed(rows: NDArray[np.int64], label: NDArray[np.int64], most: int) -> list[int]:
    """The first rows, with one of each class before a second of any class."""
    seen: dict[int, int] = {}
    ranked: list[tuple[int, int]] = []
    for row in rows.tolist():
        seen[int(label[row])] = seen.get(int(label[row]), 0) + 1
        ranked.append((seen[int(label[row])], row))
    return [row for _, row in sorted(ranked)[:most]]
