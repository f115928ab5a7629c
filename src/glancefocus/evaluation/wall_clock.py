"""Wall clock of glancefocus against the plain backbone, side by side: do saved multiply-adds save time?"""

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glancefocus.data.scene_splits import OpenedAnew
from glancefocus.errors import BadSetting
from glancefocus.evaluation.latency import Progress, in_turns, opened, time_shares
from glancefocus.exits.curve import refuse_budget
from glancefocus.exits.one_size import geometric_shares, planned_exits
from glancefocus.look import Aim, Look
from glancefocus.loop import ExitRule, look_until_sure
from glancefocus.network.model import GlanceFocus
from glancefocus.outcome import Costs, Outcome
from glancefocus.runtime.choose import (
    RuntimeOptions,
    installed,
    made_up_images,
    open_backbone,
    open_runtime,
    runtime_words,
    set_threads,
)

LIGHT_IN = ("onnx",)
BRIEF_RUNTIMES = ("eager", "onnx", "openvino")
"""Measured if they are installed, unless all runtimes are asked for: each of them is the fastest on some network."""
BRIEF_BATCHES = (1, 32)
LEAST_IMAGES = 20
"""A round has at least this many images, in several batches if need be, so that every number of looks occurs."""
HALVINGS = 60


@dataclass(frozen=True)
class Case:
    """One measurement: a runtime, a batch size, a number of threads.

    light_weights  int8 weights in memory-bound layers, for glancefocus and the backbone alike
    """

    runtime: str
    batch: int
    threads: int
    light_weights: bool = False


@dataclass(frozen=True)
class Subject:
    """The networks that are measured, and the images.

    net       glancefocus
    backbone  a network whose focus encoder is the plain backbone to compare with; None: glancefocus is measured alone
    images    (N, ...) normalised; or large pictures, whose regions are read
    exits     the look after which each image leaves, decided beforehand; or
    rule      the exit rule
    accuracy, backbone_accuracy  if they are known, on the images measured_on; the thresholds were chosen on chosen_on
    """

    net: GlanceFocus
    backbone: GlanceFocus | None
    costs: Costs
    images: Tensor | OpenedAnew
    exits: Sequence[int] | None = None
    rule: ExitRule | None = None
    accuracy: float | None = None
    backbone_accuracy: float | None = None
    measured_on: str = ""
    chosen_on: str = ""


@dataclass(frozen=True)
class Timing:
    """One row of `gf bench`: milliseconds per image, medians over the rounds with their quartiles.

    mac_ratio   how many times fewer multiply-adds than the backbone
    time_ratio  how many times less time: the median of the ratios within each round
    quotient    time_ratio / mac_ratio: 1 if time is saved in proportion to multiply-adds
    light_weights  see Case
    exits       images that left after each look
    ms_per_look milliseconds of each look, aim included, for an image that takes it
    shares      of the time, see time_shares.SHARES
    accuracy, backbone_accuracy  on all images of the data, if there is any; unknown for int8 weights, which are rounded
    rounds      the number of rounds measured

    What belongs to the backbone, and the ratios, are None where there is no backbone to compare with.
    """

    runtime: str
    batch: int
    threads: int
    backbone_ms: float | None
    glancefocus_ms: float
    mac_ratio: float | None
    time_ratio: float | None
    quotient: float | None
    backbone_ms_low: float | None
    backbone_ms_high: float | None
    glancefocus_ms_low: float
    glancefocus_ms_high: float
    light_weights: bool = False
    exits: list[int] = field(default_factory=list)
    ms_per_look: list[float] = field(default_factory=list)
    shares: dict[str, float] = field(default_factory=dict)
    accuracy: float | None = None
    backbone_accuracy: float | None = None
    rounds: int = 0

    @property
    def runtime_words(self) -> str:
        return runtime_words(self.runtime, light_weights=self.light_weights)

    def to_plain(self) -> dict[str, Any]:
        """As plain values; with images per second, in which reading is not counted."""
        per_second = {
            "backbone_per_second": None if self.backbone_ms is None else 1000 / self.backbone_ms,
            "glancefocus_per_second": 1000 / self.glancefocus_ms,
        }
        return {**asdict(self), **per_second}


