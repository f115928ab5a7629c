"""The verdict: is glancefocus more accurate than its rivals at equal cost? Arithmetic; no network runs.

The rivals are the same backbone on resized images, alone or several sizes in a cascade. The rule is written down in
docs/verdict.md.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from glancefocus.errors import BadBundle, BadSetting
from glancefocus.exits.budget import wilson_interval
from glancefocus.exits.curve import Unit
from glancefocus.values import Range, from_plain

Conclusion = Literal["worth it", "not worth it", "tie", "undecided", "no rivals"]
Kind = Literal["backbone", "resized", "tuned", "cascade", "glancefocus"]

Size = tuple[int, int]
"""(height, width) in px."""

LEAST_GAIN = 0.01
"""A gain in accuracy below this does not justify a second network and a policy: resizing is simpler."""
SLOWER = 1.1
"""A sentence warns if glancefocus takes this many times as long as a rival of the same cost."""
Z_95 = 1.959964
Z_POWER = 0.841621
"""For a statistical power of 80 %: 4 of 5 samples of that size decide."""
Share = Annotated[float, Range(0.0, 1.0)]
Difference = Annotated[float, Range(-1.0, 1.0)]
Amount = Annotated[float, Range(0.0, 1e18)]


@dataclass(frozen=True)
class RivalPoint:
    """One method in a verdict: a rival, or glancefocus.

    name       for people, such as "backbone at 160 px"
    px         (height, width) of the images that the backbone gets, for each size of a cascade; empty for glancefocus
    accuracy   with its 95 % interval
    mean_macs, mean_ms  for one image; mean_ms is None if time was not measured
    """

    kind: Kind
    name: str
    px: tuple[tuple[int, int], ...]
    accuracy: Share
    mean_macs: Amount
    accuracy_low: Share
    accuracy_high: Share
    mean_ms: Amount | None = None


@dataclass(frozen=True)
class MethodResult:
    """What one method answered for every image.

    name, px  see RivalPoint
    right     (N,) 1 for a right answer, 0 for a wrong one
    macs      (N,) multiply-adds spent
    ms        mean milliseconds per image; None if time was not measured
    """

    kind: Kind
    name: str
    right: NDArray[np.float64]
    macs: NDArray[np.float64]
    px: tuple[tuple[int, int], ...] = ()
    ms: float | None = None

    @property
    def accuracy(self) -> float:
        return float(self.right.mean())

    @property
    def mean_macs(self) -> float:
        return float(self.macs.mean())

    def point(self) -> RivalPoint:
        interval = wilson_interval(self.accuracy, len(self.right))
        return RivalPoint(self.kind, self.name, self.px, self.accuracy, self.mean_macs, *interval, self.ms)


@dataclass(frozen=True)
class BudgetRow:
    """glancefocus and the best rival within one budget; thresholds of both are measured on images that did not choose them.

    unit        of the budget and the costs
    budget      for one image on average
    cost        what glancefocus really spends on average; rival_cost: the same of the best mix of rivals
    rival       the name of the rival that answers most images of that mix
    difference  accuracy of glancefocus minus that of the rivals, with its 95 % interval and two standard errors
    """

    unit: Unit
    budget: Amount
    accuracy: Share
    cost: Amount
    rival: str
    rival_accuracy: Share
    rival_cost: Amount
    difference: Difference
    difference_low: Difference
    difference_high: Difference
    two_standard_errors: Share


@dataclass(frozen=True)
class Verdict:
    """Whether glancefocus is worth it on some data. A bundle keeps it in its notes.

    difference       accuracy of glancefocus minus that of the rivals at equal cost, with its 95 % interval
    rival_accuracy   of the rivals at the cost of glancefocus
    instead          the name of the method to use, if glancefocus is not worth it
    images_needed    for a decision, if these images do not allow one
    points           every rival, and glancefocus as the last one
    budgets          the same comparison at other budgets, of multiply-adds first, then of milliseconds if they were measured
    device           what the milliseconds were measured on
    data             the images, for people
    remarks          what was left out, and why
    """

    outcome: Conclusion
    sentence: str
    images: int = 0
    difference: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None
    rival_accuracy: float | None = None
    instead: str | None = None
    images_needed: int | None = None
    points: tuple[RivalPoint, ...] = ()
    budgets: tuple[BudgetRow, ...] = ()
    device: str | None = None
    data: str | None = None
    remarks: tuple[str, ...] = ()

    def to_plain(self) -> dict[str, Any]:
        """Plain values with lists instead of tuples, as they are read back from JSON."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain


