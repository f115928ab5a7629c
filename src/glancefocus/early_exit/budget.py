"""Thresholds out of a look table (paper, section 3.4)."""

import numpy as np
from numpy.typing import NDArray

from glancefocus.early_exit.look_table import LookTable

# The released code's range; below 1 most images leave early, above 1 most leave late. The paper's rule is the half below 1.
RELEASED_RATIOS = tuple(np.arange(1, 40) / 20)


def geometric_shares(ratio: float, looks: int) -> NDArray[np.float64]:
    """(T,) the share of images that should leave after each look: proportional to ratio^t, summing to 1."""
    shares = ratio ** np.arange(1, looks + 1, dtype=np.float64)
    return np.asarray(shares / shares.sum())


def geometric_thresholds(table: LookTable, ratio: float) -> NDArray[np.float32]:
    """(T,) thresholds that let the geometric shares leave: at each look the surest of those that are still there.

    A look from which nobody leaves gets 1; the last one gets 0, where everybody does.
    """
    count = table.score.shape[0]
    thresholds = np.ones(table.looks, dtype=np.float32)
    thresholds[-1] = 0
    here = np.ones(count, dtype=bool)
    for look, share in enumerate(geometric_shares(ratio, table.looks)[:-1]):
        leaving = int(np.floor(count * share))
        scores = table.score[here, look]
        if leaving < 1 or leaving > len(scores):
            continue
        surest = np.partition(scores, len(scores) - leaving)[len(scores) - leaving]
        # We leave above a threshold, the rule at it or above: the least step below makes both the same.
        thresholds[look] = np.nextafter(surest, np.float32(-1))
        here &= table.score[:, look] < surest
    return thresholds


def geometric_curve(table: LookTable, ratios: tuple[float, ...] = RELEASED_RATIOS) -> list[NDArray[np.float32]]:
    """Thresholds for every ratio, from cheap to dear."""
    return [geometric_thresholds(table, ratio) for ratio in ratios]
