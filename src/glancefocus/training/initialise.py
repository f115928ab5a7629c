"""Initialising the encoders (paper, section 3.4 and A.3).

The focus encoder is trained on whole images at full resolution, or fine-tuned from pretrained weights: alone it is also the
baseline to beat. The glance encoder starts from it and is fine-tuned on glances. In a built-in world the focus encoder may see
small scenes first.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glancefocus.data.datasets import Data, open_small
from glancefocus.data.splits import Split, in_order, scene_batches
from glancefocus.evaluation.every_look import seen_at_once
from glancefocus.network.encoder import Encoder, build_backbone
from glancefocus.scene import as_batch
from glancefocus.settings import NetworkSettings
from glancefocus.training.settings import InitialiseSettings
from glancefocus.training.stage import Moment, Workshop, descend, make_optimizer, mean_of, set_rates, train_only


class EncoderStep(nn.Module):
    """Cross-entropy of an encoder's own head, on whole images or on glances of them."""

    def __init__(
        self, encoder: Encoder, settings: NetworkSettings, *, on_glances: bool, label_smoothing: float
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.settings = settings
        self.on_glances = on_glances
        self.label_smoothing = label_smoothing

    def answer(self, images: Tensor) -> Tensor:
        scene = as_batch(images, self.settings.view)
        seen = scene.glance(self.settings.glance_px, self.settings.glance_resize) if self.on_glances else scene.whole
        return self.encoder.own_head(self.encoder(seen).vector)

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, Any]]:
        logits = self.answer(images)
        loss = F.cross_entropy(logits, labels, label_smoothing=self.label_smoothing)
        return loss, {"accuracy": [float((logits.argmax(dim=1) == labels).float().mean())]}


class InitialiseStage:
    """Training one encoder alone.

    small     the focus encoder on small scenes of a built-in world
    backbone  the focus encoder on whole images
    glance    the glance encoder, which starts as its copy
    """

    def __init__(self, name: str, workshop: Workshop) -> None:
        settings: InitialiseSettings = getattr(workshop.settings, name)
        net = workshop.net
        self.name = name
        self.epochs = settings.epochs
        self.warmup = settings.warmup
        self.workshop = workshop
        self.data = _small_data(workshop) if name == "small" else workshop.data
        on_glances = name == "glance"
        self.encoder = net.glance_encoder if on_glances else net.focus_encoder
        train_only(net, [self.encoder])
        step = EncoderStep(self.encoder, net.settings, on_glances=on_glances, label_smoothing=settings.label_smoothing)
        optimizer = make_optimizer(
            settings.optimizer, [{"params": list(self.encoder.parameters()), "lr": settings.lr}], settings.weight_decay
        )
        self.step, self.optimizer = workshop.accelerator.prepare(step, optimizer)

    def begin(self) -> None:
        settings = self.workshop.net.settings
        if self.name != "glance" or settings.shared_encoder:
            return
        if self.workshop.settings.glance.fresh:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.workshop.settings.seed)
                start = Encoder(build_backbone(settings.backbone, settings.classes, settings.backbone_options))
        else:
            start = self.workshop.net.focus_encoder
        self.encoder.load_state_dict(start.state_dict())

    def train_mode(self) -> None:
        train_only(self.workshop.net, [self.encoder])

    def update(self, images: Tensor, labels: Tensor, moment: Moment) -> dict[str, Any]:
        set_rates(self.optimizer, moment.progress, self.warmup)
        loss, numbers = descend(self.workshop, self.step, self.optimizer, images, labels)
        return {"loss": loss, "accuracy": mean_of(numbers, "accuracy")}

    def validate(self, split: Split) -> dict[str, Any]:
        self.encoder.eval()
        step = self.workshop.accelerator.unwrap_model(self.step)
        device = self.workshop.accelerator.device
        settings = step.settings
        order = in_order(len(split), seen_at_once(settings, settings.glance_px if self.name == "glance" else None))
        right = 0
        with torch.inference_mode():
            for images, labels in scene_batches(split, settings.view, order, None, self.workshop.workers):
                right += int((step.answer(images.to(device)).argmax(dim=1).cpu() == labels).sum())
        return {"val_accuracy": [right / len(split)]}

    def finish(self) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        pass


def _small_data(workshop: Workshop) -> Data:
    settings, network = workshop.settings, workshop.settings.network
    small = settings.small
    return open_small(settings.data, network.view, small.side_px, small.scenes, workshop.tell, network.frames)
