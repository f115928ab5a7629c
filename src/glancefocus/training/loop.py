"""The training loop of a run: stage by stage and step by step from its checkpoint on, with checkpoints on the way and when stopped.

Signals (Ctrl-C, SIGTERM) are held back during steps and while a checkpoint is written, so both are always complete. They are let
through where nothing is half done: while a stage is prepared, while waiting for a batch, and during validation. A resumed run
repeats what was interrupted there.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from accelerate import Accelerator

from glancefocus.data.augmentation import mix
from glancefocus.data.splits import scene_batches, shuffled
from glancefocus.errors import BadRun
from glancefocus.evaluation.rivals import size_in
from glancefocus.interrupts import Interrupted, InterruptedAgain, held, interrupted, interruptible
from glancefocus.network.model import GlanceFocus
from glancefocus.training.checkpoint import (
    BadField,
    Checkpoint,
    Numbers,
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
from glancefocus.training.journal import EpochRow, Journal
from glancefocus.training.plan import Plan
from glancefocus.training.run_folder import BACKBONE_FILE, CHECKPOINT_FILE
from glancefocus.training.stage import Moment, NonFinite, Stage, TrainingContext, check_finite, what_to_lower
from glancefocus.training.stage_aim import AimStage, PointStage
from glancefocus.training.stage_recognise import FinetuneStage, JointStage, RecogniseStage
from glancefocus.training.teacher import open_teacher


def build_stage(name: str, context: TrainingContext) -> Stage:
    """The stage of this name, ready to run."""
    if name in ("small", "backbone", "small_glance", "glance") or size_in(name) is not None:
        return InitialiseStage(name, context)
    stages: dict[str, Callable[[TrainingContext], Stage]] = {
        "recognise": RecogniseStage,
        "point": PointStage,
        "aim": AimStage,
        "finetune": FinetuneStage,
        "joint": JointStage,
    }
    return stages[name](context)


class TrainingLoop:
    """The stages of a run in one process.

    plan        the stages; None: those of the settings
    expected    the expected times; None: they were not measured
    steps_done  steps done of the running epoch
    """

    def __init__(
        self,
        context: TrainingContext,
        folder: Path,
        journal: Journal,
        plan: list[str] | None = None,
        expected: Plan | None = None,
    ) -> None:
        self.context = context
        self.folder = folder
        self.journal = journal
        self.plan = context.settings.plan() if plan is None else plan
        self.expected = expected
        self.saved_at = time.monotonic()
        self.steps_done = 0
        self.several = context.accelerator.num_processes > 1

    def run(self) -> None:
        """Run all remaining stages."""
        with held():
            checkpoint = load_checkpoint(self.folder / CHECKPOINT_FILE)
            first = 0
            if checkpoint is None:
                self.journal.rewind(0)  # it was killed before its first checkpoint
            else:
                first = self._restore(checkpoint)
            for index in range(first, len(self.plan)):
                self._run_stage(index, checkpoint if index == first else None)

    def _restore(self, checkpoint: Checkpoint) -> int:
        """Load the weights of the checkpoint; returns the index of the stage to continue with."""
        first = self._first_stage(checkpoint)
        net, scaler = self.context.net, self.context.accelerator.scaler
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
        self.context.known_evidence = checkpoint.evidence
        self.journal.rewind(checkpoint.journal_length)
        if first < len(self.plan):
            self.journal.print(
                f"continuing with stage {first + 1} of {len(self.plan)} ({self.plan[first]}), epoch {checkpoint.epoch + 1}"
            )
        return first

    def _first_stage(self, checkpoint: Checkpoint) -> int:
        """The stage to continue with. Stages that are done or have begun must be the first ones of the plan."""
        begun = checkpoint.stage if checkpoint.optimizer is None else checkpoint.stage + 1
        done = checkpoint.plan[:begun]
        if self.plan[:begun] != done:
            raise BadRun(
                f"the run in {self.folder} has run the stages {', '.join(done)}; its stages must begin with these, but got "
                f"{', '.join(self.plan)}. Name them in this order with --stages, or start in another folder (--start takes a "
                "bundle to start from)."
            )
        return checkpoint.stage

    def _run_stage(self, index: int, checkpoint: Checkpoint | None) -> None:
        context = self.context
        with interruptible():
            if context.teacher is None and context.settings.is_taught(self.plan[index]):
                context.teacher = open_teacher(Path(context.settings.teacher or self.folder / BACKBONE_FILE), context)
            stage = build_stage(self.plan[index], context)
            resumes = checkpoint is not None and checkpoint.optimizer is not None
            if not resumes:
                stage.begin()
        first_epoch, first_step = 0, 0
        sums: Numbers = {}
        if checkpoint is not None and resumes:
            self._restore_stage(stage, checkpoint)
            first_epoch, first_step, sums = checkpoint.epoch, checkpoint.step, dict(checkpoint.sums)
        for epoch in range(first_epoch, stage.epochs):
            self._run_epoch(index, stage, epoch, first_step, sums)
            first_step, sums = 0, {}
        if said := stage.finish():
            self.journal.print(said)
        if stage.name == "backbone":
            self._keep_backbone()
        context.accelerator.free_memory()
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
        """Steps of one epoch."""
        return len(shuffled(len(stage.data.train), self.context.settings.batch_size, 0))

    def _run_epoch(self, index: int, stage: Stage, epoch: int, first_step: int, sums: Numbers) -> None:
        """Run an epoch from this step on; sums are those of the steps before it."""
        self.steps_done = first_step
        try:
            row = self._learn(index, stage, epoch, sums)
            _agree(self.context.net, self.context.accelerator)
            check_finite(self.context.net.state_dict())
            with interruptible():
                row = replace(row, numbers={**row.numbers, **stage.validate(stage.data.val)})
                if isinstance(stage, AimStage) and epoch + 1 == stage.epochs:
                    checked = stage.check_aims()
                    row = replace(row, aims=checked.to_plain())
                    self.journal.print(checked.sentence)
        except InterruptedAgain:  # in the middle of a step
            raise
        except Interrupted:
            if index or epoch or self.steps_done:
                self._save(index, stage, epoch, self.steps_done, sums)
            raise
        except NonFinite as error:
            raise BadRun(
                f"{error} in the stage {stage.name}: its learning rate is too high for this data. The last good checkpoint is "
                f"kept. {what_to_lower(stage.name, self.context.settings)} and start again in another folder."
            ) from None
        self._reach(index, epoch + 1)
        self.journal.epoch(row)
        self._save(index, stage, epoch + 1, 0, {})

    def _learn(self, index: int, stage: Stage, epoch: int, sums: Numbers) -> EpochRow:
        """Run the remaining steps of an epoch; returns the means over all of its steps."""
        context, settings = self.context, self.context.settings
        accelerator, data, first_step = context.accelerator, stage.data, self.steps_done
        seed = mix(settings.seed, index, epoch)
        order = shuffled(len(data.train), settings.batch_size, seed)
        rank, processes = accelerator.process_index, accelerator.num_processes
        own = [batch[rank::processes] for batch in order[first_step:]]
        stage.train_mode()
        self.journal.start(f"{stage.name} {epoch + 1}/{stage.epochs}", len(order), first_step)
        started, seen = time.monotonic(), 0
        # The answers of a teacher to augmented images are kept, so in these stages the same few augmentations come again and again.
        repeat = settings.data.augment.repeat if settings.is_taught(stage.name) else 0
        augmentation = mix(settings.seed, epoch % repeat) if repeat else seed
        batches = scene_batches(data.train, settings.network.view, own, augmentation, context.workers)
        for step, rows in enumerate(own, start=first_step):
            with contextlib.nullcontext() if self.several else interruptible():
                images, labels = next(batches)
            step_seed = mix(seed, step, rank)
            torch.manual_seed(step_seed)
            moment = Moment(
                progress=(epoch + step / len(order)) / stage.epochs,
                generator=torch.Generator().manual_seed(step_seed),
                rows=torch.as_tensor(rows),
                seed=augmentation,
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
            next(batches, None)  # lets the iterator end
        return EpochRow(
            stage=stage.name,
            stage_number=index + 1,
            epoch=epoch + 1,
            epochs=stage.epochs,
            numbers=_averages(sums, max(1, len(order))),
            images_per_s=round(seen / max(1e-9, time.monotonic() - started), 1),
        )

    def _reach(self, index: int, epoch: int, step: int = 0) -> None:
        if self.expected is not None:
            self.journal.reach(self.expected.done_s(index, epoch, step))

    def _stop_together(self) -> None:
        """Several processes stop at the same step; otherwise one would wait for the others forever."""
        if self.several:
            accelerator = self.context.accelerator
            asked = torch.tensor([float(interrupted())], device=accelerator.device)
            if float(accelerator.reduce(asked, "sum")) > 0:
                raise Interrupted

    def _due(self) -> bool:
        return (time.monotonic() - self.saved_at) / 60 >= self.context.settings.checkpoint_minutes

    def _save(self, index: int, stage: Stage | None, epoch: int, step: int, sums: Numbers) -> None:
        net, scaler = self.context.net, self.context.accelerator.scaler
        if self.context.accelerator.is_main_process:
            content = Checkpoint(
                plan=self.plan,
                stage=index,
                epoch=epoch,
                step=step,
                net=net.state_dict(),
                evidence=self.context.known_evidence,
                optimizer=None if stage is None else stage.optimizer.state_dict(),
                stage_state={} if stage is None else stage.state(),
                scaler=None if scaler is None else scaler.state_dict(),
                sums=sums,
                journal_length=self.journal.length,
            )
            save_checkpoint(self.folder / CHECKPOINT_FILE, content)
        self.saved_at = time.monotonic()

    def _keep_backbone(self) -> None:
        """Keep the plain backbone, the baseline to beat, in the run's folder, with timm's names."""
        if self.context.accelerator.is_main_process:
            save_weights(self.folder / BACKBONE_FILE, self.context.net.focus_encoder.backbone)
        # The next stage of every process may read it as its teacher.
        self.context.accelerator.wait_for_everyone()


def _add(sums: Numbers, numbers: Numbers) -> None:
    for name, value in numbers.items():
        before = sums.get(name)
        if isinstance(value, list):
            sums[name] = [a + b for a, b in zip(before, value, strict=True)] if isinstance(before, list) else value
        else:
            sums[name] = value + (before if isinstance(before, (int, float)) else 0.0)


def _averages(sums: Numbers, count: int) -> Numbers:
    return {n: [v / count for v in value] if isinstance(value, list) else value / count for n, value in sums.items()}


def _agree(net: GlanceFocus, accelerator: Accelerator) -> None:
    """Each process has batch statistics of its own; copy those of the first process to all."""
    if accelerator.num_processes > 1:
        for buffer in net.buffers():
            torch.distributed.broadcast(buffer, src=0)
