"""What a network answers after every look at a split, with its learnt aims and with aims that are not learnt."""

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
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
from glancefocus.errors import BadBundle, BadSetting
from glancefocus.evaluation.assess import look_table, own_thresholds, point_with_exits, random_rows
from glancefocus.evaluation.records import record_looks
from glancefocus.evaluation.verdict import Share, paired_interval
from glancefocus.exits.curve import Point
from glancefocus.exits.table import LookTable
from glancefocus.look import Look, Scene, as_batch, size_of_first
from glancefocus.loop import KnownGlance, Policy, every_look, look_until_sure
from glancefocus.network.model import GlanceFocus
from glancefocus.network.modules import rows_by_candidate
from glancefocus.network.policy import CentreCornerPolicy, RandomPolicy
from glancefocus.network.zooming import compared
from glancefocus.outcome import Outcome
from glancefocus.region import Region, top_left
from glancefocus.settings import NetworkSettings, View, whole
from glancefocus.values import from_plain


@dataclass(frozen=True)
class Evaluation:
    """The outcome of taking every look at every image, with the true labels."""

    outcome: Outcome
    labels: Tensor
    image_hw: tuple[int, int]

    @property
    def accuracy_per_look(self) -> list[float]:
        right = self.outcome.answer_after == self.labels[:, None]
        return [float(share) for share in right.float().mean(dim=0)]

    @property
    def surely_right(self) -> float:
        """The mean confidence over all looks and images, with 0 for a wrong answer."""
        right = self.outcome.answer_after == self.labels[:, None]
        return float((self.outcome.confidence_after * right).mean())

    def hit_rate_per_focus(self, boxes: Tensor) -> list[float]:
        """The share of focus looks that contain the whole object, among images with an object, for each focus look.

        boxes  (N, 4) as (top, left, bottom, right) in px; NaN where there is no object
        """
        boxes = boxes.to(self.outcome.where.device)
        there = ~boxes.isnan().any(dim=1)
        rates = []
        for look in range(self.outcome.where.shape[1]):
            where, candidates = self.outcome.where[there, look], rows_by_candidate(self.outcome.candidate[there, look])
            views, found = self.outcome.views, boxes[there]
            hits = [holds(where[rows], found[rows], self.image_hw, views[each]) for each, rows in candidates]
            rates.append(float(torch.cat(hits).float().mean()) if hits else math.nan)
        return rates

    def misses_seen_again(self, boxes: Tensor) -> list[float]:
        """Of the focus looks after one that missed the object, the share that covers more than half of the same place again.

        A look misses an object whose centre it does not contain. One entry for each focus look after the first; NaN where none
        missed.

        boxes  as in hit_rate_per_focus
        """
        boxes = boxes.to(self.outcome.where.device)
        there = ~boxes.isnan().any(dim=1)
        centre = (boxes[there, :2] + boxes[there, 2:]) / 2
        places = [self._squares(there, look) for look in range(self.outcome.where.shape[1])]
        shares = []
        for before, after in itertools.pairwise(places):
            missed = ((centre < before[:, :2]) | (centre > before[:, 2:])).any(dim=1)
            common = torch.minimum(before[:, 2:], after[:, 2:]) - torch.maximum(before[:, :2], after[:, :2])
            area = (before[:, 2:] - before[:, :2]).prod(dim=1)
            again = common.clamp_min(0).prod(dim=1) > area / 2
            shares.append(float(again[missed].float().mean()) if bool(missed.any()) else math.nan)
        return shares

    def _squares(self, there: Tensor, look: int) -> Tensor:
        """(N, 4) what the focus looks with this number cover, as boxes."""
        where, candidate = self.outcome.where[there, look], self.outcome.candidate[there, look]
        squares = where.new_empty(where.shape[0], 4)
        for each, rows in rows_by_candidate(candidate):
            view = self.outcome.views[each]
            if view.is_whole:
                squares[rows] = torch.tensor([0.0, 0.0, *self.image_hw], device=where.device)
            else:
                px = view.extent_px(*self.image_hw)
                start = top_left(where[rows], *self.image_hw, px)
                squares[rows] = torch.cat([start, start + px], dim=1).to(where.dtype)
        return squares


