"""The studies that are tables: rewards, patch sizes, ablation, policies, exit criteria, sensitivity of the training settings."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from glancefocus.evaluation.assess import solved
from glancefocus.evaluation.figures import GREY, HEIGHT, LINES, cost_axis, new_figure, patch_sizes_figure
from glancefocus.evaluation.verdict import macs_words
from glancefocus.exits.curve import Point, patches_of
from glancefocus.network.presets import read_table
from glancefocus.studies.networks import TINY_SIZES, WITHOUT_POLICY, Chain, again, chain
from glancefocus.studies.published import columns_of, row_beside, sentence, source_of
from glancefocus.studies.runs import Finished, Measured
from glancefocus.studies.study import Drawing, Result, Row, Run, Scope, Table, Value

MAIN_PRESET = {"tiny": None, "paper": "gf-resnet50-96"}
CURVE_POINTS = 25


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


# Rewards: Table 2.
REWARDS = {"increment": "increments", "contrastive": "contrastive"}
REWARD_PRESETS: dict[str, dict[str, str | None]] = {
    "tiny": {"resnet50": None},
    "paper": {
        "resnet50": "gf-resnet50-96",
        "mobilenet": "gf-mobilenetv3-large-100-128",
        "efficientnet": "gf-efficientnet-b2-128",
    },
}


def reward_runs(scope: Scope) -> dict[str, Run]:
    """Stage II with each reward, on the same network after stage I; every seed has a new policy."""
    runs = {}
    for key, preset in REWARD_PRESETS[scope.scale].items():
        base = chain(replace(scope, seed=0), preset).stage1
        for reward in REWARDS:
            name = f"{base.name.removesuffix('-stage1')}-{reward}"
            changes = {"aim.reward": reward}
            runs[f"{key}/{reward}"] = again(
                scope, "aim", base, name, preset=preset, changes=changes, parts=WITHOUT_POLICY
            )
    return runs


def reward_result(measured: Measured) -> Result:
    tables, drawings = [], {}
    for key in REWARD_PRESETS[measured.scope.scale]:
        runs = {reward: measured[f"{key}/{reward}"] for reward in REWARDS}
        rows = [
            row_beside(f"rewards/{key}", reward, REWARDS[reward], [run.after_looks() for run in own])
            for reward, own in runs.items()
        ]
        looks = len(rows[0].values[0])
        title = f"Top-1 accuracy after stage II, % ({source_of(f'rewards/{key}')})"
        tables.append(Table(f"rewards-{key}", title, look_columns(looks), rows, measured.images, ordered=True))
        drawings[f"rewards-{key}"] = after_look_drawing(rows, "Accuracy if every image takes t looks, after stage II.")
        hits = {reward: [run.hits() for run in own] for reward, own in runs.items()}
        if all(found is not None for own in hits.values() for found in own):
            hit_rows = [Row(REWARDS[reward], [own or [] for own in found]) for reward, found in hits.items()]
            columns = [f"look {look}" for look in range(2, looks + 1)]
            tables.append(
                Table(f"hits-{key}", "Focus looks that show the whole object, %", columns, hit_rows, measured.images)
            )
    note = (
        "All policies are trained on one network after stage I, without stage III. Each seed starts with a new policy."
    )
    return Result(tables, drawings, remarks=[note])


# Patch sizes: Table 3, Figures 10 and 17.
SIZE_PRESET = {"tiny": TINY_SIZES, "paper": "gf-ms-resnet50-96"}


def size_views(scope: Scope) -> tuple[str, ...]:
    return ("32", "48", "64") if scope.scale == "tiny" else ("96", "128", "160")


def size_runs(scope: Scope) -> dict[str, Run]:
    preset = SIZE_PRESET[scope.scale]
    runs = {"chosen": chain(scope, preset).trained}
    for view in size_views(scope):
        runs[view] = chain(scope, preset, name=f"fixed-{view}", network={"focus": (view,)}).trained
    return runs


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


def size_result(measured: Measured) -> Result:
    published = columns_of("sizes")
    budgets = budgets_like("gf-ms-resnet50-96", published, measured.first("chosen"))
    views, keys = size_views(measured.scope), ("96", "128", "160")
    rows = [
        row_beside("sizes", key, f"{view} px (fixed)", [accuracies_at(run, budgets) for run in measured[view]])
        for view, key in zip(views, keys, strict=True)
    ]
    chosen = [points_at(run, budgets) for run in measured["chosen"]]
    rows.append(row_beside("sizes", "chosen", "sizes chosen", [[p["accuracy"] for p in own] for own in chosen]))
    columns = budget_columns(budgets, published)
    title = f"Accuracy within an average budget of multiply-adds, % ({source_of('sizes')})"
    share_rows = [
        Row(f"{view} px", [[_share_of(point, n) for point in own] for own in chosen]) for n, view in enumerate(views)
    ]
    shares = Table("shares", "Share of each patch size among the focus looks, %", columns, share_rows, 0)
    curves = {f"{view} px (fixed)": budget_curve(measured.first(view)) for view in views}
    curves["sizes chosen"] = budget_curve(measured.first("chosen"))
    drawings = {
        "sizes": Drawing(curves_figure(curves), "Accuracy over multiply-adds, first seed: sizes chosen, and fixed."),
        "patch_sizes": Drawing(
            patch_sizes_figure(curves["sizes chosen"], views),
            "The share of each size among the focus looks, over the budget, first seed.",
        ),
    }
    note = "In parentheses: the paper's budgets. Ours are at the same share of the range from the glance to all looks."
    tables = [Table("sizes", title, columns, rows, measured.images, ordered=True, note=note), shares]
    return Result(tables, drawings, remarks=[_gaps(rows), sentence("sizes")])


def _share_of(point: Point, size: int) -> float:
    counts = np.asarray(patches_of(point), dtype=np.float64).sum(axis=0)
    return float(counts[size] / max(1.0, counts.sum()))


def _gaps(rows: Sequence[Row]) -> str:
    """The chosen sizes less the best fixed one, at every budget."""
    *fixed, chosen = rows
    gaps = []
    for column in range(len(chosen.values[0])):
        known = [mean for row in fixed if (mean := row.mean(column)) is not None]
        own = chosen.mean(column)
        gaps.append("--" if own is None or not known else f"{100 * (own - max(known)):+.1f}")
    return f"Chosen sizes less the best fixed size, in points, at each budget: {', '.join(gaps)}."


def curves_figure(curves: Mapping[str, Sequence[Point]], dots: Mapping[str, tuple[float, float]] | None = None) -> Any:
    """Accuracy over multiply-adds, one line for each curve; dots: {name: (multiply-adds, accuracy)}."""
    figure, axes = new_figure(4.6)
    for number, (name, points) in enumerate(curves.items()):
        costs, shares = [p["mean_macs"] / 1e6 for p in points], [100 * p["accuracy"] for p in points]
        axes.plot(costs, shares, label=name, markersize=4, linewidth=1.5, markevery=3, **LINES[number % len(LINES)])
    for name, (macs, share) in (dots or {}).items():
        axes.plot(macs / 1e6, 100 * share, "D", color=GREY, markersize=6)
        axes.annotate(name, (macs / 1e6, 100 * share), xytext=(5, -10), textcoords="offset points", fontsize=7)
    cost_axis(axes, "multiply-adds per image (millions")
    legend_above(figure, axes)
    return figure


def at_random(point: Point, after_look: Sequence[float]) -> float:
    """The expected accuracy if as many images stop after each look as at this point, but random ones."""
    exits = point["exits_per_look"]
    return float(sum(count * share for count, share in zip(exits, after_look, strict=True)) / sum(exits))


# Policies: Table 6.
def _policy(head: str, units: int, **more: int) -> dict[str, Any]:
    return {"head": head, "units": units, **more}


POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "linear-1024": ("two linear layers, 1024 units", _policy("linear", 1024)),
    "linear-512": ("two linear layers, 512 units", _policy("linear", 512)),
    "linear-256": ("two linear layers, 256 units", _policy("linear", 256)),
    "conv3-32": ("3x3 convolution to 32 channels, 256 units", _policy("conv", 256, conv_kernel=3, conv_channels=32)),
    "conv1-64": ("1x1 convolution to 64 channels, 256 units", _policy("conv", 256, conv_kernel=1, conv_channels=64)),
    "conv1-32": ("1x1 convolution to 32 channels, 256 units", _policy("conv", 256, conv_kernel=1, conv_channels=32)),
    "conv1-16": ("1x1 convolution to 16 channels, 256 units", _policy("conv", 256, conv_kernel=1, conv_channels=16)),
}


def policy_runs(scope: Scope) -> dict[str, Run]:
    """Stages II and III with each policy, on the same network after stage I."""
    preset = MAIN_PRESET[scope.scale]
    base = chain(scope, preset).stage1
    runs = {}
    for key, (_, policy) in POLICIES.items():
        own: dict[str, Any] = {"preset": preset, "network": {"policy": policy}}
        aimed = again(scope, "aim", base, f"policy-{key}-stage2", parts=WITHOUT_POLICY, **own)
        runs[key] = again(scope, "finetune", aimed, f"policy-{key}-stage3", **own)
    return runs


def policy_result(measured: Measured) -> Result:
    rows, costs = [], []
    for key, (words, _) in POLICIES.items():
        runs = measured[key]
        row = row_beside("policies", key, words, [run.after_looks() for run in runs])
        paper_macs, *paper = row.paper  # of a step, in millions; it was divided by 100 like the percentages
        rows.append(replace(row, paper=paper))
        own = [[run.bundle.costs.policy_macs / 1e6] for run in runs[:1]]
        costs.append(Row(words, own, [None if paper_macs is None else 100 * paper_macs]))
    looks = len(rows[0].values[0])
    title = f"Top-1 accuracy with each policy, % ({source_of('policies')})"
    encoder = measured.first("conv1-32").bundle.costs.encoder_macs
    tables = [
        Table("policies", title, look_columns(looks), rows, measured.images, ordered=True),
        Table("cost", "Multiply-adds of one aim, millions", ["millions"], costs, unit="number"),
    ]
    spread = [max(mean_at(rows, c)) - min(mean_at(rows, c)) for c in range(looks)]
    remark = (
        f"Largest difference between policies, in points: {', '.join(f'{100 * gap:.1f}' for gap in spread)} at t=1, 2, ... "
        f"The encoder on a glance costs {macs_words(encoder)}."
    )
    drawing = after_look_drawing(rows, "Accuracy if every image takes t looks, with each policy.")
    return Result(tables, {"policies": drawing}, remarks=[remark])


def mean_at(rows: Sequence[Row], column: int) -> list[float]:
    return [mean for row in rows if (mean := row.mean(column)) is not None]


# Sensitivity: Table 8.
LAMBDAS, RATES, LENGTHS = (0, 1, 2, 5, 10), (0.1, 1.0, 10.0), (0.5, 1.0, 1.5)


def sensitivity_runs(scope: Scope) -> dict[str, Run]:
    """Lambda, the encoders' learning rate and the epochs of stages I and III, each changed in turn."""
    preset = MAIN_PRESET[scope.scale]
    usual = chain(scope, preset)
    assert usual.stage3 is not None
    runs = {"usual": usual.stage3}
    for weight in LAMBDAS:
        if weight != 1:
            runs[f"lambda-{weight:g}"] = _varied(
                scope, preset, usual, f"lambda-{weight:g}", {"own_head_weight": weight}
            )
    for factor in RATES:
        if factor != 1:
            rate = usual.stage3.settings.finetune.encoder_lr * factor
            runs[f"lr-{factor:g}"] = _varied(scope, preset, usual, f"lr-{factor:g}", {"encoder_lr": round(rate, 6)})
    for factor in LENGTHS:
        if factor != 1:
            runs[f"epochs-{factor:g}"] = _varied(scope, preset, usual, f"epochs-{factor:g}", {}, factor)
    return runs


