"""Thresholds for several patch sizes, by a genetic algorithm as in the paper (section 4.2)."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glancefocus.exits.direct import Worth, direct_curve
from glancefocus.exits.geometric import cost_and_worth
from glancefocus.exits.table import LookTable, Thresholds, check_budget, path_nodes

END_SHARE = 0.1  # of the genes' range stands for -1, "never this size", and as much for 1, "everybody who is left"
START_BUDGETS = 20

Genes = NDArray[np.float64]
"""(P, (T - 1) K) in [0, 1]: for each individual, look and size, the place of the threshold among the scores of that look."""


def genetic_within(
    table: LookTable,
    budget: float,
    worth: Worth | None = None,
    *,
    spare: float = 0.0,
    seed: int = 0,
    population: int = 64,
    generations: int = 60,
) -> Thresholds:
    """(T, K) thresholds whose mean cost on this table is within the budget, as accurate as the algorithm can make them.

    On this table they are never worse than looking with patches of one size only, which it starts from. Of equally accurate
    thresholds it takes the dearest, for the reason that `direct_within` gives; worth and spare as there.
    """
    from pymoo.algorithms.soo.nonconvex.ga import GA

    check_budget(table, budget)
    code, seen = GeneCode(table), Archive(table, worth)
    starts = one_size_only(table, [budget], worth)
    seen.add(starts)
    spread = table.dearest - table.cheapest or 1.0

    def judge(thresholds: NDArray[np.float32]) -> dict[str, NDArray[np.float64]]:
        cost, accuracy = seen.add(thresholds)
        return {"F": -accuracy[:, None], "G": (cost[:, None] - budget) / spread}

    first = code.first_population(starts, population, np.random.default_rng(seed))
    evolve(GA(pop_size=population, sampling=first), code, judge, (1, 1), generations=generations, seed=seed)
    return seen.best_within(budget, spare)


def genetic_front(
    table: LookTable,
    worth: Worth | None = None,
    *,
    budgets: Sequence[float] | None = None,
    seed: int = 0,
    population: int = 100,
    generations: int = 150,
) -> list[Thresholds]:
    """Thresholds of which none is beaten by another, cheapest first: the whole curve in one run of NSGA-II.

    budgets  at each of which the curve is never worse on this table than looking with patches of one size only; evenly spaced
             unless told
    worth    (N, nodes) what is made large instead of the number of right answers, see expected.py
    """
    from pymoo.algorithms.moo.nsga2 import NSGA2

    if budgets is None:
        budgets = np.linspace(table.cheapest, table.dearest, START_BUDGETS).tolist()
    code, seen = GeneCode(table), Archive(table, worth)
    seen.add(one_size_only(table, budgets, worth))
    spread = table.dearest - table.cheapest or 1.0

    def judge(thresholds: NDArray[np.float32]) -> dict[str, NDArray[np.float64]]:
        cost, accuracy = seen.add(thresholds)
        return {"F": np.stack([cost / spread, -accuracy], axis=1)}

    first = code.first_population(np.stack(seen.front()), population, np.random.default_rng(seed))
    evolve(NSGA2(pop_size=population, sampling=first), code, judge, (2, 0), generations=generations, seed=seed)
    return seen.front()


def one_size_only(table: LookTable, budgets: Sequence[float], worth: Worth | None = None) -> NDArray[np.float32]:
    """(P, T, K) the directly searched thresholds of each size alone, within each budget, and leaving at the glance."""
    found = [table.leave()]
    for size in range(table.sizes):
        nodes = path_nodes([size] * (table.looks - 1), table.sizes)
        for column in direct_curve(table.fixed_size(size), budgets, None if worth is None else worth[:, nodes]):
            thresholds = table.leave()
            thresholds[:-1, size] = column[:-1]
            found.append(thresholds)
    code = GeneCode(table)
    return np.unique(code.thresholds(code.genes(np.stack(found))), axis=0)  # thresholds that genes can stand for


def evolve(
    algorithm: Any,
    code: "GeneCode",
    judge: Callable[[NDArray[np.float32]], dict[str, NDArray[np.float64]]],
    widths: tuple[int, int],
    *,
    generations: int,
    seed: int,
) -> None:
    """Run an algorithm of pymoo.

    judge   (P, T, K) thresholds -> {"F": what to make small, "G": what may not be above 0}, a row an individual
    widths  of F and G
    """
    from pymoo.core.evaluator import Evaluator
    from pymoo.core.problem import Problem
    from pymoo.problems.static import StaticProblem

    if code.genes_each == 0:
        return
    problem = Problem(n_var=code.genes_each, n_obj=widths[0], n_ieq_constr=widths[1], xl=0.0, xu=1.0)
    algorithm.setup(problem, termination=("n_gen", generations), seed=seed, verbose=False)
    while algorithm.has_next():
        individuals = algorithm.ask()
        judged = judge(code.thresholds(individuals.get("X")))
        Evaluator().eval(StaticProblem(problem, **judged), individuals)
        algorithm.tell(infills=individuals)


class GeneCode:
    """Genes to thresholds and back. Equal steps of a gene are equal numbers of images, whatever the scores are like."""

    def __init__(self, table: LookTable) -> None:
        self.table = table
        self.genes_each = (table.looks - 1) * table.sizes
        self._values = [self._ladder(level) for level in table.levels(np.arange(table.score.shape[1]))[:-1]]

    def _ladder(self, nodes: NDArray[np.int64]) -> NDArray[np.float32]:
        """Every threshold that can make a difference among the scores of these nodes, ascending."""
        scores = np.sort(self.table.score[:, nodes], axis=None)
        ends = np.ones(max(int(END_SHARE * scores.size), 1), dtype=np.float32)
        return np.concatenate([-ends, np.nextafter(scores, np.float32(-1)), ends])

    def thresholds(self, genes: Genes) -> NDArray[np.float32]:
        """(P, T, K)"""
        genes = genes.reshape(len(genes), self.table.looks - 1, self.table.sizes)
        thresholds = np.zeros((len(genes), self.table.looks, self.table.sizes), dtype=np.float32)
        for look, values in enumerate(self._values):
            place = (genes[:, look] * len(values)).astype(np.int64)
            thresholds[:, look] = values[np.minimum(place, len(values) - 1)]
        return thresholds

    def genes(self, thresholds: NDArray[np.float32]) -> Genes:
        """(P, (T - 1) K) the middle of all genes that stand for these (P, T, K) thresholds."""
        genes = np.empty((len(thresholds), self.table.looks - 1, self.table.sizes))
        for look, values in enumerate(self._values):
            low, high = (np.searchsorted(values, thresholds[:, look], side=side) for side in ("left", "right"))
            genes[:, look] = (low + high) / 2 / len(values)
        return genes.reshape(len(genes), -1)

    def first_population(self, starts: NDArray[np.float32], count: int, random: np.random.Generator) -> Genes:
        """The starts, some of them if they are too many; mixtures of them, a little changed; and a third by chance."""
        genes = self.genes(starts)
        kept = genes[np.unique(np.linspace(0, len(genes) - 1, min(len(genes), count // 2)).astype(np.int64))]
        chance = random.random((count // 3, self.genes_each))
        mixed = random.integers(0, len(genes), (count - len(kept) - len(chance), self.genes_each))
        mixtures = np.take_along_axis(genes, mixed, axis=0) + random.normal(0, 0.05, mixed.shape)
        return np.concatenate([kept, np.clip(mixtures, 0, 1), chance])


class Archive:
    """Everything that was tried on one table."""

    def __init__(self, table: LookTable, worth: Worth | None = None) -> None:
        self.table = table
        self.worth = worth
        self._thresholds: list[Thresholds] = []
        self._cost: list[float] = []
        self._accuracy: list[float] = []

    def add(self, thresholds: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(P,) the mean costs and the accuracies of these (P, T, K) thresholds."""
        for one in thresholds:
            cost, accuracy = cost_and_worth(self.table, one, self.worth)
            self._thresholds.append(one.copy())
            self._cost.append(cost)
            self._accuracy.append(accuracy)
        added = len(thresholds)
        return np.asarray(self._cost[-added:]), np.asarray(self._accuracy[-added:])

    def best_within(self, budget: float, spare: float = 0.0) -> Thresholds:
        fitting = [number for number, cost in enumerate(self._cost) if cost <= budget]
        if not fitting:
            return self.table.leave()
        best = max(fitting, key=lambda number: (self._accuracy[number], self._cost[number]))
        if spare > 0:
            good = [number for number in fitting if self._accuracy[number] >= self._accuracy[best] - spare]
            best = min(good, key=lambda number: self._cost[number])
        return self._thresholds[best]

    def front(self) -> list[Thresholds]:
        """What nothing beats: cheapest first, each more accurate than all that are cheaper."""
        kept: list[Thresholds] = []
        most = -1.0
        for number in np.lexsort((-np.asarray(self._accuracy), np.asarray(self._cost))).tolist():
            if self._accuracy[number] > most:
                kept.append(self._thresholds[number])
                most = self._accuracy[number]
        return kept
