"""The plan of a run, made before it starts: the time of each stage, measured on a few batches, and the plan as printed."""

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from glancefocus.data.sources import Data
from glancefocus.data.splits import first_images, scene_batches
from glancefocus.errors import BadRun, BadSetting
from glancefocus.evaluation.rivals import image_size, patch_side, rivals_to_tune
from glancefocus.exits.record import view_words
from glancefocus.machine import read_json
from glancefocus.network.macs import count_costs
from glancefocus.progress import duration
from glancefocus.training.fitted import EFFORTS
from glancefocus.training.memory import gigabytes, stage_images
from glancefocus.training.settings import TrainSettings
from glancefocus.training.stage import Moment, NonFinite, Stage, TrainingContext, what_to_lower
from glancefocus.training.teacher import Teacher
from glancefocus.values import from_plain, one_line

BuildStage = Callable[[str, TrainingContext], Stage]

_PROBED_IMAGES = 32  # at most, of a batch and of the validation images
_PROBE_S = 3.0  # a longer update is measured on fewer images
_FINISH_PASSES = 6  # passes over the validation images after the last stage: look record, other aims, rivals
_MOST_PLAN_BYTES = 1 << 20


@dataclass(frozen=True)
class StagePlan:
    """The expected times of one stage: seconds per update and per validation.

    half_size  share of the stage, its beginning, whose updates take a quarter of update_s
    """

    name: str
    epochs: int
    updates: int
    update_s: float
    validation_s: float
    half_size: float = 0.0

    @property
    def total_s(self) -> float:
        return self.done_s(self.epochs)

    def done_s(self, epoch: int, step: int = 0) -> float:
        """The expected seconds before this step."""
        steps = epoch * self.updates + step
        cheap = min(steps, self.half_size * self.epochs * self.updates)
        return (steps - 0.75 * cheap) * self.update_s + epoch * self.validation_s


@dataclass(frozen=True)
class Plan:
    """The expected time and memory of a run.

    stages    in their order
    finish_s  after the last stage, without rivals_s
    rivals_s  of tuning the rivals
    parts     number of parts in which a batch is computed to fit the memory (TrainSettings.accumulation, or more)
    """

    stages: tuple[StagePlan, ...]
    finish_s: float
    peak_bytes: int
    parts: int = 1
    rivals_s: float = 0.0

    @property
    def total_s(self) -> float:
        return sum(stage.total_s for stage in self.stages) + self.finish_s + self.rivals_s

    def done_s(self, index: int, epoch: int = 0, step: int = 0) -> float:
        """The expected seconds before this step of this stage."""
        before = sum(stage.total_s for stage in self.stages[:index])
        return before if index >= len(self.stages) else before + self.stages[index].done_s(epoch, step)


@dataclass(frozen=True)
class StageTimes:
    """Measured seconds of a stage.

    fixed_s       of an update, whatever its number of images
    image_s       of an update, for each image
    validation_s  of validation, for each image
    """

    fixed_s: float
    image_s: float
    validation_s: float

    def update_s(self, images: int) -> float:
        return self.fixed_s + images * self.image_s


def stored_plan(file: Path, settings: TrainSettings) -> Plan | None:
    """The plan that a run was started with; None if there is none, or if it has other stages."""
    try:
        plan = from_plain(Plan, read_json(file, _MOST_PLAN_BYTES), file.name)
    except (OSError, BadSetting):  # a damaged plan is simply measured again
        return None
    stages = [(stage.name, stage.epochs) for stage in plan.stages]
    same = stages == [(name, getattr(settings, name).epochs) for name in settings.plan()]
    return plan if same and settings.accumulation <= plan.parts <= settings.batch_size else None


