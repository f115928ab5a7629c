"""Stage I: encoders and classifier learn to recognise from a glance and patches at random places (paper, section 3.3)."""

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glancefocus.data.splits import Split
from glancefocus.evaluation.every_look import evaluate_every_look
from glancefocus.look import Look
from glancefocus.loop import Policy
from glancefocus.network.model import GlanceFocus
from glancefocus.network.policy import RandomPolicy, RandomSizes
from glancefocus.scene import as_batch
from glancefocus.training.checkpoint import check_optimizer
from glancefocus.training.episode import ExploringPolicy, FixedPolicy, MistakenGlances, accuracy_after, play
from glancefocus.training.settings import JointSettings, RecogniseSettings
from glancefocus.training.stage import (
    FrozenGlances,
    Moment,
    Workshop,
    descend,
    make_optimizer,
    mean_of,
    set_rates,
    train_only,
)
from glancefocus.training.stage_aim import AimStage, improve_policy, play_and_reward


def recognition_loss(net: GlanceFocus, looks: list[Look], labels: Tensor, own_head_weight: float) -> Tensor:
    """Eq. 9: the mean over looks of the answer's cross-entropy and, weighted, of the encoder's own."""
    answers = torch.stack([F.cross_entropy(look.logits.float(), labels) for look in looks])
    if own_head_weight == 0:
        return answers.mean()
    own = torch.stack([F.cross_entropy(net.own_answer(look).float(), labels) for look in looks])
    return (answers + own_head_weight * own).mean()


