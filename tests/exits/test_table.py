"""A look table gives the cost and the accuracy of thresholds."""

import math

import numpy as np
import pytest
import torch

from glancefocus.errors import BadData, BadSetting
from glancefocus.exits.table import LookTable, stopping_at_random


def four_images() -> LookTable:
    return LookTable(
        score=np.array([[0.9, 0.9, 0.9], [0.4, 0.8, 0.7], [0.3, 0.2, 0.6], [0.5, 0.1, 0.1]], dtype=np.float32),
        correct=np.array([[True, True, True], [True, True, False], [False, True, True], [True, False, False]]),
        macs=np.array([10.0, 30.0, 60.0]),
    )


def test_an_image_leaves_after_the_first_look_above_its_threshold() -> None:
    assert four_images().exits(np.array([0.5, 0.5, 0.5], dtype=np.float32)).tolist() == [0, 1, 2, 2]


def test_the_last_look_stops_every_image_whatever_its_threshold() -> None:
    assert four_images().exits(np.array([1.0, 1.0, 1.0], dtype=np.float32)).tolist() == [2, 2, 2, 2]


def test_an_operating_point_is_the_mean_cost_and_accuracy_of_the_exits() -> None:
    point = four_images().point(np.array([0.5, 0.5, 0.0], dtype=np.float32))
    # exits 0, 1, 2, 2: 10 + 30 + 60 + 60 multiply-adds; right, right, right, wrong
    assert point == {
        "mean_macs": 40.0,
        "accuracy": 0.75,
        "thresholds": [0.5, 0.5, 0.0],
        "exits_per_look": [1, 1, 2],
    }


def test_accuracy_after_each_look_is_that_of_all_images() -> None:
    assert four_images().accuracy_after_look == [0.75, 0.75, 0.5]


def test_a_table_is_made_of_answers_confidences_and_labels() -> None:
    table = LookTable.of(
        torch.tensor([[0, 1], [2, 2]]), torch.tensor([[0.5, 0.75], [0.25, 1.0]]), torch.tensor([1, 2]), (5, 9)
    )
    assert table.correct.tolist() == [[False, True], [True, True]]
    assert table.score.tolist() == [[0.5, 0.75], [0.25, 1.0]]
    assert table.score.dtype == np.float32
    assert table.macs.tolist() == [5.0, 9.0]
    assert table.looks == 2


def test_scores_that_are_not_numbers_are_refused() -> None:
    score = np.array([[0.5, math.nan]], dtype=np.float32)
    with pytest.raises(BadData, match="scores that are not numbers; the network's answers are broken"):
        LookTable(score, np.array([[True, True]]), np.array([1.0, 2.0]))


@pytest.mark.parametrize("broken", [math.nan, math.inf, -1.0])
def test_costs_that_cannot_be_are_refused(broken: float) -> None:
    score, correct = np.zeros((2, 2), np.float32), np.ones((2, 2), bool)
    with pytest.raises(BadData, match="costs of looks must be numbers, 0 or more, but got"):
        LookTable(score, correct, np.array([1.0, broken]))
    with pytest.raises(BadData, match="costs of looks must be numbers, 0 or more, but got"):
        LookTable(score, correct, np.array([1.0, 2.0]), ms=np.array([broken, 2.0]))


@pytest.mark.parametrize("thresholds", [[0.5, math.nan], [0.5], [0.5, 0.5, 0.5]])
def test_thresholds_that_do_not_fit_the_table_are_refused(thresholds: list[float]) -> None:
    table = LookTable(np.zeros((2, 2), np.float32), np.ones((2, 2), bool), np.array([1.0, 2.0]))
    with pytest.raises(BadSetting, match="2 looks with 1 candidate view need 2 thresholds that are numbers, but got"):
        table.point(np.asarray(thresholds, dtype=np.float32))


def test_a_table_whose_columns_do_not_match_is_refused() -> None:
    score = np.zeros((2, 3), dtype=np.float32)
    with pytest.raises(
        BadData, match=r"one score, one answer and one cost a look, but got \(2, 3\), \(2, 3\) and \(2,\)"
    ):
        LookTable(score, np.zeros((2, 3), dtype=bool), np.array([1.0, 2.0]))


def tree_table(random: np.random.Generator, count: int, looks: int, sizes: int) -> LookTable:
    """Scores of few values, so that many of them are equal to thresholds."""
    nodes = sum(sizes**look for look in range(looks))
    score = (random.integers(0, 9, (count, nodes)) / 8).astype(np.float32)
    return LookTable(score, random.random((count, nodes)) < 0.5, 1 + np.arange(nodes, dtype=np.float64), sizes=sizes)