def measure_plan(context: TrainingContext, build_stage: BuildStage, parts: int, peak_bytes: int) -> Plan:
    """Measure a few updates and a small validation of each stage, on a copy of the network."""
    settings, data = context.settings, context.data
    alone = replace(settings, data=replace(settings.data, workers=0))  # starting workers takes longer than measuring
    net = copy.deepcopy(context.net)
    few = replace(data, train=first_images(data.train, 2 * _PROBED_IMAGES), val=first_images(data.val, _PROBED_IMAGES))
    scratch = replace(context, net=net, data=few, settings=alone, on_progress=None, known_evidence=None)
    scaler = context.accelerator.scaler
    kept_scale = None if scaler is None else copy.deepcopy(scaler.state_dict())
    measured: dict[str, StageTimes] = {}
    first_taught: str | None = None  # the teacher's kept lessons are computed there
    for name in dict.fromkeys(settings.plan()):
        if scratch.teacher is None and settings.is_taught(name):
            scratch.teacher, first_taught = Teacher(net.focus_encoder, scratch), name
        stage = build_stage(name, scratch)
        try:
            measured[name] = _timed(stage, scratch)
        except NonFinite as error:
            raise BadRun(
                f"{error} in the first updates of the stage {name}: its learning rate is too high for this data, or the input "
                f"values are too large. {what_to_lower(name, settings)}, or check network.view.mean and network.view.std."
            ) from None
        context.accelerator.free_memory()
    if scaler is not None:
        scaler.load_state_dict(kept_scale)
    stages = []
    for name in settings.plan():
        own: Any = getattr(settings, name)
        images, held_out = stage_images(name, settings, data)
        times = measured[name]
        batch, cheap = min(settings.batch_size, images), getattr(own, "half_size", 0.0)
        update_s = times.update_s(batch)
        if name == first_taught and scratch.teacher is not None:
            update_s += batch * scratch.teacher.seconds_per_image / max(1, own.epochs)
            first_taught = None
        stages.append(StagePlan(name, own.epochs, images // batch, update_s, held_out * times.validation_s, cheap))
    dearest = max(times.validation_s for times in measured.values())
    finish_s = 10 + _FINISH_PASSES * len(data.val) * dearest
    rivals_s = _rivals_s(context, measured["backbone"]) if "backbone" in measured else 0.0
    return Plan(tuple(stages), finish_s, peak_bytes, parts, rivals_s)


def _rivals_s(context: TrainingContext, times: StageTimes) -> float:
    """Seconds of tuning the rivals, from the times of the stage backbone."""
    settings, data = context.settings, context.data
    if settings.rivals != "tuned":
        return 0.0
    costs, token_px = count_costs(settings.network), patch_side(context.net.focus_encoder)
    image_hw = image_size(data.val, settings.network)
    macs = sum(rivals_to_tune(settings.network, image_hw, token_px, costs).values())
    batch = min(settings.batch_size, len(data.train))
    epoch_s = len(data.train) // batch * times.update_s(batch) + len(data.val) * times.validation_s
    return settings.glance.epochs * epoch_s * macs / costs.backbone_macs


def _timed(stage: Stage, context: TrainingContext) -> StageTimes:
    """The times of a stage, from updates of two sizes and a small validation."""
    view, device = context.settings.network.view, context.accelerator.device
    train, val = first_images(stage.data.train, _PROBED_IMAGES), first_images(stage.data.val, _PROBED_IMAGES)
    stage.train_mode()

    def learn(count: int) -> float:
        rows = list(range(count))
        started = time.perf_counter()
        for images, labels in scene_batches(train, view, [rows], 0):
            # Not at the beginning of the stage: its learning rate may begin with 0, and its images with half of their size.
            moment = Moment(0.95, torch.Generator().manual_seed(0), torch.as_tensor(rows), 0)
            stage.update(images.to(device), labels.to(device), moment)
        return time.perf_counter() - started

    batch = min(context.settings.batch_size, _PROBED_IMAGES, len(train))
    learn(min(2, batch))  # warm up: the optimiser makes its state
    few = min(4, batch)
    first = learn(few)
    many = max(few, min(batch, math.floor(few * _PROBE_S / max(first, 1e-6))))
    update = min(learn(many), learn(many))
    stage.validate(val)
    started = time.perf_counter()
    stage.validate(val)
    return times_from(few, min(first, learn(few)), many, update, (time.perf_counter() - started) / len(val))


def times_from(few: int, few_s: float, many: int, many_s: float, validation_s: float) -> StageTimes:
    """The times of a stage, from updates with few and with many images that took few_s and many_s seconds.

    Some of the time of an update does not depend on the number of images: the optimiser changes every weight. For the large policy
    of a ResNet this takes up to a second, which must not be counted once for every image.
    """
    if many <= few:
        return StageTimes(0.0, many_s / many, validation_s)
    per_image = min(max(0.0, (many_s - few_s) / (many - few)), many_s / many)
    return StageTimes(many_s - many * per_image, per_image, validation_s)


_SHOWN_CLASSES = 12


def plan_words(plan: Plan, settings: TrainSettings, data: Data, folder: Path, device: torch.device) -> str:
    """The plan as printed before training: one line each for data, network, stages, batch, device, memory, time and folder."""
    rows = [
        ("data", _data_words(settings, data)),
        ("classes", _class_words(data)),
        ("network", _network_words(settings)),
        ("stages", ", ".join(f"{stage.name} {stage.epochs}" for stage in plan.stages) + " (epochs)"),
        ("batch", _batch_words(plan, settings)),
        ("device", _device_words(device)),
        ("memory", f"about {gigabytes(plan.peak_bytes)} at most"),
        ("time", _time_words(plan)),
        ("folder", str(folder)),
    ]
    other = _other_efforts(plan, settings)
    if other:
        rows.append(("or", other))
    return "\n".join(f"{name:<8} {words}" for name, words in rows)


def _data_words(settings: TrainSettings, data: Data) -> str:
    counts = f"{len(data.train):,} for training, {len(data.val):,} for validation"
    if data.test is not None:
        counts += f", {len(data.test):,} for testing"
    return f"{settings.data.source}: {counts}"


def _class_words(data: Data) -> str:
    train, val = (
        torch.bincount(split.labels, minlength=len(data.classes)).tolist() for split in (data.train, data.val)
    )
    counts = zip(data.classes[:_SHOWN_CLASSES], train, val, strict=False)
    shown = [f"{one_line(name, 60)} {a}+{b}" for name, a, b in counts]
    more = f", and {len(data.classes) - len(shown)} more" if len(data.classes) > len(shown) else ""
    return f"{len(data.classes)} (training + validation): {', '.join(shown)}{more}"


def _network_words(settings: TrainSettings) -> str:
    network = settings.network
    weights = settings.start or settings.weights or "random initialisation"
    size = f"{network.view.height_px}x{network.view.width_px} px"
    view = "images of any size" if network.view.fit == "whole" else size
    patches = view_words(network.focus)
    patches = patches if patches.startswith("patches") else f"looks at {patches}"
    frames = f", {network.frames} frames per clip" if network.frames > 1 else ""
    return (
        f"{network.backbone} ({weights}), {network.first_words}, then up to {network.looks - 1} {patches}, "
        f"from {view}{frames}"
    )


def _batch_words(plan: Plan, settings: TrainSettings) -> str:
    updates = max((stage.updates for stage in plan.stages), default=0)
    words = f"{settings.batch_size} images, {updates} updates per epoch"
    return words if plan.parts == 1 else f"{words}; computed in {plan.parts} parts to fit the memory"


def _device_words(device: torch.device) -> str:
    if device.type == "cpu":
        return f"CPU, {torch.get_num_threads()} threads"
    return str(torch.cuda.get_device_name(device)) if device.type == "cuda" else device.type


def _time_words(plan: Plan) -> str:
    seconds: dict[str, float] = {}
    for stage in plan.stages:
        seconds[stage.name] = seconds.get(stage.name, 0.0) + stage.total_s
    seconds |= {"rivals": plan.rivals_s} if plan.rivals_s > 0 else {}
    parts = ", ".join(f"{name} {duration(s)}" for name, s in seconds.items())
    return f"about {duration(plan.total_s)}, measured on a few batches ({parts}, final evaluation {duration(plan.finish_s)})"


def _other_efforts(plan: Plan, settings: TrainSettings) -> str:
    learning = plan.total_s - plan.finish_s
    words = []
    for effort, what in (("quick", "shorter"), ("thorough", "better")):
        if settings.effort != effort:
            seconds = learning * EFFORTS[effort] / EFFORTS[settings.effort] + plan.finish_s  # type: ignore[index]
            words.append(f"{what}: --{effort} (about {duration(seconds)})")
    return "; ".join(words)
