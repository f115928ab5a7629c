"""Initialising the encoders (paper, section 3.4 and A.3), and the evidence that a trained backbone finds (beyond the paper).

The focus encoder is trained on whole images at full resolution, or fine-tuned from pretrained weights; alone it is also the
baseline to beat. The glance encoder starts as its copy and is fine-tuned on glances. In a built-in world both may see small scenes
first.

A backbone that classifies whole images also shows where in an image its evidence for the label is (class activation map). The
glance encoder and, in the stage point, the policy can learn these places.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glancefocus.data.sources import Data, open_small
from glancefocus.data.splits import Split, followed, in_order, scene_batches
from glancefocus.errors import BadSetting
from glancefocus.evaluation.every_look import seen_at_once
from glancefocus.evaluation.rivals import size_in
from glancefocus.files import fingerprint
from glancefocus.interrupts import interruptible
from glancefocus.network.encoder import Encoder, Encoding, build_backbone
from glancefocus.region import resized, whole
from glancefocus.scene import as_batch
from glancefocus.settings import NetworkSettings
from glancefocus.training.checkpoint import KnownEvidence, Numbers, TorchState, check_tensors
from glancefocus.training.settings import InitialiseSettings, SmallSettings, TrainSettings
from glancefocus.training.stage import Moment, TrainingContext, descend, make_optimizer, set_rates, train_only


class Places(NamedTuple):
    """One place in each image.

    centre  (B, 2) float32 in px of the image, as (y, x)
    weight  (B,) in [0, 1] how much the evidence is concentrated there; 0: it is spread evenly over the image
    """

    centre: Tensor
    weight: Tensor


def strongest_places(evidence: Tensor, image_hw: tuple[int, int], patch_px: int) -> Places:
    """The centre of mass of the evidence within the patch that contains most of it.

    evidence  (B, rows, columns), see Encoder.evidence; evidence against the label counts as 0
    """
    _, rows, columns = evidence.shape
    positive = evidence.float().clamp_min(0)
    total = positive.sum(dim=(1, 2))
    steps = torch.tensor([image_hw[0] / rows, image_hw[1] / columns], device=evidence.device)
    # Number of cells on each side of a centre cell that lie within a patch.
    reach = [max(0, patch_px * cells // side - 1) // 2 for cells, side in zip((rows, columns), image_hw, strict=True)]
    window = torch.ones(1, 1, 2 * reach[0] + 1, 2 * reach[1] + 1, device=evidence.device)
    held = F.conv2d(positive[:, None], window, padding=(reach[0], reach[1]))[:, 0]
    best = held.flatten(1).argmax(dim=1)
    best_row, best_column = best // columns, best % columns
    row, column = (torch.arange(side, device=evidence.device) for side in (rows, columns))
    near_row = (row - best_row[:, None]).abs() <= reach[0]
    near_column = (column - best_column[:, None]).abs() <= reach[1]
    within = positive * (near_row[:, :, None] & near_column[:, None, :])
    mass = within.sum(dim=(1, 2))
    middle = torch.stack(
        [(within.sum(dim=2) * row).sum(dim=1), (within.sum(dim=1) * column).sum(dim=1)], dim=1
    ) / mass.clamp_min(1e-12).unsqueeze(1)
    cells = near_row.sum(dim=1) * near_column.sum(dim=1)
    spread = cells / (rows * columns)  # the share that evenly spread evidence would have there
    share = torch.where(total > 0, mass / total.clamp_min(1e-12), spread)
    weight = ((share - spread) / (1 - spread).clamp_min(1e-12)).clamp(0, 1)
    return Places((middle + 0.5) * steps, weight)


def aims_at(centre: Tensor, image_hw: tuple[int, int], patch_px: int | Tensor) -> Tensor:
    """(B, 2) in [0, 1]: the aims whose patches have these centres, or are as near as the image's edges allow."""
    room = room_px(image_hw, patch_px, centre.device)
    half = torch.as_tensor(patch_px, device=centre.device).reshape(-1, 1) / 2
    return ((centre - half) / room.clamp_min(1)).clamp(0, 1)


