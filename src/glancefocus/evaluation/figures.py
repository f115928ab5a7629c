"""Figures of the report as SVG text or PNG bytes: labelled, with units, in colours for colour-blind readers."""

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any, Literal, NotRequired, TypedDict

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullFormatter

from glancefocus.evaluation.assess import Answers, Bin, Findings, confusion
from glancefocus.evaluation.verdict import Kind, RivalPoint, Verdict
from glancefocus.exits.curve import Point, Unit
from glancefocus.exits.record import short_noun, view_label
from glancefocus.values import figure_text

# Okabe and Ito's palette.
BLUE, ORANGE, GREEN, RED, GREY, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#666666", "#56B4E9"
PURPLE = "#CC79A7"
PNG_DOTS_PER_INCH = 150
WIDTH, HEIGHT, BARS_HEIGHT, TRAINING_HEIGHT = 5.4, 4.2, 3.2, 3.8  # inches; the page shows two figures side by side
_LEAST_NAMED_SHARE = 0.12  # of all epochs: the name of a shorter stage does not fit above it
LOG_FROM_RATIO = 4.0
# (up to this ratio of highest to lowest cost, ticks in each decade): as many as there is room for.
LOG_TICKS = ((10, (1, 1.5, 2, 3, 4, 6, 8)), (30, (1, 2, 3, 5)), (500, (1, 2, 5)), (float("inf"), (1,)))
# Lines differ in marker and dashes as well as in colour. The first two, and a black star, are used in the trade-off figure.
LINES: tuple[dict[str, Any], ...] = (
    {"color": BLUE, "marker": "o", "linestyle": "-"},
    {"color": ORANGE, "marker": "s", "linestyle": "--"},
    {"color": GREEN, "marker": "^", "linestyle": "-."},
    {"color": PURPLE, "marker": "v", "linestyle": (0, (4, 1, 1, 1, 1, 1))},
    {"color": RED, "marker": "D", "linestyle": (0, (1, 1))},
    {"color": GREY, "marker": "P", "linestyle": (0, (6, 2))},
    {"color": SKY, "marker": "X", "linestyle": (0, (3, 1, 1, 1))},
)
RIVALS: dict[Kind, dict[str, Any]] = {
    "backbone": {"color": RED, "marker": "D", "label": "backbone, whole image"},
    "resized": {"color": ORANGE, "marker": "s", "label": "backbone, resized images"},
    "tuned": {"color": PURPLE, "marker": "v", "label": "backbone trained at that size"},
    "cascade": {"color": GREEN, "marker": "*", "label": "best cascade, the same cost"},
    "glancefocus": {"color": BLUE, "marker": "*", "label": "glancefocus, the bundle's own cost"},
}
HATCHES = ("", "///", "...", "xxx", "|||", "---")
AREAS = (SKY, ORANGE, GREEN, PURPLE, "#F0E442", GREY)
MOST_NUMBERED = 15
"""A confusion matrix of more classes has no numbers in its cells."""


def new_figure(height: float = HEIGHT, **panels: Any) -> tuple[Figure, Any]:
    """A figure of this height in inches and its axes; panels: arguments of Figure.subplots for several axes."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots(**panels)
    for each in np.atleast_1d(axes):
        each.spines[["top", "right"]].set_visible(False)
        each.grid(alpha=0.25)
        each.set_axisbelow(True)
    return figure, axes


def as_svg(figure: Figure) -> str:
    """The figure as an <svg> element, the same bytes for the same figure."""
    stream = io.StringIO()
    with rc_context({"svg.hashsalt": "glancefocus"}):
        # No metadata: it contains the date, which differs between runs, and web addresses.
        figure.savefig(stream, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = stream.getvalue()
    return text[text.index("<svg") :]


def as_png(figure: Figure) -> bytes:
    """The figure as the content of a PNG file."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=PNG_DOTS_PER_INCH)
    return stream.getvalue()


def look_names(looks: int) -> list[str]:
    """The names of the looks, for axes and tables: glance, look 2, look 3, ..."""
    return ["glance", *(f"look {look}" for look in range(2, looks + 1))]


