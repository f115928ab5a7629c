"""Cascades of the backbone at several image sizes: which ones are promising within a budget, and what they answer.

A cascade is a look table like that of glancefocus, so its thresholds come from the same solver, by the same cross-fitting.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from glancefocus.evaluation.verdict import (
    BudgetRow,
    Kind,
    MethodResult,
    Size,
    Verdict,
    at_equal_cost,
    decide,
    size_words,
)
from glancefocus.exits.budget import cross_fitted_exits, fold_of_rows
from glancefocus.exits.curve import Unit
from glancefocus.exits.one_size import CutSearch
from glancefocus.exits.table import LookTable

LEAST_FOR_CASCADE = 20
"""With fewer images the thresholds of a cascade are too uncertain."""
PROMISING = 3
"""This many cascades are measured at the cost of glancefocus; at the other budgets MORE_BUDGETS_PROMISING."""
MORE_BUDGETS_PROMISING = 2
FOLDS = 5
BUDGETS = 10
FIRST_BUDGET, LAST_BUDGET = 1.1, 0.8
"""The range of budgets: from 1.1 times the cost of the glance to 0.8 times that of the backbone on the whole image."""


@dataclass(frozen=True)
class Member:
    """The backbone at one image size: a rival by itself, and one step of a cascade.

    kind     resized: trained on whole images; tuned: trained at this size
    correct, confidence  (N,) of its answers
    ms       milliseconds for one image; None: not measured
    encoder  which encoder it is, for people; empty: the run's plain backbone
    """

    kind: Literal["resized", "tuned"]
    size: Size
    correct: NDArray[np.bool_]
    confidence: NDArray[np.float32]
    macs: float
    ms: float | None
    encoder: str = ""

    @property
    def name(self) -> str:
        return f"backbone at {self.short_name}"

    @property
    def short_name(self) -> str:
        words = self.encoder or ("tuned" if self.kind == "tuned" else "")
        return size_words(self.size) + (f" ({words})" if words else "")

    def alone(self, kind: Kind | None = None) -> MethodResult:
        """Its answers without a cascade."""
        macs = np.full(len(self.correct), float(self.macs))
        return MethodResult(kind or self.kind, self.name, self.correct.astype(np.float64), macs, (self.size,), self.ms)


def answers_at(
    table: LookTable, budgets: Sequence[float], kind: Kind, name: str, px: tuple[Size, ...], folds: int, seed: int
) -> list[MethodResult]:
    """The answers with the most accurate thresholds within each budget, by cross-fitting: those of each image are chosen on others.

    A budget below one glance is raised to it.
    """
    within = [max(budget, table.cheapest) for budget in budgets]
    nodes = cross_fitted_exits(table, within, folds, seed=seed)
    return [answers_of_exits(table, node, kind, name, px) for node in nodes]


def answers_of_exits(
    table: LookTable, nodes: NDArray[np.int64], kind: Kind, name: str, px: tuple[Size, ...] = ()
) -> MethodResult:
    """The answers if each image stops at its node of the table, (N,)."""
    right = table.correct[np.arange(len(table)), nodes].astype(np.float64)
    return MethodResult(
        kind, name, right, table.macs[nodes], px, None if table.ms is None else float(table.ms[nodes].mean())
    )


def cascades_at(
    members: Sequence[Member], budgets: Sequence[float], folds: int, seed: int, most: int = PROMISING
) -> list[list[MethodResult]]:
    """For each budget the most promising cascades of two or three sizes, measured by cross-fitting; at most this many.

    The cascades are ranked by a coarse search on all images at once, which is fast.
    """
    tables = {name_of(steps): (steps, cascade_table(steps)) for steps in possible_cascades(members)}
    accuracy = {name: coarse_accuracies(table, budgets) for name, (_, table) in tables.items()}
    wanted: dict[str, list[int]] = {}  # the budgets to solve for, by cascade
    for number in range(len(budgets)):
        found = [
            (right, -tables[name][1].looks, name)
            for name, own in accuracy.items()
            if (right := own[number]) is not None
        ]
        for _, _, name in sorted(found, reverse=True)[:most]:
            wanted.setdefault(name, []).append(number)
    cascades: list[list[MethodResult]] = [[] for _ in budgets]
    for name, numbers in wanted.items():
        steps, table = tables[name]
        sizes = tuple(member.size for member in steps)
        solved = answers_at(table, [budgets[number] for number in numbers], "cascade", name, sizes, folds, seed)
        for number, result in zip(numbers, solved, strict=True):
            cascades[number].append(result)
    return cascades


def possible_cascades(members: Sequence[Member]) -> list[tuple[Member, ...]]:
    """All pairs and triples of sizes, cheapest first; of several members of one size the most accurate takes part."""
    best: dict[Size, Member] = {}
    for member in members:
        other = best.get(member.size)
        if other is None or member.correct.mean() > other.correct.mean():
            best[member.size] = member
    ordered = sorted(best.values(), key=lambda member: member.macs)
    return [steps for count in (2, 3) for steps in itertools.combinations(ordered, count)]


def coarse_accuracies(table: LookTable, budgets: Sequence[float]) -> list[float | None]:
    """About the best accuracy on this table within each budget, from a grid of thresholds; None: it buys no first step."""
    search = CutSearch(table)
    grid = search.evaluate([search.spread(look) for look in range(table.looks - 1)])
    found = [grid.best(search.limit(budget)) for budget in budgets]
    return [None if best is None else best.right / len(table) for best in found]


def cascade_table(cascade: Sequence[Member]) -> LookTable:
    """The look table of a cascade, smallest size first: an image that reaches a size has paid for all sizes up to it."""
    ms = [member.ms for member in cascade if member.ms is not None]
    return LookTable(
        np.stack([member.confidence for member in cascade], axis=1).astype(np.float32),
        np.stack([member.correct for member in cascade], axis=1),
        np.cumsum([member.macs for member in cascade], dtype=np.float64),
        ms=np.cumsum(ms, dtype=np.float64) if len(ms) == len(cascade) else None,
    )


def name_of(cascade: Sequence[Member]) -> str:
    """For people: cascade of the backbone at 96 px (the glance encoder) and 224 px."""
    *first, last = [member.short_name for member in cascade]
    return f"cascade of the backbone at {', '.join(first)} and {last}"


def budget_rows(
    table: LookTable,
    members: Sequence[Member],
    labels: NDArray[np.int64],
    fold: NDArray[np.int64],
    seed: int,
    unit: Unit = "macs",
) -> tuple[BudgetRow, ...]:
    """glancefocus and its best rival within several evenly spaced budgets.

    members  the first is the backbone on the whole image
    unit     of the budgets; with "ms", thresholds, cascades and mixes are chosen by milliseconds too
    """
    if unit == "ms":
        table, members = _by_time(table, members)
    low, high = FIRST_BUDGET * table.macs[0], LAST_BUDGET * members[0].macs
    budgets = np.linspace(low, high, BUDGETS).tolist() if low < high else []
    folds = int(fold.max()) + 1
    ours = answers_at(table, budgets, "glancefocus", "glancefocus", (), folds, seed)
    # On new images, thresholds may cost a little more than the budget. The rivals may then cost that much, too.
    allowed = [max(budget, own.mean_macs) for budget, own in zip(budgets, ours, strict=True)]
    cascades = cascades_at(members, allowed, folds, seed, MORE_BUDGETS_PROMISING)
    singles = [member.alone() for member in members]
    rows = []
    for budget, cost, own, steps in zip(budgets, allowed, ours, cascades, strict=True):
        found = at_equal_cost(own, [*singles, *steps], labels, fold, cost)
        rows.append(
            BudgetRow(
                unit=unit,
                budget=budget,
                accuracy=own.accuracy,
                cost=own.mean_macs,
                rival=found.instead.name,
                rival_accuracy=min(1.0, max(0.0, own.accuracy - found.difference)),
                rival_cost=found.mix_cost,
                difference=found.difference,
                difference_low=found.low,
                difference_high=found.high,
                two_standard_errors=found.two_standard_errors,
            )
        )
    return tuple(rows)


def _by_time(table: LookTable, members: Sequence[Member]) -> tuple[LookTable, list[Member]]:
    """The same with milliseconds in the place of multiply-adds, so that everything is compared and chosen by them."""
    assert table.ms is not None
    times = [member.ms for member in members if member.ms is not None]
    timed = [replace(member, macs=ms, ms=None) for member, ms in zip(members, times, strict=True)]
    return replace(table, macs=table.ms, ms=None), timed


def verdict_of(
    table: LookTable,
    exits: NDArray[np.int64],
    members: Sequence[Member],
    labels: NDArray[np.int64],
    device: str | None,
    data: str,
    seed: int,
) -> Verdict:
    """The verdict from answers to the same images.

    table    the looks of glancefocus
    exits    (N,) the node of the table where each image stops, with thresholds that were chosen on other images
    members  the rivals; the first is the backbone on the whole image
    """
    folds = FOLDS
    fold = fold_of_rows(len(table), folds, seed)
    ours = answers_of_exits(table, exits, "glancefocus", "glancefocus")
    singles = [member.alone("backbone" if index == 0 else None) for index, member in enumerate(members)]
    enough = len(table) >= LEAST_FOR_CASCADE
    cascades = cascades_at(members, [ours.mean_macs], folds, seed)[0] if enough else []
    verdict = decide(ours, [*singles, *cascades], labels, fold)
    best = sorted(cascades, key=lambda each: (-each.accuracy, each.mean_macs))[:1]
    units: list[Unit] = ["macs"] if table.ms is None else ["macs", "ms"]
    rows = [budget_rows(table, members, labels, fold, seed, unit) for unit in (units if enough else [])]
    return replace(
        verdict,
        points=tuple(result.point() for result in [*singles, *best, ours]),
        budgets=tuple(itertools.chain(*rows)),
        device=device,
        data=data,
        remarks=_remarks(len(table), not best),
    )


def _remarks(images: int, without_cascade: bool) -> tuple[str, ...]:
    if not without_cascade:
        return ()
    if images < LEAST_FOR_CASCADE:
        return (f"no cascade: choosing its thresholds takes at least {LEAST_FOR_CASCADE} images.",)
    return ("no cascade: even the smallest size costs more than glancefocus.",)
