"""One zooming network on scenes of the world `signs` of 960x1280, 4,096 and 16,384 px, with signs of the same size in pixels.

    python benchmarks/wide_signs.py wide                             # trains; call it again to go on
    python benchmarks/wide_signs.py wide --test 500 --write docs/results.md

Scenes are drawn on demand: no scene is ever drawn whole, and every epoch has new ones. Each look sees a quarter of the side of the
last one's region, and the last look the pixels as they are, so a scene of four times the side takes one look more.

The network is trained by the stages of `gf train`, with its recipe for large scenes of signs. Only the data is put together here,
because the scenes of `gf train signs` all have the same size.
"""

import argparse
import contextlib
import shlex
import sys
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from results import machine, markdown_table, write_section
from torch import Tensor

from glancefocus.data.scene_splits import DrawnScenes, drawn_scenes
from glancefocus.data.signs import CLASSES
from glancefocus.data.sources import Data
from glancefocus.data.splits import in_order
from glancefocus.data.wide_signs import WideSignsSettings
from glancefocus.interrupts import handled
from glancefocus.network.build import build
from glancefocus.network.macs import count_costs
from glancefocus.network.model import GlanceFocus
from glancefocus.settings import ViewSettings
from glancefocus.training.journal import Journal
from glancefocus.training.loop import TrainingLoop
from glancefocus.training.recipes import train_settings
from glancefocus.training.run_folder import locked, prepare_folder
from glancefocus.training.settings import TrainSettings
from glancefocus.training.stage import TrainingContext

PX = 64
SIZES = ((960, 1280), (4096, 4096), (16_384, 16_384))
FOCUS = (f"0.25@{PX}", f"0.0625@{PX}", f"0.015625@{PX}", str(PX))


def settings_of(scenes: int, effort: str, assignments: list[str]) -> TrainSettings:
    """The recipe of `gf train signs --set network.zoom=true` for large scenes, with enough looks for the largest of ours."""
    return train_settings(
        "signs",
        network={"focus": FOCUS, "view": {"height_px": 4096, "width_px": 4096}},
        data={"scenes": [scenes, 60, 5]},
        assignments=["network.zoom=true", *assignments],
        effort=effort,  # type: ignore[arg-type]
    )


def scenes_of(name: str, count: int, sizes: tuple[tuple[int, int], ...], view: ViewSettings) -> DrawnScenes:
    return drawn_scenes(name, count, [WideSignsSettings(height=high, width=wide) for high, wide in sizes], view, 0)


def train(folder: Path, settings: TrainSettings) -> GlanceFocus:
    """Train, or go on from the last checkpoint in the folder."""
    view, (train_scenes, val_scenes, _) = settings.network.view, settings.data.scenes
    data = Data(scenes_of("train", train_scenes, SIZES, view), scenes_of("val", val_scenes, SIZES, view), CLASSES)
    torch.manual_seed(settings.seed)
    net = build(settings.network)
    with handled(), locked(folder), contextlib.ExitStack() as stack:
        prepare_folder(folder, settings, None)
        journal = stack.enter_context(contextlib.closing(Journal(folder, writes=True, quiet=False)))
        context = TrainingContext(net, data, settings, Accelerator(cpu=True), journal.show_progress)
        TrainingLoop(context, folder, journal).run()
    return net


def answers(net: GlanceFocus, split: DrawnScenes) -> dict[str, Tensor]:
    """(looks, N) logits, and whether each look's region holds the whole sign; labels (N,). All scenes have one size."""
    net.eval()
    logits, hits, labels = [], [], []
    finest = float(PX)
    with torch.inference_mode():
        for rows, (scene, truth) in zip(in_order(len(split), 50), split.batches(in_order(len(split), 50)), strict=True):
            look = net.glance(scene)
            answered, found = [look.logits], []
            assert split.boxes is not None
            box = split.boxes[list(rows)].T
            while float(net.region_of(look)[0, 2]) > finest:
                look = net.focus(look, net.policy.aim(look))
                top, left, height, width = net.region_of(look).T
                found.append((top <= box[0]) & (left <= box[1]) & (box[2] <= top + height) & (box[3] <= left + width))
                answered.append(look.logits)
            logits.append(torch.stack(answered))
            hits.append(torch.stack(found))
            labels.append(truth)
    return {"logits": torch.cat(logits, dim=1), "hits": torch.cat(hits, dim=1), "labels": torch.cat(labels)}


