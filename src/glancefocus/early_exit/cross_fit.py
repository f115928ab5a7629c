"""Cross-fitting: what thresholds cost and achieve, where every image is judged by thresholds that it did not choose."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from glancefocus.early_exit.look_table import LookTable, Thresholds, level_sizes
from glancefocus.errors import BadData, BadSetting


@dataclass(frozen=True)
class CrossFitted:
    """What became of every image, judged by thresholds that other images chose.

    node     (N,) the column of the table where the image left
    look     (N,) the same as a look, counted from 0
    correct  (N,) bool
    cost     (N,) in the table's unit
    fold     (N,) the group of the image; its thresholds were chosen on all other groups
    looks    how many looks there are
    unit     of the costs
    chosen   the thresholds that judged each group
    """

    node: NDArray[np.int64]
    look: NDArray[np.int64]
    correct: NDArray[np.bool_]
    cost: NDArray[np.float64]
    fold: NDArray[np.int64]
    looks: int
    unit: Literal["macs", "ms"]
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
        """How many images left after each look."""
        return np.bincount(self.look, minlength=self.looks).tolist()  # type: ignore[no-any-return]


def cross_fitted(
    table: LookTable, choose: Callable[[LookTable], Thresholds], folds: int = 5, seed: int = 0
) -> CrossFitted:
    """Choose thresholds on all groups of images but one, apply them to that one, and do so for every group.

    choose  thresholds of a table; called once for each group
    folds   number of groups; at most one for each image
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
    look_of_node = np.repeat(np.arange(table.looks), level_sizes(table.looks, table.sizes))
    return CrossFitted(
        node=node,
        look=look_of_node[node],
        correct=np.asarray(table.correct[np.arange(len(table)), node]),
        cost=table.cost[node],
        fold=fold,
        looks=table.looks,
        unit=table.unit,
        chosen=tuple(chosen),
    )


def fold_of_rows(count: int, folds: int, seed: int = 0) -> NDArray[np.int64]:
    """(N,) a group for every image, by chance; the groups differ in size by at most one image."""
    return np.random.default_rng(seed).permutation(np.arange(count) % min(folds, count))
