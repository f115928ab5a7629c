"""Thresholds by the paper's geometric rule, against the rule written out slowly; curves; budgets and tables that are refused."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from glancefocus.errors import BadBudget, BadData, BadSetting
from glancefocus.exits.budget import SOLVERS, aim_below, solve_at, solve_curve, solve_within, thresholds_of_a_run
from glancefocus.exits.one_size import (
    PAPER_RATIOS,
    RELEASED_RATIOS,
    geometric_curve,
    geometric_shares,
    geometric_thresholds,
    geometric_within,
)
from glancefocus.exits.table import LookTable, check_budget, check_table


def table_of(score: NDArray[np.float32]) -> LookTable:
    count, looks = score.shape
    return LookTable(score, np.ones((count, looks), dtype=bool), np.arange(1.0, looks + 1))


def slow_rule(score: NDArray[np.float32], ratio: float) -> tuple[list[float | None], list[int]]:
    """The confidence from which on images leave at each look (None: no image does), and the look at which each leaves.

    Written from the notes on the released code: out of N images floor(N x share) are to leave at a look; going through those that
    are still there from the surest down, the last of them gives the threshold; all images at or above it leave.
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
    assert RELEASED_RATIOS[:19] == PAPER_RATIOS
    assert PAPER_RATIOS[-1] == pytest.approx(0.95, abs=1e-12)


def test_the_curve_goes_from_cheap_to_dear() -> None:
    score = np.random.default_rng(0).random((400, 4), dtype=np.float32)
    table = table_of(score)
    costs = [table.point(thresholds)["mean_macs"] for thresholds in geometric_curve(table)]
    assert len(costs) == 39
    assert costs == sorted(costs)
    assert costs[0] < 1.1


def test_one_look_stops_every_image() -> None:
    assert geometric_thresholds(table_of(np.zeros((3, 1), dtype=np.float32)), 0.5).tolist() == [0.0]


def one_hundred() -> LookTable:
    """Look by look the same scores 0, 0.01 ... 0.99; multiply-adds 10, 20, 30."""
    score = np.tile(np.arange(100, dtype=np.float32)[:, None] / 100, (1, 3))
    return LookTable(score, score > 0.5, np.array([10.0, 20.0, 30.0]))


def test_the_ratio_is_the_largest_that_fits_into_the_budget() -> None:
    table = one_hundred()
    # Every share is a third: floor(33.3) leave at the first two looks, 34 at the last: 33 x 10 + 33 x 20 + 34 x 30 = 2010.
    even = table.point(geometric_thresholds(table, 1.0))
    assert even["mean_macs"] == 20.1
    assert table.point(geometric_within(table, 20.1))["mean_macs"] == 20.1
    for budget in np.linspace(10.5, 29.9, 25):
        spent = table.point(geometric_within(table, budget))["mean_macs"]
        # One image more that goes on for one look costs 0.1; where two or three move at once, as much more.
        assert budget - 0.31 < spent <= budget


def test_the_papers_ratios_stay_below_one() -> None:
    table = one_hundred()
    paper = table.point(geometric_within(table, 29.0, wide=False))
    wide = table.point(geometric_within(table, 29.0))
    assert paper["exits_per_look"] == [33, 33, 34]
    assert wide["exits_per_look"][-1] > 80


def test_a_budget_of_one_glance_stops_every_image_there() -> None:
    table = one_hundred()
    assert table.point(geometric_within(table, 10.0))["exits_per_look"] == [100, 0, 0]


def test_a_budget_for_everything_allows_every_look() -> None:
    table = one_hundred()
    assert table.point(geometric_within(table, 1e9))["exits_per_look"] == [0, 0, 100]


def test_a_tree_is_not_taken_for_looks() -> None:
    table = LookTable(np.zeros((2, 4), np.float32), np.ones((2, 4), bool), np.arange(1.0, 5), sizes=3)
    with pytest.raises(ValueError, match="the table has 3 candidate views; take table.fixed_size"):
        geometric_thresholds(table, 0.5)


def curve_table(unit: str = "macs") -> LookTable:
    random = np.random.default_rng(9)
    score = np.sort(random.random((300, 4), dtype=np.float32), axis=1)
    correct = random.random((300, 4)) < 0.2 + 0.8 * score
    macs = np.array([1e8, 2e8, 3e8, 4e8])
    ms = np.array([1.1, 2.3, 3.1, 4.7])
    return LookTable(score, correct, macs, ms=ms, unit="ms" if unit == "ms" else "macs")


