"""Going through the stages of a run, step by step, from wherever its checkpoint says; saving on the way, and when interrupted.

Signals are held, so that every step and every checkpoint is whole. They are let through where nothing is half done: while a stage
is prepared, while a batch is waited for, while a network is validated. A resumed run does again what was being done there.
"""

import contextlib
import time
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from glancefocus.data.splits import mix, scene_batches, shuffled
from glancefocus.errors import BadRun
from glancefocus.evaluation.rivals import size_in
from glancefocus.interrupts import Interrupted, InterruptedAgain, held, interrupted, let_through
from glancefocus.network.model import GlanceFocus
from glancefocus.training.checkpoint import (
    BadField,
    Checkpoint,
    check_names,
    check_number,
    check_optimizer,
    check_tensors,
    damaged,
    load_checkpoint,
    save_checkpoint,
    save_weights,
)
from glancefocus.training.initialise import InitialiseStage
from glancefocus.training.journal import Journal
from glancefocus.training.plan import Plan
from glancefocus.training.run_folder import BACKBONE_FILE, BEST_FILE, CHECKPOINT_FILE
from glancefocus.training.stage import Moment, NonFinite, Stage, Workshop, check_finite, what_to_lower
from glancefocus.training.stage_aim import AimStage, PointStage
from glancefocus.training.stage_recognise import FinetuneStage, JointStage, RecogniseStage


def build_stage(name: str, workshop: Workshop) -> Stage:
    """The stage of this name, ready to run."""
    if name in ("small", "backbone", "small_glance", "glance") or size_in(name) is not None:
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


