"""How likely answers are right, going by their scores: a smooth curve that few images cannot bend by luck."""

import numpy as np
import pytest
from numpy.typing import NDArray

from glancefocus.exits.table import LookTable, expected_correct, fit_curve, logit_of, powers


def overconfident(count: int, seed: int = 0, looks: int = 2) -> tuple[LookTable, NDArray[np.float64]]:
    """A table whose scores promise too much, and how likely its answers really are right."""
    random = np.random.default_rng(seed)
    ease = random.normal(0.5, 1.5, (count, looks)) + 0.8 * np.arange(looks)
    chance = 1 / (1 + np.exp(-ease))
    score = (1 / (1 + np.exp(-2.5 * ease - 1))).astype(np.float32)
    return LookTable(score, random.random(chance.shape) < chance, np.arange(1.0, looks + 1)), chance


def test_with_many_images_it_finds_how_often_answers_are_right() -> None:
    table, chance = overconfident(20_000)
    assert np.abs(expected_correct(table) - chance).mean() < 0.01
    assert np.abs(table.score - chance).mean() > 0.1  # which the scores themselves do not


def test_with_few_images_it_is_nearer_the_truth_than_counting() -> None:
    errors = []
    for seed in range(10):
        table, chance = overconfident(70, seed)
        errors.append(np.abs(expected_correct(table) - chance).mean())
    assert np.mean(errors) < 0.1


def test_the_mean_is_that_of_the_answers() -> None:
    # The slope of the likelihood in the first number is zero but for the prior: the sums of both nearly agree.
    table, _ = overconfident(500)
    assert expected_correct(table).mean(axis=0) == pytest.approx(table.correct.mean(axis=0), abs=0.01)


@pytest.mark.parametrize("right", [True, False])
def test_answers_that_are_all_alike_do_not_run_away(right: bool) -> None:
    score = np.random.default_rng(0).random((50, 3), dtype=np.float32)
    score[0] = [0.0, 1.0, 0.5]
    found = expected_correct(LookTable(score, np.full((50, 3), right), np.arange(1.0, 4)))
    assert np.isfinite(found).all()
    assert (found.mean() > 0.95) if right else (found.mean() < 0.05)


def test_equal_scores_have_one_chance() -> None:
    correct = np.array([[True], [True], [True], [False]])
    found = expected_correct(LookTable(np.full((4, 1), 0.5, np.float32), correct, np.ones(1)))
    assert np.ptp(found) == 0
    assert 0.5 < found[0, 0] < 1


def test_the_curve_is_where_the_likelihood_is_largest() -> None:
    random = np.random.default_rng(1)
    z = random.normal(size=300)
    right = (random.random(300) < 1 / (1 + np.exp(-z))).astype(np.float64)
    centre, precision = np.array([0.0, 1.0, 0.0]), np.array([0.01, 0.3, 3.0])
    curve = fit_curve(z, right, centre, precision)

    def loss(of: NDArray[np.float64]) -> float:
        logit = powers(z) @ of
        return float(np.logaddexp(0, logit).sum() - right @ logit + 0.5 * (precision * (of - centre) ** 2).sum())

    for step in 0.01 * np.concatenate([np.eye(3), -np.eye(3)]):
        assert loss(curve + step) > loss(curve)


def test_scores_of_zero_and_one_have_a_finite_logit() -> None:
    logits = logit_of(np.array([0.0, 0.5, 1.0], dtype=np.float32))
    assert logits == pytest.approx([-np.log(99_999), 0.0, np.log(99_999)], abs=1e-6)
