"""Direct search for thresholds: the best there are, within the budget, and never worse than the geometric rule."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from glancefocus.errors import BadBudget
from glancefocus.exits.one_size import direct_curve, direct_within, geometric_within
from glancefocus.exits.table import LookTable, Thresholds

ONE_TWO = np.array([1.0, 2.0])


def plausible(seed: int, count: int = 150, looks: int = 4, *, rough: bool = False) -> LookTable:
    """Images that are easy or hard; surer and more often right with every look. Rough: only twelve different scores."""
    random = np.random.default_rng(seed)
    ease = random.normal(size=(count, 1)) + 0.4 * np.arange(looks) + 0.6 * random.normal(size=(count, looks))
    chance = 1 / (1 + np.exp(-1.5 * ease))
    score = np.ceil(chance * 12) / 12 if rough else chance
    macs = np.cumsum(random.integers(1, 5, looks)).astype(np.float64)
    return LookTable(score.astype(np.float32), random.random((count, looks)) < chance, macs)


def all_cuts(table: LookTable) -> list[Thresholds]:
    """Every different way to cut each look."""
    below = [[1.0, *np.nextafter(np.unique(column), np.float32(-1))] for column in table.score.T[:-1]]
    return [np.array([*cuts, 0], dtype=np.float32) for cuts in itertools.product(*below)]


@pytest.mark.parametrize(("looks", "rough"), [(3, False), (3, True), (4, False), (2, True)])
@pytest.mark.parametrize("seed", range(4))
def test_on_tiny_tables_it_finds_the_best_of_all_cuts(seed: int, looks: int, rough: bool) -> None:
    table = plausible(seed, count=8, looks=looks, rough=rough)
    everything = [(p["accuracy"], p["mean_macs"]) for p in map(table.point, all_cuts(table))]
    for budget in np.linspace(table.cheapest, table.dearest, 7):
        point = table.point(direct_within(table, budget))
        assert (point["accuracy"], point["mean_macs"]) == max(p for p in everything if p[1] <= budget)


@pytest.mark.parametrize(("seed", "looks", "rough"), [(0, 3, False), (1, 4, False), (2, 5, False), (3, 4, True)])
def test_it_is_never_worse_than_the_geometric_rule(seed: int, looks: int, rough: bool) -> None:
    table = plausible(seed, looks=looks, rough=rough)
    budgets = np.linspace(table.cheapest, table.dearest, 20).tolist()
    curve = direct_curve(table, budgets)
    alone = {budget: direct_within(table, budget) for budget in budgets[3::8]}
    for budget, found in [*zip(budgets, curve, strict=True), *alone.items()]:
        assert found.dtype == np.float32
        assert table.point(found)["mean_macs"] <= budget
        for wide in (True, False):
            rule = table.point(geometric_within(table, budget, wide=wide))
            assert table.point(found)["accuracy"] >= rule["accuracy"]


def test_a_look_that_no_image_should_pass_stops_all_of_them() -> None:
    # All images are right after the second look and none before: within 2.5 it is best that all leave exactly there.
    score = np.tile(np.array([[0.5, 0.9, 0.9]], dtype=np.float32), (50, 1))
    correct = np.tile(np.array([[False, True, True]]), (50, 1))
    table = LookTable(score, correct, np.array([1.0, 2.0, 3.0]))
    point = table.point(direct_within(table, 2.5))
    assert (point["accuracy"], point["exits_per_look"]) == (1.0, [0, 50, 0])


def test_a_larger_budget_is_never_less_accurate() -> None:
    table = plausible(7, count=120)
    curve = direct_curve(table, np.linspace(table.cheapest, table.dearest, 20).tolist())
    accuracies = [table.point(thresholds)["accuracy"] for thresholds in curve]
    assert accuracies == sorted(accuracies)


def test_a_curve_keeps_the_order_of_its_budgets() -> None:
    table = plausible(8)
    low, high = (table.cheapest + share * (table.dearest - table.cheapest) for share in (0.2, 0.6))
    up, down = direct_curve(table, [low, high]), direct_curve(table, [high, low])
    assert [t.tolist() for t in up] == [t.tolist() for t in reversed(down)]


def test_of_equally_accurate_thresholds_it_takes_the_dearest() -> None:
    # All are right at every look. 160 multiply-adds for four images: two may take all looks, one two of them, one has to leave.
    score = np.tile(np.array([[0.2], [0.4], [0.6], [0.8]], dtype=np.float32), (1, 3))
    table = LookTable(score, np.ones((4, 3), dtype=bool), np.array([10.0, 30.0, 60.0]))
    point = table.point(direct_within(table, 40.0))
    assert (point["mean_macs"], point["exits_per_look"]) == (40.0, [1, 1, 2])
    assert table.point(direct_within(table, 60.0))["exits_per_look"] == [0, 0, 4]
    # The next cheaper: three after two looks and one after all, 3 x 30 + 60 = 150.
    assert table.point(direct_within(table, 39.9))["mean_macs"] == 37.5


def test_a_threshold_is_midway_between_the_last_one_that_leaves_and_the_first_that_stays() -> None:
    # The surer two are right at the glance, the others only after the second look.
    score = np.array([[0.9, 0.5], [0.7, 0.5], [0.4, 0.5], [0.1, 0.5]], dtype=np.float32)
    correct = np.array([[True, False], [True, False], [False, True], [False, True]])
    found = direct_within(LookTable(score, correct, np.array([1.0, 2.0])), 2.0)
    assert found.tolist() == pytest.approx([0.55, 0.0], abs=1e-7)


def test_neighbouring_scores_are_still_separated() -> None:
    high = np.float32(0.7)
    low = np.nextafter(high, np.float32(-1))
    table = LookTable(
        np.array([[high, 0.5], [low, 0.5]], np.float32), np.array([[True, False], [False, True]]), ONE_TWO
    )
    assert table.exits(direct_within(table, 2.0)).tolist() == [0, 1]


def test_what_answers_are_worth_can_be_given_instead_of_counting_them() -> None:
    # By the answers the first image should look twice, by their worth the second.
    score = np.array([[0.2, 0.5], [0.6, 0.5]], dtype=np.float32)
    table = LookTable(score, np.array([[False, True], [True, False]]), ONE_TWO)
    worth = np.array([[0.5, 0.4], [0.5, 0.9]])
    assert table.exits(direct_within(table, 2.0)).tolist() == [1, 0]
    assert table.exits(direct_within(table, 2.0, worth)).tolist() == [
        1,
        1,
    ]  # only the less sure may stay alone: 0.4 + 0.9


def test_accuracy_that_is_spared_buys_a_lower_cost() -> None:
    # A second look gains 9 images, all of which are below 0.1; the others are right at the glance.
    score = np.tile(np.arange(100, dtype=np.float32)[:, None] / 100, (1, 2))
    correct = np.stack([score[:, 0] > 0.085, np.ones(100, bool)], axis=1)
    table = LookTable(score, correct, ONE_TWO)
    assert table.point(direct_within(table, 2.0))["exits_per_look"] == [0, 100]
    assert table.point(direct_within(table, 2.0, spare=1e-9))["exits_per_look"] == [91, 9]
    spared = table.point(direct_within(table, 2.0, spare=0.03))
    assert (spared["accuracy"], spared["exits_per_look"]) == (0.97, [94, 6])


def test_equal_scores_leave_together() -> None:
    # Only one of the three may go on for 1.34, but their scores are the same.
    score = np.array([[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]], dtype=np.float32)
    table = LookTable(score, np.array([[False, True]] * 3), np.array([1.0, 2.0]))
    assert table.point(direct_within(table, 1.34))["exits_per_look"] == [3, 0]
    assert table.point(direct_within(table, 2.0))["exits_per_look"] == [0, 3]


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_scores_that_are_all_equal_leave_all_or_none(value: float) -> None:
    correct = np.tile(np.array([[False, True, True]]), (6, 1))
    table = LookTable(np.full((6, 3), value, dtype=np.float32), correct, np.array([1.0, 2.0, 3.0]))
    assert table.point(direct_within(table, 1.9))["exits_per_look"] == [6, 0, 0]
    assert table.point(direct_within(table, 2.9))["exits_per_look"] == [0, 6, 0]
    assert table.point(direct_within(table, 3.0))["exits_per_look"] == [0, 0, 6]


def test_one_look_needs_no_search() -> None:
    table = LookTable(np.array([[0.5], [0.6]], dtype=np.float32), np.array([[True], [False]]), np.array([7.0]))
    assert direct_within(table, 7.0).tolist() == [0.0]
    assert direct_within(table, 100.0).tolist() == [0.0]


def test_two_images_are_enough() -> None:
    score = np.array([[1.0, 0.3], [0.2, 1.0]], dtype=np.float32)
    table = LookTable(score, np.array([[True, False], [False, True]]), np.array([1.0, 3.0]))
    assert table.point(direct_within(table, 2.0)) == {
        "mean_macs": 2.0,
        "accuracy": 1.0,
        "thresholds": [pytest.approx(0.6, abs=1e-7), 0.0],
        "exits_per_look": [1, 1],
    }


def test_many_looks_can_be_searched() -> None:
    table = plausible(11, count=60, looks=12)
    budget = (table.cheapest + table.dearest) / 2
    point = table.point(direct_within(table, budget))
    assert point["mean_macs"] <= budget
    assert point["accuracy"] >= table.point(geometric_within(table, budget))["accuracy"]


def test_budgets_in_milliseconds_are_kept_as_well() -> None:
    table = replace(plausible(12, looks=4), ms=np.array([0.1, 0.3, 0.7, 1.3]), unit="ms")
    for budget in np.linspace(table.cheapest, table.dearest, 6)[1:]:
        point = table.point(direct_within(table, budget))
        assert point["mean_ms"] <= budget
        exactly = table.point(direct_within(table, point["mean_ms"]))
        assert exactly["accuracy"] >= table.point(geometric_within(table, point["mean_ms"]))["accuracy"]
    assert direct_within(table, 0.1).tolist() == table.leave().tolist()


@pytest.mark.parametrize("budget", [0.5, math.nan])
def test_a_budget_that_cannot_be_met_is_refused(budget: float) -> None:
    with pytest.raises(BadBudget):
        direct_within(plausible(0), budget)