class TrainingLoop:
    """The stages of a run in one process.

    expected    how long everything takes; None: it was not measured
    steps_done  of the epoch that is running
    """

    def __init__(
        self,
        workshop: Workshop,
        folder: Path,
        journal: Journal,
        plan: list[str] | None = None,
        expected: Plan | None = None,
    ) -> None:
        """plan: the stages; None: those of the settings."""
        self.workshop = workshop
        self.folder = folder
        self.journal = journal
        self.plan = workshop.settings.plan() if plan is None else plan
        self.expected = expected
        self.saved_at = time.monotonic()
        self.best_accuracy = -1.0
        self.steps_done = 0
        self.several = workshop.accelerator.num_processes > 1

    def run(self) -> None:
        """All stages that are left."""
        with held():
            checkpoint = load_checkpoint(self.folder / CHECKPOINT_FILE)
            first = 0
            if checkpoint is None:
                self.journal.rewind(0)  # of a run that was killed before its first checkpoint
            else:
                first = self._restore(checkpoint)
            for index in range(first, len(self.plan)):
                self._run_stage(index, checkpoint if index == first else None)

    def _restore(self, checkpoint: Checkpoint) -> int:
        """Take over what was learnt; returns the stage to go on with."""
        first = self._first_stage(checkpoint)
        net, scaler = self.workshop.net, self.workshop.accelerator.scaler
        try:
            check_tensors("net", checkpoint.net, net.state_dict())
            if scaler is not None and checkpoint.scaler is not None:
                check_names("scaler", checkpoint.scaler, scaler.state_dict())
                for name, value in checkpoint.scaler.items():
                    check_number(f"scaler.{name}", value)
                scaler.load_state_dict(checkpoint.scaler)
        except BadField as error:
            raise damaged(self.folder / CHECKPOINT_FILE, error) from None
        net.load_state_dict(checkpoint.net)
        self.best_accuracy = float(checkpoint.best_accuracy)
        self.workshop.known_evidence = checkpoint.evidence
        self.journal.rewind(checkpoint.journal_length)
        if first < len(self.plan):
            self.journal.say(
                f"going on with stage {first + 1} of {len(self.plan)} ({self.plan[first]}), epoch {checkpoint.epoch + 1}"
            )
        return first

    def _first_stage(self, checkpoint: Checkpoint) -> int:
        """Where to go on; what is done, or half done, must stand at the same place in the plan as it did."""
        begun = checkpoint.stage if checkpoint.optimizer is None else checkpoint.stage + 1
        done = checkpoint.plan[:begun]
        if self.plan[:begun] != done:
            raise BadRun(
                f"the run in {self.folder} has gone through {', '.join(done)}; its stages must begin with these, but now they are "
                f"{', '.join(self.plan)}. Name them all, or start in another folder (--start takes a bundle to go on from)."
            )
        return checkpoint.stage

    def _run_stage(self, index: int, checkpoint: Checkpoint | None) -> None:
        workshop = self.workshop
        with let_through():
            stage = build_stage(self.plan[index], workshop)
            resumes = checkpoint is not None and checkpoint.optimizer is not None
            if not resumes:
                stage.begin()
        first_epoch, first_step = 0, 0
        sums: dict[str, Any] = {}
        if checkpoint is not None and resumes:
            self._restore_stage(stage, checkpoint)
            first_epoch, first_step, sums = checkpoint.epoch, checkpoint.step, dict(checkpoint.sums)
        for epoch in range(first_epoch, stage.epochs):
            self._run_epoch(index, stage, epoch, first_step, sums)
            first_step, sums = 0, {}
        stage.finish()
        if stage.name == "backbone":
            self._keep_backbone()
        workshop.accelerator.free_memory()
        self._save(index + 1, None, 0, 0, {})

    def _restore_stage(self, stage: Stage, checkpoint: Checkpoint) -> None:
        try:
            steps = self._steps(stage)
            if checkpoint.epoch > stage.epochs or checkpoint.step > steps:
                raise BadField(
                    f"epoch {checkpoint.epoch} and step {checkpoint.step} are beyond the {stage.epochs} epochs of {steps} steps of "
                    f"the stage {stage.name}"
                )
            check_optimizer("optimizer", checkpoint.optimizer, stage.optimizer)
            stage.optimizer.load_state_dict(checkpoint.optimizer)
            check_names("stage_state", checkpoint.stage_state, stage.state())
            stage.load_state(checkpoint.stage_state)
        except BadField as error:
            raise damaged(self.folder / CHECKPOINT_FILE, error) from None

    def _steps(self, stage: Stage) -> int:
        """Of one epoch."""
        return len(shuffled(len(stage.data.train), self.workshop.settings.batch_size, 0))

    def _run_epoch(self, index: int, stage: Stage, epoch: int, first_step: int, sums: dict[str, Any]) -> None:
        """From this step on; sums are those of the steps before it."""
        self.steps_done = first_step
        try:
            row = self._learn(index, stage, epoch, sums)
            _agree(self.workshop.net, self.workshop.accelerator)
            check_finite(self.workshop.net.state_dict())
            with let_through():
                row |= stage.validate(stage.data.val)
                if isinstance(stage, AimStage) and epoch + 1 == stage.epochs:
                    checked = stage.check_aims()
                    row["aims"] = checked.to_plain()
                    self.journal.say(checked.sentence)
        except InterruptedAgain:  # in the middle of a step
            raise
        except Interrupted:
            if index or epoch or self.steps_done:
                self._save(index, stage, epoch, self.steps_done, sums)
            raise
        except NonFinite as error:
            raise BadRun(
                f"{error} in the stage {stage.name}: its learning rate is too high for this data. The last good checkpoint is "
                f"kept. {what_to_lower(stage.name, self.workshop.settings)} and start again in another folder."
            ) from None
        self._reach(index, epoch + 1)
        self.journal.epoch(row)
        self._keep_best(row["val_accuracy"])
        self._save(index, stage, epoch + 1, 0, {})

    def _learn(self, index: int, stage: Stage, epoch: int, sums: dict[str, Any]) -> dict[str, Any]:
        """The steps of an epoch that are left; returns what there is to say of all of them."""
        workshop, settings = self.workshop, self.workshop.settings
        accelerator, data, first_step = workshop.accelerator, stage.data, self.steps_done
        seed = mix(settings.seed, index, epoch)
        order = shuffled(len(data.train), settings.batch_size, seed)
        rank, processes = accelerator.process_index, accelerator.num_processes
        own = [batch[rank::processes] for batch in order[first_step:]]
        stage.train_mode()
        self.journal.start(f"{stage.name} {epoch + 1}/{stage.epochs}", len(order), first_step)
        started, seen = time.monotonic(), 0
        batches = scene_batches(data.train, settings.network.view, own, seed, workshop.workers)
        for step, rows in enumerate(own, start=first_step):
            with contextlib.nullcontext() if self.several else let_through():
                images, labels = next(batches)
            step_seed = mix(seed, step, rank)
            torch.manual_seed(step_seed)
            moment = Moment(
                progress=(epoch + step / len(order)) / stage.epochs,
                generator=torch.Generator().manual_seed(step_seed),
                rows=torch.as_tensor(rows),
                seed=seed,
            )
            numbers = stage.update(images.to(accelerator.device), labels.to(accelerator.device), moment)
            seen += len(order[step])
            _add(sums, numbers)
            self.steps_done = step + 1
            self.journal.step(numbers, seen / (time.monotonic() - started))
            self._reach(index, epoch, step + 1)
            self._stop_together()
            if self._due() and step + 1 < len(order):
                self._save(index, stage, epoch, step + 1, sums)
        if own:
            next(batches, None)  # there is none left: it ends
        return {
            "stage": stage.name,
            "stage_number": index + 1,
            "epoch": epoch + 1,
            "epochs": stage.epochs,
            **_averages(sums, max(1, len(order))),
            "images_per_s": round(seen / max(1e-9, time.monotonic() - started), 1),
        }

    def _reach(self, index: int, epoch: int, step: int = 0) -> None:
        if self.expected is not None:
            self.journal.reach(self.expected.done_s(index, epoch, step))

    def _stop_together(self) -> None:
        """Several processes stop at the same step: one that left earlier would keep the others waiting."""
        if self.several:
            accelerator = self.workshop.accelerator
            asked = torch.tensor([float(interrupted())], device=accelerator.device)
            if float(accelerator.reduce(asked, "sum")) > 0:
                raise Interrupted

    def _due(self) -> bool:
        return (time.monotonic() - self.saved_at) / 60 >= self.workshop.settings.checkpoint_minutes

    def _save(self, index: int, stage: Stage | None, epoch: int, step: int, sums: dict[str, Any]) -> None:
        net, scaler = self.workshop.net, self.workshop.accelerator.scaler
        if self.workshop.accelerator.is_main_process:
            content = Checkpoint(
                plan=self.plan,
                stage=index,
                epoch=epoch,
                step=step,
                net=net.state_dict(),
                evidence=self.workshop.known_evidence,
                optimizer=None if stage is None else stage.optimizer.state_dict(),
                stage_state={} if stage is None else stage.state(),
                scaler=None if scaler is None else scaler.state_dict(),
                sums=sums,
                best_accuracy=self.best_accuracy,
                journal_length=self.journal.length,
            )
            save_checkpoint(self.folder / CHECKPOINT_FILE, content)
        self.saved_at = time.monotonic()

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
            save_weights(self.folder / file, module)


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
