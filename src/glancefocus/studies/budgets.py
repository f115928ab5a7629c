"""Accuracy within budgets, which most studies measure; and the study of exit criteria."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glancefocus.data.splits import in_order
from glancefocus.evaluation.assess import halves, solved
from glancefocus.evaluation.figures import GREY, HEIGHT, LINES, cost_axis, new_figure
from glancefocus.evaluation.verdict import macs_words, paired_interval
from glancefocus.exits.budget import solve_at
from glancefocus.exits.curve import Point
from glancefocus.exits.table import LookTable, Thresholds
from glancefocus.network.presets import read_table
from glancefocus.studies.catalogue import columns_of, source_of
from glancefocus.studies.networks import Run, Scope, chain
from glancefocus.studies.results import Drawing, Result, Row, Table, Value, row_beside
from glancefocus.studies.runs import Finished, Measured

MAIN_PRESET = {"tiny": None, "paper": "gf-resnet50-96"}
CURVE_POINTS = 25
BUDGETS_NOTE = (
    "In parentheses: the paper's budgets. Ours are at the same share of the range from the glance to all looks."
)


def look_columns(looks: int) -> list[str]:
    """t=1, t=2, ... as in the paper's tables; t is the number of looks that every image takes."""
    return [f"t={look}" for look in range(1, looks + 1)]


def after_look_drawing(rows: Sequence[Row], caption: str) -> Drawing:
    """The mean accuracy after each look, one line for each row."""
    figure, axes = new_figure(HEIGHT + 0.2 * len(rows))
    for number, row in enumerate(rows):
        means = [100 * mean for c in range(len(row.values[0])) if (mean := row.mean(c)) is not None]
        filled = {} if number < len(LINES) else {"markerfacecolor": "white"}  # the styles repeat
        axes.plot(range(1, len(means) + 1), means, label=row.name, **LINES[number % len(LINES)], **filled)
    axes.set_xticks(range(1, max(len(row.values[0]) for row in rows) + 1))
    axes.set_xlabel("looks at every image, t")
    axes.set_ylabel("accuracy (%)")
    legend_above(figure, axes, columns=1)
    return Drawing(figure, caption)


def legend_above(figure: Any, axes: Any, columns: int = 2) -> None:
    """A legend outside the axes, where it covers no data."""
    entries = axes.get_legend_handles_labels()
    figure.legend(*entries, loc="outside upper center", ncols=columns, frameon=False, fontsize=8, handlelength=3)


def budgets_like(preset: str, published: Sequence[str], run: Finished) -> list[float]:
    """The budgets of one of the paper's tables, moved to the same share of the range of a network's costs."""
    (own,) = [row["macs_after_look"] for row in read_table() if row["preset"] == preset]
    macs = run.bundle.costs.macs_after_look
    shares = [(float(text.rstrip("G")) * 1e9 - own[0]) / (own[-1] - own[0]) for text in published]
    return [macs[0] + share * (macs[-1] - macs[0]) for share in shares]


def points_at(run: Finished, budgets: Sequence[float], score: str | None = None) -> list[Point]:
    """An operating point for each budget."""
    return solved(run.choosing(score), replace(run.table(score), unit="macs"), budgets)


def accuracies_at(run: Finished, budgets: Sequence[float]) -> list[Value]:
    """Accuracy within each budget; None for budgets that the network cannot spend."""
    dearest = run.table().dearest
    points = points_at(run, [min(budget, dearest) for budget in budgets])
    spendable = [n for n, budget in enumerate(budgets) if budget <= dearest]
    last = min(len(budgets) - 1, len(spendable))  # one more shows where it ends
    return [point["accuracy"] if n <= last else None for n, point in enumerate(points)]


def budget_curve(run: Finished) -> list[Point]:
    """Operating points from the glance only to every look for every image."""
    table = run.table()
    points = points_at(run, np.linspace(table.cheapest, table.dearest, CURVE_POINTS).tolist())
    return sorted(points, key=lambda point: point["mean_macs"])


def budget_columns(budgets: Sequence[float], published: Sequence[str]) -> list[str]:
    return [f"{macs_words(budget)} ({text})" for budget, text in zip(budgets, published, strict=True)]


