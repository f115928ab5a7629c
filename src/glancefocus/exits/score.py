"""Exit scores: a number in [0, 1] for every row of a look. An image stops when its score is above a threshold."""

import math
from typing import Literal, Protocol

import torch
from torch import Tensor

from glancefocus.errors import BadSetting, UnknownName
from glancefocus.look import Aim, Look

ScoreName = Literal["confidence", "entropy", "value", "random"]
SCORES: tuple[ScoreName, ...] = ("confidence", "entropy", "value", "random")


class Score(Protocol):
    """What an exit rule compares with its thresholds.

    needs_aim  whether the score needs the next aim; its multiply-adds are then spent for images that stop as well
    """

    name: ScoreName
    needs_aim: bool

    def of(self, look: Look, aim: Aim | None) -> Tensor:
        """(B,) in [0, 1]."""
        ...


class Confidence:
    """The largest softmax probability (the paper's)."""

    name: ScoreName = "confidence"
    needs_aim = False

    def of(self, look: Look, aim: Aim | None) -> Tensor:
        return look.confidence


class Entropy:
    """1 minus the entropy of the answer as a share of the largest possible entropy."""

    name: ScoreName = "entropy"
    needs_aim = False

    def of(self, look: Look, aim: Aim | None) -> Tensor:
        return 1 - entropy(look.logits) / math.log(look.logits.shape[1])


class Value:
    """The less the critic expects to gain from further looks, the larger the score; a sigmoid brings it into [0, 1]."""

    name: ScoreName = "value"
    needs_aim = True

    def of(self, look: Look, aim: Aim | None) -> Tensor:
        if aim is None or aim.value is None:
            raise BadSetting("the score 'value' needs a policy with a critic. Use confidence or entropy.")
        return torch.sigmoid(-aim.value.float())


class Random:
    """A random number: the baseline that every other score must beat."""

    name: ScoreName = "random"
    needs_aim = False

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.generator = generator

    def of(self, look: Look, aim: Aim | None) -> Tensor:
        return torch.rand(look.count, generator=self.generator).to(look.logits.device)


def entropy(logits: Tensor) -> Tensor:
    """(B,) of the softmax, in nats; logits (B, classes)."""
    log_probability = logits.float().log_softmax(dim=1)
    return -(log_probability.exp() * log_probability).sum(dim=1)


def score_named(name: str, generator: torch.Generator | None = None) -> Score:
    """The score of this name; the generator is used by the random one."""
    scores: dict[str, Score] = {s.name: s for s in (Confidence(), Entropy(), Value(), Random(generator))}
    if name not in scores:
        raise UnknownName("exit score", name, SCORES, f"Known are {', '.join(SCORES)}.")
    return scores[name]