class RecogniseStep(nn.Module):
    """The loss of one batch, aimed by whom it is given; rows (B,) say which training images it consists of."""

    def __init__(self, net: GlanceFocus, settings: RecogniseSettings, glances: FrozenGlances) -> None:
        super().__init__()
        self.net = net
        self.settings = settings
        self.glances = glances

    def forward(
        self, images: Tensor, labels: Tensor, policy: Policy, generator: torch.Generator, rows: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        scene = as_batch(images, self.net.settings.view)
        looking = self.glances.network(scene, rows)
        if self.settings.mistaken_glances > 0:
            remember = functools.partial(self.net.classifier.remember, memory=None)
            looking = MistakenGlances(looking, remember, self.settings.mistaken_glances, generator)
        looks = play(looking, scene, self.net.settings.looks, policy)
        return recognition_loss(self.net, looks, labels, self.settings.own_head_weight), {
            "accuracy": accuracy_after(looks, labels)
        }


class RecogniseStage:
    """Stage I. Stage III is the same with learnt aims, see stage3_finetune."""

    name = "recognise"

    def __init__(self, workshop: Workshop) -> None:
        self.workshop = workshop
        self.data = workshop.data
        self.settings: RecogniseSettings = getattr(workshop.settings, self.name)
        self.epochs = self.settings.epochs
        settings, net = self.settings, workshop.net
        self.train_mode()
        groups = [{"params": list(net.classifier.parameters()), "lr": settings.classifier_lr}]
        encoders = [p for e in self._trained_encoders() for p in e.parameters()]
        if encoders:
            groups.append({"params": list(dict.fromkeys(encoders)), "lr": settings.encoder_lr})
        optimizer = make_optimizer("sgd", groups, settings.weight_decay)
        self.glances = FrozenGlances(workshop, self.epochs)
        self.step, self.optimizer = workshop.accelerator.prepare(RecogniseStep(net, settings, self.glances), optimizer)

    def aims(self, generator: torch.Generator, each_row: bool = False) -> Policy:
        """Who aims; while validating with patch sizes drawn for each row."""
        return RandomPolicy(self.workshop.net.settings.patch_px, generator, each_row=each_row)

    def learning_aims(self, generator: torch.Generator) -> Policy:
        """Who aims while learning."""
        return self.aims(generator)

    def begin(self) -> None:
        pass

    def train_mode(self) -> None:
        train_only(self.workshop, [self.workshop.net.classifier, *self._trained_encoders()])

    def _trained_encoders(self) -> list[nn.Module]:
        net, settings = self.workshop.net, self.settings
        if settings.freeze_encoders:
            return []
        return [net.focus_encoder] if settings.freeze_glance else [net.glance_encoder, net.focus_encoder]

    def update(self, images: Tensor, labels: Tensor, moment: Moment) -> dict[str, Any]:
        set_rates(self.optimizer, moment.progress)
        policy = self.learning_aims(moment.generator)
        more = {"policy": policy, "generator": moment.generator, "rows": moment.rows}
        loss, numbers = descend(self.workshop, self.step, self.optimizer, images, labels, **more)
        return {"loss": loss, "accuracy": mean_of(numbers, "accuracy")}

    def validate(self, split: Split) -> dict[str, Any]:
        policy = self.aims(torch.Generator().manual_seed(0), each_row=True)
        evaluation = evaluate_every_look(
            self.workshop.net,
            split,
            policy,
            workers=self.workshop.workers,
            glance=self.glances.of_validation(split),
        )
        return {"val_accuracy": evaluation.accuracy_per_look}

    def finish(self) -> None:
        self.glances.forget()

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        pass


class FinetuneStage(RecogniseStage):
    """Stage I with other aims and its own settings."""

    name = "finetune"

    def aims(self, generator: torch.Generator, each_row: bool = False) -> Policy:
        return FixedPolicy(RandomSizes(self.workshop.net.policy, generator, each_row=each_row))

    def learning_aims(self, generator: torch.Generator) -> Policy:
        aims = self.aims(generator)
        return ExploringPolicy(aims, self.settings.deviation, generator) if self.settings.deviation > 0 else aims


def distillation_loss(looks: list[Look]) -> Tensor:
    """Mean divergence of the earlier looks' answers from the last one's, which is not moved by it."""
    last = looks[-1].logits.detach().float().log_softmax(dim=1)
    earlier = [look.logits.float().log_softmax(dim=1) for look in looks[:-1]]
    return torch.stack([F.kl_div(e, last, log_target=True, reduction="batchmean") for e in earlier]).mean()


class JointStep(nn.Module):
    """The supervised half; its looks are kept for the policy's half."""

    def __init__(self, net: GlanceFocus, settings: JointSettings) -> None:
        super().__init__()
        self.net = net
        self.settings = settings

    def forward(self, images: Tensor, labels: Tensor, policy: Policy) -> tuple[Tensor, dict[str, Any]]:
        net, settings = self.net, self.settings
        looks = play(net, as_batch(images, net.settings.view), net.settings.looks, policy)
        loss = recognition_loss(net, looks, labels, settings.own_head_weight)
        if settings.distill_weight > 0:
            loss = loss + settings.distill_weight * distillation_loss(looks)
        if settings.whole_image_weight > 0:
            whole = net.focus_encoder.own_head(net.focus_encoder(as_batch(images, net.settings.view).whole).vector)
            loss = loss + settings.whole_image_weight * F.cross_entropy(whole.float(), labels)
        return loss, {"accuracy": accuracy_after(looks, labels)}


class JointStage(AimStage):
    """Each batch teaches encoders and classifier first, then, looked at again by the improved network, the policy."""

    name = "joint"

    def __init__(self, workshop: Workshop) -> None:
        super().__init__(workshop)
        net, joint = workshop.net, workshop.settings.joint
        self.joint = joint
        self.epochs = joint.epochs
        encoders = list(dict.fromkeys([*net.glance_encoder.parameters(), *net.focus_encoder.parameters()]))
        groups = [
            {"params": list(net.classifier.parameters()), "lr": joint.classifier_lr},
            {"params": encoders, "lr": joint.encoder_lr},
        ]
        train_only(workshop, [net.glance_encoder, net.focus_encoder, net.classifier])
        self.recognise_step, self.recognise_optimizer = workshop.accelerator.prepare(
            JointStep(net, joint), make_optimizer("sgd", groups, joint.weight_decay)
        )
        self.train_mode()

    def begin(self) -> None:
        pass  # the policy is not chosen by itself, see validate

    def train_mode(self) -> None:
        net = self.workshop.net
        train_only(self.workshop, [net.glance_encoder, net.focus_encoder, net.classifier, net.policy])

    def update(self, images: Tensor, labels: Tensor, moment: Moment) -> dict[str, Any]:
        net, workshop = self.workshop.net, self.workshop
        deviation = self.arrive_at(moment.progress)
        explorer = ExploringPolicy(RandomSizes(net.policy, moment.generator), deviation, moment.generator)
        set_rates(self.recognise_optimizer, moment.progress)
        loss, numbers = descend(
            workshop, self.recognise_step, self.recognise_optimizer, images, labels, policy=explorer
        )
        net.eval()
        with torch.no_grad(), workshop.accelerator.autocast():
            looks, rewards = play_and_reward(net, as_batch(images, net.settings.view), labels, explorer, workshop)
        self.train_mode()
        aimed = improve_policy(workshop, self.step, self.optimizer, looks, rewards, deviation)
        return {
            "loss": loss,
            "policy_loss": aimed["loss"],
            "reward": float(rewards.sum(dim=0).mean()),
            "accuracy": mean_of(numbers, "accuracy"),
        }

    def validate(self, split: Split) -> dict[str, Any]:
        numbers = super().validate(split)
        self.best_policy = {}  # the policy belongs to the encoders of its own moment: the last ones are kept together
        return numbers

    def state(self) -> dict[str, Any]:
        return {**super().state(), "recognise_optimizer": self.recognise_optimizer.state_dict()}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        check_optimizer("stage_state.recognise_optimizer", state["recognise_optimizer"], self.recognise_optimizer)
        self.recognise_optimizer.load_state_dict(state["recognise_optimizer"])
