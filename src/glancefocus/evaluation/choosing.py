"""Thresholds and temperatures are chosen on some images and measured on others: which images, and what is achieved."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from glancefocus.data.labelled import WHOLE
from glancefocus.data.scene_splits import OpenedAnew
from glancefocus.data.splits import Split, in_order, scene_batches
from glancefocus.errors import BadData, BadSetting
from glancefocus.evaluation.assess import halves, look_table, own_exits, own_thresholds
from glancefocus.evaluation.every_look import backbone_accuracy
from glancefocus.evaluation.records import Records
from glancefocus.exits.budget import (
    Forecast,
    aim_below,
    cross_fitted,
    folds_for,
    forecast_of_choosers,
    forecast_of_others,
    solve_curve,
    solve_within,
)
from glancefocus.exits.curve import Point
from glancefocus.exits.one_size import planned_exits
from glancefocus.exits.record import LookRecord
from glancefocus.exits.table import LookTable, Thresholds, check_budget, check_table, look_of_nodes
from glancefocus.look import Look, as_batch
from glancefocus.loop import every_look, run_looks
from glancefocus.network.model import GlanceFocus


@dataclass(frozen=True)
class Budgeted:
    """Thresholds chosen for a budget, with their operating points.

    on_choosers  measured on the images that they were chosen on, which is too optimistic
    on_others    measured on images that did not take part in choosing
    forecast     what to expect on new images
    binds        the budget is below the cost of taking every look at every image; False without a budget
    """

    thresholds: Thresholds
    on_choosers: Point
    on_others: Point
    forecast: Forecast
    binds: bool


def within_budget(
    choosing: LookTable,
    budget: float | None,
    *,
    measuring: LookTable | None = None,
    solver: str | None = None,
    seed: int = 0,
) -> Budgeted:
    """Thresholds that should stay within the budget on new images; without a budget the cheapest among the most accurate.

    measuring  other images to measure them on; None: cross-fitting, each image with thresholds chosen on the other folds
    """
    binds = budget is not None and check_budget(choosing, budget)
    aim = aim_below(choosing, budget, solver=solver, seed=seed) if budget is not None and binds else None

    def choose(table: LookTable) -> Thresholds:
        return solve_within(table, aim, solver=solver, seed=seed)

    thresholds = choose(choosing)
    if measuring is not None:
        on_others, forecast = measuring.point(thresholds), forecast_of_others(measuring, thresholds)
    else:
        fitted = cross_fitted(choosing, choose, folds_for(choosing), seed)
        on_others = choosing.point_of_exits(fitted.node, thresholds)
        forecast = forecast_of_choosers(choosing, thresholds, fitted)
    return Budgeted(np.asarray(thresholds), choosing.point(thresholds), on_others, forecast, binds)


@dataclass(frozen=True)
class Choice:
    """The images that thresholds are chosen on, and the images that they are measured on, as rows of look records.

    split      the split that thresholds are chosen on
    crosswise  both are the same images: each is measured with thresholds that were chosen without it
    """

    choosing: LookRecord
    choosing_rows: NDArray[np.int64]
    measuring: LookRecord
    measuring_rows: NDArray[np.int64]
    choosing_words: str
    measuring_words: str
    split: str
    crosswise: bool = False


def choose_images(
    records: Records, on: str, seed: int = 0, split: str | None = None, *, in_halves: bool = False
) -> Choice:
    """Choose thresholds on held-out images and measure on others; on="train": choose on training images, as in the paper.

    With a single held-out split all of its images take part in both, by cross-fitting: each image is measured with thresholds
    that were chosen without it.

    in_halves  instead of cross-fitting, choose on one half and measure on the other
    """
    first, second = choosing_and_measuring(records, on, split)
    if second is not None:
        return _whole(records, first, second)
    return _halves(records, first, seed) if in_halves else _crosswise(records, first)


def apart(records: Records, name: str, seed: int = 0) -> Choice:
    """Measure on a split and choose on other images: on val if the split is test, otherwise on one half of the split."""
    return _whole(records, "val", name) if name == "test" and "val" in records.names else _halves(records, name, seed)


def _whole(records: Records, first: str, second: str) -> Choice:
    one, two = records.of(first), records.of(second)
    rows = np.arange(one.about.images), np.arange(two.about.images)
    source = one.about.source
    return Choice(one, rows[0], two, rows[1], f"{source}, {first}", f"{source}, {second}", first)


def _crosswise(records: Records, name: str) -> Choice:
    record = _enough(records, name)
    rows, words = np.arange(record.about.images), f"{record.about.source}, {name}"
    return Choice(
        record, rows, record, rows, words, f"{words}, each image with thresholds chosen on the others", name, True
    )


def _halves(records: Records, name: str, seed: int) -> Choice:
    record = _enough(records, name)
    source = record.about.source
    one, two = halves(record.about.images, seed)
    return Choice(
        record, one, record, two, f"one half of {source}, {name}", f"the other half of {source}, {name}", name
    )


def _enough(records: Records, name: str) -> LookRecord:
    """The record of a split that is used both for choosing and for measuring."""
    record = records.of(name)
    source, count = record.about.source, record.about.images
    if count < 4:
        raise BadData(
            f"thresholds are chosen on some images and measured on others, but {source} has {count}"
            f"{'' if name == WHOLE else f' in {name}'}. Give at least 4 images; some hundreds are better."
        )
    return record


def choosing_and_measuring(records: Records, on: str, split: str | None = None) -> tuple[str, str | None]:
    """The split that thresholds are chosen on, and the one that they are measured on; None: the same.

    split  the split to choose on; None: decided by `on`, held-out or training images
    """
    if on not in ("held-out", "train"):
        raise BadSetting(f"thresholds are chosen on 'held-out' or 'train' images, but got {on!r}.")
    if on == "train" and split not in (None, "train"):
        raise BadSetting(f"--on train and --split {split} contradict each other. Leave one of them out.")
    if on == "train" or split == "train":
        if records.first_of("train") is None:
            raise BadData(f"{records.source} has no training images. Leave --on out, or name data with train/.")
        return "train", records.first_of("test", "val")
    first = (records.first_of("val") if split is None else None) or records.to_measure(split)
    return first, records.first_of("test") if first == "val" else None


@dataclass(frozen=True)
class SameAccuracy:
    """The operating point at which a bundle is as accurate as its plain backbone, and images to measure time on.

    images                       (N, ...) normalised; the same share as of all images leaves after each look
    accuracy, backbone_accuracy  on the images measured_on; the thresholds were chosen on other images, chosen_on
    """

    images: Tensor
    thresholds: Sequence[float] | Sequence[Sequence[float]]
    accuracy: float
    backbone_accuracy: float
    measured_on: str
    chosen_on: str


def at_backbone_accuracy(
    records: Records, backbone: GlanceFocus, image_count: int, *, split: str | None = None
) -> SameAccuracy:
    """The thresholds that make a bundle as accurate as the backbone at the lowest cost, and this many images of the data.

    The thresholds are chosen on validation images and measured on test images, or on halves of the data if it has one split.
    """
    bundle = records.bundle
    if records.made_before is not None:
        raise BadSetting("time is measured by looking at images, which a look record does not hold. Name the data.")
    name = records.to_measure(split)
    choice = apart(records, name)
    choosing = look_table(bundle, choice.choosing).rows(choice.choosing_rows)
    table = look_table(bundle, choice.measuring).rows(choice.measuring_rows)
    check_table(choosing)
    measured = records.split(name)
    wanted = backbone_accuracy(backbone, records.split(choice.split), rows=choice.choosing_rows.tolist())
    thresholds = np.asarray(cheapest_as_accurate(solve_curve(choosing), wanted)["thresholds"], dtype=np.float32)
    point = table.point(thresholds)
    rows = [int(choice.measuring_rows[row]) for row in representative_rows(table, thresholds, image_count)]
    order = [rows[start : start + 64] for start in range(0, len(rows), 64)]
    images = torch.cat([images for images, _ in measured.batches(order, None, records.workers)])
    return SameAccuracy(
        images=images.to(bundle.device),
        thresholds=point["thresholds"],
        accuracy=float(point["accuracy"]),
        backbone_accuracy=backbone_accuracy(backbone, measured, rows=choice.measuring_rows.tolist()),
        measured_on=choice.measuring_words,
        chosen_on=choice.choosing_words,
    )


@dataclass(frozen=True)
class OwnThresholds:
    """The operating point of a bundle's own thresholds, and large pictures to measure time on. Fields are as in SameAccuracy."""

    images: OpenedAnew
    thresholds: Sequence[Any]
    accuracy: float
    measured_on: str
    chosen_on: str


