"""One stage instead of three (beyond the paper): encoders, classifier and policy learn together, and the last look's answer is
taught to the earlier ones."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glancefocus.adaptive import Policy
from glancefocus.data.splits import Split
from glancefocus.look import Look
from glancefocus.network.glance_focus import GlanceFocus
from glancefocus.network.policy import RandomSizes
from glancefocus.scene import as_batch
from glancefocus.training.checkpoint import check_optimizer
from glancefocus.training.episode import ExploringPolicy, accuracy_after, play
from glancefocus.training.settings import JointSettings
from glancefocus.training.stage import Moment, Workshop, descend, make_optimizer, mean_of, set_rates, train_only
from glancefocus.training.stage1_recognise import recognition_loss
from glancefocus.training.stage2_aim import AimStage, improve_policy, play_and_reward


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
