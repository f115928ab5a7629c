"""glancefocus and its rivals on photographs: everything is chosen on validation images, and measured once on test images.

    gf train photos.csv --weights weights.pth -o runs/photos
    python benchmarks/photographs.py runs/photos photos.csv --title "Oxford pets" --write docs/results.md

For each budget the thresholds of glancefocus, the best rival (the backbone at one size, or a cascade of two or three sizes, of the
run's own encoders and of the backbones that were tuned at one size) and the thresholds of the rival are chosen on the validation
images. Train with `--rivals tuned`, or run `gf evaluate --rivals tuned` first, so that the backbone is tuned at all smaller sizes.
"""

import argparse
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from results import machine, markdown_table, write_section

from glancefocus.bundle.bundle import Bundle
from glancefocus.evaluation.assess import look_table
from glancefocus.evaluation.cascades import Member, cascade_table, coarse_accuracies, name_of, possible_cascades
from glancefocus.evaluation.records import Records, looks_folder
from glancefocus.evaluation.rivals import Weights, image_size, members_on, patch_side, sizes_with_costs, tuned_files
from glancefocus.exits.budget import solve_at
from glancefocus.exits.table import LookTable
from glancefocus.training.run_folder import BACKBONE_FILE, BUNDLE_FOLDER

PROMISING = 4
"""Number of cascades, the best of a coarse search, that are solved for each budget."""

Outcome = tuple[NDArray[np.bool_], NDArray[np.float64]]
"""Right answers, and multiply-adds, of every image."""


def solved(choosing: LookTable, measuring: LookTable, budget: float) -> tuple[float, Outcome]:
    """The accuracy of the best thresholds within a budget on the choosing images, and the outcome on the others."""
    thresholds = solve_at(choosing, [budget])[0]
    nodes = measuring.exits(thresholds)
    rows = np.arange(len(measuring))
    return choosing.point(thresholds)["accuracy"], (measuring.correct[rows, nodes], measuring.macs[nodes])


def best_rival(
    val: list[Member], test: list[Member], budget: float, ranked: dict[str, float | None]
) -> tuple[str, Outcome]:
    """The rival that is best on validation images within the budget, with its outcome on the test images."""
    found: list[tuple[float, str, Outcome]] = []
    for one, other in zip(val, test, strict=True):
        if one.macs <= budget:
            outcome = other.correct, np.full(len(other.correct), other.macs)
            found.append((float(one.correct.mean()), one.name, outcome))
    names = sorted((n for n, right in ranked.items() if right is not None), key=lambda n: -(ranked[n] or 0))[:PROMISING]
    of_test = {(member.kind, member.size, member.encoder): member for member in test}
    for steps in possible_cascades(val):
        if name_of(steps) in names:
            same = [of_test[member.kind, member.size, member.encoder] for member in steps]
            right, outcome = solved(cascade_table(steps), cascade_table(same), budget)
            found.append((right, name_of(steps), outcome))
    _, name, outcome = max(found, key=lambda each: (each[0], -float(each[2][1].mean())))
    return name, outcome


def difference(ours: NDArray[np.bool_], others: NDArray[np.bool_]) -> str:
    """The difference in accuracy on the same images, in points, with two standard errors."""
    gain = ours.astype(float) - others.astype(float)
    error = 2 * float(gain.std(ddof=1)) / math.sqrt(len(gain))
    return f"{100 * gain.mean():+.1f} (± {100 * error:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("data")
    parser.add_argument("--budgets", type=float, nargs="+", default=[80, 104, 129, 153, 178, 202, 227, 251, 276, 300])
    parser.add_argument("--title", default="Photographs")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    bundle = Bundle.load(options.run / BUNDLE_FOLDER)
    records = Records(bundle, options.data, looks_folder(options.run / BUNDLE_FOLDER))
    files = tuned_files(options.run)
    weights = Weights(options.run / BACKBONE_FILE, files)
    tables, members = {}, {}
    for name in ("val", "test"):
        split = records.split(name)
        tables[name] = look_table(bundle, records.of(name))
        sizes = sizes_with_costs(
            bundle.settings,
            image_size(split, bundle.settings),
            patch_side(bundle.net.focus_encoder),
            tables[name].macs[0],
        )
        members[name] = members_on(bundle, split, np.arange(len(split)), weights, sizes, records.folder, name=name)[0]
    budgets = [1e6 * budget for budget in options.budgets]
    ranks = {
        name_of(steps): coarse_accuracies(cascade_table(steps), budgets) for steps in possible_cascades(members["val"])
    }
    rows = []
    for number, budget in enumerate(budgets):
        _, (right, macs) = solved(tables["val"], tables["test"], budget)
        ranked = {name: accuracies[number] for name, accuracies in ranks.items()}
        rival, (other_right, other_macs) = best_rival(members["val"], members["test"], budget, ranked)
        rows.append(
            [
                f"{budget / 1e6:.0f}",
                f"{100 * right.mean():.1f}",
                f"{macs.mean() / 1e6:.0f}",
                f"{100 * other_right.mean():.1f}",
                f"{other_macs.mean() / 1e6:.0f}",
                difference(right, other_right),
                difference(right, members["test"][0].correct),  # the first is the backbone on the whole image
                rival.replace("cascade of the backbone at", "cascade").replace("backbone at", "backbone"),
            ]
        )
    header = [
        "budget, M",
        "glancefocus, %",
        "M",
        "best rival, %",
        "M",
        "difference (± 2 se)",
        "from the backbone",
        "rival",
    ]
    alone = [
        [member.name, f"{100 * member.correct.mean():.1f}", f"{member.macs / 1e6:.0f}"] for member in members["test"]
    ]
    text = "\n".join(
        [
            f"{len(tables['test']):,} test images, looked at once; thresholds and rivals were chosen on {len(tables['val']):,} "
            f"validation images.",
            "",
            markdown_table([header, *rows]),
            "",
            markdown_table([["the backbone alone", "accuracy, %", "multiply-adds, millions"], *alone]),
        ]
    )
    print(text)
    if options.write is not None:
        name = options.run.name
        command = f"python benchmarks/photographs.py {options.run} {options.data} --title {options.title!r}"
        write_section(
            options.write, f"photographs-{name}", title=options.title, command=command, machine=machine(), body=text
        )


if __name__ == "__main__":
    main()
