"""The look table: score, correctness and cost of every image after every look. Thresholds and curves are computed from it.

Whether one of 70 images is right at some look is mostly chance, and thresholds that follow it do not generalise. So solvers do not
count right answers. They add up how likely each answer is right given its score (`expected_correct`), from a smooth curve with
three parameters for each look that is fitted to all images.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glancefocus.errors import BadData, BadSetting
from glancefocus.exits.curve import Point, Unit, leave_thresholds, mean_cost, refuse_budget, stay_thresholds

Thresholds = NDArray[np.float32]
"""(T,), one for each look; with several candidate views (T, K), one for each look and view. Every image stops after the last."""


@dataclass(frozen=True)
class LookTable:
    """One row for each image, one column for each sequence of looks.

    With one candidate view a column is a look. With K sizes the looks form a tree, whose nodes are the columns: one for the glance,
    K for the second look, K x K for the third, level by level. The children of node j of a level are nodes K j + k of the next.

    score    (N, nodes) float32 in [0, 1]; an image stops where its score is above the threshold
    correct  (N, nodes) bool: whether the answer there is right
    macs     (nodes,) multiply-adds of stopping there
    ms       (nodes,) milliseconds of stopping there, on one device; None: not measured
    sizes    K, the number of candidate views
    unit     of budgets and costs
    """

    score: NDArray[np.float32]
    correct: NDArray[np.bool_]
    macs: NDArray[np.float64]
    sizes: int = 1
    ms: NDArray[np.float64] | None = None
    unit: Unit = "macs"

    def __post_init__(self) -> None:
        if self.score.shape != self.correct.shape or self.score.shape[1] != self.macs.shape[0]:
            raise BadData(
                f"a look table needs one score, one answer and one cost a look, but got {self.score.shape}, "
                f"{self.correct.shape} and {self.macs.shape}."
            )
        if not np.isfinite(self.score).all():
            raise BadData("the look table has scores that are not numbers; the network's answers are broken.")
        for costs in (self.macs, self.ms):
            if costs is not None and not (np.isfinite(costs).all() and (costs >= 0).all()):
                raise BadData(f"costs of looks must be numbers, 0 or more, but got {np.asarray(costs).tolist()}.")
        if level_sizes(self.looks, self.sizes).sum() != self.score.shape[1]:
            raise BadData(f"{self.score.shape[1]} columns are not a tree of looks with {self.sizes} candidate views.")

    def __len__(self) -> int:
        return int(self.score.shape[0])

    @property
    def looks(self) -> int:
        nodes, level, looks = self.score.shape[1], 1, 0
        while nodes > 0:
            nodes, level, looks = nodes - level, level * self.sizes, looks + 1
        return looks

    @property
    def cost(self) -> NDArray[np.float64]:
        """(nodes,) the cost of stopping at each node, in the unit of budgets."""
        if self.unit == "macs":
            return self.macs
        if self.ms is None:
            raise BadData("this look table has no milliseconds: no latency was measured on this device.")
        return self.ms

    @property
    def cheapest(self) -> float:
        """The cost when every image stops after the glance."""
        return float(self.cost[0])

    @property
    def dearest(self) -> float:
        """The cost when every image takes every look, with the most expensive patches."""
        return float(self.cost.max())

    @property
    def accuracy_after_look(self) -> list[float]:
        """The accuracy when all images take 1, 2, ... T looks, with patches of the largest size."""
        ends = np.cumsum(level_sizes(self.looks, self.sizes))
        return [float(self.correct[:, end - 1].mean()) for end in ends]

    @staticmethod
    def of(answer_after: Tensor, confidence_after: Tensor, labels: Tensor, macs: tuple[int, ...]) -> "LookTable":
        """From an outcome in which every look was taken, with patches of one size."""
        correct = answer_after.cpu() == labels.cpu()[:, None]
        return LookTable(
            confidence_after.cpu().to(torch.float32).numpy(), correct.numpy(), np.asarray(macs, dtype=np.float64)
        )

    def rows(self, rows: NDArray[Any]) -> "LookTable":
        """The table of some of the images."""
        return replace(self, score=self.score[rows], correct=self.correct[rows])

    def fixed_size(self, size: int) -> "LookTable":
        """The table for one candidate view only; size is its number."""
        return self.along([size] * (self.looks - 1))

    def along(self, path: Sequence[int]) -> "LookTable":
        """The table for this candidate view at the second look, at the third, ...: one column for each look."""
        nodes = path_nodes(path, self.sizes)
        return replace(
            self,
            score=np.ascontiguousarray(self.score[:, nodes]),
            correct=np.ascontiguousarray(self.correct[:, nodes]),
            macs=self.macs[nodes],
            ms=None if self.ms is None else self.ms[nodes],
            sizes=1,
        )

    def exits(self, thresholds: Thresholds) -> NDArray[np.int64]:
        """(N,) the node at which each image stops; with one size that is its look, counted from 0."""
        exits = np.zeros(len(self), dtype=np.min_scalar_type(self.score.shape[1]))
        for node, leaving in self.leaving(thresholds):
            exits += leaving * exits.dtype.type(node)
        return exits.astype(np.int64)

    def leaving(self, thresholds: Thresholds) -> Iterator[tuple[int, NDArray[np.bool_]]]:
        """Each node that images reach, with the images that stop there, (N,) bool.

        An image stops when its score is above the largest threshold of its look. Otherwise the smallest threshold that it is not
        above gives the size of its next patch, the first of equal ones (paper, section 4.2).
        """
        here, start = {0: np.ones(len(self), dtype=np.bool_)}, 0  # by node within the level
        for look, row in enumerate(self._rows_of(thresholds)[:-1]):
            below = {}
            for place, there in here.items():
                score = self._score_columns[start + place]
                for size in np.argsort(row, kind="stable").tolist():
                    surer = there & (score > row[size])
                    below[place * self.sizes + size] = there ^ surer
                    there = surer
                yield start + place, there
            here = {place: there for place, there in below.items() if there.any()}
            start += self.sizes**look
        for place, there in here.items():
            yield start + place, there

    def _rows_of(self, thresholds: Thresholds) -> NDArray[np.float32]:
        """(T, K)"""
        rows = np.asarray(thresholds)
        if rows.size != self.looks * self.sizes or np.isnan(rows).any():
            raise BadSetting(
                f"{self.looks} looks with {self.sizes} candidate view{'s' if self.sizes > 1 else ''} need "
                f"{self.looks * self.sizes} thresholds that are numbers, but got {rows.tolist()}."
            )
        return rows.reshape(self.looks, self.sizes)

    # Columns are read far more often than rows, and reading a column of a row-major array is slow.
    @cached_property
    def _score_columns(self) -> NDArray[np.float32]:
        return np.ascontiguousarray(self.score.T)

    @cached_property
    def _correct_columns(self) -> NDArray[np.bool_]:
        return np.ascontiguousarray(self.correct.T)

    def point(self, thresholds: Thresholds) -> Point:
        """The operating point of these thresholds on this table."""
        at_node = np.zeros(self.score.shape[1], dtype=np.int64)
        right = 0
        for node, leaving in self.leaving(thresholds):
            at_node[node] = np.count_nonzero(leaving)
            right += int(np.count_nonzero(leaving & self._correct_columns[node]))
        return self._point(at_node, right, thresholds)

    def point_of_exits(self, nodes: NDArray[np.int64], thresholds: Thresholds) -> Point:
        """The operating point when each image stops at a given node (N,), for instance one found by cross-fitting."""
        right = int(np.count_nonzero(self.correct[np.arange(len(self)), nodes]))
        return self._point(np.bincount(nodes, minlength=self.score.shape[1]), right, thresholds)

    def _point(self, at_node: NDArray[np.int64], right: int, thresholds: Thresholds) -> Point:
        counts = [int(level.sum()) for level in self.levels(at_node)]
        point: Point = {
            "mean_macs": float(self.macs @ at_node / len(self)),
            "accuracy": right / len(self),
            "thresholds": np.asarray(thresholds, dtype=np.float64).tolist(),
            "exits_per_look": counts,
        }
        if self.ms is not None:
            point["mean_ms"] = float(self.ms @ at_node / len(self))
        if self.sizes > 1:
            point["patches_per_look_and_size"] = self._patches(at_node).tolist()
        return point

    def _patches(self, at_node: NDArray[np.int64]) -> NDArray[np.int64]:
        """(T - 1, K) the number of patches of each size in each focus look."""
        levels = [level.copy() for level in self.levels(at_node)]
        for upper, lower in zip(levels[-2::-1], levels[:0:-1], strict=True):
            upper += lower.reshape(-1, self.sizes).sum(axis=1)  # images that stop further down have passed this node
        by_size = [level.reshape(-1, self.sizes).sum(axis=0) for level in levels[1:]]
        return np.asarray(by_size, dtype=np.int64).reshape(self.looks - 1, self.sizes)

    def levels(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """Values of all nodes, divided by look."""
        return np.split(values, np.cumsum(level_sizes(self.looks, self.sizes))[:-1])

    def stay(self) -> Thresholds:
        """Thresholds with which every image takes every look, with patches of the largest size."""
        return np.asarray(stay_thresholds(self.looks, self.sizes), dtype=np.float32)

    def leave(self) -> Thresholds:
        """Thresholds with which every image stops after the glance."""
        return np.asarray(leave_thresholds(self.looks, self.sizes), dtype=np.float32)


def stopping_at_random(table: LookTable, point: Point) -> Point:
    """The point if as many images stopped after each look, but chosen at random (paper, ablation of the criterion).

    The accuracy is the mean over all such choices, so nothing is drawn. For tables with one candidate view.
    """
    must_have_one_size(table)
    stopping = np.asarray(point["exits_per_look"], dtype=np.float64)
    shares = stopping / stopping.sum()
    return {**point, "accuracy": float(shares @ np.asarray(table.accuracy_after_look))}


def level_sizes(looks: int, sizes: int) -> NDArray[np.int64]:
    """(T,) the number of nodes of each look in the tree of candidate views."""
    return np.asarray(sizes ** np.arange(looks, dtype=np.int64))


def look_of_nodes(table: LookTable) -> NDArray[np.int64]:
    """(nodes,) the look that each node of a table belongs to, 0 for the glance."""
    return np.repeat(np.arange(table.looks), level_sizes(table.looks, table.sizes))


def path_nodes(path: Sequence[int], sizes: int) -> list[int]:
    """The node of every look on a path of candidate views (their indexes), the glance first."""
    nodes, start, place, width = [0], 0, 0, 1
    for size in path:
        start, width, place = start + width, width * sizes, place * sizes + size
        nodes.append(start + place)
    return nodes


def check_budget(table: LookTable, budget: float) -> bool:
    """True if the budget is a limit, False if every look fits into it; a budget below one glance is refused."""
    refuse_budget(budget, table.cheapest, table.unit)
    return budget < table.dearest


def check_table(table: LookTable) -> None:
    """Refuse a table from which no thresholds can be chosen."""
    if len(table) < 2:
        raise BadData(
            f"thresholds need at least 2 images to be chosen on, but got {len(table)}. Give more images that the network was "
            "not trained on; some hundreds are a good start."
        )
    before_last = table.score[:, : -int(level_sizes(table.looks, table.sizes)[-1])]
    if before_last.shape[1] > 0 and bool(np.all(before_last == before_last[0])):
        raise BadData(
            f"all {len(table)} images have the same score at every look ({before_last[0, 0]:.3g} at the glance), so that no "
            "threshold can tell them apart. Is the network trained? Train it, or give images that differ."
        )


Worth = NDArray[np.float64]
"""(N, nodes) the value of stopping there: 1 for a right answer, 0 for a wrong one, or how likely it is right."""


def must_have_one_size(table: LookTable) -> None:
    """Refuse tables of several candidate views: their columns are nodes of a tree, not looks."""
    if table.sizes != 1:
        raise ValueError(
            f"the table has {table.sizes} candidate views; take table.fixed_size(size), or a genetic search."
        )


def cost_and_accuracy(point: Point, unit: Unit) -> tuple[float, float]:
    """The mean cost of an operating point, in this unit, and its accuracy."""
    return mean_cost(point, unit), point["accuracy"]


def cost_and_worth(
    table: LookTable, thresholds: Thresholds, worth: NDArray[np.float64] | None = None
) -> tuple[float, float]:
    """The mean cost of thresholds on a table, and the mean worth of the answers; without worth, their accuracy."""
    if worth is None:
        return cost_and_accuracy(table.point(thresholds), table.unit)
    nodes = table.exits(thresholds)
    at_node = np.bincount(nodes, minlength=len(table.cost))
    return float(table.cost @ at_node / len(table)), float(worth[np.arange(len(table)), nodes].mean())


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
