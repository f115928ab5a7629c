"""Episodes: every look of a batch, kept for learning; and the policy that explores."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from glancefocus.exits.rule import every_look
from glancefocus.look import Aim, Look
from glancefocus.loop import LookingNetwork, Policy, run_looks
from glancefocus.network.policy import draw_one_px
from glancefocus.scene import Scene
from glancefocus.training.ppo import gaussian_log_prob
from glancefocus.training.stage import NonFinite

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
