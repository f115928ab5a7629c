"""Thresholds for several candidate views, by a genetic algorithm as in the paper (section 4.2).

An individual is a set of thresholds, one for each look and view. Each is stored as a gene: the rank of the threshold among
the scores of its look, as a number in [0, 1]. One budget is solved by an ordinary genetic algorithm, the whole curve by NSGA-II
(Deb et al., 2002), which differs only in how individuals are ranked.
"""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from glancefocus.exits.one_size import direct_curve
from glancefocus.exits.table import LookTable, Thresholds, Worth, check_budget, cost_and_worth, path_nodes

# This share of a gene's range means the threshold -1 (never this size), and as much means 1 (this size for all that are left).
END_SHARE = 0.1
START_BUDGETS = 20
MUTATIONS = 1.5  # genes of a child that change, on average
# With fewer images, the less sure one is, the larger its next view must be, see larger_for_less_sure.
ENOUGH_FOR_ANY_ORDER = 400
SMALLEST_STEP, LARGEST_STEP = 0.002, 0.5  # of a mutation, drawn evenly on a logarithmic scale

Genes = NDArray[np.float64]
"""(P, (T - 1) K) in [0, 1]: the rank of the threshold of each individual, look and size among the scores of that look."""

Rank = Callable[[NDArray[np.float64]], NDArray[np.int64]]
"""(P, 2) mean costs and accuracies -> (P,) rows of the individuals, the best first."""


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

    On this table they are never worse than any fixed sequence of views that do not get smaller: the search starts from those.
    Among equally accurate thresholds it takes the most expensive, for the reason given in `direct_within`; worth and spare as
    there.
    """
    check_budget(table, budget)
    starts = fixed_sequences(table, [budget], worth)
    tried = Archive(table, worth)
    tried.add(starts)
    evolve(
        tried, starts, lambda found: rank_within(found, budget), population, generations, np.random.default_rng(seed)
    )
    return tried.best_within(budget, spare)


def genetic_front(
    table: LookTable,
    worth: Worth | None = None,
    *,
    budgets: Sequence[float] | None = None,
    seed: int = 0,
    population: int = 100,
    generations: int = 150,
) -> list[Thresholds]:
    """The whole curve in one run, cheapest first: thresholds for which no others are both cheaper and more accurate.

    budgets  at each of these the curve is never worse on this table than any of the fixed sequences; default: evenly spaced
    worth    (N, nodes) what is maximised instead of the number of right answers, see `expected_correct`
    """
    if budgets is None:
        budgets = np.linspace(table.cheapest, table.dearest, START_BUDGETS).tolist()
    tried = Archive(table, worth)
    tried.add(fixed_sequences(table, budgets, worth))
    evolve(tried, np.stack(tried.front()), rank_front, population, generations, np.random.default_rng(seed))
    return tried.front()


def fixed_sequences(table: LookTable, budgets: Sequence[float], worth: Worth | None = None) -> NDArray[np.float32]:
    """(P, T, K) directly searched thresholds of fixed sequences of views within each budget, and stopping at the glance.

    The sequences are those in which views do not get smaller: the same view at every look, or a larger one later. Among them is
    the usual cascade, which the search would rarely find by chance.
    """
    found = [table.leave()]
    for path in itertools.combinations_with_replacement(range(table.sizes), table.looks - 1):
        nodes = path_nodes(path, table.sizes)
        for column in direct_curve(table.along(path), budgets, None if worth is None else worth[:, nodes]):
            thresholds = table.leave()
            thresholds[np.arange(table.looks - 1), list(path)] = column[:-1]
            found.append(thresholds)
    code = GeneCode(table)
    return np.unique(code.thresholds(code.genes(np.stack(found))), axis=0)  # thresholds that genes can represent


def evolve(
    tried: "Archive",
    starts: NDArray[np.float32],
    rank: Rank,
    population: int,
    generations: int,
    random: np.random.Generator,
) -> None:
    """Run the genetic algorithm; everything that it evaluates is kept in the archive.

    starts  (P, T, K) thresholds that the first generation is made from
    """
    code = GeneCode(tried.table)
    if code.genes_each == 0:
        return
    genes = code.first_population(starts, population, random)
    found = tried.add(code.thresholds(genes))
    for _ in range(generations - 1):
        best = rank(found)[:population]
        genes, found = genes[best], found[best]
        young = children(genes, random)
        genes = np.concatenate([genes, young])
        found = np.concatenate([found, tried.add(code.thresholds(young))])


def children(genes: Genes, random: np.random.Generator) -> Genes:
    """(P, genes) as many children as there are parents, which are sorted, the best first.

    Each parent is the better of two drawn at random. A child takes each gene from either parent (uniform crossover). Then some
    genes are mutated by steps of very different sizes: small ones refine, large ones explore.
    """
    shape = genes.shape
    mother, father = (genes[random.integers(0, len(genes), (len(genes), 2)).min(axis=1)] for _ in range(2))
    young = np.where(random.random(shape) < 0.5, mother, father)
    steps = np.exp(random.uniform(np.log(SMALLEST_STEP), np.log(LARGEST_STEP), shape)) * random.normal(size=shape)
    mutated = random.random(shape) < MUTATIONS / shape[1]
    return np.asarray(np.clip(young + mutated * steps, 0, 1))


def rank_within(found: NDArray[np.float64], budget: float) -> NDArray[np.int64]:
    """The most accurate within the budget first, the more expensive of equals; then those above the budget, the nearest first."""
    cost, accuracy = found.T
    excess = np.maximum(cost - budget, 0)
    return repeated_last(found, np.lexsort((-cost, -accuracy * (excess == 0), excess)))


def rank_front(found: NDArray[np.float64]) -> NDArray[np.int64]:
    """The order of NSGA-II: by front; within a front those whose neighbours are far away first.

    The first front holds what nothing beats, the second what only the first beats, and so on.
    """
    cost, accuracy = found.T
    front = np.zeros(len(found), dtype=np.int64)
    distance = np.zeros(len(found))
    left = np.lexsort((-accuracy, cost))
    while len(left):
        best_before = np.concatenate([[-np.inf], np.maximum.accumulate(accuracy[left])[:-1]])
        unbeaten = accuracy[left] > best_before
        rows, left = left[unbeaten], left[~unbeaten]
        front[left] += 1
        distance[rows[[0, -1]]] = np.inf  # the ends of a front are always kept
        for values in (cost[rows], accuracy[rows]):
            distance[rows[1:-1]] += (values[2:] - values[:-2]) / max(np.ptp(values), 1e-12)
    return repeated_last(found, np.lexsort((-distance, front)))


def repeated_last(found: NDArray[np.float64], order: NDArray[np.int64]) -> NDArray[np.int64]:
    """The order, with individuals that cost and achieve exactly the same as an earlier one moved to its end."""
    first = np.sort(np.unique(found[order], axis=0, return_index=True)[1])
    return np.concatenate([order[first], np.delete(order, first)])


class GeneCode:
    """Converts genes to thresholds and back. Equal steps of a gene are equal numbers of images, whatever the scores are."""

    def __init__(self, table: LookTable) -> None:
        self.table = table
        self.ordered = len(table) < ENOUGH_FOR_ANY_ORDER
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
        return larger_for_less_sure(thresholds) if self.ordered else thresholds

    def genes(self, thresholds: NDArray[np.float32]) -> Genes:
        """(P, (T - 1) K) the middle of all genes that stand for these (P, T, K) thresholds."""
        genes = np.empty((len(thresholds), self.table.looks - 1, self.table.sizes))
        for look, values in enumerate(self._values):
            low, high = (np.searchsorted(values, thresholds[:, look], side=side) for side in ("left", "right"))
            genes[:, look] = (low + high) / 2 / len(values)
        return genes.reshape(len(genes), -1)

    def first_population(self, starts: NDArray[np.float32], count: int, random: np.random.Generator) -> Genes:
        """The starts (some of them if there are too many), mixtures of them with a little noise, and one third at random."""
        genes = self.genes(starts)
        kept = genes[np.unique(np.linspace(0, len(genes) - 1, min(len(genes), count // 2)).astype(np.int64))]
        by_chance = random.random((count // 3, self.genes_each))
        mixed = random.integers(0, len(genes), (count - len(kept) - len(by_chance), self.genes_each))
        mixtures = np.take_along_axis(genes, mixed, axis=0) + random.normal(0, 0.05, mixed.shape)
        return np.concatenate([kept, np.clip(mixtures, 0, 1), by_chance])


def larger_for_less_sure(thresholds: NDArray[np.float32]) -> NDArray[np.float32]:
    """Thresholds (P, T, K) without the views that would be shown to less sure images than a larger view is.

    Among a few images some look hopeless, and it seems to pay to save on them: they get the smallest view, again and again. On new
    images that saves on those which need a close look most. Here a threshold below that of a larger view becomes -1 (never this
    view), so that the larger view gets all of these images.
    """
    largest = np.maximum.accumulate(thresholds[..., ::-1], axis=-1)[..., ::-1]
    return np.where(thresholds < largest, np.float32(-1), thresholds)


class Archive:
    """Everything that was evaluated on one table."""

    def __init__(self, table: LookTable, worth: Worth | None = None) -> None:
        self.table = table
        self.worth = worth
        self._thresholds: list[Thresholds] = []
        self._cost: list[float] = []
        self._accuracy: list[float] = []

    def add(self, thresholds: NDArray[np.float32]) -> NDArray[np.float64]:
        """(P, 2) the mean costs and the accuracies of these (P, T, K) thresholds."""
        found = [cost_and_worth(self.table, one, self.worth) for one in thresholds]
        self._thresholds += [one.copy() for one in thresholds]
        self._cost += [cost for cost, _ in found]
        self._accuracy += [accuracy for _, accuracy in found]
        return np.asarray(found, dtype=np.float64).reshape(-1, 2)

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
        """Thresholds that no others beat, cheapest first: each is more accurate than all cheaper ones."""
        kept: list[Thresholds] = []
        most = -1.0
        for number in np.lexsort((-np.asarray(self._accuracy), np.asarray(self._cost))).tolist():
            if self._accuracy[number] > most:
                kept.append(self._thresholds[number])
                most = self._accuracy[number]
        return kept
