"""Thresholds for a budget: measured on images that did not choose them, with what to expect of new ones."""

from dataclasses import replace

import numpy as np
import pytest

from glancefocus.errors import BadBudget
from glancefocus.evaluation.choosing import within_budget
from glancefocus.exits.budget import solve_within
from glancefocus.exits.table import LookTable


def world(count: int, seed: int = 0) -> LookTable:
    """Easy and hard images, right more often with every look; 10, 20, 30 multiply-adds."""
    random = np.random.default_rng(seed)
    ease = 1.5 * random.normal(size=(count, 1)) + 0.8 * np.arange(3) + 0.5 * random.normal(size=(count, 3))
    correct = random.random((count, 3)) < 1 / (1 + np.exp(-ease))
    return LookTable((1 / (1 + np.exp(-ease))).astype(np.float32), correct, np.array([10.0, 20.0, 30.0]))


def test_other_images_measure_where_there_are_some() -> None:
    choosing, others = world(60), world(200, seed=1)
    found = within_budget(choosing, 16.0, measuring=others)
    assert found.binds
    assert found.on_choosers == choosing.point(found.thresholds)
    assert found.on_choosers["mean_macs"] <= 16.0
    assert found.on_others == others.point(found.thresholds)
    assert (found.forecast.images, found.forecast.cost) == (200, found.on_others["mean_macs"])


def test_otherwise_each_image_is_measured_with_thresholds_that_it_did_not_choose() -> None:
    table = world(40)
    found = within_budget(table, 16.0)
    assert sum(found.on_others["exits_per_look"]) == 40
    assert found.on_others["thresholds"] == found.on_choosers["thresholds"]
    assert found.on_others["exits_per_look"] != found.on_choosers["exits_per_look"]
    assert found.forecast.images == 40
    assert found.forecast.cost_low < found.on_others["mean_macs"] < found.forecast.cost_high


def test_without_a_budget_and_with_one_that_allows_everything_the_same_is_chosen() -> None:
    table = world(100)
    best = solve_within(table, None).tolist()
    for budget in (None, 30.0, 1e9):
        found = within_budget(table, budget, measuring=table)
        assert not found.binds
        assert found.thresholds.tolist() == best


def test_new_images_cost_about_the_budget_on_average() -> None:
    everything = world(20_000, seed=2)
    random = np.random.default_rng(0)
    spent = []
    for _ in range(12):
        choosing = everything.rows(random.choice(len(everything), 50, replace=False))
        spent.append(everything.point(within_budget(choosing, 16.0, measuring=everything).thresholds)["mean_macs"])
    # Of 50 images one standard error of the mean cost is 1.1; of the mean over 12 times 0.3.
    assert 15.2 < np.mean(spent) < 16.5


def test_milliseconds_are_forecast_where_they_are_what_counts() -> None:
    table = replace(world(80), ms=np.array([2.0, 3.0, 7.0]), unit="ms")
    forecast = within_budget(table, 3.0).forecast
    assert forecast.unit == "ms"
    assert 2.0 <= forecast.cost_low < forecast.cost < forecast.cost_high < 7.0


def test_several_patch_sizes_are_chosen_measured_and_forecast_alike() -> None:
    random = np.random.default_rng(4)
    ease = random.normal(size=(50, 1)) + np.array([0.0, 0.6, 1.2]) + 0.5 * random.normal(size=(50, 3))
    chance = 1 / (1 + np.exp(-1.5 * ease))
    table = LookTable(chance.astype(np.float32), random.random((50, 3)) < chance, np.array([1.0, 2.0, 4.0]), sizes=2)
    found = within_budget(table, 2.0)
    assert found.thresholds.shape == (2, 2)
    assert sum(found.on_others["exits_per_look"]) == 50
    assert 1.0 <= found.forecast.cost_low < found.forecast.cost_high <= 4.0


def test_a_budget_that_cannot_be_met_is_refused() -> None:
    with pytest.raises(BadBudget, match="a budget of 9 multiply-adds is less than one glance"):
        within_budget(world(20), 9.0)
