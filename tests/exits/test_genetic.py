"""Thresholds for several candidate views: never worse than one size, and better where the right size depends on the score."""

from typing import Any

import numpy as np
import pytest

from glancefocus.errors import BadBudget
from glancefocus.exits.budget import solve_curve
from glancefocus.exits.genetic import (
    MUTATIONS,
    GeneCode,
    children,
    fixed_sequences,
    genetic_front,
    genetic_within,
    larger_for_less_sure,
    rank_front,
    rank_within,
)
from glancefocus.exits.one_size import direct_within
from glancefocus.exits.table import LookTable, path_nodes

SMALL: dict[str, Any] = {"population": 24, "generations": 12}


def plausible_tree(seed: int, count: int = 250, looks: int = 3, sizes: int = 3) -> LookTable:
    """Images that are easy or hard; larger patches help more, and cost more."""
    random = np.random.default_rng(seed)
    paths: list[tuple[int, ...]] = [()]
    for _ in range(looks - 1):
        paths += [(*path, size) for path in paths[-(sizes ** len(paths[-1])) :] for size in range(sizes)]
    seen = np.array([sum(0.3 + 0.3 * size for size in path) for path in paths])
    ease = random.normal(size=(count, 1)) + seen + 0.6 * random.normal(size=(count, len(paths)))
    chance = 1 / (1 + np.exp(-1.5 * ease))
    macs = np.array([10.0 + sum(6 + 4 * size**2 for size in path) for path in paths])
    return LookTable(chance.astype(np.float32), random.random(chance.shape) < chance, macs, sizes=sizes)


def planted() -> LookTable:
    """Sure images are right at the glance; the middling ones only with the small patch; the unsure ones only with the large one.

    Twenty images of each kind. Multiply-adds: glance 1, small patch 1 more, large patch 3 more.
    """
    kinds = np.repeat([0, 1, 2], 20)
    score = np.tile(np.array([0.9, 0.6, 0.2], dtype=np.float32)[kinds][:, None], (1, 3))
    correct = np.array([[True, True, True], [False, True, False], [False, False, True]])[kinds]
    return LookTable(score, correct, np.array([1.0, 2.0, 4.0]), sizes=2)


def best_of_one_size(table: LookTable, budget: float) -> float:
    tables = [table.fixed_size(size) for size in range(table.sizes)]
    return max(float(own.point(direct_within(own, budget))["accuracy"]) for own in tables)


def test_the_planted_mixture_of_sizes_is_found() -> None:
    # 20 leave at the glance, 20 take the small patch, 20 the large one: (1 + 2 + 4) / 3 multiply-adds, all right.
    table = planted()
    assert best_of_one_size(table, 100.0) == 40 / 60
    point = table.point(genetic_within(table, 7 / 3, **SMALL))
    assert (point["accuracy"], point["mean_macs"]) == (1.0, 7 / 3)
    assert point["patches_per_look_and_size"] == [[20, 20]]


def test_the_front_has_every_step_of_the_planted_curve() -> None:
    table = planted()
    points = [table.point(thresholds) for thresholds in genetic_front(table, **SMALL)]
    # Only the sure ones are right; the small patch for the other forty helps twenty of them: (20 + 80) / 60; each its size.
    assert [(p["accuracy"], p["mean_macs"]) for p in points] == [(20 / 60, 1.0), (40 / 60, 100 / 60), (1.0, 7 / 3)]


def test_a_mixture_is_found_among_many_looks_and_scores() -> None:
    # The same by a random score: below 0.4 only large patches help, from 0.4 to 0.8 only small ones. A wrong size never recovers.
    random = np.random.default_rng(0)
    first = random.random(400, dtype=np.float32)
    wanted = np.where(first > 0.8, -1, np.where(first > 0.4, 0, 1))
    score = random.random((400, 7), dtype=np.float32)
    score[:, 0] = first
    correct = np.zeros((400, 7), dtype=bool)
    correct[:, 0] = wanted == -1
    for size in (0, 1):
        correct[:, 1 + size] = wanted == size
        correct[:, [3 + 2 * size, 4 + 2 * size]] = (wanted == size)[:, None]
    table = LookTable(score, correct, np.array([1.0, 2, 4, 3, 5, 5, 7]), sizes=2)
    budget = 3.0
    found = float(table.point(genetic_within(table, budget))["accuracy"])
    assert best_of_one_size(table, budget) < 0.7
    assert found > 0.97