def at_own_thresholds(records: Records, image_count: int, *, split: str | None = None) -> OwnThresholds:
    """A bundle's own thresholds, and this many images of data of which only regions are read.

    Its images cannot be seen whole, so there is no backbone whose accuracy could be reached.
    """
    bundle, name = records.bundle, records.to_measure(split)
    record = records.of(name)
    table, thresholds = look_table(bundle, record), own_thresholds(bundle)
    exits = own_exits(bundle, table, chose=records.chose(name))
    rows = representative_rows(table, np.asarray(thresholds, dtype=np.float32), image_count)
    return OwnThresholds(
        images=OpenedAnew(records.split(name), tuple(rows), bundle.device),
        thresholds=thresholds,
        accuracy=float(table.point_of_exits(exits, np.asarray(thresholds, dtype=np.float32))["accuracy"]),
        measured_on=f"{record.about.source}, {name}",
        chosen_on=str(bundle.notes.get("thresholds_chosen_on", "other images")),
    )


def cheapest_as_accurate(curve: list[Point], accuracy: float) -> Point:
    """The cheapest point with at least this accuracy; if there is none, the most accurate point."""
    good = [point for point in curve if point["accuracy"] >= accuracy]
    if good:
        return min(good, key=lambda point: float(point["mean_macs"]))
    return max(curve, key=lambda point: (point["accuracy"], -point["mean_macs"]))


