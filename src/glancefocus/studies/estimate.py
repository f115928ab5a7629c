"""What a study would take before anything is trained: multiply-adds, disk, and hours on this machine."""

import functools
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from glancefocus.data.lists import medium_of
from glancefocus.data.sources import split_rows
from glancefocus.data.worlds import WORLDS
from glancefocus.network.build import build, count_parameters
from glancefocus.network.macs import count_costs
from glancefocus.outcome import Costs
from glancefocus.settings import NetworkSettings
from glancefocus.studies.exits import CHECKPOINT, ExitsRun
from glancefocus.studies.networks import ASSUMED_CLASSES
from glancefocus.studies.runs import RunFolder
from glancefocus.studies.study import Run
from glancefocus.training.settings import RecogniseSettings, TrainSettings
from glancefocus.values import from_plain, to_plain

ASSUMED_IMAGES = {False: (1_281_167, 50_000), True: (168_913, 24_777)}  # ImageNet; Something-Something V2
TRAINING = 3  # a backward pass costs about two forward passes
_BYTES = 4
_COPIES = 4  # of the weights: checkpoint with its optimiser, bundle, backbone
_PROBED_MACS = 2e9
MacsPerSecond = Callable[[NetworkSettings], float]


@dataclass(frozen=True)
class PlannedRun:
    """One run: what it would take, and whether it is there.

    state  new, begun or finished
    macs   multiply-adds of training and of its validations
    """

    name: str
    stages: Sequence[str]
    seed: int
    state: str
    macs: float
    disk_bytes: float
    hours: float


@dataclass(frozen=True)
class StudyPlan:
    """All runs of a study, in the order in which they are trained; what is finished does not count in the sums."""

    runs: Sequence[PlannedRun]
    images: tuple[int, int]
    device: str

    @property
    def left(self) -> list[PlannedRun]:
        return [run for run in self.runs if run.state != "finished"]

    @property
    def hours(self) -> float:
        return sum(run.hours for run in self.left)

    @property
    def macs(self) -> float:
        return sum(run.macs for run in self.left)

    @property
    def disk_bytes(self) -> float:
        return sum(run.disk_bytes for run in self.left)

    def to_plain(self) -> dict[str, Any]:
        sums = {"hours": self.hours, "macs": self.macs, "disk_bytes": self.disk_bytes}
        return {"runs": [asdict(run) for run in self.runs], "images": list(self.images), "device": self.device, **sums}


def plan_runs(
    runs: Iterable[Run], folder: RunFolder, speed: MacsPerSecond | None = None, exits: Iterable[ExitsRun] = ()
) -> StudyPlan:
    """What these runs, and those that they build on, would take. Nothing is trained.

    speed  measured here if it is None
    exits  comparison networks, planned with the speed of ours
    """
    speed = measured_speed() if speed is None else speed
    planned: dict[str, PlannedRun] = {}
    counts = (0, 0)
    for run in runs:
        for each in run.with_earlier():
            if each.content in planned:
                continue
            counts = image_counts(each.settings)
            planned[each.content] = _planned(each, folder, counts, speed)
            network = each.settings.network
    for other in exits:
        begun = (other.place(folder.folder.parent) / CHECKPOINT).exists()
        macs = other.macs(counts[0])
        hours = macs / speed(network) / 3600
        disk = 2.0 * _BYTES * sum(p.numel() for p in other.build().parameters())
        state = "begun" if begun else "new"
        planned[other.content] = PlannedRun(other.name, ("all exits",), other.training.seed, state, macs, disk, hours)
    return StudyPlan(list(planned.values()), counts, device_words())


def _planned(run: Run, folder: RunFolder, counts: tuple[int, int], speed: MacsPerSecond) -> PlannedRun:
    settings = run.settings
    known = settings.data.source in WORLDS or folder.find(run) is not None
    state = "new" if not known or folder.find(run) is None else "finished" if folder.is_finished(run) else "begun"
    macs = training_macs(settings, *counts)
    views = len(settings.network.candidates)
    nodes = sum(views**look for look in range(settings.network.looks))
    records = counts[1] * nodes * 4 * _BYTES
    disk = _COPIES * _BYTES * _parameters(settings.network) + records
    hours = macs / speed(settings.network) / 3600 if state != "finished" else 0.0
    return PlannedRun(run.name, settings.stages, settings.seed, state, macs, disk, hours)


