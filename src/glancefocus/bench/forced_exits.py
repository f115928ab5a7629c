"""Exits that were decided beforehand, whatever anybody is sure of: for measuring time, where answers do not matter."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glancefocus.errors import BadSetting
from glancefocus.exits.curve import refuse_budget
from glancefocus.exits.geometric import geometric_shares
from glancefocus.exits.rule import ExitRule
from glancefocus.look import Aim, Look

HALVINGS = 60


@dataclass(frozen=True)
class ForcedExits(ExitRule):
    """Every row leaves after the look that was decided for it; thresholds say only how many looks there are.

    exits  (N,) the look after which each row of the batch leaves, 1 for the glance
    """

    exits: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def sure(self, look: Look, aim: Aim | None = None) -> Tensor:
        # By numpy, so that a measurement is not slower than a look that compares one number.
        leaving = torch.from_numpy(self.exits[look.rows.numpy(force=True)] <= look.number)
        return leaving if look.rows.device.type == "cpu" else leaving.to(look.rows.device)


def forced_exits(exits: Sequence[int], looks: int) -> ForcedExits:
    """The rule by which the rows of a batch leave after these looks."""
    return ForcedExits([0.0] * looks, exits=np.array(exits, np.int64))


def planned_exits(shares: Sequence[float], count: int) -> list[int]:
    """After which look each of so many images leaves, such that at any point as many have left after each look as should have."""
    left = np.zeros(len(shares))
    plan = []
    for number in range(1, count + 1):
        look = int(np.argmax(np.asarray(shares) * number - left))
        left[look] += 1
        plan.append(look + 1)
    return plan


def checked_shares(shares: Sequence[float], looks: int) -> list[float]:
    """Shares that leave after each look, as a user gives them."""
    if len(shares) != looks:
        raise BadSetting(
            f"this network takes {looks} looks, so it needs {looks} shares of exits, but got {len(shares)}."
        )
    if not all(0 <= share <= 1 for share in shares) or abs(sum(shares) - 1) > 1e-3:
        raise BadSetting(
            f"exits are shares of all images, which sum to 1, but got {', '.join(f'{s:g}' for s in shares)}."
        )
    return list(shares)


def shares_within(macs_after_look: Sequence[float], budget_macs: float, *, falling: bool = False) -> list[float]:
    """The geometric shares (see geometric.py) that cost so many multiply-adds on average.

    falling  shares never rise from look to look, as in the paper; at the dearest they are equal, whatever the budget
    """
    refuse_budget(budget_macs, macs_after_look[0], "macs")
    looks = len(macs_after_look)
    low, high = 1e-9, 1.0 if falling else 1e9
    for _ in range(HALVINGS):
        middle = float(np.sqrt(low * high))
        dearer = float(geometric_shares(middle, looks) @ np.asarray(macs_after_look)) > budget_macs
        low, high = (low, middle) if dearer else (middle, high)
    return [float(share) for share in geometric_shares(low, looks)]