@pytest.mark.parametrize("seed", range(2))
def test_it_is_never_worse_than_the_best_fixed_size(seed: int) -> None:
    table = plausible_tree(seed)
    for budget in np.linspace(table.cheapest, table.dearest, 5):
        found = genetic_within(table, budget, population=16, generations=3)
        point = table.point(found)
        assert found.shape == (3, 3)
        assert found.dtype == np.float32
        assert point["mean_macs"] <= budget
        assert point["accuracy"] >= best_of_one_size(table, budget)


def test_the_front_is_never_worse_than_the_best_fixed_size_at_its_budgets() -> None:
    table = plausible_tree(5)
    budgets = np.linspace(table.cheapest, table.dearest, 8).tolist()
    points = [table.point(t) for t in genetic_front(table, budgets=budgets, population=20, generations=5)]
    costs, accuracies = [p["mean_macs"] for p in points], [p["accuracy"] for p in points]
    assert costs == sorted(set(costs))
    assert accuracies == sorted(set(accuracies))
    for budget in budgets:
        affordable = [a for a, cost in zip(accuracies, costs, strict=True) if cost <= budget]
        assert max(affordable) >= best_of_one_size(table, budget)


def test_mixing_sizes_beats_one_size_on_a_plausible_table() -> None:
    table = plausible_tree(3, count=400)
    budget = table.cheapest + 0.3 * (table.dearest - table.cheapest)
    assert table.point(genetic_within(table, budget))["accuracy"] > best_of_one_size(table, budget)


def test_a_curve_of_several_sizes_never_falls() -> None:
    table = plausible_tree(4, count=120, sizes=2)
    curve = solve_curve(table, points=6)
    assert [entry["budget_macs"] for entry in curve] == np.linspace(table.cheapest, table.dearest, 6).tolist()
    assert curve[0]["thresholds"] == [[-1, -1], [-1, -1], [0, 0]]
    accuracies = [entry["expected_accuracy"] for entry in curve]
    assert accuracies == sorted(accuracies)
    for entry in curve:
        assert entry["mean_macs"] <= entry["budget_macs"]


def test_thresholds_that_give_up_some_accuracy_cost_less() -> None:
    table = plausible_tree(4, count=120, sizes=2)
    dear, cheap = (table.point(genetic_within(table, table.dearest, spare=spare, **SMALL)) for spare in (0.0, 0.05))
    assert dear["accuracy"] - 0.05 <= cheap["accuracy"] <= dear["accuracy"]
    assert cheap["mean_macs"] < dear["mean_macs"]


def test_a_seed_repeats_a_search() -> None:
    table = plausible_tree(6)
    budget = 20.0
    once, again, other = (genetic_within(table, budget, seed=seed, **SMALL).tolist() for seed in (1, 1, 2))
    assert once == again
    assert once != other
    fronts = [[t.tolist() for t in genetic_front(table, budgets=[15.0, 30.0], seed=1, **SMALL)] for _ in range(2)]
    assert fronts[0] == fronts[1]


# Cost and accuracy of five individuals. Nothing beats 0, 1 and 3; 3 beats 2, and 4 repeats 1.
FOUND = np.array([[1.0, 0.5], [2.0, 0.7], [3.0, 0.6], [3.0, 0.9], [2.0, 0.7]])


def test_the_most_accurate_within_the_budget_ranks_first_and_a_repeated_one_last() -> None:
    assert rank_within(FOUND, 2.0).tolist() == [1, 0, 2, 3, 4]
    assert rank_within(FOUND, 1.5).tolist()[:2] == [0, 1]  # the others cost too much, 1 by the least


def test_the_ends_of_the_first_front_rank_before_its_middle_and_a_repeated_one_last() -> None:
    assert rank_front(FOUND).tolist() == [0, 3, 1, 2, 4]


def test_the_middle_of_a_front_is_ranked_by_the_distance_of_its_neighbours() -> None:
    # Neighbours of 1 are 3 and 0.5 apart, of 2 they are 9 and 0.5: 2 stands in the emptier place.
    found = np.array([[0.0, 0.0], [1.0, 0.25], [3.0, 0.5], [10.0, 0.75]])
    assert rank_front(found).tolist() == [0, 3, 2, 1]


