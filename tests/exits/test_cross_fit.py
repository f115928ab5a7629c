"""Cross-fitting: every image is judged by thresholds that other images chose."""

import numpy as np
import pytest

from glancefocus.errors import BadData, BadSetting
from glancefocus.exits.budget import cross_fitted, fold_of_rows
from glancefocus.exits.genetic import genetic_within
from glancefocus.exits.one_size import direct_within
from glancefocus.exits.table import LookTable, Thresholds


def noise(images: int, seed: int = 0) -> LookTable:
    """Three looks whose answers have nothing to do with the scores, each right for half of the images."""
    random = np.random.default_rng(seed)
    score = random.random((images, 3), dtype=np.float32)
    return LookTable(score, random.random((images, 3)) < 0.5, np.array([10.0, 20.0, 30.0]))


def test_thresholds_are_chosen_without_the_images_that_they_judge() -> None:
    table = noise(10)
    chosen_on: list[set[float]] = []

    def choose(part: LookTable) -> Thresholds:
        chosen_on.append(set(part.score[:, 0].tolist()))
        return part.leave()

    found = cross_fitted(table, choose, folds=5)
    assert [len(scores) for scores in chosen_on] == [8] * 5
    assert len(found.chosen) == 5
    for group, scores in enumerate(chosen_on):
        assert scores.isdisjoint(table.score[found.fold == group, 0].tolist())


def test_figures_are_those_of_the_images_where_they_left() -> None:
    # Group 0 is judged by the thresholds that group 1 chose, and the other way round.
    score = np.array([[0.9, 0.1], [0.3, 0.1], [0.8, 0.1], [0.2, 0.1]], dtype=np.float32)
    correct = np.array([[True, False], [False, True], [False, False], [False, True]])
    table = LookTable(score, correct, np.array([1.0, 4.0]))
    found = cross_fitted(table, lambda part: np.array([0.5, 0.0], dtype=np.float32), folds=2)
    assert found.node.tolist() == [0, 1, 0, 1]
    assert found.look.tolist() == [0, 1, 0, 1]
    assert found.correct.tolist() == [True, True, False, True]
    assert found.cost.tolist() == [1, 4, 1, 4]
    assert (found.accuracy, found.mean_cost, found.exits_per_look) == (0.75, 2.5, [2, 2])


def test_luck_in_choosing_shows_in_the_table_and_not_in_the_cross_fitted_figures() -> None:
    def choose(part: LookTable) -> Thresholds:
        return direct_within(part, 20.0)

    tables = [noise(60, seed) for seed in range(12)]
    on_themselves = np.mean([table.point(choose(table))["accuracy"] for table in tables])
    judged_by_others = np.mean([cross_fitted(table, choose).accuracy for table in tables])
    assert on_themselves > 0.56
    assert judged_by_others == pytest.approx(0.5, abs=0.05)  # of 720 images: a standard error is 0.019


def test_costs_are_in_the_unit_of_the_table() -> None:
    table = LookTable(
        np.full((4, 2), 0.5, np.float32), np.ones((4, 2), bool), np.array([1.0, 2]), ms=np.array([7.0, 9]), unit="ms"
    )
    found = cross_fitted(table, lambda part: part.stay())
    assert found.unit == "ms"
    assert found.cost.tolist() == [9.0] * 4


def test_several_patch_sizes_leave_at_nodes_of_the_tree() -> None:
    random = np.random.default_rng(3)
    score = random.random((40, 7), dtype=np.float32)  # 1 + 2 + 4 nodes
    macs = np.array([1.0, 2, 3, 3, 4, 4, 5])
    table = LookTable(score, random.random((40, 7)) < 0.3 + 0.5 * score, macs, sizes=2)
    found = cross_fitted(table, lambda part: genetic_within(part, 2.5, population=8, generations=2), folds=3)
    assert found.cost.tolist() == macs[found.node].tolist()
    assert found.look.tolist() == np.array([0, 1, 1, 2, 2, 2, 2])[found.node].tolist()
    assert sum(found.exits_per_look) == 40


def test_groups_are_of_one_size_and_repeat_with_the_seed() -> None:
    fold = fold_of_rows(13, 5, seed=1)
    assert sorted(np.bincount(fold).tolist()) == [2, 2, 3, 3, 3]
    assert fold.tolist() == fold_of_rows(13, 5, seed=1).tolist()
    assert fold.tolist() != fold_of_rows(13, 5, seed=2).tolist()
    assert sorted(fold_of_rows(3, 5).tolist()) == [0, 1, 2]  # never a group without an image


def test_one_image_or_one_group_cannot_be_cross_fitted() -> None:
    with pytest.raises(BadData, match="at least 2 images, but got 1"):
        cross_fitted(noise(1), lambda part: part.leave())
    with pytest.raises(BadSetting, match="at least 2 groups of images, but got folds=1"):
        cross_fitted(noise(9), lambda part: part.leave(), folds=1)
