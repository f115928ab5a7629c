"""The figures of an evaluation: accuracy for a budget, looks, patch sizes, exit scores and calibration."""

from collections.abc import Sequence
from itertools import cycle
from typing import Any, Literal

from matplotlib.figure import Figure

from glancefocus.evaluation.figures import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    cost_axis,
    exits_figure,
    look_names,
    new_figure,
)
from glancefocus.evaluation.findings import Findings, Point
from glancefocus.evaluation.verdict_figures import rivals_figure

WIDTH, HEIGHT, BARS_HEIGHT = 5.4, 4.2, 3.2  # inches; two figures stand side by side in the page
# Never colour alone: marker and dashes differ as well. Blue circles, orange squares and the black star are taken in the trade-off.
LINES: tuple[dict[str, Any], ...] = (
    {"color": BLUE, "marker": "o", "linestyle": "-"},
    {"color": ORANGE, "marker": "s", "linestyle": "--"},
    {"color": GREEN, "marker": "^", "linestyle": "-."},
    {"color": PURPLE, "marker": "v", "linestyle": (0, (4, 1, 1, 1, 1, 1))},
    {"color": RED, "marker": "D", "linestyle": (0, (1, 1))},
    {"color": GREY, "marker": "P", "linestyle": (0, (6, 2))},
    {"color": SKY, "marker": "X", "linestyle": (0, (3, 1, 1, 1))},
)
HATCHES = ("", "///", "...", "xxx", "|||", "---")
AREAS = (SKY, ORANGE, GREEN, PURPLE, "#F0E442", GREY)


def draw_findings(findings: Findings) -> dict[str, Figure]:
    """Every figure that these findings have numbers for, by the name of its file."""
    figures = {"accuracy_per_look": accuracy_per_look_figure(findings.accuracy_after_look)}
    chosen = findings.chosen
    figures["exits"] = exits_figure(chosen["exits_per_look"], chosen["accuracy_of_exits"], WIDTH, BARS_HEIGHT)
    if findings.curve:
        figures["accuracy_over_macs"] = trade_off_figure(findings, "macs")
        figures["expected_looks"] = expected_looks_figure(findings.curve, chosen)
    if findings.curve and all("mean_ms" in point for point in findings.curve):
        figures["accuracy_over_ms"] = trade_off_figure(findings, "ms")
    if len(findings.patch_px) > 1 and any(map(any, map(patches_per_size, findings.curve))):
        figures["patch_sizes"] = patch_sizes_figure(findings.curve, findings.patch_px)
    if findings.scores:
        figures["exit_scores"] = exit_scores_figure(findings.scores)
    if findings.reliability:
        figures["reliability"] = reliability_figure(findings.reliability, findings.calibration_error)
    if findings.verdict is not None and findings.verdict["points"]:
        figures["rivals"] = rivals_figure(findings.verdict)
    return figures


def expected_looks(point: Point) -> float:
    """E(t): how many looks an image takes on average at this operating point (paper, section 5.5.1)."""
    exits = point["exits_per_look"]
    return float(sum(look * count for look, count in enumerate(exits, start=1)) / sum(exits))


def patches_per_size(point: Point) -> list[int]:
    """How many patches of each size all focus looks took together; the glance is none of them."""
    return [sum(counts) for counts in zip(*point.get("patches_per_look_and_size", ()), strict=True)]


def trade_off_figure(findings: Findings, unit: Literal["macs", "ms"]) -> Figure:
    """Accuracy over what an image costs on average: early exit, one patch size, a fixed number of looks."""
    figure, axes = new_figure(WIDTH, HEIGHT)
    cost, scale = f"mean_{unit}", 1e6 if unit == "macs" else 1.0
    curve = sorted(findings.curve, key=lambda point: float(point[cost]))
    costs = [point[cost] / scale for point in curve]
    label = "stops above thresholds" if len(findings.patch_px) == 1 else "stops above thresholds, sizes chosen"
    _line(axes, costs, curve, label, color=BLUE, marker="o", linestyle="-", zorder=3)
    if all("accuracy_low" in point and "accuracy_high" in point for point in curve):
        low, high = ([100 * point[end] for point in curve] for end in ("accuracy_low", "accuracy_high"))
        axes.fill_between(costs, low, high, color=BLUE, alpha=0.15, linewidth=0, label="95 % interval")
    for style, (px, fixed) in zip(cycle(LINES[2:]), findings.fixed_size_curves.items(), strict=False):
        points = sorted((point for point in fixed if cost in point), key=lambda point: float(point[cost]))
        _line(axes, [point[cost] / scale for point in points], points, f"{px} px only", **style)
    after_look = findings.macs_after_look if unit == "macs" else findings.ms_after_look
    if after_look is not None:
        shares = [100 * share for share in findings.accuracy_after_look]
        axes.plot([c / scale for c in after_look], shares, "--s", color=ORANGE, label="fixed number of looks")
    if cost in findings.chosen:
        _star(axes, findings.chosen[cost] / scale, findings.chosen)
    if unit == "macs":
        axes.axvline(findings.backbone_macs / scale, color="black", linestyle=":", label="backbone's cost, whole image")
    cost_axis(axes, "multiply-adds per image (millions" if unit == "macs" else "time per image (ms")
    return _with_legend(figure, axes)


