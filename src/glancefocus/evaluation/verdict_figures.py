"""The figure of the verdict: glancefocus and all rivals, accuracy with its interval over multiply-adds."""

from typing import Any

from matplotlib.figure import Figure

from glancefocus.evaluation.figures import BLUE, GREEN, ORANGE, PURPLE, RED, cost_axis, new_figure

# Never colour alone: the markers differ as well.
STYLES: dict[str, dict[str, Any]] = {
    "backbone": {"color": RED, "marker": "D", "label": "backbone, whole image"},
    "resized": {"color": ORANGE, "marker": "s", "label": "backbone, resized images"},
    "tuned": {"color": PURPLE, "marker": "v", "label": "the same, tuned at that size"},
    "cascade": {"color": GREEN, "marker": "^", "label": "cascade of sizes"},
    "glancefocus": {"color": BLUE, "marker": "o", "label": "glancefocus"},
}


def rivals_figure(verdict: dict[str, Any], width: float = 6.4, height: float = 4.6) -> Figure:
    """Every point of a verdict (Verdict.to_plain()) with the 95 % interval of its accuracy; sizes are written beside the points."""
    figure, axes = new_figure(width, height)
    points = verdict["points"]
    alone = sorted((p for p in points if p["kind"] in ("backbone", "resized")), key=lambda p: float(p["mean_macs"]))
    _line(axes, alone, "resized", "-")
    _line(axes, verdict["cascade_curve"], "cascade", "--")
    for kind, style in STYLES.items():
        own = [p for p in points if p["kind"] == kind]
        if not own:
            continue
        accuracy = [100 * p["accuracy"] for p in own]
        down = [100 * max(0.0, p["accuracy"] - p["accuracy_low"]) for p in own]
        up = [100 * max(0.0, p["accuracy_high"] - p["accuracy"]) for p in own]
        beside = 1.02 if kind == "tuned" else 1.0  # not onto the point of the same size as it is
        axes.errorbar([beside * p["mean_macs"] / 1e6 for p in own], accuracy, yerr=[down, up], linestyle="none", capsize=3,
                      elinewidth=1.2,
                      markersize=9 if kind == "glancefocus" else 6, zorder=4 if kind == "glancefocus" else 3, **style)  # fmt: skip
        for point in own:
            if len(point["px"]) == 1 and kind != "tuned":
                axes.annotate(_size(point), (point["mean_macs"] / 1e6, 100 * point["accuracy"]), xytext=(5, -11),
                              textcoords="offset points", fontsize=8, color=style["color"])  # fmt: skip
    axes.margins(x=0.09)
    cost_axis(axes, "multiply-adds per image (millions")
    axes.set_ylabel(f"accuracy (%), 95 % intervals, {verdict['images']:,} images")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False, fontsize=9)
    return figure


def _line(axes: Any, points: list[dict[str, Any]], kind: str, dashes: str) -> None:
    if len(points) > 1:
        axes.plot([p["mean_macs"] / 1e6 for p in points], [100 * p["accuracy"] for p in points], dashes, linewidth=1,
                  color=STYLES[kind]["color"], alpha=0.6)  # fmt: skip


def _size(point: dict[str, Any]) -> str:
    (height, width), *_ = point["px"]
    return f"{height} px" if height == width else f"{height}x{width} px"
