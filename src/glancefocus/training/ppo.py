"""Proximal policy optimisation in pure functions of tensors (paper, A.2). The first axis is the look, the second the image."""

import math
from typing import NamedTuple

import torch
from torch import Tensor


def discounted_returns(rewards: Tensor, discount: float) -> Tensor:
    """r_t + discount r_{t+1} + discount^2 r_{t+2} + ...; rewards (L, B)."""
    returns = torch.empty_like(rewards)
    following = torch.zeros_like(rewards[0])
    for look in range(rewards.shape[0] - 1, -1, -1):
        following = rewards[look] + discount * following
        returns[look] = following
    return returns


def generalised_advantages(rewards: Tensor, values: Tensor, discount: float, gae_lambda: float) -> Tensor:
    """Sum over k of (discount lambda)^k (r_{t+k} + discount V_{t+k+1} - V_{t+k}); nothing is expected after the last look."""
    next_values = torch.cat([values[1:], torch.zeros_like(values[:1])])
    surprises = rewards + discount * next_values - values
    return discounted_returns(surprises, discount * gae_lambda)


def normalised(values: Tensor) -> Tensor:
    """Zero mean and unit deviation over looks and batch; values that are all alike become zero."""
    return (values - values.mean()) / (values.std() + 1e-5)


def gaussian_log_prob(where: Tensor, mean: Tensor, deviation: float) -> Tensor:
    """Log density of `where` under independent Gaussians on both axes; (..., 2) -> (...)."""
    squares = ((where - mean) / deviation).square().sum(dim=-1)
    return -0.5 * squares - where.shape[-1] * (math.log(deviation) + 0.5 * math.log(2 * math.pi))


def gaussian_entropy(deviation: float, axes: int = 2) -> float:
    """Entropy of independent Gaussians; it depends on the deviation only, so its bonus moves nothing while that is fixed."""
    return axes * (0.5 + 0.5 * math.log(2 * math.pi) + math.log(deviation))


def clipped_surrogate(log_prob: Tensor, old_log_prob: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """L^CLIP: the smaller of the plain and of the clipped ratio times the advantage; to be maximised."""
    ratio = (log_prob - old_log_prob).exp()
    return torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)


class Losses(NamedTuple):
    """What PPO minimises, and its parts."""

    total: Tensor
    surrogate: Tensor
    value: Tensor


def ppo_loss(
    *,
    log_prob: Tensor,
    old_log_prob: Tensor,
    values: Tensor,
    returns: Tensor,
    advantages: Tensor,
    clip: float,
    value_weight: float,
    entropy_weight: float,
    entropy: float,
) -> Losses:
    """Minus the objective of A.2: surrogate - c1 (V - target)^2 + c2 entropy, averaged over looks and images."""
    surrogate = clipped_surrogate(log_prob, old_log_prob, advantages, clip).mean()
    value = (values - returns).square().mean()
    return Losses(-surrogate + value_weight * value - entropy_weight * entropy, surrogate, value)


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
