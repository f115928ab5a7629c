"""The stages that train encoders and classifier: I (patches at random places), III (at learnt places), and the joint stage.

See section 3.3 of the paper; the joint stage is beyond it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glancefocus.data.splits import Split
from glancefocus.errors import BadSetting
from glancefocus.evaluation.every_look import evaluate_every_look
from glancefocus.look import Look, as_batch, size_of_first
from glancefocus.loop import Policy
from glancefocus.network.model import GlanceFocus
from glancefocus.network.modules import Encoder, SummedClassifier
from glancefocus.network.policy import InTurns, RandomCandidates, learning_network
from glancefocus.network.zooming import own_aims, random_aims
from glancefocus.settings import View
from glancefocus.training.checkpoint import Numbers, TorchState, check_optimizer
from glancefocus.training.episode import (
    ExploringPolicy,
    FixedPolicy,
    MistakenGlances,
    PolicyStep,
    SometimesRandom,
    accuracy_after,
    play,
)
from glancefocus.training.kept_weights import keep_best_encoders
from glancefocus.training.known_places import KnownAims, check_known, places_in, region_loss
from glancefocus.training.settings import JointSettings, RecogniseSettings
from glancefocus.training.stage import (
    FrozenGlances,
    Moment,
    TrainingContext,
    descend,
    is_trained,
    make_optimizer,
    set_rates,
    train_only,
    weigh_looks,
)
from glancefocus.training.stage_aim import AimStage, improve_policy, play_and_reward
from glancefocus.training.teacher import Places, TaughtAims, taught_loss


def recognition_loss(
    net: GlanceFocus,
    looks: list[Look],
    labels: Tensor,
    own_head_weight: float,
    taught: Tensor | None = None,
    distill: float = 0.0,
) -> Tensor:
    """Eq. 6: the mean over looks of the classifier's cross-entropy plus, weighted, that of the encoder's own head.

    taught, distill  see taught_loss (beyond the paper)
    """
    answers = torch.stack([taught_loss(look.logits, labels, taught, distill) for look in looks])
    if own_head_weight == 0:
        return answers.mean()
    own = torch.stack([taught_loss(net.own_answer(look), labels, taught, distill) for look in looks])
    return (answers + own_head_weight * own).mean()


def separate_loss(
    net: GlanceFocus, looks: list[Look], labels: Tensor, taught: Tensor | None = None, distill: float = 0.0
) -> Tensor:
    """The mean loss of what the encoders' own heads answer to each look alone; glances of a frozen encoder do not count.

    For a summed classifier. The glance encoder has memorised most training images. With the loss of the sum, the focus encoder
    would learn only from the few images that the glance gets wrong.
    """
    learning = looks if is_trained(net.glance_encoder) else looks[1:]
    return torch.stack([taught_loss(net.own_answer(look), labels, taught, distill) for look in learning]).mean()


class RecogniseStep(nn.Module):
    """The loss of one batch with the aims of a policy; rows (B,) are the indices of its images in the training data.

    looks  number of looks at each image
    """

    def __init__(self, net: GlanceFocus, settings: RecogniseSettings, glances: FrozenGlances, looks: int) -> None:
        super().__init__()
        self.net = net
        self.settings = settings
        self.glances = glances
        self.looks = looks
        self.policy = PolicyStep(net.learnt_policy) if settings.point_weight > 0 else None

    def forward(
        self,
        images: Any,
        labels: Tensor,
        generator: torch.Generator,
        aims: Callable[[torch.Generator, tuple[int, int], Places | None], Policy],
        rows: Tensor | None = None,
        taught: Tensor | None = None,
        centre: Tensor | None = None,
        weight: Tensor | None = None,
    ) -> tuple[Tensor, list[float]]:
        """The loss and the accuracy after each look.

        aims                    makes the policy of this batch
        taught, centre, weight  the teacher's lesson, where there is one
        """
        known = places_in(images)
        places = known if centre is None or weight is None else Places(centre, weight)
        policy = aims(generator, size_of_first(images), places)
        scene = as_batch(images, self.net.settings.view)
        looking = self.glances.network(scene, rows, generator)
        if self.settings.mistaken_glances > 0:
            looking = MistakenGlances(looking, self.net.remember_again, self.settings.mistaken_glances, generator)
        looks = play(looking, scene, self.looks, policy)
        distill = self.settings.distill
        if isinstance(self.net.classifier, SummedClassifier):
            loss = separate_loss(self.net, looks, labels, taught, distill)
        else:
            loss = recognition_loss(self.net, looks, labels, self.settings.own_head_weight, taught, distill)
        if self.policy is not None and known is not None:
            means, values = self.policy(looks)
            pointing = region_loss(self.net, means.float(), looks, known)
            # With several processes every part needs a gradient; the critic's is 0.
            loss = loss + self.settings.point_weight * pointing + 0 * values.sum()
        return loss, accuracy_after(looks, labels)


class RecogniseStage:
    """Stage I. Stage III is the same with learnt aims, see FinetuneStage."""

    name = "recognise"

    def __init__(self, context: TrainingContext) -> None:
        self.context = context
        self.data = context.data
        self.settings: RecogniseSettings = getattr(context.settings, self.name)
        self.epochs = self.settings.epochs
        settings, net = self.settings, context.net
        check_known(context, self.name, settings)
        self.train_mode()
        groups = []
        if own := list(net.classifier.parameters()):
            groups.append({"params": own, "lr": settings.classifier_lr})
        encoders = [p for e in self._trained_encoders() for p in e.parameters()]
        if encoders:
            groups.append({"params": list(dict.fromkeys(encoders)), "lr": settings.encoder_lr})
        if settings.point_weight > 0:
            groups.append({"params": list(net.policy.parameters()), "lr": settings.encoder_lr})
        if not groups:
            raise BadSetting(
                f"the stage {self.name} has nothing to train: the encoders are frozen, and summed answers need no training. Leave "
                f"the stage out, or set {self.name}.freeze_encoders=false."
            )
        optimizer = make_optimizer(settings.optimizer, groups, settings.weight_decay)
        self.glances = FrozenGlances(context, self.epochs)
        self.teacher = context.teacher if context.settings.is_taught(self.name) else None
        step = RecogniseStep(net, settings, self.glances, self._looks_to_learn())
        self.step, self.optimizer = context.accelerator.prepare(step, optimizer)

    def _looks_to_learn(self) -> int:
        """Number of looks at each training image.

        Looks that are summed learn separately, and none depends on the one before it in this stage: one for each view is enough.
        """
        net = self.context.net
        if not isinstance(net.classifier, SummedClassifier):
            return net.settings.looks
        turns = self._turns()
        looks = 1 + sum(map(len, turns))
        return min(net.settings.looks, looks) if len(turns) < 2 else looks

    def _turns(self) -> list[dict[int, View]]:
        """{number: view} of the candidates that each focus look of a batch is drawn from.

        Where several encoders learn, each look shows one view, so that every encoder gets gradients from every batch.
        """
        groups = self.context.net.learning_views().values()
        return list(groups) if len(groups) < 2 else [{each: views[each]} for views in groups for each in views]

    def aims(
        self, generator: torch.Generator, each_row: bool = False, candidates: Sequence[int] | None = None
    ) -> Policy:
        """The policy that aims.

        each_row    (validation) candidate views are drawn for each image, otherwise for each batch
        candidates  numbers of the views to draw from; None: all
        """
        net = self.context.net
        if net.settings.policy.kind == "centre_corner":
            return RandomCandidates(net.policy, generator, each_row=each_row, candidates=candidates)
        every = range(len(net.settings.candidates))
        return random_aims(net, generator, each_row=each_row, candidates=every if candidates is None else candidates)

    def _aims_in_turns(self, generator: torch.Generator) -> Policy:
        """The policy `aims`, with the views that learn."""
        turns = self._turns()
        if len(turns) > 1:
            return InTurns([self.aims(generator, candidates=list(views)) for views in turns])
        summed = isinstance(self.context.net.classifier, SummedClassifier)
        return self.aims(generator, candidates=list(turns[0]) if summed and turns else None)

    def learning_aims(
        self, generator: torch.Generator, image_hw: tuple[int, int] = (0, 0), places: Places | None = None
    ) -> Policy:
        """The policy that aims during training; places: of the teacher's evidence in images of this size."""
        settings = self.settings
        if places is None or settings.aims == "random":
            return self._aims_in_turns(generator)
        noise = {"deviation": settings.deviation, "random_share": settings.random_share}
        net, turns = self.context.net, self._turns()
        if settings.aims == "known":
            return InTurns([KnownAims(net, places, each, generator, **noise) for each in turns])
        return InTurns([TaughtAims(places, image_hw, each, generator, **noise) for each in turns])

    def begin(self) -> None: ...

    def train_mode(self) -> None:
        net, with_policy = self.context.net, self.settings.point_weight > 0
        train_only(self.context, [net.classifier, *self._trained_encoders(), *([net.policy] if with_policy else [])])
        # Several processes wait for a gradient of every weight that is trained.
        for encoder in self._unused_heads():
            for head in encoder.head_modules:
                head.requires_grad_(False)

    def _unused_heads(self) -> list[Encoder]:
        """The encoders whose own heads are in no loss: without the regulariser of Eq. 6, unless they give answers."""
        net = self.context.net
        if self.settings.own_head_weight > 0 or isinstance(net.classifier, SummedClassifier):
            return []
        if net.settings.first_answer != "own_head":
            return [net.focus_encoder, net.glance_encoder]
        return [] if net.settings.shared_encoder else [net.focus_encoder]  # the head answers glances

    def _trained_encoders(self) -> list[nn.Module]:
        net, settings = self.context.net, self.settings
        if settings.freeze_encoders:
            return []
        if net.settings.shared_encoder:  # all of them use its weights
            return list(dict.fromkeys([net.glance_encoder, *map(net.encoder_of, range(len(net.candidates)))]))
        return [*([] if settings.freeze_glance else [net.glance_encoder]), *net.learning_views()]

    def update(self, images: Tensor, labels: Tensor, moment: Moment) -> Numbers:
        set_rates(self.optimizer, moment.progress, self.settings.warmup)
        more: dict[str, Any] = {"aims": self.learning_aims, "generator": moment.generator, "rows": moment.rows}
        if self.teacher is not None:
            lesson = self.teacher.lesson(images, labels, moment)
            more |= {"taught": lesson.answers, **lesson.places._asdict()}
        loss, accuracy = descend(self.context, self.step, self.optimizer, images, labels, **more)
        return {"loss": loss, "accuracy": accuracy}

    def validate(self, split: Split) -> Numbers:
        policy = self.aims(torch.Generator().manual_seed(0), each_row=True)
        evaluation = evaluate_every_look(
            self.context.net,
            split,
            policy,
            workers=self.context.workers,
            glance=self.glances.of_validation(split),
        )
        return {"val_accuracy": evaluation.accuracy_per_look}

    def finish(self) -> str | None:
        self.glances.forget()
        # Stage III continues from weights that are not the teacher's.
        learnt = self.name == "recognise" and not self.settings.freeze_encoders
        said = keep_best_encoders(self.context, self.teacher, self.settings) if learnt and self.teacher else None
        weigh_looks(self.context)
        return said

    def state(self) -> TorchState:
        return {}

    def load_state(self, state: TorchState) -> None:
        pass


