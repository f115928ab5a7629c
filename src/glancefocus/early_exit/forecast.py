"""What thresholds will cost and achieve on new images: an estimate with a 95 % interval, also from few images.

An image leaves at one of a few nodes, each with its cost. How often it leaves at each is known from N images only. So shares that
are plausible after N images are drawn many times (a Dirichlet distribution, Perks' prior), and new images from each draw. The
interval holds 95 % of their mean costs. This works where none of 10 images took the last look, as well as for 10,000 images.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from glancefocus.early_exit.cross_fit import CrossFitted
from glancefocus.early_exit.geometric import cost_and_worth
from glancefocus.early_exit.look_table import LookTable, Thresholds

NEW_IMAGES = 3000
DRAWS = 8000
LEVEL = 0.95
GOOD_SHARE = 0.1  # an interval of plus or minus a tenth of the cost is good enough
STANDARD_ERRORS = 1.959964  # of a normal distribution, half of a 95 % interval


@dataclass(frozen=True)
class Forecast:
    """What to expect of new images like those that were seen.

    cost, accuracy   means of the images that were seen, each judged by thresholds that it did not choose
    *_low, *_high    the 95 % interval for the means over `new_images` other images
    images           how many were seen
    images_needed    how many would make the interval of the cost as narrow as plus or minus a tenth of it
    unit             of the cost
    """

    cost: float
    cost_low: float
    cost_high: float
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    images: int
    images_needed: int
    new_images: int
    unit: Literal["macs", "ms"]

    @property
    def cost_share(self) -> float:
        """Half of the interval's width as a share of the cost."""
        return (self.cost_high - self.cost_low) / 2 / self.cost

    @property
    def too_few(self) -> bool:
        """More images would be needed for an interval of plus or minus a tenth."""
        return self.images < self.images_needed

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)


def forecast_of_others(table: LookTable, thresholds: Thresholds, *, new_images: int = NEW_IMAGES) -> Forecast:
    """From images that did not choose these thresholds."""
    node = table.exits(thresholds)
    return _forecast(table, node, np.asarray(table.correct[np.arange(len(table)), node]), 0.0, new_images)


def forecast_of_choosers(
    table: LookTable, thresholds: Thresholds, judged: CrossFitted, *, new_images: int = NEW_IMAGES
) -> Forecast:
    """From the images that chose these thresholds, each judged by thresholds that others of them chose.

    The thresholds that others chose may cost more or less than these do. By how much is seen on all images, and added. Other
    images would have chosen other thresholds: how much that matters is seen from the groups that chose without each other
    (the jackknife), and widens the interval.
    """
    cost = cost_and_worth(table, thresholds)[0]
    others = np.asarray([cost_and_worth(table, chosen)[0] for chosen in judged.chosen])
    groups = len(others)
    spread = math.sqrt((groups - 1) / groups * float(np.square(others - others.mean()).sum()))
    return _forecast(table, judged.node, judged.correct, cost - float(others.mean()), new_images, spread)


def _forecast(
    table: LookTable,
    node: NDArray[np.int64],
    correct: NDArray[np.bool_],
    more: float,
    new_images: int,
    spread: float = 0.0,
) -> Forecast:
    """Of images that left at these nodes, with answers that were right or not, if all cost so much more.

    spread  standard deviation of the cost that comes from which images chose
    """
    random = np.random.default_rng(0)
    count = len(node)
    seen = np.bincount(node, minlength=len(table.cost))
    draws = mean_costs(seen, table.cost, new_images, random) + more
    draws += spread * np.random.default_rng(1).standard_normal(DRAWS)
    cost, *cost_interval = np.clip(
        [seen @ table.cost / count + more, *interval(draws)],
        table.cheapest,
        table.dearest,
    ).tolist()
    right = int(np.count_nonzero(correct))
    shares = random.beta(right + 0.5, count - right + 0.5, DRAWS)
    accuracy, *accuracy_interval = right / count, *interval(random.binomial(new_images, shares) / new_images)
    return Forecast(
        cost=cost,
        cost_low=min(cost, cost_interval[0]),
        cost_high=max(cost, cost_interval[1]),
        accuracy=accuracy,
        accuracy_low=min(accuracy, accuracy_interval[0]),
        accuracy_high=max(accuracy, accuracy_interval[1]),
        images=count,
        images_needed=images_needed((cost_interval[1] - cost_interval[0]) / 2, cost, count, new_images),
        new_images=new_images,
        unit=table.unit,
    )


def mean_costs(
    seen: NDArray[np.int64], cost: NDArray[np.float64], new_images: int, random: np.random.Generator
) -> NDArray[np.float64]:
    """(DRAWS,) mean costs of new images, after so many were seen to leave at each node."""
    shares = random.dirichlet(seen + 1 / len(seen), DRAWS)
    return np.asarray(random.multinomial(new_images, shares) @ cost / new_images)


def interval(draws: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def images_needed(half: float, cost: float, images: int, new_images: int) -> int:
    """How many images give an interval of plus or minus a tenth, where so many gave plus or minus `half`; two digits."""
    variance = (half / STANDARD_ERRORS) ** 2 / (1 / images + 1 / new_images)
    wanted = (GOOD_SHARE * cost / STANDARD_ERRORS) ** 2 - variance / new_images
    if variance == 0 or wanted <= 0:
        return images
    needed = max(math.ceil(variance / wanted - 1e-3), 1)
    step: int = 10 ** max(len(str(needed)) - 2, 0)
    return math.ceil(needed / step) * step
