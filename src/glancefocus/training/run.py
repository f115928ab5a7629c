"""A run: a folder with its settings, in which the stages go one after another and from which a killed run goes on.

Nothing random is carried from step to step: order, augmentation, aims and exploration of a step follow from the seed and the step's
number. So a checkpoint needs no state of generators, and a resumed run repeats what a run never killed would have done.
"""

import contextlib
import functools
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from glancefocus.bundle.bundle import Bundle
from glancefocus.bundle.files import read_split
from glancefocus.data.sources import Data, open_data
from glancefocus.errors import BadCheckpoint, BadRun, BadSetting, GlancefocusError
from glancefocus.evaluation.assess import BEST_ACCURACY, assess, look_table
from glancefocus.evaluation.choosing import looks_folder
from glancefocus.evaluation.full_report import Training, read_training_curves, write_report_page
from glancefocus.evaluation.judge import Weights, judge
from glancefocus.evaluation.records import record_looks
from glancefocus.evaluation.rivals import (
    image_size,
    patch_side,
    rival_name,
    sizes_to_tune,
    sizes_with_costs,
    tuned_files,
)
from glancefocus.exits.budget import solve_curve, solve_within
from glancefocus.exits.curve import frozen
from glancefocus.interrupts import handled
from glancefocus.network.build import build, load_encoders
from glancefocus.network.macs import count_costs
from glancefocus.network.model import GlanceFocus
from glancefocus.network.weights import load_exactly, open_safely
from glancefocus.progress import Progress
from glancefocus.settings import to_plain
from glancefocus.training.checkpoint import (
    keep_data,
    load_checkpoint,
    save_weights,
    write_run_file,
)
from glancefocus.training.journal import Journal, Trackers, chosen_trackers, read_metrics
from glancefocus.training.loop import TrainingLoop, build_stage
from glancefocus.training.plan import Plan, measure_plan, parts_that_fit, plan_words, stored_plan
from glancefocus.training.run_folder import (
    BACKBONE_FILE,
    BUNDLE_FOLDER,
    CHECKPOINT_FILE,
    PLAN_FILE,
    REPORT_FOLDER,
    SETTINGS_FILE,
    alike,
    differences,
    locked,
    prepare_folder,
    settings_of,
)
from glancefocus.training.settings import TrainSettings
from glancefocus.training.stage import Workshop


def train(
    settings: TrainSettings,
    folder: Path,
    *,
    asked: dict[str, Any] | None = None,
    quiet: bool = False,
    planned: bool = False,
    reported: bool = False,
    track: Sequence[str] | None = None,
) -> Bundle:
    """Go through all stages, or through what is left of them; returns the bundle that was written at the end.

    asked     what the run was asked for with, see asked_for: it is kept in the folder
    planned   first work out time and memory, say them, and compute batches in parts where they would not fit
    reported  at the end write a page for people into the run's folder
    track     the trackers to send figures to, see chosen_trackers
    Raises Interrupted on Ctrl-C and SIGTERM; what was learnt so far is then in the folder.
    """
    # accelerate must be told that there is no GPU: several processes would each train alone, knowing nothing of the others.
    on_cpu = not torch.accelerator.is_available()
    if settings.precision == "fp16" and on_cpu:
        raise BadSetting("fp16 needs a GPU, and there is none. Use --precision bf16, or leave it out.")
    with handled():
        accelerator = Accelerator(cpu=on_cpu, mixed_precision=settings.precision)
        main = accelerator.is_main_process
        with locked(folder) if main else contextlib.nullcontext():
            if main:
                prepare_folder(folder, settings, asked)
            accelerator.wait_for_everyone()
            trackers = Trackers(folder, to_plain(settings), chosen_trackers(track)) if main else None
            with contextlib.closing(Journal(folder, writes=main, quiet=quiet, trackers=trackers)) as journal:
                return _train(settings, folder, accelerator, journal, quiet=quiet, planned=planned, reported=reported)


def _train(
    settings: TrainSettings,
    folder: Path,
    accelerator: Accelerator,
    journal: Journal,
    *,
    quiet: bool,
    planned: bool,
    reported: bool,
) -> Bundle:
    net = _new_network(settings)  # first, so that a missing file of weights is told at once
    data = _open_data(settings, journal.tell)
    if accelerator.is_main_process:
        keep_data(folder, data.record, begun=(folder / CHECKPOINT_FILE).exists())
    for remark in data.remarks:
        journal.say(remark)
    if data.bad_files:
        journal.say(f"{len(data.bad_files)} files cannot be read and are skipped:")
        for problem in data.bad_files:
            journal.say(f"  {problem}")
    if data.odd_files:
        journal.say(f"{len(data.odd_files)} files are odd but used. The first: {data.odd_files[0]}")
    if settings.network.classes != len(data.classes):
        raise BadRun(f"the data has {len(data.classes)} classes, the network {settings.network.classes}.")
    net.to(accelerator.device)
    workshop = Workshop(net, data, settings, accelerator, journal.tell)
    plan = _planned(workshop, folder, journal) if planned else None
    TrainingLoop(workshop, folder, journal, expected=plan).run()
    if settings.rivals == "tuned":
        tune_rivals(settings, data, accelerator, folder, functools.partial(_go_through, quiet=quiet))
    if accelerator.is_main_process:
        bundle = finish_bundle(net, data, settings, folder, journal.tell)
        bundle.save(folder / BUNDLE_FOLDER)
        if reported:
            write_run_report(bundle, data, settings, folder)
    accelerator.wait_for_everyone()
    return bundle if accelerator.is_main_process else Bundle.load(folder / BUNDLE_FOLDER)


