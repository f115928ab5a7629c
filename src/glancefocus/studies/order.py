"""A study with the options of the user: its plan, before anything is trained, and its execution from the first run to the page."""

import functools
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from glancefocus.data.lists import medium_of
from glancefocus.data.sources import classes_of, split_rows
from glancefocus.data.worlds import WORLDS
from glancefocus.errors import BadData, BadSetting
from glancefocus.interrupts import stop_message
from glancefocus.machine import keep_freed_memory
from glancefocus.network.build import build, count_parameters
from glancefocus.network.macs import count_costs
from glancefocus.outcome import Costs
from glancefocus.settings import NetworkSettings
from glancefocus.studies import budgets, curves, pictures, rivals, sizes, tables
from glancefocus.studies.catalogue import Study
from glancefocus.studies.networks import ASSUMED_CLASSES, Run, Scale, Scope
from glancefocus.studies.results import PAGE, About, Result, machine_words, write_study
from glancefocus.studies.rivals import ExitsRun, FinishedExits, check_latencies
from glancefocus.studies.runs import Finished, Measured, OnRun, RunFolder
from glancefocus.training.settings import RecogniseSettings, TrainSettings
from glancefocus.values import from_plain, to_plain

ASSUMED_IMAGES = {False: (1_281_167, 50_000), True: (168_913, 24_777)}  # ImageNet; Something-Something V2
TRAINING = 3  # a backward pass costs about two forward passes
_BYTES = 4
_COPIES = 4  # of the weights: checkpoint with its optimiser, bundle, backbone
_PROBED_MACS = 2e9
MacsPerSecond = Callable[[NetworkSettings, int], float]
"""Called with a network and the side of the encoder's inputs: small inputs use a processor less well than large ones."""


@dataclass(frozen=True)
class PlannedRun:
    """One run: its expected cost, and whether it is trained already.

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
    """All runs of a study, in the order in which they are trained; finished runs are not part of the sums."""

    runs: Sequence[PlannedRun]
    images: tuple[int, int]
    where: str

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
        return {"runs": [asdict(run) for run in self.runs], "images": list(self.images), "where": self.where, **sums}


def plan_runs(
    runs: Iterable[Run], folder: RunFolder, trillions: float | None = None, exits: Iterable[ExitsRun] = ()
) -> StudyPlan:
    """The plan of these runs, and of those that they build on. Nothing is trained.

    trillions  of multiply-adds that are computed each second; None: measured here
    exits      comparison networks, planned with the speed of ours
    """
    speed = measured_speed() if trillions is None else fixed_speed(1e12 * trillions)
    where = f"on this machine ({device_words()})" if trillions is None else f"at {trillions:g}T multiply-adds a second"
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
        state = other.state(folder.folder.parent)
        macs = other.macs(counts[0])
        hours = 0.0 if state == "finished" else macs / speed(network, network.view.height_px) / 3600
        disk = 2.0 * _BYTES * sum(p.numel() for p in other.build().parameters())
        planned[other.content] = PlannedRun(other.name, other.stages, other.seed, state, macs, disk, hours)
    return StudyPlan(list(planned.values()), counts, where)


def _planned(run: Run, folder: RunFolder, counts: tuple[int, int], speed: MacsPerSecond) -> PlannedRun:
    settings = run.settings
    state = "new" if folder.find(run) is None else "finished" if folder.is_finished(run) else "begun"
    macs = training_macs(settings, *counts)
    nodes = sum(settings.network.view_choices**look for look in range(settings.network.looks))
    records = counts[1] * nodes * 4 * _BYTES
    disk = _COPIES * _BYTES * _parameters(settings.network) + records
    on_images = set(settings.stages) <= {"small", "backbone"}
    px = settings.network.view.height_px if on_images else settings.network.glance_px
    hours = macs / speed(settings.network, px) / 3600 if state != "finished" else 0.0
    return PlannedRun(run.name, settings.stages, settings.seed, state, macs, disk, hours)


def image_counts(settings: TrainSettings) -> tuple[int, int]:
    """(training, validation) images of a data set; those of the paper's data set if there is none."""
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