def accuracy_per_look_figure(accuracy_after_look: Sequence[float]) -> Figure:
    """Accuracy when every image takes so many looks."""
    figure, axes = new_figure(WIDTH, BARS_HEIGHT)
    names = look_names(len(accuracy_after_look))
    bars = axes.bar(names, [100 * share for share in accuracy_after_look], color=SKY, edgecolor=BLUE)
    axes.bar_label(bars, [f"{100 * share:.1f} %" for share in accuracy_after_look], fontsize=9)
    axes.set_ylabel("accuracy (%)")
    axes.margins(y=0.12)
    return figure


def expected_looks_figure(curve: Sequence[Point], chosen: Point) -> Figure:
    """Accuracy over the expected number of looks E(t), one point for each budget."""
    figure, axes = new_figure(WIDTH, HEIGHT)
    axes.plot([expected_looks(point) for point in curve], [100 * point["accuracy"] for point in curve], "-o",
              color=BLUE, markersize=4, linewidth=1, label="one point for each budget")  # fmt: skip
    _star(axes, expected_looks(chosen), chosen)
    axes.set_xlabel("expected number of looks E(t)")
    axes.set_ylabel("accuracy (%)")
    return _with_legend(figure, axes)


def patch_sizes_figure(curve: Sequence[Point], patch_px: Sequence[int]) -> Figure:
    """The share of each patch size among all focus patches, over what an image costs on average."""
    figure, axes = new_figure(WIDTH, HEIGHT)
    points = sorted((p for p in curve if any(patches_per_size(p))), key=lambda p: float(p["mean_macs"]))
    counts = [patches_per_size(point) for point in points]
    shares = [[100 * row[size] / sum(row) for row in counts] for size in range(len(patch_px))]
    costs = [point["mean_macs"] / 1e6 for point in points]
    areas = axes.stackplot(costs, shares, colors=AREAS, labels=[f"{px} px" for px in patch_px], alpha=0.6)
    for area, hatch in zip(areas, cycle(HATCHES), strict=False):
        area.set(hatch=hatch, edgecolor="#333333", linewidth=0.8)
    axes.set_ylim(0, 100)
    cost_axis(axes, "multiply-adds per image (millions")
    if costs[0] < costs[-1]:
        axes.set_xlim(costs[0], costs[-1])
    axes.set_ylabel("share of the focus patches (%)")
    return _with_legend(figure, axes, columns=len(patch_px))


def exit_scores_figure(scores: dict[str, list[Point]]) -> Figure:
    """Accuracy over what an image costs on average, one line for each score that decides who leaves."""
    figure, axes = new_figure(WIDTH, HEIGHT)
    for style, (score, curve) in zip(cycle(LINES), scores.items(), strict=False):
        points = sorted(curve, key=lambda point: float(point["mean_macs"]))
        _line(axes, [point["mean_macs"] / 1e6 for point in points], points, score, **style)
    cost_axis(axes, "multiply-adds per image (millions")
    return _with_legend(figure, axes, columns=len(scores))


def reliability_figure(reliability: Sequence[Sequence[dict[str, float]]], calibration_error: Sequence[float]) -> Figure:
    """How often an answer is right, over its confidence, one line for each look; below, how many images each point stands for.

    Empty bins are left out.
    """
    figure = Figure(figsize=(WIDTH, 1.3 * HEIGHT), layout="constrained")
    axes, counts = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    for each in (axes, counts):
        each.spines[["top", "right"]].set_visible(False)
        each.grid(alpha=0.25)
        each.set_axisbelow(True)
    axes.plot([0, 100], [0, 100], color="black", linewidth=0.8, label="confidence = share right")
    names = look_names(len(reliability))
    for number, (name, bins) in enumerate(zip(names, reliability, strict=True)):
        filled = [each for each in bins if each["count"] > 0]
        error = f" (error {100 * calibration_error[number]:.1f} %)" if calibration_error else ""
        axes.plot([100 * each["confidence"] for each in filled], [100 * each["accuracy"] for each in filled],
                  label=name + error, markersize=5, **LINES[number % len(LINES)])  # fmt: skip
        width = 100 / max(1, len(bins)) * 0.8 / len(names)
        left = [100 * (place + 0.1) / len(bins) + number * width for place in range(len(bins))]
        colour = LINES[number % len(LINES)]["color"]
        counts.bar(left, [each["count"] for each in bins], width, align="edge", color=colour)
    axes.set(xlim=(0, 102), ylim=(0, 102), ylabel="accuracy (%)")
    counts.set(xlabel="confidence (%)", ylabel="images")
    return _with_legend(figure, axes)


def _line(axes: Any, costs: Sequence[float], points: Sequence[Point], label: str, **style: Any) -> None:
    every = max(1, len(costs) // 12)  # so that dashes can be told apart between the markers
    accuracy = [100 * point["accuracy"] for point in points]
    axes.plot(costs, accuracy, label=label, markersize=4.5, linewidth=1.5, markevery=every, **style)


def _star(axes: Any, across: float, point: Point) -> None:
    axes.plot(across, 100 * point["accuracy"], "*", color="black", markersize=12, markeredgecolor="white", zorder=4,
              linestyle="none", label="the bundle's thresholds")  # fmt: skip


def _with_legend(figure: Figure, axes: Any, columns: int = 2) -> Figure:
    # Outside the axes: inside, some other data would lie under it.
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=min(columns, 4), frameon=False,
                  fontsize=9, handlelength=3)  # fmt: skip
    return figure
