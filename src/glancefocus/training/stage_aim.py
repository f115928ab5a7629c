"""The stages that train the policy: stage II by reinforcement (paper, sections 3.3 and A.2), and before it the stage point.

Stage point (beyond the paper) is supervised: the policy learns to aim where the backbone finds its evidence for the label. In a
large image, reinforcement finds the right place by chance in about one of a hundred patches. The policy is trained along its own
looks, so it also learns where to look after a patch that missed.
"""

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glancefocus.data.splits import Split
from glancefocus.errors import BadSetting
from glancefocus.evaluation.every_look import AimsCheck, check_aims, evaluate_every_look
from glancefocus.look import Look, Scene, as_batch, size_of_first
from glancefocus.loop import LookingNetwork, Policy
from glancefocus.network.model import GlanceFocus
from glancefocus.network.zooming import own_aims
from glancefocus.region import bilinear_crop
from glancefocus.settings import View
from glancefocus.training.checkpoint import Numbers, TorchState, check_kind, check_number, check_tensors
from glancefocus.training.episode import (
    ComparingNetwork,
    ExploringPolicy,
    Judge,
    MixedGlances,
    PolicyStep,
    accuracy_after,
    after_exploring,
    answers_elsewhere,
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
    the_answer,
)
from glancefocus.training.known_places import NEAR, check_places, knows_places, led_at_first, places_in, region_loss
from glancefocus.training.settings import AimSettings, PolicyTraining
from glancefocus.training.stage import (
    FrozenGlances,
    Moment,
    NonFinite,
    TrainingContext,
    take_step,
    train_only,
    weigh_looks,
)
from glancefocus.training.teacher import BackboneEvidence, Places, aims_at, room_px


