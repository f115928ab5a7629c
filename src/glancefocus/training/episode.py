"""Episodes: every look of a batch, kept for learning; and the policy that explores."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from glancefocus.exits.rule import every_look
from glancefocus.look import Aim, Look
from glancefocus.loop import LookingNetwork, Policy, run_looks
from glancefocus.network.policy import draw_one_px
from glancefocus.scene import Scene
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


Judge = Callable[[Look], Tensor]  # (B, classes) by which a look is judged


def the_answer(look: Look) -> Tensor:
    """What the network answers after all looks so far."""
    return look.logits


class Episode:
    """Takes notes of whole looks; nobody leaves before the last one."""

    def __init__(self) -> None:
        self.looks: list[Look] = []

    def record(self, look: Look, leaving: Tensor, sure: Tensor) -> None:
        self.looks.append(look)


def play(net: LookingNetwork, scene: Scene, looks: int, policy: Policy) -> list[Look]:
    """All looks at a scene, by the same loop that answers."""
    episode = Episode()
    run_looks(net, scene, every_look(looks), policy, episode)
    return episode.looks


class ExploringPolicy:
    """Aims around where the learnt policy would: a Gaussian of fixed deviation, clipped to the image.

    As in the released code the log-probability is that of the clipped place.
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
            patch_px=aim.patch_px,
            memory=aim.memory,
            mean=aim.mean,
            value=aim.value,
            log_prob=gaussian_log_prob(where, aim.mean, self.deviation),
        )


def after_exploring(generator: torch.Generator, aims: int, count: int, sizes: tuple[int, ...]) -> torch.Generator:
    """The generator as it will be after so many aims of an exploring policy with these patch sizes; itself it stays as it is.

    What is drawn after an episode can so be drawn before it.
    """
    later = torch.Generator()
    later.set_state(generator.get_state())
    for _ in range(aims):
        draw_one_px(sizes, later)
        torch.randn(count, 2, generator=later)
    return later


class ComparingNetwork:
    """Looks where it is aimed and, in the same batch, at random places.

    elsewhere  for every focus look so far (draws, B, classes): what the judge says had it gone to random places instead
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
    """(B, 2) anywhere; drawn on the CPU, so that a seed gives the same places on every device."""
    return torch.rand(count, 2, generator=generator).to(device)


class MistakenGlances:
    """A network whose classifier remembers, in some of the images, what it made of another image's glance.

    A glance encoder knows the images that it learnt from better than new ones, and a classifier that learns from the same images
    comes to trust it too much. So it learns that patches may prove a glance wrong. First answers and aims stay as they are, and
    the glance encoder learns nothing of it.

    remember  the classifier's, of a glance's vector
    share     of the images
    """

    def __init__(
        self, net: LookingNetwork, remember: Callable[[Tensor], Tensor], share: float, generator: torch.Generator
    ) -> None:
        self.net = net
        self.remember = remember
        self.share = share
        self.generator = generator

    def glance(self, scene: Scene) -> Look:
        look = self.net.glance(scene)
        mistaken = (torch.rand(look.count, generator=self.generator) < self.share).to(look.memory.device)
        other = self.remember(look.features.detach().roll(1, 0))
        return replace(look, memory=torch.where(mistaken[:, None], other, look.memory))

    def focus(self, look: Look, aim: Aim) -> Look:
        return self.net.focus(look, aim)


class FixedPolicy:
    """The learnt policy, looked up and not trained: what stage III aims with."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def aim(self, look: Look) -> Aim:
        with torch.no_grad():
            return finite(self.policy.aim(look))


def finite(aim: Aim) -> Aim:
    """The same aim; one that is no place stops the training before anything is cut out there."""
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
    """Share of right answers after each look."""
    return [float((look.logits.argmax(dim=1) == labels).float().mean()) for look in looks]
