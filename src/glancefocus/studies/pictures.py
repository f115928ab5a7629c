"""The studies with pictures: the value of the second patch at each place, galleries, traffic signs in large scenes, clips."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.lists import labels_file
from glancefocus.data.sources import classes_of
from glancefocus.data.worlds import WORLDS
from glancefocus.evaluation.assess import answers_of, examples, worst_mistakes
from glancefocus.evaluation.boxes import draw_rows
from glancefocus.evaluation.every_look import aimed_candidate
from glancefocus.exits.curve import Point
from glancefocus.look import Aim, as_batch
from glancefocus.network.presets import PRESETS
from glancefocus.region import top_left
from glancefocus.settings import ViewSettings
from glancefocus.studies.budgets import at_random, budget_curve, curves_figure
from glancefocus.studies.catalogue import PublishedNetwork, networks, paper_row, sentence, source_of
from glancefocus.studies.curves import (
    COMPARED,
    COMPARED_NOTE,
    Dots,
    backbone_dots,
    compared_row,
    whole_image,
)
from glancefocus.studies.networks import TINY_CLIPS, TINY_IMAGES, Run, Scope, chain
from glancefocus.studies.results import Drawing, Result, Row, Table, Value
from glancefocus.studies.runs import Finished, Measured

GRID, COARSE_GRID = 15, 7
"""Places along each side: for the images that are drawn, and for the others."""
MOST_IMAGES, DRAWN_EACH = 200, 3
NEARLY_ALL = 0.9
EXAMPLES_EACH = 4
BOXES = "Boxes are numbered in the order of the looks; green: the answer is right after this look, orange: it is wrong."
_AT_ONCE = 64


def picture_runs(scope: Scope) -> dict[str, Run]:
    return {"network": chain(scope, None if scope.scale == "tiny" else "gf-resnet50-96").trained}


# The value of the second patch at each place: Figure 5.
@dataclass(frozen=True)
class Places:
    """The second look at every place of a grid.

    before  confidence in the label after the glance
    after   (side, side) the same after the second look, by the row and the column of its place
    """

    before: float
    after: NDArray[np.float64]

    @property
    def increment(self) -> NDArray[np.float64]:
        """The increment of the confidence in the label."""
        return self.after - self.before

    @property
    def contrastive(self) -> NDArray[np.float64]:
        """The contrastive reward, with the mean over all places as the expectation."""
        return np.asarray(self.after - self.after.mean())


def second_look(bundle: Bundle, image: Tensor, label: int, side: int) -> Places:
    """The confidence in the label after a second look at each place of a grid of side x side places."""
    steps = torch.linspace(0, 1, side)
    where = torch.cartesian_prod(steps, steps).to(bundle.device)
    candidate = aimed_candidate(bundle.settings)
    after, before = [], 0.0
    with torch.inference_mode():
        for part in torch.split(where, _AT_ONCE):
            scene = as_batch(image.to(bundle.device).expand(len(part), *image.shape), bundle.settings.view)
            look = bundle.net.glance(scene)
            before = float(look.logits[0].softmax(dim=0)[label])
            following = bundle.net.focus(look, Aim(part, candidate))
            after.append(following.logits.softmax(dim=1)[:, label].double().cpu().numpy())
    return Places(before, np.concatenate(after).reshape(side, side))


def heatmap_result(measured: Measured) -> Result:
    rewards = ("increment", "contrastive")
    values: dict[str, list[list[float]]] = {reward: [] for reward in rewards}
    for run in measured["network"]:
        found = _coarse(run)
        for reward in rewards:
            values[reward].append(_shares([getattr(places, reward) for places in found]))
    nearly = f"{100 * NEARLY_ALL:.0f} % of the places or more"
    columns = [f"positive at {nearly}", f"negative at {nearly}", "neither"]
    rows = [Row(f"{reward} reward", values[reward]) for reward in rewards]
    images = min(MOST_IMAGES, measured.images)
    title = "Images by the sign of the reward of the second look, %"
    note = (
        f"The first {images} images, with a second look at each of {COARSE_GRID}x{COARSE_GRID} places. The reward is that of the "
        "probability of the label; the contrastive one subtracts its mean over all places."
    )
    table = Table("heatmap", title, columns, rows, images, note=note)
    figure = heatmap_figure(measured.first("network"))
    caption = (
        "The reward of the second look at each place, first seed: the picture with its label and the probability of the label "
        f"after the glance, the increment, the contrastive reward. First {DRAWN_EACH} rows: images in which the place matters "
        "most. Others: images whose smallest increment is the largest."
    )
    return Result([table], {"heatmap": Drawing(figure, caption)}, remarks=[sentence("heatmap")])


def _coarse(run: Finished) -> list[Places]:
    """The second look on a coarse grid for the first images; kept in the folder of the run."""

    def looked() -> list[tuple[float, list[list[float]]]]:
        found = []
        for row in range(min(MOST_IMAGES, len(run.split))):
            places = second_look(run.bundle, *_image(run, row), COARSE_GRID)
            found.append((places.before, places.after.tolist()))
        return found

    return [Places(before, np.asarray(after)) for before, after in run.kept("places", looked)]


def _image(run: Finished, row: int) -> tuple[Tensor, int]:
    images, labels = next(iter(run.split.batches([[row]])))
    return images[0], int(labels[0])


def _shares(rewards: Sequence[NDArray[np.float64]]) -> list[float]:
    """The shares of images with a positive reward nearly everywhere, a negative one nearly everywhere, and neither."""
    positive = np.array([(reward > 0).mean() for reward in rewards])
    high, low = float((positive >= NEARLY_ALL).mean()), float((positive <= 1 - NEARLY_ALL).mean())
    return [high, low, 1 - high - low]


def heatmap_figure(run: Finished) -> Figure:
    """Pictures beside the rewards at each place: rewards that differ most from place to place, and high ones everywhere."""
    coarse = _coarse(run)
    varied = sorted(range(len(coarse)), key=lambda n: -float(coarse[n].after.std()))[:DRAWN_EACH]
    everywhere = sorted(range(len(coarse)), key=lambda n: -float(coarse[n].increment.min()))
    chosen = [*varied, *[n for n in everywhere if n not in varied][:DRAWN_EACH]]
    figure = Figure(figsize=(7.2, 2.1 * len(chosen)), layout="constrained")
    panels = figure.subplots(len(chosen), 3, squeeze=False)
    shown: Any = None
    for line, row in zip(panels, chosen, strict=True):
        image, label = _image(run, row)
        places = second_look(run.bundle, image, label, GRID)
        height, width = int(image.shape[-2]), int(image.shape[-1])
        px = run.bundle.settings.candidates[aimed_candidate(run.bundle.settings)].extent_px(height, width)
        last = top_left(torch.ones(1, 2), height, width, px)[0].tolist()
        # The first and the last places are in the middle of their cells.
        (half_y, half_x), (bottom, right) = (side / (GRID - 1) / 2 for side in last), last
        extent = (px / 2 - half_x, px / 2 + right + half_x, px / 2 + bottom + half_y, px / 2 - half_y)
        line[0].imshow(pixels_of(image, run.bundle.settings.view))
        line[0].set_title(f"{run.bundle.classes[label]}: {places.before:.2f} after the glance", fontsize=8)
        for axes, name in ((line[1], "increment"), (line[2], "contrastive")):
            shown = axes.imshow(getattr(places, name), cmap="RdBu_r", vmin=-1, vmax=1, extent=extent)
            axes.set_xlim(0, width)
            axes.set_ylim(height, 0)
            axes.set_title(name, fontsize=8)
        for axes in line:
            axes.set_xticks([])
            axes.set_yticks([])
    figure.colorbar(shown, ax=panels, label="reward of the second look", shrink=0.5)
    return figure


def pixels_of(image: Tensor, view: ViewSettings) -> NDArray[np.uint8]:
    """A normalised image (3, H, W), or the first frame of a clip, as (H, W, 3) pixels."""
    first = image[0] if image.dim() == 4 else image
    if first.dtype != torch.uint8:
        mean, std = (torch.tensor(values)[:, None, None] for values in (view.mean, view.std))
        first = ((first * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)
    pixels: NDArray[np.uint8] = first.permute(1, 2, 0).numpy()
    return pixels


# Looks at images: Figures 9, 12 and 14.
def galleries_of(run: Finished) -> list[tuple[str, list[str]]]:
    """(heading, pictures): right answers by the number of looks, then the mistakes with the highest confidence."""
    answers = answers_of(run.bundle, run.records.of(run.measured_on))
    chosen = examples(answers, EXAMPLES_EACH)
    if mistakes := worst_mistakes(answers, EXAMPLES_EACH):
        chosen.append(("Wrong", mistakes))
    return [(heading, draw_rows(run.bundle, run.split, rows)) for heading, rows in chosen]


def gallery_result(measured: Measured) -> Result:
    run = measured.first("network")
    answers = answers_of(run.bundle, run.records.of(run.measured_on))
    looks = run.bundle.settings.looks
    here = [answers.look == look for look in range(looks)]
    rows = [
        Row("images that stop here", [[float(which.mean()) for which in here]]),
        Row("of these right", [[float(answers.right[which].mean()) if which.any() else None for which in here]]),
    ]
    columns = ["glance", *(f"look {look}" for look in range(2, looks + 1))]
    table = Table("gallery", "Where images stop with the thresholds of the network, %", columns, rows, measured.images)
    return Result([table], galleries=galleries_of(run), remarks=[BOXES])


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
        as_good = [point for point in curve if point["accuracy"] >= share]
        same = min(as_good, key=lambda point: point["mean_macs"], default=None)
        values["backbone"].append([macs / 1e9, 100 * share])
        values["random"].append([best["mean_macs"] / 1e9, 100 * at_random(best, run.after_looks("random"))])
        values["same_accuracy"].append(
            [None, None] if same is None else [same["mean_macs"] / 1e9, 100 * same["accuracy"]]
        )
        values["best"].append([best["mean_macs"] / 1e9, 100 * best["accuracy"]])
    names = {
        "backbone": "plain backbone",
        "random": "glancefocus, random patches",
        "same_accuracy": "glancefocus, at least as accurate as the backbone",
        "best": "glancefocus, best",
    }
    rows = [Row(names[key], own, paper_row("traffic-signs", key, share=False)[0]) for key, own in values.items()]
    title = f"Traffic signs ({source_of('traffic-signs')})"
    note = (
        "Multiply-adds are means per image. Random patches: as many images stop at each look as in the last row. "
        f"{COMPARED_NOTE}"
    )
    columns = ["multiply-adds, G", "accuracy, %"]
    table = Table("traffic-signs", title, columns, rows, unit="number", note=note)
    curves = {"glancefocus": budget_curve(measured.first("network"))}
    drawing = Drawing(
        curves_figure(curves, {"plain backbone": (macs, share)}),
        "Accuracy over multiply-adds, first seed; diamond: the plain backbone.",
    )
    return Result([table], {"traffic-signs": drawing}, galleries_of(measured.first("network")), remarks=[BOXES])


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


def published_on(data: str | None) -> list[PublishedNetwork]:
    """The published networks of others on a set of clips; only those on Something-Something V1 are known."""
    labels = None if data is None or data in WORLDS else labels_file(Path(data))
    return networks("something-something-v1") if labels is not None and "-v1-" in labels.name else []


def video_result(measured: Measured) -> Result:
    rows, curves, dots = [], dict[str, list[Point]](), Dots()
    for name, preset in video_presets(measured.scope).items():
        backbone = whole_image(backbone_dots(measured.first(f"backbone of {name}"), resized=False))
        frames = PRESETS[preset].settings.frames
        dots[f"plain TSM, {frames} frames"] = backbone
        own = [budget_curve(run) for run in measured[name]]
        curves[f"glancefocus, {name}"] = own[0]
        rows.append(compared_row(name, own, {"": backbone}))
    others = published_on(measured.scope.data)
    dots |= {each.name: (each.macs, each.accuracy) for each in others}
    title = "Networks against their plain backbones, means per clip"
    table = Table("video", title, COMPARED, rows, unit="number", note=COMPARED_NOTE)
    figure = curves_figure(curves, dots, noun="clip")
    published = " and what other papers published" if others else ""
    caption = f"Accuracy over multiply-adds per clip, first seed; diamonds: plain TSM on whole clips{published}."
    drawing = Drawing(figure, caption)
    first = measured.first(next(iter(video_presets(measured.scope))))
    return Result([table], {"video": drawing}, galleries_of(first), remarks=[sentence("video"), BOXES])
