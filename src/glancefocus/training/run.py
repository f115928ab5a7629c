"""A run: the stages one after another, then the bundle with thresholds for every budget and the report, all in one folder.

No random state is carried from step to step: order, augmentation, aims and exploration of a step follow from the seed and the
step's number. So a checkpoint needs no random state, and a resumed run repeats what an uninterrupted run would have done.
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
from glancefocus.evaluation.choosing import fit_temperatures
from glancefocus.evaluation.every_look import noted_aims, seen_at_once
from glancefocus.evaluation.latency import measure_rival_times
from glancefocus.evaluation.records import looks_folder, record_looks
from glancefocus.evaluation.report import Training, read_training_curves, write_report
from glancefocus.evaluation.rivals import (
    Weights,
    image_size,
    judge,
    patch_side,
    rival_name,
    rivals_to_tune,
    tuned_files,
)
from glancefocus.evaluation.verdict import noted_verdict
from glancefocus.exits.budget import solve_curve, thresholds_of_a_run
from glancefocus.exits.record import LookRecord
from glancefocus.interrupts import handled
from glancefocus.loop import frozen
from glancefocus.network.build import build, load_exactly
from glancefocus.network.macs import count_costs
from glancefocus.network.model import GlanceFocus
from glancefocus.network.weights import load_encoders, open_safely
from glancefocus.progress import Progress
from glancefocus.training.checkpoint import keep_data, load_checkpoint, save_weights, write_run_file
from glancefocus.training.journal import Journal, Trackers, chosen_trackers, read_metrics
from glancefocus.training.large_recipes import check_regions
from glancefocus.training.loop import TrainingLoop, build_stage
from glancefocus.training.memory import parts_that_fit
from glancefocus.training.plan import Plan, measure_plan, plan_words, stored_plan
from glancefocus.training.run_folder import (
    BACKBONE_FILE,
    BUNDLE_FOLDER,
    CHECKPOINT_FILE,
    PLAN_FILE,
    REPORT_FOLDER,
    SETTINGS_FILE,
    Asked,
    alike,
    differences,
    locked,
    prepare_folder,
    settings_of,
)
from glancefocus.training.settings import TrainSettings
from glancefocus.training.stage import TrainingContext
from glancefocus.training.teacher import Teacher, open_teacher
from glancefocus.values import to_plain


def train(
    settings: TrainSettings,
    folder: Path,
    *,
    asked: Asked | None = None,
    quiet: bool = False,
    planned: bool = False,
    reported: bool = False,
    track: Sequence[str] | None = None,
) -> Bundle:
    """Run all stages, or the remaining ones of a run that was stopped; returns the bundle that is written at the end.

    asked     the options that the run was started with, see asked_for; they are kept in the folder
    planned   first measure time and memory, print them, and compute batches in parts if they would not fit
    reported  write a report page into the run's folder at the end
    track     the trackers to use, see chosen_trackers
    Raises Interrupted on Ctrl-C and SIGTERM, after a checkpoint was written.
    """
    # Without cpu=True accelerate starts no process group on a machine without a GPU: each process would train on its own.
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
    net = _new_network(settings)  # first, so that a missing file of weights is reported at once
    data = _open_data(settings, journal.show_progress)
    if accelerator.is_main_process:
        keep_data(folder, data.record, begun=(folder / CHECKPOINT_FILE).exists())
    for remark in data.remarks:
        journal.print(remark)
    if data.bad_files:
        journal.print(f"{len(data.bad_files)} files cannot be read and are skipped:")
        for problem in data.bad_files:
            journal.print(f"  {problem}")
    if data.odd_files:
        journal.print(f"{len(data.odd_files)} files are unusual but are used. The first: {data.odd_files[0]}")
    if settings.network.classes != len(data.classes):
        raise BadRun(f"the data has {len(data.classes)} classes, the network {settings.network.classes}.")
    check_regions(settings, data)
    net.to(accelerator.device)
    context = TrainingContext(net, data, settings, accelerator, journal.show_progress)
    if settings.teacher is not None:
        # Now, so that a file that does not fit is reported at once.
        context.teacher = open_teacher(Path(settings.teacher), context)
        if "backbone" not in settings.stages:
            _take_as_backbone(context.teacher, context, folder)
    plan = _planned(context, folder, journal) if planned else None
    TrainingLoop(context, folder, journal, expected=plan).run()
    if settings.rivals == "tuned":
        tune_rivals(settings, data, accelerator, folder, functools.partial(_run_stages, quiet=quiet))
    if accelerator.is_main_process:
        bundle = finish_bundle(net, data, settings, folder, journal.show_progress)
        bundle.save(folder / BUNDLE_FOLDER)
        if reported:
            write_run_report(bundle, data, settings, folder)
    accelerator.wait_for_everyone()
    return bundle if accelerator.is_main_process else Bundle.load(folder / BUNDLE_FOLDER)


def _take_as_backbone(teacher: Teacher, context: TrainingContext, folder: Path) -> None:
    """The teacher is the plain backbone of a run that does not train one: the baseline to beat, and the encoder of whole images.

    A shared encoder starts from it, unless it was trained before.
    """
    net, encoders = context.net, [context.net.whole_encoder]
    if net.settings.shared_encoder:
        encoders = [net.glance_encoder, net.focus_encoder, *encoders] if context.settings.start is None else []
    for encoder in encoders:
        if encoder is not None:
            encoder.load_state_dict(teacher.encoder.state_dict())
    if context.accelerator.is_main_process:
        save_weights(folder / BACKBONE_FILE, teacher.encoder.backbone)


def _planned(context: TrainingContext, folder: Path, journal: Journal) -> Plan:
    """Measure and print the plan of a new run; a resumed run keeps the plan that it was started with."""
    settings, accelerator = context.settings, context.accelerator
    plan = stored_plan(folder / PLAN_FILE, settings)
    if plan is None:
        parts, peak_bytes = parts_that_fit(settings, context.data, accelerator.device)
        context.settings = replace(settings, accumulation=parts)
        journal.print("measuring a few batches of each stage ...")
        plan = measure_plan(context, build_stage, parts, peak_bytes)
        if accelerator.is_main_process:
            text = json.dumps(to_plain(plan), indent=1)
            write_run_file(folder / PLAN_FILE, lambda stream: stream.write(text.encode()))
        journal.print(plan_words(plan, settings, context.data, folder, accelerator.device))
    context.settings = replace(settings, accumulation=plan.parts)
    journal.expect(plan.total_s)
    return plan


def tune_rivals_of(folder: Path, *, quiet: bool = False) -> None:
    """Tune the backbone of a finished run at smaller sizes, see tune_rivals."""
    settings = settings_of(folder)
    with handled(), locked(folder):
        accelerator = Accelerator(cpu=not torch.accelerator.is_available(), mixed_precision=settings.precision)
        data = _open_data(settings)
        keep_data(folder, data.record, begun=True)  # rivals are trained on the same images as the run
        tune_rivals(settings, data, accelerator, folder, functools.partial(_run_stages, quiet=quiet))


def _run_stages(context: TrainingContext, folder: Path, plan: list[str], *, quiet: bool) -> None:
    """Run these stages with a checkpoint and a journal in this folder, from its checkpoint on if there is one."""
    with contextlib.closing(Journal(folder, writes=context.accelerator.is_main_process, quiet=quiet)) as journal:
        TrainingLoop(replace(context, on_progress=journal.show_progress), folder, journal, plan).run()


def _open_data(settings: TrainSettings, progress: Progress | None = None) -> Data:
    """The data of a run, with the record of its split. Images that trained the bundle that it starts from are not held out."""
    before = None if settings.start is None else read_split(Path(settings.start))
    frames = settings.network.frames
    return open_data(settings.data, settings.network.view, progress, frames=frames, recorded=True, before=before)


def _new_network(settings: TrainSettings) -> GlanceFocus:
    if settings.start is not None:
        net = Bundle.load(settings.start).net
        if net.settings.classifier == "recurrent" and min(net.settings.looks, settings.network.looks) > 1:
            # A recurrent classifier is the same at every look, so the number of looks may change.
            net.settings = replace(net.settings, looks=settings.network.looks)
        different = list(differences(to_plain(net.settings), to_plain(settings.network)))
        if different:
            raise BadRun(
                f"the bundle {settings.start} has another network: {'; '.join(different[:6])}. Use the same network settings."
            )
        return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        net = build(settings.network, pretrained=settings.weights == "pretrained")
    if settings.weights is not None and settings.weights != "pretrained":
        load_encoders(net, settings.weights)
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def threads_per_process(processes: int) -> int:
    """Number of cores per process, at least one."""
    return max(1, (os.cpu_count() or 1) // processes)


RunStages = Callable[[TrainingContext, Path, list[str]], None]
"""Runs stages, with their checkpoint in a folder."""


def load_backbone(settings: TrainSettings, folder: Path) -> GlanceFocus | None:
    """The run's plain backbone, as the focus encoder of a network with otherwise random weights; None if none was trained."""
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
    settings: TrainSettings, data: Data, accelerator: Accelerator, folder: Path, run_stages: RunStages
) -> None:
    """Fine-tune the run's backbone at smaller sizes, unless that is done already, with the settings of the stage glance.

    Each starts from the run's backbone and is kept in its folder as, for example, rival-160.safetensors. Its checkpoint is in
    rival-160/ until it is done.
    """
    net = load_backbone(settings, folder)
    if net is None:
        return
    network = settings.network
    image_hw, token_px = image_size(data.val, network), patch_side(net.focus_encoder)
    teacher: Teacher | None = None  # one for all: its kept lessons do not depend on the size
    for name in map(rival_name, rivals_to_tune(network, image_hw, token_px, count_costs(network))):
        if (folder / f"{name}.safetensors").exists():
            continue
        net = load_backbone(settings, folder)
        assert net is not None
        net.to(accelerator.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        if accelerator.is_main_process:
            (folder / name).mkdir(exist_ok=True)
        accelerator.wait_for_everyone()
        context = TrainingContext(net, data, settings, accelerator)
        if settings.is_taught(name):
            teacher = teacher or open_teacher(Path(settings.teacher or folder / BACKBONE_FILE), context)
            context.teacher = teacher
        run_stages(context, folder / name, [name])
        if accelerator.is_main_process:
            save_weights(folder / f"{name}.safetensors", net.focus_encoder.backbone)
            shutil.rmtree(folder / name)


def finish_bundle(
    net: GlanceFocus, data: Data, settings: TrainSettings, folder: Path, on_progress: Progress | None = None
) -> Bundle:
    """A bundle with thresholds for every budget, chosen on the validation data; its look record is kept beside it.

    on_progress  is called with (what, done, total) while rivals are evaluated
    """
    splits = {"train": data.train, "val": data.val, "test": data.test}
    notes: dict[str, Any] = {
        "data": settings.data.source,
        "data_settings": to_plain(settings.data),
        **({} if settings.weights is None else {"weights": Path(settings.weights).name}),
        "images": {name: len(split) for name, split in splits.items() if split is not None},
    }
    bundle = Bundle(net, data.classes, count_costs(settings.network), notes=notes, split=data.record)
    if settings.calibrate and len(data.val) > 1:
        batch, workers = _looked_at_once(settings), settings.data.workers
        bundle.temperatures = fit_temperatures(net, data.val, batch_size=batch, workers=workers, device=bundle.device)
    record = _record_of_validation(bundle, data, settings, folder)
    table = look_table(bundle, record)
    if len(table) > 1:
        bundle.curve = solve_curve(table)
        bundle.thresholds = frozen(thresholds_of_a_run(table, bundle.costs.backbone_macs).tolist())
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
        verdict = judge(
            bundle,
            record,
            data.val,
            weights,
            looks,
            workers=workers,
            progress=on_progress,
            measure_times=measure_rival_times,
            chose=True,
        )
        bundle.notes["verdict"] = verdict.to_plain()
    return bundle


def _record_of_validation(bundle: Bundle, data: Data, settings: TrainSettings, folder: Path) -> LookRecord:
    """The look record of the validation images; it is kept beside the bundle, so the second call only reads it."""
    looks, source = looks_folder(folder / BUNDLE_FOLDER), settings.data.source
    batch, workers = _looked_at_once(settings), settings.data.workers
    return record_looks(bundle, data.val, looks, source=source, name="val", batch_size=batch, workers=workers)


def _looked_at_once(settings: TrainSettings) -> int:
    """The batch size for all looks: a run must not need more memory at its end than its plan says."""
    network = settings.network
    return seen_at_once(network, max(view.px for view in (network.glance_view, *network.candidates)))


def last_aims(folder: Path) -> dict[str, Any] | None:
    """The last comparison of learnt aims with others in a run's journal, see AimsCheck; None if there is none."""
    return next((row.aims for row in reversed(read_metrics(folder)) if row.aims is not None), None)


def finished_bundle(settings: TrainSettings, folder: Path) -> Bundle | None:
    """The bundle of a finished run with exactly these settings; None if something is left to do."""
    there = (folder / BUNDLE_FOLDER).is_dir() and (folder / SETTINGS_FILE).exists()
    if not there or not alike(settings_of(folder), settings):
        return None
    checkpoint = load_checkpoint(folder / CHECKPOINT_FILE)
    if checkpoint is None or checkpoint.plan != settings.plan() or checkpoint.stage < len(checkpoint.plan):
        return None
    try:
        bundle = Bundle.load(folder / BUNDLE_FOLDER)
    except GlancefocusError:
        return None  # it will be written again
    weights = bundle.net.state_dict()
    # Stages may have been added after it was written.
    same = weights.keys() == checkpoint.net.keys() and all(
        torch.equal(weights[name].cpu(), tensor) for name, tensor in checkpoint.net.items()
    )
    return bundle if same else None


def write_run_report(bundle: Bundle, data: Data, settings: TrainSettings, folder: Path) -> Path:
    """Write the report page into the run's folder; returns its file."""
    record = _record_of_validation(bundle, data, settings, folder)
    findings = replace(
        assess(bundle, record, chose=True), aims=noted_aims(bundle.notes), verdict=noted_verdict(bundle.notes)
    )
    write_report(
        folder / REPORT_FOLDER,
        findings,
        bundle,
        title=f"{folder.name}: {settings.network.backbone} on {settings.data.source}",
        record=record,
        split=data.val,
        training=Training(read_training_curves(folder), bundle.notes.get("images", {}), data.train),
    )
    return folder / REPORT_FOLDER / "report.html"