def _varied(
    scope: Scope, preset: str | None, usual: Chain, name: str, both: Mapping[str, Any], length: float = 1.0
) -> Run:
    """The last run of a network with these settings of stages I and III."""
    assert usual.stage2 is not None
    assert usual.stage3 is not None
    first, third = usual.stage1.settings.recognise, usual.stage3.settings.finetune
    changes: dict[str, Any] = {
        f"{stage}.{key}": value for stage in ("recognise", "finetune") for key, value in both.items()
    }
    if length != 1:
        changes |= {f"{stage}.epochs": max(1, round(length * epochs)) for stage, epochs in
                    (("recognise", first.epochs), ("finetune", third.epochs))}  # fmt: skip
    elif first.freeze_encoders:
        # Stage I trains the classifier only, so that these settings have no effect there.
        return again(scope, "finetune", usual.stage2, f"{name}-stage3", preset=preset, changes=changes)
    varied = chain(scope, preset, name=name, changes=changes)
    assert varied.stage3 is not None
    return varied.stage3


def sensitivity_result(measured: Measured) -> Result:
    words = {f"lambda-{weight:g}": f"lambda = {weight:g}" for weight in LAMBDAS}
    words |= {f"lr-{factor:g}": f"learning rate x {factor:g}" for factor in RATES}
    words |= {f"epochs-{factor:g}": f"epochs x {factor:g}" for factor in LENGTHS}
    usual = {"lambda-1", "lr-1", "epochs-1"}
    rows = []
    for key, name in words.items():
        runs = measured["usual" if key in usual else key]
        shown = f"{name} (the paper's choice)" if key in usual else name
        rows.append(row_beside("sensitivity", key, shown, [run.after_looks() for run in runs]))
    looks = len(rows[0].values[0])
    remarks = []
    if measured.first("usual").run.settings.recognise.freeze_encoders:
        remarks.append(
            "On this data set stage I trains the classifier only, so lambda and the learning rate have an effect in stage III only."
        )
    title = f"Top-1 accuracy, % ({source_of('sensitivity')})"
    last = [statistics.mean(row.known(looks - 1)) for row in rows]
    remarks.append(f"Accuracy at t={looks} over all settings: {100 * min(last):.1f} to {100 * max(last):.1f} %.")
    table = Table("sensitivity", title, look_columns(looks), rows, measured.images, ordered=True)
    return Result(
        [table], {"sensitivity": after_look_drawing(rows, "Accuracy if every image takes t looks.")}, remarks=remarks
    )
