"""The plan of a run as people read it, before anything is learnt."""

from pathlib import Path

import torch

from glancefocus.data.datasets import Data
from glancefocus.escaping import one_line
from glancefocus.training.fitted import EFFORTS
from glancefocus.training.plan import Plan, gigabytes
from glancefocus.training.settings import TrainSettings

_SHOWN_CLASSES = 12


def plan_words(plan: Plan, settings: TrainSettings, data: Data, folder: Path, device: torch.device) -> str:
    """Images, network, stages, batch, memory, time and place, a line each; and how to make the run shorter or better."""
    rows = [
        ("data", _data_words(settings, data)),
        ("classes", _class_words(data)),
        ("network", _network_words(settings)),
        ("stages", ", ".join(f"{stage.name} {stage.epochs}" for stage in plan.stages) + " (epochs)"),
        ("batch", _batch_words(plan, settings)),
        ("device", _device_words(device)),
        ("memory", f"about {gigabytes(plan.peak_bytes)} at the most"),
        ("time", _time_words(plan)),
        ("folder", str(folder)),
    ]
    other = _other_efforts(plan, settings)
    if other:
        rows.append(("or", other))
    return "\n".join(f"{name:<8} {words}" for name, words in rows)


def duration(seconds: float) -> str:
    """45 s, 12 min, 3.5 h, 4.2 days."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"


def _data_words(settings: TrainSettings, data: Data) -> str:
    counts = f"{len(data.train):,} to learn from, {len(data.val):,} held out for validation"
    if data.test is not None:
        counts += f", {len(data.test):,} for the test"
    return f"{settings.data.source}: {counts}"


def _class_words(data: Data) -> str:
    learnt = torch.bincount(data.train.labels, minlength=len(data.classes)).tolist()
    held = torch.bincount(data.val.labels, minlength=len(data.classes)).tolist()
    shown = [f"{one_line(name, 60)} {a}+{b}" for name, a, b in zip(data.classes, learnt, held, strict=True)][
        :_SHOWN_CLASSES
    ]
    more = f", and {len(data.classes) - len(shown)} more" if len(data.classes) > len(shown) else ""
    return f"{len(data.classes)} (to learn from + held out): {', '.join(shown)}{more}"


def _network_words(settings: TrainSettings) -> str:
    network = settings.network
    weights = settings.start or settings.weights or "random initialisation"
    view = (
        "images of their own size"
        if network.view.fit == "whole"
        else f"{network.view.height_px}x{network.view.width_px} px"
    )
    patches = "/".join(str(px) for px in network.patch_px)
    frames = f", {network.frames} frames a clip" if network.frames > 1 else ""
    return (
        f"{network.backbone} ({weights}), glance of {network.glance_px} px, then up to {network.looks - 1} patches of "
        f"{patches} px, out of {view}{frames}"
    )


def _batch_words(plan: Plan, settings: TrainSettings) -> str:
    updates = max((stage.updates for stage in plan.stages), default=0)
    words = f"{settings.batch_size} images, {updates} updates an epoch"
    return words if plan.parts == 1 else f"{words}; computed in {plan.parts} parts, for the memory"


def _device_words(device: torch.device) -> str:
    if device.type == "cpu":
        return f"CPU, {torch.get_num_threads()} threads"
    return str(torch.cuda.get_device_name(device)) if device.type == "cuda" else device.type


def _time_words(plan: Plan) -> str:
    seconds: dict[str, float] = {}
    for stage in plan.stages:
        seconds[stage.name] = seconds.get(stage.name, 0.0) + stage.total_s
    parts = ", ".join(f"{name} {duration(s)}" for name, s in seconds.items())
    return f"about {duration(plan.total_s)}, measured on a few batches ({parts}, measuring the result {duration(plan.finish_s)})"


def _other_efforts(plan: Plan, settings: TrainSettings) -> str:
    learning = plan.total_s - plan.finish_s
    words = []
    for effort, what in (("quick", "shorter"), ("thorough", "better")):
        if settings.effort != effort:
            seconds = learning * EFFORTS[effort] / EFFORTS[settings.effort] + plan.finish_s  # type: ignore[index]
            words.append(f"{what}: --{effort} (about {duration(seconds)})")
    return "; ".join(words)
