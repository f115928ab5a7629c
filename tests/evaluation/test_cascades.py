"""Cascades of image sizes and budgets on hand-made answers, where the result is known."""

import numpy as np
import pytest

from glancefocus.evaluation.cascades import (
    Member,
    answers_at,
    budget_rows,
    cascade_table,
    cascades_at,
    coarse_accuracies,
    possible_cascades,
)
from glancefocus.exits.budget import fold_of_rows
from glancefocus.exits.table import LookTable


def member(side: int, right: float, sure: float, macs: float, encoder: str = "", ms: float | None = None) -> Member:
    """A backbone that is right on the first of 100 images, this share, and sure of the first of them, another share."""
    correct = np.arange(100) < 100 * right
    confidence = np.where(np.arange(100) < 100 * sure, 0.9, 0.1).astype(np.float32)
    confidence += 0.0001 * np.arange(100, 0, -1, dtype=np.float32)
    return Member("tuned" if encoder else "resized", (side, side), correct, confidence, macs, ms, encoder)


def test_a_cascade_finds_the_images_that_need_the_larger_size() -> None:
    # 96 px: right and sure on 80 of 100; 224 px: right on all. 20 images go on: 10 + 20 % of 100 = 30.
    members = [member(224, 1.0, 1.0, 100.0), member(96, 0.8, 0.8, 10.0)]
    (answers,), none = cascades_at(members, [31.0, 9.0], 5, 0)
    assert answers.px == ((96, 96), (224, 224))
    assert answers.accuracy >= 0.97  # thresholds are chosen on four fifths of the images
    assert answers.mean_macs == pytest.approx(31.0, abs=1.5)
    assert answers.name == "cascade of the backbone at 96 px and 224 px"
    assert none == []  # not even the first size fits


def test_of_each_size_the_more_accurate_member_takes_part() -> None:
    members = [
        member(224, 1.0, 1.0, 100.0),
        member(96, 0.4, 0.4, 10.0),
        member(96, 0.9, 0.9, 10.0, "the glance encoder"),
        member(160, 0.95, 0.9, 50.0),
        member(160, 0.93, 0.9, 50.0, "tuned"),
    ]
    names = [[step.short_name for step in steps] for steps in possible_cascades(members)]
    assert names == [
        ["96 px (the glance encoder)", "160 px"],
        ["96 px (the glance encoder)", "224 px"],
        ["160 px", "224 px"],
        ["96 px (the glance encoder)", "160 px", "224 px"],
    ]


def test_three_sizes_are_better_where_each_finishes_some_images() -> None:
    # 50 images stop at 10, 40 more at 10 + 20, and 10 take all three: 10 + 50 % of 20 + 10 % of 100 = 30.
    members = [member(224, 1.0, 1.0, 100.0), member(128, 0.9, 0.9, 20.0), member(96, 0.5, 0.5, 10.0)]
    found = {answers.name: answers.accuracy for answers in cascades_at(members, [32.0], 5, 0)[0]}
    assert found["cascade of the backbone at 96 px, 128 px and 224 px"] >= 0.97
    assert max(found.values()) == found["cascade of the backbone at 96 px, 128 px and 224 px"]


def test_the_coarse_ranking_is_exact_where_all_thresholds_fit_into_its_grid() -> None:
    table = cascade_table([member(96, 0.8, 0.8, 10.0), member(224, 1.0, 1.0, 100.0)])
    # At 20, 10 of the 20 images that are not sure can go on.
    assert coarse_accuracies(table, [9.0, 10.0, 20.0, 30.0]) == [None, 0.8, pytest.approx(0.9), pytest.approx(1.0)]


def test_answers_within_several_budgets_are_those_within_each() -> None:
    table = cascade_table([member(96, 0.6, 0.6, 10.0), member(160, 0.8, 0.8, 30.0), member(224, 1.0, 1.0, 100.0)])
    together = answers_at(table, [5.0, 20.0, 60.0], "cascade", "three", (), 5, 0)
    assert [round(each.mean_macs) for each in together[:1]] == [10]  # a budget below the first step is raised to it
    for budget, result in zip([20.0, 60.0], together[1:], strict=True):
        (alone,) = answers_at(table, [budget], "cascade", "three", (), 5, 0)
        assert alone.accuracy == pytest.approx(result.accuracy, abs=0.03)
        assert result.mean_macs <= 1.1 * budget


def looks(right: list[float], macs: list[float], ms: list[float]) -> LookTable:
    """glancefocus after each look, on the same images."""
    steps = [member(96, share, share, 0.0) for share in right]
    return LookTable(
        np.stack([step.confidence for step in steps], axis=1),
        np.stack([step.correct for step in steps], axis=1),
        np.asarray(macs),
        ms=np.asarray(ms),
    )


def test_glancefocus_and_the_best_rival_are_compared_within_ten_budgets() -> None:
    table = looks([0.5, 1.0], [10.0, 30.0], [4.0, 8.0])
    members = [member(224, 1.0, 1.0, 100.0, ms=5.0), member(96, 0.5, 0.5, 10.0, ms=1.0)]
    labels, fold = np.arange(100) % 20, fold_of_rows(100, 5)
    rows = budget_rows(table, members, labels, fold, 0)
    assert [row.budget for row in rows] == pytest.approx(np.linspace(11, 80, 10).tolist())
    # With 34M glancefocus takes both looks wherever it must: 10 + 50 % of 20. The cascade can send 24 of 100 images on.
    fourth = rows[3]
    assert fourth.budget == pytest.approx(34.0)
    assert fourth.accuracy >= 0.97
    assert fourth.rival == "cascade of the backbone at 96 px and 224 px"
    assert fourth.rival_accuracy == pytest.approx(0.74, abs=0.03)
    assert fourth.rival_cost == pytest.approx(34.0, abs=1.5)
    assert fourth.difference_low > 0.1
    # About a quarter of the images differ: 2 x sqrt(0.24 x 0.76 / 100) = 0.085
    assert fourth.two_standard_errors == pytest.approx(0.085, abs=0.01)


def test_by_milliseconds_the_comparison_may_end_otherwise() -> None:
    table = looks([0.5, 1.0], [10.0, 30.0], [4.0, 8.0])
    members = [member(224, 1.0, 1.0, 100.0, ms=10.0), member(96, 0.5, 0.5, 10.0, ms=1.0)]
    rows = budget_rows(table, members, np.arange(100) % 20, fold_of_rows(100, 5), 0, "ms")
    assert {row.unit for row in rows} == {"ms"}
    assert [row.budget for row in rows] == pytest.approx(np.linspace(4.4, 8.0, 10).tolist())
    # 6 ms: 1 + 50 % of 10 finishes all images in the cascade, and 4 + 50 % of 4 in glancefocus. 4.8 ms: 38 and 20 images go on.
    second = rows[1]
    assert second.budget == pytest.approx(4.8)
    assert second.accuracy == pytest.approx(0.7, abs=0.04)
    assert second.rival_accuracy == pytest.approx(0.88, abs=0.04)
    assert second.difference < 0


def test_there_are_no_budgets_where_a_glance_costs_nearly_as_much_as_the_backbone() -> None:
    table = looks([0.5, 1.0], [80.0, 90.0], [1.0, 2.0])
    assert budget_rows(table, [member(224, 1.0, 1.0, 100.0)], np.arange(100) % 20, fold_of_rows(100, 5), 0) == ()
