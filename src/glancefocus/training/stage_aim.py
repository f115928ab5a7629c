"""Stage II: the policy learns where to look, by reinforcement, on the frozen network (paper, sections 3.3 and A.2)."""

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn

from glancefocus.data.splits import Split
from glancefocus.evaluation.aims import AimsCheck, check_aims
from glancefocus.evaluation.every_look import evaluate_every_look
from glancefocus.look import Aim, Look
from glancefocus.loop import LookingNetwork
from glancefocus.network.policy import LearntPolicy, RandomSizes
from glancefocus.scene import Scene, as_batch
from glancefocus.training.checkpoint import check_kind, check_number, check_tensors
from glancefocus.training.episode import (
    ComparingNetwork,
    ExploringPolicy,
    Judge,
    accuracy_after,
    after_exploring,
    contrastive_reward,
    cross_entropy_reward,
    discounted_returns,
    gaussian_entropy,
    gaussian_log_prob,
    generalised_advantages,
    increment_reward,
    label_probability,
    normalised,
    play,
    ppo_loss,
    probability_of,
    random_places,
    the_answer,
)
from glancefocus.training.initialise import BackboneEvidence, Places, aims_at, room_px
from glancefocus.training.settings import AimSettings, PolicyTraining
from glancefocus.training.stage import FrozenGlances, Moment, NonFinite, Workshop, take_step, train_only


class PolicyStep(nn.Module):
    """The policy gone through again over the looks of an episode: means (L, B, 2) and values (L, B)."""

    def __init__(self, policy: LearntPolicy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, looks: list[Look]) -> tuple[Tensor, Tensor]:
        means, values, memory = [], [], None
        for look, following in itertools.pairwise(looks):
            assert following.aim is not None
            perceived = self.policy.perceive(look.map, look.px)
            memory = self.policy.remember(perceived, look.px, following.aim.patch_px, memory)
            means.append(self.policy.mean(memory))
            values.append(self.policy.value(memory))
        return torch.stack(means), torch.stack(values)


def play_and_reward(
    net: LookingNetwork, scene: Scene, labels: Tensor, explorer: ExploringPolicy, workshop: Workshop
) -> tuple[list[Look], Tensor]:
    """The looks of an episode and (L, B) what each of its aims was worth.

    net  the workshop's, whose glance at the scene may be known
    """
    settings, whole = workshop.settings.aim, workshop.net.settings
    judge = workshop.net.own_answer if settings.judge == "own_head" else the_answer
    if settings.reward != "contrastive" or not settings.compare_together:
        looks = play(net, scene, whole.looks, explorer)
        return looks, episode_rewards(net, looks, labels, settings, explorer.generator, None, judge)
    later = after_exploring(explorer.generator, whole.looks - 1, scene.count, whole.patch_px)
    comparing = ComparingNetwork(net, settings.monte_carlo, later, judge)
    looks = play(comparing, scene, whole.looks, explorer)
    return looks, episode_rewards(net, looks, labels, settings, later, comparing.elsewhere, judge)


def episode_rewards(
    net: LookingNetwork,
    looks: list[Look],
    labels: Tensor,
    settings: AimSettings,
    generator: torch.Generator,
    elsewhere: list[Tensor] | None,
    judge: Judge = the_answer,
) -> Tensor:
    """(L, B) what each aim of an episode was worth.

    elsewhere  of the contrastive reward, for each aim (draws, B, classes): what the judge says of random patches instead; None:
               they are looked at now
    """
    probability = label_probability(looks, labels, judge)
    if settings.reward == "increment":
        return increment_reward(probability)
    if settings.reward == "cross_entropy":
        return cross_entropy_reward(probability)
    if elsewhere is None:
        pairs = list(itertools.pairwise(looks))
        elsewhere = [
            answers_elsewhere(net, look, now.aim, settings.monte_carlo, generator, judge) for look, now in pairs
        ]
    at_random = [probability_of(answers, labels).mean(dim=0) for answers in elsewhere]
    return contrastive_reward(probability, torch.stack(at_random))


def answers_elsewhere(
    net: LookingNetwork,
    look: Look,
    aim: Aim | None,
    draws: int,
    generator: torch.Generator,
    judge: Judge = the_answer,
) -> Tensor:
    """(draws, B, classes) what the judge says of random patches of the size of the aim's."""
    assert aim is not None
    places = [random_places(look.count, generator, look.logits.device) for _ in range(draws)]
    return torch.stack([judge(net.focus(look, Aim(where=where, patch_px=aim.patch_px))) for where in places])