def _planned(workshop: Workshop, folder: Path, journal: Journal) -> Plan:
    """What the run will take: said before it starts; a run that goes on keeps the plan that it started with."""
    settings, accelerator = workshop.settings, workshop.accelerator
    plan = stored_plan(folder / PLAN_FILE, settings)
    if plan is None:
        parts, peak_bytes = parts_that_fit(settings, workshop.data, accelerator.device)
        workshop.settings = replace(settings, accumulation=parts)
        journal.say("measuring a few batches of each stage ...")
        plan = measure_plan(workshop, build_stage, parts, peak_bytes)
        if accelerator.is_main_process:
            text = json.dumps(to_plain(plan), indent=1)
            write_run_file(folder / PLAN_FILE, lambda stream: stream.write(text.encode()))
        journal.say(plan_words(plan, settings, workshop.data, folder, accelerator.device))
    workshop.settings = replace(settings, accumulation=plan.parts)
    journal.expect(plan.total_s)
    return plan


def tune_rivals_of(folder: Path, *, quiet: bool = False) -> None:
    """Tune the backbone of a finished run at smaller sizes, see tune_rivals."""
    settings = settings_of(folder)
    with handled(), locked(folder):
        accelerator = Accelerator(cpu=not torch.accelerator.is_available(), mixed_precision=settings.precision)
        data = _open_data(settings)
        keep_data(folder, data.record, begun=True)  # rivals learn from the images that the run learnt from
        tune_rivals(settings, data, accelerator, folder, functools.partial(_go_through, quiet=quiet))


def _go_through(workshop: Workshop, folder: Path, plan: list[str], *, quiet: bool) -> None:
    """These stages, with a checkpoint and a journal in this folder; what was stopped there goes on."""
    with contextlib.closing(Journal(folder, writes=workshop.accelerator.is_main_process, quiet=quiet)) as journal:
        TrainingLoop(replace(workshop, tell=journal.tell), folder, journal, plan).run()


def _open_data(settings: TrainSettings, progress: Progress | None = None) -> Data:
    """The data of a run, with the record of its split; what trained the bundle that it starts from is not held out from it."""
    before = None if settings.start is None else read_split(Path(settings.start))
    frames = settings.network.frames
    return open_data(settings.data, settings.network.view, progress, frames=frames, recorded=True, before=before)


