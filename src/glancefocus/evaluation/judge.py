"""Compares a bundle with its rivals on the same images, with thresholds chosen on other images for both: the verdict."""

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.splits import Split
from glancefocus.evaluation.assess import look_table, own_thresholds, random_rows
from glancefocus.evaluation.rivals import (
    Size,
    answer_resized,
    cascade_table,
    image_size,
    patch_side,
    size_words,
    sizes_with_costs,
)
from glancefocus.evaluation.verdict import Kind, MethodResult, RivalPoint, Verdict, decide, no_verdict
from glancefocus.exits.budget import CrossFitted, cross_fitted, fold_of_rows, solve_at
from glancefocus.exits.record import LookRecord
from glancefocus.exits.table import LookTable, Thresholds
from glancefocus.network.weights import load_backbone_weights
from glancefocus.progress import Progress

if TYPE_CHECKING:
    from glancefocus.bench.latency import RivalTimes

MOST_IMAGES = 2000
LEAST_FOR_CASCADE = 20
"""With fewer images the thresholds of a cascade are too uncertain."""
PROMISING_PAIRS = 3
CURVE_SHARES = (0.5, 0.75, 1.5, 2.0)
"""Other budgets of the best cascade, relative to the cost of glancefocus."""


@dataclass(frozen=True)
class Member:
    """The backbone at one image size, as trained or tuned at that size: a rival by itself, and one step of a cascade."""

    kind: Literal["resized", "tuned"]
    size: Size
    correct: NDArray[np.bool_]
    confidence: NDArray[np.float32]
    macs: float
    ms: float | None

    @property
    def name(self) -> str:
        return f"backbone at {size_words(self.size)}" + (" (tuned)" if self.kind == "tuned" else "")


@dataclass(frozen=True)
class Weights:
    """The weights of the rivals: the run's plain backbone, and backbones that were tuned at smaller image sizes."""

    backbone: Path
    tuned: Mapping[Size, Path]


def judge(
    bundle: Bundle,
    record: LookRecord,
    split: Split,
    weights: Weights,
    folder: Path,
    *,
    workers: int = 0,
    progress: Progress | None = None,
    measure_times: "Callable[[Bundle, Sequence[Size]], RivalTimes] | None" = None,
    seed: int = 0,
) -> Verdict:
    """The verdict on a bundle.

    record         the looks at the split's images
    folder         where the rivals' answers are stored
    measure_times  also measures milliseconds, see bench.latency.measure_rival_times; None: multiply-adds only
    """
    if len(split) < 2:
        return no_verdict(f"there is {len(split)} image to compare on. Give more held-out images.")
    if not weights.backbone.is_file():
        return no_verdict(
            f"there is no plain backbone at {weights.backbone} to compare with. A run with the stage `backbone` stores it there."
        )
    rows = random_rows(len(split), MOST_IMAGES, seed)
    table = look_table(bundle, record).rows(rows)
    sizes = sizes_with_costs(
        bundle.settings, image_size(split, bundle.settings), patch_side(bundle.net.focus_encoder), table.macs[0]
    )
    if not sizes:
        return no_verdict("the backbone accepts only one image size.")
    times = None if measure_times is None else measure_times(bundle, list(sizes))
    table = replace(table, ms=None if times is None else np.asarray(times.ours), unit="macs")
    members, labels = _members(
        bundle, split, weights, rows, sizes, times, folder, record.about.split, workers, progress
    )
    return _compare(bundle, table, members, labels, times, f"{record.about.source}, {record.about.split}", seed)


def _compare(
    bundle: Bundle,
    table: LookTable,
    members: Sequence[Member],
    labels: NDArray[np.int64],
    times: "RivalTimes | None",
    data: str,
    seed: int,
) -> Verdict:
    folds = 5 if table.sizes == 1 else 2  # with several patch sizes the search takes long
    fold = fold_of_rows(len(table), folds, seed)
    budget = float(table.point(np.asarray(own_thresholds(bundle), dtype=np.float32))["mean_macs"])
    ours = answers_within(table, budget, "glancefocus", "glancefocus", (), folds, seed)
    singles = [_alone(member, index == 0) for index, member in enumerate(members)]
    cascades = cascades_within(members, ours.mean_macs, folds, seed) if len(table) >= LEAST_FOR_CASCADE else []
    verdict = decide(ours, [*singles, *(result for result, _ in cascades)], labels, fold)
    best = max(cascades, key=lambda each: (each[0].accuracy, -each[0].mean_macs), default=None)
    shown = [*singles, *([] if best is None else [best[0]]), ours]
    curve = () if best is None else _curve(best, ours.mean_macs, folds, seed)
    return replace(
        verdict,
        points=tuple(result.point() for result in shown),
        cascade_curve=curve,
        device=None if times is None else times.device,
        data=data,
        remarks=_remarks(len(table), best is None),
    )


