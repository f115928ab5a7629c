"""Initialising the encoders (paper, section 3.4 and A.3).

The focus encoder is trained on whole images at full resolution, or fine-tuned from pretrained weights; alone it is also the
baseline to beat. The glance encoder starts as its copy and is fine-tuned on glances. In a built-in world both may see small scenes
first. Beyond the paper, the glance encoder can also learn from the trained backbone, see teacher.py.
"""

import math
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glancefocus.data.sources import Data, open_small
from glancefocus.data.splits import Split, in_order, scene_batches
from glancefocus.evaluation.every_look import seen_at_once
from glancefocus.evaluation.rivals import patch_side, size_in
from glancefocus.interrupts import interruptible
from glancefocus.look import as_batch, size_of_first
from glancefocus.network.build import build_backbone
from glancefocus.network.modules import Encoder, Encoding
from glancefocus.network.places import first_region
from glancefocus.region import Region, resized
from glancefocus.settings import NetworkSettings, whole
from glancefocus.training.checkpoint import Numbers, TorchState, check_tensors
from glancefocus.training.kept_weights import calibrated_loss, keep_best_between, kept_words
from glancefocus.training.known_places import KnownPlaces, knows_places
from glancefocus.training.settings import InitialiseSettings, SmallSettings, TrainSettings
from glancefocus.training.stage import Moment, TrainingContext, descend, make_optimizer, set_rates, train_only
from glancefocus.training.teacher import BackboneEvidence, Places, taught_loss


class EvidenceShown(nn.Module):
    """The loss by which an encoder's feature map learns to show where the evidence is. Its convolution is trained along with the
    encoder and dropped at the end of the stage."""

    def __init__(self, map_channels: int) -> None:
        super().__init__()
        # Its name is part of checkpoints, so it stays.
        self.speaks_for = nn.Conv2d(map_channels, 1, kernel_size=1, bias=False)
        nn.init.zeros_(self.speaks_for.weight)  # at first all places are equally likely

    def forward(self, map_: Tensor, places: Places, image_hw: tuple[int, int]) -> Tensor:
        """Mean over the images of the weighted cross-entropy between the map's cells and the place."""
        scores = self.speaks_for(map_)[:, 0]
        wanted = cells_of(places.centre, image_hw, (scores.shape[-2], scores.shape[-1]))
        return (places.weight * F.cross_entropy(scores.flatten(1).float(), wanted.flatten(1), reduction="none")).mean()


def cells_of(centre: Tensor, image_hw: tuple[int, int], cells_hw: tuple[int, int]) -> Tensor:
    """(B, rows, columns) each place as a distribution over the cells of a map: bilinear weights of its four neighbours."""
    axes = []
    for axis, (side, cells) in enumerate(zip(image_hw, cells_hw, strict=True)):
        at = (centre[:, axis] * cells / side - 0.5).clamp(0, cells - 1)
        axes.append((1 - (torch.arange(cells, device=centre.device) - at[:, None]).abs()).clamp_min(0))
    return axes[0][:, :, None] * axes[1][:, None, :]


