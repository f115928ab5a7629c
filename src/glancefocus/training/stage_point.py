"""Before stage II (beyond the paper): the policy learns to point at where the backbone finds the evidence for the label.

Reinforcement learns from places that it comes across, and in a large image it comes across the right one once in a hundred
patches; a policy that can point has seen where they are. It is taught along its own looks, so it also learns where to look after
a patch that missed.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glancefocus.data.splits import Split, followed, in_order, scene_batches
from glancefocus.errors import BadSetting
from glancefocus.evaluation.every_look import seen_at_once
from glancefocus.files import fingerprint
from glancefocus.interrupts import let_through
from glancefocus.look import Look
from glancefocus.network.policy import RandomSizes
from glancefocus.scene import as_batch
from glancefocus.training.episode import ExploringPolicy, accuracy_after, play
from glancefocus.training.stage import Moment, Workshop
from glancefocus.training.stage_aim import AimStage, descend_policy


class Places(NamedTuple):
    """One place in each image.

    centre  (B, 2) float32 in px of the image, as (y, x)
    weight  (B,) in [0, 1] how much of the evidence lies there and not all over the image
    """

    centre: Tensor
    weight: Tensor


def strongest_places(evidence: Tensor, image_hw: tuple[int, int], patch_px: int) -> Places:
    """The middle of the evidence within the patch that holds the most of it.

    evidence  (B, rows, columns), see Encoder.evidence; what speaks against the label counts for nothing
    """
    _, rows, columns = evidence.shape
    positive = evidence.float().clamp_min(0)
    total = positive.sum(dim=(1, 2))
    steps = torch.tensor([image_hw[0] / rows, image_hw[1] / columns], device=evidence.device)
    # Cells to either side of a middle one that lie within a patch.
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
    spread = cells / (rows * columns)  # the share that evidence all over the image would have there
    share = torch.where(total > 0, mass / total.clamp_min(1e-12), spread)
    weight = ((share - spread) / (1 - spread).clamp_min(1e-12)).clamp(0, 1)
    return Places((middle + 0.5) * steps, weight)


def aims_at(centre: Tensor, image_hw: tuple[int, int], patch_px: int | Tensor) -> Tensor:
    """(B, 2) in [0, 1]: the aims whose patches have these middles, or come as near as the image's edges allow."""
    room = room_px(image_hw, patch_px, centre.device)
    half = torch.as_tensor(patch_px, device=centre.device).reshape(-1, 1) / 2
    return ((centre - half) / room.clamp_min(1)).clamp(0, 1)


def room_px(image_hw: tuple[int, int], patch_px: int | Tensor, device: torch.device) -> Tensor:
    """(1 or B, 2) by how many px patches can be moved along each axis."""
    sides = torch.tensor([image_hw], dtype=torch.float32, device=device)
    return sides - torch.as_tensor(patch_px, device=device).reshape(-1, 1)


class EvidenceShown(nn.Module):
    """How well an encoder's map shows where the evidence lies: what of the map speaks for a place is learnt along with it, and
    thrown away with the stage."""

    def __init__(self, map_channels: int) -> None:
        super().__init__()
        self.speaks_for = nn.Conv2d(map_channels, 1, kernel_size=1, bias=False)
        nn.init.zeros_(self.speaks_for.weight)  # at first every place is as likely as any other

    def forward(self, map_: Tensor, places: Places, image_hw: tuple[int, int]) -> Tensor:
        """Mean over the images of the cross-entropy between the map's cells and the place, by its weight."""
        scores = self.speaks_for(map_)[:, 0]
        wanted = cells_of(places.centre, image_hw, (scores.shape[-2], scores.shape[-1]))
        return (places.weight * F.cross_entropy(scores.flatten(1).float(), wanted.flatten(1), reduction="none")).mean()