def read_verdict(plain: Any, where: str = "notes.verdict") -> Verdict:
    """The verdict of a bundle's notes; a wrong field is refused by its name."""
    if isinstance(plain, dict):  # bundles of version 0.1
        plain = {name: value for name, value in plain.items() if name != "cascade_curve"}
        plain |= {"outcome": "undecided"} if plain.get("outcome") == "cannot be told" else {}
    return from_plain(Verdict, plain, where)


def noted_verdict(notes: Mapping[str, Any]) -> Verdict | None:
    """The same from a bundle's notes; None if they have no verdict."""
    if "verdict" not in notes:
        return None
    try:
        return read_verdict(notes["verdict"])
    except BadSetting as error:
        raise BadBundle(f"the bundle is damaged: {error}") from None


def no_verdict(why: str) -> Verdict:
    """The verdict if there is nothing to compare with."""
    return Verdict("no rivals", f"No verdict: {why}")


class EqualCost(NamedTuple):
    """glancefocus against the best mix of rivals at the same cost.

    difference  accuracy of glancefocus minus that of the mix; low, high: its 95 % interval
    instead     the rival that answers most images of the mix
    mix_cost    mean cost of the mix, which may be below the cost that was allowed
    """

    difference: float
    low: float
    high: float
    two_standard_errors: float
    instead: MethodResult
    mix_cost: float


def at_equal_cost(
    ours: MethodResult,
    rivals: Sequence[MethodResult],
    labels: NDArray[np.int64],
    fold: NDArray[np.int64],
    cost: float | None = None,
) -> EqualCost:
    """Compare glancefocus with the best mix of its rivals at equal cost, on the same images.

    The best mix of rivals is chosen twice: on all images, which favours the luckiest of many rivals, and by cross-fitting (for
    each fold on the other folds), which with few images favours glancefocus. The difference is the first one; its interval
    covers both.

    labels  (N,) of the images: always answering with the most frequent one is the rival that costs nothing
    fold    (N,) the fold of each image
    cost    the mean cost that rivals may have; None: that of glancefocus
    """
    guess = MethodResult("backbone", "always the most frequent class", _most_frequent(labels), np.zeros(len(labels)))
    candidates, cost = [*rivals, guess], ours.mean_macs if cost is None else cost
    weights = best_mix(candidates, cost, np.ones(len(labels), dtype=np.bool_))
    differences = [
        ours.right - right for right in (_mixed(candidates, weights), _chosen_on_others(candidates, cost, fold))
    ]
    intervals = [paired_interval(each) for each in differences]
    return EqualCost(
        difference=intervals[0][0],  # the one that the table of rivals shows
        low=min(low for _, low, _ in intervals),
        high=max(high for _, _, high in intervals),
        two_standard_errors=2 * float(differences[0].std()) / math.sqrt(len(labels)),
        instead=alternative(candidates, weights),
        mix_cost=sum(weight * candidates[i].mean_macs for i, weight in weights.items()),
    )


def decide(
    ours: MethodResult, rivals: Sequence[MethodResult], labels: NDArray[np.int64], fold: NDArray[np.int64]
) -> Verdict:
    """The verdict from a comparison at the cost of glancefocus; the arguments are those of at_equal_cost."""
    found = at_equal_cost(ours, rivals, labels, fold)
    rival_accuracy = ours.accuracy - found.difference
    outcome = conclusion_of(found.low, found.high)
    half = (found.high - found.low) / 2
    needed = images_for_a_decision(found.difference, half, len(labels)) if outcome == "undecided" else None
    return Verdict(
        outcome=outcome,
        sentence=sentence(outcome, ours, found, rival_accuracy, needed),
        images=len(labels),
        difference=found.difference,
        difference_low=found.low,
        difference_high=found.high,
        rival_accuracy=rival_accuracy,
        instead=found.instead.name if outcome == "not worth it" else None,
        images_needed=needed,
    )