@pytest.mark.parametrize("unit", ["macs", "ms"])
def test_a_curve_goes_evenly_from_one_glance_to_every_look(unit: str) -> None:
    table = curve_table(unit)
    curve = solve_curve(table, points=13)
    budgets = [entry[f"budget_{unit}"] for entry in curve]
    assert budgets[0] == table.cheapest
    assert budgets[-1] == table.dearest
    assert np.diff(budgets).tolist() == pytest.approx([(table.dearest - table.cheapest) / 12] * 12, rel=1e-9)
    assert curve[0]["thresholds"] == [-1, -1, -1, 0]
    assert curve[0]["exits_per_look"] == [300, 0, 0, 0]
    accuracies = [entry["expected_accuracy"] for entry in curve]
    assert np.diff(accuracies).min() > -1e-12
    assert all(entry[f"mean_{unit}"] <= budget * (1 + 1e-15) for entry, budget in zip(curve, budgets, strict=True))


def test_a_budget_below_one_glance_is_refused() -> None:
    table = curve_table()
    with pytest.raises(
        BadBudget, match=r"a budget of 9e\+07 multiply-adds is less than one glance \(1e\+08\)\. Raise the budget"
    ):
        check_budget(table, 9e7)
    with pytest.raises(BadBudget, match="Multiply-adds are counted one by one, such as 2e8"):
        check_budget(table, 0.2)
    with pytest.raises(BadBudget, match="a budget of 1e-05 ms is less than one glance"):
        check_budget(curve_table("ms"), 1e-5)


def test_a_budget_that_is_no_number_is_refused() -> None:
    with pytest.raises(BadBudget, match="a budget is a number of multiply-adds, but got nan"):
        check_budget(curve_table(), math.nan)
    with pytest.raises(BadBudget, match="a budget is a number"):
        geometric_within(curve_table(), math.nan)
    with pytest.raises(BadBudget, match="a finite number of ms, but got inf. Leave it out to allow every look"):
        check_budget(curve_table("ms"), math.inf)
    with pytest.raises(BadBudget, match="a budget of -inf multiply-adds is less than one glance"):
        check_budget(curve_table(), -math.inf)


def test_a_budget_binds_unless_every_look_fits() -> None:
    table = curve_table()
    assert check_budget(table, 1e8)
    assert check_budget(table, 3.9e8)
    assert not check_budget(table, 4e8)
    assert not check_budget(table, 1e12)


def test_one_image_is_too_few() -> None:
    with pytest.raises(BadData, match="at least 2 images to be chosen on, but got 1. Give more images"):
        check_table(curve_table().rows(np.array([0])))


def test_images_with_the_same_score_at_every_look_are_refused() -> None:
    score = np.tile(np.array([[0.25, 0.5, 0.1]], dtype=np.float32), (5, 1))
    score[:, 2] = np.arange(5) / 5  # all images leave at the last look, so scores there do not matter
    same = LookTable(score, np.ones((5, 3), bool), np.arange(1.0, 4))
    with pytest.raises(BadData, match="all 5 images have the same score at every look .0.25 at the glance."):
        check_table(same)
    score[0, 1] = 0.6
    check_table(LookTable(score, np.ones((5, 3), bool), np.arange(1.0, 4)))
    check_table(LookTable(score[:, 2:], np.ones((5, 1), bool), np.ones(1)))  # one look needs no threshold


def test_every_solver_solves_its_own_curve() -> None:
    table = curve_table()
    budgets = [1.4e8, 2.2e8, 3.1e8]
    for solver, wide in (("geometric", True), ("geometric-paper", False)):
        expected = [geometric_within(table, budget, wide=wide).tolist() for budget in budgets]
        assert [found.tolist() for found in solve_at(table, budgets, solver=solver)] == expected
        assert solve_within(table, 2.2e8, solver=solver).tolist() == expected[1]
        curve = solve_curve(table, points=4, solver=solver)
        assert curve[1]["thresholds"] == geometric_within(table, curve[1]["budget_macs"], wide=wide).tolist()
    direct = [found.tolist() for found in solve_at(table, budgets)]
    assert direct == [found.tolist() for found in solve_at(table, budgets, solver="direct")]
    assert direct != expected


