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


def direct_curve(table: LookTable, levels: int = 24, trade_offs: int = 24) -> list[NDArray[np.float32]]:
    """Thresholds searched for directly: accuracy less a price for multiply-adds, for many prices.

    For each price the thresholds of one look at a time are set to the best of `levels` quantiles of its scores, in turns until
    nothing changes; it starts from the geometric rule's best.
    """
    starts = geometric_curve(table)
    points = [table.point(start) for start in starts]
    spread = float(table.macs[-1] - table.macs[0]) or 1.0
    candidates = [_levels(table.score[:, look], levels) for look in range(table.looks - 1)]
    found = []
    for price in np.geomspace(0.003, 3.0, trade_offs) / spread:
        worth = [float(p["accuracy"]) - price * float(p["mean_macs"]) for p in points]  # type: ignore[arg-type]
        best, thresholds = max(worth), starts[int(np.argmax(worth))].copy()
        for _ in range(4):
            before = best
            for look, choices in enumerate(candidates):
                for choice in choices:
                    tried = thresholds.copy()
                    tried[look] = choice
                    point = table.point(tried)
                    value = float(point["accuracy"]) - price * float(point["mean_macs"])  # type: ignore[arg-type]
                    if value > best:
                        best, thresholds = value, tried
            if best == before:
                break
        found.append(thresholds)
    return found


def _levels(scores: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """Thresholds worth trying: just below some of the scores, and 1, above which nobody is."""
    quantiles = np.quantile(scores, np.linspace(0, 1, count), method="nearest").astype(np.float32)
    return np.unique(np.append(np.nextafter(quantiles, np.float32(-1)), np.float32(1)))


def best_points(table: LookTable, curve: list[NDArray[np.float32]]) -> list[dict[str, object]]:
    """The operating points of a curve on this table, cheapest first, without those that cost more and achieve no more."""
    points = [table.point(thresholds) for thresholds in curve]
    kept: list[dict[str, object]] = []
    for point in sorted(points, key=lambda p: (p["mean_macs"], -float(p["accuracy"]))):  # type: ignore[arg-type]
        if not kept or float(point["accuracy"]) > float(kept[-1]["accuracy"]):  # type: ignore[arg-type]
            kept.append(point)
    return kept
