"""A run: a folder with its settings, in which the stages go one after another and from which a killed run goes on.

Nothing random is carried from step to step: order, augmentation, aims and exploration of a step follow from the seed and the step's
number. So a checkpoint needs no state of generators, and a resumed run repeats what a run never killed would have done.
"""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from accelerate import Accelerator

from glancefocus.bundle import Bundle
from glancefocus.data.datasets import open_data
from glancefocus.data.splits import mix, scene_batches, shuffled
from glancefocus.errors import BadRun, BadSetting
from glancefocus.network.assemble import build, load_encoders
from glancefocus.network.glance_focus import GlanceFocus
from glancefocus.settings import to_plain
from glancefocus.training.checkpoint import load_checkpoint, save_checkpoint, write_aside
from glancefocus.training.finish import finish_bundle
from glancefocus.training.initialise import InitialiseStage
from glancefocus.training.journal import Journal
from glancefocus.training.run_folder import (
    BACKBONE_FILE,
    BEST_FILE,
    BUNDLE_FOLDER,
    CHECKPOINT_FILE,
    differences,
    prepare_folder,
)
from glancefocus.training.settings import TrainSettings
from glancefocus.training.stage import Moment, Stage, Workshop
from glancefocus.training.stage1_recognise import RecogniseStage
from glancefocus.training.stage2_aim import AimStage
from glancefocus.training.stage3_finetune import FinetuneStage
from glancefocus.training.stage_joint import JointStage
from glancefocus.training.stage_point import PointStage
from glancefocus.training.trackers import Trackers, chosen_trackers


class Interrupted(KeyboardInterrupt):
    """Stopped by the user, with everything saved."""


def train(
    settings: TrainSettings, folder: Path, *, quiet: bool = False, track: Sequence[str] | None = None
) -> Bundle:
    """Go through all stages, or through what is left of them; returns the bundle that was written at the end.

    track  the trackers to send figures to, see chosen_trackers
    """
    # accelerate must be told that there is no GPU: several processes would each train alone, knowing nothing of the others.
    on_cpu = not torch.accelerator.is_available()
    if settings.precision == "fp16" and on_cpu:
        raise BadSetting("fp16 needs a GPU, and there is none. Use --precision bf16, or leave it out.")
    accelerator = Accelerator(cpu=on_cpu, mixed_precision=settings.precision)
    main = accelerator.is_main_process
    if main:
        prepare_folder(folder, settings)
    accelerator.wait_for_everyone()
    trackers = Trackers(folder, to_plain(settings), chosen_trackers(track)) if main else None
    journal = Journal(folder, writes=main, quiet=quiet, trackers=trackers)
    try:
        data = open_data(settings.data, settings.network.view, _tell(journal), frames=settings.network.frames)
        if data.bad_files:
            journal.say(f"{len(data.bad_files)} files cannot be read and are skipped:")
            for problem in data.bad_files:
                journal.say(f"  {problem}")
        if data.odd_files:
            journal.say(f"{len(data.odd_files)} files are odd but used. The first: {data.odd_files[0]}")
        net = _new_network(settings)
        if settings.network.classes != len(data.classes):
            raise BadRun(f"the data has {len(data.classes)} classes, the network {settings.network.classes}.")
        net.to(accelerator.device)
        _Training(Workshop(net, data, settings, accelerator, _tell(journal)), folder, journal).run()
        if main:
            bundle = finish_bundle(net, data, settings, folder)
            bundle.save(folder / BUNDLE_FOLDER)
        accelerator.wait_for_everyone()
        return bundle if main else Bundle.load(folder / BUNDLE_FOLDER)
    finally:
        journal.close()


def build_stage(name: str, workshop: Workshop) -> Stage:
    """The stage of this name, ready to run."""
    if name in ("small", "backbone", "small_glance", "glance"):
        return InitialiseStage(name, workshop)
    stages: dict[str, Any] = {
        "recognise": RecogniseStage,
        "point": PointStage,
        "aim": AimStage,
        "finetune": FinetuneStage,
        "joint": JointStage,
    }
    stage: Stage = stages[name](workshop)
    return stage