def play_and_reward(
    net: LookingNetwork, scene: Scene, labels: Tensor, explorer: ExploringPolicy, context: TrainingContext
) -> tuple[list[Look], Tensor]:
    """The looks of an episode and the (L, B) rewards of its aims.

    net  the network of the context, whose glance at the scene may be known already
    """
    settings, whole = context.settings.aim, context.net.settings
    judge = context.net.own_answer if settings.judge == "own_head" else the_answer
    if settings.reward != "contrastive" or not settings.compare_together:
        looks = play(net, scene, whole.looks, explorer)
        return looks, episode_rewards(net, looks, labels, settings, explorer.generator, None, judge)
    drawn = 1 if whole.zoom else len(whole.candidates)
    later = after_exploring(explorer.generator, whole.looks - 1, scene.count, drawn)
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
    """The (L, B) rewards of the aims of an episode.

    elsewhere  for the contrastive reward, for each aim: (draws, B, classes) logits of the judge for random patches; None: they are
               computed now
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


def improve_policy(
    context: TrainingContext, step: nn.Module, optimizer: Any, looks: list[Look], rewards: Tensor, deviation: float
) -> dict[str, float]:
    """PPO on one episode: `passes` steps of the optimiser; returns its losses."""
    settings = context.settings.aim
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
        descend_policy(context, optimizer, losses.total)
        numbers = {"loss": float(losses.total.detach()), "value_loss": float(losses.value.detach())}
    return numbers


def descend_policy(context: TrainingContext, optimizer: Any, loss: Tensor) -> None:
    """One step of the optimiser."""
    total = float(loss.detach())
    if not math.isfinite(total):
        raise NonFinite(f"the policy's loss became {total}")
    optimizer.zero_grad()
    context.accelerator.backward(loss)
    take_step(optimizer)


def along(start: float, end: float | None, progress: float) -> float:
    """Linear interpolation from start to end along the stage; end None: constant."""
    return start if end is None else start + (end - start) * progress


class AimStage:
    """Stage II. The policy with the best last-look accuracy on the validation data is kept; among equals the one with the higher
    accuracy at earlier looks, then the more confident one."""

    name = "aim"

    def __init__(self, context: TrainingContext, settings: PolicyTraining | None = None) -> None:
        self.context = context
        self.data = context.data
        self.settings = settings or context.settings.aim
        self.epochs = self.settings.epochs
        policy = context.net.learnt_policy
        self.train_mode()
        optimizer = torch.optim.Adam(policy.parameters(), lr=self.settings.lr, betas=(0.9, 0.999))
        self.step, self.optimizer = context.accelerator.prepare(PolicyStep(policy), optimizer)
        self.glances = FrozenGlances(context, self.epochs)
        self.best_accuracy: list[float] = []
        self.best_policy: dict[str, Tensor] = {}

    def begin(self) -> None:
        """Validate the policy that the stage starts with: it is kept if no better one is learnt."""
        self.validate(self.data.val)

    def train_mode(self) -> None:
        train_only(self.context, [self.context.net.policy])

    def update(self, images: Tensor, labels: Tensor, moment: Moment) -> Numbers:
        net = self.context.net
        deviation = self.set_rate(moment.progress)
        with torch.no_grad(), self.context.accelerator.autocast():
            explorer = ExploringPolicy(own_aims(net, moment.generator), deviation, moment.generator)
            scene = as_batch(images, net.settings.view)
            looking = self.glances.network(scene, moment.rows, moment.generator)
            looks, rewards = play_and_reward(looking, scene, labels, explorer, self.context)
        numbers = improve_policy(self.context, self.step, self.optimizer, looks, rewards, deviation)
        return {**numbers, "reward": float(rewards.sum(dim=0).mean()), "accuracy": accuracy_after(looks, labels)}

    def set_rate(self, progress: float) -> float:
        """Set the learning rate for this point of the stage; returns the deviation of the exploration."""
        settings = self.settings
        for group in self.optimizer.param_groups:
            group["lr"] = along(settings.lr, settings.lr_end, progress)
        return along(settings.deviation, settings.deviation_end, progress)

    def validate(self, split: Split) -> Numbers:
        net = self.context.net
        policy = own_aims(net, torch.Generator().manual_seed(0), each_row=True)
        evaluation = evaluate_every_look(
            net, split, policy, workers=self.context.workers, glance=self.glances.of_validation(split)
        )
        accuracy = evaluation.accuracy_per_look
        ranked = [accuracy[-1], sum(accuracy), evaluation.surely_right]
        if ranked >= self.best_accuracy:
            self.best_accuracy = ranked
            self.best_policy = {name: t.detach().clone() for name, t in net.policy.state_dict().items()}
        deviation = evaluation.outcome.where[:, 0].std(dim=0, unbiased=False)
        numbers: Numbers = {
            "val_accuracy": accuracy,
            "aim_deviation": [float(d) for d in deviation],
        }
        if split.boxes is not None:
            numbers["hit_rate"] = evaluation.hit_rate_per_focus(split.boxes)
        return numbers

    def check_aims(self) -> AimsCheck:
        """Compare the policy that the stage will keep with aims that are not learnt."""
        policy = self.context.net.policy
        last = {name: t.detach().clone() for name, t in policy.state_dict().items()}
        try:
            policy.load_state_dict(self.best_policy or last)
            return check_aims(self.context.net, self.data.val, workers=self.context.workers)
        finally:  # also when interrupted: the checkpoint must hold the last policy, not the best
            policy.load_state_dict(last)

    def finish(self) -> None:
        self.glances.forget()
        if self.best_policy:
            self.context.net.policy.load_state_dict(self.best_policy)
        weigh_looks(self.context)

    def state(self) -> TorchState:
        return {"best_accuracy": self.best_accuracy, "best_policy": self.best_policy}

    def load_state(self, state: TorchState) -> None:
        best, policy = state["best_accuracy"], state["best_policy"]
        check_kind("stage_state.best_accuracy", best, list, "a list of numbers")
        for number in best:
            check_number("stage_state.best_accuracy", number)
        if policy != {}:  # the joint stage keeps no best policy
            check_tensors("stage_state.best_policy", policy, self.context.net.policy.state_dict())
        self.best_accuracy, self.best_policy = best, dict(policy)


def pointing_loss(
    means: Tensor, looks: list[Look], places: Places, image_hw: tuple[int, int], views: tuple[View, ...]
) -> Tensor:
    """Mean over looks and images of the weighted log(1 + squared distance) between the policy's aim and the place.

    The logarithm grows slowly for large distances: between two candidate places the policy decides for one, instead of aiming at
    the middle between them.

    means  (L, B, 2) of the aims between the looks
    views  the candidate views of the network; looks at the whole image have no place, and add nothing
    """
    losses, device = [], means.device
    extents = torch.tensor([min(image_hw) if v.is_whole else v.extent_px(*image_hw) for v in views], device=device)
    has_place = torch.tensor([float(not view.is_whole) for view in views], device=device)
    for mean, look in zip(means, looks[1:], strict=True):
        assert look.aim is not None
        px = extents[look.aim.candidate]
        away = (mean - aims_at(places.centre, image_hw, px)) * room_px(image_hw, px, device)
        near = NEAR * px.reshape(-1, 1)
        weight = places.weight * has_place[look.aim.candidate]
        losses.append((weight * (away / near).square().sum(dim=1).log1p()).mean())
    return torch.stack(losses).mean()


def return_loss(
    means: Tensor, looks: list[Look], places: Places, image_hw: tuple[int, int], views: tuple[View, ...]
) -> Tensor:
    """Mean over looks and images of the share of the next patch that earlier patches have covered in vain (inhibition of return).

    A patch was in vain if it does not contain the place. One that does was in vain, too, as far as the evidence is not concentrated
    there: in an image without an object the place is arbitrary, and a policy that went there again would also do so where its
    glance missed the object. Arguments as in pointing_loss; looks at the whole image do not count.
    """
    total = means.sum() * 0.0
    tried: list[tuple[Tensor, Tensor]] = []  # (B, 4) top, left, bottom, right in px; (B,) to what degree it was in vain
    for mean, look in zip(means, looks[1:], strict=True):
        assert look.aim is not None
        assert isinstance(look.aim.candidate, int), "one candidate is drawn for each batch"
        view = views[look.aim.candidate]
        if view.is_whole:
            continue
        px = view.extent_px(*image_hw)
        room = room_px(image_hw, px, means.device)
        top_left = mean * room
        for box, in_vain in tried:
            common = torch.minimum(top_left + px, box[:, 2:]) - torch.maximum(top_left, box[:, :2])
            covered = common.clamp_min(0).prod(dim=1) / px**2
            total = total + (in_vain * covered).mean()
        seen = look.aim.where.detach() * room
        box = torch.cat([seen, seen + px], dim=1)
        inside = ((places.centre >= box[:, :2]) & (places.centre <= box[:, 2:])).all(dim=1)
        tried.append((box, 1 - places.weight * inside))
    return total / max(1, len(means) - 1)


def crop_loss(net: GlanceFocus, images: Tensor, means: Tensor, looks: list[Look], labels: Tensor) -> Tensor:
    """Mean over looks of the cross-entropy of the focus encoder's own head, which is frozen, at the policy's aims.

    Gradients reach the aims through bilinear crops. Looks at the whole image have no place, and add nothing.

    images  (B, 3, H, W) normalised
    means   (L, B, 2) of the aims between the looks
    """
    losses = [means.sum() * 0.0]
    for mean, look in zip(means, looks[1:], strict=True):
        assert look.aim is not None
        assert isinstance(look.aim.candidate, int), "one candidate is drawn for each batch"
        view, encoder = net.candidates[look.aim.candidate], net.encoder_of(look.aim.candidate)
        if not view.is_whole:
            patches = bilinear_crop(images, mean, view.extent_px(*images.shape[-2:]), view.px)
            losses.append(F.cross_entropy(encoder.own_head(encoder(patches).vector).float(), labels))
    return torch.stack(losses).sum() / max(1, len(losses) - 1)


class PointStage(AimStage):
    """Supervised training of the policy; the best policy is kept as in stage II."""

    name = "point"

    def __init__(self, context: TrainingContext) -> None:
        super().__init__(context, context.settings.point)
        self.point = context.settings.point
        check_places(context)
        self.evidence = None if knows_places(context.data.train) else BackboneEvidence(context)
        if self.point.crop_weight > 0 and context.net.settings.frames > 1:
            raise BadSetting("point.crop_weight is for images, but this network sees clips. Set it to 0.")

    def update(self, images: Any, labels: Tensor, moment: Moment) -> Numbers:
        net = self.context.net
        deviation = self.set_rate(moment.progress)
        with torch.no_grad(), self.context.accelerator.autocast():
            aimed = [number for number, view in enumerate(net.candidates) if not view.is_whole] or None
            drawn = own_aims(net, moment.generator, candidates=aimed)
            explorer: Policy = ExploringPolicy(drawn, deviation, moment.generator)
            known = places_in(images)
            if known is not None:
                explorer = led_at_first(explorer, net, known, moment.progress, moment)
            scene = as_batch(images, net.settings.view)
            looking = self.glances.network(scene, moment.rows, moment.generator)
            if self.point.mixed_glances > 0:
                looking = MixedGlances(looking, self.point.mixed_glances, moment.generator)
            looks = play(looking, scene, net.settings.looks, explorer)
        means, values = self.step(looks)
        loss = 0 * values.float().sum()  # with several processes every part needs a gradient; the critic's is 0
        if known is not None:
            loss = loss + self.point.evidence_weight * region_loss(net, means.float(), looks, known)
        else:
            for weight, of_places in (
                (self.point.evidence_weight, pointing_loss),
                (self.point.return_weight, return_loss),
            ):
                if weight > 0:
                    places, image_hw = self._places(images, labels, moment), size_of_first(images)
                    loss = loss + weight * of_places(means.float(), looks, places, image_hw, net.settings.candidates)
        if self.point.crop_weight > 0:
            loss = loss + self.point.crop_weight * crop_loss(net, scene.whole, means.float(), looks, labels)
        descend_policy(self.context, self.optimizer, loss)
        return {"loss": float(loss.detach()), "accuracy": accuracy_after(looks, labels)}

    def _places(self, images: Tensor, labels: Tensor, moment: Moment) -> Places:
        """Where the backbone finds its evidence."""
        teacher = self.context.teacher
        with torch.no_grad(), self.context.accelerator.autocast():
            if teacher is None:
                assert self.evidence is not None
                return self.evidence.places(images, labels, moment)
            return teacher.lesson(images, labels, moment).places
