"""What an aim was worth, from the probabilities of the true class. The first axis is the look, the second the image."""

from torch import Tensor


def increment_reward(probability: Tensor) -> Tensor:
    """How much each focus look added (Eq. 4): probability (T, B) of the label after each look -> (T - 1, B)."""
    return probability[1:] - probability[:-1]


def contrastive_reward(probability: Tensor, probability_at_random: Tensor) -> Tensor:
    """How much better than a random patch at the same look (section 4.1).

    probability            (T, B) after each look
    probability_at_random  (T - 1, B) had the same look gone to a random place instead, averaged over the draws
    """
    return probability[1:] - probability_at_random


def cross_entropy_reward(probability: Tensor) -> Tensor:
    """How much each focus look lowered the cross-entropy: log p_t - log p_{t-1}, (T, B) -> (T - 1, B)."""
    return increment_reward(probability.clamp_min(1e-8).log())
