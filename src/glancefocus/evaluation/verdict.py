"""The verdict: whether looking closely beats the same backbone on resized images at equal cost. Arithmetic; no network is run.

The rule is written down in docs/verdict.md.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from glancefocus.evaluation.assess import wilson_interval

Outcome = Literal["worth it", "not worth it", "cannot be told", "no rivals"]
Kind = Literal["backbone", "resized", "tuned", "cascade", "glancefocus"]

LEAST_GAIN = 0.01
"""A gain in accuracy below this does not pay for a second network and a policy: resizing is simpler."""
SLOWER = 1.1
"""Times as long as a rival of the same cost: that is said."""
Z_95 = 1.959964
Z_POWER = 0.841621
"""With this much more than the 95 % interval needs, 4 of 5 samples of that size decide."""


@dataclass(frozen=True)
class Answers:
    """What one way of answering did with every image.

    name   in words, such as "backbone at 160 px"
    px     (height, width) of the images that the backbone sees, for each size of a cascade; empty for glancefocus
    right  (N,) 1 where the answer is right, 0 where it is wrong
    macs   (N,) multiply-adds spent
    ms     mean milliseconds an image; None where they were not measured
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

    def point(self) -> dict[str, Any]:
        """As plain numbers, with the 95 % interval of the accuracy."""
        plain: dict[str, Any] = {
            "kind": self.kind,
            "name": self.name,
            "px": [list(size) for size in self.px],
            "accuracy": self.accuracy,
            "mean_macs": self.mean_macs,
        }
        if self.ms is not None:
            plain["mean_ms"] = self.ms
        low, high = wilson_interval(self.accuracy, len(self.right))
        return {**plain, "accuracy_low": low, "accuracy_high": high}


@dataclass(frozen=True)
class Verdict:
    """What a run is told at its end.

    difference       accuracy of glancefocus minus that of the rivals at equal cost, with its 95 % interval; shares
    rival_accuracy   of the rivals at the cost of glancefocus
    instead          what to use where it is not worth it, in words
    images_needed    to tell, where these images do not tell
    points           every rival and glancefocus as plain numbers: kind, name, px, accuracy with interval, mean_macs, mean_ms
    cascade_curve    points of the best cascade at other budgets
    device           what the milliseconds were measured on
    data             in words
    remarks          what was left out, and why
    """

    outcome: Outcome
    sentence: str
    images: int = 0
    difference: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None
    rival_accuracy: float | None = None
    instead: str | None = None
    images_needed: int | None = None
    points: list[dict[str, Any]] = field(default_factory=list)
    cascade_curve: list[dict[str, Any]] = field(default_factory=list)
    device: str | None = None
    data: str | None = None
    remarks: list[str] = field(default_factory=list)

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)


def no_verdict(why: str) -> Verdict:
    """Where there is nothing to compare with."""
    return Verdict("no rivals", f"No verdict: {why}")


def decide(ours: Answers, rivals: Sequence[Answers], labels: NDArray[np.int64], fold: NDArray[np.int64]) -> Verdict:
    """Compare at equal cost, on the same images.

    The best mix of rivals is chosen twice: on all images, which favours the luckiest of many rivals, and for each group on
    the others, which with few images favours glancefocus. The difference is that of the first, its interval holds both.

    labels  (N,) of the images: always naming the most frequent one is the rival that costs nothing
    fold    (N,) groups of images
    """
    guess = Answers("backbone", "always the most frequent class", _most_frequent(labels), np.zeros(len(labels)))
    candidates, cost = [*rivals, guess], ours.mean_macs
    weights = best_mix(candidates, cost, np.ones(len(labels), dtype=np.bool_))
    at_cost = [_mixed(candidates, weights), _chosen_on_others(candidates, cost, fold)]
    intervals = [paired_interval(ours.right - right) for right in at_cost]
    difference = intervals[0][0]  # the one that the table of the rivals shows
    low, high = min(low for _, low, _ in intervals), max(high for _, _, high in intervals)
    rival_accuracy = ours.accuracy - difference
    outcome, instead = outcome_of(low, high), alternative(candidates, weights)
    needed = images_that_would_do(difference, (high - low) / 2, len(labels)) if outcome == "cannot be told" else None
    return Verdict(
        outcome=outcome,
        sentence=sentence(outcome, ours, instead, (difference, low, high), rival_accuracy, needed),
        images=len(labels),
        difference=difference,
        difference_low=low,
        difference_high=high,
        rival_accuracy=rival_accuracy,
        instead=instead.name if outcome == "not worth it" else None,
        images_needed=needed,
    )


def _mixed(candidates: Sequence[Answers], weights: dict[int, float]) -> NDArray[np.float64]:
    """(N,) how likely a mix answers each image right."""
    return np.sum([weight * candidates[i].right for i, weight in weights.items()], axis=0)  # type: ignore[no-any-return]


def _chosen_on_others(candidates: Sequence[Answers], cost: float, fold: NDArray[np.int64]) -> NDArray[np.float64]:
    """The same, where each group of images gets the mix that is the best on the other groups."""
    right = np.zeros(len(fold))
    for group in np.unique(fold):
        there = fold == group
        right[there] = _mixed(candidates, best_mix(candidates, cost, ~there if (~there).any() else there))[there]
    return right


