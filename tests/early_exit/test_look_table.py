"""A look table says what thresholds cost and achieve."""

import math

import numpy as np
import pytest
import torch

from glancefocus.early_exit.look_table import LookTable
from glancefocus.errors import BadData


def four_images() -> LookTable:
    return LookTable(
        score=np.array([[0.9, 0.9, 0.9], [0.4, 0.8, 0.7], [0.3, 0.2, 0.6], [0.5, 0.1, 0.1]], dtype=np.float32),
        correct=np.array([[True, True, True], [True, True, False], [False, True, True], [True, False, False]]),
        macs=np.array([10.0, 30.0, 60.0]),
    )


def test_an_image_leaves_after_the_first_look_above_its_threshold() -> None:
    assert four_images().exits(np.array([0.5, 0.5, 0.5], dtype=np.float32)).tolist() == [0, 1, 2, 2]


def test_the_last_look_lets_everybody_go_whatever_its_threshold() -> None:
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


def test_a_table_whose_columns_do_not_match_is_refused() -> None:
    score = np.zeros((2, 3), dtype=np.float32)
    with pytest.raises(
        BadData, match=r"one score, one answer and one cost a look, but got \(2, 3\), \(2, 3\) and \(2,\)"
    ):
        LookTable(score, np.zeros((2, 3), dtype=bool), np.array([1.0, 2.0]))
