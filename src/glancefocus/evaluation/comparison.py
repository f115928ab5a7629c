"""The network against what it must beat: random aims, centre-corner aims, and the plain backbone at full resolution."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from glancefocus.bundle import Bundle
from glancefocus.data.splits import Split
from glancefocus.early_exit.look_table import LookTable
from glancefocus.evaluation.assess import look_table, own_thresholds, point_with_exits
from glancefocus.evaluation.every_look import Evaluation, evaluate_every_look
from glancefocus.evaluation.recording import record_looks
from glancefocus.network.policy import CentreCornerPolicy, RandomPolicy


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
    curve: list[dict[str, Any]] = field(default_factory=list)
    chosen: dict[str, Any] = field(default_factory=dict)

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)


def compare(bundle: Bundle, split: Split, backbone_accuracy: float | None, workers: int = 0) -> Comparison:
    """Measure everything on this split."""
    net, px = bundle.net, max(bundle.settings.patch_px)
    learnt = evaluate_every_look(net, split, workers=workers)
    at_random = evaluate_every_look(net, split, RandomPolicy(px, torch.Generator().manual_seed(1)), workers=workers)
    corners = evaluate_every_look(net, split, CentreCornerPolicy(px), workers=workers)
    table = table_of(learnt, bundle) if len(bundle.settings.patch_px) == 1 else _tree(bundle, split, workers)
    curve = [dict(table.point(np.asarray(point["thresholds"], dtype=np.float32))) for point in bundle.curve]
    fixed = [dict(table.point(thresholds)) for thresholds in _so_many_looks(table)]
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


def mac_ratio(curve: list[dict[str, Any]], accuracy: float | None, backbone_macs: int) -> float | None:
    """Backbone's multiply-adds over those of the cheapest operating point that is at least as accurate."""
    if accuracy is None:
        return None
    good = [point["mean_macs"] for point in curve if point["accuracy"] >= accuracy]
    return backbone_macs / min(good) if good else None
