"""One zooming network on scenes of the world `signs` of 960x1280, 4,096 and 16,384 px, with signs of the same size in pixels.

    python benchmarks/wide_signs.py wide.pt --minutes 15            # trains; call it again to go on
    python benchmarks/wide_signs.py wide.pt --test 500 --write docs/results.md

Scenes are drawn on demand: no scene is ever drawn whole, and no two steps of training see the same one. Each look sees a quarter of
the side of the last one's region, and the last look the pixels as they are, so a scene of four times the side takes one look more.

First the focus encoder learns to read signs in patches. Then everything is trained together: encoders and classifier by the
labels after every look, the policy (and through its maps the encoders) by the known place of the sign, as in the stage `point`
but relative to the region that the last look saw. Aims are the sign's place with noise at first, later mostly the policy's own.
Places are used in training only. `gf train` cannot train on such scenes yet, so this program has its own loop.
"""

import argparse
import math
import shlex
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from results import machine, markdown_table, write_section
from torch import Tensor

from glancefocus.data.file_scene import FileImage, FilePicture, FileScene
from glancefocus.data.signs import CLASSES
from glancefocus.data.wide_signs import WideScene, WideSignsSettings
from glancefocus.look import Aim, Look
from glancefocus.network.build import build
from glancefocus.network.macs import count_costs
from glancefocus.network.model import GlanceFocus
from glancefocus.network.presets import PRESETS
from glancefocus.region import Region
from glancefocus.settings import NetworkSettings, PolicySettings, ViewSettings

PX = 64
SIZES = ((960, 1280), (4096, 4096), (16_384, 16_384))
FOCUS = (f"0.25@{PX}", f"0.0625@{PX}", f"0.015625@{PX}", str(PX))
NATIVE = len(FOCUS) - 1
NEAR = 0.25  # unit of distance of the pointing loss, as a share of the next region's side, as in the stage point
TRAIN_SEED, VAL_SEED = 1_000_000, 500_000


def steps_of(height: int) -> tuple[int, ...]:
    """The candidate of each focus look: quarters down to about 256 px, then the pixels as they are."""
    quarters = max(1, round(math.log(height / 256, 4)))
    return (*range(quarters), NATIVE)


def network() -> GlanceFocus:
    mini = PRESETS["gf-mini-48"].settings
    settings = NetworkSettings(
        backbone=mini.backbone,
        backbone_options={**mini.backbone_options, "output_stride": 8},
        classes=len(CLASSES),
        glance_px=PX,
        focus=FOCUS,
        looks=len(FOCUS) + 1,
        classifier_units=128,
        policy=PolicySettings(units=128, conv_kernel=3),
        zoom=True,
        view=ViewSettings(fit="whole", height_px=4096, width_px=4096),
    )
    torch.manual_seed(0)
    return build(settings)


class Drawn:
    """A batch of scenes, their labels, and the centres of their signs, (B, 2) px; NaN for the class none."""

    def __init__(self, size: tuple[int, int], seeds: range, view: ViewSettings) -> None:
        settings = WideSignsSettings(height=size[0], width=size[1])
        scenes = [WideScene(settings, seed % len(CLASSES), seed) for seed in seeds]
        images = tuple(FileImage(FilePicture(scene), size) for scene in scenes)
        self.scene = FileScene(images, view)
        self.labels = torch.tensor([scene.label for scene in scenes])
        boxes = [scene.box or (math.nan,) * 4 for scene in scenes]
        self.boxes = torch.tensor(boxes, dtype=torch.float64)
        self.centres = (self.boxes[:, :2] + self.boxes[:, 2:]) / 2
        self.sizes = torch.tensor([size] * len(scenes), dtype=torch.float64)


def region_of(net: GlanceFocus, look: Look, sizes: Tensor) -> Tensor:
    """(B, 4) top, left, height, width of what a look saw, in px."""
    if look.number == 1:
        return torch.cat([torch.zeros_like(sizes), sizes], dim=1)
    assert look.where is not None
    side = net.candidates[int(look.candidate)].extent_px(*map(int, sizes[0].tolist()))
    begin = (look.where.double() * (sizes - side)).floor()
    return torch.cat([begin, torch.full_like(sizes, side)], dim=1)


