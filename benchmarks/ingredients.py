"""What each ingredient of the recipe for photographs is worth: the run again without it, on validation images.

    gf train photos.csv --weights weights.pth -o runs/photos
    python benchmarks/ingredients.py runs/photos photos.csv --write docs/results.md

All variants learn from the backbone of the run. They start from what the run had learnt before the change makes a difference, and
train the rest again; one continues a copy of the run with another stage. Each is measured within the same budgets, with thresholds
that are chosen without the image that they judge (cross-fitting).
"""

import argparse
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from photographs import difference
from results import machine, markdown_table, write_section

from glancefocus.bundle.bundle import Bundle
from glancefocus.evaluation.assess import look_table
from glancefocus.evaluation.cascades import FOLDS
from glancefocus.evaluation.records import Records, looks_folder
from glancefocus.exits.budget import cross_fitted_exits
from glancefocus.network.build import build
from glancefocus.network.macs import count_costs
from glancefocus.network.weights import load_encoders
from glancefocus.settings import NetworkSettings
from glancefocus.training.fitted import WHOLE_SHARE, fitted_side
from glancefocus.training.run import train
from glancefocus.training.run_folder import BACKBONE_FILE, BUNDLE_FOLDER, settings_of
from glancefocus.training.settings import TrainSettings

SHARES = (0.25, 0.35, 0.5, 0.7)
"""Budgets, as shares of the cost of the backbone on the whole image."""


@dataclass(frozen=True)
class Variant:
    """A run without one ingredient.

    without    the ingredient
    change     the settings of the run -> those of the variant
    again      the first of its stages that the change makes a difference to; "point" stands for all that train the policy. The
               encoders of the views that stay are then those of the run
    continues  a copy of the finished run goes on with the stages that are added
    """

    without: str
    change: Callable[[TrainSettings], TrainSettings]
    again: str = "recognise"
    continues: bool = False


def changed(settings: TrainSettings, stages: tuple[str, ...] | None = None, **tables: dict[str, Any]) -> TrainSettings:
    """The settings with other stages, and with changes to these tables; `policy` is that of the network."""
    if policy := tables.pop("policy", None):
        tables["network"] = {"policy": replace(settings.network.policy, **policy), **tables.get("network", {})}
    parts = {name: replace(getattr(settings, name), **table) for name, table in tables.items()}
    return replace(settings, stages=settings.stages if stages is None else stages, **parts)


def variants(settings: TrainSettings) -> list[Variant]:
    """The run as it is learns in the stages glance, recognise and point."""
    views = settings.network.candidates
    zoomed, whole = (tuple(view.name for view in views if view.is_whole is kind) for kind in (False, True))
    middle = f"whole@{max(view.px for view in views if not view.is_whole)}"
    full_px = min(settings.network.view.height_px, settings.network.view.width_px)
    learns = whole != (f"whole@{full_px}",)
    other = f"whole@{full_px if learns else fitted_side(full_px, WHOLE_SHARE)}"
    learn = settings.stages
    no_zoom = {"focus": (middle, *whole), "whole_encoder": False}
    no_evidence = {"aims": "random"}
    return [
        Variant("distillation", lambda s: changed(s, glance={"distill": 0.0}, recognise={"distill": 0.0}), "glance"),
        # The encoders learn separately, so the one for squares is as it would be without views of the whole image.
        Variant(
            "views of the whole image",
            lambda s: changed(s, network={"focus": zoomed, "whole_encoder": False}),
            again="point",
        ),
        Variant(
            f"zoomed views ({middle} instead)",
            lambda s: changed(s, tuple(name for name in learn if name != "point"), network=no_zoom),
        ),
        Variant(
            f"the last view ({other} instead, {'the plain backbone' if learns else 'which learns'})",
            lambda s: changed(s, network={"focus": (*zoomed, other)}),
            again="point" if learns else "recognise",
        ),
        Variant("place memory", lambda s: changed(s, policy={"place": False}), "point"),
        Variant(
            "evidence aims (random places in stage I, then PPO alone)",
            lambda s: changed(s, (*(n for n in learn if n != "point"), "aim"), recognise=no_evidence),
        ),
        Variant("the stage point (PPO alone instead)", lambda s: changed(s, (*learn[:-1], "aim")), "point"),
        Variant("leaving out PPO (added after the stage point)", lambda s: changed(s, (*learn, "aim")), continues=True),
        Variant(
            "summed answers (a recurrent classifier instead)",
            lambda s: changed(s, network={"classifier": "recurrent", "whole_encoder": False}),
        ),
    ]


