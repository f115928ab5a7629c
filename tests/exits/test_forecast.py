"""Intervals for what thresholds will cost and achieve on new images."""

import numpy as np
import pytest

from glancefocus.exits.budget import cross_fitted, forecast_of_choosers, forecast_of_others, images_needed, solve_within
from glancefocus.exits.table import LookTable, Thresholds


def world(count: int, seed: int = 0) -> LookTable:
    """Easy and hard images; scores that promise more than they keep. 1, 2, 3 multiply-adds."""
    random = np.random.default_rng(seed)
    ease = 1.5 * random.normal(size=(count, 1)) + 0.8 * np.arange(3) + 0.5 * random.normal(size=(count, 3))
    correct = random.random((count, 3)) < 1 / (1 + np.exp(-ease))
    return LookTable((1 / (1 + np.exp(-2 * ease - 1))).astype(np.float32), correct, np.array([1.0, 2.0, 3.0]))


def leaves_half() -> Thresholds:
    return np.array([0.7, -1.0, 0.0], dtype=np.float32)


def coins(tails: int, count: int = 100) -> LookTable:
    """Some of a hundred images take two looks, and are wrong; the others take one."""
    score = np.where(np.arange(count) < tails, 0.0, 1.0).astype(np.float32)[:, None].repeat(3, axis=1)
    return LookTable(score, score > 0.5, np.array([1.0, 2.0, 3.0]))


def test_the_interval_of_a_coin_is_that_of_a_binomial() -> None:
    # Half of 100 look twice: the mean cost is 1.5, with a standard error of sqrt(0.25 / 100) for the share and of
    # sqrt(0.25 / 3000) for new images: together 0.0508. 1.96 of them are 0.0996.
    found = forecast_of_others(coins(50), leaves_half())
    assert (found.cost, found.accuracy, found.images, found.new_images, found.unit) == (1.5, 0.5, 100, 3000, "macs")
    assert (found.cost_low, found.cost_high) == pytest.approx((1.40, 1.60), abs=0.015)
    assert (found.accuracy_low, found.accuracy_high) == pytest.approx((0.40, 0.60), abs=0.015)
    assert found.cost_share == pytest.approx(0.1 / 1.5, abs=0.01)
    assert not found.too_few


def test_images_that_all_leave_at_once_do_not_promise_that_all_will() -> None:
    found = forecast_of_others(coins(0, count=20), leaves_half())
    assert (found.cost, found.accuracy) == (1.0, 1.0)
    assert found.cost_low == 1.0
    assert 1.05 < found.cost_high < 1.5
    assert 0.8 < found.accuracy_low < 0.95


def test_more_images_make_the_interval_narrower_down_to_that_of_the_new_ones() -> None:
    few, many, most = (forecast_of_others(world(count), leaves_half()) for count in (50, 500, 50_000))
    assert few.cost_share > 2.5 * many.cost_share > 3 * most.cost_share
    # of 3,000 new images the standard error remains: half of the interval is 1.96 of them
    left = 1.96 * most.cost * 0.5 / np.sqrt(3000)
    assert most.cost_high - most.cost == pytest.approx(left, rel=0.4)


def test_it_gives_the_number_of_images_needed() -> None:
    # 25 images gave plus or minus 0.2 of 1: a tenth needs four times as many, but for what the new images add.
    assert images_needed(0.2, 1.0, 25, 10**9) == 100
    assert images_needed(0.2, 1.0, 25, 3000) == 110  # two digits, rounded up
    assert images_needed(0.05, 1.0, 100, 10**9) == 25
    assert images_needed(0.0, 1.0, 7, 3000) == 7
    few = forecast_of_others(world(20), leaves_half())
    assert few.too_few
    assert few.images_needed > 20
    enough = forecast_of_others(world(few.images_needed), leaves_half())
    assert enough.cost_share == pytest.approx(0.1, abs=0.02)


def test_thresholds_that_cost_more_than_those_that_judged_are_expected_to() -> None:
    # Judged by thresholds with which all leave at the glance; the ones to forecast let half of the images look twice.
    table = coins(50)
    judged = cross_fitted(table, lambda part: part.leave())
    found = forecast_of_choosers(table, leaves_half(), judged)
    assert judged.mean_cost == 1.0
    assert found.cost == 1.5
    assert found.cost_low <= 1.5 <= found.cost_high
    same = forecast_of_choosers(table, table.leave(), judged)
    assert (same.cost, same.cost_low) == (1.0, 1.0)


def test_the_interval_from_70_images_holds_the_cost_on_others() -> None:
    # All of it is repeated: 30 times 70 images choose, and 3,000 others are measured. 95 % are promised, and fewer than 26 of 30
    # would be seen by chance once in 60 times.
    everything = world(30_000)
    order = np.random.default_rng(1)
    held = {"cost": 0, "accuracy": 0}
    spent = []
    for _ in range(30):
        rows = order.permutation(len(everything))
        table, others = everything.rows(rows[:70]), everything.rows(rows[70:3070])

        def choose(part: LookTable) -> Thresholds:
            return solve_within(part, 1.6)

        thresholds = choose(table)
        found = forecast_of_choosers(table, thresholds, cross_fitted(table, choose))
        point = others.point(thresholds)
        held["cost"] += found.cost_low <= point["mean_macs"] <= found.cost_high
        held["accuracy"] += found.accuracy_low <= point["accuracy"] <= found.accuracy_high
        spent.append(point["mean_macs"])
    assert held["cost"] >= 26
    assert held["accuracy"] >= 26
    assert np.mean(spent) == pytest.approx(1.6, abs=0.05)
