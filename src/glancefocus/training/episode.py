"""Episodes (all looks at a batch, kept for training), the policy that explores, rewards, and PPO (paper, section 3.3 and A.2).

PPO and the rewards are functions of tensors whose first axis is the look and whose second axis is the image.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from glancefocus.look import Aim, Look, Scene
from glancefocus.loop import LookingNetwork, Policy, every_look, run_looks
from glancefocus.network.modules import LearntPolicy
from glancefocus.training.stage import NonFinite


def discounted_returns(rewards: Tensor, discount: float) -> Tensor:
    """r_t + discount r_{t+1} + discount^2 r_{t+2} + ...; rewards (L, B)."""
    returns = torch.empty_like(rewards)
    following = torch.zeros_like(rewards[0])
    for look in range(rewards.shape[0] - 1, -1, -1):
        following = rewards[look] + discount * following
        returns[look] = following
    return returns


def generalised_advantages(rewards: Tensor, values: Tensor, discount: float, gae_lambda: float) -> Tensor:
    """Sum over k of (discount lambda)^k (r_{t+k} + discount V_{t+k+1} - V_{t+k}); the value after the last look is 0."""
    next_values = torch.cat([values[1:], torch.zeros_like(values[:1])])
    surprises = rewards + discount * next_values - values
    return discounted_returns(surprises, discount * gae_lambda)


def normalised(values: Tensor) -> Tensor:
    """Zero mean and unit deviation over looks and batch; values that are all equal become zero."""
    return (values - values.mean()) / (values.std() + 1e-5)


def gaussian_log_prob(where: Tensor, mean: Tensor, deviation: float) -> Tensor:
    """Log density of `where` under independent Gaussians on both axes; (..., 2) -> (...)."""
    squares = ((where - mean) / deviation).square().sum(dim=-1)
    return -0.5 * squares - where.shape[-1] * (math.log(deviation) + 0.5 * math.log(2 * math.pi))


def gaussian_entropy(deviation: float, axes: int = 2) -> float:
    """Entropy of independent Gaussians. It depends on the deviation only, so its bonus has no gradient here."""
    return axes * (0.5 + 0.5 * math.log(2 * math.pi) + math.log(deviation))


def clipped_surrogate(log_prob: Tensor, old_log_prob: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """L^CLIP, to be maximised: the minimum of the plain and the clipped ratio, times the advantage."""
    ratio = (log_prob - old_log_prob).exp()
    return torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)


class Losses(NamedTuple):
    """The loss that PPO minimises, and its parts."""

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


Judge = Callable[[Look], Tensor]
"""Returns the (B, classes) logits of a look that rewards are computed from."""


def the_answer(look: Look) -> Tensor:
    """The classifier's logits after all looks so far."""
    return look.logits


class Episode:
    """A recorder that keeps every look."""

    def __init__(self) -> None:
        self.looks: list[Look] = []

    def record(self, look: Look, leaving: Tensor, sure: Tensor) -> None:
        self.looks.append(look)


def play(net: LookingNetwork, scene: Scene, looks: int, policy: Policy) -> list[Look]:
    """All looks at a scene, made by the same loop as in prediction; no image exits early."""
    episode = Episode()
    run_looks(net, scene, every_look(looks), policy, episode)
    return episode.looks


class ExploringPolicy:
    """Adds Gaussian noise of fixed deviation to the aims of another policy, clipped to the image.

    As in the released code, the log-probability is that of the clipped place.
    """

    def __init__(self, policy: Policy, deviation: float, generator: torch.Generator) -> None:
        self.policy = policy
        self.deviation = deviation
        self.generator = generator

    def aim(self, look: Look) -> Aim:
        with torch.no_grad():
            aim = finite(self.policy.aim(look))
        assert aim.mean is not None
        noise = torch.randn(aim.mean.shape, generator=self.generator).to(aim.mean.device)
        where = (aim.mean + self.deviation * noise).clamp(0, 1)
        return Aim(
            where=where,
            candidate=aim.candidate,
            memory=aim.memory,
            mean=aim.mean,
            value=aim.value,
            log_prob=gaussian_log_prob(where, aim.mean, self.deviation),
        )


def after_exploring(generator: torch.Generator, aims: int, count: int, candidates: int) -> torch.Generator:
    """A copy of the generator in the state that it will have after this many aims of an exploring policy.

    With it, numbers that are drawn after an episode can be drawn before it. `generator` itself is not changed.
    """
    later = torch.Generator()
    later.set_state(generator.get_state())
    for _ in range(aims):
        if candidates > 1:
            torch.randint(candidates, (1,), generator=later)  # as draw_candidate does
        torch.randn(count, 2, generator=later)
    return later


class PolicyStep(nn.Module):
    """Computes the policy again over the looks of an episode, with gradients: means (L, B, 2) and values (L, B)."""

    def __init__(self, policy: LearntPolicy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, looks: list[Look]) -> tuple[Tensor, Tensor]:
        means, values, memory = [], [], None
        for look, following in itertools.pairwise(looks):
            assert following.aim is not None
            perceived = self.policy.perceive(look.map, look.candidate)
            memory = self.policy.remember(
                perceived,
                look.candidate,
                self.policy.next_code(following.aim.candidate, perceived),
                memory,
                self.policy.place_of(look),
            )
            means.append(self.policy.mean(memory))
            values.append(self.policy.value(memory))
        return torch.stack(means), torch.stack(values)


