"""Rewards out of the probabilities of the true class, by hand."""

import math

import torch

from glancefocus.look import Look
from glancefocus.training.episode import (
    accuracy_after,
    contrastive_reward,
    cross_entropy_reward,
    increment_reward,
    label_probability,
)

PROBABILITY = torch.tensor([[0.25, 0.5], [0.5, 0.25], [1.0, 0.25]])  # three looks, two images


def test_the_increment_is_what_each_look_added() -> None:
    assert increment_reward(PROBABILITY).tolist() == [[0.25, -0.25], [0.5, 0.0]]


def test_the_contrastive_reward_is_what_is_better_than_a_random_patch() -> None:
    at_random = torch.tensor([[0.25, 0.5], [0.75, 0.0]])
    assert contrastive_reward(PROBABILITY, at_random).tolist() == [[0.25, -0.25], [0.25, 0.25]]


def test_the_cross_entropy_reward_is_the_drop_of_the_loss() -> None:
    log2 = math.log(2)
    expected = torch.tensor([[log2, -log2], [log2, 0.0]])
    torch.testing.assert_close(cross_entropy_reward(PROBABILITY), expected, rtol=0, atol=1e-6)


def test_a_probability_of_zero_gives_a_finite_reward() -> None:
    reward = cross_entropy_reward(torch.tensor([[0.0], [1.0]]))
    assert reward.tolist() == torch.tensor([[-math.log(1e-8)]]).tolist()


def test_the_increments_of_an_episode_add_up_to_what_was_gained() -> None:
    torch.testing.assert_close(increment_reward(PROBABILITY).sum(dim=0), PROBABILITY[-1] - PROBABILITY[0])


def test_the_probability_of_the_label_is_read_off_each_look(look_with) -> None:  # type: ignore[no-untyped-def]
    looks: list[Look] = [look_with([0.9, 0.3]), look_with([0.6, 0.2], number=2)]  # probabilities of class 0
    got = label_probability(looks, torch.tensor([0, 1]))
    torch.testing.assert_close(got, torch.tensor([[0.9, 0.7], [0.6, 0.8]]), rtol=0, atol=1e-6)
    assert accuracy_after(looks, torch.tensor([0, 1])) == [1.0, 1.0]
    assert accuracy_after(looks, torch.tensor([1, 1])) == [0.5, 0.5]
