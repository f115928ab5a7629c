"""What a network answers after every look, over a whole split."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.splits import Split, in_order, scene_batches
from glancefocus.evaluation.assess import look_table, own_thresholds, point_with_exits
from glancefocus.evaluation.records import record_looks
from glancefocus.exits.curve import Point
from glancefocus.exits.rule import every_look
from glancefocus.exits.table import LookTable
from glancefocus.look import Look, rows_by_size
from glancefocus.loop import KnownGlance, Policy, look_until_sure
from glancefocus.network.model import GlanceFocus
from glancefocus.network.policy import CentreCornerPolicy, RandomPolicy
from glancefocus.outcome import Outcome
from glancefocus.region import top_left, whole
from glancefocus.scene import Scene, as_batch
from glancefocus.settings import NetworkSettings


@dataclass(frozen=True)
class Evaluation:
    """An outcome in which nobody left early, with the true labels.

    where  in outcome, of all focus looks
    """

    outcome: Outcome
    labels: Tensor
    image_hw: tuple[int, int]

    @property
    def accuracy_per_look(self) -> list[float]:
        right = self.outcome.answer_after == self.labels[:, None]
        return [float(share) for share in right.float().mean(dim=0)]

    @property
    def surely_right(self) -> float:
        """The mean confidence of all looks at all images, in which a wrong answer counts for nothing."""
        right = self.outcome.answer_after == self.labels[:, None]
        return float((self.outcome.confidence_after * right).mean())

    def hit_rate_per_focus(self, boxes: Tensor) -> list[float]:
        """Share of patches that hold the whole of what there is to find, among images where there is something.

        boxes  (N, 4) as (top, left, bottom, right) in px; NaN where there is nothing
        """
        boxes = boxes.to(self.outcome.where.device)
        there = ~boxes.isnan().any(dim=1)
        rates = []
        for look in range(self.outcome.where.shape[1]):
            where, px = self.outcome.where[there, look], self.outcome.patch_px[there, look]
            hits = [holds(where[rows], boxes[there][rows], self.image_hw, size) for size, rows in rows_by_size(px)]
            rates.append(float(torch.cat(hits).float().mean()) if hits else math.nan)
        return rates


def holds(where: Tensor, boxes: Tensor, image_hw: tuple[int, int], px: int) -> Tensor:
    """(N,) bool: the patch at `where` (N, 2) contains the whole box (N, 4)."""
    start = top_left(where, image_hw[0], image_hw[1], px)
    return ((boxes[:, :2] >= start) & (boxes[:, 2:] <= start + px)).all(dim=1)


def evaluate_every_look(
    net: GlanceFocus,
    split: Split,
    policy: Policy | None = None,
    *,
    looks: int | None = None,
    batch_size: int = 128,
    rows: list[int] | None = None,
    workers: int = 0,
    progress: Callable[[int, int], None] | None = None,
    glance: Callable[[Scene, Sequence[int]], Look] | None = None,
) -> Evaluation:
    """Every look at every image of a split; the network's mode is put back afterwards.

    policy  who aims; None: the network's own
    rows    only these images
    glance  who makes the first look at a scene of these images of the split; None: the network
    """
    policy = net.policy if policy is None else policy
    looks = net.settings.looks if looks is None else looks
    rows = list(range(len(split))) if rows is None else rows
    device = next(net.parameters()).device
    was_training = net.training
    net.eval()
    parts, labels, done = [], [], 0
    image_hw = (0, 0)
    order = [[rows[i] for i in batch] for batch in in_order(len(rows), batch_size)]
    with torch.inference_mode():
        batches = scene_batches(split, net.settings.view, order, None, workers)
        for indexes, (images, truth) in zip(order, batches, strict=True):
            image_hw = (int(images.shape[-2]), int(images.shape[-1]))
            scene = as_batch(images.to(device), net.settings.view)
            looking = net if glance is None else KnownGlance(net, glance(scene, indexes))
            outcome = look_until_sure(looking, scene, every_look(looks), policy)
            # The logits of a large split would not fit; nothing here needs them.
            parts.append(replace(outcome, logits=outcome.logits[:, :0]))
            labels.append(truth)
            done += len(truth)
            if progress is not None:
                progress(done, len(rows))
    net.train(was_training)
    return Evaluation(Outcome.join(parts), torch.cat(labels).to(device), image_hw)


# What an encoder sees in one go: 24 photographs of 224x224 px. More are hardly faster, and take as much more memory.
PIXELS_AT_ONCE = 24 * 224 * 224


def seen_at_once(settings: NetworkSettings, px: int | None = None, most: int = 64) -> int:
    """How many images or clips an encoder sees in one go, whole or shrunk to px; of large ones fewer, for the sake of memory."""
    view = settings.view
    pixels = (view.height_px * view.width_px if px is None else px * px) * settings.frames
    return max(1, min(most, PIXELS_AT_ONCE // pixels))


def backbone_accuracy(
    net: GlanceFocus, split: Split, batch_size: int = 64, rows: list[int] | None = None, px: int | None = None
) -> float:
    """Share of right answers of the focus encoder alone on whole images, or on images shrunk to px: the plain backbone.

    batch_size  at most, see seen_at_once
    """
    device = next(net.parameters()).device
    encoder = net.focus_encoder
    was_training = encoder.training
    encoder.eval()
    right = 0
    rows = list(range(len(split))) if rows is None else rows
    order = [[rows[i] for i in batch] for batch in in_order(len(rows), seen_at_once(net.settings, px, batch_size))]
    with torch.inference_mode():
        for images, labels in scene_batches(split, net.settings.view, order):
            scene = as_batch(images.to(device), net.settings.view)
            logits = encoder.own_head(encoder(scene.whole if px is None else scene.view(whole(px).at())).vector)
            right += int((logits.argmax(dim=1).cpu() == labels).sum())
    encoder.train(was_training)
    return right / len(rows)


@dataclass(frozen=True)
class Comparison:
    """All figures on one split that no weight or threshold was chosen on; the point for the ratio is read off its curve.

    curve                         operating points: mean_macs, accuracy, thresholds, exits_per_look
    chosen                        the point of the bundle's own thresholds, with accuracy_of_exits
    mac_ratio_at_backbone_accuracy  how many times fewer multiply-adds than the backbone, at its accuracy or more; None where
                                  neither an operating point nor a fixed number of looks reaches it
    """

    accuracy_per_look: list[float]
    accuracy_per_look_random_aims: list[float]
    accuracy_per_look_centre_corner: list[float]
    hit_rate_per_focus: list[float] | None
    hit_rate_per_focus_random_aims: list[float] | None
    macs_after_look: list[int]
    backbone_accuracy: float | None
    backbone_macs: int
    mac_ratio_at_backbone_accuracy: float | None
    curve: list[Point]
    chosen: Point

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)


def compare(bundle: Bundle, split: Split, backbone_accuracy: float | None, workers: int = 0) -> Comparison:
    """Measure everything on this split."""
    net, px = bundle.net, max(bundle.settings.patch_px)
    learnt = evaluate_every_look(net, split, workers=workers)
    at_random = evaluate_every_look(net, split, RandomPolicy(px, torch.Generator().manual_seed(1)), workers=workers)
    corners = evaluate_every_look(net, split, CentreCornerPolicy(px), workers=workers)
    table = table_of(learnt, bundle) if len(bundle.settings.patch_px) == 1 else _tree(bundle, split, workers)
    curve = [table.point(np.asarray(point["thresholds"], dtype=np.float32)) for point in bundle.curve]
    fixed = [table.point(thresholds) for thresholds in _so_many_looks(table)]
    return Comparison(
        accuracy_per_look=learnt.accuracy_per_look,
        accuracy_per_look_random_aims=at_random.accuracy_per_look,
        accuracy_per_look_centre_corner=corners.accuracy_per_look,
        hit_rate_per_focus=None if split.boxes is None else learnt.hit_rate_per_focus(split.boxes),
        hit_rate_per_focus_random_aims=None if split.boxes is None else at_random.hit_rate_per_focus(split.boxes),
        macs_after_look=list(bundle.costs.macs_after_look),
        backbone_accuracy=backbone_accuracy,
        backbone_macs=bundle.costs.backbone_macs,
        mac_ratio_at_backbone_accuracy=mac_ratio(curve + fixed, backbone_accuracy, bundle.costs.backbone_macs),
        curve=sorted(curve, key=lambda point: point["mean_macs"]),
        chosen=point_with_exits(table, own_thresholds(bundle)),
    )


def table_of(evaluation: Evaluation, bundle: Bundle) -> LookTable:
    outcome = evaluation.outcome
    return LookTable.of(outcome.answer_after, outcome.confidence_after, evaluation.labels, bundle.costs.macs_after_look)


def _so_many_looks(table: LookTable) -> list[NDArray[np.float32]]:
    """Thresholds by which every image takes exactly so many looks, for each number; none with several patch sizes."""
    if table.sizes > 1:
        return []
    numbers = np.arange(1, table.looks + 1)
    return [np.where(numbers < looks, 2, -1).astype(np.float32) for looks in numbers]


def _tree(bundle: Bundle, split: Split, workers: int) -> LookTable:
    """The table over all sequences of patch sizes."""
    with TemporaryDirectory() as folder:
        return look_table(bundle, record_looks(bundle, split, Path(folder), source="", name="split", workers=workers))


def mac_ratio(curve: list[Point], accuracy: float | None, backbone_macs: int) -> float | None:
    """Backbone's multiply-adds over those of the cheapest operating point that is at least as accurate."""
    if accuracy is None:
        return None
    good = [point["mean_macs"] for point in curve if point["accuracy"] >= accuracy]
    return backbone_macs / min(good) if good else None
