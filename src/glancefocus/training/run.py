"""A run: a folder with its settings, in which the stages go one after another and from which a killed run goes on.

Nothing random is carried from step to step: order, augmentation, aims and exploration of a step follow from the seed and the step's
number. So a checkpoint needs no state of generators, and a resumed run repeats what a run never killed would have done.
"""

import contextlib
import functools
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from glancefocus.bundle.bundle import Bundle
from glancefocus.bundle.files import read_split
from glancefocus.data.sources import Data, open_data
from glancefocus.errors import BadRun, BadSetting
from glancefocus.interrupts import handled
from glancefocus.network.build import build, load_encoders
from glancefocus.network.model import GlanceFocus
from glancefocus.progress import Progress
from glancefocus.settings import to_plain
from glancefocus.training.checkpoint import write_run_file
from glancefocus.training.finish import finish_bundle, write_run_report
from glancefocus.training.fitted import tune_rivals
from glancefocus.training.journal import Journal
from glancefocus.training.loop import TrainingLoop, build_stage
from glancefocus.training.plan import Plan, measure_plan, parts_that_fit, plan_words, stored_plan
from glancefocus.training.run_folder import (
    BUNDLE_FOLDER,
    CHECKPOINT_FILE,
    PLAN_FILE,
    differences,
    keep_data,
    locked,
    prepare_folder,
    settings_of,
)
from glancefocus.training.settings import TrainSettings
from glancefocus.training.stage import Workshop
from glancefocus.training.trackers import Trackers, chosen_trackers


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