def answers_within(
    table: LookTable,
    budget: float,
    kind: Kind,
    name: str,
    px: tuple[Size, ...],
    folds: int,
    seed: int,
) -> MethodResult:
    """The answers with the most accurate thresholds within a budget, by cross-fitting: each image with thresholds of the others."""

    def choose(some: LookTable) -> Thresholds:
        return solve_at(some, [max(budget, some.cheapest)], seed=seed)[0] if some.looks > 1 else some.leave()

    found: CrossFitted = cross_fitted(table, choose, folds, seed)
    ms = None if table.ms is None else float(table.ms[found.node].mean())
    return MethodResult(kind, name, found.correct.astype(np.float64), table.macs[found.node], px, ms)


def cascades_within(
    members: Sequence[Member], budget: float, folds: int, seed: int
) -> list[tuple[MethodResult, list[Member]]]:
    """Cascades within a budget: all sizes in order, smallest first, and the most promising pairs of two sizes.

    If there are tuned backbones, cascades with them are added. Pairs are ranked with thresholds chosen on all images at once,
    which is fast; the best are then measured like glancefocus, by cross-fitting.
    """
    untuned = sorted((m for m in members if m.kind != "tuned"), key=lambda m: m.macs)
    tuned = {m.size: m for m in members if m.kind == "tuned"}
    families = [untuned, [tuned.get(m.size, m) for m in untuned]] if tuned else [untuned]
    pairs = {_cascade_name(pair): pair for family in families for pair in itertools.combinations(family, 2)}
    affordable = [pair for pair in pairs.values() if pair[0].macs <= budget]
    tables = {_cascade_name(pair): _table(pair) for pair in affordable}
    promise = {name: _accuracy_within(table, budget, seed) for name, table in tables.items()}
    affordable.sort(key=lambda pair: -promise[_cascade_name(pair)])
    whole = [family for family in families if len(family) > 2 and family[0].macs <= budget]
    return [(_cascade(steps, budget, folds, seed), list(steps)) for steps in [*affordable[:PROMISING_PAIRS], *whole]]


def _accuracy_within(table: LookTable, budget: float, seed: int) -> float:
    return float(table.point(solve_at(table, [budget], seed=seed)[0])["accuracy"])


def _table(cascade: Sequence[Member]) -> LookTable:
    ms = [m.ms for m in cascade if m.ms is not None]
    return cascade_table(
        [(m.correct, m.confidence) for m in cascade],
        [m.macs for m in cascade],
        ms if len(ms) == len(cascade) else None,
    )


def _cascade(cascade: Sequence[Member], budget: float, folds: int, seed: int) -> MethodResult:
    sizes = tuple(m.size for m in cascade)
    return answers_within(_table(cascade), budget, "cascade", _cascade_name(cascade), sizes, folds, seed)


def _cascade_name(cascade: Sequence[Member]) -> str:
    sizes = [m.name.removeprefix("backbone at ") for m in cascade]
    return f"cascade of the backbone at {', '.join(sizes[:-1])} and {sizes[-1]}"


def _curve(best: tuple[MethodResult, list[Member]], cost: float, folds: int, seed: int) -> tuple[RivalPoint, ...]:
    budgets = [share * cost for share in CURVE_SHARES if share * cost >= best[1][0].macs]
    points = [best[0].point(), *(_cascade(best[1], budget, folds, seed).point() for budget in budgets)]
    return tuple(sorted(points, key=lambda point: point.mean_macs))


def _alone(member: Member, whole: bool) -> MethodResult:
    right = member.correct.astype(np.float64)
    kind: Kind = "backbone" if whole else member.kind
    macs = np.full(len(right), float(member.macs))
    return MethodResult(kind, member.name, right, macs, (member.size,), member.ms)


def _members(
    bundle: Bundle,
    split: Split,
    weights: Weights,
    rows: NDArray[np.int64],
    sizes: dict[Size, int],
    times: "RivalTimes | None",
    folder: Path,
    name: str,
    workers: int,
    progress: Progress | None,
) -> tuple[list[Member], NDArray[np.int64]]:
    """The untuned backbone at every size, the whole image first, then the tuned ones; and the labels of the images."""
    settings, encoder = bundle.settings, copy.deepcopy(bundle.net.focus_encoder)
    members, labels = [], np.zeros(0, dtype=np.int64)
    files: dict[Literal["resized", "tuned"], dict[Size, Path]] = {
        "resized": dict.fromkeys(sizes, weights.backbone),
        "tuned": {size: file for size, file in weights.tuned.items() if size in sizes},
    }
    for kind, by_size in files.items():
        for file in dict.fromkeys(by_size.values()):
            load_backbone_weights(encoder.backbone, file)
            own = [size for size, other in by_size.items() if other == file]
            answers = answer_resized(
                settings, encoder, file, split, rows, own, folder, name=name, workers=workers, progress=progress
            )
            labels = answers.labels
            for index, size in reversed(list(enumerate(answers.sizes))):
                members.append(
                    Member(
                        kind,
                        size,
                        answers.correct[:, index],
                        answers.confidence[:, index],
                        float(sizes[size]),
                        None if times is None else times.resized[size],
                    )
                )
    return members, labels


def _remarks(images: int, without_cascade: bool) -> tuple[str, ...]:
    if not without_cascade:
        return ()
    if images < LEAST_FOR_CASCADE:
        return (f"no cascade: choosing its thresholds takes at least {LEAST_FOR_CASCADE} images.",)
    return ("no cascade: even the smallest size costs more than glancefocus.",)