def improve_policy(
    workshop: Workshop, step: nn.Module, optimizer: Any, looks: list[Look], rewards: Tensor, deviation: float
) -> dict[str, float]:
    """PPO on one episode: `passes` steps of the optimiser; returns numbers to show."""
    settings = workshop.settings.aim
    aims = [look.aim for look in looks[1:] if look.aim is not None]
    where = torch.stack([aim.where for aim in aims])
    old_log_prob = torch.stack([aim.log_prob for aim in aims if aim.log_prob is not None])
    old_values = torch.stack([aim.value for aim in aims if aim.value is not None])
    if settings.gae_lambda is not None:
        advantages = generalised_advantages(rewards, old_values, settings.discount, settings.gae_lambda)
        returns = advantages + old_values
        advantages = normalised(advantages) if settings.normalise_returns else advantages
    else:
        returns = discounted_returns(rewards, settings.discount)
        returns = normalised(returns) if settings.normalise_returns else returns
        advantages = None
    numbers = {}
    for _ in range(settings.passes):
        means, values = step(looks)
        losses = ppo_loss(
            log_prob=gaussian_log_prob(where, means.float(), deviation),
            old_log_prob=old_log_prob,
            values=values.float(),
            returns=returns,
            advantages=returns - values.detach().float() if advantages is None else advantages,
            clip=settings.clip,
            value_weight=settings.value_weight,
            entropy_weight=settings.entropy_weight,
            entropy=gaussian_entropy(deviation),
        )
        descend_policy(workshop, optimizer, losses.total)
        numbers = {"loss": float(losses.total.detach()), "value_loss": float(losses.value.detach())}
    return numbers


def descend_policy(workshop: Workshop, optimizer: Any, loss: Tensor) -> None:
    """One step of the optimiser."""
    total = float(loss.detach())
    if not math.isfinite(total):
        raise NonFinite(f"the policy's loss became {total}")
    optimizer.zero_grad()
    workshop.accelerator.backward(loss)
    take_step(optimizer)


def along(start: float, end: float | None, progress: float) -> float:
    """What goes evenly from start to end along the stage, at this point of it; end None: it stays."""
    return start if end is None else start + (end - start) * progress