def cost_axis(axes: Any, words: str) -> None:
    """Name both axes, and make the cost axis logarithmic if the costs are far apart; words end before the closing bracket."""
    axes.set_ylabel("accuracy (%)")
    low, high = axes.dataLim.intervalx
    if not (low > 0 and high > LOG_FROM_RATIO * low):
        axes.set_xlabel(f"{words})")
        axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 2.5, 5, 10]))
        return
    axes.set_xscale("log")
    axes.set_xlabel(f"{words}, log scale)")
    ticks = next(ticks for limit, ticks in LOG_TICKS if high < limit * low)
    axes.xaxis.set_major_locator(LogLocator(subs=ticks, numticks=20))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(FixedLocator([]))
    axes.xaxis.set_minor_formatter(NullFormatter())


def exits_figure(exits_per_look: Sequence[int], accuracy_of_exits: Sequence[float | None]) -> Figure:
    """The share of images that stop after each look, and the accuracy of their answers."""
    figure, axes = new_figure(BARS_HEIGHT)
    total = sum(exits_per_look)
    shares = [100 * count / total for count in exits_per_look]
    bars = axes.bar(range(1, len(shares) + 1), shares, color=SKY, edgecolor=BLUE)
    for bar, accuracy in zip(bars, accuracy_of_exits, strict=True):
        text = "" if accuracy is None else f"{100 * accuracy:.0f} % correct"
        axes.annotate(text, (bar.get_x() + bar.get_width() / 2, bar.get_height()), ha="center", va="bottom", fontsize=8)
    axes.set_xticks(range(1, len(shares) + 1), look_names(len(shares)))
    axes.set_ylabel("images that stop here (%)")
    axes.margins(y=0.12)
    return figure


def aims_figure(rows: Mapping[str, Sequence[float]]) -> Figure:
    """Accuracy after each look, one line for each kind of aims."""
    figure, axes = new_figure()
    for style, (name, values) in zip(cycle(LINES), rows.items(), strict=False):
        axes.plot(range(1, len(values) + 1), [100 * value for value in values], label=name, **style)
    axes.set_xticks(range(1, max(map(len, rows.values())) + 1))
    axes.set_xlabel("looks (the first is the glance)")
    axes.set_ylabel("accuracy (%)")
    return _with_legend(figure, axes, columns=len(rows))


class Epoch(TypedDict):
    """One epoch of training, as it is drawn: the stage, validation accuracy after each look, and the mean loss."""

    stage: str
    stage_number: int
    val_accuracy: list[float]
    loss: NotRequired[float]


def training_figure(epochs: Sequence[Epoch]) -> Figure:
    """Validation accuracy after every epoch of every stage; stages are named and shaded."""
    figure, axes = new_figure(TRAINING_HEIGHT)
    looks = max((len(row["val_accuracy"]) for row in epochs), default=1)
    colours = (GREY, ORANGE, GREEN, BLUE, SKY, RED)
    for look in range(looks):
        xs = [x for x, row in enumerate(epochs, start=1) if len(row["val_accuracy"]) > look]
        ys = [100 * row["val_accuracy"][look] for row in epochs if len(row["val_accuracy"]) > look]
        name = "first answer" if look == 0 else f"after look {look + 1}"
        axes.plot(xs, ys, "o", markersize=3.5, color=colours[look % len(colours)], label=name)
    _name_stages(axes, epochs)
    axes.set_xlabel("epoch")
    axes.set_ylabel("validation accuracy (%)")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    return figure


def loss_figure(epochs: Sequence[Epoch]) -> Figure:
    """The mean loss of every epoch of every stage."""
    figure, axes = new_figure(TRAINING_HEIGHT)
    points = [(x, row["loss"], row["stage_number"]) for x, row in enumerate(epochs, start=1) if "loss" in row]
    for number in sorted({stage for _, _, stage in points}):
        own = [(x, loss) for x, loss, stage in points if stage == number]
        axes.plot(*zip(*own, strict=True), "o-", markersize=3.5, color=BLUE)
    _name_stages(axes, epochs)
    axes.set_xlabel("epoch")
    axes.set_ylabel("loss")
    return figure


