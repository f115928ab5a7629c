"""The pieces of PPO against closed forms worked out by hand."""

import math

import pytest
import torch
from torch.distributions import Independent, Normal

from glancefocus.training.episode import (
    clipped_surrogate,
    discounted_returns,
    gaussian_entropy,
    gaussian_log_prob,
    generalised_advantages,
    normalised,
    ppo_loss,
)

REWARDS = torch.tensor([[1.0, 0.0], [2.0, -4.0], [3.0, 8.0]])  # three looks, two images
VALUES = torch.tensor([[0.5, 1.0], [1.0, 2.0], [2.0, 4.0]])


def test_a_return_is_its_reward_and_the_discounted_rest() -> None:
    # image 1: 3; 2 + 0.5 * 3; 1 + 0.5 * 3.5. image 2: 8; -4 + 0.5 * 8; 0 + 0.5 * 0.
    expected = torch.tensor([[2.75, 0.0], [3.5, 0.0], [3.0, 8.0]])
    torch.testing.assert_close(discounted_returns(REWARDS, 0.5), expected, rtol=0, atol=0)


def test_a_discount_of_zero_gives_the_reward_and_of_one_the_sum() -> None:
    assert discounted_returns(REWARDS, 0.0).tolist() == REWARDS.tolist()
    assert discounted_returns(REWARDS, 1.0).tolist() == [[6.0, 4.0], [5.0, 4.0], [3.0, 8.0]]


def test_lambda_of_zero_is_the_temporal_difference_of_one_step() -> None:
    # r + 0.5 V' - V: 1 + 0.5 - 0.5, 2 + 1 - 1, 3 + 0 - 2; 0 + 1 - 1, -4 + 2 - 2, 8 + 0 - 4
    expected = [[1.0, 0.0], [2.0, -4.0], [1.0, 4.0]]
    assert generalised_advantages(REWARDS, VALUES, discount=0.5, gae_lambda=0.0).tolist() == expected


def test_lambda_of_one_is_the_return_minus_the_value() -> None:
    advantages = generalised_advantages(REWARDS, VALUES, discount=0.5, gae_lambda=1.0)
    assert advantages.tolist() == (discounted_returns(REWARDS, 0.5) - VALUES).tolist()


def test_lambda_between_weighs_later_differences_by_discount_times_lambda() -> None:
    # surprises as for lambda 0, weight 0.5 * 0.5 = 0.25: 1; 2 + 0.25 * 1; 1 + 0.25 * 2.25
    advantages = generalised_advantages(REWARDS, VALUES, discount=0.5, gae_lambda=0.5)
    assert advantages[:, 0].tolist() == [1.5625, 2.25, 1.0]
    assert advantages[:, 1].tolist() == [0.0 + 0.25 * -3.0, -4.0 + 0.25 * 4.0, 4.0]


def test_returns_are_normalised_over_looks_and_images_together() -> None:
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]])  # mean 2.5, squares 2.25 0.25 0.25 2.25, deviation sqrt(5 / 3)
    scale = math.sqrt(5 / 3) + 1e-5
    expected = torch.tensor([[-1.5, -0.5], [0.5, 1.5]]) / scale
    torch.testing.assert_close(normalised(values), expected, rtol=0, atol=1e-6)


def test_values_that_are_all_equal_become_zero() -> None:
    assert normalised(torch.full((3, 4), 0.25)).tolist() == torch.zeros(3, 4).tolist()


