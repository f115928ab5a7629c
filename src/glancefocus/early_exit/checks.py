"""Whether a budget can be met and a table can be solved, told before any solver starts."""

import numpy as np

from glancefocus.early_exit.curve import refuse_budget
from glancefocus.early_exit.look_table import LookTable, level_sizes
from glancefocus.errors import BadData


def check_budget(table: LookTable, budget: float) -> bool:
    """True where the budget binds, False where every look fits into it; a budget that cannot be met is refused."""
    refuse_budget(budget, table.cheapest, table.unit)
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
