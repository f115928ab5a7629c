"""The loop, and the exit rules that end it. Training, evaluation, video and serving all run it.

They differ in the policy (where to look), the exit rule (when to stop) and the recorder (what to keep). A rule compares a score, a
number in [0, 1] for every row of a look, with the threshold of the look: rows above it leave the batch. With several candidate
views it also chooses the view of the next look.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from glancefocus.errors import BadSetting, UnknownName
from glancefocus.look import Aim, Look, Scene
from glancefocus.outcome import Outcome, OutcomeRecorder
from glancefocus.settings import View
from glancefocus.values import list_of, number_of, shown

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
    """The smaller the critic's estimate of the reward of further looks, the larger the score; a sigmoid brings it into [0, 1]."""

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


def shared_time(ends_at: float, batches: int) -> Callable[[], float]:
    """When the next of several batches must end, if it gets an equal share of the time that is left when it begins."""
    left = batches

    def share_ends_at() -> float:
        nonlocal left
        now = time.perf_counter()
        end = now + (ends_at - now) / left
        left -= 1
        return end

    return share_ends_at


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

    @property
    def can_stop_early(self) -> bool:
        """Whether an image can stop before the last look; otherwise pooling has no use."""
        return any(self.threshold(look) < math.inf for look in range(1, self.looks))

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
class CandidateRule(ExitRule):
    """The same for a network with several candidate views (paper, section 4.2): thresholds say when to stop and what comes next.

    A row stops once its score is above all thresholds of this look. Otherwise the next look has the candidate whose threshold is
    the smallest that the score is not above; among equal ones the first.

    thresholds  (T, K) for K candidates; those of the last look stop nothing
    candidates  K
    """

    thresholds: Sequence[Sequence[float]]  # type: ignore[assignment]
    candidates: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.score.name not in ("confidence", "entropy"):
            raise BadSetting(
                f"with several candidate views the score also chooses the next size, which {self.score.name!r} cannot. "
                "Use confidence or entropy."
            )

    def _checked_thresholds(self) -> tuple[tuple[float, ...], ...]:
        rows = tuple(tuple(_checked_threshold(t) for t in row) for row in self.thresholds)
        if any(len(row) != self.candidates for row in rows):
            raise BadSetting(
                f"a network with {self.candidates} candidate views needs {self.candidates} thresholds for each look, "
                f"but got {[list(row) for row in rows]}."
            )
        return rows

    def threshold(self, number: int) -> float:
        return max(self.thresholds[number - 1])

    def next_candidate(self, look: Look) -> Tensor:
        """(B,) int64: the candidate view of the next look of every row, none of which stops here."""
        thresholds = torch.tensor(self.thresholds[look.number - 1], device=look.logits.device)
        ordered, order = thresholds.sort(stable=True)
        passed = torch.searchsorted(ordered, self.score.of(look, None).contiguous())
        return order[passed.clamp(max=self.candidates - 1)]


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


def fixed_looks(looks: int, views: Sequence[View]) -> ExitRule:
    """Every image takes exactly this many looks.

    views  the candidates. A second look at the whole image would show nothing new: where one of them is the whole image, the views
           of the focus looks grow up to the last candidate. Otherwise all focus looks have the last one, as in the paper.
    """
    if len(views) == 1 or not any(view.is_whole for view in views):
        return every_look(looks)
    # With thresholds of infinity for one candidate and minus infinity for the others, no row stops, and that candidate comes next.
    rows = []
    for number in range(1, looks + 1):
        following = min(max(0, len(views) - (looks - number)), len(views) - 1)
        rows.append([math.inf if each == following else -math.inf for each in range(len(views))])
    return CandidateRule(rows, candidates=len(views))


def read_thresholds(plain: Any, where: str, looks: int, sizes: int) -> list[Any]:
    """One number for each look; with several candidate views a row for each look, with one number for each size."""

    def number(value: Any, name: str) -> float:
        return number_of(value, name, -1e6, 1e6)

    def row(value: Any, name: str) -> Any:
        return number(value, name) if sizes == 1 else list_of(value, name, sizes, number)

    read = list_of(plain, where, looks, row)
    if len(read) != looks or (sizes > 1 and any(len(each) != sizes for each in read)):
        each = "" if sizes == 1 else f" rows of {sizes}"
        raise BadSetting(f"{where} must have {looks}{each} thresholds, one for each look.")
    return read