def _new_network(settings: TrainSettings) -> GlanceFocus:
    if settings.start is not None:
        net = Bundle.load(settings.start).net
        if net.settings.classifier == "recurrent" and min(net.settings.looks, settings.network.looks) > 1:
            net.settings = replace(net.settings, looks=settings.network.looks)  # it answers alike at every look
        different = list(differences(to_plain(net.settings), to_plain(settings.network)))
        if different:
            raise BadRun(f"the bundle {settings.start} is another network: {'; '.join(different[:6])}.")
        return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        net = build(settings.network, pretrained=settings.weights == "pretrained")
    if settings.weights is not None and settings.weights != "pretrained":
        load_encoders(net, settings.weights)
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def threads_per_process(processes: int) -> int:
    """Cores divided among processes, at least one each."""
    return max(1, (os.cpu_count() or 1) // processes)


GoThrough = Callable[[Workshop, Path, list[str]], None]


def load_backbone(settings: TrainSettings, folder: Path) -> GlanceFocus | None:
    """The run's plain backbone, as the focus encoder of a network that is otherwise fresh; None where none was trained."""
    file = folder / BACKBONE_FILE
    if not file.exists():
        return None
    net = build(settings.network)
    try:
        tensors = open_safely(file)
        load_exactly(net.focus_encoder.backbone, tensors, "backbone", str(file))
    except BadCheckpoint as error:
        raise BadRun(f"{error} Delete it to train the backbone again.") from None
    return net


def tune_rivals(
    settings: TrainSettings, data: Data, accelerator: Accelerator, folder: Path, go_through: GoThrough
) -> None:
    """Tune the run's backbone at two smaller sizes, where that is not done yet, with the settings of the stage backbone.

    Each starts from the run's backbone and is kept in its folder as rival-160.safetensors; one that was stopped goes on in
    rival-160/.
    """
    net = load_backbone(settings, folder)
    if net is None:
        return
    network, costs = settings.network, count_costs(settings.network)
    image_hw, patch_px = image_size(data.val, network), patch_side(net.focus_encoder)
    sizes = sizes_with_costs(network, image_hw, patch_px, costs.macs_after_look[0])
    for name in map(rival_name, sizes_to_tune(sizes, costs)):
        if (folder / f"{name}.safetensors").exists():
            continue
        net = load_backbone(settings, folder)
        assert net is not None
        net.to(accelerator.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        if accelerator.is_main_process:
            (folder / name).mkdir(exist_ok=True)
        accelerator.wait_for_everyone()
        go_through(Workshop(net, data, settings, accelerator), folder / name, [name])
        if accelerator.is_main_process:
            save_weights(folder / f"{name}.safetensors", net.focus_encoder.backbone)
            shutil.rmtree(folder / name)


def finish_bundle(
    net: GlanceFocus, data: Data, settings: TrainSettings, folder: Path, tell: Progress | None = None
) -> Bundle:
    """A bundle with thresholds for every budget, chosen on the validation data; what they were chosen from is kept beside it.

    tell  is called with (what, done, total) while rivals answer
    """
    splits = {"train": data.train, "val": data.val, "test": data.test}
    notes: dict[str, Any] = {
        "data": settings.data.source,
        "data_settings": to_plain(settings.data),
        **({} if settings.weights is None else {"weights": Path(settings.weights).name}),
        "images": {name: len(split) for name, split in splits.items() if split is not None},
    }
    bundle = Bundle(net, data.classes, count_costs(settings.network), notes=notes, split=data.record)
    record = record_looks(
        bundle,
        data.val,
        looks_folder(folder / BUNDLE_FOLDER),
        source=settings.data.source,
        name="val",
        workers=settings.data.workers,
    )
    table = look_table(bundle, record)
    if len(table) > 1:
        bundle.curve = solve_curve(table)
        bundle.thresholds = frozen(solve_within(table, None).tolist())
    bundle.notes |= {
        "validation_accuracy_per_look": [round(a, 4) for a in table.accuracy_after_look],
        "thresholds_chosen_on": f"{settings.data.source}, val",
        "thresholds_data": record.about.data,
        "thresholds_for": BEST_ACCURACY,
    }
    aims = last_aims(folder)
    if aims is not None:
        bundle.notes["aims"] = aims
    if settings.rivals != "none":
        weights = Weights(folder / BACKBONE_FILE, tuned_files(folder))
        looks, workers = looks_folder(folder / BUNDLE_FOLDER), settings.data.workers
        verdict = judge(bundle, record, data.val, weights, looks, workers=workers, progress=tell)
        bundle.notes["verdict"] = verdict.to_plain()
    return bundle


def last_aims(folder: Path) -> dict[str, Any] | None:
    """The last comparison of learnt aims with others in a run's journal, see evaluation/aims.py; None where there is none."""
    return next((row["aims"] for row in reversed(read_metrics(folder)) if "aims" in row), None)


def finished_bundle(settings: TrainSettings, folder: Path) -> Bundle | None:
    """The bundle of a run with exactly these settings that is done; None where something is left to do."""
    there = (folder / BUNDLE_FOLDER).is_dir() and (folder / SETTINGS_FILE).exists()
    if not there or not alike(settings_of(folder), settings):
        return None
    checkpoint = load_checkpoint(folder / CHECKPOINT_FILE)
    if checkpoint is None or checkpoint.plan != settings.plan() or checkpoint.stage < len(checkpoint.plan):
        return None
    try:
        bundle = Bundle.load(folder / BUNDLE_FOLDER)
    except GlancefocusError:
        return None  # it is written again
    weights = bundle.net.state_dict()
    # Stages may have been added after it was written.
    same = weights.keys() == checkpoint.net.keys() and all(
        torch.equal(weights[name].cpu(), tensor) for name, tensor in checkpoint.net.items()
    )
    return bundle if same else None


def write_run_report(bundle: Bundle, data: Data, settings: TrainSettings, folder: Path) -> Path:
    """Write the page into the run's folder; returns its file."""
    source = settings.data.source
    record = record_looks(
        bundle, data.val, looks_folder(folder / BUNDLE_FOLDER), source=source, name="val", workers=settings.data.workers
    )
    findings = replace(
        assess(bundle, record, chose=True), aims=bundle.notes.get("aims"), verdict=bundle.notes.get("verdict")
    )
    write_report_page(
        folder / REPORT_FOLDER,
        findings,
        bundle,
        title=f"{folder.name}: {settings.network.backbone} on {source}",
        record=record,
        split=data.val,
        training=Training(read_training_curves(folder), bundle.notes.get("images", {}), data.train),
    )
    return folder / REPORT_FOLDER / "report.html"