class ComparingNetwork:
    """A network that, in the same batch as the chosen patches, also looks at random ones for the contrastive reward.

    elsewhere  for every focus look so far: (draws, B, classes) logits of the judge for the random patches
    """

    def __init__(self, net: LookingNetwork, draws: int, generator: torch.Generator, judge: Judge = the_answer) -> None:
        self.net = net
        self.draws = draws
        self.generator = generator
        self.judge = judge
        self.elsewhere: list[Tensor] = []

    def glance(self, scene: Scene) -> Look:
        return self.net.glance(scene)

    def focus(self, look: Look, aim: Aim) -> Look:
        count, device = look.count, look.logits.device
        several = torch.arange(count, device=device).repeat(1 + self.draws)
        places = [random_places(count, self.generator, device) for _ in range(self.draws)]
        aims = replace(aim.keep(several), where=torch.cat([aim.where, *places]))
        seen = self.net.focus(look.at(several), aims)
        self.elsewhere.append(self.judge(seen)[count:].reshape(self.draws, count, -1))
        chosen = seen.at(torch.arange(count, device=device))
        return replace(chosen, scene=look.scene, rows=look.rows, aim=aim)


def random_places(count: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """(B, 2) uniform places; drawn on the CPU, so that a seed gives the same places on every device."""
    return torch.rand(count, 2, generator=generator).to(device)


class MistakenGlances:
    """A network whose classifier memory after the glance is, for some images, that of another image's glance.

    A glance encoder is better on its training images than on new ones, so a classifier trained on the same images gives it too
    much weight. This way it learns that patches may contradict the glance. First answers and aims are not changed, and no gradient
    flows into the glance encoder.

    remember  first look -> memory of the classifier, see GlanceFocus.remember_again
    share     of the images
    """

    def __init__(
        self, net: LookingNetwork, remember: Callable[[Look], Tensor], share: float, generator: torch.Generator
    ) -> None:
        self.net = net
        self.remember = remember
        self.share = share
        self.generator = generator

    def glance(self, scene: Scene) -> Look:
        look = self.net.glance(scene)
        mistaken = (torch.rand(look.count, generator=self.generator) < self.share).to(look.memory.device)
        other = self.remember(look).roll(1, 0)
        return replace(look, memory=torch.where(mistaken[:, None], other, look.memory))

    def focus(self, look: Look, aim: Aim) -> Look:
        return self.net.focus(look, aim)


class MixedGlances:
    """A network whose feature map of the glance, which the policy sees, is for some images mixed with that of another image.

    Then two places look right. A policy that looks at the wrong one finds nothing there, and learns to go to the other. Glances
    at training images mislead it too rarely to learn that from them. Answers are not changed.

    share  of the images
    """

    def __init__(self, net: LookingNetwork, share: float, generator: torch.Generator) -> None:
        self.net = net
        self.share = share
        self.generator = generator

    def glance(self, scene: Scene) -> Look:
        look = self.net.glance(scene)
        mixed = (torch.rand(look.count, 1, 1, 1, generator=self.generator) < self.share).to(look.map.device)
        return replace(look, map=torch.where(mixed, torch.maximum(look.map, look.map.roll(1, 0)), look.map))

    def focus(self, look: Look, aim: Aim) -> Look:
        return self.net.focus(look, aim)


class SometimesRandom:
    """Another policy, but for a share of the images at random places; these may miss, as the policy's own may in new images."""

    def __init__(self, policy: Policy, share: float, generator: torch.Generator) -> None:
        self.policy = policy
        self.share = share
        self.generator = generator

    def aim(self, look: Look) -> Aim:
        aim = self.policy.aim(look)
        chosen = (torch.rand(look.count, 1, generator=self.generator) < self.share).to(aim.where.device)
        return replace(
            aim, where=torch.where(chosen, random_places(look.count, self.generator, aim.where.device), aim.where)
        )


class FixedPolicy:
    """The learnt policy without gradients, for stage III."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def aim(self, look: Look) -> Aim:
        with torch.no_grad():
            return finite(self.policy.aim(look))


def finite(aim: Aim) -> Aim:
    """The same aim; raises NonFinite if it is not a valid place, before any patch is cut there."""
    if not bool(aim.where.isfinite().all()):
        raise NonFinite("an aim of the policy became infinite or not a number")
    return aim


def label_probability(looks: list[Look], labels: Tensor, judge: Judge = the_answer) -> Tensor:
    """(T, B) probability of the true class after each look."""
    return torch.stack([probability_of(judge(look), labels) for look in looks])


def probability_of(logits: Tensor, labels: Tensor) -> Tensor:
    """(..., B) probability of the true class; logits (..., B, classes), labels (B,)."""
    probability = logits.detach().float().softmax(dim=-1)
    return probability.gather(-1, labels[:, None].expand(*probability.shape[:-1], 1))[..., 0]


def accuracy_after(looks: list[Look], labels: Tensor) -> list[float]:
    """Accuracy after each look."""
    return [float((look.logits.argmax(dim=1) == labels).float().mean()) for look in looks]


def answers_elsewhere(
    net: LookingNetwork,
    look: Look,
    aim: Aim | None,
    draws: int,
    generator: torch.Generator,
    judge: Judge = the_answer,
) -> Tensor:
    """(draws, B, classes) logits of the judge for random patches of the same size as the aim's."""
    assert aim is not None
    places = [random_places(look.count, generator, look.logits.device) for _ in range(draws)]
    return torch.stack([judge(net.focus(look, Aim(where=where, candidate=aim.candidate))) for where in places])