class EncoderStep(nn.Module):
    """Cross-entropy of an encoder's own head on whole images, or on glances.

    glance_px  side of the glances, or of what the first look sees instead; None: whole images
    size       (height, width) that whole images are resized to; None: not resized
    shown      the loss for the evidence; None: it has no weight
    """

    def __init__(
        self,
        encoder: Encoder,
        settings: NetworkSettings,
        stage_settings: InitialiseSettings,
        glance_px: int | None,
        size: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.settings = settings
        self.stage_settings = stage_settings
        self.glance_px = glance_px
        self.size = size
        self.shown = (
            EvidenceShown(encoder.map_channels * settings.frames) if stage_settings.evidence_weight > 0 else None
        )

    def encode(self, images: Tensor, *, half_size: bool = False, generator: torch.Generator | None = None) -> Encoding:
        scene = as_batch(images, self.settings.view)
        size = halved(scene.whole, patch_side(self.encoder)) if half_size else self.size
        if size is not None:
            seen = resized(scene.whole, size, "antialias").contiguous(memory_format=torch.channels_last)
        elif self.glance_px is not None and self.settings.first_view == "glance":
            seen = scene.view(Region(whole(self.glance_px, self.settings.glance_resize)))
        elif self.glance_px is not None:
            where = None if generator is None else torch.rand(scene.count, 2, generator=generator)
            seen = scene.view(first_region(self.settings, scene, where))
        else:
            seen = scene.whole
        encoding: Encoding = self.encoder(seen)
        return encoding

    def answer(self, images: Tensor) -> Tensor:
        return self.encoder.own_head(self.encode(images).vector)

    def forward(
        self,
        images: Tensor,
        labels: Tensor,
        centre: Tensor | None = None,
        weight: Tensor | None = None,
        taught: Tensor | None = None,
        half_size: bool = False,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, list[float]]:
        """The loss and the accuracy; centre and weight are the Places of the evidence, taught the teacher's answers.

        generator  draws the places of random first views
        """
        encoding, settings = self.encode(images, half_size=half_size, generator=generator), self.stage_settings
        logits = self.encoder.own_head(encoding.vector)
        loss = taught_loss(logits, labels, taught, settings.distill, settings.label_smoothing)
        if self.shown is not None:
            assert centre is not None
            assert weight is not None
            image_hw = size_of_first(images)
            loss = loss + self.stage_settings.evidence_weight * self.shown(
                encoding.map, Places(centre, weight), image_hw
            )
        return loss, [float((logits.argmax(dim=1) == labels).float().mean())]


def halved(images: Tensor, token_px: int) -> tuple[int, int]:
    """(height, width) of images at half of their size, as multiples of a transformer's patches."""
    height, width = (max(token_px, round(side / 2 / token_px) * token_px) for side in images.shape[-2:])
    return height, width


class InitialiseStage:
    """Training one encoder alone.

    small         the focus encoder on small scenes of a built-in world
    backbone      the focus encoder on whole images
    small_glance  the glance encoder (a copy of the focus encoder, or fresh) on glances of small scenes
    glance        the same on glances of whole images, or on what the first look sees instead (NetworkSettings.first_view)
    rival-160     the focus encoder on whole images resized to 160 px, with the settings of the stage glance, which trains our own
                  small inputs; see evaluation/rivals.py
    """

    def __init__(self, name: str, context: TrainingContext) -> None:
        size = size_in(name)
        settings: InitialiseSettings = getattr(context.settings, name if size is None else "glance")
        if size is not None:
            settings = replace(settings, evidence_weight=0.0)  # that loss is for aims, and a rival has none
        net = context.net
        self.name = name
        self.epochs = settings.epochs
        self.warmup = settings.warmup
        self.half_size = settings.half_size
        self.context = context
        self.data = _small_data(context, settings) if isinstance(settings, SmallSettings) else context.data
        glance_px = glance_side(name, context.settings)
        self.encoder = net.focus_encoder if glance_px is None else net.glance_encoder
        # A shared encoder must not be trained on glances only.
        only_norms = net.settings.own_norms and glance_px is not None
        self.trained: list[nn.Module] = self.encoder.norms if only_norms else [self.encoder]
        self.train_mode()
        step = EncoderStep(self.encoder, net.settings, settings, glance_px, size)
        self.shown = step.shown
        self.evidence: KnownPlaces | BackboneEvidence | None = None
        if step.shown is not None:
            known = knows_places(self.data.train)
            self.evidence = KnownPlaces() if known else BackboneEvidence(context, self.data.train)
        self.teacher = context.teacher if settings.distill > 0 else None
        learning = [weight for weight in step.parameters() if weight.requires_grad]
        optimizer = make_optimizer(settings.optimizer, [{"params": learning, "lr": settings.lr}], settings.weight_decay)
        self.step, self.optimizer = context.accelerator.prepare(step, optimizer)

    def begin(self) -> None:
        net, settings = self.context.net, self.context.net.settings
        continues = self.name == "glance" and "small_glance" in self.context.settings.stages
        if self.encoder is not net.glance_encoder or net.glance_encoder is net.focus_encoder or continues:
            return
        own: InitialiseSettings = getattr(self.context.settings, self.name)
        if own.fresh:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.context.settings.seed)
                start = Encoder(build_backbone(settings.backbone, settings.classes, settings.backbone_options))
        else:
            start = net.focus_encoder
        self.encoder.load_state_dict(start.state_dict())

    def train_mode(self) -> None:
        train_only(self.context, self.trained)

    def update(self, images: Tensor, labels: Tensor, moment: Moment) -> Numbers:
        set_rates(self.optimizer, moment.progress, self.warmup)
        more: dict[str, Any] = {} if self.evidence is None else self.evidence.places(images, labels, moment)._asdict()
        more["generator"] = moment.generator
        if moment.progress < self.half_size:
            more["half_size"] = True
        if self.teacher is not None:
            more["taught"] = self.teacher.lesson(images, labels, moment).answers
        loss, accuracy = descend(self.context, self.step, self.optimizer, images, labels, **more)
        return {"loss": loss, "accuracy": accuracy}

    def validate(self, split: Split) -> Numbers:
        answers, labels = self.answers(split)
        return {"val_accuracy": [int((answers.argmax(dim=1) == labels).sum()) / len(split)]}

    def answers(self, split: Split) -> tuple[Tensor, Tensor]:
        """(N, classes) the answers of the encoder's own head, and (N,) the labels."""
        self.encoder.eval()
        step = self.context.accelerator.unwrap_model(self.step)
        device, settings = self.context.accelerator.device, step.settings
        order = in_order(len(split), seen_at_once(settings, step.glance_px))
        answers, truth = [], []
        with torch.inference_mode():
            for images, labels in scene_batches(split, settings.view, order, None, self.context.workers):
                answers.append(step.answer(images.to(device)).float().cpu())
                truth.append(labels)
        return torch.cat(answers), torch.cat(truth)

    def finish(self) -> str | None:
        if self.name in ("small", "backbone"):
            self._copy_to_others()
        if self.teacher is None or self.context.net.settings.shared_encoder:
            return None
        with interruptible():
            share = keep_best_between(
                self.teacher.encoder, self.encoder, lambda: calibrated_loss(*self.answers(self.data.val))
            )
        return kept_words(self.name, share)

    def _copy_to_others(self) -> None:
        """The other encoders start as the one that was trained."""
        net, settings = self.context.net, self.context.settings
        others = [net.whole_encoder]
        # Norms of its own must fit the weights that they share with the encoder that was trained. Without a stage of its own the
        # glance encoder starts as the focus encoder (paper, ablation: without fine-tuning).
        if net.settings.own_norms or (settings.start is None and not settings.trains_glances):
            others.append(net.glance_encoder)
        for other in others:
            if other is not None:
                other.load_state_dict(self.encoder.state_dict())

    def state(self) -> TorchState:
        return {} if self.shown is None else {"shown": self.shown.state_dict()}

    def load_state(self, state: TorchState) -> None:
        if self.shown is not None:
            check_tensors("stage_state.shown", state["shown"], self.shown.state_dict())
            self.shown.load_state_dict(state["shown"])


def glance_side(name: str, settings: TrainSettings) -> int | None:
    """Side of the glances that a stage trains on, in px; None: whole images.

    Small scenes are reduced by the same factor as whole ones.
    """
    network = settings.network
    if name == "glance":
        return network.glance_px
    if name != "small_glance":
        return None
    whole_px = math.sqrt(network.view.height_px * network.view.width_px)
    return max(8, round(network.glance_px * settings.small_glance.side_px / whole_px))


def _small_data(context: TrainingContext, small: SmallSettings) -> Data:
    settings, network = context.settings, context.settings.network
    return open_small(settings.data, network.view, small.side_px, small.scenes, context.on_progress, network.frames)