def curves_figure(
    curves: Mapping[str, Sequence[Point]], dots: Mapping[str, tuple[float, float]] | None = None, *, noun: str = "image"
) -> Any:
    """Accuracy over multiply-adds per image (or another noun), one line for each curve; dots: {name: (multiply-adds, accuracy)}."""
    figure, axes = new_figure(4.6)
    for number, (name, points) in enumerate(curves.items()):
        costs, shares = [p["mean_macs"] / 1e6 for p in points], [100 * p["accuracy"] for p in points]
        axes.plot(costs, shares, label=name, markersize=4, linewidth=1.5, markevery=3, **LINES[number % len(LINES)])
    for number, (name, (macs, share)) in enumerate((dots or {}).items()):
        axes.plot(macs / 1e6, 100 * share, "D", color=GREY, markersize=6)
        label_dot(axes, name, (macs / 1e6, 100 * share), number)
    cost_axis(axes, f"multiply-adds per {noun} (millions")
    legend_above(figure, axes)
    return figure


def label_dot(axes: Any, name: str, place: tuple[float, float], number: int) -> None:
    """The name of a dot to the left of it, below and above in turn, so that neighbours do not overlap."""
    offset = (-4, -10) if number % 2 == 0 else (-4, 5)
    axes.annotate(name, place, xytext=offset, textcoords="offset points", fontsize=7, ha="right")


def at_random(point: Point, after_look: Sequence[float]) -> float:
    """The expected accuracy if as many images stop after each look as at this point, but random ones."""
    exits = point["exits_per_look"]
    return float(sum(count * share for count, share in zip(exits, after_look, strict=True)) / sum(exits))


# Exit criteria: Table 7.
SOLVER_BUDGETS, REAL_BUDGETS = 8, 5
DRAWS = 20  # of other images that choose thresholds


def criteria_runs(scope: Scope) -> dict[str, Run]:
    return {"network": chain(scope, MAIN_PRESET[scope.scale]).trained}


def criteria_result(measured: Measured) -> Result:
    published = columns_of("criteria")
    budgets = budgets_like("gf-resnet50-96", published, measured.first("network"))
    values: dict[str, list[list[Value]]] = {"random": [], "entropy": [], "confidence": []}
    for run in measured["network"]:
        by_confidence = points_at(run, budgets, "confidence")
        values["confidence"].append([point["accuracy"] for point in by_confidence])
        values["entropy"].append([point["accuracy"] for point in points_at(run, budgets, "entropy")])
        values["random"].append([at_random(point, run.after_looks()) for point in by_confidence])
    names = {
        "random": "random, as many at each look as with confidence",
        "entropy": "entropy",
        "confidence": "confidence",
    }
    rows = [row_beside("criteria", key, name, values[key]) for key, name in names.items()]
    title = f"Accuracy within an average budget of multiply-adds, % ({source_of('criteria')})"
    columns = budget_columns(budgets, published)
    figure, axes = new_figure()
    for number, row in enumerate(rows):
        means = [100 * mean for c in range(len(budgets)) if (mean := row.mean(c)) is not None]
        axes.plot([budget / 1e6 for budget in budgets], means, label=row.name, **LINES[number])
    cost_axis(axes, "budget, multiply-adds per image (millions")
    legend_above(figure, axes, columns=1)
    table = Table("criteria", title, columns, rows, measured.images, ordered=True, note=BUDGETS_NOTE)
    first = measured.first("network")
    drawing = Drawing(figure, "Accuracy over the budget with each exit criterion, mean over the seeds.")
    return Result([table, solver_table(measured["network"]), real_cost_table(first)], {"criteria": drawing})