def test_a_solver_that_does_not_fit_is_refused() -> None:
    tree = LookTable(np.random.default_rng(0).random((9, 4), np.float32), np.ones((9, 4), bool), np.ones(4), sizes=3)
    for solve in (solve_within, lambda table, budget, **more: solve_at(table, [budget], **more)):
        with pytest.raises(
            BadSetting, match="a solver is one of direct, geometric, geometric-paper, genetic, but got 'x'"
        ):
            solve(curve_table(), 2e8, solver="x")
        with pytest.raises(
            BadSetting, match="the solver 'genetic' is for several candidate views; this network has one"
        ):
            solve(curve_table(), 2e8, solver="genetic")
        for solver in SOLVERS[:-1]:
            with pytest.raises(
                BadSetting, match="with several candidate views thresholds are found by the solver 'genetic'"
            ):
                solve(tree, 2e8, solver=solver)


@pytest.mark.parametrize("unit", ["macs", "ms"])
def test_no_more_is_spent_than_achieves_something(unit: str) -> None:
    # After the second look nothing changes any more.
    random = np.random.default_rng(2)
    ease = random.normal(size=500)
    score = np.stack([1 / (1 + np.exp(-ease - 1.5 * (look > 0))) for look in range(4)], axis=1).astype(np.float32)
    drawn = random.random(500)[:, None]
    table = LookTable(score, drawn < score, np.array([1.0, 2, 3, 4]), ms=np.array([1.5, 2.5, 3.0, 9.0]), unit=unit)  # type: ignore[arg-type]
    two_looks = float(table.cost[1])
    for budget in (None, table.dearest, 0.9 * table.dearest):
        point = table.point(solve_within(table, budget))
        assert point[f"mean_{unit}"] < 1.03 * two_looks
        assert point["accuracy"] > table.accuracy_after_look[-1] - 0.01


@pytest.mark.parametrize("solver", ["direct", "geometric", "geometric-paper"])
def test_without_a_budget_the_cheapest_of_what_is_as_good_as_the_best_is_taken(solver: str) -> None:
    # Only the less sure half is right after the second look and not before; a third look changes nothing.
    score = np.tile((np.arange(400, dtype=np.float32) + 0.5)[:, None] / 400, (1, 3))
    correct = np.stack([score[:, 0] > 0.5, *[np.ones(400, bool)] * 2], axis=1)
    table = LookTable(score, correct, np.array([10.0, 20, 30]))
    point = table.point(solve_within(table, None, solver=solver))
    assert point["accuracy"] > 0.97
    assert point["mean_macs"] < 23


def test_aiming_below_the_budget_makes_up_for_the_luck_of_choosing() -> None:
    # By the paper's rule, thresholds lie just below the last image that leaves, so that new ones stay a little more often.
    random = np.random.default_rng(3)
    aims = []
    for _ in range(6):
        score = random.random((30, 3), dtype=np.float32)
        table = LookTable(score, random.random((30, 3)) < score, np.array([10.0, 20.0, 30.0]))
        aims.append(aim_below(table, 18.0, solver="geometric"))
    assert max(aims) <= 18.0
    assert 16.0 < np.mean(aims) < 17.8
    assert aim_below(table, 10.0) == 10.0


def a_later_look_always_helps() -> LookTable:
    """100 images, whose scores are evenly spread. The more looks, the more of them are right; looks cost 10, 30 and 60."""
    score = np.repeat(np.linspace(0.01, 0.99, 100, dtype=np.float32)[:, None], 3, axis=1)
    rank = np.arange(100)[:, None]
    return LookTable(score, rank >= np.array([[60, 30, 0]]), np.array([10.0, 30.0, 60.0]))


def test_a_run_never_spends_more_than_its_backbone() -> None:
    table = a_later_look_always_helps()
    spent = table.point(thresholds_of_a_run(table, backbone_macs=40.0))["mean_macs"]
    assert 30 < spent <= 40


def test_a_run_whose_looks_cost_less_than_the_backbone_may_take_all_of_them() -> None:
    table = a_later_look_always_helps()
    assert table.point(thresholds_of_a_run(table, backbone_macs=60.0)) == table.point(solve_within(table, None))
    assert table.point(thresholds_of_a_run(table, backbone_macs=60.0))["mean_macs"] > 40