class FinetuneStage(RecogniseStage):
    """Stage III: stage I with the aims of the learnt policy, and settings of its own. A policy that is a rule stays that rule."""

    name = "finetune"

    def aims(
        self, generator: torch.Generator, each_row: bool = False, candidates: Sequence[int] | None = None
    ) -> Policy:
        if self.context.net.settings.policy.kind != "learnt":
            return super().aims(generator, each_row, candidates)
        return FixedPolicy(own_aims(self.context.net, generator, each_row=each_row, candidates=candidates))

    def learning_aims(
        self, generator: torch.Generator, image_hw: tuple[int, int] = (0, 0), places: Places | None = None
    ) -> Policy:
        aims, settings = self._aims_in_turns(generator), self.settings
        if settings.deviation > 0 and self.context.net.settings.policy.kind == "learnt":
            aims = ExploringPolicy(aims, settings.deviation, generator)
        return SometimesRandom(aims, settings.random_share, generator) if settings.random_share > 0 else aims


def distillation_loss(looks: list[Look]) -> Tensor:
    """Mean KL divergence of the earlier looks' answers from the last one's; no gradient flows into the last one."""
    last = looks[-1].logits.detach().float().log_softmax(dim=1)
    earlier = [look.logits.float().log_softmax(dim=1) for look in looks[:-1]]
    return torch.stack([F.kl_div(e, last, log_target=True, reduction="batchmean") for e in earlier]).mean()