def usual_cases(
    runtimes: Sequence[str] | None,
    batches: Sequence[int],
    threads: int | None,
    device: torch.device,
    light_weights: bool | None = None,
) -> list[Case]:
    """Every runtime at every batch size; by default on one thread at batch 1, as on a phone, otherwise on all cores.

    runtimes       None: all that are installed; on a CPU without torch.compile, which takes minutes to start
    light_weights  for runtimes that support them; None: both with and without if all runtimes are measured, otherwise without
    """
    both = light_weights is None and runtimes is None and device.type == "cpu"
    if runtimes is None:
        runtimes = [name for name in installed(device) if name != "compile" or device.type == "cuda"]
    cores = os.cpu_count() or 1
    return [
        Case(runtime, batch, threads if threads is not None else 1 if batch == 1 else cores, light)
        for runtime in runtimes
        for batch in batches
        for light in ([False] if runtime not in LIGHT_IN else [False, True] if both else [bool(light_weights)])
    ]


def brief_runtimes(device: torch.device) -> list[str]:
    """The runtimes of BRIEF_RUNTIMES that are installed."""
    there = installed(device)
    return [name for name in BRIEF_RUNTIMES if name in there]


def images_needed(batch: int) -> int:
    """Whole batches, of at least LEAST_IMAGES images."""
    if batch < 1:
        raise BadSetting(f"a batch holds at least one image, but batch is {batch}.")
    return batch * -(-LEAST_IMAGES // batch)


def bench(
    subject: Subject,
    case: Case,
    *,
    rounds: int = 7,
    warm_up: int = 2,
    seconds: float | None = None,
    progress: Progress | None = None,
) -> Timing:
    """Measure one case: backbone and glancefocus on the same images in the same runtime, in turns.

    seconds   stop before a round that would exceed this time, but not before LEAST_ROUNDS
    progress  called with the share of the rounds that is done
    """
    _check_rounds(rounds, warm_up)
    threads_before = torch.get_num_threads()
    set_threads(case.threads)
    try:
        options = RuntimeOptions(light_weights=case.light_weights)
        net = open_runtime(subject.net, case.runtime, options=options)
        plain = subject.backbone
        backbone = None if plain is None else open_backbone(plain, case.runtime, options=options)
        return bench_opened(
            subject, case, net, backbone, rounds=rounds, warm_up=warm_up, seconds=seconds, progress=progress
        )
    finally:
        torch.set_num_threads(threads_before)


def bench_opened(
    subject: Subject,
    case: Case,
    net: GlanceFocus,
    backbone: Callable[[Tensor], Tensor] | None,
    *,
    rounds: int = 7,
    warm_up: int = 2,
    seconds: float | None = None,
    progress: Progress | None = None,
) -> Timing:
    """Measure a network and a backbone that are already opened in a runtime; see bench."""
    _check_rounds(rounds, warm_up)
    batches, rules = _batches(subject, case.batch)
    ways, outcomes = _ways(net, backbone, batches, rules)
    times = in_turns(ways, batches[0].device, rounds, warm_up, seconds, progress)
    outcome, measured = Outcome.join(outcomes), len(times["glancefocus"])
    shares, ms_per_look = time_shares(net, batches, rules, rounds=max(1, measured // 2))
    images = sum(map(len, batches))
    mean_macs = float(subject.costs.spent(outcome.looks, outcome.candidate, outcome.aims_first).mean())
    mac_ratio = subject.costs.backbone_macs / mean_macs
    looks = torch.bincount(outcome.looks.cpu(), minlength=subject.costs.looks + 1)[1:].tolist()
    return Timing(
        **asdict(case),
        **summary(times, images, mac_ratio),
        rounds=measured,
        exits=looks,
        ms_per_look=ms_per_look,
        shares=shares,
        accuracy=None if case.light_weights else subject.accuracy,
        backbone_accuracy=None if case.light_weights else subject.backbone_accuracy,
    )


def _check_rounds(rounds: int, warm_up: int) -> None:
    if rounds < 1 or warm_up < 0:
        raise BadSetting(f"there must be at least 1 round and 0 to warm up, but got {rounds} and {warm_up}.")


def summary(times: dict[str, list[float]], images: int, mac_ratio: float) -> dict[str, Any]:
    """Medians and quartiles of milliseconds per image, time_ratio and quotient; times are seconds of each round.

    Without times of the backbone everything that compares with it is None.
    """
    numbers: dict[str, Any] = dict.fromkeys(("backbone_ms", "backbone_ms_low", "backbone_ms_high"))
    for method, seconds in times.items():
        each = [1000 * s / images for s in seconds]
        low, median, high = statistics.quantiles(each, n=4, method="inclusive") if len(each) > 1 else each * 3
        numbers |= {f"{method}_ms": median, f"{method}_ms_low": low, f"{method}_ms_high": high}
    if "backbone" not in times:
        return {**numbers, **dict.fromkeys(("mac_ratio", "time_ratio", "quotient"))}
    ratios = [one / other for one, other in zip(times["backbone"], times["glancefocus"], strict=True)]
    time_ratio = statistics.median(ratios)
    return {**numbers, "mac_ratio": mac_ratio, "time_ratio": time_ratio, "quotient": time_ratio / mac_ratio}


def _batches(subject: Subject, batch: int) -> tuple[list[Tensor | OpenedAnew], list[ExitRule]]:
    """The images in batches, and the exit rule of each batch."""
    images, count = subject.images, images_needed(batch)
    batches: list[Tensor | OpenedAnew]
    if isinstance(images, Tensor):
        batches = list(torch.split(images[:count], batch))
    else:
        batches = [images.part(start, start + batch) for start in range(0, count, batch)]
    if subject.rule is not None:
        return batches, [subject.rule] * len(batches)
    assert subject.exits is not None
    looks = subject.net.settings.looks
    starts = range(0, len(batches) * batch, batch)
    return batches, [forced_exits(subject.exits[start : start + batch], looks) for start in starts]


def _ways(
    net: GlanceFocus,
    backbone: Callable[[Tensor], Tensor] | None,
    batches: Sequence[Tensor | OpenedAnew],
    rules: Sequence[ExitRule],
) -> tuple[dict[str, Callable[[], object]], list[Outcome]]:
    """The functions to measure, by name; and a list that receives the outcomes of the last run of glancefocus."""
    outcomes: list[Outcome] = []

    def look() -> None:
        outcomes[:] = [look_until_sure(net, opened(b), rule) for b, rule in zip(batches, rules, strict=True)]

    if backbone is None:
        return {"glancefocus": look}, outcomes
    whole = [images for images in batches if isinstance(images, Tensor)]

    def answer() -> None:
        for images in whole:
            backbone(images)

    return {"backbone": answer, "glancefocus": look}, outcomes


def forced_subject(
    net: GlanceFocus, costs: Costs, shares: Sequence[float], most_images: int, generator: torch.Generator
) -> Subject:
    """A network on random images, with these shares of exits after each look; its own focus encoder is the backbone."""
    images = made_up_images(net.settings, most_images, next(net.parameters()).device, generator)
    return Subject(net, net, costs, images, exits=planned_exits(shares, most_images))


@dataclass(frozen=True)
class ForcedExits(ExitRule):
    """Every row leaves after a look that is decided beforehand: for measuring time, where answers do not matter.

    thresholds give only the number of looks
    exits  (N,) the look after which each row of the batch leaves, 1 for the glance
    """

    exits: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def sure(self, look: Look, aim: Aim | None = None) -> Tensor:
        # numpy is as fast here as the comparison with a threshold that it stands for; torch would be slower.
        leaving = torch.from_numpy(self.exits[look.rows.numpy(force=True)] <= look.number)
        return leaving if look.rows.device.type == "cpu" else leaving.to(look.rows.device)


def forced_exits(exits: Sequence[int], looks: int) -> ForcedExits:
    """The rule with which the rows of a batch leave after these looks."""
    return ForcedExits([0.0] * looks, exits=np.array(exits, np.int64))


def checked_shares(shares: Sequence[float], looks: int) -> list[float]:
    """Shares of exits after each look as given by a user, checked."""
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
    """The geometric shares of exits (see exits/one_size.py) with this mean cost.

    falling  shares do not rise from look to look, as in the paper: at most they are equal, even if the budget allows more
    """
    refuse_budget(budget_macs, macs_after_look[0], "macs")
    looks = len(macs_after_look)
    low, high = 1e-9, 1.0 if falling else 1e9
    for _ in range(HALVINGS):
        middle = float(np.sqrt(low * high))
        too_much = float(geometric_shares(middle, looks) @ np.asarray(macs_after_look)) > budget_macs
        low, high = (low, middle) if too_much else (middle, high)
    return [float(share) for share in geometric_shares(low, looks)]
