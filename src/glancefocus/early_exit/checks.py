"""Whether a budget can be met and a table can be solved, told before any solver starts."""

import math

import numpy as np

from glancefocus.early_exit.look_table import LookTable, level_sizes
from glancefocus.errors import BadBudget, BadData

UNITS = {"macs": "multiply-adds", "ms": "milliseconds"}
MIXED_UP = {
    "macs": " Is the unit mixed up? Multiply-adds are counted one by one, such as 2e8.",
    "ms": " Is the unit mixed up? A budget in time is counted in milliseconds, such as 20.",
}


def check_budget(table: LookTable, budget: float) -> bool:
    """True where the budget binds, False where every look fits into it; a budget that cannot be met is refused."""
    unit = UNITS[table.unit]
    if not math.isfinite(budget):
        raise BadBudget(f"a budget must be a finite number of {unit}, but got {budget}.")
    if budget < table.cheapest:
        hint = MIXED_UP[table.unit] if budget * 1000 < table.cheapest else ""
        raise BadBudget(
            f"a budget of {budget:.6g} {unit} is less than what a glance costs ({table.cheapest:.6g}): raise it, or train a "
            f"network with a smaller glance.{hint}"
        )
    return budget < table.dearest


def check_table(table: LookTable) -> None:
    """Refuses a table out of which no thresholds can be found."""
    if len(table) < 2:
        raise BadData(
            f"thresholds need at least 2 images to be chosen on, but got {len(table)}. Give more images that the network was "
            "not trained on; some hundreds are a good start."
        )
    before_last = table.score[:, : -int(level_sizes(table.looks, table.sizes)[-1])]
    if before_last.shape[1] > 0 and bool(np.all(before_last == before_last[0])):
        raise BadData(
            f"all {len(table)} images have the same score at every look ({before_last[0, 0]:.3g} at the glance), so that no "
            "threshold can tell them apart. Is the network trained? Train it, or give images that differ."
        )