def target(net: GlanceFocus, look: Look, candidate: int, drawn: Drawn) -> tuple[Tensor, Tensor, Tensor]:
    """Aims (B, 2) that would centre the next region on the sign; whether the sign is in the last region; room (B, 2) in shares of
    the next region's side."""
    seen = region_of(net, look, drawn.sizes)
    side = net.candidates[candidate].extent_px(*map(int, drawn.sizes[0].tolist()))
    room = seen[:, 2:] - side
    away = drawn.centres - seen[:, :2]
    inside = ((away >= 0) & (away <= seen[:, 2:])).all(dim=1)
    aim = ((away - side / 2) / room).clamp(0, 1)
    return aim.nan_to_num(0.5).float(), inside.float(), (room / side).float()


def episode(
    net: GlanceFocus, drawn: Drawn, own: float, deviation: float, rng: torch.Generator
) -> tuple[list[Look], Tensor]:
    """All looks at a batch, and the mean pointing loss. Each image follows the policy with the share `own`, else its sign."""
    count = len(drawn.labels)
    follows = torch.rand(count, 1, generator=rng) < own
    anywhere = torch.rand(count, 2, generator=rng)
    look = net.glance(drawn.scene)
    looks, losses = [look], []
    for candidate in steps_of(int(drawn.sizes[0, 0])):
        aim = net.learnt_policy.aim(look, candidate)
        assert aim.mean is not None
        goal, inside, room = target(net, look, candidate, drawn)
        distance = ((aim.mean - goal) * room / NEAR).square().sum(dim=1).log1p()
        losses.append((distance * inside).sum() / inside.sum().clamp_min(1))
        # Noise in shares of the next region, so that the sign often stays inside.
        noise = deviation * torch.randn(count, 2, generator=rng) / room.clamp_min(1e-6)
        taught = torch.where(drawn.labels[:, None] > 0, goal, anywhere)
        where = (torch.where(follows, aim.mean.detach(), taught) + noise).clamp(0, 1)
        look = net.focus(look, Aim(where=where, candidate=candidate, memory=aim.memory, mean=aim.mean))
        looks.append(look)
    return looks, torch.stack(losses).mean()


def read_patches(net: GlanceFocus, start: int, count: int, rng: np.random.Generator) -> Tensor:
    """The loss of the focus encoder's own head on patches at full resolution, each with its sign inside."""
    view, size = net.settings.view, SIZES[0]
    drawn = Drawn(size, range(start, start + count), view)
    away = torch.from_numpy(rng.uniform(-0.25, 0.25, (count, 2)) * PX)
    centres = torch.where(
        drawn.centres.isnan(), torch.from_numpy(rng.uniform(0, 1, (count, 2))) * drawn.sizes, drawn.centres
    )
    where = ((centres + away - PX / 2) / (drawn.sizes - PX)).clamp(0, 1).float()
    patches = drawn.scene.view(Region(net.candidates[NATIVE], where))
    encoder = net.focus_encoder
    return F.cross_entropy(encoder.own_head(encoder(patches).vector), drawn.labels)


class Training:
    """Trains for some minutes at a time; everything that must survive is in one file."""

    def __init__(self, file: Path, read_steps: int, steps: int, batch: int) -> None:
        self.file, self.read_steps, self.steps, self.batch = file, read_steps, steps, batch
        self.net = network()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3, weight_decay=0.01)
        self.step, self.seconds = 0, 0.0
        if file.exists():
            kept = torch.load(file, weights_only=True)
            self.net.load_state_dict(kept["net"])
            self.optimizer.load_state_dict(kept["optimizer"])
            self.step, self.seconds = kept["step"], kept["seconds"]

    def run(self, minutes: float) -> None:
        began = reported = time.perf_counter()
        sums: list[list[float]] = []
        self.net.train()
        while self.step < self.read_steps + self.steps and time.perf_counter() - began < 60 * minutes:
            sums.append(self.read() if self.step < self.read_steps else self.whole())
            self.step += 1
            if time.perf_counter() - reported > 30:
                means = [sum(column) / len(sums) for column in zip(*sums, strict=False)]
                print(f"step {self.step}: " + " ".join(f"{mean:.3f}" for mean in means), flush=True)
                reported, sums = time.perf_counter(), []
        self.seconds += time.perf_counter() - began
        state = {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save({**state, "step": self.step, "seconds": self.seconds}, self.file)
        print(f"{self.step} steps in {self.seconds / 60:.0f} minutes", flush=True)

    def read(self) -> list[float]:
        self.rate(self.step / self.read_steps)
        seed = TRAIN_SEED + self.step * 64
        loss = read_patches(self.net, seed, 64, np.random.default_rng(seed))
        self.descend(loss)
        return [float(loss.detach())]

    def whole(self) -> list[float]:
        done = (self.step - self.read_steps) / self.steps
        self.rate(done)
        rng = torch.Generator().manual_seed(self.step)
        size = SIZES[int(torch.randint(len(SIZES), (1,), generator=rng))]
        seed = TRAIN_SEED + 64 * self.read_steps + self.step * self.batch
        drawn = Drawn(size, range(seed, seed + self.batch), self.net.settings.view)
        looks, pointing = episode(self.net, drawn, min(0.8, 1.6 * done), 0.12 * (1 - done), rng)
        answers = [F.cross_entropy(look.logits, drawn.labels) for look in looks]
        self.descend(torch.stack(answers).mean() + 0.5 * pointing)
        right = (looks[-1].logits.argmax(dim=1) == drawn.labels).float().mean()
        return [float(pointing.detach()), float(right)]

    def rate(self, done: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, 20 * done + 0.05) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))

    def descend(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 5.0)
        self.optimizer.step()


