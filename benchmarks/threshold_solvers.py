"""The time that the threshold solvers take on tables of the size of ImageNet's validation set.

    python benchmarks/threshold_solvers.py
    python benchmarks/threshold_solvers.py --images 5000 --write docs/results.md

With --beside, our genetic algorithm is compared with those of pymoo and scipy, which the project does not depend on:

    pip install pymoo scipy
    python benchmarks/threshold_solvers.py --beside --write docs/results.md
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

from glancefocus.exits.genetic import Archive, GeneCode, fixed_sequences, genetic_front, genetic_within
from glancefocus.exits.one_size import RELEASED_RATIOS, direct_curve, geometric_curve, geometric_within
from glancefocus.exits.table import LookTable, Thresholds, cost_and_worth, expected_correct

LOOKS, TREE_LOOKS, BUDGETS = 5, 4, 20
SIZE_MACS, SIZE_GAINS = (0.6e8, 1.0e8, 1.8e8), (0.25, 0.5, 0.75)

# For --beside: budgets as shares of the way from the cheapest to the most expensive, and what every solver may spend.
SHARES, TABLES = (0.1, 0.3, 0.6), 3
POPULATION, GENERATIONS = 64, 60
CURVE_BUDGETS, CURVE_POPULATION, CURVE_GENERATIONS = 10, 100, 150


def made_up(paths: list[tuple[int, ...]], count: int, seed: int) -> LookTable:
    """A table of images that are easy or hard; scores and accuracy rise with every look.

    paths  the patch sizes (their indexes) that lead to each node; SIZE_GAINS and SIZE_MACS hold what each gains and costs
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
    """What is measured, on which table, and how often."""

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
    """Thresholds with which images reach every node."""
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


Within = Callable[[LookTable, NDArray[np.float64], float, int], Thresholds]
"""(table, worth, budget, seed) -> thresholds within the budget."""
Curve = Callable[[LookTable, NDArray[np.float64], list[float], int], list[Thresholds]]
"""(table, worth, budgets, seed) -> thresholds of the whole curve."""


def pymoo_search(algorithm: Any, objectives: int, limits: int, judge: Any, genes: int, rounds: int, seed: int) -> None:
    """Run an algorithm of pymoo; judge: (P, genes) -> {"F": what to minimise, "G": what may not be above 0}."""
    from pymoo.core.evaluator import Evaluator
    from pymoo.core.problem import Problem
    from pymoo.problems.static import StaticProblem

    problem = Problem(n_var=genes, n_obj=objectives, n_ieq_constr=limits, xl=0.0, xu=1.0)
    algorithm.setup(problem, termination=("n_gen", rounds), seed=seed, verbose=False)
    while algorithm.has_next():
        individuals = algorithm.ask()
        Evaluator().eval(StaticProblem(problem, **judge(individuals.get("X"))), individuals)
        algorithm.tell(infills=individuals)


