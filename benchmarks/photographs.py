"""glancefocus and its rivals on photographs: everything is chosen on validation images, and measured once on test images.

    gf train photos.csv --weights weights.pth -o runs/photos
    python benchmarks/photographs.py runs/photos photos.csv --title "Oxford pets" --write docs/results.md

For each budget the thresholds of glancefocus, the best rival (the backbone at one size, or a cascade of two or three sizes, of the
run's own encoders and of the backbones that were tuned at one size) and the thresholds of the rival are chosen on the validation
images. Train with `--rivals tuned`, or run `gf evaluate --rivals tuned` first, so that the backbone is tuned at all smaller sizes.
"""

import argparse
import importlib
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

STEPS = 40
"""Budgets that are tried, from the cheapest to the dearest, to find the cheapest thresholds for an accuracy."""

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


def cheapest(choosing: LookTable, measuring: LookTable, accuracy: float) -> tuple[float, Outcome] | None:
    """The cost, on the choosing images, of the cheapest thresholds that reach an accuracy there, and the outcome on the others."""
    budgets = np.geomspace(1.001 * choosing.cheapest, choosing.dearest, STEPS).tolist()
    rows = np.arange(len(measuring))
    for thresholds in solve_at(choosing, budgets):
        point = choosing.point(thresholds)
        if point["accuracy"] >= accuracy:
            nodes = measuring.exits(thresholds)
            return point["mean_macs"], (measuring.correct[rows, nodes], measuring.macs[nodes])
    return None


def cheapest_rival(val: list[Member], test: list[Member], accuracy: float) -> tuple[str, Outcome]:
    """The cheapest rival that reaches an accuracy on the validation images, with its outcome on the test images."""
    found: list[tuple[float, str, Outcome]] = []
    for one, other in zip(val, test, strict=True):
        if one.correct.mean() >= accuracy:
            found.append((one.macs, one.name, (other.correct, np.full(len(other.correct), other.macs))))
    of_test = {(member.kind, member.size, member.encoder): member for member in test}
    for steps in possible_cascades(val):
        same = [of_test[member.kind, member.size, member.encoder] for member in steps]
        if reached := cheapest(cascade_table(steps), cascade_table(same), accuracy):
            found.append((reached[0], name_of(steps), reached[1]))
    _, name, outcome = min(found, key=lambda each: each[0])
    return name, outcome


def short(name: str) -> str:
    return name.replace("cascade of the backbone at", "cascade").replace("backbone at", "backbone")


def within_budgets(
    tables: dict[str, LookTable], members: dict[str, list[Member]], budgets: list[float]
) -> list[list[str]]:
    """One row of the table for each budget."""
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
    ranks = {
        name_of(steps): coarse_accuracies(cascade_table(steps), budgets) for steps in possible_cascades(members["val"])
    }
    rows = [header]
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
                short(rival),
            ]
        )
    return rows


def at_the_backbones_accuracy(tables: dict[str, LookTable], members: dict[str, list[Member]]) -> list[list[str]]:
    """What glancefocus and the cheapest rival cost where both are as accurate as the backbone on validation images."""
    backbone = members["test"][0]
    rows = [["", "accuracy, %", "M", "times fewer than the backbone", "from the backbone (± 2 se)"]]
    aims = {f"{points:g} points less" if points else "its accuracy": points for points in (0, 0.5, 1, 2)}
    for words, points in aims.items():
        accuracy = float(members["val"][0].correct.mean()) - points / 100
        rival, outcome = cheapest_rival(members["val"], members["test"], accuracy)
        found = {f"best rival, {words}: {short(rival)}": outcome}
        if reached := cheapest(tables["val"], tables["test"], accuracy):
            found = {f"glancefocus, {words}": reached[1], **found}
        else:
            rows.append([f"glancefocus, {words}", "not reached on validation images", "", "", ""])
        for name, (right, macs) in found.items():
            ratio = f"{backbone.macs / macs.mean():.2f}"
            moved = difference(right, backbone.correct)
            rows.append([name, f"{100 * right.mean():.1f}", f"{macs.mean() / 1e6:.0f}", ratio, moved])
    return rows


def both_splits(run: Path, data: str) -> tuple[dict[str, LookTable], dict[str, list[Member]]]:
    """The looks of glancefocus and the answers of its rivals on the validation and on the test images."""
    bundle = Bundle.load(run / BUNDLE_FOLDER)
    records = Records(bundle, data, looks_folder(run / BUNDLE_FOLDER))
    weights = Weights(run / BACKBONE_FILE, tuned_files(run))
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
    return tables, members


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("data")
    parser.add_argument("--budgets", type=float, nargs="+", help="in millions; default: 0.21 to 0.78 of the backbone")
    parser.add_argument("--module", help="a module beside this one that registers the backbone with timm: resnet50_v1")
    parser.add_argument("--title", default="Photographs")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    if options.module:
        importlib.import_module(options.module)
    tables, members = both_splits(options.run, options.data)
    backbone_macs = members["val"][0].macs
    budgets = [1e6 * each for each in options.budgets or np.linspace(0.21, 0.78, 10) * backbone_macs / 1e6]
    alone = [
        [member.name, f"{100 * member.correct.mean():.1f}", f"{member.macs / 1e6:.0f}"] for member in members["test"]
    ]
    text = "\n".join(
        [
            f"{len(tables['test']):,} test images, looked at once; thresholds and rivals were chosen on {len(tables['val']):,} "
            f"validation images.",
            "",
            markdown_table(within_budgets(tables, members, budgets)),
            "",
            "As accurate as the backbone on the whole image, or nearly, on validation images; measured on test images:",
            "",
            markdown_table(at_the_backbones_accuracy(tables, members)),
            "",
            markdown_table([["the backbone alone", "accuracy, %", "multiply-adds, millions"], *alone]),
        ]
    )
    print(text)
    if options.write is not None:
        name = options.run.name
        chosen = f" --budgets {' '.join(f'{each:g}' for each in options.budgets)}" if options.budgets else ""
        command = f"python benchmarks/photographs.py {options.run} {options.data}{chosen} --title {options.title!r}"
        write_section(
            options.write, f"photographs-{name}", title=options.title, command=command, machine=machine(), body=text
        )


if __name__ == "__main__":
    main()
