"""`gf demo`: trains on the built-in data set `signs`, compares, and writes a report."""

import json
import time
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table

from glancefocus.cli.main import Json, OutputName, command_options, output
from glancefocus.cli.printing import notice, print_line, print_verdict
from glancefocus.errors import BadData
from glancefocus.files import write_file
from glancefocus.values import Seed

if TYPE_CHECKING:
    from glancefocus.bundle.bundle import Bundle
    from glancefocus.data.splits import MemorySplit
    from glancefocus.evaluation.every_look import Comparison
    from glancefocus.training.settings import TrainSettings

SCENES_PER_CLASS = 4
"""Test images of each class that are written as files, to try `gf predict` on."""


@command_options
@dataclass(frozen=True)
class DemoOptions:
    """Options of `gf demo`."""

    _: KW_ONLY
    output: Annotated[Path | None, OutputName] = None
    """The folder to write. A demo that was stopped continues there. Default: the run and its bundle go to runs/signs, as with
    `gf train signs`; the report and some images to try go to demo/."""
    seed: Seed = 0
    """Seed of all random numbers. Another seed gives another run."""
    json: Json = False


def demo(options: DemoOptions = DemoOptions()) -> None:  # noqa: B008, cyclopts needs a default if no option is required
    """Try everything on the built-in data set: train, compare, draw, report. Nothing is downloaded; minutes on two cores.

    Example: gf demo
    """
    from glancefocus.evaluation.verdict import read_verdict
    from glancefocus.machine import keep_freed_memory
    from glancefocus.training.checkpoint import write_run_file
    from glancefocus.training.run import train
    from glancefocus.training.run_folder import BUNDLE_FOLDER, asked_for, choose_run, run_stop_message

    asked = asked_for({"data": "signs", "seed": options.seed or None})  # the same run as `gf train signs`
    chosen = choose_run(asked, "signs", None if options.output is None else options.output / "run")
    run, folder = chosen.folder, options.output or Path("demo")
    keep_freed_memory()
    started = time.monotonic()
    settings = chosen.settings or demo_settings(options.seed)
    with run_stop_message(run):
        bundle = train(settings, run, asked=asked, quiet=options.json, planned=True)
        comparison = report_run(bundle, settings, run, folder)
        scene = write_scenes(bundle, settings, folder / "scenes")
        seconds, verdict = time.monotonic() - started, bundle.notes.get("verdict")
        result = json.dumps(
            {**comparison.to_plain(), "verdict": verdict, "seconds": round(seconds, 1)}, allow_nan=False
        )
        write_run_file(folder / "result.json", lambda stream: stream.write(result.encode()))
    if options.json:
        print(result)
        return
    print_comparison(comparison)
    if verdict is not None:
        print_verdict(read_verdict(verdict))
    notice(
        f"{seconds:.0f} s. Open {folder / 'report.html'} in a browser, or try: gf predict {run / BUNDLE_FOLDER} {scene}"
    )


def demo_settings(seed: int) -> "TrainSettings":
    """The settings of `gf train signs`."""
    from glancefocus.training.recipes import train_settings

    return train_settings("signs", changes={"seed": seed})


def write_scenes(bundle: "Bundle", settings: "TrainSettings", folder: Path) -> Path:
    """Write the first test images of each class as folder/CLASS/1.png, ...; returns one of them that shows a sign."""
    from PIL import Image

    split = _shown(settings)
    for number, name in enumerate(bundle.classes):
        (folder / name).mkdir(parents=True, exist_ok=True)
        rows = (split.labels == number).nonzero()[:SCENES_PER_CLASS, 0].tolist()
        for place, row in enumerate(rows, start=1):
            picture = Image.fromarray(split.images[row].permute(1, 2, 0).contiguous().numpy())
            write_file(folder / name / f"{place}.png", partial(picture.save, format="PNG"))
    return folder / bundle.classes[-1] / "1.png"


def _shown(settings: "TrainSettings") -> "MemorySplit":
    """The images of the report: the test split, or without one the validation split."""
    from glancefocus.data.sources import open_data
    from glancefocus.data.splits import MemorySplit

    data = open_data(settings.data, settings.network.view, frames=settings.network.frames)
    split = data.test or data.val
    if not isinstance(split, MemorySplit):
        raise BadData("a report with a gallery needs images held in memory. Train with --in-memory.")
    return split


def report_run(bundle: "Bundle", settings: "TrainSettings", run: Path, folder: Path) -> "Comparison":
    """Compare a finished run with its backbone and with other aims, on its test split, and write the report into the folder."""
    from glancefocus.evaluation.assess import assess
    from glancefocus.evaluation.every_look import backbone_accuracy, compare, noted_aims
    from glancefocus.evaluation.records import looks_folder, record_looks
    from glancefocus.evaluation.report import Training, noted_images, read_training_curves, write_report
    from glancefocus.evaluation.verdict import noted_verdict
    from glancefocus.training.run import load_backbone
    from glancefocus.training.run_folder import BUNDLE_FOLDER

    split, source = _shown(settings), settings.data.source
    plain = load_backbone(settings, run)
    comparison = compare(bundle, split, None if plain is None else backbone_accuracy(plain, split))
    record = record_looks(bundle, split, looks_folder(run / BUNDLE_FOLDER), source=source, name="test")
    findings = replace(assess(bundle, record), aims=noted_aims(bundle.notes), verdict=noted_verdict(bundle.notes))
    write_report(
        folder,
        findings,
        bundle,
        title=f"glancefocus on {source}",
        record=record,
        split=split,
        training=Training(read_training_curves(run), noted_images(bundle.notes)),
        comparison=comparison,
    )
    return comparison


def print_comparison(comparison: "Comparison") -> None:
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
        print_line(
            f"plain backbone on the whole image: {100 * comparison.backbone_accuracy:.1f} % with "
            f"{comparison.backbone_macs / 1e6:.1f}M multiply-adds; glancefocus reaches that "
            + (f"with {ratio:.1f} times fewer" if ratio else "at no budget")
        )
