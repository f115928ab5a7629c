"""When an image has been looked at enough."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from glancefocus.errors import BadSetting
from glancefocus.look import Look


@dataclass(frozen=True)
class ExitRule:
    """Stop once the confidence is above the threshold of this look (paper, section 3.1); the last look always leaves.

    thresholds  one for each look. The last one stops nothing: it only says whether an image left sure or out of looks
                (0 or less: always out of looks).
    """

    thresholds: tuple[float, ...]

    def __init__(self, thresholds: Sequence[float]) -> None:
        values = tuple(float(t) for t in thresholds)
        if not values:
            raise BadSetting("an exit rule needs one threshold for each look, but got none.")
        if any(math.isnan(t) for t in values):
            raise BadSetting(f"thresholds must be numbers, but got {list(values)}.")
        object.__setattr__(self, "thresholds", values)

    @property
    def looks(self) -> int:
        return len(self.thresholds)

    def sure(self, look: Look) -> Tensor:
        """(B,) bool: confident enough to stop."""
        threshold = self.thresholds[look.number - 1]
        if look.number == self.looks and threshold <= 0:
            return torch.zeros(look.count, dtype=torch.bool, device=look.logits.device)
        return look.confidence > threshold

    def leaves(self, look: Look) -> Tensor:
        """(B,) bool: sure, or out of looks."""
        if look.number >= self.looks:
            return torch.ones(look.count, dtype=torch.bool, device=look.logits.device)
        return self.sure(look)


def every_look(looks: int) -> ExitRule:
    """Nobody leaves before the last look: training, and anytime answers after a fixed number of looks."""
    return ExitRule([math.inf] * looks)