def fixed_speed(macs_per_second: float) -> MacsPerSecond:
    return lambda network, px: macs_per_second


def measured_speed() -> MacsPerSecond:
    """A function that measures how many multiply-adds this machine computes a second when it trains an encoder; once for each."""
    known: dict[str, float] = {}

    def speed(network: NetworkSettings, px: int) -> float:
        key = str([network.backbone, sorted(to_plain(network)["backbone_options"].items()), px])
        if key not in known:
            known[key] = _measure(network, px)
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


def _measure(network: NetworkSettings, px: int) -> float:
    device = (
        torch.accelerator.current_accelerator() or torch.device("cpu") if torch.accelerator.is_available() else "cpu"
    )
    costs = _costs(network)
    macs = costs.encoder_macs * (px / network.glance_px) ** 2
    with torch.random.fork_rng(devices=[]):
        encoder = build(network).glance_encoder.to(device)
        batch = max(2, min(32, round(_PROBED_MACS / macs)))
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
    return TRAINING * batch * macs / seconds


def device_words() -> str:
    if torch.accelerator.is_available():
        return str(torch.accelerator.current_accelerator())
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'s' if threads > 1 else ''}"


@dataclass(frozen=True)
class Parts:
    """What a study trains and computes.

    runs     {name: run} for one seed
    measure  computes the result from the finished runs
    exits    {name: comparison network with several exits} for one seed; None: there are none
    """

    runs: Callable[[Scope], Mapping[str, Run]]
    measure: Callable[[Measured], Result]
    exits: Callable[[Scope], Mapping[str, ExitsRun]] | None = None


PARTS: dict[str, Parts] = {
    "main": Parts(curves.main_runs, curves.main_result),
    "anytime": Parts(curves.anytime_runs, curves.anytime_result),
    "msdnet": Parts(rivals.msdnet_runs, rivals.msdnet_result, rivals.exits_runs),
    "phone": Parts(rivals.phone_runs, rivals.phone_result),
    "gpu": Parts(rivals.gpu_runs, rivals.gpu_result),
    "rewards": Parts(tables.reward_runs, tables.reward_result),
    "sizes": Parts(sizes.size_runs, sizes.size_result),
    "resolution": Parts(curves.resolution_runs, curves.resolution_result),
    "traffic-signs": Parts(pictures.traffic_runs, pictures.traffic_result),
    "video": Parts(pictures.video_runs, pictures.video_result),
    "looks": Parts(curves.expected_runs, curves.expected_result),
    "length-and-size": Parts(curves.length_runs, curves.length_result),
    "ablation": Parts(tables.ablation_runs, tables.ablation_result),
    "policies": Parts(tables.policy_runs, tables.policy_result),
    "criteria": Parts(budgets.criteria_runs, budgets.criteria_result),
    "sensitivity": Parts(tables.sensitivity_runs, tables.sensitivity_result),
    "heatmap": Parts(pictures.picture_runs, pictures.heatmap_result),
    "gallery": Parts(pictures.picture_runs, pictures.gallery_result),
}
"""{name of a study: its parts}."""