class AimStage:
    """Stage II. The policy with the best last-look accuracy on the validation data is kept; of several such, the one that is right
    the earliest, or else the surest."""

    name = "aim"

    def __init__(self, workshop: Workshop, settings: PolicyTraining | None = None) -> None:
        self.workshop = workshop
        self.data = workshop.data
        self.settings = settings or workshop.settings.aim
        self.epochs = self.settings.epochs
        policy = workshop.net.policy
        self.train_mode()
        optimizer = torch.optim.Adam(policy.parameters(), lr=self.settings.lr, betas=(0.9, 0.999))
        self.step, self.optimizer = workshop.accelerator.prepare(PolicyStep(policy), optimizer)
        self.glances = FrozenGlances(workshop, self.epochs)
        self.best_accuracy: list[float] = []
        self.best_policy: dict[str, Tensor] = {}

    def begin(self) -> None:
        """The policy that the stage starts with counts, too: where nothing better is learnt, it stays."""
        self.validate(self.data.val)

    def train_mode(self) -> None:
        train_only(self.workshop, [self.workshop.net.policy])

    def update(self, images: Tensor, labels: Tensor, moment: Moment) -> dict[str, Any]:
        net = self.workshop.net
        deviation = self.arrive_at(moment.progress)
        with torch.no_grad(), self.workshop.accelerator.autocast():
            explorer = ExploringPolicy(RandomSizes(net.policy, moment.generator), deviation, moment.generator)
            scene = as_batch(images, net.settings.view)
            looking = self.glances.network(scene, moment.rows)
            looks, rewards = play_and_reward(looking, scene, labels, explorer, self.workshop)
        numbers = improve_policy(self.workshop, self.step, self.optimizer, looks, rewards, deviation)
        return {**numbers, "reward": float(rewards.sum(dim=0).mean()), "accuracy": accuracy_after(looks, labels)}

    def arrive_at(self, progress: float) -> float:
        """The exploration's deviation at this point of the stage; the optimiser gets the rate of it."""
        settings = self.settings
        for group in self.optimizer.param_groups:
            group["lr"] = along(settings.lr, settings.lr_end, progress)
        return along(settings.deviation, settings.deviation_end, progress)

    def validate(self, split: Split) -> dict[str, Any]:
        net = self.workshop.net
        policy = RandomSizes(net.policy, torch.Generator().manual_seed(0), each_row=True)
        evaluation = evaluate_every_look(
            net, split, policy, workers=self.workshop.workers, glance=self.glances.of_validation(split)
        )
        accuracy = evaluation.accuracy_per_look
        # Of those alike after the last look, who is right earlier; of those alike in that, too, who is surer where it is right.
        ranked = [accuracy[-1], sum(accuracy), evaluation.surely_right]
        if ranked >= self.best_accuracy:
            self.best_accuracy = ranked
            self.best_policy = {name: t.detach().clone() for name, t in net.policy.state_dict().items()}
        deviation = evaluation.outcome.where[:, 0].std(dim=0, unbiased=False)
        numbers: dict[str, Any] = {
            "val_accuracy": accuracy,
            "aim_deviation": [float(d) for d in deviation],
        }
        if split.boxes is not None:
            numbers["hit_rate"] = evaluation.hit_rate_per_focus(split.boxes)
        return numbers

    def check_aims(self) -> AimsCheck:
        """The policy that the stage will keep, against aims that learn nothing."""
        policy = self.workshop.net.policy
        last = {name: t.detach().clone() for name, t in policy.state_dict().items()}
        try:
            policy.load_state_dict(self.best_policy or last)
            return check_aims(self.workshop.net, self.data.val, workers=self.workshop.workers)
        finally:  # also when it is interrupted: the policy that is saved is the last one
            policy.load_state_dict(last)

    def finish(self) -> None:
        self.glances.forget()
        if self.best_policy:
            self.workshop.net.policy.load_state_dict(self.best_policy)

    def state(self) -> dict[str, Any]:
        return {"best_accuracy": self.best_accuracy, "best_policy": self.best_policy}

    def load_state(self, state: dict[str, Any]) -> None:
        best, policy = state["best_accuracy"], state["best_policy"]
        check_kind("stage_state.best_accuracy", best, list, "a list of numbers")
        for number in best:
            check_number("stage_state.best_accuracy", number)
        if policy != {}:  # the joint stage keeps none
            check_tensors("stage_state.best_policy", policy, self.workshop.net.policy.state_dict())
        self.best_accuracy, self.best_policy = best, dict(policy)


# Distances are measured in this share of a patch's side: nearer than that, what matters is well within the patch.
NEAR = 0.25


def pointing_loss(means: Tensor, looks: list[Look], places: Places, image_hw: tuple[int, int]) -> Tensor:
    """Mean over looks and images of log(1 + distance squared) between where the policy aims and the place, by its weight.

    It grows slowly far away: between two places that might be it the policy decides for one instead of aiming at the middle.

    means  (L, B, 2) of the aims between the looks
    """
    losses = []
    for mean, look in zip(means, looks[1:], strict=True):
        assert look.aim is not None
        px = look.aim.patch_px
        away = (mean - aims_at(places.centre, image_hw, px)) * room_px(image_hw, px, mean.device)
        near = NEAR * torch.as_tensor(px, device=mean.device).reshape(-1, 1)
        losses.append((places.weight * (away / near).square().sum(dim=1).log1p()).mean())
    return torch.stack(losses).mean()


class PointStage(AimStage):
    """The policy is taught places; the best one is kept as in stage II."""

    name = "point"

    def __init__(self, workshop: Workshop) -> None:
        super().__init__(workshop, workshop.settings.point)
        self.evidence = BackboneEvidence(workshop)

    def update(self, images: Tensor, labels: Tensor, moment: Moment) -> dict[str, Any]:
        net = self.workshop.net
        deviation = self.arrive_at(moment.progress)
        with torch.no_grad(), self.workshop.accelerator.autocast():
            places = self.evidence.places(images, labels, moment)
            explorer = ExploringPolicy(RandomSizes(net.policy, moment.generator), deviation, moment.generator)
            scene = as_batch(images, net.settings.view)
            looks = play(self.glances.network(scene, moment.rows), scene, net.settings.looks, explorer)
        means, values = self.step(looks)
        loss = pointing_loss(means.float(), looks, places, (images.shape[-2], images.shape[-1]))
        loss = loss + 0 * values.float().sum()  # several processes wait for gradients of every part; the critic's are 0
        descend_policy(self.workshop, self.optimizer, loss)
        return {"loss": float(loss.detach()), "accuracy": accuracy_after(looks, labels)}
