"""The study of exit criteria: confidence, entropy and random exits; solvers of thresholds; and the cost that really occurs."""

import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from glancefocus.data.splits import in_order
from glancefocus.evaluation.assess import halves
from glancefocus.evaluation.figures import LINES, cost_axis, new_figure
from glancefocus.evaluation.verdict import macs_words, paired_interval
from glancefocus.exits.budget import solve_at
from glancefocus.exits.table import LookTable, Thresholds
from glancefocus.studies.networks import chain
from glancefocus.studies.published import columns_of, row_beside, source_of
from glancefocus.studies.runs import Finished, Measured
from glancefocus.studies.study import Drawing, Result, Row, Run, Scope, Table, Value
from glancefocus.studies.tables import MAIN_PRESET, at_random, budget_columns, budgets_like, legend_above, points_at

SOLVER_BUDGETS, REAL_BUDGETS = 8, 5


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
    cost_axis(axes, "multiply-adds per image (millions")
    legend_above(figure, axes, columns=1)
    note = "In parentheses: the paper's budgets. Ours are at the same share of the range from the glance to all looks."
    table = Table("criteria", title, columns, rows, measured.images, ordered=True, note=note)
    first = measured.first("network")
    drawing = Drawing(figure, "Accuracy over multiply-adds with each exit criterion.")
    return Result([table, solver_table(measured["network"]), real_cost_table(first)], {"criteria": drawing})


def solver_table(runs: Sequence[Finished]) -> Table:
    """Our direct search for thresholds against the paper's geometric rule, at the same budgets."""
    names = {"geometric": "geometric rule (the paper's)", "direct": "direct search"}
    first = runs[0].table()
    budgets = np.linspace(first.cheapest, first.dearest, SOLVER_BUDGETS + 2)[1:-1].tolist()
    values: dict[str, list[list[Value]]] = {solver: [] for solver in names}
    gaps: list[list[Value]] = []
    clearly = 0
    for run in runs:
        choosing, measuring = apart(run)
        right = {solver: [_right(measuring, t) for t in solve_at(choosing, budgets, solver=solver)] for solver in names}
        for solver, own in right.items():
            values[solver].append([float(each.mean()) for each in own])
        pairs = zip(right["direct"], right["geometric"], strict=True)
        intervals = [paired_interval(one.astype(np.float64) - other.astype(np.float64)) for one, other in pairs]
        gaps.append([mean for mean, _, _ in intervals])
        clearly += sum(high < 0 for _, _, high in intervals)
    rows = [*(Row(name, values[solver]) for solver, name in names.items()), Row("difference", gaps)]
    note = (
        f"The whole 95 % interval of the difference is below zero at {clearly} of {len(budgets) * len(runs)} budgets."
    )
    columns = [macs_words(budget) for budget in budgets]
    return Table("solvers", "Solvers of thresholds: accuracy, %", columns, rows, len(first), note=note)


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
    rows = [Row("cost / budget", [[ratio for ratio, _ in found]]), Row("accuracy", [[share for _, share in found]])]
    columns = [macs_words(budget) for budget in budgets]
    return Table("real-cost", "The cost that really occurs when images are predicted", columns, rows, unit="number")
