"""Episodes: every look of a batch, kept for learning; and the policy that explores."""

import torch
from torch import Tensor

from glancefocus.adaptive import LookingNetwork, Policy, run_looks
from glancefocus.early_exit.rule import every_look
from glancefocus.look import Aim, Look
from glancefocus.scene import Scene
from glancefocus.training.ppo import gaussian_log_prob


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
            aim = self.policy.aim(look)
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


class FixedPolicy:
    """The learnt policy, looked up and not trained: what stage III aims with."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def aim(self, look: Look) -> Aim:
        with torch.no_grad():
            return self.policy.aim(look)


def label_probability(looks: list[Look], labels: Tensor) -> Tensor:
    """(T, B) probability of the true class after each look."""
    return torch.stack([look.logits.detach().float().softmax(dim=1).gather(1, labels[:, None])[:, 0] for look in looks])


def accuracy_after(looks: list[Look], labels: Tensor) -> list[float]:
    """Share of right answers after each look."""
    return [float((look.logits.argmax(dim=1) == labels).float().mean()) for look in looks]
