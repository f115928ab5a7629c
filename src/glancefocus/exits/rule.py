"""Exit rules: when to stop looking at an image; with several patch sizes also the size of the next patch."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from glancefocus.errors import BadSetting
from glancefocus.exits.score import Confidence, Score
from glancefocus.look import Aim, Look
from glancefocus.values import shown


@dataclass(frozen=True)
class Deadline:
    """The time by which there must be an answer, in seconds of a monotonic clock."""

    clock: Callable[[], float]
    starts_at: float
    ends_at: float

    def allows_another(self, look: Look) -> bool:
        """Whether the next look would end in time, if it takes as long as the mean of those so far."""
        now = self.clock()
        return now + (now - self.starts_at) / look.number <= self.ends_at


@dataclass(frozen=True)
class ExitRule:
    """Stop once the score is above the threshold of this look (paper, section 3.1); every image stops after the last look.

    thresholds    one for each look. The last one does not stop anything: it only decides between `sure` and out of looks (0 or
                  less: always out of looks).
    score         what is compared with them
    temperatures  one for each look, which its logits are divided by first (calibration); None: logits are used as they are
    deadline      when all images must have stopped; None: no deadline
    """

    thresholds: Sequence[float]
    score: Score = field(default_factory=Confidence)
    temperatures: tuple[float, ...] | None = None
    deadline: Deadline | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "thresholds", self._checked_thresholds())
        if not self.thresholds:
            raise BadSetting("an exit rule needs one threshold for each look, but got none.")
        if self.temperatures is not None and (
            len(self.temperatures) != self.looks or not all(0 < t < math.inf for t in self.temperatures)
        ):
            raise BadSetting(f"there must be {self.looks} temperatures above 0, but got {list(self.temperatures)}.")

    def _checked_thresholds(self) -> tuple[Any, ...]:
        return tuple(_checked_threshold(t) for t in self.thresholds)

    @property
    def looks(self) -> int:
        """Largest number of looks, the glance included."""
        return len(self.thresholds)

    def threshold(self, number: int) -> float:
        """The score must be above this to stop after look 1, 2, ..."""
        return self.thresholds[number - 1]

    def needs_aim(self, look: Look) -> bool:
        """Whether the next aim must be known before rows can stop at this look."""
        return self.score.needs_aim and look.number < self.looks

    def calibrated(self, look: Look) -> Look:
        """The look with its logits divided by the temperature of its number."""
        if self.temperatures is None:
            return look
        return replace(look, logits=look.logits / self.temperatures[look.number - 1], known_best=None)

    def sure(self, look: Look, aim: Aim | None = None) -> Tensor:
        """(B,) bool: whether the score is above the threshold of this look."""
        threshold = self.threshold(look.number)
        if look.number == self.looks and (threshold <= 0 or self.score.needs_aim):
            return torch.zeros(look.count, dtype=torch.bool, device=look.logits.device)
        return self.score.of(look, aim) > threshold

    def leaves(self, look: Look, sure: Tensor | None = None) -> Tensor:
        """(B,) bool: rows that stop: those above their threshold; all rows at the last look and when time is up.

        sure  the result of `sure`, where it is known already
        """
        sure = self.sure(look) if sure is None else sure
        last = look.number >= self.looks or (self.deadline is not None and not self.deadline.allows_another(look))
        return torch.ones_like(sure) if last else sure


@dataclass(frozen=True)
class SizeRule(ExitRule):
    """The rule for several patch sizes (paper, section 4.2): thresholds decide when to stop and the size of the next patch.

    A row stops once its score is above all thresholds of this look. Otherwise the smallest threshold that the score is not above
    gives the size of the next patch; the first of equal ones.

    thresholds  (T, K); those of the last look do not stop anything
    patch_px    (K,) the sizes
    """

    thresholds: Sequence[Sequence[float]]  # type: ignore[assignment]
    patch_px: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.score.name not in ("confidence", "entropy"):
            raise BadSetting(
                f"with several patch sizes the score also chooses the next size, which {self.score.name!r} cannot. "
                "Use confidence or entropy."
            )

    def _checked_thresholds(self) -> tuple[tuple[float, ...], ...]:
        rows = tuple(tuple(_checked_threshold(t) for t in row) for row in self.thresholds)
        if any(len(row) != len(self.patch_px) for row in rows):
            raise BadSetting(
                f"a network with patches of {list(self.patch_px)} px needs {len(self.patch_px)} thresholds for each look, "
                f"but got {[list(row) for row in rows]}."
            )
        return rows

    def threshold(self, number: int) -> float:
        return max(self.thresholds[number - 1])

    def next_px(self, look: Look) -> Tensor:
        """(B,) int64: the size of the next patch of every row; none of the rows stops here."""
        thresholds = torch.tensor(self.thresholds[look.number - 1], device=look.logits.device)
        ordered, order = thresholds.sort(stable=True)
        passed = torch.searchsorted(ordered, self.score.of(look, None).contiguous())
        sizes = torch.tensor(self.patch_px, device=look.logits.device)
        return sizes[order[passed.clamp(max=len(self.patch_px) - 1)]]


def _checked_threshold(value: Any) -> float:
    """A number; infinities are allowed and mean: never stop, always stop."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number):
        raise BadSetting(f"a threshold must be a number, but got {shown(value)}.")
    return number


def every_look(looks: int) -> ExitRule:
    """Every image takes every look: for training, and for answers after a fixed number of looks."""
    return ExitRule([math.inf] * looks)