def representative_rows(table: LookTable, thresholds: Thresholds, count: int) -> list[int]:
    """Rows of the table among which the same share leaves after each look as among all; rows repeat if there are too few."""
    looks = look_of_nodes(table)[table.exits(thresholds)] + 1
    shares = np.bincount(looks, minlength=table.looks + 1)[1:] / len(looks)
    queues: dict[int, Iterator[int]] = {
        look: itertools.cycle(np.flatnonzero(looks == look).tolist()) for look in range(1, table.looks + 1)
    }
    return [next(queues[look]) for look in planned_exits(shares.tolist(), count)]


# One temperature per look is fitted; more images would hardly change it, but keep more logits in memory.
MOST_FOR_TEMPERATURES = 4096


class LogitsOfLooks:
    """A recorder for the loop that keeps the logits of every look."""

    def __init__(self, looks: int) -> None:
        self.logits: list[list[Tensor]] = [[] for _ in range(looks)]

    def record(self, look: Look, leaving: Tensor, sure: Tensor) -> None:
        self.logits[look.number - 1].append(look.logits.float().cpu())


def fit_temperatures(
    net: GlanceFocus,
    split: Split,
    *,
    rows: Sequence[int] | None = None,
    batch_size: int = 64,
    workers: int = 0,
    device: torch.device | None = None,
) -> tuple[float, ...]:
    """(T,) the temperature of each look that minimises the cross-entropy, on these rows.

    Looks have patches of the largest size; those of a network that zooms go in steps.

    device  the network's device; None: the CPU
    """
    rows = range(len(split)) if rows is None else rows
    rows = rows[:: max(1, -(-len(rows) // MOST_FOR_TEMPERATURES))]
    order = [[rows[i] for i in batch] for batch in in_order(len(rows), batch_size)]
    recorder, labels = LogitsOfLooks(net.settings.looks), []
    with torch.inference_mode():
        for images, truth in scene_batches(split, net.settings.view, order, None, workers):
            scene = as_batch(images if device is None else images.to(device), net.settings.view)
            run_looks(net, scene, every_look(net.settings.looks), net.policy, recorder)
            labels.append(truth)
    truth = torch.cat(labels)
    return tuple(best_temperature(torch.cat(parts), truth) for parts in recorder.logits)


def best_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature in [0.05, 20] with the least cross-entropy; logits (N, classes), labels (N,).

    The cross-entropy has one minimum in the inverse temperature, so a golden-section search finds it.
    """
    low, high = torch.log(torch.tensor(0.05)).item(), torch.log(torch.tensor(20.0)).item()
    golden = (5**0.5 - 1) / 2

    def loss(log_temperature: float) -> float:
        return float(F.cross_entropy(logits / torch.tensor(log_temperature).exp(), labels))

    while high - low > 1e-4:
        one, two = high - golden * (high - low), low + golden * (high - low)
        if loss(one) < loss(two):
            high = two
        else:
            low = one
    return float(torch.tensor((low + high) / 2).exp())
