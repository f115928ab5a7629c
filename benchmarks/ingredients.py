"""What each ingredient of the recipe for photographs is worth: the run again without it, on validation images.

    gf train photos.csv --weights weights.pth -o runs/photos
    python benchmarks/ingredients.py runs/photos photos.csv --write docs/results.md

All variants learn from the backbone of the run, and repeat its stages after the backbone with one thing changed. Each is measured
within the same budgets, with thresholds that are chosen without the image that they judge (cross-fitting).
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from photographs import difference
from results import machine, markdown_table, write_section

from glancefocus.bundle.bundle import Bundle
from glancefocus.evaluation.assess import look_table
from glancefocus.evaluation.cascades import FOLDS
from glancefocus.evaluation.records import Records, looks_folder
from glancefocus.exits.budget import cross_fitted_exits
from glancefocus.training.run_folder import BACKBONE_FILE, BUNDLE_FOLDER, settings_of
from glancefocus.training.settings import TrainSettings

GF = [sys.executable, "-m", "glancefocus.cli.main"]
SHARES = (0.25, 0.35, 0.5, 0.7)
"""Budgets, as shares of the cost of the backbone on the whole image."""


def variants(settings: TrainSettings) -> dict[str, list[str]]:
    """{ingredient: options of the run without it}; the first is the run as it is."""
    views = settings.network.candidates
    zoomed, whole = ([view.name for view in views if view.is_whole is kind] for kind in (False, True))
    middle = f"whole@{max(view.px for view in views if not view.is_whole)}"
    usual = ["--focus", *zoomed, *whole]
    stages = ["--stages", "glance,1,point"]
    return {
        "the recipe": [*usual, *stages],
        "distillation": [*usual, *stages, "--set", "glance.distill=0", "--set", "recognise.distill=0"],
        "views of the whole image": ["--focus", *zoomed, *stages],
        f"zoomed views ({middle} instead)": ["--focus", middle, *whole, "--stages", "glance,1"],
        "place memory": [*usual, *stages, "--set", "network.policy.place=false"],
        "evidence aims (random places in stage I, PPO alone)": [
            *(*usual, "--stages", "glance,1,2", "--set", "recognise.aims=random"),
        ],
        "no PPO (PPO added after the stage point)": [*usual, "--stages", "glance,1,point,2"],
        "summed answers (a recurrent classifier instead)": [*usual, *stages, "--set", "network.classifier=recurrent"],
    }


def train(run: Path, data: str, options: list[str], folder: Path) -> None:
    """Train one variant; one that is done already is left as it is."""
    settings, backbone = settings_of(run), str(run / BACKBONE_FILE)
    side, glance = settings.network.view.height_px, settings.network.glance_px
    words = [*GF, "train", data, "--weights", backbone, "--teacher", backbone, "--rivals", "none", "-o", str(folder)]
    words += [
        "--source-px",
        str(side),
        "--glance-px",
        str(glance),
        "--set",
        f"data.val_share={settings.data.val_share}",
    ]
    words += ["--set", f"glance.epochs={settings.glance.epochs}", *options]
    words += ["--set", f"recognise.epochs={settings.recognise.epochs}"]
    done = subprocess.run(words, check=False, stdout=sys.stderr)
    if done.returncode:
        sys.exit(f"{' '.join(words)} ended with {done.returncode}")


def right_within(run: Path, data: str) -> tuple[list[NDArray[np.bool_]], list[float], list[float]]:
    """For each budget the right answers of every validation image; the mean costs; and the accuracy after each look."""
    bundle = Bundle.load(run / BUNDLE_FOLDER)
    table = look_table(bundle, Records(bundle, data, looks_folder(run / BUNDLE_FOLDER)).of("val"))
    budgets = [max(share * bundle.costs.backbone_macs, table.cheapest) for share in SHARES]
    rows = np.arange(len(table))
    nodes = cross_fitted_exits(table, budgets, FOLDS, seed=0)
    right = [table.correct[rows, node] for node in nodes]
    return right, [float(table.macs[node].mean()) for node in nodes], list(table.accuracy_after_look)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("data")
    parser.add_argument("-o", "--output", type=Path, help="folder of the variants; default: beside the run")
    parser.add_argument("--only", nargs="+", help="parts of the names of the variants to run")
    parser.add_argument("--title", default="What each ingredient is worth")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    place = options.output or options.run.with_name(f"{options.run.name}-without")
    rows = [
        ["without", *(f"{100 * share:.0f} % of the backbone's cost" for share in SHARES), "mean difference, points"]
    ]
    first: NDArray[np.float64] | None = None
    for number, (name, words) in enumerate(variants(settings_of(options.run)).items()):
        if number > 0 and options.only and not any(word in name for word in options.only):
            continue
        folder = place / str(number)
        train(options.run, options.data, words, folder)
        right, costs, after_look = right_within(folder, options.data)
        mean = np.mean(right, axis=0)
        cells = [f"{100 * each.mean():.1f} ({cost / 1e6:.0f}M)" for each, cost in zip(right, costs, strict=True)]
        rows.append([name, *cells, "" if first is None else difference(mean, first)])
        first = mean if first is None else first
        print(json.dumps({"without": name, "after_look": after_look, "options": words}), file=sys.stderr)
        print(markdown_table(rows), flush=True)
    images = 0 if first is None else len(first)
    text = (
        f"{markdown_table(rows)}\n\nAccuracy in %, on {images:,} validation images, thresholds by cross-fitting; in brackets "
        "the mean multiply-adds. The difference is that of the mean over the budgets, with two standard errors over the images."
    )
    if options.write is not None:
        command = f"python benchmarks/ingredients.py {options.run} {options.data}"
        name = f"ingredients-{options.run.name}"
        write_section(options.write, name, title=options.title, command=command, machine=machine(), body=text)


if __name__ == "__main__":
    main()