class JointStep(nn.Module):
    """The supervised loss of the joint stage."""

    def __init__(self, net: GlanceFocus, settings: JointSettings) -> None:
        super().__init__()
        self.net = net
        self.settings = settings

    def forward(
        self, images: Tensor, labels: Tensor, policy: Policy, generator: torch.Generator | None = None
    ) -> tuple[Tensor, list[float]]:
        """The loss and the accuracy after each look; generator: of random first views."""
        net, settings, scene = self.net, self.settings, as_batch(images, self.net.settings.view)
        looking = net if generator is None else learning_network(net, generator)
        looks = play(looking, scene, net.settings.looks, policy)
        loss = recognition_loss(net, looks, labels, settings.own_head_weight)
        if settings.distill_weight > 0:
            loss = loss + settings.distill_weight * distillation_loss(looks)
        if settings.whole_image_weight > 0:
            whole = net.focus_encoder.own_head(net.focus_encoder(as_batch(images, net.settings.view).whole).vector)
            loss = loss + settings.whole_image_weight * F.cross_entropy(whole.float(), labels)
        return loss, accuracy_after(looks, labels)


class JointStage(AimStage):
    """One stage for everything: each batch trains encoders and classifier, then, with the updated network, the policy."""

    name = "joint"

    def __init__(self, context: TrainingContext) -> None:
        super().__init__(context)
        net, joint = context.net, context.settings.joint
        self.joint = joint
        self.epochs = joint.epochs
        encoders = list(dict.fromkeys([*net.glance_encoder.parameters(), *net.focus_encoder.parameters()]))
        groups = [{"params": encoders, "lr": joint.encoder_lr}]
        if own := list(net.classifier.parameters()):
            groups.insert(0, {"params": own, "lr": joint.classifier_lr})
        train_only(context, [net.glance_encoder, net.focus_encoder, net.classifier])
        self.recognise_step, self.recognise_optimizer = context.accelerator.prepare(
            JointStep(net, joint), make_optimizer("sgd", groups, joint.weight_decay)
        )
        self.train_mode()

    def begin(self) -> None:
        pass  # no policy is kept from before, see validate

    def train_mode(self) -> None:
        net = self.context.net
        train_only(self.context, [net.glance_encoder, net.focus_encoder, net.classifier, net.policy])

    def update(self, images: Tensor, labels: Tensor, moment: Moment) -> Numbers:
        net, context = self.context.net, self.context
        deviation = self.set_rate(moment.progress)
        explorer = ExploringPolicy(own_aims(net, moment.generator), deviation, moment.generator)
        set_rates(self.recognise_optimizer, moment.progress)
        loss, accuracy = descend(
            context,
            self.recognise_step,
            self.recognise_optimizer,
            images,
            labels,
            policy=explorer,
            generator=moment.generator,
        )
        net.eval()
        with torch.no_grad(), context.accelerator.autocast():
            looking, scene = learning_network(net, moment.generator), as_batch(images, net.settings.view)
            looks, rewards = play_and_reward(looking, scene, labels, explorer, context)
        self.train_mode()
        aimed = improve_policy(context, self.step, self.optimizer, looks, rewards, deviation)
        return {
            "loss": loss,
            "policy_loss": aimed["loss"],
            "reward": float(rewards.sum(dim=0).mean()),
            "accuracy": accuracy,
        }

    def validate(self, split: Split) -> Numbers:
        numbers = super().validate(split)
        self.best_policy = {}  # a policy fits the encoders of its own epoch only: keep the last of both
        return numbers

    def state(self) -> TorchState:
        return {**super().state(), "recognise_optimizer": self.recognise_optimizer.state_dict()}

    def load_state(self, state: TorchState) -> None:
        super().load_state(state)
        check_optimizer("stage_state.recognise_optimizer", state["recognise_optimizer"], self.recognise_optimizer)
        self.recognise_optimizer.load_state_dict(state["recognise_optimizer"])
