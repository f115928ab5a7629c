"""Measures finished training runs on their test images and writes the results into docs/results.md.

    gf train DATA ... -o runs/x
    python benchmarks/run_results.py runs/x --name x --title "..." --command "gf train ..." --write docs/results.md

Learnt against random and centre-corner aims after each look, and multiply-adds against the run's own plain backbone at equal
accuracy.
Several runs (seeds) give mean and range. What was measured is kept in each run's folder, so a second call only writes.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from demo_results import summary_of, table_of
from results import machine, write_section

from glancefocus.bundle.bundle import Bundle
from glancefocus.cli.demo import report_run
from glancefocus.data.sources import open_data
from glancefocus.data.splits import MemorySplit
from glancefocus.evaluation.every_look import backbone_accuracy, compare
from glancefocus.machine import keep_freed_memory
from glancefocus.network.macs import count_costs
from glancefocus.training.run import load_backbone
from glancefocus.training.settings import TrainSettings
from glancefocus.values import from_plain


def measure(run: Path) -> dict[str, Any]:
    """The comparison of a finished run with its rivals on its test images."""
    kept = run / "result.json"
    if kept.exists():
        found: dict[str, Any] = json.loads(kept.read_text())
        return found
    settings = from_plain(TrainSettings, json.loads((run / "settings.json").read_text()))
    bundle = Bundle.load(run / "bundle")
    data = open_data(settings.data, settings.network.view, frames=settings.network.frames)
    if data.test is None:
        raise SystemExit(f"{run}: its data has no test images")
    if isinstance(data.test, MemorySplit):
        comparison = report_run(bundle, settings, run, run / "test-report")
    else:
        plain = load_backbone(settings, run)
        accuracy = None if plain is None else backbone_accuracy(plain, data.test)
        comparison = compare(bundle, data.test, accuracy)
    result = {**comparison.to_plain(), "images": len(data.test), "seconds": trained_seconds(run)}
    kept.write_text(json.dumps(result))
    return result


def shrunk(run: Path, sizes: list[int]) -> list[dict[str, float]]:
    """Accuracy and cost of the plain backbone on images shrunk to each of these sizes."""
    kept = run / "shrunk.json"
    if kept.exists():
        found: list[dict[str, float]] = json.loads(kept.read_text())
        return found
    settings = from_plain(TrainSettings, json.loads((run / "settings.json").read_text()))
    data = open_data(settings.data, settings.network.view, frames=settings.network.frames)
    plain = load_backbone(settings, run)
    assert data.test is not None
    assert plain is not None
    measured = [
        {
            "px": px,
            "accuracy": backbone_accuracy(plain, data.test, px=px),
            "macs": count_costs(replace(settings.network, glance_px=px)).encoder_with_head_macs,
        }
        for px in sizes
    ]
    kept.write_text(json.dumps(measured))
    return measured


def chosen_of(result: dict[str, Any], run: str = "the run") -> str:
    """The result of the run's own thresholds, and whether it differs significantly from the backbone."""
    chosen, backbone = result["chosen"], result["backbone_accuracy"]
    sentence = (
        f"The thresholds that {run} chose on its validation images: {100 * chosen['accuracy']:.1f} % with "
        f"{chosen['mean_macs'] / 1e6:.2f}M multiply-adds on average, {result['backbone_macs'] / chosen['mean_macs']:.1f} times "
        "fewer than the backbone."
    )
    if backbone is None or chosen.get("accuracy_low") is None:
        return sentence
    low, high = chosen["accuracy_low"], chosen["accuracy_high"]
    within = "lies within it" if low <= backbone <= high else "lies below it" if backbone < low else "lies above it"
    return f"{sentence} Its 95 % interval is {100 * low:.1f} to {100 * high:.1f} %; the backbone's accuracy {within}."


def looks_of_ratio(result: dict[str, Any]) -> str:
    """The fixed number of looks that reaches the backbone's accuracy, as a sentence; empty if none does."""
    ratio = result["mac_ratio_at_backbone_accuracy"]
    for looks, macs in enumerate(result["macs_after_look"], start=1):
        if ratio is not None and abs(result["backbone_macs"] / macs - ratio) < 1e-9:
            return f" That is with {looks} looks at every image."
    return ""


def trained_seconds(run: Path) -> float:
    """From the first settings to the finished bundle."""
    return (run / "bundle" / "bundle.json").stat().st_mtime - (run / "settings.json").stat().st_mtime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--name", required=True)
    parser.add_argument("--title", required=True)
    parser.add_argument("--command", required=True, help="how the runs were trained")
    parser.add_argument("--about", default="", help="a sentence on the data")
    parser.add_argument("--object", default="sign", help="what the boxes of the data hold")
    parser.add_argument(
        "--shrunk-px", nargs="*", type=int, default=[], help="also the backbone on images of these sizes"
    )
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    keep_freed_memory()
    results = [measure(run) for run in options.runs]
    body = f"{options.about}\n\n{table_of(results, options.object)}\n\n{summary_of(results)} "
    body += f"Measured on {results[0]['images']:,} test images."
    body += looks_of_ratio(results[0])
    body += "\n\n" + chosen_of(results[0], "the run" if len(results) == 1 else "the first run")
    for point in shrunk(options.runs[0], options.shrunk_px) if options.shrunk_px else []:
        body += (
            f"\n\nThe same backbone on images shrunk to {point['px']} px: {100 * point['accuracy']:.1f} % with "
            f"{point['macs'] / 1e6:.1f}M multiply-adds."
        )
    print(body)
    if options.write:
        write_section(
            options.write,
            options.name,
            title=options.title,
            command=options.command,
            machine=machine(),
            body=body,
        )


if __name__ == "__main__":
    main()