def room_px(image_hw: tuple[int, int], patch_px: int | Tensor, device: torch.device) -> Tensor:
    """(1 or B, 2) number of px by which patches can be moved along each axis."""
    sides = torch.tensor([image_hw], dtype=torch.float32, device=device)
    return sides - torch.as_tensor(patch_px, device=device).reshape(-1, 1)


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


class BackboneEvidence:
    """The places where the focus encoder, seeing whole images, finds its evidence for the label.

    They are computed once for images that are not augmented or only shifted and flipped (see data.splits.followed), and for every
    batch otherwise.

    train  the images; None: those of the context, whose places are then known to later stages, too
    """

    def __init__(self, context: TrainingContext, train: Split | None = None) -> None:
        self.context = context
        self.train = context.data.train if train is None else train
        self._known: Places | None = None

    def places(self, images: Tensor, labels: Tensor, moment: Moment) -> Places:
        """The places of a batch of training images."""
        train = self.train
        if moment.rows is not None and moment.seed is not None:
            rows = moment.rows
            if self._known is None and followed(train, torch.zeros(len(rows), 2), rows, moment.seed) is not None:
                self._known = self._remembered()
            if self._known is not None:
                centre = followed(train, self._known.centre[rows], rows, moment.seed)
                assert centre is not None
                sides = torch.tensor(images.shape[-2:])
                in_view = ((centre >= 0) & (centre <= sides)).all(dim=1)
                return Places(centre.to(images.device), (self._known.weight[rows] * in_view).to(images.device))
        places = self._see(images, labels)
        self._refuse_nothing(places.weight)
        return places

    def _remembered(self) -> Places:
        """The places of all images, for the present weights of the focus encoder."""
        if self.train is not self.context.data.train:
            return self._of_all(self.train)
        weights = [value for named in self.context.net.focus_encoder.state_dict().items() for value in named]
        # The labels too: unreadable files may be missing when a run is resumed.
        seen_by = fingerprint(*weights, self.train.labels)
        known = self.context.known_evidence
        if known is None or known.seen_by != seen_by or len(known.weight) != len(self.train):
            known = KnownEvidence(seen_by, *self._of_all(self.train))
            self.context.known_evidence = known
        return Places(known.centre, known.weight)

    def _see(self, images: Tensor, labels: Tensor) -> Places:
        """The places of these images, computed in batches that fit the memory; in full precision, since fp16 may overflow."""
        net = self.context.net
        at_once, patch_px = seen_at_once(net.settings), max(net.settings.patch_px)
        found: list[Places] = []
        with torch.autocast(images.device.type, enabled=False):
            for some, some_labels in zip(torch.split(images, at_once), torch.split(labels, at_once), strict=True):
                whole = as_batch(some, net.settings.view).whole
                evidence = net.focus_encoder.evidence(whole, some_labels)
                found.append(strongest_places(evidence, (whole.shape[-2], whole.shape[-1]), patch_px))
        return Places(torch.cat([places.centre for places in found]), torch.cat([places.weight for places in found]))

    def _refuse_nothing(self, weight: Tensor) -> None:
        settings = self.context.net.settings
        if not bool(weight.any()):
            raise BadSetting(
                f"the backbone {settings.backbone} finds no evidence at any place of its map: it classifies from a class token, "
                f"or the patches ({max(settings.patch_px)} px) are as large as the image. Leave out the stage point, and "
                "glance.evidence_weight."
            )

    def _of_all(self, split: Split) -> Places:
        """The places of all images; each process computes a part, and all processes get the result."""
        context = self.context
        accelerator, view = context.accelerator, context.net.settings.view
        found = torch.zeros(len(split), 3)
        order = in_order(len(split), seen_at_once(context.net.settings))
        own = order[accelerator.process_index :: accelerator.num_processes]
        batches = scene_batches(split, view, own, None, context.workers)
        with interruptible():  # it takes minutes and changes nothing, so it may be interrupted
            for rows, (images, labels) in zip(own, batches, strict=True):
                places = self._see(images.to(accelerator.device), labels.to(accelerator.device))
                found[list(rows)] = torch.cat([places.centre, places.weight[:, None]], dim=1).cpu()
                if context.on_progress is not None:
                    context.on_progress("finding evidence", rows[-1] + 1, len(split))
        if accelerator.num_processes > 1:
            found = accelerator.reduce(found.to(accelerator.device), "sum").cpu()
        self._refuse_nothing(found[:, 2])
        return Places(found[:, :2], found[:, 2])


