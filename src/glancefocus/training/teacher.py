"""What later stages learn from the trained backbone (beyond the paper): what it answers, and where it finds its evidence.

The answers of a backbone to whole images at full resolution hold more than the labels: they show which classes look alike
(distillation): encoders of small inputs learn far more from them. Its class activation map shows where in an image the evidence for
the label is: the glance encoder and the policy can learn these places.
"""

import copy
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from glancefocus.data.splits import Split, followed, in_order, scene_batches
from glancefocus.errors import BadCheckpoint, BadSetting
from glancefocus.evaluation.every_look import seen_at_once
from glancefocus.exits.record import view_words
from glancefocus.files import fingerprint
from glancefocus.interrupts import interruptible
from glancefocus.look import Aim, Look, as_batch
from glancefocus.network.build import load_exactly
from glancefocus.network.modules import Encoder
from glancefocus.network.policy import draw_candidate
from glancefocus.network.weights import open_safely, tensors_in
from glancefocus.settings import View
from glancefocus.training.checkpoint import KnownEvidence
from glancefocus.training.stage import Moment, TrainingContext

TEMPERATURE = 2.0
"""Answers are divided by this before they are compared, so that unlikely classes count, too (Hinton et al., 2015)."""


class Places(NamedTuple):
    """One place in each image.

    centre  (B, 2) float32 in px of the image, as (y, x)
    weight  (B,) in [0, 1] how much the evidence is concentrated there; 0: it is spread evenly over the image
    """

    centre: Tensor
    weight: Tensor