def holds(where: Tensor, boxes: Tensor, image_hw: tuple[int, int], view: View) -> Tensor:
    """(N,) bool: a look with this view at `where` (N, 2) contains the whole box (N, 4); one at the whole image always does."""
    if view.is_whole:
        return torch.ones(boxes.shape[0], dtype=torch.bool, device=boxes.device)
    px = view.extent_px(*image_hw)
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

    policy      None: the network's own
    batch_size  at most; smaller where a look sees many pixels, see seen_at_once
    rows        only these images
    glance      computes the first look from (scene, rows of the split); None: the network does
    """
    largest = max((net.settings.glance_view, *net.settings.candidates), key=lambda view: view.px)
    batch_size = seen_at_once(net.settings, largest.px, batch_size)
    policy = net.policy if policy is None else policy
    looks = net.settings.looks if looks is None else looks
    rows = list(range(len(split))) if rows is None else rows
    device, was_training = next(net.parameters()).device, net.training
    net.eval()
    parts, labels, done, image_hw = [], [], 0, (0, 0)
    order = [[rows[i] for i in batch] for batch in in_order(len(rows), batch_size)]
    with torch.inference_mode():
        batches = scene_batches(split, net.settings.view, order, None, workers)
        for indexes, (images, truth) in zip(order, batches, strict=True):
            image_hw = size_of_first(images)
            scene = as_batch(images.to(device), net.settings.view)
            looking = net if glance is None else KnownGlance(net, glance(scene, indexes))
            outcome = look_until_sure(looking, scene, every_look(looks), policy)
            # The logits of a large split would not fit into memory, and nothing here needs them.
            few = replace(outcome, logits=outcome.logits[:, :0], logits_after=None)
            parts.append(replace(few, views=net.settings.candidates))
            labels.append(truth)
            done += len(truth)
            if progress is not None:
                progress(done, len(rows))
    net.train(was_training)
    return Evaluation(Outcome.join(parts), torch.cat(labels).to(device), image_hw)


# The pixels of 24 photographs of 224x224 px. Larger batches are hardly faster, and need more memory.
PIXELS_AIMS_BATCH = 24 * 224 * 224


def seen_at_once(settings: NetworkSettings, px: int | None = None, most: int = 64) -> int:
    """The batch size for an encoder: images or clips, whole or resized to px; smaller for large ones, to save memory."""
    view = settings.view
    pixels = (view.height_px * view.width_px if px is None else px * px) * settings.frames
    return max(1, min(most, PIXELS_AIMS_BATCH // pixels))


def backbone_accuracy(
    net: GlanceFocus, split: Split, batch_size: int = 64, rows: list[int] | None = None, px: int | None = None
) -> float:
    """The accuracy of the plain backbone: the focus encoder alone on whole images, or on images resized to px.

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
            logits = encoder.own_head(encoder(scene.whole if px is None else scene.view(Region(whole(px)))).vector)
            right += int((logits.argmax(dim=1).cpu() == labels).sum())
    encoder.train(was_training)
    return right / len(rows)


@dataclass(frozen=True)
class Comparison:
    """A bundle on one split that took no part in training or in choosing thresholds, against other aims and the backbone.

    misses_seen_again             see Evaluation.misses_seen_again
    curve                         the bundle's operating points, measured on this split
    chosen                        the point of the bundle's own thresholds, with accuracy_of_exits
    mac_ratio_at_backbone_accuracy  how many times fewer multiply-adds than the backbone, at its accuracy or more; None if
                                  neither an operating point nor a fixed number of looks reaches it
    """

    accuracy_per_look: list[float]
    accuracy_per_look_random_aims: list[float]
    accuracy_per_look_centre_corner: list[float]
    hit_rate_per_focus: list[float] | None
    hit_rate_per_focus_random_aims: list[float] | None
    misses_seen_again: list[float] | None
    macs_after_look: list[int]
    backbone_accuracy: float | None
    backbone_macs: int
    mac_ratio_at_backbone_accuracy: float | None
    curve: list[Point]
    chosen: Point

    def hits(self) -> dict[str, list[float]]:
        """{what: its share at each look, the glance first}; NaN where there is nothing to count. Empty if no object is known."""
        known = {
            "focus looks with the whole object": self.hit_rate_per_focus,
            "the same with random aims": self.hit_rate_per_focus_random_aims,
            "at the same place again after a miss": self.misses_seen_again,
        }
        looks = len(self.accuracy_per_look)
        return {what: [math.nan] * (looks - len(own)) + own for what, own in known.items() if own is not None}

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)