def _name_stages(axes: Any, epochs: Sequence[Epoch]) -> None:
    """Shade every second stage and write its name above it."""
    lengths = Counter(row["stage_number"] for row in epochs)
    slanted = any(
        length < _LEAST_NAMED_SHARE * len(epochs) for length in lengths.values()
    )  # otherwise names would overlap
    turned: dict[str, Any] = {"rotation": 35, "ha": "left"} if slanted else {"ha": "center"}
    start = 1
    for x, row in enumerate(epochs, start=1):
        last = x == len(epochs) or epochs[x]["stage_number"] != row["stage_number"]
        if last:
            axes.axvspan(start - 0.5, x + 0.5, color=GREY, alpha=0.10 if row["stage_number"] % 2 else 0.0, linewidth=0)
            axes.text((start + x) / 2, 1.01, row["stage"], transform=axes.get_xaxis_transform(), fontsize=9, **turned)
            start = x + 1


def rivals_figure(verdict: Verdict, unit: Unit = "macs") -> Figure:
    """Accuracy over the mean cost: glancefocus and its best rivals at several budgets; single backbones as points with sizes."""
    figure, axes = new_figure(4.6)
    scale = 1e6 if unit == "macs" else 1.0
    rows = [row for row in verdict.budgets if row.unit == unit]
    for label, points, style in (
        ("best rivals within a budget", [(r.rival_cost, r.rival_accuracy) for r in rows], LINES[2]),
        ("glancefocus within a budget", [(r.cost, r.accuracy) for r in rows], LINES[0]),
    ):
        costs, shares = [cost / scale for cost, _ in sorted(points)], [100 * share for _, share in sorted(points)]
        axes.plot(costs, shares, label=label if points else None, markersize=4, linewidth=1.5, **style)
    named: set[Any] = set()  # one label is enough for several points of one size, which lie above one another
    for kind, style in RIVALS.items():
        own = [(p, cost / scale) for p in verdict.points if p.kind == kind and (cost := _cost_of(p, unit)) is not None]
        if not own or (kind, unit) == ("cascade", "ms"):  # it was chosen by multiply-adds
            continue
        accuracy = [100 * p.accuracy for p, _ in own]
        star = kind in ("cascade", "glancefocus")  # the intervals of all others would cover one another
        down = [100 * max(0.0, p.accuracy - p.accuracy_low) for p, _ in own]
        up = [100 * max(0.0, p.accuracy_high - p.accuracy) for p, _ in own]
        axes.errorbar([cost for _, cost in own], accuracy, yerr=[down, up] if star else None, linestyle="none", capsize=3,
                      elinewidth=1.2, markersize=11 if star else 6, zorder=4 if star else 3, **style)  # fmt: skip
        for point, cost in own:
            if not star and point.px not in named:
                axes.annotate(_size(point), (cost, 100 * point.accuracy), xytext=(5, -11), textcoords="offset points",
                              fontsize=8, color=style["color"])  # fmt: skip
                named.add(point.px)
    axes.margins(x=0.09, y=0.08)
    cost_axis(axes, "multiply-adds per image (millions" if unit == "macs" else "time per image (ms")
    axes.set_ylabel(f"accuracy (%), {verdict.images:,} images")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False, fontsize=9)
    return figure


def _cost_of(point: RivalPoint, unit: Unit) -> float | None:
    return point.mean_macs if unit == "macs" else point.mean_ms


def _size(point: RivalPoint) -> str:
    height, width = point.px[0]
    return f"{height} px" if height == width else f"{height}x{width} px"