def image_counts(settings: TrainSettings) -> tuple[int, int]:
    """(training, validation) images of a data set; those of the paper's where there is none."""
    data, frames = settings.data, settings.network.frames
    if data.source in WORLDS:
        return data.scenes[0], data.scenes[1]
    if settings.network.classes == ASSUMED_CLASSES[frames > 1] and data.source == "the paper's data set":
        return ASSUMED_IMAGES[frames > 1]
    rows, _ = split_rows(data, medium_of(frames))
    return sum(split == "train" for split, _, _ in rows), sum(split == "val" for split, _, _ in rows)


def training_macs(settings: TrainSettings, train_images: int, val_images: int) -> float:
    """Multiply-adds of all stages of a run: forward and backward passes, and a validation after each epoch."""
    costs = _costs(settings.network)
    total = 0.0
    for stage in settings.plan():
        own: Any = getattr(settings, stage)
        images, held_out = own.scenes if stage in ("small", "small_glance") else (train_images, val_images)
        trained, validated = _stage_macs(stage, settings, costs)
        total += own.epochs * (images * trained + held_out * validated)
    return total + val_images * costs.macs_after_look[-1]  # the look record at the end


def _stage_macs(stage: str, settings: TrainSettings, costs: Costs) -> tuple[float, float]:
    """(training, validation) multiply-adds of a stage for one image."""
    glance, looks = costs.macs_after_look[0], costs.macs_after_look[-1]
    patches = looks - glance
    own: Any = getattr(settings, stage)
    if stage in ("small", "backbone"):
        share = (
            (own.side_px**2 / (settings.network.view.height_px * settings.network.view.width_px))
            if stage == "small"
            else 1
        )
        return TRAINING * share * costs.backbone_macs, share * costs.backbone_macs
    if stage in ("small_glance", "glance"):
        return TRAINING * costs.encoder_with_head_macs, costs.encoder_with_head_macs
    if isinstance(own, RecogniseSettings):
        frozen = own.freeze_encoders
        first = glance if frozen or own.freeze_glance else TRAINING * glance
        return first + (patches if frozen else TRAINING * patches), looks
    if stage == "aim":
        compared = 1 + (own.monte_carlo if own.reward == "contrastive" else 0)
        return glance + compared * patches, looks
    if stage == "joint":
        return TRAINING * (looks + costs.backbone_macs), looks
    return glance + patches, looks  # point


def measured_speed() -> MacsPerSecond:
    """A function that measures how many multiply-adds this machine computes a second when it trains an encoder, once for each."""
    known: dict[str, float] = {}

    def speed(network: NetworkSettings) -> float:
        key = str([network.backbone, sorted(to_plain(network)["backbone_options"].items())])
        if key not in known:
            known[key] = _measure(network)
        return known[key]

    return speed


def _costs(network: NetworkSettings) -> Costs:
    return _counted(json.dumps(to_plain(network)))[0]


def _parameters(network: NetworkSettings) -> int:
    return _counted(json.dumps(to_plain(network)))[1]


@functools.cache
def _counted(network: str) -> tuple[Costs, int]:
    """Multiply-adds and number of weights of a network; several runs of a study have the same one."""
    settings = from_plain(NetworkSettings, json.loads(network))
    return count_costs(settings), count_parameters(settings)


def _measure(network: NetworkSettings) -> float:
    device = (
        torch.accelerator.current_accelerator() or torch.device("cpu") if torch.accelerator.is_available() else "cpu"
    )
    costs = _costs(network)
    px = network.glance_px
    with torch.random.fork_rng(devices=[]):
        encoder = build(network).glance_encoder.to(device)
        batch = max(2, min(32, round(_PROBED_MACS / costs.encoder_macs)))
        images = torch.randn(batch * network.frames, 3, px, px, device=device)
        labels = torch.zeros(batch, dtype=torch.long, device=device)
    encoder.train()

    def step() -> float:
        started = time.perf_counter()
        nn.functional.cross_entropy(encoder.own_head(encoder(images).vector), labels).backward()  # type: ignore[no-untyped-call]
        encoder.zero_grad()
        if images.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    step()  # warm up
    seconds = min(step(), step())
    return TRAINING * batch * costs.encoder_with_head_macs / seconds


def device_words() -> str:
    if torch.accelerator.is_available():
        return str(torch.accelerator.current_accelerator())
    return f"CPU, {torch.get_num_threads()} threads"