def strongest_places(evidence: Tensor, image_hw: tuple[int, int], extent_px: int) -> Places:
    """The centre of mass of the evidence within the patch that contains most of it.

    evidence  (B, rows, columns), see Encoder.evidence; evidence against the label counts as 0
    """
    _, rows, columns = evidence.shape
    positive = evidence.float().clamp_min(0)
    total = positive.sum(dim=(1, 2))
    steps = torch.tensor([image_hw[0] / rows, image_hw[1] / columns], device=evidence.device)
    # Number of cells on each side of a centre cell that lie within a patch.
    reach = [max(0, extent_px * cells // side - 1) // 2 for cells, side in zip((rows, columns), image_hw, strict=True)]
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


def aims_at(centre: Tensor, image_hw: tuple[int, int], extent_px: int | Tensor) -> Tensor:
    """(B, 2) in [0, 1]: the aims whose patches have these centres, or are as near as the image's edges allow."""
    room = room_px(image_hw, extent_px, centre.device)
    half = torch.as_tensor(extent_px, device=centre.device).reshape(-1, 1) / 2
    return ((centre - half) / room.clamp_min(1)).clamp(0, 1)


def room_px(image_hw: tuple[int, int], extent_px: int | Tensor, device: torch.device) -> Tensor:
    """(1 or B, 2) number of px by which patches can be moved along each axis."""
    sides = torch.tensor([image_hw], dtype=torch.float32, device=device)
    return sides - torch.as_tensor(extent_px, device=device).reshape(-1, 1)


def largest_extent_px(views: Sequence[View], image_hw: tuple[int, int]) -> int:
    """Side of the largest square that can be aimed with one of these views; the shorter side if all cover the whole image."""
    return max((view.extent_px(*image_hw) for view in views if not view.is_whole), default=min(image_hw))


def not_fp16(context: TrainingContext, images: Tensor) -> torch.autocast:
    """The precision of the run, but full precision instead of fp16: answers of a backbone may overflow there."""
    return torch.autocast(images.device.type, torch.bfloat16, enabled=context.settings.precision == "bf16")


class BackboneEvidence:
    """The places where the focus encoder, seeing whole images, finds its evidence for the label.

    They are computed once for images that are not augmented or only shifted and flipped (see data.splits.followed), and for every
    batch otherwise.

    train  the images; None: those of the context, whose places are then known to later stages, too
    """

    def __init__(self, context: TrainingContext, train: Split | None = None) -> None:
        if context.net.settings.zoom:
            raise BadSetting(
                "the evidence of the backbone has places in the whole image, but a network with zoom=true aims inside the last "
                "region. Train it with --stages 1,2 and recognise.aims=random."
            )
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
        """The places of these images, computed in batches that fit the memory."""
        net = self.context.net
        at_once = seen_at_once(net.settings)
        found: list[Places] = []
        with not_fp16(self.context, images):
            for some, some_labels in zip(torch.split(images, at_once), torch.split(labels, at_once), strict=True):
                whole = as_batch(some, net.settings.view).whole
                evidence = net.focus_encoder.evidence(whole, some_labels)
                image_hw = whole.shape[-2], whole.shape[-1]
                found.append(strongest_places(evidence, image_hw, largest_extent_px(net.settings.candidates, image_hw)))
        return Places(torch.cat([places.centre for places in found]), torch.cat([places.weight for places in found]))

    def _refuse_nothing(self, weight: Tensor) -> None:
        settings = self.context.net.settings
        if not bool(weight.any()):
            views = view_words([view.name for view in settings.candidates])
            raise BadSetting(
                f"the backbone {settings.backbone} finds no evidence at any place of its map: it classifies from a class token, "
                f"or its focus looks ({views}) are as large as the image. Leave out the stage point, and "
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


class Lesson(NamedTuple):
    """What the teacher gives for a batch: answers (B, classes), not normalised, and the places of its evidence for the labels."""

    answers: Tensor
    places: Places


class Teacher:
    """The backbone at the end of its stage, frozen, on whole images at full resolution.

    With a limited number of augmentations of each image (data.augment.repeat) the lessons are computed once for each and kept, in
    the order of the images: so they do not depend on the order in which training needs them, and a resumed run gets the same.
    """

    def __init__(self, encoder: Encoder, context: TrainingContext) -> None:
        self.encoder = copy.deepcopy(encoder).requires_grad_(False).eval()
        self.context = context
        self._kept: dict[int, Lesson] = {}
        self._seconds = 0.0  # of computing a kept lesson, per image

    @property
    def seconds_per_image(self) -> float:
        """Time that all kept lessons of one training image take, as measured so far."""
        fixed = self.context.data.train.fixed
        return self._seconds * (1 if fixed else self.context.settings.data.augment.repeat)

    def lesson(self, images: Tensor, labels: Tensor, moment: Moment) -> Lesson:
        """The lesson of a batch of training images."""
        seed = self._seed(moment)
        if seed is None or moment.rows is None:
            return self.see(images, labels)
        if seed not in self._kept:
            self._kept[seed] = self._of_all(None if self.context.data.train.fixed else seed)
        answers, places = self._kept[seed]
        rows = moment.rows.cpu()
        return Lesson(
            answers[rows].to(images.device),
            Places(places.centre[rows].to(images.device), places.weight[rows].to(images.device)),
        )

    def _seed(self, moment: Moment) -> int | None:
        """The augmentation that lessons are kept for; None: there are too many different ones, or they need too much memory."""
        settings = self.context.settings
        if self.context.data.train.fixed:
            return 0
        repeat = settings.data.augment.repeat
        needed_bytes = 4 * repeat * len(self.context.data.train) * (settings.network.classes + 3)
        return moment.seed if 0 < needed_bytes <= settings.keep_glances_mib << 20 else None

    def see(self, images: Tensor, labels: Tensor) -> Lesson:
        """The lesson of any images."""
        settings = self.context.net.settings
        found: list[tuple[Tensor, Places]] = []
        with not_fp16(self.context, images):
            at_once = seen_at_once(settings)
            for some, some_labels in zip(torch.split(images, at_once), torch.split(labels, at_once), strict=True):
                whole = as_batch(some, settings.view).whole
                image_hw = int(whole.shape[-2]), int(whole.shape[-1])
                answers, evidence = self.encoder.answers_and_evidence(whole, some_labels)
                extent_px = largest_extent_px(settings.candidates, image_hw)
                found.append((answers.float(), strongest_places(evidence, image_hw, extent_px)))
        centres, weights = ([places[part] for _, places in found] for part in (0, 1))
        return Lesson(torch.cat([answers for answers, _ in found]), Places(torch.cat(centres), torch.cat(weights)))

    def _of_all(self, seed: int | None) -> Lesson:
        """The lesson of all training images with one augmentation; every process computes all of it."""
        context = self.context
        train, view, device = context.data.train, context.net.settings.view, context.accelerator.device
        order = in_order(len(train), seen_at_once(context.net.settings))
        found: list[Lesson] = []
        started = time.perf_counter()
        with interruptible():  # it takes minutes and changes nothing, so it may be interrupted
            batches = scene_batches(train, view, order, seed, context.workers)
            for rows, (images, labels) in zip(order, batches, strict=True):
                found.append(self.see(images.to(device), labels.to(device)))
                if context.on_progress is not None:
                    context.on_progress("backbone as teacher", rows[-1] + 1, len(train))
        self._seconds = (time.perf_counter() - started) / max(1, len(train))
        answers = torch.cat([lesson.answers for lesson in found]).cpu()
        centres, weights = (torch.cat([lesson.places[part] for lesson in found]).cpu() for part in (0, 1))
        return Lesson(answers, Places(centres, weights))


def open_teacher(file: Path, context: TrainingContext) -> Teacher:
    """The teacher with these weights; those of another backbone or of other classes are refused."""
    encoder = copy.deepcopy(context.net.focus_encoder)
    try:
        load_exactly(encoder.backbone, tensors_in(open_safely(file)), "backbone", str(file))
    except BadCheckpoint as error:
        settings = context.net.settings
        raise BadSetting(
            f"{file} cannot be the teacher of a {settings.backbone} with {settings.classes} classes: {error} Give weights of the "
            "same backbone that was trained on the same classes, such as backbone.safetensors in the folder of a run."
        ) from None
    return Teacher(encoder, context)


def taught_loss(
    logits: Tensor, labels: Tensor, taught: Tensor | None, distill: float, smoothing: float = 0.0
) -> Tensor:
    """Cross-entropy with the labels and, with the weight `distill`, the divergence from the teacher's answers.

    logits, taught  (B, classes); taught None: labels only
    """
    own = F.cross_entropy(logits.float(), labels, label_smoothing=smoothing)
    if taught is None or distill == 0:
        return own
    learnt, wanted = ((each.float() / TEMPERATURE).log_softmax(dim=1) for each in (logits, taught))
    divergence = F.kl_div(learnt, wanted, log_target=True, reduction="batchmean")
    # Gradients of softened answers are smaller by the squared temperature.
    return (1 - distill) * own + distill * TEMPERATURE**2 * divergence


class TaughtAims:
    """Aims at the places of the teacher's evidence, with noise, and for some of the images at random places.

    Encoders that learn from such patches see what a good policy will show them, and still meet some that miss.

    views         {number of a candidate: its view}, of which one is drawn for each look
    deviation     standard deviation of the noise, as a share of the image
    random_share  share of the images whose aim is random
    """

    def __init__(
        self,
        places: Places,
        image_hw: tuple[int, int],
        views: Mapping[int, View],
        generator: torch.Generator,
        *,
        deviation: float,
        random_share: float,
    ) -> None:
        self.places = places
        self.image_hw = image_hw
        self.views = views
        self.generator = generator
        self.deviation = deviation
        self.random_share = random_share

    def aim(self, look: Look) -> Aim:
        candidate = draw_candidate(list(self.views), look, self.generator)
        assert isinstance(candidate, int)
        count, device, view = look.count, look.logits.device, self.views[candidate]
        anywhere = torch.rand(count, 2, generator=self.generator).to(device)
        noise = self.deviation * torch.randn(count, 2, generator=self.generator).to(device)
        at_random = (torch.rand(count, 1, generator=self.generator) < self.random_share).to(device)
        if view.is_whole:
            return Aim(where=anywhere, candidate=candidate)
        # Evidence that is spread over the image has no place.
        at_random |= self.places.weight[look.rows, None] <= 0
        where = aims_at(self.places.centre[look.rows], self.image_hw, view.extent_px(*self.image_hw)) + noise
        return Aim(where=torch.where(at_random, anywhere, where.clamp(0, 1)), candidate=candidate)