def compare(bundle: Bundle, split: Split, backbone_accuracy: float | None, workers: int = 0) -> Comparison:
    """Measure a bundle on this split; backbone_accuracy is that of its plain backbone on the same images, if it is known."""
    net, aimed = bundle.net, aimed_candidate(bundle.settings)
    drawn, corner = RandomPolicy([aimed], torch.Generator().manual_seed(1)), CentreCornerPolicy.of(net.settings, aimed)
    learnt = evaluate_every_look(net, split, compared(net, aimed), workers=workers)
    at_random = evaluate_every_look(net, split, compared(net, aimed, drawn), workers=workers)
    corners = evaluate_every_look(net, split, compared(net, aimed, corner), workers=workers)
    one_view = len(bundle.settings.candidates) == 1
    table = table_of(learnt, bundle) if one_view else _tree(bundle, split, workers)
    curve = [table.point(np.asarray(point["thresholds"], dtype=np.float32)) for point in bundle.curve]
    fixed = [table.point(thresholds) for thresholds in _fixed_looks(table)]
    return Comparison(
        accuracy_per_look=learnt.accuracy_per_look,
        accuracy_per_look_random_aims=at_random.accuracy_per_look,
        accuracy_per_look_centre_corner=corners.accuracy_per_look,
        hit_rate_per_focus=None if split.boxes is None else learnt.hit_rate_per_focus(split.boxes),
        hit_rate_per_focus_random_aims=None if split.boxes is None else at_random.hit_rate_per_focus(split.boxes),
        misses_seen_again=None if split.boxes is None else learnt.misses_seen_again(split.boxes),
        macs_after_look=list(bundle.costs.macs_after_look),
        backbone_accuracy=backbone_accuracy,
        backbone_macs=bundle.costs.backbone_macs,
        mac_ratio_at_backbone_accuracy=mac_ratio(curve + fixed, backbone_accuracy, bundle.costs.backbone_macs),
        curve=sorted(curve, key=lambda point: float(point["mean_macs"])),
        chosen=point_with_exits(table, own_thresholds(bundle)),
    )


def aimed_candidate(settings: NetworkSettings) -> int:
    """The candidate with which aims are compared: the largest one that has a place; the last if all show the whole image."""
    with_place = [each for each, view in enumerate(settings.candidates) if not view.is_whole]
    return with_place[-1] if with_place else len(settings.candidates) - 1


def table_of(evaluation: Evaluation, bundle: Bundle) -> LookTable:
    outcome = evaluation.outcome
    return LookTable.of(outcome.answer_after, outcome.confidence_after, evaluation.labels, bundle.costs.macs_after_look)


def _fixed_looks(table: LookTable) -> list[NDArray[np.float32]]:
    """For each number of looks, thresholds with which every image takes exactly that many; none with several candidate views."""
    if table.sizes > 1:
        return []
    numbers = np.arange(1, table.looks + 1)
    return [np.where(numbers < looks, 2, -1).astype(np.float32) for looks in numbers]


def _tree(bundle: Bundle, split: Split, workers: int) -> LookTable:
    """The table over all sequences of candidate views."""
    with TemporaryDirectory() as folder:
        return look_table(bundle, record_looks(bundle, split, Path(folder), source="", name="split", workers=workers))


def mac_ratio(curve: list[Point], accuracy: float | None, backbone_macs: int) -> float | None:
    """The backbone's multiply-adds divided by those of the cheapest operating point with at least this accuracy."""
    if accuracy is None:
        return None
    good = [point["mean_macs"] for point in curve if point["accuracy"] >= accuracy]
    return backbone_macs / min(good) if good else None


MOST_IMAGES = 1000
RANDOM_DRAWS = 2
"""Passes with random aims, which are averaged: the result of a single pass depends on the draw."""
AIMS_BATCH = 64

Interval = tuple[float, float, float]
"""The mean of paired differences, and both ends of its 95 % interval."""


