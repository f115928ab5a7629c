"""The time that the threshold solvers take on tables of the size of ImageNet's validation set.

python benchmarks/threshold_solvers.py
python benchmarks/threshold_solvers.py --images 5000 --write docs/results.md
"""

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from results import machine, markdown_table, write_section

from glancefocus.exits.budget import (
    RELEASED_RATIOS,
    direct_curve,
    genetic_front,
    genetic_within,
    geometric_curve,
    geometric_within,
)
from glancefocus.exits.table import LookTable

LOOKS, TREE_LOOKS, BUDGETS = 5, 4, 20
SIZE_MACS, SIZE_GAINS = (0.6e8, 1.0e8, 1.8e8), (0.25, 0.5, 0.75)


def made_up(paths: list[tuple[int, ...]], count: int, seed: int) -> LookTable:
    """A table of images that are easy or hard, surer and more often right the more they are looked at.

    paths  the patch sizes (their indexes) that lead to each node; how much one helps and costs is in SIZE_GAINS and SIZE_MACS
    """
    random = np.random.default_rng(seed)
    seen = np.array([sum(SIZE_GAINS[size] for size in path) for path in paths])
    ease = 0.8 + random.normal(size=(count, 1)) + 1.2 * seen + 0.5 * random.normal(size=(count, len(paths)))
    chance = 1 / (1 + np.exp(-1.4 * ease))
    score = np.clip(chance + 0.05 * random.normal(size=chance.shape), 0.001, 1).astype(np.float32)
    correct: NDArray[np.bool_] = random.random(chance.shape) < chance
    macs = np.array([1e8 + sum(SIZE_MACS[size] for size in path) for path in paths])
    return LookTable(score, correct, macs, sizes=len({size for path in paths for size in path}))


def one_size_table(count: int, seed: int = 0) -> LookTable:
    """(count, 5)"""
    return made_up([(0,) * looks for looks in range(LOOKS)], count, seed)


def tree_table(count: int, seed: int = 0) -> LookTable:
    """(count, 40): 4 looks with patches of 3 sizes."""
    levels: list[list[tuple[int, ...]]] = [[()]]
    for _ in range(TREE_LOOKS - 1):
        levels.append([(*path, size) for path in levels[-1] for size in range(len(SIZE_MACS))])
    return made_up([path for level in levels for path in level], count, seed)


@dataclass(frozen=True)
class Solver:
    """What is measured, on which table, how often."""

    name: str
    table: LookTable
    run: Callable[[], object]
    rounds: int


def solvers(looks: LookTable, tree: LookTable, rounds: int) -> list[Solver]:
    """The fast ones several times, the slow ones once."""
    budgets = np.linspace(looks.cheapest, looks.dearest, BUDGETS).tolist()
    middle, tree_middle = (t.cheapest + 0.3 * (t.dearest - t.cheapest) for t in (looks, tree))
    return [
        Solver("operating point", looks, lambda: looks.point(looks.stay()), rounds),
        Solver("operating point", tree, lambda: tree.point(mixed_sizes(tree)), rounds),
        Solver(
            f"geometric rule, {len(RELEASED_RATIOS)} ratios with their points",
            looks,
            lambda: [looks.point(thresholds) for thresholds in geometric_curve(looks)],
            rounds,
        ),
        Solver("geometric rule, 1 budget", looks, lambda: geometric_within(looks, middle), rounds),
        Solver("direct search, 1 budget", looks, lambda: direct_curve(looks, [middle]), rounds),
        Solver(f"direct search, {BUDGETS} budgets", looks, lambda: direct_curve(looks, budgets), rounds),
        Solver("genetic algorithm, 1 budget", tree, lambda: genetic_within(tree, tree_middle), 1),
        Solver("genetic algorithm, whole curve", tree, lambda: genetic_front(tree), 1),
    ]


def mixed_sizes(tree: LookTable) -> NDArray[np.float32]:
    """Thresholds with which every node is come to."""
    return np.tile(np.linspace(0.4, 0.95, tree.sizes, dtype=np.float32), (tree.looks, 1))


def measure(solver: Solver) -> float:
    """Seconds, the median of its rounds."""
    times = []
    for _ in range(solver.rounds):
        started = time.perf_counter()
        solver.run()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def table(rows: list[dict[str, Any]]) -> str:
    cells = [["solver", "images x columns", "seconds", "rounds"]]
    for row in rows:
        cells.append(
            [row["solver"], f"{row['images']} x {row['columns']}", f"{row['seconds']:.3g}", str(row["rounds"])]
        )
    return markdown_table(cells)


def main(arguments: list[str] | None = None) -> None:
    words = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description="The time that the threshold solvers take.")
    parser.add_argument("--images", type=int, default=50_000, help="rows of the made-up tables")
    parser.add_argument("--rounds", type=int, default=3, help="how often the fast ones are measured")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--write", type=Path, help="put the table into this file, such as docs/results.md")
    chosen = parser.parse_args(words)
    if chosen.images < 2 or chosen.rounds < 1:
        parser.error("at least 2 images and 1 round are needed")

    rows = [
        {
            "solver": solver.name,
            "images": len(solver.table),
            "columns": solver.table.score.shape[1],
            "seconds": measure(solver),
            "rounds": solver.rounds,
        }
        for solver in solvers(one_size_table(chosen.images), tree_table(chosen.images), chosen.rounds)
    ]
    where = machine()
    print(json.dumps({"machine": where, "rows": rows}, indent=1) if chosen.json else table(rows))
    if chosen.write is not None:
        body = (
            f"Made-up tables: {chosen.images} images with {LOOKS} looks and patches of one size, and with {TREE_LOOKS} looks "
            f"and patches of {len(SIZE_MACS)} sizes, where every way to get to a look is a column. Medians of the rounds; "
            f"importing pymoo counts as part of the first genetic algorithm.\n\n{table(rows)}"
        )
        write_section(
            chosen.write,
            "threshold_solvers",
            title="Time to find thresholds",
            command=shlex.join(["python", "benchmarks/threshold_solvers.py", *words]),
            machine=where,
            body=body,
        )


if __name__ == "__main__":
    main()