def _mixed(candidates: Sequence[MethodResult], weights: dict[int, float]) -> NDArray[np.float64]:
    """(N,) the probability that a mix answers each image correctly."""
    return np.sum([weight * candidates[i].right for i, weight in weights.items()], axis=0)  # type: ignore[no-any-return]


def _chosen_on_others(candidates: Sequence[MethodResult], cost: float, fold: NDArray[np.int64]) -> NDArray[np.float64]:
    """The same by cross-fitting: each fold gets the mix that is best on the other folds."""
    right = np.zeros(len(fold))
    for group in np.unique(fold):
        there = fold == group
        right[there] = _mixed(candidates, best_mix(candidates, cost, ~there if (~there).any() else there))[there]
    return right


def best_mix(candidates: Sequence[MethodResult], cost: float, rows: NDArray[np.bool_]) -> dict[int, float]:
    """The most accurate mix of at most two candidates within this mean cost: {index of a candidate: its share of the images}.

    rows  (N,) the images to measure the candidates on
    """
    macs = [float(each.macs[rows].mean()) for each in candidates]
    right = [float(each.right[rows].mean()) for each in candidates]
    mixes: list[tuple[float, float, dict[int, float]]] = []  # accuracy, -cost, shares
    for i, macs_i in enumerate(macs):
        if macs_i <= cost:
            mixes.append((right[i], -macs_i, {i: 1.0}))
            for j, macs_j in enumerate(macs):
                if macs_j > cost:
                    share = (cost - macs_i) / (macs_j - macs_i)
                    mixes.append(((1 - share) * right[i] + share * right[j], -cost, {i: 1 - share, j: share}))
    return max(mixes, key=lambda mix: (round(mix[0], 12), mix[1]))[2]


def alternative(candidates: Sequence[MethodResult], weights: dict[int, float]) -> MethodResult:
    """The rival to recommend: the one with the largest share in the best mix; never the guess, which is the last candidate."""
    real = {i: weight for i, weight in weights.items() if i < len(candidates) - 1}
    if not real:
        return min(candidates[:-1], key=lambda each: each.mean_macs)
    return candidates[max(real, key=lambda i: real[i])]


def paired_interval(differences: NDArray[np.float64]) -> tuple[float, float, float]:
    """The mean of paired differences in [-1, 1], and its 95 % interval.

    Agresti and Min's interval, which adds two images: on each the methods differ by one half, once in each direction. So ten images
    without any difference do not prove that there is none.
    """
    count = len(differences) + 2
    total, squares = float(differences.sum()), float(np.square(differences).sum())
    middle = total / count
    half = Z_95 * math.sqrt(max(0.0, squares + 1 - total * total / count)) / count
    mean = float(differences.mean())
    return mean, max(-1.0, min(mean, middle - half)), min(1.0, max(mean, middle + half))


def conclusion_of(low: float, high: float) -> Conclusion:
    """From the 95 % interval of the gain: within one point of zero on both sides, above zero, below one point, or neither."""
    if low > -LEAST_GAIN and high < LEAST_GAIN:
        return "tie"
    if low > 0:
        return "worth it"
    return "not worth it" if high < LEAST_GAIN else "undecided"


def images_for_a_decision(difference: float, half: float, images: int) -> int:
    """How many images would decide in 4 of 5 cases if the difference stays the same; two significant digits, rounded up."""
    room = max(difference, LEAST_GAIN - difference)
    needed = images * (half * (1 + Z_POWER / Z_95) / room) ** 2
    digit = int(10 ** max(0, math.floor(math.log10(max(needed, 1))) - 1))
    return max(images + 1, math.ceil(needed / digit) * digit)


