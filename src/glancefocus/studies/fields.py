"""The studies of other fields: traffic signs in large road scenes, and clips."""

from typing import Any

from glancefocus.data.sources import classes_of
from glancefocus.data.worlds import WORLDS
from glancefocus.exits.curve import Point
from glancefocus.network.presets import PRESETS
from glancefocus.studies.curves import COMPARED, Dots, backbone_dots, cheapest_at, compared_row, whole_image
from glancefocus.studies.networks import TINY_CLIPS, TINY_IMAGES, chain
from glancefocus.studies.pictures import galleries_of
from glancefocus.studies.published import networks, paper_row, sentence, source_of
from glancefocus.studies.runs import Measured
from glancefocus.studies.study import Drawing, Result, Row, Run, Scope, Table, Value
from glancefocus.studies.tables import at_random, budget_curve, curves_figure

SIGNS_PRESET = "gf-resnet18-192-roads"
# As in the paper's scenes of 960x1280 px, a patch has a fifth of the height.
TINY_SCENE: dict[str, Any] = {"view": {"height_px": 240, "width_px": 320}}
JESTER_CLASSES = 27


# Traffic signs: Table 4 and Figure 12.
def traffic_runs(scope: Scope) -> dict[str, Run]:
    tiny = scope.scale == "tiny"
    preset = TINY_IMAGES if tiny else SIGNS_PRESET
    own = chain(scope, preset, name="traffic-signs", network=TINY_SCENE if tiny else {})
    return {"network": own.trained, "backbone": own.backbone}


def traffic_result(measured: Measured) -> Result:
    macs, share = whole_image(backbone_dots(measured.first("backbone"), resized=False))
    values: dict[str, list[list[Value]]] = {"backbone": [], "random": [], "same_accuracy": [], "best": []}
    for run in measured["network"]:
        curve = budget_curve(run)
        best = max(curve, key=lambda point: (point["accuracy"], -point["mean_macs"]))
        same = cheapest_at(curve, share)
        reached: Value = None if same is None else 100 * share
        values["backbone"].append([macs / 1e9, 100 * share])
        values["random"].append([best["mean_macs"] / 1e9, 100 * at_random(best, run.after_looks("random"))])
        values["same_accuracy"].append([None if same is None else same / 1e9, reached])
        values["best"].append([best["mean_macs"] / 1e9, 100 * best["accuracy"]])
    names = {
        "backbone": "plain backbone",
        "random": "glancefocus, random patches",
        "same_accuracy": "glancefocus, as accurate as the backbone",
        "best": "glancefocus, best",
    }
    rows = [Row(names[key], own, paper_row("traffic-signs", key, share=False)[0]) for key, own in values.items()]
    title = f"Traffic signs ({source_of('traffic-signs')})"
    table = Table("traffic-signs", title, ["multiply-adds, G", "accuracy, %"], rows, unit="number")
    curves = {"glancefocus": budget_curve(measured.first("network"))}
    drawing = Drawing(
        curves_figure(curves, {"plain backbone": (macs, share)}), "Accuracy over multiply-adds, first seed."
    )
    return Result([table], {"traffic-signs": drawing}, galleries_of(measured.first("network")))


# Clips: Figures 13 and 14.
def video_presets(scope: Scope) -> dict[str, str]:
    """{name: preset}; on Jester the patch sizes differ, elsewhere the number of frames."""
    if scope.scale == "tiny":
        return {"8 frames": TINY_CLIPS}
    jester = scope.data is not None and scope.data not in WORLDS and len(classes_of(scope.data, 8)) == JESTER_CLASSES
    if jester:
        return {f"{px} px": f"gf-tsm-resnet50-{px}-jester" for px in (80, 96, 128)}
    return {f"{frames} frames": f"gf-tsm-resnet50-96-{frames}f" for frames in (8, 12, 16)}


def video_runs(scope: Scope) -> dict[str, Run]:
    runs: dict[str, Run] = {}
    for name, preset in video_presets(scope).items():
        own = chain(scope, preset, name=preset.removeprefix("gf-"))
        runs |= {name: own.trained, f"backbone of {name}": own.backbone}
    return runs


def video_result(measured: Measured) -> Result:
    rows, curves, dots = [], dict[str, list[Point]](), Dots()
    for name, preset in video_presets(measured.scope).items():
        backbone = whole_image(backbone_dots(measured.first(f"backbone of {name}"), resized=False))
        frames = PRESETS[preset].settings.frames
        dots[f"plain TSM, {frames} frames"] = backbone
        own = [budget_curve(run) for run in measured[name]]
        curves[f"glancefocus, {name}"] = own[0]
        rows.append(compared_row(name, own, {"": backbone}))
    if measured.scope.scale == "paper":
        dots |= {each.name: (each.macs, each.accuracy) for each in networks("something-something-v1")}
    table = Table("video", "Networks against their plain backbones, per clip", COMPARED, rows, unit="number")
    drawing = Drawing(curves_figure(curves, dots), "Accuracy over multiply-adds per clip, first seed.")
    first = measured.first(next(iter(video_presets(measured.scope))))
    return Result([table], {"video": drawing}, galleries_of(first), remarks=[sentence("video")])