def best_mix(candidates: Sequence[Answers], cost: float, rows: NDArray[np.bool_]) -> dict[int, float]:
    """{number of a candidate: share of the images that it answers}: the most accurate mix of at most two within this mean cost.

    rows  which images to judge by
    """
    macs = [float(each.macs[rows].mean()) for each in candidates]
    right = [float(each.right[rows].mean()) for each in candidates]
    ways: list[tuple[float, float, dict[int, float]]] = []  # accuracy, -cost, shares
    for i, macs_i in enumerate(macs):
        if macs_i <= cost:
            ways.append((right[i], -macs_i, {i: 1.0}))
            for j, macs_j in enumerate(macs):
                if macs_j > cost:
                    share = (cost - macs_i) / (macs_j - macs_i)
                    ways.append(((1 - share) * right[i] + share * right[j], -cost, {i: 1 - share, j: share}))
    return max(ways, key=lambda way: (round(way[0], 12), way[1]))[2]


def alternative(candidates: Sequence[Answers], weights: dict[int, float]) -> Answers:
    """The rival to name: of the best mix, the one that answers most images; never the guess, which comes last."""
    real = {i: weight for i, weight in weights.items() if i < len(candidates) - 1}
    if not real:
        return min(candidates[:-1], key=lambda each: each.mean_macs)
    return candidates[max(real, key=lambda i: real[i])]


def paired_interval(differences: NDArray[np.float64]) -> tuple[float, float, float]:
    """The mean of paired differences in [-1, 1], and its 95 % interval.

    Agresti and Min's: as if there were two more images, on which the two differed once each way by a half. So ten images without a
    difference do not prove that there is none.
    """
    count = len(differences) + 2
    total, squares = float(differences.sum()), float(np.square(differences).sum())
    middle = total / count
    half = Z_95 * math.sqrt(max(0.0, squares + 1 - total * total / count)) / count
    mean = float(differences.mean())
    return mean, max(-1.0, min(mean, middle - half)), min(1.0, max(mean, middle + half))


def outcome_of(low: float, high: float) -> Outcome:
    """Of the 95 % interval of the gain: above zero, below what would pay, or neither."""
    if low > 0:
        return "worth it"
    return "not worth it" if high < LEAST_GAIN else "cannot be told"


def images_that_would_do(difference: float, half: float, images: int) -> int:
    """How many images would decide in 4 of 5 cases, if the difference stays what it is; two significant digits, rounded up."""
    room = max(difference, LEAST_GAIN - difference)
    needed = images * (half * (1 + Z_POWER / Z_95) / room) ** 2
    digit = int(10 ** max(0, math.floor(math.log10(max(needed, 1))) - 1))
    return max(images + 1, math.ceil(needed / digit) * digit)


def sentence(
    outcome: Outcome,
    ours: Answers,
    instead: Answers,
    difference: tuple[float, float, float],
    rival_accuracy: float,
    needed: int | None,
) -> str:
    """One sentence for people; where it is not worth it a second one says what to use."""
    own = f"glancefocus has {accuracy_words(ours)} with {macs_words(ours.mean_macs)} multiply-adds"
    mean, low, high = (100 * value for value in difference)
    at_cost = f"{100 * rival_accuracy:.1f} % at that cost"
    if outcome == "worth it":
        return (
            f"Worth it here: {own}, resizing {at_cost} (nearest: the {instead.name}, {macs_words(instead.mean_macs)}): "
            f"{mean:.1f} points more ({low:.1f} to {high:.1f}){_slower(ours, instead)}."
        )
    if outcome == "cannot be told":
        return (
            f"Cannot be told from {len(ours.right):,} images: {own}, resizing {at_cost} (nearest: the {instead.name}), a "
            f"difference of {mean:+.1f} points ({low:+.1f} to {high:+.1f}). About {needed:,} images would do."
        )
    less, more = (
        f"{-mean:.1f} points less ({-high:.1f} to {-low:.1f})",
        f"{mean:.1f} points more ({low:.1f} to {high:.1f})",
    )
    return (
        f"Not worth it here: the {instead.name} has {accuracy_words(instead)} with {macs_words(instead.mean_macs)} "
        f"multiply-adds, {own.replace(' has', '', 1).replace(' multiply-adds', '')}, {less if mean < 0 else more} "
        f"than resizing at that cost. Use the {instead.name}."
    )


def _slower(ours: Answers, other: Answers) -> str:
    """A remark where fewer multiply-adds do not mean less time."""
    if ours.ms is None or other.ms is None or ours.ms <= SLOWER * other.ms:
        return ""
    return f"; but on this device it takes {ours.ms:.1f} ms an image, the {other.name} {other.ms:.1f} ms"


def accuracy_words(answers: Answers) -> str:
    """82.5 % (75 to 88): with the 95 % interval."""
    point = answers.point()
    return f"{100 * answers.accuracy:.1f} % ({100 * point['accuracy_low']:.0f} to {100 * point['accuracy_high']:.0f})"


def macs_words(macs: float) -> str:
    """31.2M, 196M, 1.25G."""
    if macs >= 1e9:
        return f"{macs / 1e9:.2f}G"
    return f"{macs / 1e6:.0f}M" if macs >= 1e8 else f"{macs / 1e6:.1f}M" if macs >= 1e7 else f"{macs / 1e6:.2f}M"


def _most_frequent(labels: NDArray[np.int64]) -> NDArray[np.float64]:
    values, counts = np.unique(labels, return_counts=True)
    return np.asarray(labels == values[counts.argmax()], dtype=np.float64)
