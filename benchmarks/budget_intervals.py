"""Whether the intervals that `gf budget` gives hold what new images cost, and whether budgets from few images are kept on them.

    gf demo -o demo && python benchmarks/budget_intervals.py demo/run/bundle --write docs/results.md

Many times over, some images out of a large look table choose thresholds as `gf budget` does, and 3,000 others are measured. Tables
are those of a network trained on `signs`, at scenes that it has not seen, and made-up ones whose scores are calibrated, or promise
more than they keep.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from results import machine, markdown_table, write_section

from glancefocus.bundle.bundle import Bundle, load
from glancefocus.data.sources import DataSettings
from glancefocus.data.splits import MemorySplit
from glancefocus.data.worlds import draw_split
from glancefocus.evaluation.assess import look_table
from glancefocus.evaluation.choosing import within_budget
from glancefocus.evaluation.records import record_looks
from glancefocus.exits.budget import SPARE
from glancefocus.exits.one_size import direct_within
from glancefocus.exits.table import LookTable
from glancefocus.values import from_plain

NEW_IMAGES = 3000
MADE_UP_IMAGES = 20_000
SCENES_A_PART = 1000
SHARES: tuple[float | None, ...] = (0.2, 0.5, None)
"""Budgets, as shares of the way from one glance to every look for every image; None: for the best accuracy, at the lowest cost."""


def made_up(over_confidence: float, seed: int = 0, count: int = MADE_UP_IMAGES) -> LookTable:
    """Four looks at easy and hard images; the logit of the score is that of the chance to be right, times the over-confidence."""
    random = np.random.default_rng(seed)
    ease = 1.5 * random.normal(size=(count, 1)) + 0.7 * np.arange(4) + 0.6 * random.normal(size=(count, 4))
    correct: NDArray[np.bool_] = random.random(ease.shape) < 1 / (1 + np.exp(-ease))
    score = 1 / (1 + np.exp(-over_confidence * ease - (over_confidence - 1)))
    return LookTable(score.astype(np.float32), correct, 1e8 * np.arange(1.0, 5.0))


def of_scenes(bundle: Bundle, scenes: int, kept: Path | None) -> LookTable:
    """The look table of a network trained on `signs`, at scenes of other seeds than the one that it was trained on."""
    if kept is not None and kept.exists():
        arrays = np.load(kept)
        return LookTable(arrays["score"], arrays["correct"], arrays["macs"])
    drawn = from_plain(DataSettings, bundle.notes["data_settings"])
    tables = []
    for part in range(-(-scenes // SCENES_A_PART)):
        made = draw_split("test", SCENES_A_PART, drawn.signs, drawn.world_seed + 1 + part, cache=None)
        split = MemorySplit(made.images, made.labels, bundle.settings.view, boxes=made.boxes)
        with TemporaryDirectory() as folder:
            tables.append(look_table(bundle, record_looks(bundle, split, Path(folder), source="signs", name="new")))
            tables[-1] = tables[-1].rows(np.arange(SCENES_A_PART))  # copied: the record's files go away
    score, correct = (np.concatenate([getattr(table, name) for table in tables]) for name in ("score", "correct"))
    if kept is not None:
        np.savez(kept, score=score, correct=correct, macs=tables[0].macs)
    return replace(tables[0], score=score, correct=correct, ms=None)


@dataclass(frozen=True)
class Trial:
    """One time that some images chose; cost and accuracy on the new images, those of plain search in `counted_*`."""

    cost_held: bool
    accuracy_held: bool
    half_share: float
    cost: float
    accuracy: float
    counted_cost: float
    counted_accuracy: float


def trial(everything: LookTable, images: int, budget: float | None, random: np.random.Generator) -> Trial:
    """Choose on some images of a table, measure on others of it."""
    rows = random.permutation(len(everything))
    choosing, new = everything.rows(rows[:images]), everything.rows(rows[images : images + NEW_IMAGES])
    found = within_budget(choosing, budget)
    forecast, point = found.forecast, new.point(found.thresholds)
    most, spare = (choosing.dearest, SPARE) if budget is None else (budget, 0.0)
    counted = new.point(direct_within(choosing, most, spare=spare))
    return Trial(
        cost_held=forecast.cost_low <= point["mean_macs"] <= forecast.cost_high,
        accuracy_held=forecast.accuracy_low <= point["accuracy"] <= forecast.accuracy_high,
        half_share=forecast.cost_share,
        cost=point["mean_macs"],
        accuracy=point["accuracy"],
        counted_cost=counted["mean_macs"],
        counted_accuracy=counted["accuracy"],
    )


def measure(name: str, everything: LookTable, images: int, share: float | None, resamplings: int) -> dict[str, Any]:
    """The figures of one row."""
    budget = None if share is None else everything.cheapest + share * (everything.dearest - everything.cheapest)
    random = np.random.default_rng(images)
    trials = [trial(everything, images, budget, random) for _ in range(resamplings)]

    def mean(of: Callable[[Trial], float]) -> float:
        return float(np.mean([of(one) for one in trials]))

    return {
        "table": name,
        "images": images,
        "budget_macs": budget,
        "cost_held": mean(lambda one: one.cost_held),
        "accuracy_held": mean(lambda one: one.accuracy_held),
        "half_share": mean(lambda one: one.half_share),
        "cost_macs": mean(lambda one: one.cost),
        "cost_deviation": float(np.std([one.cost for one in trials])),
        "accuracy": mean(lambda one: one.accuracy),
        "counted_cost_macs": mean(lambda one: one.counted_cost),
        "counted_accuracy": mean(lambda one: one.counted_accuracy),
    }


def table_of(rows: list[dict[str, Any]]) -> str:
    cells = [[
        "table", "images", "budget, M", "cost in its interval, %", "accuracy in its, %", "interval of the cost, ± %",
        "cost on new images, M", "of the budget", "accuracy, %", "counting answers: cost, M", "accuracy, %",
    ]]  # fmt: skip
    for row in rows:
        budget = row["budget_macs"]
        cells.append([
            row["table"], str(row["images"]), "none" if budget is None else f"{budget / 1e6:.1f}",
            f"{100 * row['cost_held']:.0f}", f"{100 * row['accuracy_held']:.0f}", f"{100 * row['half_share']:.1f}",
            f"{row['cost_macs'] / 1e6:.1f} ± {row['cost_deviation'] / 1e6:.1f}",
            "" if budget is None else f"{row['cost_macs'] / budget:.3f}", f"{100 * row['accuracy']:.1f}",
            f"{row['counted_cost_macs'] / 1e6:.1f}", f"{100 * row['counted_accuracy']:.1f}",
        ])  # fmt: skip
    return markdown_table(cells)


def main(arguments: list[str] | None = None) -> None:
    words = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "bundle", type=Path, nargs="?", help="a network trained on signs; left out: made-up tables only"
    )
    parser.add_argument("--scenes", type=int, default=8000, help="scenes that the network is asked about")
    parser.add_argument("--kept", type=Path, help="keep the look table of these scenes in this .npz file, or read it")
    parser.add_argument("--images", type=int, nargs="+", default=[70, 300, 3000], help="how many choose")
    parser.add_argument("--resamplings", type=int, default=50)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--write", type=Path, help="put the table into this file, such as docs/results.md")
    chosen = parser.parse_args(words)

    cases: list[tuple[str, LookTable, tuple[float | None, ...]]] = []
    if chosen.bundle is not None:
        cases.append(("signs", of_scenes(load(chosen.bundle), chosen.scenes, chosen.kept), SHARES))
    cases += [("made up, calibrated", made_up(1.0), SHARES[:1]), ("made up, over-confident", made_up(2.5), SHARES[:1])]
    rows = []
    for name, everything, shares in cases:
        for images in chosen.images:
            for share in shares:
                rows.append(measure(name, everything, images, share, chosen.resamplings))
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print(json.dumps(rows, indent=1) if chosen.json else table_of(rows))
    if chosen.write is not None:
        body = (
            f"{chosen.resamplings} times, this number of images chose thresholds as `gf budget` does, and {NEW_IMAGES:,} "
            "others were measured. Given are the shares of the times in which cost and accuracy on the others lay in the 95 % "
            "interval, and the mean half-width of the interval of the cost. Budget none: the cheapest thresholds within a tenth "
            "of a point of the best accuracy, as training stores them. Counting answers: the thresholds with the most right "
            "answers among the same images, without smoothing, cross-fitting or aiming below the budget. `signs`: the network of "
            f"`gf demo` at {chosen.scenes:,} new scenes; made up: {MADE_UP_IMAGES:,} images.\n\n{table_of(rows)}"
        )
        write_section(
            chosen.write,
            "budget_intervals",
            title="Budgets from few images: what new images cost, and the intervals given",
            command=shlex.join(["python", "benchmarks/budget_intervals.py", *words]),
            machine=machine(),
            body=body,
        )


if __name__ == "__main__":
    main()
