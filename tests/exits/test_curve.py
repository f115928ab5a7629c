"""Thresholds for any budget out of a stored curve, worked out by hand."""

import math
from typing import Any

import pytest

from glancefocus.errors import BadBudget
from glancefocus.exits.curve import (
    Point,
    best_thresholds,
    leave_thresholds,
    refuse_budget,
    stay_thresholds,
    thresholds_at,
)
from glancefocus.loop import frozen


def point(macs: float, *thresholds: Any, accuracy: float | None = None) -> Point:
    given = {"mean_macs": macs, "thresholds": list(thresholds)}
    return given if accuracy is None else {**given, "accuracy": accuracy}


def macs(given: Point) -> float:
    return float(given["mean_macs"])


CURVE = [
    point(30, 0.8, 0.6, 0.0, accuracy=0.9),
    point(10, 0.2, 0.4, 0.0, accuracy=0.5),
    point(20, 0.4, 0.9, 0.0, accuracy=0.7),
]  # in no order


@pytest.mark.parametrize(
    ("budget", "thresholds"),
    [
        (10, [0.2, 0.4, 0.0]),
        (15, [0.3, 0.65, 0.0]),  # halfway
        (17.5, [0.35, 0.775, 0.0]),  # three quarters of the way
        (20, [0.4, 0.9, 0.0]),
        (21, [0.44, 0.87, 0.0]),  # a tenth of the way to the third
        (30, [0.8, 0.6, 0.0]),
        (1000, [0.8, 0.6, 0.0]),  # above the last point there is nothing better
    ],
)
def test_between_two_points_thresholds_are_mixed_in_proportion(budget: float, thresholds: list[float]) -> None:
    assert thresholds_at(CURVE, budget, macs) == pytest.approx(thresholds, abs=1e-12)


def test_below_the_cheapest_point_there_are_no_thresholds() -> None:
    assert thresholds_at(CURVE, 9.99, macs) is None
    assert thresholds_at([], 100, macs) is None


def test_points_are_judged_by_their_expected_accuracy_where_they_have_one() -> None:
    # Counted on the images that chose, the dearer point is worse; by what scores like theirs achieve it is better.
    curve = [
        {**point(10, 0.2, 0.4, 0.0, accuracy=0.9), "expected_accuracy": 0.7},
        {**point(20, 0.4, 0.8, 0.0, accuracy=0.8), "expected_accuracy": 0.8},
    ]
    assert thresholds_at(curve, 15, macs) == pytest.approx([0.3, 0.6, 0.0], abs=1e-12)
    assert best_thresholds(curve) == (0.4, 0.8, 0.0)


def test_points_that_cost_more_and_achieve_less_are_passed_over() -> None:
    beaten = point(15, 0.9, 0.9, 0.9, accuracy=0.45)
    assert thresholds_at([*CURVE, beaten], 15, macs) == pytest.approx([0.3, 0.65, 0.0], abs=1e-12)
    as_good = point(15, 0.9, 0.9, 0.9, accuracy=0.5)
    assert thresholds_at([*CURVE, as_good], 15, macs) == [0.9, 0.9, 0.9]


def test_points_without_an_accuracy_are_all_taken() -> None:
    given = [point(10, 0.2, 0.0), point(20, 0.6, 0.0), point(30, 0.4, 0.0)]
    assert thresholds_at(given, 25, macs) == pytest.approx([0.5, 0.0], abs=1e-12)


def test_a_curve_can_be_priced_in_something_else() -> None:
    milliseconds = {10.0: 1.0, 20.0: 5.0, 30.0: 6.0}
    found = thresholds_at(CURVE, 3.0, lambda given: milliseconds[given["mean_macs"]])
    assert found == pytest.approx([0.3, 0.65, 0.0], abs=1e-12)


def test_rows_of_thresholds_are_not_mixed_because_they_name_sizes() -> None:
    cheap, dear = [[0.2, 0.9], [0.0, 0.0]], [[0.9, 0.2], [0.0, 0.0]]
    given = [point(10, *cheap, accuracy=0.5), point(20, *dear, accuracy=0.6)]
    assert thresholds_at(given, 19.9, macs) == cheap
    assert thresholds_at(given, 20, macs) == dear


def test_the_best_thresholds_are_the_cheapest_within_a_tenth_of_a_percentage_point() -> None:
    given = [
        point(10, 0.1, accuracy=0.8),
        point(20, 0.2, accuracy=0.8991),
        point(30, 0.3, accuracy=0.9),
        point(40, 0.4, accuracy=0.8995),
    ]
    assert best_thresholds(given) == (0.2,)
    assert best_thresholds([*given, point(50, 0.5, accuracy=0.95)]) == (0.5,)


def test_without_accuracies_the_middle_point_is_the_best_guess() -> None:
    assert best_thresholds([point(10, 0.1, 0.0), point(20, 0.2, 0.0), point(30, 0.3, 0.0)]) == (0.2, 0.0)
    assert best_thresholds([]) is None


def test_thresholds_and_rows_of_them_become_tuples_of_floats() -> None:
    assert frozen([1, 0.5]) == (1.0, 0.5)
    assert frozen([[1, 0.5], (0, 0)]) == ((1.0, 0.5), (0.0, 0.0))


def test_staying_and_leaving_with_one_size_and_with_several() -> None:
    assert stay_thresholds(3, 1) == [1.0, 1.0, 0.0]
    assert leave_thresholds(3, 1) == [-1.0, -1.0, 0.0]
    assert stay_thresholds(3, 2) == [[-1.0, 1.0], [-1.0, 1.0], [0.0, 0.0]]
    assert leave_thresholds(3, 2) == [[-1.0, -1.0], [-1.0, -1.0], [0.0, 0.0]]
    assert stay_thresholds(1, 1) == leave_thresholds(1, 1) == [0.0]


@pytest.mark.parametrize(("budget", "unit"), [(2e8, "macs"), (3e8, "macs"), (1e300, "macs"), (12.0, "ms")])
def test_a_budget_of_a_glance_or_more_can_be_met(budget: float, unit: str) -> None:
    refuse_budget(budget, 2e8 if unit == "macs" else 12.0, unit)


@pytest.mark.parametrize(
    ("budget", "unit", "sentence"),
    [
        (
            1.5e8,
            "macs",
            r"a budget of 1.5e\+08 multiply-adds is less than one glance \(2e\+08\). Raise the budget, or train with a",
        ),
        (
            3,
            "macs",
            r"a budget of 3 multiply-adds is less than one glance \(2e\+08\). Multiply-adds are counted one by",
        ),
        (3, "macs", r"such as 2e8; milliseconds are given with --ms \(budget_ms\)"),
        (0, "macs", "a budget of 0 multiply-adds is less than one glance"),
        (-1e9, "macs", r"a budget of -1e\+09 multiply-adds is less than one glance"),
        (0.5, "ms", r"a budget of 0.5 ms is less than one glance \(12\). Raise the budget"),
        (math.nan, "macs", "a budget is a number of multiply-adds, but got nan"),
        (math.nan, "ms", "a budget is a number of ms, but got nan"),
    ],
)
def test_a_budget_that_cannot_be_met_is_refused(budget: float, unit: str, sentence: str) -> None:
    with pytest.raises(BadBudget, match=sentence):
        refuse_budget(budget, 2e8 if unit == "macs" else 12.0, unit)
