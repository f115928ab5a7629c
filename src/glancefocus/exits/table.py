"""The look table: score, correctness and cost of every image after every look. All that thresholds and curves are made of."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glancefocus.errors import BadData, BadSetting
from glancefocus.exits.curve import Point, Unit, leave_thresholds, refuse_budget, stay_thresholds

Thresholds = NDArray[np.float32]
"""(T,), one for each look; with several patch sizes (T, K), one for each look and size. The last look lets everybody go."""


@dataclass(frozen=True)
class LookTable:
    """One row an image, one column a way to have come so far.

    With one patch size a column is a look. With K sizes the looks form a tree, whose nodes are the columns: one for the glance,
    K for the second look, K x K for the third, level by level; the children of node j of a level are nodes K j + k of the next.

    score    (N, nodes) float32 in [0, 1], the larger the surer; an image leaves where it is above the threshold
    correct  (N, nodes) bool
    macs     (nodes,) multiply-adds of leaving there
    ms       (nodes,) the same in milliseconds on some device; None where nobody measured
    sizes    K, the number of patch sizes
    unit     what budgets and prices are counted in
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
            raise BadData(f"{self.score.shape[1]} columns are not a tree of looks with {self.sizes} patch sizes.")

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
        """(nodes,) what budgets are counted in."""
        if self.unit == "macs":
            return self.macs
        if self.ms is None:
            raise BadData("this look table has no milliseconds: no latency was measured on this device.")
        return self.ms

    @property
    def cheapest(self) -> float:
        """What it costs when everybody leaves at the glance."""
        return float(self.cost[0])

    @property
    def dearest(self) -> float:
        """What it costs when everybody takes every look, with the dearest patches."""
        return float(self.cost.max())

    @property
    def accuracy_after_look(self) -> list[float]:
        """Of images that take so many looks, with patches of the largest size."""
        ends = np.cumsum(level_sizes(self.looks, self.sizes))
        return [float(self.correct[:, end - 1].mean()) for end in ends]

    @staticmethod
    def of(answer_after: Tensor, confidence_after: Tensor, labels: Tensor, macs: tuple[int, ...]) -> "LookTable":
        """Out of an outcome for which every look was taken, with patches of one size."""
        correct = answer_after.cpu() == labels.cpu()[:, None]
        return LookTable(
            confidence_after.cpu().to(torch.float32).numpy(), correct.numpy(), np.asarray(macs, dtype=np.float64)
        )

    def rows(self, rows: NDArray[Any]) -> "LookTable":
        """The table of these images only."""
        return replace(self, score=self.score[rows], correct=self.correct[rows])

    def fixed_size(self, size: int) -> "LookTable":
        """The table of looking with patches of one size only; size is its index."""
        nodes = path_nodes([size] * (self.looks - 1), self.sizes)
        return replace(
            self,
            score=np.ascontiguousarray(self.score[:, nodes]),
            correct=np.ascontiguousarray(self.correct[:, nodes]),
            macs=self.macs[nodes],
            ms=None if self.ms is None else self.ms[nodes],
            sizes=1,
        )

    def exits(self, thresholds: Thresholds) -> NDArray[np.int64]:
        """(N,) the node at which each image leaves; with one size that is its look, counted from 0."""
        exits = np.zeros(len(self), dtype=np.min_scalar_type(self.score.shape[1]))
        for node, leaving in self.leaving(thresholds):
            exits += leaving * exits.dtype.type(node)
        return exits.astype(np.int64)

    def leaving(self, thresholds: Thresholds) -> Iterator[tuple[int, NDArray[np.bool_]]]:
        """Nodes that images come to, each with who leaves there, (N,) bool.

        An image leaves when it is surer than the largest threshold of its look. Otherwise the smallest threshold that it is not
        above names the size of its next patch, the first of those that are equal (paper, section 4.2).
        """
        here, start = {0: np.ones(len(self), dtype=np.bool_)}, 0  # by their place within the level
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
                f"{self.looks} looks with {self.sizes} patch size{'s' if self.sizes > 1 else ''} need "
                f"{self.looks * self.sizes} thresholds that are numbers, but got {rows.tolist()}."
            )
        return rows.reshape(self.looks, self.sizes)

    # Whole columns are read far more often than rows, and a column of a table that lies row by row is slow to read.
    @cached_property
    def _score_columns(self) -> NDArray[np.float32]:
        return np.ascontiguousarray(self.score.T)

    @cached_property
    def _correct_columns(self) -> NDArray[np.bool_]:
        return np.ascontiguousarray(self.correct.T)

    def point(self, thresholds: Thresholds) -> Point:
        """What these thresholds cost and achieve on this table."""
        at_node = np.zeros(self.score.shape[1], dtype=np.int64)
        right = 0
        for node, leaving in self.leaving(thresholds):
            at_node[node] = np.count_nonzero(leaving)
            right += int(np.count_nonzero(leaving & self._correct_columns[node]))
        return self._point(at_node, right, thresholds)

    def point_of_exits(self, nodes: NDArray[np.int64], thresholds: Thresholds) -> Point:
        """The same where each image leaves at a node (N,) that was found otherwise, such as by cross-fitting."""
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
        """(T - 1, K) how many patches of each size were looked at in each focus look."""
        levels = [level.copy() for level in self.levels(at_node)]
        for upper, lower in zip(levels[-2::-1], levels[:0:-1], strict=True):
            upper += lower.reshape(-1, self.sizes).sum(axis=1)  # who left further down has been here
        by_size = [level.reshape(-1, self.sizes).sum(axis=0) for level in levels[1:]]
        return np.asarray(by_size, dtype=np.int64).reshape(self.looks - 1, self.sizes)

    def levels(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """Values of all nodes, look by look."""
        return np.split(values, np.cumsum(level_sizes(self.looks, self.sizes))[:-1])

    def stay(self) -> Thresholds:
        """Thresholds with which nobody leaves before the last look, with patches of the largest size."""
        return np.asarray(stay_thresholds(self.looks, self.sizes), dtype=np.float32)

    def leave(self) -> Thresholds:
        """Thresholds with which everybody leaves at the glance."""
        return np.asarray(leave_thresholds(self.looks, self.sizes), dtype=np.float32)


def level_sizes(looks: int, sizes: int) -> NDArray[np.int64]:
    """(T,) how many nodes each look has in the tree of patch sizes."""
    return np.asarray(sizes ** np.arange(looks, dtype=np.int64))


def path_nodes(path: Sequence[int], sizes: int) -> list[int]:
    """The node of every look on a path of patch sizes (their indexes), the glance first."""
    nodes, start, place, width = [0], 0, 0, 1
    for size in path:
        start, width, place = start + width, width * sizes, place * sizes + size
        nodes.append(start + place)
    return nodes


def check_budget(table: LookTable, budget: float) -> bool:
    """True where the budget binds, False where every look fits into it; a budget that cannot be met is refused."""
    refuse_budget(budget, table.cheapest, table.unit)
    return budget < table.dearest


def check_table(table: LookTable) -> None:
    """Refuses a table out of which no thresholds can be found."""
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