class _Training:
    """The run of one process: which step it is at, when it last saved."""

    def __init__(self, workshop: Workshop, folder: Path, journal: Journal) -> None:
        self.workshop = workshop
        self.folder = folder
        self.journal = journal
        self.plan = workshop.settings.plan()
        self.saved_at = time.monotonic()
        self.best_accuracy = -1.0
        self.stop = False

    def run(self) -> None:
        checkpoint = load_checkpoint(self.folder / CHECKPOINT_FILE)
        first = 0
        if checkpoint is None:
            self.journal.rewind(0)  # of a run that was killed before its first checkpoint
        else:
            first = self._first_stage(checkpoint)
            self.best_accuracy = float(checkpoint["best_accuracy"])
            self.workshop.net.load_state_dict(checkpoint["net"])
            self.workshop.known_evidence = checkpoint.get("evidence")
            scaler = self.workshop.accelerator.scaler
            if scaler is not None and checkpoint.get("scaler") is not None:
                scaler.load_state_dict(checkpoint["scaler"])
            self.journal.rewind(int(checkpoint["journal_length"]))
            if first < len(self.plan):
                self.journal.say(
                    f"going on with stage {first + 1} of {len(self.plan)} ({self.plan[first]}), "
                    f"epoch {checkpoint['epoch'] + 1}"
                )
        with self._signals():
            for index in range(first, len(self.plan)):
                self._run_stage(index, checkpoint if index == first else None)

    def _first_stage(self, checkpoint: dict[str, Any]) -> int:
        """Where to go on; what is done, or half done, must stand at the same place in the plan as it did."""
        index = int(checkpoint["stage"])
        begun = index if checkpoint["optimizer"] is None else index + 1
        done = list(checkpoint["plan"])[:begun]
        if self.plan[:begun] != done:
            raise BadRun(
                f"the run in {self.folder} has gone through {', '.join(done)}; its stages must begin with these, but now they are "
                f"{', '.join(self.plan)}. Name them all, or start in another folder (--start takes a bundle to go on from)."
            )
        return index

    def _run_stage(self, index: int, checkpoint: dict[str, Any] | None) -> None:
        workshop = self.workshop
        stage = build_stage(self.plan[index], workshop)
        first_epoch, first_step = 0, 0
        sums: dict[str, Any] = {}
        if checkpoint is not None and checkpoint["optimizer"] is not None:
            first_epoch, first_step = int(checkpoint["epoch"]), int(checkpoint["step"])
            stage.optimizer.load_state_dict(checkpoint["optimizer"])
            stage.load_state(checkpoint["stage_state"])
            sums = dict(checkpoint["sums"])
        else:
            stage.begin()
        for epoch in range(first_epoch, stage.epochs):
            self._run_epoch(index, stage, epoch, first_step, sums)
            first_step, sums = 0, {}
        stage.finish()
        if stage.name == "backbone":
            self._keep_backbone()
        workshop.accelerator.free_memory()
        self._save(index + 1, None, 0, 0, {})

    def _run_epoch(self, index: int, stage: Stage, epoch: int, first_step: int, sums: dict[str, Any]) -> None:
        """From this step on; sums are those of the steps before it."""
        workshop, settings = self.workshop, self.workshop.settings
        accelerator, data = workshop.accelerator, stage.data
        seed = mix(settings.seed, index, epoch)
        order = shuffled(len(data.train), settings.batch_size, seed)
        rank, processes = accelerator.process_index, accelerator.num_processes
        own = [batch[rank::processes] for batch in order[first_step:]]
        stage.train_mode()
        self.journal.start(f"{stage.name} {epoch + 1}/{stage.epochs}", len(order), first_step)
        started, seen = time.monotonic(), 0
        batches = scene_batches(data.train, settings.network.view, own, seed, workshop.workers)
        for step, (images, labels) in enumerate(batches, start=first_step):
            step_seed = mix(seed, step, rank)
            torch.manual_seed(step_seed)
            moment = Moment(
                progress=(epoch + step / len(order)) / stage.epochs,
                generator=torch.Generator().manual_seed(step_seed),
                rows=torch.as_tensor(own[step - first_step]),
                seed=seed,
            )
            numbers = stage.update(images.to(accelerator.device), labels.to(accelerator.device), moment)
            seen += len(order[step])
            _add(sums, numbers)
            self.journal.step(numbers, seen / (time.monotonic() - started))
            if self._due() and step + 1 < len(order):
                self._save(index, stage, epoch, step + 1, sums)
        _agree(workshop.net, accelerator)
        row = {
            "stage": stage.name,
            "stage_number": index + 1,
            "epoch": epoch + 1,
            "epochs": stage.epochs,
            **_averages(sums, max(1, len(order))),
            **stage.validate(data.val),
            "images_per_s": round(seen / max(1e-9, time.monotonic() - started), 1),
        }
        if row.get("collapsed") and epoch + 1 == stage.epochs:
            self.journal.say(
                "the policy has collapsed: it aims at the same place in every image. "
                f"Try another seed, {'a higher point.lr' if stage.name == 'point' else 'aim.deviation 0.2'}, "
                "or more epochs of the stages before it."
            )
        self.journal.epoch(row)
        self._keep_best(row["val_accuracy"])
        self._save(index, stage, epoch + 1, 0, {})

    def _due(self) -> bool:
        minutes = (time.monotonic() - self.saved_at) / 60
        return self.stop or minutes >= self.workshop.settings.checkpoint_minutes

    def _save(self, index: int, stage: Stage | None, epoch: int, step: int, sums: dict[str, Any]) -> None:
        if not all(bool(p.isfinite().all()) for p in self.workshop.net.parameters()):
            raise BadRun(
                "the weights became infinite: the learning rate is too high for this data. The last good checkpoint is kept. "
                "Lower the rate and start again in another folder."
            )
        scaler = self.workshop.accelerator.scaler
        if self.workshop.accelerator.is_main_process:
            content = {
                "plan": self.plan,
                "stage": index,
                "epoch": epoch,
                "step": step,
                "net": self.workshop.net.state_dict(),
                "evidence": self.workshop.known_evidence,
                "optimizer": None if stage is None else stage.optimizer.state_dict(),
                "stage_state": {} if stage is None else stage.state(),
                "scaler": None if scaler is None else scaler.state_dict(),  # of fp16
                "sums": sums,
                "best_accuracy": self.best_accuracy,
                "journal_length": self.journal.length,
            }
            save_checkpoint(self.folder / CHECKPOINT_FILE, content)
        self.saved_at = time.monotonic()
        if self.stop:
            raise Interrupted

    def _keep_best(self, accuracy: list[float]) -> None:
        """The whole network with the best last-look accuracy so far, beside the last one in the checkpoint."""
        if len(accuracy) == self.workshop.net.settings.looks and accuracy[-1] > self.best_accuracy:
            self.best_accuracy = accuracy[-1]
            self._keep(BEST_FILE, self.workshop.net)

    def _keep_backbone(self) -> None:
        """The plain backbone is the baseline to beat: it stays in the run's folder, under timm's names."""
        self._keep(BACKBONE_FILE, self.workshop.net.focus_encoder.backbone)

    def _keep(self, file: str, module: torch.nn.Module) -> None:
        if self.workshop.accelerator.is_main_process:
            content = safetensors.torch.save(
                {n: t.detach().cpu().contiguous().clone() for n, t in module.state_dict().items()}
            )
            write_aside(self.folder / file, lambda stream: stream.write(content))

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C and a polite kill save before they stop."""

        def ask(number: int, frame: Any) -> None:
            self.stop = True

        import threading

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def load_backbone(settings: TrainSettings, folder: Path) -> GlanceFocus | None:
    """The run's plain backbone, as the focus encoder of a network that is otherwise fresh; None where none was trained."""
    file = folder / BACKBONE_FILE
    if not file.exists():
        return None
    net = build(settings.network)
    net.focus_encoder.backbone.load_state_dict(safetensors.torch.load_file(file))
    return net


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