def solver_table(runs: Sequence[Finished]) -> Table:
    """Our direct search for thresholds against the paper's geometric rule, at the same budgets."""
    names = {"geometric": "geometric rule (the paper's)", "direct": "direct search"}
    first = runs[0].table()
    budgets = np.linspace(first.cheapest, first.dearest, SOLVER_BUDGETS + 2)[1:-1].tolist()
    values: dict[str, list[list[Value]]] = {solver: [] for solver in names}
    gaps: list[list[Value]] = []
    drawn: list[list[Value]] = []
    clearly = 0
    for run in runs:
        choosing, measuring = apart(run)
        drawn.append(list(drawn_difference(choosing, measuring, budgets)))
        right = {solver: [_right(measuring, t) for t in solve_at(choosing, budgets, solver=solver)] for solver in names}
        for solver, own in right.items():
            values[solver].append([float(each.mean()) for each in own])
        pairs = zip(right["direct"], right["geometric"], strict=True)
        intervals = [paired_interval(one.astype(np.float64) - other.astype(np.float64)) for one, other in pairs]
        gaps.append([mean for mean, _, _ in intervals])
        clearly += sum(high < 0 for _, _, high in intervals)
    rows = [
        *(Row(name, values[solver]) for solver, name in names.items()),
        Row("direct less geometric, points", gaps),
        Row(f"the same, mean of {DRAWS} random draws", drawn),
    ]
    note = (
        f"The 95 % interval of the difference is entirely below zero at {clearly} of {len(budgets) * len(runs)} budgets of all "
        "seeds. Last row: the images that choose thresholds and those that are measured are put together and divided again at "
        "random, into parts of the same sizes."
    )
    columns = [macs_words(budget) for budget in budgets]
    return Table("solvers", "Solvers of thresholds: accuracy, %", columns, rows, len(first), note=note)


def drawn_difference(choosing: LookTable, measuring: LookTable, budgets: Sequence[float]) -> list[float]:
    """For each budget the accuracy of the direct search minus that of the geometric rule, averaged over other choosing images.

    With a few hundred images, which solver wins also depends on which images choose the thresholds.
    """
    score, correct = (
        np.concatenate([getattr(choosing, name), getattr(measuring, name)]) for name in ("score", "correct")
    )
    pooled = replace(measuring, score=score, correct=correct)
    gaps = []
    for draw in range(DRAWS):
        order = np.random.default_rng(draw).permutation(len(pooled))
        chosen, others = pooled.rows(order[: len(choosing)]), pooled.rows(order[len(choosing) :])
        direct, geometric = (
            [float(_right(others, t).mean()) for t in solve_at(chosen, budgets, solver=solver)]
            for solver in ("direct", "geometric")
        )
        gaps.append(np.subtract(direct, geometric))
    return np.mean(gaps, axis=0).tolist()  # type: ignore[no-any-return]


def apart(run: Finished) -> tuple[LookTable, LookTable]:
    """The images that thresholds are chosen on, and those that they are measured on."""
    table, choosing = replace(run.table(), unit="macs"), run.choosing()
    if choosing is not None:
        return replace(choosing, unit="macs"), table
    one, two = halves(len(table))
    return table.rows(one), table.rows(two)


def _right(table: LookTable, thresholds: Thresholds) -> NDArray[np.bool_]:
    """(N,) whether each image is answered correctly with these thresholds."""
    return np.asarray(table.correct[np.arange(len(table)), table.exits(thresholds)])


def real_cost_table(run: Finished) -> Table:
    """What predicting all images that are measured on costs with each budget, against the budget."""
    bundle, split = run.bundle, run.split
    most = min(max(point["mean_macs"] for point in bundle.curve), bundle.costs.macs_after_look[-1])
    budgets = np.linspace(bundle.costs.macs_after_look[0], most, REAL_BUDGETS + 2)[1:-1].tolist()

    def real(budget: float) -> list[float]:
        rule = bundle.exit_rule(budget_macs=budget)
        costs, right = [], []
        for images, labels in split.batches(in_order(len(split), 64)):
            outcome = bundle.predict_images(list(images), rule)
            costs.append(outcome.cost_macs.numpy())
            right.append((outcome.answer.cpu() == labels).numpy())
        return [float(np.concatenate(costs).mean()) / budget, float(np.concatenate(right).mean())]

    found = [run.kept(f"real-cost-{round(budget)}", functools.partial(real, budget)) for budget in budgets]
    rows = [
        Row("cost / budget", [[ratio for ratio, _ in found]]),
        Row("accuracy, %", [[100 * share for _, share in found]]),
    ]
    columns = [macs_words(budget) for budget in budgets]
    title = "Mean cost of predicting all images with each budget of multiply-adds, first seed"
    return Table("real-cost", title, columns, rows, unit="number")