def sentence(
    outcome: Conclusion, ours: MethodResult, found: EqualCost, rival_accuracy: float, needed: int | None
) -> str:
    """The verdict in one sentence; for a tie, and if glancefocus is not worth it, a second sentence says what to use."""
    own, instead = (
        f"glancefocus has {accuracy_words(ours)} with {macs_words(ours.mean_macs)} multiply-adds",
        found.instead,
    )
    mean, low, high = (100 * value for value in (found.difference, found.low, found.high))
    resizing = f"resized images at that cost ({100 * rival_accuracy:.1f} %; nearest: the {instead.name})"
    if outcome == "worth it":
        gain = f"{mean:.1f} points more ({low:.1f} to {high:.1f})"
        return f"Worth it here: {own}, {gain} than {resizing}{_slower(ours, instead)}."
    if outcome == "tie":
        same = f"the same accuracy as {resizing}: a difference of {mean:+.1f} points ({low:+.1f} to {high:+.1f})"
        return f"A tie here: {own}, {same}. {_cheaper(ours, instead)}"
    if outcome == "undecided":
        return (
            f"Undecided with {len(ours.right):,} images: {own}, {mean:+.1f} points ({low:+.1f} to {high:+.1f}) against {resizing}. "
            f"About {needed:,} images are needed for a decision."
        )
    loss = f"{-mean:.1f} points less ({-high:.1f} to {-low:.1f})"
    gain = f"only {mean:.1f} points more ({low:.1f} to {high:.1f})"
    return (
        f"Not worth it here: {own}, {loss if mean < 0 else gain} than {resizing}. Use the {instead.name}: "
        f"{accuracy_words(instead)} with {macs_words(instead.mean_macs)} multiply-adds."
    )


def _cheaper(ours: MethodResult, other: MethodResult) -> str:
    """What speaks for one or the other if both are equally accurate: time, and that resizing is simpler."""
    if ours.ms is None or other.ms is None:
        return "Resizing is simpler."
    if max(ours.ms, other.ms) <= SLOWER * min(ours.ms, other.ms):
        return f"Both take about {ours.ms:.1f} ms per image on this device; resizing is simpler."
    times = f"On this device glancefocus takes {ours.ms:.1f} ms per image, the {other.name} {other.ms:.1f} ms"
    faster = "glancefocus is cheaper to run, resizing is simpler"
    return f"{times}: {faster if ours.ms < other.ms else 'resizing is cheaper to run, and simpler'}."


def _slower(ours: MethodResult, other: MethodResult) -> str:
    """A warning if fewer multiply-adds do not mean less time."""
    if ours.ms is None or other.ms is None or ours.ms <= SLOWER * other.ms:
        return ""
    return f"; but on this device it takes {ours.ms:.1f} ms per image, the {other.name} {other.ms:.1f} ms"


def accuracy_words(result: MethodResult) -> str:
    """The accuracy with its 95 % interval: 82.5 % (75 to 88)."""
    point = result.point()
    return f"{100 * result.accuracy:.1f} % ({100 * point.accuracy_low:.0f} to {100 * point.accuracy_high:.0f})"


def macs_words(macs: float) -> str:
    """Multiply-adds with three digits: 31.2M, 196M, 1.25G."""
    if macs >= 1e9:
        return f"{macs / 1e9:.2f}G"
    return f"{macs / 1e6:.0f}M" if macs >= 1e8 else f"{macs / 1e6:.1f}M" if macs >= 1e7 else f"{macs / 1e6:.2f}M"


def _most_frequent(labels: NDArray[np.int64]) -> NDArray[np.float64]:
    values, counts = np.unique(labels, return_counts=True)
    return np.asarray(labels == values[counts.argmax()], dtype=np.float64)


def size_words(size: Size) -> str:
    """160 px, or 480x640 px."""
    return f"{size[0]} px" if size[0] == size[1] else f"{size[0]}x{size[1]} px"
