"""The study of patch sizes: MS-GFNet, which chooses them, against fixed ones (Table 3, Figures 10 and 17)."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from glancefocus.evaluation.figures import patch_sizes_figure
from glancefocus.exits.curve import Point, patches_of
from glancefocus.studies.budgets import (
    BUDGETS_NOTE,
    accuracies_at,
    budget_columns,
    budget_curve,
    budgets_like,
    curves_figure,
    points_at,
)
from glancefocus.studies.catalogue import columns_of, sentence, source_of
from glancefocus.studies.curves import backbone_dots
from glancefocus.studies.networks import TINY_SIZES, Run, Scope, chain
from glancefocus.studies.results import Drawing, Result, Row, Table, row_beside
from glancefocus.studies.runs import Measured

SIZE_PRESET = {"tiny": TINY_SIZES, "paper": "gf-ms-resnet50-96"}
EFFICIENTNETS = {
    "EfficientNet-B3, 128 px (fixed)": "gf-efficientnet-b3-128",
    "EfficientNet-B3, sizes chosen": "gf-ms-efficientnet-b3-128",
}
EFFICIENTNET_BACKBONE = "backbone EfficientNet-B3"


def size_views(scope: Scope) -> tuple[str, ...]:
    return ("32", "48", "64") if scope.scale == "tiny" else ("96", "128", "160")


def size_runs(scope: Scope) -> dict[str, Run]:
    preset = SIZE_PRESET[scope.scale]
    runs = {"chosen": chain(scope, preset).trained}
    for view in size_views(scope):
        runs[view] = chain(scope, preset, name=f"fixed-{view}", network={"focus": (view,)}).trained
    runs["backbone"] = chain(scope, preset).backbone
    if scope.scale == "paper":
        first = replace(scope, seed=0)  # for a figure of the first seed
        runs |= {name: chain(first, preset).trained for name, preset in EFFICIENTNETS.items()}
        runs[EFFICIENTNET_BACKBONE] = chain(first, "gf-efficientnet-b3-128").backbone
    return runs


def size_result(measured: Measured) -> Result:
    published = columns_of("sizes")
    budgets = budgets_like("gf-ms-resnet50-96", published, measured.first("chosen"))
    views, keys = size_views(measured.scope), ("96", "128", "160")
    rows = [
        row_beside("sizes", key, f"{view} px (fixed)", [accuracies_at(run, budgets) for run in measured[view]])
        for view, key in zip(views, keys, strict=True)
    ]
    chosen = [points_at(run, budgets) for run in measured["chosen"]]
    rows.append(row_beside("sizes", "chosen", "sizes chosen", [[p["accuracy"] for p in own] for own in chosen]))
    columns = budget_columns(budgets, published)
    title = f"Accuracy within an average budget of multiply-adds, % ({source_of('sizes')})"
    share_rows = [
        Row(f"{view} px", [[_share_of(point, n) for point in own] for own in chosen]) for n, view in enumerate(views)
    ]
    share_title = "Share of each patch size among the focus looks where sizes are chosen, %"
    shares = Table("shares", share_title, columns, share_rows, 0)
    curves = {f"{view} px (fixed)": budget_curve(measured.first(view)) for view in views}
    curves["sizes chosen"] = budget_curve(measured.first("chosen"))
    plain = backbone_dots(measured.first("backbone"), resized=False)
    drawings = {
        "sizes": Drawing(
            curves_figure(curves, plain),
            "Accuracy over multiply-adds, first seed: sizes chosen, and fixed; diamond: the plain backbone.",
        ),
        "patch_sizes": Drawing(
            patch_sizes_figure(curves["sizes chosen"], views),
            "The share of each size among the focus looks, over the budget, first seed.",
        ),
    }
    if EFFICIENTNET_BACKBONE in measured.runs:
        drawings["efficientnet"] = Drawing(
            curves_figure(
                {name: budget_curve(measured.first(name)) for name in EFFICIENTNETS},
                backbone_dots(measured.first(EFFICIENTNET_BACKBONE), resized=False),
            ),
            "Accuracy over multiply-adds for EfficientNet-B3, first seed: sizes chosen, and one size; diamond: the plain backbone.",
        )
    note = f"{BUDGETS_NOTE} The paper's patches have {', '.join(keys[:-1])} and {keys[-1]} px."
    tables = [Table("sizes", title, columns, rows, measured.images, ordered=True, note=note), shares]
    return Result(tables, drawings, remarks=[_gaps(rows), sentence("sizes")])


def _share_of(point: Point, size: int) -> float:
    counts = np.asarray(patches_of(point), dtype=np.float64).sum(axis=0)
    return float(counts[size] / max(1.0, counts.sum()))


def _gaps(rows: Sequence[Row]) -> str:
    """The chosen sizes less the best fixed one, at every budget."""
    *fixed, chosen = rows
    gaps = []
    for column in range(len(chosen.values[0])):
        known = [mean for row in fixed if (mean := row.mean(column)) is not None]
        own = chosen.mean(column)
        gaps.append("--" if own is None or not known else f"{100 * (own - max(known)):+.1f}")
    return f"Chosen sizes less the best fixed size, in points, at each budget: {', '.join(gaps)}."