def exits(found: dict[str, Tensor], threshold: float) -> tuple[float, float]:
    """Accuracy and mean number of looks if an image stops once its confidence is above the threshold."""
    sure = found["logits"].softmax(dim=2).amax(dim=2) > threshold
    sure[-1] = True
    look = sure.float().argmax(dim=0)
    answer = found["logits"].argmax(dim=2).gather(0, look[None])[0]
    return float((answer == found["labels"]).float().mean()), float((look + 1).float().mean())


def row_of(net: GlanceFocus, size: tuple[int, int], count: int) -> list[str]:
    """One row of the table. The threshold is the lowest one that loses at most half a point on scenes of their own."""
    chosen = answers(net, scenes_of("val", count, (size,), net.settings.view))
    best, _ = exits(chosen, 1.0)
    threshold = min(t for t in (*np.arange(0.5, 1.0, 0.01), 0.995, 0.999, 1.0) if exits(chosen, t)[0] >= best - 0.005)
    found = answers(net, scenes_of("test", count, (size,), net.settings.view))
    right = (found["logits"].argmax(dim=2) == found["labels"]).float().mean(dim=1)
    limits = found["labels"] > 0
    hits = found["hits"][:, limits].float().mean(dim=1)
    accuracy, looks = exits(found, threshold)
    costs = count_costs(net.settings)
    macs = costs.macs_after_look[0] + (looks - 1) * (costs.macs_after_look[-1] - costs.macs_after_look[0]) / len(FOCUS)
    return [
        f"{size[0]:,}x{size[1]:,}",
        " / ".join(f"{100 * share:.1f}" for share in right.tolist()),
        " / ".join(f"{100 * share:.1f}" for share in hits.tolist()),
        f"{100 * accuracy:.1f}",
        f"{looks:.2f}",
        f"{macs / 1e6:.0f}",
    ]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the run, with its checkpoint")
    parser.add_argument("--scenes", type=int, default=4000, help="in each epoch")
    parser.add_argument("--effort", choices=("quick", "usual", "thorough"), default="usual")
    parser.add_argument("--set", action="append", default=[], help="other settings, as in gf train")
    parser.add_argument("--test", type=int, default=0, help="number of test scenes of each size")
    parser.add_argument("--note", default="", help="a sentence for the results, such as how long the training took")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    settings = settings_of(options.scenes, options.effort, options.set)
    net = train(options.folder, settings)
    if not options.test:
        return
    head = ["scene, px", "accuracy after each look, %", "whole sign in the focus look, %", "accuracy with exits, %"]
    cells = [[*head, "looks", "multiply-adds, millions"]]
    cells += [row_of(net, size, options.test) for size in SIZES]
    epochs = ", ".join(f"{name} {getattr(settings, name).epochs}" for name in settings.stages)
    body = (
        f"One network for all sizes (the backbone of gf-mini-48, all looks {PX} px), trained by the stages of gf train ({epochs} "
        f"epochs of {options.scenes:,} scenes, of the three sizes in turns; the stage small on whole scenes of "
        f"{settings.small.side_px} px), with the signs' places. Signs have a radius of 10 to 14 px in all sizes. {options.test} "
        f"test scenes of each size; the threshold for exits is chosen on as many others. {options.note}\n\n{markdown_table(cells)}"
    )
    print(body)
    if options.write:
        command = f"python benchmarks/wide_signs.py {shlex.join(sys.argv[1:] if arguments is None else arguments)}"
        title = "Signs in scenes of 1 to 268 megapixels"
        write_section(options.write, "wide_signs", title=title, command=command, machine=machine(), body=body)


if __name__ == "__main__":
    main()