@dataclass(frozen=True)
class AimsCheck:
    """Accuracy after each look with learnt, random and centre aims, and how much better learnt aims are.

    over_random, over_centre  the gain in accuracy of learnt aims, averaged over the focus looks; centre: the centre first, then
                              the corners
    better                    both intervals are above zero
    sentence                  the same in words; if learnt aims are not better, with advice
    """

    better: bool
    sentence: str
    images: int = 0
    accuracy_learnt: tuple[Share, ...] = ()
    accuracy_random: tuple[Share, ...] = ()
    accuracy_centre: tuple[Share, ...] = ()
    over_random: Interval = (0.0, 0.0, 0.0)
    over_centre: Interval = (0.0, 0.0, 0.0)

    def to_plain(self) -> dict[str, Any]:
        return dict(json.loads(json.dumps(asdict(self))))


def noted_aims(notes: Mapping[str, Any]) -> AimsCheck | None:
    """The comparison of aims in a bundle's notes, checked; None if there is none."""
    if notes.get("aims") is None:
        return None
    try:
        return from_plain(AimsCheck, notes["aims"], "notes.aims")
    except BadSetting as error:
        raise BadBundle(f"the bundle is damaged: {error}") from None


def check_aims(net: GlanceFocus, split: Split, *, most: int = MOST_IMAGES, workers: int = 0) -> AimsCheck:
    """Compare the network's own policy with random and centre aims, on `most` images at most; its mode is put back."""
    if all(view.is_whole for view in net.settings.candidates):
        return AimsCheck(better=False, sentence="Every focus look shows the whole image: there are no aims to compare.")
    aimed = aimed_candidate(net.settings)
    rows = random_rows(len(split), most)
    order = [rows[start : start + AIMS_BATCH].tolist() for start in range(0, len(rows), AIMS_BATCH)]
    generator = torch.Generator().manual_seed(1)
    ways: list[Policy] = [
        compared(net, aimed),
        compared(net, aimed, CentreCornerPolicy.of(net.settings, aimed)),
        *[compared(net, aimed, RandomPolicy([aimed], generator))] * RANDOM_DRAWS,
    ]
    was_training, device = net.training, next(net.parameters()).device
    net.eval()
    parts: list[list[Tensor]] = [[] for _ in ways]
    with torch.inference_mode():
        for images, labels in scene_batches(split, net.settings.view, order, None, workers):
            scene = as_batch(images.to(device), net.settings.view)
            known = KnownGlance(net, net.glance(scene))
            for policy, part in zip(ways, parts, strict=True):
                outcome = look_until_sure(known, scene, every_look(net.settings.looks), policy)
                part.append(outcome.answer_after.cpu() == labels[:, None])
    net.train(was_training)
    learnt, centre, *random = (torch.cat(part).numpy().astype(np.float64) for part in parts)
    return aims_check(learnt, np.mean(random, axis=0), centre)


def aims_check(learnt: NDArray[np.float64], random: NDArray[np.float64], centre: NDArray[np.float64]) -> AimsCheck:
    """The comparison of (N, looks) right answers with each kind of aims; the first look is the glance, which has no aim."""
    over_random, over_centre = (
        paired_interval((learnt[:, 1:] - other[:, 1:]).mean(axis=1)) for other in (random, centre)
    )
    better = over_random[1] > 0 and over_centre[1] > 0
    after_look = [tuple(each.mean(axis=0).tolist()) for each in (learnt, random, centre)]
    return AimsCheck(
        images=len(learnt),
        accuracy_learnt=after_look[0],
        accuracy_random=after_look[1],
        accuracy_centre=after_look[2],
        over_random=over_random,
        over_centre=over_centre,
        better=better,
        sentence=_sentence(len(learnt), over_random, over_centre, better),
    )


def _sentence(images: int, over_random: Interval, over_centre: Interval, better: bool) -> str:
    facts = (
        f"{_points(over_random)} over random aims, {_points(over_centre)} over aims at the centre and the corners "
        f"(accuracy of the focus looks, {images:,} validation images)"
    )
    if better:
        return f"Learnt aims improve accuracy: {facts}."
    return (
        f"Learnt aims are not measurably better than aims that are not learnt: {facts}. Try larger patches (--focus), more "
        "epochs of stage 1 (--set recognise.epochs=...), both ways to train the policy (--stages initialise,1,point,2), or wider "
        "exploration in stage 2 (--set aim.deviation=0.2)."
    )


def _points(interval: Interval) -> str:
    mean, low, high = (100 * value for value in interval)
    return f"{mean:+.1f} points ({low:+.1f} to {high:+.1f})"