def test_the_log_probability_is_that_of_two_independent_gaussians() -> None:
    generator = torch.Generator().manual_seed(0)
    where, mean = (torch.rand(3, 5, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    expected = Independent(Normal(mean, torch.full_like(mean, 0.1)), 1).log_prob(where)
    torch.testing.assert_close(gaussian_log_prob(where, mean, 0.1), expected, rtol=0, atol=1e-10)


def test_the_log_probability_at_the_mean_is_minus_the_log_of_two_pi_variance() -> None:
    at_mean = gaussian_log_prob(torch.tensor([0.3, 0.7]), torch.tensor([0.3, 0.7]), 0.5)
    assert float(at_mean) == pytest.approx(-math.log(2 * math.pi * 0.25), abs=1e-6)


def test_the_log_probability_pulls_the_mean_towards_the_place() -> None:
    mean = torch.tensor([0.5, 0.5], requires_grad=True)
    gaussian_log_prob(torch.tensor([0.6, 0.45]), mean, 0.1).backward()
    assert mean.grad is not None
    # (where - mean) / deviation^2
    torch.testing.assert_close(mean.grad, torch.tensor([10.0, -5.0]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("deviation", [0.1, 0.25, 1.0])
def test_the_entropy_is_that_of_two_independent_gaussians(deviation: float) -> None:
    expected = 2 * float(Normal(torch.tensor(0.0, dtype=torch.float64), deviation).entropy())
    assert gaussian_entropy(deviation) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("ratio", "advantage", "surrogate", "gradient"),
    [
        (1.0, 2.0, 2.0, 2.0),  # inside: the advantage pulls
        (1.1, 2.0, 2.2, 2.2),
        (1.5, 2.0, 2.4, 0.0),  # likelier than allowed, and good: no further
        (0.5, -2.0, -1.6, 0.0),  # less likely than allowed, and bad: no further
        (1.5, -2.0, -3.0, -3.0),  # likelier, but bad: back
        (0.5, 2.0, 1.0, 1.0),  # less likely, but good: back
    ],
)
def test_the_clip_stops_only_steps_that_go_further(
    ratio: float, advantage: float, surrogate: float, gradient: float
) -> None:
    log_prob = torch.tensor([math.log(ratio) - 1.0], dtype=torch.float64, requires_grad=True)
    old_log_prob = torch.tensor([-1.0], dtype=torch.float64)
    got = clipped_surrogate(log_prob, old_log_prob, torch.tensor([advantage], dtype=torch.float64), clip=0.2)
    got.sum().backward()
    assert log_prob.grad is not None
    assert got.item() == pytest.approx(surrogate, abs=1e-12)
    # d ratio / d log_prob is the ratio itself
    assert log_prob.grad.item() == pytest.approx(gradient, abs=1e-12)


def test_the_loss_is_minus_surrogate_plus_value_minus_entropy() -> None:
    losses = ppo_loss(
        log_prob=torch.tensor([[0.0, math.log(2.0)]]),
        old_log_prob=torch.zeros(1, 2),
        values=torch.tensor([[1.0, 3.0]]),
        returns=torch.tensor([[2.0, 5.0]]),
        advantages=torch.tensor([[1.0, 10.0]]),
        clip=0.2,
        value_weight=0.5,
        entropy_weight=0.01,
        entropy=-2.0,
    )
    assert losses.surrogate.item() == pytest.approx((1.0 + 12.0) / 2, abs=1e-6)
    assert losses.value.item() == pytest.approx((1.0 + 4.0) / 2, abs=1e-6)
    assert losses.total.item() == pytest.approx(-6.5 + 0.5 * 2.5 + 0.02, abs=1e-6)


def test_the_critics_error_moves_the_value_only_and_the_advantage_the_actor_only() -> None:
    log_prob, values = torch.zeros(1, 1, requires_grad=True), torch.zeros(1, 1, requires_grad=True)
    losses = ppo_loss(
        log_prob=log_prob,
        old_log_prob=torch.zeros(1, 1),
        values=values,
        returns=torch.full((1, 1), 3.0),
        advantages=torch.full((1, 1), 7.0),
        clip=0.2,
        value_weight=0.5,
        entropy_weight=0.01,
        entropy=1.0,
    )
    losses.total.backward()
    assert log_prob.grad is not None
    assert values.grad is not None
    assert log_prob.grad.item() == pytest.approx(-7.0, abs=1e-6)
    assert values.grad.item() == pytest.approx(0.5 * 2 * -3.0, abs=1e-6)
