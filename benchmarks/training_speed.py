"""Images per second of every training stage: everything computed for every batch, against frozen parts computed once.

python benchmarks/training_speed.py
python benchmarks/training_speed.py --scenes 320 --set batch_size=16
"""

import argparse
import copy
import json
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from results import machine, markdown_table, write_section

from glancefocus.data.augmentation import mix
from glancefocus.data.sources import open_data
from glancefocus.data.splits import scene_batches, shuffled
from glancefocus.machine import keep_freed_memory
from glancefocus.network.build import build
from glancefocus.training.loop import build_stage
from glancefocus.training.recipes import train_settings
from glancefocus.training.settings import TrainSettings
from glancefocus.training.stage import Moment, Stage, TrainingContext


def anew(settings: TrainSettings) -> TrainSettings:
    """The same with everything computed for every batch."""
    return replace(settings, keep_glances_mib=0, aim=replace(settings.aim, compare_together=False))


def epoch_of(stage: Stage, context: TrainingContext, epoch: int, epochs: int) -> tuple[int, float]:
    """One epoch of updates: (number of images, seconds)."""
    settings, train = context.settings, stage.data.train
    seed = mix(settings.seed, epoch)
    order = shuffled(len(train), settings.batch_size, seed)
    stage.train_mode()
    started = time.perf_counter()
    for step, (images, labels) in enumerate(scene_batches(train, settings.network.view, order, seed, context.workers)):
        moment = Moment(
            progress=(epoch + step / len(order)) / epochs,
            generator=torch.Generator().manual_seed(mix(seed, step)),
            rows=torch.as_tensor(order[step]),
        )
        stage.update(images, labels, moment)
    return sum(map(len, order)), time.perf_counter() - started


def measure(settings: TrainSettings, *, epochs: int | None = None) -> list[dict[str, Any]]:
    """One row per stage: images and seconds of both ways, in alternate epochs. Both start every stage from the same network.

    epochs  of every stage; None: as many as the settings say, so that what is done once a stage is spread over them
    """
    data = open_data(settings.data, settings.network.view, frames=settings.network.frames)
    torch.manual_seed(settings.seed)
    net = build(settings.network).to(memory_format=torch.channels_last)
    accelerator = Accelerator(cpu=True, mixed_precision=settings.precision)
    rows = []
    for name in dict.fromkeys(settings.plan()):
        ways = {"before": anew(settings), "after": settings}
        shops = {way: TrainingContext(copy.deepcopy(net), data, its, accelerator) for way, its in ways.items()}
        stages = {way: build_stage(name, context) for way, context in shops.items()}
        warm_up(name, TrainingContext(copy.deepcopy(net), data, anew(settings), accelerator))
        row: dict[str, Any] = {"stage": name, "before_s": [], "after_s": [], "images": 0}
        count = stages["after"].epochs if epochs is None else epochs
        for epoch in range(count):
            order = list(ways) if epoch % 2 == 0 else list(reversed(ways))
            for way in order:
                images, seconds = epoch_of(stages[way], shops[way], epoch, count)
                row[f"{way}_s"].append(seconds)
            row["images"] += images
        rows.append(row)
        net.load_state_dict(shops["before"].net.state_dict())
    return rows


def warm_up(name: str, context: TrainingContext) -> None:
    """Warm-up: one update that is not measured, on a network that is not used afterwards."""
    settings, stage = context.settings, build_stage(name, context)
    train = stage.data.train
    order = shuffled(len(train), settings.batch_size, 0)[:1]
    for images, labels in scene_batches(train, settings.network.view, order, 0, context.workers):
        stage.update(images, labels, Moment(0.0, torch.Generator().manual_seed(0)))


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Images per second over the whole stage, before and after, and their ratio."""
    return [
        {
            "stage": row["stage"],
            "epochs": len(row["before_s"]),
            "before_images_per_s": row["images"] / sum(row["before_s"]),
            "after_images_per_s": row["images"] / sum(row["after_s"]),
            "times_faster": sum(row["before_s"]) / sum(row["after_s"]),
        }
        for row in rows
    ]


def table(rows: list[dict[str, Any]]) -> str:
    cells = [["stage", "epochs", "images/s before", "images/s after", "times faster"]]
    for row in rows:
        speeds = [f"{row[f'{way}_images_per_s']:.0f}" for way in ("before", "after")]
        cells.append([row["stage"], str(row["epochs"]), *speeds, f"{row['times_faster']:.2f}"])
    return markdown_table(cells)


def main(arguments: list[str] | None = None) -> None:
    words = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description="Images a second of every training stage.")
    parser.add_argument("--world", default="signs", help="a built-in world")
    parser.add_argument("--scenes", type=int, default=1280, help="training scenes")
    parser.add_argument("--epochs", type=int, help="epochs of every stage; default: those of the recipe")
    parser.add_argument("--set", action="append", default=[], help="name=value, as in `gf train`")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--write", type=Path, help="put the table into this file, such as docs/results.md")
    chosen = parser.parse_args(words)

    torch.set_num_threads(chosen.threads)
    keep_freed_memory()
    scenes = {"scenes": [chosen.scenes, 32, 32]}
    settings = train_settings(chosen.world, data=scenes, assignments=chosen.set)
    rows = summarise(measure(settings, epochs=chosen.epochs))
    print(json.dumps(rows, indent=1) if chosen.json else table(rows))
    if chosen.write is not None:
        body = (
            f"The recipe of `{chosen.world}` on {chosen.scenes} scenes, in batches of {settings.batch_size}; validation is not "
            "counted. Before: every batch is glanced at anew, and the random patches of the contrastive reward are looked at "
            "after the chosen ones (`keep_glances_mib=0 aim.compare_together=false`). After: the glances of a frozen encoder "
            "are encoded once a stage, which is counted, and both kinds of patches share a batch. Epochs of both take turns. "
            f"Nothing can be kept in stages that train their encoders.\n\n{table(rows)}"
        )
        write_section(
            chosen.write,
            "training_speed",
            title="Images a second of every training stage",
            command=shlex.join(["python", "benchmarks/training_speed.py", *words]),
            machine=machine(chosen.threads),
            body=body,
        )


if __name__ == "__main__":
    main()
