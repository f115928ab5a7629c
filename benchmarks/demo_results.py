"""Writes what finished demos measured into docs/results.md, and one table into the README.

    gf demo -o demo && python benchmarks/demo_results.py demo --write docs/results.md --readme README.md

Several demos (other seeds) give mean and range. A demo leaves what it measured in result.json.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from results import machine, markdown_table, markers, write_section


def percent(values: list[float]) -> str:
    """One value, or the mean and the range of several."""
    mean = 100 * sum(values) / len(values)
    return f"{mean:.1f}" if len(values) == 1 else f"{mean:.1f} ({100 * min(values):.1f} to {100 * max(values):.1f})"


def table_of(results: list[dict[str, Any]], object_name: str = "sign") -> str:
    """Accuracy after each look for three ways of aiming, hits and costs."""
    looks = len(results[0]["accuracy_per_look"])
    names = {
        "accuracy_per_look": "learnt aims, accuracy %",
        "accuracy_per_look_random_aims": "random aims, accuracy %",
        "accuracy_per_look_centre_corner": "centre, then corners, accuracy %",
    }
    rows = [["", "glance", *(f"look {look}" for look in range(2, looks + 1))]]
    for key, name in names.items():
        rows.append([name, *(percent([r[key][look] for r in results]) for look in range(looks))])
    if results[0]["hit_rate_per_focus"] is not None:
        hits = [percent([r["hit_rate_per_focus"][look] for r in results]) for look in range(looks - 1)]
        rows.append([f"patches that hold the whole {object_name}, %", "", *hits])
        again = [percent([r["misses_seen_again"][look] for r in results]) for look in range(looks - 2)]
        rows.append(["patches at the same place after a miss, %", "", "", *again])
    rows.append(["multiply-adds, millions", *(f"{macs / 1e6:.2f}" for macs in results[0]["macs_after_look"])])
    return markdown_table(rows)


def summary_of(results: list[dict[str, Any]]) -> str:
    ratios = [r["mac_ratio_at_backbone_accuracy"] for r in results]
    shown = " / ".join("not reached" if ratio is None else f"{ratio:.1f}" for ratio in ratios)
    seconds = " / ".join(f"{r['seconds']:.0f}" for r in results)
    return (
        f"The same backbone on the whole image: {percent([r['backbone_accuracy'] for r in results])} % with "
        f"{results[0]['backbone_macs'] / 1e6:.1f}M multiply-adds. Times fewer multiply-adds at that accuracy or more: {shown}. "
        f"Seconds for everything: {seconds}."
    )


def readme_table(verdict: dict[str, Any]) -> str:
    """Accuracy, multiply-adds and milliseconds of the plain backbone, of smaller images, and of glancefocus."""
    ours = next(point for point in verdict["points"] if point["kind"] == "glancefocus")
    shown = [p for p in verdict["points"] if p["kind"] != "resized" or p["mean_macs"] >= ours["mean_macs"]]
    rows = [["", "accuracy, %", "multiply-adds, millions", "milliseconds"]]
    for point in shown:
        name = f"**{point['name']}**" if point is ours else point["name"]
        numbers = [f"{100 * point['accuracy']:.1f}", f"{point['mean_macs'] / 1e6:.1f}", f"{point['mean_ms']:.2f}"]
        rows.append([name, *numbers])
    return (
        f"{markdown_table(rows)}\n\n"
        f"The demo's network on {verdict['images']:,} held-out scenes, beside the same backbone on resized scenes and the best "
        "cascade of these. "
        f"Milliseconds: median for one image at a time ({verdict['device']}); for batches, other runtimes and larger networks see "
        "[Run it fast](docs/fast.md). All measurements, with their commands, are in [Results](docs/results.md)."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--name", default="demo", help="the section's name")
    parser.add_argument("--title", default="The demo: `signs`, from random initialisation to an adaptive network")
    parser.add_argument("--command", default="gf demo")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--readme", type=Path)
    options = parser.parse_args()
    results = [json.loads((folder / "result.json").read_text()) for folder in options.folders]
    body = f"{table_of(results)}\n\n{summary_of(results)}"
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
    if options.readme:
        start, end = markers(options.name)
        before, _, rest = options.readme.read_text(encoding="utf-8").partition(start)
        after = rest.partition(end)[2]
        table = readme_table(results[0]["verdict"])
        options.readme.write_text(f"{before}{start}\n{table}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
