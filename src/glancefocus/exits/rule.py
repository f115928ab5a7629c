"""When an image has been looked at enough; with several patch sizes also how large the next patch is."""

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
    """A time by which there must be an answer, in seconds on a clock that counts up."""

    clock: Callable[[], float]
    starts_at: float
    ends_at: float

    def allows_another(self, look: Look) -> bool:
        """Whether the next look would be over in time, if it takes as long as those so far on average."""
        now = self.clock()
        return now + (now - self.starts_at) / look.number <= self.ends_at


@dataclass(frozen=True)
class ExitRule:
    """Stop once the score is above the threshold of this look (paper, section 3.1); the last look always leaves.

    thresholds    one for each look. The last one stops nothing: it only says whether an image is above it (`sure`) or out of looks
                  (0 or less: always out of looks).
    score         what is compared with them
    temperatures  one for each look: what its logits are divided by first (calibration); None: left as they are
    deadline      by when everybody must have left; None: there is time
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
        """What the score must be above to stop after look 1, 2, ..."""
        return self.thresholds[number - 1]

    def needs_aim(self, look: Look) -> bool:
        """The next aim must be known before anybody leaves this look."""
        return self.score.needs_aim and look.number < self.looks

    def calibrated(self, look: Look) -> Look:
        """The look with its logits brought to the temperature of its number."""
        if self.temperatures is None:
            return look
        return replace(look, logits=look.logits / self.temperatures[look.number - 1], known_best=None)

    def sure(self, look: Look, aim: Aim | None = None) -> Tensor:
        """(B,) bool: the score is above the threshold of this look, however large that is."""
        threshold = self.threshold(look.number)
        if look.number == self.looks and (threshold <= 0 or self.score.needs_aim):
            return torch.zeros(look.count, dtype=torch.bool, device=look.logits.device)
        return self.score.of(look, aim) > threshold

    def leaves(self, look: Look, sure: Tensor | None = None) -> Tensor:
        """(B,) bool: rows above their threshold, where that is known already; all rows at the last look, and when time is up."""
        sure = self.sure(look) if sure is None else sure
        last = look.number >= self.looks or (self.deadline is not None and not self.deadline.allows_another(look))
        return torch.ones_like(sure) if last else sure


@dataclass(frozen=True)
class SizeRule(ExitRule):
    """The same for a network with several patch sizes (paper, section 4.2): thresholds say when to stop and what comes next.

    A row stops once its score is above all thresholds of this look. Otherwise the next patch has the size whose threshold is the
    smallest that the score is not above; of equal ones the first.

    thresholds  (T, K); those of the last look stop nothing
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
        """(B,) int64: the size of the next patch of every row, none of which stops here."""
        thresholds = torch.tensor(self.thresholds[look.number - 1], device=look.logits.device)
        ordered, order = thresholds.sort(stable=True)
        passed = torch.searchsorted(ordered, self.score.of(look, None).contiguous())
        sizes = torch.tensor(self.patch_px, device=look.logits.device)
        return sizes[order[passed.clamp(max=len(self.patch_px) - 1)]]


def _checked_threshold(value: Any) -> float:
    """Infinities are thresholds, too: never stop, always stop."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number):
        raise BadSetting(f"a threshold must be a number, but got {shown(value)}.")
    return number


def every_look(looks: int) -> ExitRule:
    """Nobody leaves before the last look: training, and anytime answers after a fixed number of looks."""
    return ExitRule([math.inf] * looks)