class EncoderStep(nn.Module):
    """Cross-entropy of an encoder's own head on whole images, or on glances.

    glance_px  side of the glances; None: whole images
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
    ) -> tuple[Tensor, list[float]]:
        """The loss and the accuracy; centre and weight are the Places of the evidence."""
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
        return loss, [float((logits.argmax(dim=1) == labels).float().mean())]


class InitialiseStage:
    """Training one encoder alone.

    small         the focus encoder on small scenes of a built-in world
    backbone      the focus encoder on whole images
    small_glance  the glance encoder (a copy of the focus encoder, or fresh) on glances of small scenes
    glance        the same on glances of whole images
    rival-160     the focus encoder on whole images resized to 160 px, with the settings of the stage backbone; see
                  evaluation/rivals.py
    """

    def __init__(self, name: str, context: TrainingContext) -> None:
        size = size_in(name)
        settings: InitialiseSettings = getattr(context.settings, name if size is None else "backbone")
        net = context.net
        self.name = name
        self.epochs = settings.epochs
        self.warmup = settings.warmup
        self.context = context
        self.data = _small_data(context, settings) if isinstance(settings, SmallSettings) else context.data
        glance_px = glance_side(name, context.settings)
        self.encoder = net.focus_encoder if glance_px is None else net.glance_encoder
        train_only(context, [self.encoder])
        step = EncoderStep(self.encoder, net.settings, settings, glance_px, size)
        self.shown = step.shown
        self.evidence = None if step.shown is None else BackboneEvidence(context, self.data.train)
        optimizer = make_optimizer(
            settings.optimizer, [{"params": list(step.parameters()), "lr": settings.lr}], settings.weight_decay
        )
        self.step, self.optimizer = context.accelerator.prepare(step, optimizer)

    def begin(self) -> None:
        settings = self.context.net.settings
        continues = self.name == "glance" and "small_glance" in self.context.settings.stages
        if self.encoder is not self.context.net.glance_encoder or settings.shared_encoder or continues:
            return
        own: InitialiseSettings = getattr(self.context.settings, self.name)
        if own.fresh:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.context.settings.seed)
                start = Encoder(build_backbone(settings.backbone, settings.classes, settings.backbone_options))
        else:
            start = self.context.net.focus_encoder
        self.encoder.load_state_dict(start.state_dict())

    def train_mode(self) -> None:
        train_only(self.context, [self.encoder])

    def update(self, images: Tensor, labels: Tensor, moment: Moment) -> Numbers:
        set_rates(self.optimizer, moment.progress, self.warmup)
        places = {} if self.evidence is None else self.evidence.places(images, labels, moment)._asdict()
        loss, accuracy = descend(self.context, self.step, self.optimizer, images, labels, **places)
        return {"loss": loss, "accuracy": accuracy}

    def validate(self, split: Split) -> Numbers:
        self.encoder.eval()
        step = self.context.accelerator.unwrap_model(self.step)
        device = self.context.accelerator.device
        settings = step.settings
        order = in_order(len(split), seen_at_once(settings, step.glance_px))
        right = 0
        with torch.inference_mode():
            for images, labels in scene_batches(split, settings.view, order, None, self.context.workers):
                right += int((step.answer(images.to(device)).argmax(dim=1).cpu() == labels).sum())
        return {"val_accuracy": [right / len(split)]}

    def finish(self) -> None:
        pass

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