def frozen(thresholds: Sequence[Any]) -> tuple[Any, ...]:
    """Thresholds, or rows of them, as tuples of floats."""
    return tuple(frozen(t) if isinstance(t, (list, tuple)) else float(t) for t in thresholds)


class Policy(Protocol):
    """Chooses where to look next."""

    def aim(self, look: Look) -> Aim: ...


class CandidatePolicy(Protocol):
    """The same, with a given candidate view for the next look."""

    def aim(self, look: Look, candidate: int | Tensor | None = None) -> Aim: ...


class LookingNetwork(Protocol):
    """The first look at a scene, and the next look where it was aimed."""

    def glance(self, scene: Scene) -> Look: ...

    def focus(self, look: Look, aim: Aim) -> Look: ...


class Recorder(Protocol):
    """Notes what each look gave."""

    def record(self, look: Look, leaving: Tensor, sure: Tensor) -> None: ...


class KnownGlance:
    """A network whose first look is known already."""

    def __init__(self, net: LookingNetwork, look: Look) -> None:
        self.net = net
        self.look = look

    def glance(self, scene: Scene) -> Look:
        return self.look

    def focus(self, look: Look, aim: Aim) -> Look:
        return self.net.focus(look, aim)


class ChosenCandidates:
    """A policy whose next looks have the candidate views that an exit rule chooses."""

    def __init__(self, policy: CandidatePolicy, rule: CandidateRule) -> None:
        self.policy = policy
        self.rule = rule

    def aim(self, look: Look) -> Aim:
        return self.policy.aim(look, self.rule.next_candidate(look))


def run_looks(net: LookingNetwork, scene: Scene, exit_rule: ExitRule, policy: Policy, recorder: Recorder) -> None:
    """Look, release the rows that are above their threshold, look closer at the others, until no row is left."""
    look = exit_rule.calibrated(net.glance(scene))
    while (staying := release(look, exit_rule, policy, recorder)) is not None:
        look = look_closer(net, *staying, exit_rule, policy)


def release(look: Look, exit_rule: ExitRule, policy: Policy, recorder: Recorder) -> tuple[Look, Aim | None] | None:
    """One half of the loop: the rows that stay, with their next aim if it is known already; None if no row stays."""
    aim = policy.aim(look) if exit_rule.needs_aim(look) else None
    sure = exit_rule.sure(look, aim)
    leaving = exit_rule.leaves(look, sure)
    recorder.record(look, leaving, sure)
    left = leaving.tolist()  # for a few rows plain Python is several times faster than torch
    if all(left):
        return None
    if not any(left):
        return look, aim
    rows = (~leaving).nonzero(as_tuple=True)[0]
    return look.at(rows), None if aim is None else aim.keep(rows)


def look_closer(net: LookingNetwork, look: Look, aim: Aim | None, exit_rule: ExitRule, policy: Policy) -> Look:
    """The other half: the next look at these rows."""
    return exit_rule.calibrated(net.focus(look, policy.aim(look) if aim is None else aim))


def policy_for(net: LookingNetwork, exit_rule: ExitRule) -> Policy:
    """The network's own policy, with the candidate views that the rule chooses."""
    own = net.policy  # type: ignore[attr-defined]
    return ChosenCandidates(own, exit_rule) if isinstance(exit_rule, CandidateRule) else own


def look_until_sure(net: LookingNetwork, scene: Scene, exit_rule: ExitRule, policy: Policy | None = None) -> Outcome:
    """The outcome of a scene. Rows above their threshold leave the batch and stop costing anything.

    policy  chooses where to look; None: see policy_for
    """
    recorder = OutcomeRecorder(exit_rule.looks)
    run_looks(net, scene, exit_rule, policy_for(net, exit_rule) if policy is None else policy, recorder)
    return recorder.finish(aims_first=exit_rule.score.needs_aim)