def answers(net: GlanceFocus, size: tuple[int, int], first: int, count: int) -> dict[str, Tensor]:
    """(looks, N) logits, and whether each look's region holds the whole sign; labels (N,)."""
    net.eval()
    logits, hits, labels = [], [], []
    with torch.inference_mode():
        for start in range(first, first + count, 50):
            drawn = Drawn(size, range(start, min(start + 50, first + count)), net.settings.view)
            look = net.glance(drawn.scene)
            rows, found = [look.logits], []
            for candidate in steps_of(size[0]):
                look = net.focus(look, net.learnt_policy.aim(look, candidate))
                top, left, height, width = region_of(net, look, drawn.sizes).T
                box = drawn.boxes.T
                found.append((top <= box[0]) & (left <= box[1]) & (box[2] <= top + height) & (box[3] <= left + width))
                rows.append(look.logits)
            logits.append(torch.stack(rows))
            hits.append(torch.stack(found))
            labels.append(drawn.labels)
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
    chosen = answers(net, size, VAL_SEED, count)
    best, _ = exits(chosen, 1.0)
    threshold = min(t for t in (*np.arange(0.5, 1.0, 0.01), 0.995, 0.999, 1.0) if exits(chosen, t)[0] >= best - 0.005)
    found = answers(net, size, 0, count)
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
    parser.add_argument("file", type=Path, help="the weights and the state of the training")
    parser.add_argument("--minutes", type=float, default=0, help="train for so long, or until all steps are done")
    parser.add_argument("--read-steps", type=int, default=450)
    parser.add_argument("--steps", type=int, default=1300)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--test", type=int, default=0, help="number of test scenes of each size")
    parser.add_argument("--note", default="", help="a sentence for the results, such as how the training was divided")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    training = Training(options.file, options.read_steps, options.steps, options.batch)
    if options.minutes:
        training.run(options.minutes)
    if not options.test:
        return
    head = ["scene, px", "accuracy after each look, %", "whole sign in the focus look, %", "accuracy with exits, %"]
    cells = [[*head, "looks", "multiply-adds, millions"]]
    cells += [row_of(training.net, size, options.test) for size in SIZES]
    patches = 64 * min(training.step, options.read_steps)
    scenes = options.batch * max(0, training.step - options.read_steps)
    body = (
        f"One network for all sizes (the backbone of gf-mini-48, all looks {PX} px), trained for "
        f"{training.seconds / 60:.0f} minutes on one core, on {patches:,} patches and {scenes:,} scenes, with the signs' places. "
        f"Signs have a radius of 10 to 14 px in all sizes. {options.test} test scenes of each size; the threshold for exits is "
        f"chosen on as many others. {options.note}\n\n{markdown_table(cells)}"
    )
    print(body)
    if options.write:
        command = f"python benchmarks/wide_signs.py {shlex.join(sys.argv[1:] if arguments is None else arguments)}"
        title = "Signs in scenes of 1 to 268 megapixels"
        write_section(options.write, "wide_signs", title=title, command=command, machine=machine(), body=body)


if __name__ == "__main__":
    main()