def pymoo_within(table: LookTable, worth: NDArray[np.float64], budget: float, seed: int) -> Thresholds:
    from pymoo.algorithms.soo.nonconvex.ga import GA

    code, tried, starts = GeneCode(table), Archive(table, worth), fixed_sequences(table, [budget], worth)
    tried.add(starts)

    def judge(genes: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        found = tried.add(code.thresholds(genes))
        return {"F": -found[:, 1:], "G": (found[:, :1] - budget) / table.dearest}

    first = code.first_population(starts, POPULATION, np.random.default_rng(seed))
    pymoo_search(GA(pop_size=POPULATION, sampling=first), 1, 1, judge, code.genes_each, GENERATIONS, seed)
    return tried.best_within(budget)


def pymoo_curve(table: LookTable, worth: NDArray[np.float64], budgets: list[float], seed: int) -> list[Thresholds]:
    from pymoo.algorithms.moo.nsga2 import NSGA2

    code, tried = GeneCode(table), Archive(table, worth)
    tried.add(fixed_sequences(table, budgets, worth))

    def judge(genes: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        return {"F": tried.add(code.thresholds(genes)) * [1 / table.dearest, -1]}

    first = code.first_population(np.stack(tried.front()), CURVE_POPULATION, np.random.default_rng(seed))
    algorithm = NSGA2(pop_size=CURVE_POPULATION, sampling=first)
    pymoo_search(algorithm, 2, 0, judge, code.genes_each, CURVE_GENERATIONS, seed)
    return tried.front()


def scipy_within(
    table: LookTable,
    worth: NDArray[np.float64],
    budget: float,
    seed: int,
    population: int = POPULATION,
    rounds: int = GENERATIONS,
) -> Thresholds:
    """Differential evolution; individuals above the budget are worse than all within it, by how much they are above."""
    from scipy.optimize import differential_evolution

    code, tried, starts = GeneCode(table), Archive(table, worth), fixed_sequences(table, [budget], worth)
    tried.add(starts)

    def judge(genes: NDArray[np.float64]) -> NDArray[np.float64]:
        cost, accuracy = tried.add(code.thresholds(np.clip(genes.T, 0, 1))).T
        return np.where(cost <= budget, -accuracy, 1 + (cost - budget) / table.dearest)

    first = code.first_population(starts, population, np.random.default_rng(seed))
    differential_evolution(
        judge,
        [(0, 1)] * code.genes_each,
        init=first,
        maxiter=rounds - 1,
        vectorized=True,
        updating="deferred",
        polish=False,
        tol=0,
        atol=-1,  # never stops early
        rng=seed,
    )
    return tried.best_within(budget)


def scipy_curve(table: LookTable, worth: NDArray[np.float64], budgets: list[float], seed: int) -> list[Thresholds]:
    """One search for each budget, all of which together evaluate as many thresholds as the others do."""
    rounds = round(CURVE_POPULATION * CURVE_GENERATIONS / len(budgets) / POPULATION)
    return [scipy_within(table, worth, budget, seed, rounds=rounds) for budget in budgets]


BESIDE: dict[str, tuple[Within, Curve]] = {
    "ours": (
        lambda table, worth, budget, seed: genetic_within(table, budget, worth, seed=seed),
        lambda table, worth, budgets, seed: genetic_front(table, worth, budgets=budgets, seed=seed),
    ),
    "pymoo (GA, NSGA-II)": (pymoo_within, pymoo_curve),
    "scipy (differential evolution)": (scipy_within, scipy_curve),
}


def beside(count: int, seeds: int) -> list[list[str]]:
    """Cells of a table: the accuracy that every solver reaches within the same budgets, and the seconds that it takes."""
    tables = [(table, expected_correct(table)) for table in (tree_table(count, seed) for seed in range(TABLES))]
    header = ["solver", *(f"{100 * share:.0f} % budget" for share in SHARES), "seconds", "curve", "seconds, curve"]
    rows = [header]
    for name, (within, curve) in {"one patch size only": (None, None), **BESIDE}.items():
        cells, spent = [], 0.0
        for share in SHARES:
            reached, started = [], time.perf_counter()
            for table, worth in tables:
                budget = table.cheapest + share * (table.dearest - table.cheapest)
                if within is None:
                    found = [cost_and_worth(table, one, worth) for one in fixed_sequences(table, [budget], worth)]
                    reached.append([max(accuracy for cost, accuracy in found if cost <= budget)])
                else:
                    found = [cost_and_worth(table, within(table, worth, budget, seed), worth) for seed in range(seeds)]
                    reached.append([accuracy for _, accuracy in found])
            spent += time.perf_counter() - started
            cells.append(percent(reached))
        if within is None or curve is None:
            rows.append([name, *cells, "", "", ""])
            continue
        started, curves = time.perf_counter(), [curve_accuracy(table, worth, curve, seeds) for table, worth in tables]
        whole = time.perf_counter() - started
        seconds = [f"{spent / len(SHARES) / TABLES / seeds:.2f}", f"{whole / TABLES / seeds:.2f}"]
        rows.append([name, *cells, seconds[0], percent(curves), seconds[1]])
    return rows


def curve_accuracy(table: LookTable, worth: NDArray[np.float64], curve: Curve, seeds: int) -> list[float]:
    """For every seed the mean accuracy over the budgets of a curve."""
    budgets = np.linspace(table.cheapest, table.dearest, CURVE_BUDGETS + 2)[1:-1].tolist()
    means = []
    for seed in range(seeds):
        points = [cost_and_worth(table, thresholds, worth) for thresholds in curve(table, worth, budgets, seed)]
        means.append(float(np.mean([max(acc for cost, acc in points if cost <= budget) for budget in budgets])))
    return means


def percent(reached: list[list[float]]) -> str:
    """Mean over tables and seeds, and the standard deviation over the seeds of one table."""
    spread = f" ± {100 * np.mean(np.std(reached, axis=1)):.2f}" if len(reached[0]) > 1 else ""
    return f"{100 * np.mean(reached):.2f}{spread}"


def write_beside(file: Path | None, count: int, seeds: int, words: list[str]) -> None:
    cells = markdown_table(beside(count, seeds))
    print(cells)
    if file is None:
        return
    evaluated, on_curve = POPULATION * GENERATIONS, CURVE_POPULATION * CURVE_GENERATIONS
    body = (
        f"{TABLES} made-up tables of {count} images with {TREE_LOOKS} looks and patches of {len(SIZE_MACS)} sizes; {seeds} seeds "
        "each. Expected accuracy in %, mean ± standard deviation over seeds, within the same budgets (shares of the way from the "
        f"cheapest to the most expensive), after {evaluated:,} evaluated sets of thresholds from the same first generation. Curve: "
        f"mean over {CURVE_BUDGETS} budgets, after {on_curve:,} evaluations in all. "
        "Not an even comparison: the crossover and mutation of ours were chosen among 8 settings on tables of 600 images from the "
        "same generator and table seeds, pymoo and scipy have their defaults. Times on a machine that other programs used, pymoo's "
        f"with its import.\n\n{cells}"
    )
    write_section(
        file,
        "genetic_solvers",
        title="Thresholds for several patch sizes: our genetic algorithm beside pymoo and scipy",
        command=shlex.join(["python", "benchmarks/threshold_solvers.py", *words]),
        machine=machine(),
        body=body,
    )


def main(arguments: list[str] | None = None) -> None:
    words = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description="The time that the threshold solvers take.")
    parser.add_argument("--images", type=int, default=50_000, help="images in the made-up tables")
    parser.add_argument("--rounds", type=int, default=3, help="how often the fast ones are measured")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--write", type=Path, help="put the table into this file, such as docs/results.md")
    parser.add_argument(
        "--beside", action="store_true", help="compare genetic algorithms with those of pymoo and scipy"
    )
    parser.add_argument("--seeds", type=int, default=4, help="runs of every solver on every table, with --beside")
    chosen = parser.parse_args(words)
    if chosen.images < 2 or chosen.rounds < 1:
        parser.error("at least 2 images and 1 round are needed")

    if chosen.beside:
        write_beside(chosen.write, chosen.images, chosen.seeds, words)
        return
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
            f"and patches of {len(SIZE_MACS)} sizes, where every way to get to a look is a column. Medians of the rounds.\n\n"
            f"{table(rows)}"
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