def test_children_take_the_genes_of_parents_and_a_few_mutations() -> None:
    random = np.random.default_rng(0)
    parents = random.random((400, 10))
    young = children(parents, random)
    assert young.shape == parents.shape
    assert 0 <= young.min() <= young.max() <= 1
    inherited = np.array([np.isin(young[:, gene], parents[:, gene]) for gene in range(10)])
    assert (~inherited).sum() / 400 == pytest.approx(MUTATIONS, abs=0.15)
    # Of two parents drawn at random the better one is taken: two thirds of the way up the ranking on average.
    rank = [
        np.argsort(parents[:, g])[np.searchsorted(np.sort(parents[:, g]), young[inherited[g], g])] for g in range(10)
    ]
    assert np.concatenate(rank).mean() == pytest.approx(400 / 3, rel=0.05)


def test_genes_stand_for_thresholds_and_back() -> None:
    table = plausible_tree(7)
    code = GeneCode(table)
    starts = fixed_sequences(table, [20.0, 40.0])
    assert np.array_equal(code.thresholds(code.genes(starts)), starts)
    ends = code.thresholds(np.array([[0.0] * 6, [1.0] * 6]))
    assert ends[0, :2].tolist() == [[-1] * 3] * 2
    assert ends[1, :2].tolist() == [[1] * 3] * 2
    # Half way between the ends is the median of the scores: half of them are above.
    middle = code.thresholds(np.full((1, 6), 0.5))[0]
    for look, nodes in ((0, [0]), (1, [1, 2, 3])):
        assert np.mean(table.score[:, nodes] > middle[look, 0]) == pytest.approx(0.5, abs=0.01)


def test_fixed_sequences_never_get_smaller() -> None:
    table = plausible_tree(8)
    for thresholds in fixed_sequences(table, [25.0]):
        own = [set(path_nodes(path, 3)) for path in ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))]
        nodes = set(table.exits(thresholds).tolist())
        assert any(nodes <= path for path in own)


def test_one_look_needs_no_genes() -> None:
    table = LookTable(np.array([[0.5], [0.6]], np.float32), np.array([[True], [False]]), np.array([7.0]), sizes=2)
    assert genetic_within(table, 7.0).tolist() == [[0.0, 0.0]]


def test_scores_that_are_all_equal_can_be_searched() -> None:
    table = LookTable(
        np.full((4, 3), 0.5, np.float32), np.array([[False, True, False]] * 4), np.arange(1.0, 4), sizes=2
    )
    point = table.point(genetic_within(table, 2.0, population=16, generations=4))
    assert (point["accuracy"], point["mean_macs"]) == (1.0, 2.0)


def test_a_budget_below_one_glance_is_refused() -> None:
    with pytest.raises(BadBudget, match="less than one glance"):
        genetic_within(planted(), 0.5)


def test_a_view_for_less_sure_images_than_a_larger_view_is_dropped() -> None:
    thresholds = np.array(
        [
            [0.9, 0.5],  # the small view above 0.5, the large one below it: kept
            [0.3, 0.8],  # the small view for the least sure images: they get the large one
            [-1.0, 0.8],  # the large view only: kept
            [0.7, 0.7],  # among equal ones the first, which is the small view: kept
        ],
        dtype=np.float32,
    )[None]
    kept = larger_for_less_sure(thresholds)[0]
    assert kept.tolist() == np.array([[0.9, 0.5], [-1, 0.8], [-1, 0.8], [0.7, 0.7]], dtype=np.float32).tolist()


def hopeless_at_a_glance(images: int) -> LookTable:
    """Half of the images are sure and right. The others look hopeless, and only the large view gets some of them right.

    The small view costs 1 more than the glance, the large one 10: among a few images it can seem to pay to give up.
    """
    score = np.tile(np.array([0.9, 0.1], dtype=np.float32)[np.arange(images) % 2][:, None], (1, 3))
    correct = np.zeros((images, 3), dtype=np.bool_)
    correct[::2] = True
    correct[1::4, 2] = True
    return LookTable(score, correct, np.array([1.0, 2.0, 11.0]), sizes=2)


@pytest.mark.parametrize(("images", "ordered"), [(396, True), (400, False)])
def test_with_few_images_less_sure_ones_never_get_a_smaller_view(images: int, ordered: bool) -> None:
    code = GeneCode(hopeless_at_a_glance(images))
    genes = np.random.default_rng(0).random((200, code.genes_each))
    first = code.thresholds(genes)[:, 0]
    reversed_order = (first[:, 0] > -1) & (first[:, 0] < first[:, 1])
    assert bool(reversed_order.any()) is not ordered
