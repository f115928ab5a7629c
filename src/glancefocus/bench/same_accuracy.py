"""The operating point at which a network is as accurate as its plain backbone, and images that stand for all at that point."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from glancefocus.bench.forced_exits import planned_exits
from glancefocus.bench.wall_clock import Subject
from glancefocus.errors import BadSetting
from glancefocus.evaluation.assess import look_table
from glancefocus.evaluation.choosing import Records, apart
from glancefocus.evaluation.every_look import backbone_accuracy
from glancefocus.exits.budget import check_table, solve_curve
from glancefocus.exits.curve import Point
from glancefocus.exits.table import LookTable
from glancefocus.network.model import GlanceFocus


def subject_at_backbone_accuracy(
    records: Records, backbone: GlanceFocus, most_images: int, *, split: str | None = None
) -> Subject:
    """A trained network with thresholds that make it as accurate as the backbone, at images of the data.

    Thresholds are chosen where they are as accurate as the backbone on some images, and accuracies are those on others: validation
    and test images, or halves of what there is. Of the measured ones so many are taken that leave after each look in the same
    proportion as all of them.
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
    rows = [int(choice.measuring_rows[row]) for row in rows_that_stand_for_all(table, point, most_images)]
    order = [rows[start : start + 64] for start in range(0, len(rows), 64)]
    images = torch.cat([images for images, _ in measured.batches(order, None, records.workers)])
    return Subject(
        bundle.net,
        backbone,
        bundle.costs,
        images.to(bundle.device),
        rule=bundle.exit_rule(thresholds=point["thresholds"]),
        accuracy=float(point["accuracy"]),
        backbone_accuracy=backbone_accuracy(backbone, measured, rows=choice.measuring_rows.tolist()),
        measured_on=choice.measuring_words,
        chosen_on=choice.choosing_words,
    )


def cheapest_as_accurate(curve: list[Point], accuracy: float) -> Point:
    """The point with the fewest multiply-adds that is at least so accurate; where none is, the most accurate one."""
    good = [point for point in curve if point["accuracy"] >= accuracy]
    if good:
        return min(good, key=lambda point: float(point["mean_macs"]))
    return max(curve, key=lambda point: (point["accuracy"], -point["mean_macs"]))


def rows_that_stand_for_all(table: LookTable, point: Point, count: int) -> list[int]:
    """So many images, of which as large a share leaves after each look as of all; where there are too few, some come again."""
    looks = looks_taken(table, np.asarray(point["thresholds"], dtype=np.float32))
    shares = np.bincount(looks, minlength=table.looks + 1)[1:] / len(looks)
    queues: dict[int, Iterator[int]] = {
        look: itertools.cycle(np.flatnonzero(looks == look).tolist()) for look in range(1, table.looks + 1)
    }
    return [next(queues[look]) for look in planned_exits(shares.tolist(), count)]


def looks_taken(table: LookTable, thresholds: Any) -> NDArray[np.int64]:
    """(N,) after which look each image leaves."""
    look_of_node = np.repeat(np.arange(1, table.looks + 1), [len(level) for level in table.levels(table.macs)])
    return np.asarray(look_of_node[table.exits(thresholds)])