def slow_exit(score: list[float], thresholds: list[list[float]]) -> int:
    """The paper's rule for one image: stop above all thresholds of the look; otherwise the smallest one that is not below names
    the size. The children of node j of a level are the nodes K j + k of the next.
    """
    start, place, level = 0, 0, 1
    for row in thresholds[:-1]:
        confidence = score[start + place]
        if confidence > max(row):
            return start + place
        size = min((k for k in range(len(row)) if confidence <= row[k]), key=lambda k: (row[k], k))
        start, place, level = start + level, place * len(row) + size, level * len(row)
    return start + place


@pytest.mark.parametrize(("looks", "sizes"), [(1, 3), (2, 2), (3, 2), (4, 2), (3, 3), (4, 3), (3, 4)])
def test_the_images_that_leave_the_tree_are_those_of_the_papers_rule(looks: int, sizes: int) -> None:
    random = np.random.default_rng(10 * looks + sizes)
    table = tree_table(random, 60, looks, sizes)
    for _ in range(12):
        thresholds = random.choice([-1, 0, 0.25, 0.5, 0.625, 1], (looks, sizes)).astype(np.float32)
        expected = [slow_exit(row, thresholds.tolist()) for row in table.score.tolist()]
        assert table.exits(thresholds).tolist() == expected
        point = table.point(thresholds)
        assert point["accuracy"] == sum(table.correct[i, node] for i, node in enumerate(expected)) / 60
        assert point["mean_macs"] == sum(1 + node for node in expected) / 60


def test_equal_thresholds_name_the_first_size() -> None:
    score = np.array([[0.5, 0, 0, 0]], dtype=np.float32)
    table = LookTable(score, np.ones((1, 4), dtype=bool), np.arange(1.0, 5), sizes=3)
    last = [0.0, 0.0, 0.0]
    assert table.exits(np.array([[0.4, 0.5, 0.5], last], np.float32)).tolist() == [2]  # node 1 + 1: the second size
    assert table.exits(np.array([[0.5, 0.7, 0.5], last], np.float32)).tolist() == [1]
    assert table.exits(np.array([[0.1, 0.4, 0.4], last], np.float32)).tolist() == [0]


def test_patches_of_all_sizes_are_counted_look_by_look() -> None:
    # Three looks, two sizes: glance 0; second look 1, 2; third look 3 ... 6.
    score = np.array([[0.9] * 7, [0.5] * 7, [0.1] * 7], dtype=np.float32)
    table = LookTable(score, np.ones((3, 7), dtype=bool), np.arange(1.0, 8), sizes=2)
    point = table.point(np.array([[0.6, 0.2], [0.3, -1], [0, 0]], np.float32))
    # The first leaves at the glance. The second takes the first size and leaves there, at node 1. The third takes the second size
    # (node 2), then the first one (node 5).
    assert table.exits(np.array([[0.6, 0.2], [0.3, -1], [0, 0]], np.float32)).tolist() == [0, 1, 5]
    assert point["exits_per_look"] == [1, 1, 1]
    assert point["patches_per_look_and_size"] == [[1, 1], [1, 0]]
    assert point["mean_macs"] == (1 + 2 + 6) / 3


def test_one_size_only_is_the_path_of_that_size_through_the_tree() -> None:
    table = tree_table(np.random.default_rng(3), 50, looks=3, sizes=2)
    own = np.array([0.75, 0.5, 0], dtype=np.float32)
    for size, nodes in ((0, [0, 1, 3]), (1, [0, 2, 6])):
        thresholds = table.leave()
        thresholds[:-1, size] = own[:-1]
        assert table.exits(thresholds).tolist() == [nodes[look] for look in table.fixed_size(size).exits(own)]


def test_every_image_can_stay_and_every_image_can_stop() -> None:
    for sizes, last in ((1, 2), (2, 6)):
        table = tree_table(np.random.default_rng(4), 20, looks=3, sizes=sizes)
        assert set(table.exits(table.stay()).tolist()) == {last}
        assert set(table.exits(table.leave()).tolist()) == {0}


def test_stopping_at_random_keeps_the_numbers_and_averages_the_looks() -> None:
    score = np.array([[0.9, 0.9], [0.9, 0.9], [0.1, 0.9], [0.1, 0.9]], dtype=np.float32)
    correct = np.array([[True, True], [True, True], [False, True], [False, False]])
    table = LookTable(score, correct, np.array([1.0, 3.0]))
    by_confidence = table.point(np.array([0.5, 0.0], dtype=np.float32))
    at_random = stopping_at_random(table, by_confidence)
    assert by_confidence["exits_per_look"] == at_random["exits_per_look"] == [2, 2]
    assert by_confidence["mean_macs"] == at_random["mean_macs"] == 2.0
    assert by_confidence["accuracy"] == 0.75
    assert (
        at_random["accuracy"] == 0.5 * 0.5 + 0.5 * 0.75
    )  # half of the images answer as at the glance, half as at the end
