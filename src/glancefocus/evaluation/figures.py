"""Figures as SVG text or PNG bytes: labelled, with units, in colours that colour-blind people tell apart."""

import io
from collections import Counter
from collections.abc import Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullFormatter

# Okabe and Ito's palette.
BLUE, ORANGE, GREEN, RED, GREY, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#666666", "#56B4E9"
PURPLE = "#CC79A7"
PNG_DOTS_PER_INCH = 150
_TRAINING_INCHES = (5.4, 3.8)
_LEAST_NAMED_SHARE = 0.12  # of all epochs: the name of a shorter stage does not fit above it
LOG_FROM_RATIO = 4.0
# (up to this ratio of dearest to cheapest, ticks in each decade): as many as there is room for.
LOG_TICKS = ((10, (1, 1.5, 2, 3, 4, 6, 8)), (30, (1, 2, 3, 5)), (500, (1, 2, 5)), (float("inf"), (1,)))


def new_figure(width: float = 6.4, height: float = 4.0) -> tuple[Figure, Any]:
    """A figure of so many inches with one pair of axes, and those axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    return figure, axes


def as_svg(figure: Figure) -> str:
    """The figure as an <svg> element, the same bytes for the same figure."""
    stream = io.StringIO()
    with rc_context({"svg.hashsalt": "glancefocus"}):
        # No metadata: it differs from day to day, and holds addresses in a page that needs none.
        figure.savefig(stream, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = stream.getvalue()
    return text[text.index("<svg") :]


def as_png(figure: Figure) -> bytes:
    """The figure as the content of a PNG file."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=PNG_DOTS_PER_INCH)
    return stream.getvalue()


def look_names(looks: int) -> list[str]:
    """What the looks are called under an axis or over a column: the first one is the glance."""
    return ["glance", *(f"look {look}" for look in range(2, looks + 1))]


def cost_axis(axes: Any, words: str) -> None:
    """Name the axis across, and make it logarithmic where what is drawn is far apart; words lack their last bracket."""
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


def curve_figure(
    curve: Sequence[dict[str, Any]], backbone: tuple[float, float] | None, per_look: Sequence[tuple[float, float]]
) -> Figure:
    """Accuracy over multiply-adds: early exit, a fixed number of looks, and the plain backbone.

    backbone, per_look  (multiply-adds, accuracy)
    """
    figure, axes = new_figure()
    points = sorted((p["mean_macs"] / 1e6, 100 * p["accuracy"]) for p in curve)
    axes.plot(
        [m for m, _ in points], [a for _, a in points], "-o", color=BLUE, markersize=3.5, label="stops above thresholds"
    )
    axes.plot([m / 1e6 for m, _ in per_look], [100 * a for _, a in per_look], "--s", color=ORANGE, markersize=5,
              label="fixed number of looks")  # fmt: skip
    if backbone is not None:
        axes.plot(backbone[0] / 1e6, 100 * backbone[1], "D", color=RED, markersize=8, label="backbone, whole image")
        axes.axhline(100 * backbone[1], color=RED, linewidth=0.8, alpha=0.5)
    cost_axis(axes, "multiply-adds per image (millions")
    axes.legend(frameon=False, loc="lower right")
    return figure


def exits_figure(
    exits_per_look: Sequence[int], accuracy_of_exits: Sequence[float | None], width: float = 4.8, height: float = 4.0
) -> Figure:
    """How many images left after each look, and how many of them were right."""
    figure, axes = new_figure(width, height)
    total = sum(exits_per_look)
    shares = [100 * count / total for count in exits_per_look]
    bars = axes.bar(range(1, len(shares) + 1), shares, color=SKY, edgecolor=BLUE)
    for bar, accuracy in zip(bars, accuracy_of_exits, strict=True):
        text = "" if accuracy is None else f"{100 * accuracy:.0f} % right"
        axes.annotate(text, (bar.get_x() + bar.get_width() / 2, bar.get_height()), ha="center", va="bottom", fontsize=8)
    axes.set_xticks(range(1, len(shares) + 1), look_names(len(shares)))
    axes.set_ylabel("images that stop here (%)")
    axes.margins(y=0.12)
    return figure


def aims_figure(rows: dict[str, Sequence[float]]) -> Figure:
    """Accuracy after each look for several ways of aiming."""
    figure, axes = new_figure(4.8)
    styles = (("-o", BLUE), ("--s", ORANGE), (":^", GREEN))
    for (name, values), (style, colour) in zip(rows.items(), styles, strict=False):
        axes.plot(range(1, len(values) + 1), [100 * v for v in values], style, color=colour, label=name)
    axes.set_xticks(range(1, max(map(len, rows.values())) + 1))
    axes.set_xlabel("looks (the first is the glance)")
    axes.set_ylabel("accuracy (%)")
    axes.legend(frameon=False)
    return figure


def training_figure(metrics: Sequence[dict[str, Any]]) -> Figure:
    """Validation accuracy after every epoch of every stage; the stages are told apart by shading and named."""
    figure, axes = new_figure(*_TRAINING_INCHES)
    looks = max((len(row["val_accuracy"]) for row in metrics), default=1)
    colours = (GREY, ORANGE, GREEN, BLUE, SKY, RED)
    for look in range(looks):
        xs = [x for x, row in enumerate(metrics, start=1) if len(row["val_accuracy"]) > look]
        ys = [100 * row["val_accuracy"][look] for row in metrics if len(row["val_accuracy"]) > look]
        name = "first answer" if look == 0 else f"after look {look + 1}"
        axes.plot(xs, ys, "o", markersize=3.5, color=colours[look % len(colours)], label=name)
    _name_stages(axes, metrics)
    axes.set_xlabel("epoch")
    axes.set_ylabel("validation accuracy (%)")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    return figure


def loss_figure(metrics: Sequence[dict[str, Any]]) -> Figure:
    """The mean loss of every epoch of every stage."""
    figure, axes = new_figure(*_TRAINING_INCHES)
    points = [(x, row["loss"], row["stage_number"]) for x, row in enumerate(metrics, start=1) if "loss" in row]
    for number in sorted({stage for _, _, stage in points}):
        own = [(x, loss) for x, loss, stage in points if stage == number]
        axes.plot(*zip(*own, strict=True), "o-", markersize=3.5, color=BLUE)
    _name_stages(axes, metrics)
    axes.set_xlabel("epoch")
    axes.set_ylabel("loss")
    return figure


def _name_stages(axes: Any, metrics: Sequence[dict[str, Any]]) -> None:
    """Shade every second stage and write its name above it."""
    lengths = Counter(row["stage_number"] for row in metrics)
    slanted = any(
        length < _LEAST_NAMED_SHARE * len(metrics) for length in lengths.values()
    )  # side by side they would overlap
    turned: dict[str, Any] = {"rotation": 35, "ha": "left"} if slanted else {"ha": "center"}
    start = 1
    for x, row in enumerate(metrics, start=1):
        last = x == len(metrics) or metrics[x]["stage_number"] != row["stage_number"]
        if last:
            axes.axvspan(start - 0.5, x + 0.5, color=GREY, alpha=0.10 if row["stage_number"] % 2 else 0.0, linewidth=0)
            axes.text((start + x) / 2, 1.01, row["stage"], transform=axes.get_xaxis_transform(), fontsize=9, **turned)
            start = x + 1
