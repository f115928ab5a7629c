"""`gf demo`: the whole story on the built-in world. Train, compare, draw, report."""

import json
import time
from pathlib import Path
from typing import Any

from rich.table import Table

from glancefocus.bundle import Bundle
from glancefocus.commands.printing import notice, output, print_verdict, say
from glancefocus.data.datasets import open_data
from glancefocus.data.splits import MemorySplit
from glancefocus.errors import BadData
from glancefocus.evaluation.comparison import Comparison, compare
from glancefocus.evaluation.every_look import backbone_accuracy
from glancefocus.evaluation.report import gallery_of, write_report
from glancefocus.memory import keep_freed_memory
from glancefocus.training.backbones import load_backbone
from glancefocus.training.checkpoint import write_run_file
from glancefocus.training.recipes import train_settings
from glancefocus.training.run import train
from glancefocus.training.run_folder import run_farewell
from glancefocus.training.settings import TrainSettings


def run_demo(folder: Path, *, seed: int, as_json: bool) -> None:
    """Train on `signs`, measure on scenes that no weight and no threshold was chosen on, print one table, write one page."""
    keep_freed_memory()
    started = time.monotonic()
    settings = train_settings("signs", changes={"seed": seed})
    with run_farewell(folder / "run"):
        bundle = train(settings, folder / "run", quiet=as_json, planned=True)
        comparison = report_run(bundle, settings, folder / "run", folder / "report.html")
        seconds, verdict = time.monotonic() - started, bundle.notes.get("verdict")
        result = json.dumps({**comparison.to_plain(), "verdict": verdict, "seconds": round(seconds, 1)})
        write_run_file(folder / "result.json", lambda stream: stream.write(result.encode()))
    if as_json:
        print(result)  # noqa: T201
        return
    print_comparison(comparison)
    if verdict is not None:
        print_verdict(verdict)
    notice(f"{seconds:.0f} s. Open {folder / 'report.html'} in a browser.")


def report_run(bundle: Bundle, settings: TrainSettings, run: Path, page: Path) -> Comparison:
    """Compare a finished run with what it must beat, on its test split, and write the page."""
    data = open_data(settings.data, settings.network.view, frames=settings.network.frames)
    split = data.test or data.val
    if not isinstance(split, MemorySplit):
        raise BadData("a report with a gallery needs images held in memory. Train with --in-memory.")
    plain = load_backbone(settings, run)
    accuracy = None if plain is None else backbone_accuracy(plain, split)
    comparison = compare(bundle, split, accuracy)
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    view = settings.network.view
    write_report(
        page,
        title=f"glancefocus on {settings.data.source}",
        comparison=comparison,
        gallery=gallery_of(bundle, split, bundle.exit_rule()),
        metrics=metrics,
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