@dataclass(frozen=True)
class Order:
    """A study with the options of the user.

    data         None: the built-in data set of the study at scale tiny; at scale paper only its plan can be made
    scale        None: tiny for built-in data, otherwise paper
    seeds        None: the study's own number
    weights, assignments  see Scope
    """

    study: Study
    data: str | None = None
    scale: Scale | None = None
    seeds: int | None = None
    weights: str = "pretrained"
    assignments: tuple[str, ...] = ()

    @property
    def scope(self) -> Scope:
        """The scope of the first seed."""
        scale: Scale = self.scale or ("tiny" if self.data is None or self.data in WORLDS else "paper")
        data = self.study.world if self.data is None and scale == "tiny" else self.data
        if scale == "tiny" and data != self.study.world:
            raise BadData(
                f"at scale tiny the study {self.study.name} uses the built-in data set {self.study.world}, but got {data}. "
                "Leave the data out, or use --scale paper for your own."
            )
        if scale == "tiny" and self.weights not in ("pretrained", "none"):
            raise BadSetting(
                f"at scale tiny networks are trained from random initialisation, but got --weights {self.weights}. Leave it out."
            )
        return Scope(scale, data, 0, self.weights, self.assignments)

    @property
    def seed_count(self) -> int:
        return self.seeds or self.study.seeds[0 if self.scope.scale == "tiny" else 1]

    def exits(self) -> Mapping[str, Sequence[ExitsRun]]:
        """{name: one comparison network with several exits for each seed}."""
        exits = PARTS[self.study.name].exits
        if exits is None:
            return {}
        each = [exits(replace(self.scope, seed=seed)) for seed in range(self.seed_count)]
        return {name: [runs[name] for runs in each] for name in each[0]}

    def runs(self) -> Mapping[str, Sequence[Run]]:
        """{name: one run for each seed}."""
        scope = self.scope
        if scope.data is not None:
            _check_medium(self.study, scope.data)
        each = [PARTS[self.study.name].runs(replace(scope, seed=seed)) for seed in range(self.seed_count)]
        return {name: [runs[name] for runs in each] for name in each[0]}

    @property
    def command(self) -> str:
        words = ["gf study", self.study.name, *([self.data] if self.data else [])]
        words += [f"--scale {self.scale}"] if self.scale else []
        words += [f"--seeds {self.seeds}"] if self.seeds else []
        words += [f"--weights {self.weights}"] if self.weights != "pretrained" else []
        return " ".join([*words, *(f"--set {text}" for text in self.assignments)])


def _check_medium(study: Study, data: str) -> None:
    """Refuse clips for a study of images, and the other way round."""
    frames = 8 if study.clips else 1
    noun = medium_of(frames).noun
    if data in WORLDS and data != study.world:
        raise BadData(
            f"the study {study.name} needs {noun}, so of the built-in data sets only {study.world}, but got {data}."
        )
    try:
        classes_of(data, frames)
    except BadData as error:
        raise BadData(f"the study {study.name} needs {noun}: {error}") from None


def plan_study(order: Order, folder: Path, trillions: float | None = None) -> StudyPlan:
    """What a study would train; nothing is trained.

    trillions  of multiply-adds that are computed each second; None: measured here
    """
    runs = [run for each in order.runs().values() for run in each]
    others = [run for each in order.exits().values() for run in each]
    return plan_runs(runs, RunFolder(folder), trillions, others)


def run_study(
    order: Order,
    folder: Path,
    *,
    quiet: bool = False,
    on_run: OnRun | None = None,
    latency: Path | None = None,
) -> tuple[About, Result]:
    """Train the runs of a study that are missing, measure, and write everything into folder/NAME.

    Runs are in folder/runs and shared by all studies. A study that was stopped continues where it stopped.
    """
    scope = order.scope
    if scope.data is None:
        raise BadSetting(
            f"the study {order.study.name} at scale paper needs the paper's data. Name its folder; --plan works without it."
        )
    keep_freed_memory()
    runs, planned = RunFolder(folder), order.runs()
    if latency is not None:
        check_latencies(latency, planned)
    finished: dict[str, list[Finished]] = {}
    for name, each in planned.items():
        finished[name] = [runs.train(run, quiet=quiet, on_run=on_run) for run in each]
    others = {name: [FinishedExits(run, folder, on_run) for run in each] for name, each in order.exits().items()}
    about = About(order.study, scope.scale, scope.data, order.seed_count, order.command, machine_words())
    kept = f"stopped while the networks were measured; they are kept in {runs.folder}. Run the same command again to continue."
    with stop_message(kept):
        result = PARTS[order.study.name].measure(Measured(scope, finished, others, latency))
        write_study(folder / order.study.name, about, result)
    return about, result


def page_of_study(folder: Path, study: Study) -> Path:
    return folder / study.name / PAGE