def _tell(journal: Journal) -> Any:
    last = {"what": "", "at": 0.0}

    def tell(what: str, done: int, total: int) -> None:
        if journal.console.is_terminal and (time.monotonic() - last["at"] > 0.2 or done == total):  # type: ignore[operator]
            last.update(what=what, at=time.monotonic())
            journal.console.print(f"{what} {done}/{total}", end="\r" if done < total else "\n", highlight=False)

    return tell


def _add(sums: dict[str, Any], numbers: dict[str, Any]) -> None:
    for name, value in numbers.items():
        if isinstance(value, list):
            sums[name] = [a + b for a, b in zip(sums.get(name, [0.0] * len(value)), value, strict=True)]
        else:
            sums[name] = sums.get(name, 0.0) + value


def _averages(sums: dict[str, Any], count: int) -> dict[str, Any]:
    return {n: [v / count for v in value] if isinstance(value, list) else value / count for n, value in sums.items()}


def _agree(net: GlanceFocus, accelerator: Accelerator) -> None:
    """Several processes count their own batch statistics; from here on all have those of the first."""
    if accelerator.num_processes > 1:
        for buffer in net.buffers():
            torch.distributed.broadcast(buffer, src=0)


def threads_per_process(processes: int) -> int:
    """Cores divided among processes, at least one each."""
    return max(1, (os.cpu_count() or 1) // processes)