def draw_findings(findings: Findings) -> dict[str, Figure]:
    """Every figure for which these findings have numbers, by the name of its file."""
    figures = {"accuracy_per_look": accuracy_per_look_figure(findings.accuracy_after_look)}
    chosen = findings.chosen
    figures["exits"] = exits_figure(chosen["exits_per_look"], chosen["accuracy_of_exits"])
    if findings.curve:
        figures["accuracy_over_macs"] = trade_off_figure(findings, "macs")
        figures["expected_looks"] = expected_looks_figure(findings.curve, chosen)
    if findings.curve and all("mean_ms" in point for point in findings.curve):
        figures["accuracy_over_ms"] = trade_off_figure(findings, "ms")
    if findings.chooses_views and any(map(any, map(patches_per_size, findings.curve))):
        figures["patch_sizes"] = patch_sizes_figure(findings.curve, findings.views)
    if findings.scores:
        figures["exit_scores"] = exit_scores_figure(findings.scores)
    if findings.reliability:
        figures["reliability"] = reliability_figure(findings.reliability, findings.calibration_error)
    if findings.verdict is not None and findings.verdict.points:
        figures["rivals"] = rivals_figure(findings.verdict)
        if any(row.unit == "ms" for row in findings.verdict.budgets):
            figures["rivals_over_ms"] = rivals_figure(findings.verdict, "ms")
    return figures


def expected_looks(point: Point) -> float:
    """E(t): how many looks an image takes on average at this operating point (paper, section 5.5.1)."""
    exits = point["exits_per_look"]
    return float(sum(look * count for look, count in enumerate(exits, start=1)) / sum(exits))


def patches_per_size(point: Point) -> list[int]:
    """How many focus looks had each candidate view; the glance is not counted."""
    return [sum(counts) for counts in zip(*point.get("patches_per_look_and_size", ()), strict=True)]


def trade_off_figure(findings: Findings, unit: Literal["macs", "ms"]) -> Figure:
    """Accuracy over the mean cost of an image: early exit, one candidate view, a fixed number of looks."""
    figure, axes = new_figure()
    cost: Literal["mean_macs", "mean_ms"] = "mean_macs" if unit == "macs" else "mean_ms"
    scale = 1e6 if unit == "macs" else 1.0
    curve = sorted(findings.curve, key=lambda point: float(point[cost]))
    costs = [point[cost] / scale for point in curve]
    label = f"early exit, {short_noun(findings.views)} chosen" if findings.chooses_views else "early exit"
    _line(axes, costs, curve, label, color=BLUE, marker="o", linestyle="-", zorder=3)
    if all("accuracy_low" in point and "accuracy_high" in point for point in curve):
        low, high = ([100 * point[end] for point in curve] for end in ("accuracy_low", "accuracy_high"))
        axes.fill_between(costs, low, high, color=BLUE, alpha=0.15, linewidth=0, label="95 % interval")
    for style, (view, fixed) in zip(cycle(LINES[2:]), findings.fixed_size_curves.items(), strict=False):
        points = sorted((point for point in fixed if cost in point), key=lambda point: float(point[cost]))
        _line(axes, [point[cost] / scale for point in points], points, f"{view_label(view)} only", **style)
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
    """Accuracy if every image takes 1, 2, ... looks."""
    figure, axes = new_figure(BARS_HEIGHT)
    names = look_names(len(accuracy_after_look))
    bars = axes.bar(names, [100 * share for share in accuracy_after_look], color=SKY, edgecolor=BLUE)
    axes.bar_label(bars, [f"{100 * share:.1f} %" for share in accuracy_after_look], fontsize=9)
    axes.set_ylabel("accuracy (%)")
    axes.margins(y=0.12)
    return figure


def expected_looks_figure(curve: Sequence[Point], chosen: Point) -> Figure:
    """Accuracy over the expected number of looks E(t), one point for each budget."""
    figure, axes = new_figure()
    points = sorted(curve, key=expected_looks)
    axes.plot([expected_looks(point) for point in points], [100 * point["accuracy"] for point in points], "-o",
              color=BLUE, markersize=4, linewidth=1, label="one point for each budget")  # fmt: skip
    _star(axes, expected_looks(chosen), chosen)
    axes.set_xlabel("expected number of looks E(t)")
    axes.set_ylabel("accuracy (%)")
    return _with_legend(figure, axes)