def cells_of(centre: Tensor, image_hw: tuple[int, int], cells_hw: tuple[int, int]) -> Tensor:
    """(B, rows, columns) the share of each place that every cell of a map has: that of four neighbours, by their distance."""
    axes = []
    for axis, (side, cells) in enumerate(zip(image_hw, cells_hw, strict=True)):
        at = (centre[:, axis] * cells / side - 0.5).clamp(0, cells - 1)
        axes.append((1 - (torch.arange(cells, device=centre.device) - at[:, None]).abs()).clamp_min(0))
    return axes[0][:, :, None] * axes[1][:, None, :]


class BackboneEvidence:
    """The places that the focus encoder, seeing whole images, would point at: worked out once for images that stay as they are or
    can be followed, anew with every batch for those that change in other ways.

    train  the images; None: the workshop's, whose places are then known to later stages, too
    """

    def __init__(self, workshop: Workshop, train: Split | None = None) -> None:
        self.workshop = workshop
        self.train = workshop.data.train if train is None else train
        self._known: Places | None = None

    def places(self, images: Tensor, labels: Tensor, moment: Moment) -> Places:
        """Of a batch of training images."""
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
        """Those of all images, as the focus encoder sees them with the weights that it has now."""
        if self.train is not self.workshop.data.train:
            return self._of_all(self.train)
        weights = [value for named in self.workshop.net.focus_encoder.state_dict().items() for value in named]
        # The labels too: some files of a folder may be gone when a run is resumed.
        seen_by = fingerprint(*weights, self.train.labels)
        known = self.workshop.known_evidence
        if known is None or known["seen_by"] != seen_by or len(known["weight"]) != len(self.train):
            known = {"seen_by": seen_by, **self._of_all(self.train)._asdict()}
            self.workshop.known_evidence = known
        return Places(known["centre"], known["weight"])

    def _see(self, images: Tensor, labels: Tensor) -> Places:
        """As many at once as there is memory for; in full precision, in which logits times cells always fit."""
        net = self.workshop.net
        at_once, patch_px = seen_at_once(net.settings), max(net.settings.patch_px)
        found: list[Places] = []
        with torch.autocast(images.device.type, enabled=False):
            for some, some_labels in zip(torch.split(images, at_once), torch.split(labels, at_once), strict=True):
                whole = as_batch(some, net.settings.view).whole
                evidence = net.focus_encoder.evidence(whole, some_labels)
                found.append(strongest_places(evidence, (whole.shape[-2], whole.shape[-1]), patch_px))
        return Places(torch.cat([places.centre for places in found]), torch.cat([places.weight for places in found]))

    def _refuse_nothing(self, weight: Tensor) -> None:
        settings = self.workshop.net.settings
        if not bool(weight.any()):
            raise BadSetting(
                f"the backbone {settings.backbone} finds no evidence at any place of its map: networks that answer from a token of "
                f"their own do not, nor is one place better than another where patches ({max(settings.patch_px)} px) are as large "
                "as the image. Leave out the stage point, and glance.evidence_weight."
            )

    def _of_all(self, split: Split) -> Places:
        """Divided among the processes; all of them then know all."""
        workshop = self.workshop
        accelerator, view = workshop.accelerator, workshop.net.settings.view
        found = torch.zeros(len(split), 3)
        order = in_order(len(split), seen_at_once(workshop.net.settings))
        own = order[accelerator.process_index :: accelerator.num_processes]
        batches = scene_batches(split, view, own, None, workshop.workers)
        with let_through():  # it takes minutes, and changes nothing
            for rows, (images, labels) in zip(own, batches, strict=True):
                places = self._see(images.to(accelerator.device), labels.to(accelerator.device))
                found[list(rows)] = torch.cat([places.centre, places.weight[:, None]], dim=1).cpu()
                if workshop.tell is not None:
                    workshop.tell("finding evidence", rows[-1] + 1, len(split))
        if accelerator.num_processes > 1:
            found = accelerator.reduce(found.to(accelerator.device), "sum").cpu()
        self._refuse_nothing(found[:, 2])
        return Places(found[:, :2], found[:, 2])


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
