"""`gf demo`: the whole story on the built-in world. Train, compare, draw, report."""

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image
from rich.table import Table

from glancefocus.bundle.bundle import Bundle
from glancefocus.cli.printing import notice, output, print_verdict, say
from glancefocus.data.sources import open_data
from glancefocus.data.splits import MemorySplit
from glancefocus.errors import BadData
from glancefocus.evaluation.every_look import Comparison, backbone_accuracy, compare
from glancefocus.evaluation.report import gallery_of, write_report
from glancefocus.files import write_file
from glancefocus.free_memory import keep_freed_memory
from glancefocus.training.checkpoint import write_run_file
from glancefocus.training.journal import read_metrics
from glancefocus.training.recipes import train_settings
from glancefocus.training.run import load_backbone, train
from glancefocus.training.run_folder import BUNDLE_FOLDER, asked_for, choose_run, run_farewell
from glancefocus.training.settings import TrainSettings

SCENES_PER_CLASS = 4
"""Test scenes of each class are written as pictures, to try `gf predict` on."""


def run_demo(folder: Path | None, *, seed: int, as_json: bool) -> None:
    """Train on `signs`, measure on scenes that no weight and no threshold was chosen on, print one table, write one page.

    folder  for the run, the page and the pictures; None: the run goes where `gf train signs` puts it, the rest to demo/
    """
    asked = asked_for({"data": "signs", "seed": seed or None})  # as `gf train signs` is asked for
    chosen = choose_run(asked, "signs", None if folder is None else folder / "run")
    run, folder = chosen.folder, folder or Path("demo")
    keep_freed_memory()
    started = time.monotonic()
    settings = chosen.settings or train_settings("signs", changes={"seed": seed})
    with run_farewell(run):
        bundle = train(settings, run, asked=asked, quiet=as_json, planned=True)
        comparison = report_run(bundle, settings, run, folder / "report.html")
        scene = write_scenes(bundle, settings, folder / "scenes")
        seconds, verdict = time.monotonic() - started, bundle.notes.get("verdict")
        result = json.dumps(
            {**comparison.to_plain(), "verdict": verdict, "seconds": round(seconds, 1)}, allow_nan=False
        )
        write_run_file(folder / "result.json", lambda stream: stream.write(result.encode()))
    if as_json:
        print(result)
        return
    print_comparison(comparison)
    if verdict is not None:
        print_verdict(verdict)
    notice(
        f"{seconds:.0f} s. Open {folder / 'report.html'} in a browser, or ask: gf predict {run / BUNDLE_FOLDER} {scene}"
    )


def write_scenes(bundle: Bundle, settings: TrainSettings, folder: Path) -> Path:
    """Write the first test scenes of each class as folder/CLASS/1.png, ...; returns one that shows something."""
    split = _shown(settings)
    for number, name in enumerate(bundle.classes):
        (folder / name).mkdir(parents=True, exist_ok=True)
        rows = (split.labels == number).nonzero()[:SCENES_PER_CLASS, 0].tolist()
        for place, row in enumerate(rows, start=1):
            picture = Image.fromarray(split.images[row].permute(1, 2, 0).contiguous().numpy())
            write_file(folder / name / f"{place}.png", partial(picture.save, format="PNG"))
    return folder / bundle.classes[-1] / "1.png"


def _shown(settings: TrainSettings) -> MemorySplit:
    """The images that a report is about: the test split, or else the validation split."""
    data = open_data(settings.data, settings.network.view, frames=settings.network.frames)
    split = data.test or data.val
    if not isinstance(split, MemorySplit):
        raise BadData("a report with a gallery needs images held in memory. Train with --in-memory.")
    return split


def report_run(bundle: Bundle, settings: TrainSettings, run: Path, page: Path) -> Comparison:
    """Compare a finished run with what it must beat, on its test split, and write the page."""
    split = _shown(settings)
    plain = load_backbone(settings, run)
    accuracy = None if plain is None else backbone_accuracy(plain, split)
    comparison = compare(bundle, split, accuracy)
    metrics = read_metrics(run)
    view = settings.network.view
    write_report(
        page,
        title=f"glancefocus on {settings.data.source}",
        comparison=comparison,
        gallery=gallery_of(bundle, split, bundle.exit_rule()),
        metrics=[row.to_plain() for row in metrics],
        note=f"{len(split)} test images of {view.height_px}x{view.width_px} px that chose no weight or threshold; a glance at "
        f"{settings.network.glance_px} px, patches of {max(settings.network.patch_px)} px, up to {settings.network.looks} looks. "
        "Thresholds were chosen on the validation images.",
    )
    return comparison


def print_comparison(comparison: Comparison) -> None:
    """One table for people."""
    looks = len(comparison.accuracy_per_look)
    table = Table(title="accuracy after each look (%)")
    table.add_column("")
    for look in range(1, looks + 1):
        table.add_column("glance" if look == 1 else f"look {look}", justify="right")

    def row(name: str, values: list[Any], scale: float = 100.0) -> None:
        table.add_row(name, *[""] * (looks - len(values)), *(f"{scale * v:.1f}" for v in values))

    row("learnt aims", comparison.accuracy_per_look)
    row("random aims", comparison.accuracy_per_look_random_aims)
    row("centre, then corners", comparison.accuracy_per_look_centre_corner)
    if comparison.hit_rate_per_focus is not None:
        row("patches holding the sign (%)", comparison.hit_rate_per_focus)
    row("multiply-adds (millions)", comparison.macs_after_look, 1e-6)
    console = output()
    console.print(table)
    if comparison.backbone_accuracy is not None:
        ratio = comparison.mac_ratio_at_backbone_accuracy
        say(
            f"plain backbone on the whole image: {100 * comparison.backbone_accuracy:.1f} % with "
            f"{comparison.backbone_macs / 1e6:.1f}M multiply-adds; glancefocus reaches that "
            + (f"with {ratio:.1f} times fewer" if ratio else "at no budget")
        )
