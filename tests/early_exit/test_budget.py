"""Thresholds by the paper's geometric rule, against the rule written out slowly."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from glancefocus.early_exit.budget import (
    RELEASED_RATIOS,
    best_points,
    direct_curve,
    geometric_curve,
    geometric_shares,
    geometric_thresholds,
)
from glancefocus.early_exit.look_table import LookTable


def table_of(score: NDArray[np.float32]) -> LookTable:
    count, looks = score.shape
    return LookTable(score, np.ones((count, looks), dtype=bool), np.arange(1.0, looks + 1))


def slow_rule(score: NDArray[np.float32], ratio: float) -> tuple[list[float | None], list[int]]:
    """The confidence from which on images leave at each look (None: nobody does), and the look at which each leaves.

    Written from the notes on the released code: out of N images floor(N x share) are to leave at a look; going through those that
    are still there from the surest down, the last of them gives the threshold; everybody at or above it leaves.
    """
    count, looks = score.shape
    powers = [ratio**k for k in range(1, looks + 1)]
    shares = [power / sum(powers) for power in powers]
    left_at: list[int | None] = [None] * count
    thresholds: list[float | None] = []
    for look in range(looks - 1):
        wanted = math.floor(count * shares[look])
        here = sorted((i for i in range(count) if left_at[i] is None), key=lambda i: -score[i, look])
        threshold = float(score[here[wanted - 1], look]) if 1 <= wanted <= len(here) else None
        thresholds.append(threshold)
        for i in here:
            if threshold is not None and score[i, look] >= threshold:
                left_at[i] = look
    return thresholds, [looks - 1 if look is None else look for look in left_at]


def random_scores(kind: str, seed: int) -> NDArray[np.float32]:
    generator = np.random.default_rng(seed)
    count, looks = int(generator.integers(1, 60)), int(generator.integers(2, 6))
    score = generator.random((count, looks), dtype=np.float32)
    if kind == "ties":
        score = np.round(score * 4) / np.float32(4)
    if kind == "all sure":
        score = np.ones_like(score)
    return score


@pytest.mark.parametrize("kind", ["random", "ties", "all sure"])
@pytest.mark.parametrize("seed", range(8))
def test_thresholds_let_leave_whom_the_slow_rule_lets_leave(kind: str, seed: int) -> None:
    score = random_scores(kind, seed)
    table = table_of(score)
    for ratio in RELEASED_RATIOS:
        expected, left_at = slow_rule(score, ratio)
        thresholds = geometric_thresholds(table, ratio)
        assert table.exits(thresholds).tolist() == left_at
        for ours, theirs in zip(thresholds[:-1], expected, strict=True):
            # we leave above a threshold and they at it: ours is the next smaller number
            assert ours == (1.0 if theirs is None else np.nextafter(np.float32(theirs), np.float32(-1)))
        assert thresholds[-1] == 0


def test_half_leave_at_once_and_a_quarter_after() -> None:
    # shares for ratio 1/2 over 3 looks: 4/7, 2/7, 1/7; of 8 images floor(4.57) = 4, floor(2.29) = 2, and the other 2
    score = np.tile(np.arange(8, dtype=np.float32)[:, None] / 8, (1, 3))
    table = table_of(score)
    thresholds = geometric_thresholds(table, 0.5)
    assert table.point(thresholds)["exits_per_look"] == [4, 2, 2]
    assert thresholds[:2].tolist() == pytest.approx([4 / 8, 2 / 8], abs=1e-6)


def test_shares_are_geometric_and_sum_to_one() -> None:
    assert geometric_shares(0.5, 3).tolist() == pytest.approx([4 / 7, 2 / 7, 1 / 7], abs=1e-12)
    assert geometric_shares(1.0, 4).tolist() == [0.25] * 4


def test_the_released_ratios_go_from_one_twentieth_to_195_hundredths() -> None:
    assert len(RELEASED_RATIOS) == 39
    assert RELEASED_RATIOS[0] == pytest.approx(0.05, abs=1e-12)
    assert RELEASED_RATIOS[-1] == pytest.approx(1.95, abs=1e-12)


def test_the_curve_goes_from_cheap_to_dear() -> None:
    score = np.random.default_rng(0).random((400, 4), dtype=np.float32)
    table = table_of(score)
    costs = [table.point(thresholds)["mean_macs"] for thresholds in geometric_curve(table)]
    assert len(costs) == 39
    assert costs == sorted(costs)  # type: ignore[type-var]
    assert costs[0] < 1.1  # type: ignore[operator]


def test_one_look_lets_everybody_go() -> None:
    assert geometric_thresholds(table_of(np.zeros((3, 1), dtype=np.float32)), 0.5).tolist() == [0.0]


def test_direct_search_is_never_worse_than_the_geometric_rule_at_its_price() -> None:
    random = np.random.default_rng(5)
    score = np.sort(random.random((400, 3)).astype(np.float32), axis=1)
    correct = random.random((400, 3)) < 0.3 + 0.7 * score
    table = LookTable(score, correct, np.array([1.0, 2.0, 3.0]))
    both = best_points(table, geometric_curve(table) + direct_curve(table, trade_offs=8))
    for thresholds in geometric_curve(table):
        point = table.point(thresholds)
        affordable = [p["accuracy"] for p in both if p["mean_macs"] <= point["mean_macs"]]
        assert max(affordable) >= point["accuracy"]


def test_direct_search_finds_exits_that_no_geometric_rule_has() -> None:
    # Everybody is right after the second look and nobody before: the best is to leave exactly there, all of them.
    score = np.tile(np.array([[0.5, 0.9, 0.9]], dtype=np.float32), (50, 1))
    correct = np.tile(np.array([[False, True, True]]), (50, 1))
    table = LookTable(score, correct, np.array([1.0, 2.0, 3.0]))
    best = best_points(table, direct_curve(table))[-1]
    assert (best["accuracy"], best["mean_macs"]) == (1.0, 2.0)


def test_points_that_cost_more_and_achieve_no_more_are_left_out() -> None:
    table = LookTable(
        np.array([[0.2, 0.9], [0.8, 0.9]], dtype=np.float32),
        np.array([[True, True], [True, True]]),
        np.array([1.0, 2.0]),
    )
    kept = best_points(table, [np.array([0.5, 0.0], np.float32), np.array([0.0, 0.0], np.float32)])
    assert [(p["mean_macs"], p["accuracy"]) for p in kept] == [(1.0, 1.0)]