def patch_sizes_figure(curve: Sequence[Point], views: Sequence[str]) -> Figure:
    """The share of each candidate view among all focus looks, over the mean cost of an image."""
    figure, axes = new_figure()
    points = sorted((p for p in curve if any(patches_per_size(p))), key=lambda p: float(p["mean_macs"]))
    counts = [patches_per_size(point) for point in points]
    shares = [[100 * row[size] / sum(row) for row in counts] for size in range(len(views))]
    costs = [point["mean_macs"] / 1e6 for point in points]
    areas = axes.stackplot(costs, shares, colors=AREAS, labels=list(map(view_label, views)), alpha=0.6)
    for area, hatch in zip(areas, cycle(HATCHES), strict=False):
        area.set(hatch=hatch, edgecolor="#333333", linewidth=0.8)
    axes.set_ylim(0, 100)
    cost_axis(axes, "multiply-adds per image (millions")
    if costs[0] < costs[-1]:
        axes.set_xlim(costs[0], costs[-1])
    axes.set_ylabel("share of the focus looks (%)")
    return _with_legend(figure, axes, columns=len(views))


def exit_scores_figure(scores: dict[str, list[Point]]) -> Figure:
    """Accuracy over the mean cost of an image, one line for each exit score."""
    figure, axes = new_figure()
    for style, (score, curve) in zip(cycle(LINES), scores.items(), strict=False):
        points = sorted(curve, key=lambda point: float(point["mean_macs"]))
        _line(axes, [point["mean_macs"] / 1e6 for point in points], points, score, **style)
    cost_axis(axes, "multiply-adds per image (millions")
    return _with_legend(figure, axes, columns=len(scores))


def reliability_figure(reliability: Sequence[Sequence[Bin]], calibration_error: Sequence[float]) -> Figure:
    """Accuracy over confidence, one line for each look; below, the number of images in each bin. Empty bins are left out."""
    figure, (axes, counts) = new_figure(1.3 * HEIGHT, nrows=2, sharex=True, height_ratios=(3, 1))
    axes.plot([0, 100], [0, 100], color="black", linewidth=0.8, label="perfect calibration")
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
    every = max(1, len(costs) // 12)  # so that the dashes can be seen between the markers
    accuracy = [100 * point["accuracy"] for point in points]
    axes.plot(costs, accuracy, label=label, markersize=4.5, linewidth=1.5, markevery=every, **style)


def _star(axes: Any, across: float, point: Point) -> None:
    axes.plot(across, 100 * point["accuracy"], "*", color="black", markersize=12, markeredgecolor="white", zorder=4,
              linestyle="none", label="this bundle's thresholds")  # fmt: skip


def _with_legend(figure: Figure, axes: Any, columns: int = 2) -> Figure:
    # Outside the axes, where it cannot cover data.
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=min(columns, 4), frameon=False,
                  fontsize=9, handlelength=3)  # fmt: skip
    return figure


def confusion_figure(answers: Answers) -> Figure:
    """The confusion matrix, shaded by the share of each class; with numbers if there are few classes."""
    counts = confusion(answers)
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    names = [figure_text(name) for name in shortened(answers.classes)]
    side = min(11.0, 2.6 + 0.42 * len(names))
    figure = Figure(figsize=(side + 0.8, side), layout="constrained")
    axes = figure.add_subplot()
    drawn = axes.imshow(100 * shares, cmap="Blues", vmin=0, vmax=100)
    size = 9 if len(names) <= 20 else 6
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=size)
    axes.set_yticks(range(len(names)), names, fontsize=size)
    axes.set_xlabel("answer")
    axes.set_ylabel("class")
    if len(names) <= MOST_NUMBERED:
        for row, column in np.argwhere(counts > 0).tolist():
            ink = "white" if shares[row, column] > 0.55 else "black"
            axes.text(column, row, str(int(counts[row, column])), ha="center", va="center", color=ink, fontsize=size)
    figure.colorbar(drawn, ax=axes, label="share of the class (%)", shrink=0.7)
    return figure


def shortened(names: Sequence[str], most: int = 18) -> list[str]:
    """Names cut to at most this many characters, to fit beside a figure."""
    return [name if len(name) <= most else f"{name[: most - 1]}…" for name in names]