def after_the_backbone(run: Path) -> TrainSettings:
    """The settings of the run for everything after its backbone, which is the teacher."""
    settings, backbone = settings_of(run), str(run / BACKBONE_FILE)
    stages = tuple(name for name in settings.stages if name != "backbone")
    return replace(settings, weights=backbone, teacher=backbone, rivals="none", stages=stages)


def train_variant(run: Path, variant: Variant, folder: Path) -> None:
    """Train one variant, or go on with it; one that is done already is left as it is."""
    if (folder / BUNDLE_FOLDER).exists() and not variant.continues:
        return
    if variant.continues:
        if not folder.exists():
            shutil.copytree(run, folder)
        settings = variant.change(replace(settings_of(run), rivals="none"))
    else:
        settings = variant.change(after_the_backbone(run))
        if variant.again != "glance":
            settings = from_learnt(run, settings, variant.again, folder.with_name(f"{folder.name}-start"))
    train(settings, folder)


def from_learnt(run: Path, settings: TrainSettings, again: str, start: Path) -> TrainSettings:
    """The settings, starting from a bundle in this folder with what the run learnt before the stage `again`."""
    bundle = Bundle.load(run / BUNDLE_FOLDER)
    net = build(settings.network)
    load_encoders(net, str(run / BACKBONE_FILE))
    parts = ["glance_encoder."]
    if again == "point":
        parts.append("focus_encoder.")
        # An encoder for other views of the whole image stays the backbone.
        parts += ["whole_encoder."] if whole_views(settings.network) == whole_views(bundle.settings) else []
    learnt = {name: tensor for name, tensor in bundle.net.state_dict().items() if name.startswith(tuple(parts))}
    net.load_state_dict(net.state_dict() | learnt)
    Bundle(net, bundle.classes, count_costs(settings.network), split=bundle.split).save(start)
    before = {"recognise": ("glance",), "point": ("glance", "recognise")}[again]
    stages = tuple(name for name in settings.stages if name not in before)
    return replace(settings, weights=None, start=str(start), stages=stages)


def whole_views(network: NetworkSettings) -> list[str]:
    """The names of the candidate views that show the whole image."""
    return [view.name for view in network.candidates if view.is_whole]


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
    settings = after_the_backbone(options.run)
    runs = {"(the recipe as it is)": options.run}
    for number, variant in enumerate(variants(settings), start=1):
        if not options.only or any(word in variant.without for word in options.only):
            train_variant(options.run, variant, folder := place / str(number))
            runs[variant.without] = folder
    budgets = [f"{100 * share:.0f} % of the backbone's cost" for share in SHARES]
    rows = [["without", *budgets, "mean difference, points", "after each look, %"]]
    first: NDArray[np.float64] | None = None
    for name, folder in runs.items():
        right, costs, after_look = right_within(folder, options.data)
        mean = np.mean(right, axis=0)
        cells = [f"{100 * each.mean():.1f} ({cost / 1e6:.0f}M)" for each, cost in zip(right, costs, strict=True)]
        looks = " / ".join(f"{100 * accuracy:.1f}" for accuracy in after_look)
        rows.append([name, *cells, "" if first is None else difference(mean, first), looks])
        first = mean if first is None else first
        print(json.dumps({"without": name, "after_look": after_look}), file=sys.stderr)
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
