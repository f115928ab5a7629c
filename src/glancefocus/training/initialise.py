"""Initialising the encoders (paper, section 3.4 and A.3).

The focus encoder is trained on whole images at full resolution, or fine-tuned from pretrained weights: alone it is also the
baseline to beat. The glance encoder starts from it and is fine-tuned on glances; it may also learn from it where things are. In a
built-in world both may see small scenes first.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glancefocus.data.sources import Data, open_small
from glancefocus.data.splits import Split, in_order, scene_batches
from glancefocus.evaluation.every_look import seen_at_once
from glancefocus.evaluation.rivals import size_in
from glancefocus.network.encoder import Encoder, Encoding, build_backbone
from glancefocus.region import resized, whole
from glancefocus.scene import as_batch
from glancefocus.settings import NetworkSettings
from glancefocus.training.checkpoint import check_tensors
from glancefocus.training.settings import InitialiseSettings, SmallSettings, TrainSettings
from glancefocus.training.stage import Moment, Workshop, descend, make_optimizer, mean_of, set_rates, train_only
from glancefocus.training.stage_point import BackboneEvidence, EvidenceShown, Places


class EncoderStep(nn.Module):
    """Cross-entropy of an encoder's own head, on whole images, or on glances of them where they have a size.

    size   (height, width) that whole images are resized to; None: as they are
    shown  how well the map shows the evidence, where that is to be learnt, too
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

    def encode(self, images: Tensor) -> Encoding:
        scene = as_batch(images, self.settings.view)
        if self.size is not None:
            seen = resized(scene.whole, self.size, "antialias").contiguous(memory_format=torch.channels_last)
        elif self.glance_px is not None:
            seen = scene.view(whole(self.glance_px, self.settings.glance_resize).at())
        else:
            seen = scene.whole
        encoding: Encoding = self.encoder(seen)
        return encoding

    def answer(self, images: Tensor) -> Tensor:
        return self.encoder.own_head(self.encode(images).vector)

    def forward(
        self, images: Tensor, labels: Tensor, centre: Tensor | None = None, weight: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """The loss and numbers to show; centre and weight are those of the evidence's Places."""
        encoding = self.encode(images)
        logits = self.encoder.own_head(encoding.vector)
        loss = F.cross_entropy(logits, labels, label_smoothing=self.stage_settings.label_smoothing)
        if self.shown is not None:
            assert centre is not None
            assert weight is not None
            image_hw = images.shape[-2], images.shape[-1]
            loss = loss + self.stage_settings.evidence_weight * self.shown(
                encoding.map, Places(centre, weight), image_hw
            )
        return loss, {"accuracy": [float((logits.argmax(dim=1) == labels).float().mean())]}


class InitialiseStage:
    """Training one encoder alone.

    small         the focus encoder on small scenes of a built-in world
    backbone      the focus encoder on whole images
    small_glance  the glance encoder, which starts as its copy or fresh, on glances of small scenes
    glance        the same on glances of whole images
    rival-160     the focus encoder on whole images resized to 160 px, with the settings of the stage backbone; see
                  evaluation/rivals.py
    """

    def __init__(self, name: str, workshop: Workshop) -> None:
        size = size_in(name)
        settings: InitialiseSettings = getattr(workshop.settings, name if size is None else "backbone")
        net = workshop.net
        self.name = name
        self.epochs = settings.epochs
        self.warmup = settings.warmup
        self.workshop = workshop
        self.data = _small_data(workshop, settings) if isinstance(settings, SmallSettings) else workshop.data
        glance_px = glance_side(name, workshop.settings)
        self.encoder = net.focus_encoder if glance_px is None else net.glance_encoder
        train_only(workshop, [self.encoder])
        step = EncoderStep(self.encoder, net.settings, settings, glance_px, size)
        self.shown = step.shown
        self.evidence = None if step.shown is None else BackboneEvidence(workshop, self.data.train)
        optimizer = make_optimizer(
            settings.optimizer, [{"params": list(step.parameters()), "lr": settings.lr}], settings.weight_decay
        )
        self.step, self.optimizer = workshop.accelerator.prepare(step, optimizer)

    def begin(self) -> None:
        settings = self.workshop.net.settings
        goes_on = self.name == "glance" and "small_glance" in self.workshop.settings.stages
        if self.encoder is not self.workshop.net.glance_encoder or settings.shared_encoder or goes_on:
            return
        own: InitialiseSettings = getattr(self.workshop.settings, self.name)
        if own.fresh:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.workshop.settings.seed)
                start = Encoder(build_backbone(settings.backbone, settings.classes, settings.backbone_options))
        else:
            start = self.workshop.net.focus_encoder
        self.encoder.load_state_dict(start.state_dict())

    def train_mode(self) -> None:
        train_only(self.workshop, [self.encoder])

    def update(self, images: Tensor, labels: Tensor, moment: Moment) -> dict[str, Any]:
        set_rates(self.optimizer, moment.progress, self.warmup)
        places = {} if self.evidence is None else self.evidence.places(images, labels, moment)._asdict()
        loss, numbers = descend(self.workshop, self.step, self.optimizer, images, labels, **places)
        return {"loss": loss, "accuracy": mean_of(numbers, "accuracy")}

    def validate(self, split: Split) -> dict[str, Any]:
        self.encoder.eval()
        step = self.workshop.accelerator.unwrap_model(self.step)
        device = self.workshop.accelerator.device
        settings = step.settings
        order = in_order(len(split), seen_at_once(settings, step.glance_px))
        right = 0
        with torch.inference_mode():
            for images, labels in scene_batches(split, settings.view, order, None, self.workshop.workers):
                right += int((step.answer(images.to(device)).argmax(dim=1).cpu() == labels).sum())
        return {"val_accuracy": [right / len(split)]}

    def finish(self) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {} if self.shown is None else {"shown": self.shown.state_dict()}

    def load_state(self, state: dict[str, Any]) -> None:
        if self.shown is not None:
            check_tensors("stage_state.shown", state["shown"], self.shown.state_dict())
            self.shown.load_state_dict(state["shown"])


def glance_side(name: str, settings: TrainSettings) -> int | None:
    """Of the glances that a stage sees, if it does. Things are as small in those of small scenes as in those of whole ones."""
    network = settings.network
    if name == "glance":
        return network.glance_px
    if name != "small_glance":
        return None
    whole_px = math.sqrt(network.view.height_px * network.view.width_px)
    return max(8, round(network.glance_px * settings.small_glance.side_px / whole_px))


def _small_data(workshop: Workshop, small: SmallSettings) -> Data:
    settings, network = workshop.settings, workshop.settings.network
    return open_small(settings.data, network.view, small.side_px, small.scenes, workshop.tell, network.frames)
