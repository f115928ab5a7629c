"""What few photographs teach a glance encoder, and which weights between its own and the backbone's are best on others.

    gf train photos/ --weights weights.pth -o runs/photos
    python benchmarks/kept_weights.py runs/photos --write docs/results.md

Trains the stage glance once more from the run's backbone. One half of the held-out images chooses the share of the learnt weights,
the other half measures; then the other way round. Share 0: the backbone as it is on glances; 1: all that was learnt.
"""

import argparse
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import torch
from accelerate import Accelerator
from results import machine, markdown_table, write_section
from torch import Tensor

from glancefocus.data.sources import open_data
from glancefocus.data.splits import scene_batches, shuffled
from glancefocus.network.build import build
from glancefocus.training.initialise import InitialiseStage
from glancefocus.training.kept_weights import BETWEEN, calibrated_loss, keep_best_between
from glancefocus.training.run_folder import BACKBONE_FILE, settings_of
from glancefocus.training.stage import Moment, TrainingContext
from glancefocus.training.teacher import open_teacher


def answers_between(run: Path, epochs: int | None) -> tuple[dict[float, Tensor], Tensor, int]:
    """{share of the learnt weights: (N, classes) answers to held-out glances}, their labels, and the number of training images."""
    settings = settings_of(run)
    settings = replace(settings, glance=replace(settings.glance, epochs=epochs or settings.glance.epochs))
    data, net = open_data(settings.data, settings.network.view), build(settings.network)
    context = TrainingContext(net, data, settings, Accelerator(cpu=True))
    context.teacher = open_teacher(run / BACKBONE_FILE, context)
    net.focus_encoder.load_state_dict(context.teacher.encoder.state_dict())
    stage = InitialiseStage("glance", context)
    stage.begin()
    learn(stage, settings.batch_size, settings.data.augment.repeat)
    found: list[Tensor] = []
    labels = torch.empty(0)

    def answered() -> float:
        nonlocal labels
        answers, labels = stage.answers(data.val)
        found.append(answers)
        return 0.0

    keep_best_between(context.teacher.encoder, stage.encoder, answered)
    return dict(zip(BETWEEN, found, strict=True)), labels, len(data.train)


def learn(stage: InitialiseStage, batch_size: int, repeat: int) -> None:
    """All epochs of the stage, as in a run."""
    train, view = stage.data.train, stage.context.net.settings.view
    for epoch in range(stage.epochs):
        stage.train_mode()
        order, seed = shuffled(len(train), batch_size, epoch), epoch % max(1, repeat)
        for step, (images, labels) in enumerate(scene_batches(train, view, order, seed, stage.context.workers)):
            progress = (epoch + step / len(order)) / stage.epochs
            generator = torch.Generator().manual_seed(len(order) * epoch + step)
            stage.update(images, labels, Moment(progress, generator, torch.as_tensor(order[step]), seed))
        print(f"epoch {epoch + 1} of {stage.epochs}", file=sys.stderr, flush=True)


def body_of(answers: dict[float, Tensor], labels: Tensor, about: str) -> str:
    """The table, and what each half of the images measures with the share that the other half chose."""
    halves = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).tensor_split(2)
    right = {share: (each.argmax(dim=1) == labels).float() for share, each in answers.items()}
    losses = {share: [calibrated_loss(each[h], labels[h]) for h in (*halves, ...)] for share, each in answers.items()}
    cells = [["share of the learnt weights", "accuracy, %", "cross-entropy, temperature fitted"]]
    cells += [[f"{s:g}", f"{100 * float(right[s].mean()):.1f}", f"{losses[s][2]:.3f}"] for s in answers]
    chosen = [min(answers, key=lambda share, half=half: losses[share][half]) for half in (0, 1)]  # type: ignore[misc]
    others = torch.cat([right[chosen[0]][halves[1]], right[chosen[1]][halves[0]]])
    return (
        f"{about}\n\n{markdown_table(cells)}\n\nThe halves chose shares of {chosen[0]:g} and {chosen[1]:g}; with the choice of the "
        f"other half the accuracy is {100 * float(others.mean()):.1f} % ({len(labels)} images)."
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Weights between the backbone's and those that the stage glance learnt."
    )
    parser.add_argument("run", type=Path, help="folder of a run with the stage backbone")
    parser.add_argument("--epochs", type=int, help="of the stage glance; otherwise those of the run")
    parser.add_argument("--title", default="Weights between the backbone's and what a glance encoder learnt")
    parser.add_argument("--about", default="", help="which photographs these are")
    parser.add_argument("--write", type=Path, help="put the table into this file, such as docs/results.md")
    asked = parser.parse_args()
    answers, labels, images = answers_between(asked.run, asked.epochs)
    body = body_of(answers, labels, f"{asked.about} {images} training images, one seed.".strip())
    print(body)
    if asked.write is not None:
        command = shlex.join(["python", "benchmarks/kept_weights.py", *sys.argv[1:]])
        name = f"kept_weights_{asked.run.name}"
        write_section(asked.write, name, title=asked.title, command=command, machine=machine(), body=body)


if __name__ == "__main__":
    main()
