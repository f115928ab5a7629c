"""Judges a bundle: glancefocus and its rivals on the same images, thresholds chosen on other images for both, and the verdict."""

import copy
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.splits import Split
from glancefocus.evaluation.assess import look_table, own_thresholds
from glancefocus.evaluation.rivals import (
    RivalTimes,
    Size,
    answer_resized,
    cascade_table,
    chosen_rows,
    image_size,
    measure_times,
    patch_side,
    size_words,
    sizes_with_costs,
)
from glancefocus.evaluation.verdict import Answers, Verdict, decide, no_verdict
from glancefocus.exits.budget import solve_at
from glancefocus.exits.forecast import CrossFitted, cross_fitted, fold_of_rows
from glancefocus.exits.record import LookRecord
from glancefocus.exits.table import LookTable, Thresholds
from glancefocus.network.weights import load_backbone_weights
from glancefocus.progress import Progress

MOST_IMAGES = 2000
LEAST_FOR_CASCADE = 20
"""Thresholds of a cascade that are chosen on fewer images say nothing."""
PROMISING_PAIRS = 3
CURVE_SHARES = (0.5, 0.75, 1.5, 2.0)
"""Other budgets of the best cascade, as shares of the cost of glancefocus."""


@dataclass(frozen=True)
class Member:
    """The backbone at one size, as it is or tuned at it: a rival by itself, and one step of a cascade."""

    kind: str
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
    """The files of the rivals: the run's plain backbone, and those tuned at smaller sizes, where there are some."""

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
    latency: bool = True,
    seed: int = 0,
) -> Verdict:
    """The verdict on a bundle.

    record   the looks at the split's images
    folder   where the rivals' answers are kept
    latency  measure milliseconds, too
    """
    if len(split) < 2:
        return no_verdict(f"there is {len(split)} image to compare on. Give more held-out images.")
    if not weights.backbone.is_file():
        return no_verdict(
            f"there is no plain backbone at {weights.backbone} to compare with; a run with the stage backbone keeps it there."
        )
    rows = chosen_rows(len(split), MOST_IMAGES, seed)
    table = look_table(bundle, record).rows(rows)
    sizes = sizes_with_costs(
        bundle.settings, image_size(split, bundle.settings), patch_side(bundle.net.focus_encoder), table.macs[0]
    )
    if not sizes:
        return no_verdict("the backbone takes no images of other sizes.")
    times = measure_times(bundle, list(sizes)) if latency else None
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
    times: RivalTimes | None,
    data: str,
    seed: int,
) -> Verdict:
    folds = 5 if table.sizes == 1 else 2  # the search with several patch sizes takes long
    fold = fold_of_rows(len(table), folds, seed)
    budget = float(table.point(np.asarray(own_thresholds(bundle), dtype=np.float32))["mean_macs"])
    ours = answers_within(table, budget, "glancefocus", "glancefocus", (), folds, seed)
    singles = [_alone(member, index == 0) for index, member in enumerate(members)]
    cascades = cascades_within(members, ours.mean_macs, folds, seed) if len(table) >= LEAST_FOR_CASCADE else []
    verdict = decide(ours, [*singles, *(answers for answers, _ in cascades)], labels, fold)
    best = max(cascades, key=lambda each: (each[0].accuracy, -each[0].mean_macs), default=None)
    shown = [*singles, *([] if best is None else [best[0]]), ours]
    curve = [] if best is None else _curve(best, ours.mean_macs, folds, seed)
    return replace(
        verdict,
        points=[answers.point() for answers in shown],
        cascade_curve=curve,
        device=None if times is None else times.device,
        data=data,
        remarks=_remarks(len(table), best is None),
    )


def answers_within(
    table: LookTable,
    budget: float,
    kind: str,
    name: str,
    px: tuple[Size, ...],
    folds: int,
    seed: int,
) -> Answers:
    """What the most accurate thresholds within a budget answer, each image by thresholds that other images chose."""

    def choose(some: LookTable) -> Thresholds:
        return solve_at(some, [max(budget, some.cheapest)], seed=seed)[0] if some.looks > 1 else some.leave()

    found: CrossFitted = cross_fitted(table, choose, folds, seed)
    ms = None if table.ms is None else float(table.ms[found.node].mean())
    return Answers(kind, name, found.correct.astype(np.float64), table.macs[found.node], px, ms)  # type: ignore[arg-type]


def cascades_within(
    members: Sequence[Member], budget: float, folds: int, seed: int
) -> list[tuple[Answers, list[Member]]]:
    """Cascades within a budget: of all sizes, smallest first, and the most promising ones of two sizes.

    Tuned sizes take the place of those as they are. What is promising is judged by thresholds chosen on all images at once; then
    every cascade is measured like glancefocus.
    """
    as_is = sorted((m for m in members if m.kind != "tuned"), key=lambda m: m.macs)
    tuned = {m.size: m for m in members if m.kind == "tuned"}
    families = [as_is, [tuned.get(m.size, m) for m in as_is]] if tuned else [as_is]
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


def _cascade(cascade: Sequence[Member], budget: float, folds: int, seed: int) -> Answers:
    sizes = tuple(m.size for m in cascade)
    return answers_within(_table(cascade), budget, "cascade", _cascade_name(cascade), sizes, folds, seed)


def _cascade_name(cascade: Sequence[Member]) -> str:
    sizes = [m.name.removeprefix("backbone at ") for m in cascade]
    return f"cascade of the backbone at {', '.join(sizes[:-1])} and {sizes[-1]}"


def _curve(best: tuple[Answers, list[Member]], cost: float, folds: int, seed: int) -> list[dict[str, object]]:
    budgets = [share * cost for share in CURVE_SHARES if share * cost >= best[1][0].macs]
    points = [best[0].point(), *(_cascade(best[1], budget, folds, seed).point() for budget in budgets)]
    return sorted(points, key=lambda point: float(point["mean_macs"]))


def _alone(member: Member, whole: bool) -> Answers:
    right = member.correct.astype(np.float64)
    kind = "backbone" if whole else member.kind
    macs = np.full(len(right), float(member.macs))
    return Answers(kind, member.name, right, macs, (member.size,), member.ms)  # type: ignore[arg-type]


def _members(
    bundle: Bundle,
    split: Split,
    weights: Weights,
    rows: NDArray[np.int64],
    sizes: dict[Size, int],
    times: RivalTimes | None,
    folder: Path,
    name: str,
    workers: int,
    progress: Progress | None,
) -> tuple[list[Member], NDArray[np.int64]]:
    """Every size as it is, the whole image first, then the tuned ones; and the labels of the images."""
    settings, encoder = bundle.settings, copy.deepcopy(bundle.net.focus_encoder)
    members, labels = [], np.zeros(0, dtype=np.int64)
    files = {"resized": dict.fromkeys(sizes, weights.backbone)}
    files["tuned"] = {size: file for size, file in weights.tuned.items() if size in sizes}
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


def _remarks(images: int, without_cascade: bool) -> list[str]:
    if not without_cascade:
        return []
    if images < LEAST_FOR_CASCADE:
        return [f"no cascade: its thresholds would be chosen on fewer than {LEAST_FOR_CASCADE} images."]
    return ["no cascade: even its first size costs more than glancefocus."]
