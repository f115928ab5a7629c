"""The studies that are curves: accuracy over multiply-adds for many networks, image sizes, patch sizes and numbers of looks."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from glancefocus.evaluation.figures import BLUE, GREY, LINES, RED, SKY, cost_axis, expected_looks, new_figure
from glancefocus.evaluation.records import looks_folder
from glancefocus.evaluation.rivals import answer_resized, image_size, patch_side, sizes_with_costs
from glancefocus.exits.curve import Point
from glancefocus.network.macs import count_costs
from glancefocus.network.presets import PRESETS, family_of
from glancefocus.studies.budgets import budget_curve, curves_figure, label_dot, legend_above, look_columns
from glancefocus.studies.catalogue import networks, sentence
from glancefocus.studies.networks import ASSUMED_CLASSES, Run, Scope, backbone_run, chain
from glancefocus.studies.results import Drawing, Result, Row, Table
from glancefocus.studies.runs import Finished, Measured
from glancefocus.training.run_folder import BUNDLE_FOLDER

Dots = dict[str, tuple[float, float]]
"""{name: (multiply-adds, accuracy)}."""

PAPER_NETWORKS = tuple(name for name in PRESETS if "mini" not in name and "tsm" not in name and "-ms-" not in name)[:14]
"""The networks of Figure 7 (Table 9)."""


def backbone_dots(run: Finished, *, resized: bool = True) -> Dots:
    """The plain backbone on the images that are measured on, whole and (if resized) reduced to smaller sizes."""
    net, network = run.backbone(), run.run.settings.network
    glance_macs = count_costs(network).macs_after_look[0]
    sizes = sizes_with_costs(network, image_size(run.split, network), patch_side(net.focus_encoder), glance_macs)
    useful = {size: macs for size, macs in sizes.items() if macs >= glance_macs / 2}
    kept = useful if resized else dict(list(sizes.items())[:1])
    rows, folder = np.arange(len(run.split)), looks_folder(run.folder / BUNDLE_FOLDER)
    answers = answer_resized(
        network, net.focus_encoder, run.split, rows, list(kept), folder, name=run.measured_on,
        workers=run.run.settings.data.workers,
    )  # fmt: skip
    shares = dict(zip(answers.sizes, answers.correct.mean(axis=0).tolist(), strict=True))
    return {_size_words(size): (float(macs), shares[size]) for size, macs in kept.items()}


def _size_words(size: tuple[int, int]) -> str:
    return f"{size[0]} px" if size[0] == size[1] else f"{size[0]}x{size[1]} px"


def whole_image(dots: Dots) -> tuple[float, float]:
    """(multiply-adds, accuracy) of the plain backbone on whole images."""
    return max(dots.values())


def cheapest_at(points: Sequence[Point], accuracy: float) -> float | None:
    """The fewest multiply-adds on average with at least this accuracy; None if no point reaches it."""
    good = [point["mean_macs"] for point in points if point["accuracy"] >= accuracy]
    return min(good) if good else None


def envelope(curves: Sequence[Sequence[Point]]) -> tuple[list[float], list[float]]:
    """The best accuracy for every cost over several networks: (multiply-adds, accuracy)."""
    macs: list[float] = []
    shares: list[float] = []
    for point in sorted((p for curve in curves for p in curve), key=lambda p: p["mean_macs"]):
        if not shares or point["accuracy"] > shares[-1]:
            macs.append(point["mean_macs"])
            shares.append(point["accuracy"])
    return macs, shares


COMPARED = (
    "backbone, %",
    "backbone, million multiply-adds",
    "glancefocus at its best, %",
    "million multiply-adds at the backbone's accuracy",
    "times fewer",
)
COMPARED_NOTE = "--: glancefocus does not reach the backbone's accuracy."


def compared_row(name: str, curves: Sequence[Sequence[Point]], dots: Dots) -> Row:
    """A network against its backbone, see COMPARED; one curve for each seed."""
    macs, share = whole_image(dots)
    values = []
    for curve in curves:
        needed = cheapest_at(curve, share)
        fewer = None if needed is None else macs / needed
        best = max(point["accuracy"] for point in curve)
        values.append([100 * share, macs / 1e6, 100 * best, None if needed is None else needed / 1e6, fewer])
    return Row(name, values)


# Several networks: Figure 7 (a) to (e).
def main_networks(scope: Scope) -> dict[str, tuple[str, dict[str, Any]]]:
    """{name: (preset, changes to it)}."""
    if scope.scale == "paper":
        return {name.removeprefix("gf-"): (name, {}) for name in PAPER_NETWORKS}
    sides = {32: {"glance_px": 32, "focus": ("32",)}, 48: {}, 64: {"glance_px": 64, "focus": ("64",)}}
    return {f"mini-{px}": ("gf-mini-48", changes) for px, changes in sides.items()}


def main_runs(scope: Scope) -> dict[str, Run]:
    runs: dict[str, Run] = {}
    for name, (preset, changes) in main_networks(scope).items():
        own = chain(scope, preset, name=name, network=changes)
        runs |= {name: own.trained, f"backbone of {name}": own.backbone}
    return runs


def main_result(measured: Measured) -> Result:
    rows, families = [], dict[str, dict[str, list[Point]]]()
    dots: dict[str, Dots] = {}
    for name, (preset, _) in main_networks(measured.scope).items():
        backbone = PRESETS[preset].settings.backbone
        family = family_of(backbone)[0] if measured.scope.scale == "paper" else "mini"
        own = backbone_dots(measured.first(f"backbone of {name}"), resized=measured.scope.scale == "tiny")
        label = backbone if measured.scope.scale == "paper" else ""
        dots.setdefault(family, {}).update({f"{label} {size}".strip(): dot for size, dot in own.items()})
        curves = [budget_curve(run) for run in measured[name]]
        families.setdefault(family, {})[name] = curves[0]
        rows.append(compared_row(name, curves, own))
    first = next(iter(measured.runs.values()))[0].run.settings.network
    # Published accuracies are those of ImageNet's 1000 classes.
    others = measured.scope.scale == "paper" and first.classes == ASSUMED_CLASSES[False]
    drawings = {
        family: Drawing(
            main_figure(curves, dots[family], others),
            f"{family}: each network (grey), the best of them for every budget (black), the plain backbone (diamonds, with the "
            f"side of its images), first seed.{' Crosses: what other papers published.' if others else ''}",
        )
        for family, curves in families.items()
    }
    title = "Networks against their plain backbones, means per image"
    table = Table("main", title, COMPARED, rows, unit="number", note=COMPARED_NOTE)
    return Result([table], drawings, remarks=[sentence("main")])


def main_figure(curves: Mapping[str, Sequence[Point]], dots: Dots, with_others: bool) -> Any:
    """Grey curves, their envelope, and dots of plain backbones; with the published networks of others beside them."""
    figure, axes = new_figure(4.6)
    for points in curves.values():
        axes.plot([p["mean_macs"] / 1e6 for p in points], [100 * p["accuracy"] for p in points], color="#AAAAAA")
    macs, shares = envelope(list(curves.values()))
    axes.plot(
        [m / 1e6 for m in macs], [100 * s for s in shares], "k-", linewidth=2, label="glancefocus, best for each budget"
    )
    axes.plot([], [], color="#AAAAAA", label="one network")
    for number, (name, (cost, share)) in enumerate(dots.items()):
        axes.plot(cost / 1e6, 100 * share, "D", color=RED, label="plain backbone" if number == 0 else None)
        label_dot(axes, name, (cost / 1e6, 100 * share), number)
    if with_others:
        low, high = min(macs) / 4, 4 * max(macs)
        for number, other in enumerate(each for each in networks("imagenet") if low <= each.macs <= high):
            label = "other networks, as published" if number == 0 else None
            axes.plot(other.macs / 1e6, 100 * other.accuracy, "x", color=GREY, label=label)
            axes.annotate(other.name, (other.macs / 1e6, 100 * other.accuracy), fontsize=6, color=GREY)
    cost_axis(axes, "multiply-adds per image (millions")
    legend_above(figure, axes)
    return figure


# Image sizes: Figure 11.
def resolution_networks(scope: Scope) -> dict[str, tuple[int, int]]:
    """{name: (side of the images, side of glance and patches)}."""
    pairs = (
        [(112, 32), (160, 48), (192, 56)] if scope.scale == "tiny" else [(224, 96), (224, 128), (384, 160), (384, 192)]
    )
    return {f"{side} px, patches of {patch} px": (side, patch) for side, patch in pairs}


def _sized(scope: Scope, side: int) -> dict[str, Any]:
    """Changes for images of this side: the same scenes, drawn larger."""
    view = {"height_px": side, "width_px": side}
    signs = {"radius_min_px": 10 * side / 160, "radius_max_px": 14 * side / 160}
    return {"network": {"view": view}, "data": {"signs": signs} if scope.scale == "tiny" else {}}


def resolution_runs(scope: Scope) -> dict[str, Run]:
    preset = "gf-mini-48" if scope.scale == "tiny" else "gf-resnet50-96"
    runs: dict[str, Run] = {}
    for name, (side, patch) in resolution_networks(scope).items():
        sized = _sized(scope, side)
        network = {**sized["network"], "glance_px": patch, "focus": (str(patch),)}
        own = chain(scope, preset, name=f"side-{side}-{patch}", network=network, data=sized["data"])
        runs |= {name: own.trained, f"backbone at {side} px": own.backbone}
    if scope.scale == "paper":
        runs["backbone at 480 px"] = backbone_run(scope, preset, **_sized(scope, 480))
    return runs


def resolution_result(measured: Measured) -> Result:
    sides = {
        name: whole_image(backbone_dots(measured.first(name), resized=False))
        for name in measured.runs
        if name.startswith("backbone")
    }
    rows, curves = [], {}
    for name, (side, _) in resolution_networks(measured.scope).items():
        own = [budget_curve(run) for run in measured[name]]
        curves[name] = own[0]
        rows.append(compared_row(name, own, {"": sides[f"backbone at {side} px"]}))
    title = "Networks against their plain backbones, by image size, means per image"
    table = Table("resolution", title, COMPARED, rows, unit="number", note=COMPARED_NOTE)
    drawing = Drawing(
        curves_figure(curves, sides),
        "Accuracy over multiply-adds for each image size, first seed; diamonds: the plain backbone.",
    )
    return Result([table], {"resolution": drawing}, remarks=[sentence("resolution")])


# Anytime prediction: Figure 7 (f).
def anytime_runs(scope: Scope) -> dict[str, Run]:
    own = chain(scope, None if scope.scale == "tiny" else "gf-densenet121-96")
    return {"network": own.trained, "backbone": own.backbone}


def anytime_result(measured: Measured) -> Result:
    runs, dots = measured["network"], backbone_dots(measured.first("backbone"), resized=measured.scope.scale == "tiny")
    macs = runs[0].bundle.costs.macs_after_look
    rows = [Row("glancefocus", [run.after_looks() for run in runs])]
    columns = [f"{name} ({cost / 1e6:,.1f}M)" for name, cost in zip(look_columns(len(macs)), macs, strict=True)]
    title, note = "Top-1 accuracy if every image takes t looks, %", "In parentheses: multiply-adds per image."
    table = Table("anytime", title, columns, rows, measured.images, note=note)
    figure = anytime_figure({"glancefocus": list(zip(macs, means_of(rows[0]), strict=True))}, dots)
    drawing = Drawing(
        figure, "Accuracy if the network is stopped after each look, and of the plain backbone on resized images."
    )
    sizes = [f"{name} ({cost / 1e6:,.1f}M)" for name, (cost, _) in dots.items()]
    plain = [Row("plain backbone", [[share for _, share in dots.values()]])]
    title = "Top-1 accuracy of the plain backbone on resized images, %"
    resized = Table("backbone", title, sizes, plain, measured.images, note=note)
    remark = f"{sentence('anytime')} The study msdnet compares with MSDNet."
    return Result([table, resized], {"anytime": drawing}, remarks=[remark])


def means_of(row: Row) -> list[float]:
    return [mean for column in range(len(row.values[0])) if (mean := row.mean(column)) is not None]


def anytime_figure(lines: Mapping[str, Sequence[tuple[float, float]]], dots: Dots | None = None) -> Any:
    """Accuracy over multiply-adds after each look or exit, one line for each network."""
    figure, axes = new_figure(4.6)
    for number, (name, points) in enumerate(lines.items()):
        axes.plot([m / 1e6 for m, _ in points], [100 * s for _, s in points], label=name, **LINES[number % len(LINES)])
    for number, (name, (macs, share)) in enumerate((dots or {}).items()):
        axes.plot(macs / 1e6, 100 * share, "D", color=RED, label="plain backbone" if number == 0 else None)
        label_dot(axes, name, (macs / 1e6, 100 * share), number)
    cost_axis(axes, "multiply-adds per image (millions")
    legend_above(figure, axes)
    return figure


# Number of looks T and patch size: Figure 16.
def length_networks(scope: Scope) -> dict[str, tuple[int, int]]:
    """{name: (number of looks, side of glance and patches)}."""
    lengths, sides = ((3, 4), (32, 48, 64)) if scope.scale == "tiny" else ((3, 5), (96, 128))
    return {f"T={looks}, {px} px": (looks, px) for px in sides for looks in lengths}


def length_runs(scope: Scope) -> dict[str, Run]:
    runs: dict[str, Run] = {}
    preset = "gf-mini-48" if scope.scale == "tiny" else "gf-resnet50-96"
    usual = PRESETS[preset].settings
    for name, (looks, px) in length_networks(scope).items():
        changes: dict[str, Any] = {} if px == usual.glance_px else {"glance_px": px, "focus": (str(px),)}
        changes |= {} if looks == usual.looks else {"looks": looks}
        runs[name] = chain(scope, preset, name=f"looks-{looks}-patch-{px}", network=changes).trained
    return runs


def length_result(measured: Measured) -> Result:
    rows, lines = [], {}
    most = max(looks for looks, _ in length_networks(measured.scope).values())
    for name in length_networks(measured.scope):
        runs = measured[name]
        rows.append(Row(name, [run.after_looks() for run in runs]))
        lines[name] = list(zip(runs[0].bundle.costs.macs_after_look, means_of(rows[-1]), strict=True))
    costs = [Row(name, [[macs / 1e6 for macs, _ in line]]) for name, line in lines.items()]
    tables = [
        Table(
            "length-and-size",
            "Top-1 accuracy if every image takes t looks, %",
            look_columns(most),
            rows,
            measured.images,
        ),
        Table("cost", "Multiply-adds of t looks, millions", look_columns(most), costs, unit="number"),
    ]
    drawing = Drawing(
        anytime_figure(lines), "Accuracy over multiply-adds for each number of looks T and each patch size."
    )
    return Result(tables, {"length-and-size": drawing}, remarks=[sentence("length-and-size")])


# The expected number of looks: Figure 15.
SHOWN_POINTS, LETTERS = 4, "ABCD"


def expected_runs(scope: Scope) -> dict[str, Run]:
    return {"network": chain(scope, None if scope.scale == "tiny" else "gf-densenet201-96").trained}


def expected_result(measured: Measured) -> Result:
    curves = [budget_curve(run) for run in measured["network"]]
    first = sorted(curves[0], key=expected_looks)
    shown = [first[round(n * (len(first) - 1) / (SHOWN_POINTS - 1))] for n in range(SHOWN_POINTS)]
    places = [curves[0].index(point) for point in shown]
    looks = len(shown[0]["exits_per_look"])
    values = [[curve[place] for place in places] for curve in curves]  # about the same budgets for all seeds
    rows = [
        Row("million multiply-adds per image", [[point["mean_macs"] / 1e6 for point in own] for own in values]),
        Row("expected looks E(t)", [[expected_looks(point) for point in own] for own in values]),
        Row("accuracy, %", [[100 * point["accuracy"] for point in own] for own in values]),
        *(
            Row(f"stop after look {look + 1}, %", [[_stopping(point, look) for point in own] for own in values])
            for look in range(looks)
        ),
    ]
    title = "Expected looks and accuracy with four budgets"
    table = Table("looks", title, list(LETTERS[:SHOWN_POINTS]), rows, unit="number")
    drawing = Drawing(
        expected_figure(first, shown),
        "Accuracy over the expected number of looks, first seed. Below: images by the number of their looks at the budgets of the "
        "table.",
    )
    spread = statistics.mean(max(p["accuracy"] for p in curve) - curve[0]["accuracy"] for curve in curves)
    remark = (
        f"From the cheapest point to the best, accuracy rises by {100 * spread:.1f} points; only thresholds change."
    )
    return Result([table], {"looks": drawing}, remarks=[remark, sentence("looks")])


def _stopping(point: Point, look: int) -> float:
    exits = point["exits_per_look"]
    return 100 * exits[look] / sum(exits)


def expected_figure(points: Sequence[Point], shown: Sequence[Point]) -> Any:
    """The paper's figure: accuracy over E(t), and histograms of the number of looks at some of its points."""
    figure, panels = new_figure(5.2, nrows=2, ncols=1, height_ratios=(3, 2))
    axes, below = panels
    axes.plot(
        [expected_looks(p) for p in points], [100 * p["accuracy"] for p in points], "-o", color=BLUE, markersize=3
    )
    below.set_axis_off()
    looks = len(points[0]["exits_per_look"])
    for number, point in enumerate(shown):
        x, y = expected_looks(point), 100 * point["accuracy"]
        axes.plot(x, y, "*", color="black", markersize=12)
        axes.annotate(LETTERS[number], (x, y), xytext=(4, -14), textcoords="offset points")
        inset = below.inset_axes((number / len(shown) + 0.03, 0.18, 1 / len(shown) - 0.07, 0.65))
        inset.bar(range(1, looks + 1), point["exits_per_look"], color=SKY, edgecolor=BLUE)
        inset.set_title(f"{LETTERS[number]}: E(t) = {x:.2f}", fontsize=8)
        inset.set_xticks(range(1, looks + 1))
        inset.tick_params(labelsize=7)
        inset.set_xlabel("looks", fontsize=8)
        if number == 0:
            inset.set_ylabel("images", fontsize=8)
    axes.set_xlabel("expected number of looks E(t)")
    axes.set_ylabel("accuracy (%)")
    return figure
