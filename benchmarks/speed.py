"""`gf bench` of three networks: how much of the multiply-adds saved reaches the clock, and how fast the best runtime is.

python benchmarks/speed.py --bundle demo/run/bundle --write docs/results.md
"""

import argparse
import itertools
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from results import machine, markdown_table, write_section

from glancefocus.cli.bench import BenchOptions, bundle_subject, preset_subject
from glancefocus.evaluation.latency import SHARES
from glancefocus.evaluation.wall_clock import Subject, bench, images_needed, usual_cases
from glancefocus.runtime.choose import runtime_words

# (batch, threads): many images on two cores, and one on a phone.
SETTINGS = ((64, 2), (1, 1))
# What at least one runtime should reach: {network: {batch: quotient}}.
GOALS: dict[str, dict[int, float]] = {
    "gf-resnet50-96": {64: 0.95, 1: 0.8},
    "gf-mobilenetv3-large-100-96": {64: 0.8},
}


def subjects(bundle: Path | None, data: str) -> dict[str, Subject]:
    """{name: who is measured}"""
    most = max(images_needed(batch) for batch, _ in SETTINGS)
    found = {}
    if bundle is not None:
        found["signs, trained"] = bundle_subject(bundle, BenchOptions(str(bundle), data), most, lambda *progress: None)
    found["gf-resnet50-96"] = preset_subject(BenchOptions("gf-resnet50-96", light_policy=True), most)
    name = "gf-mobilenetv3-large-100-96"
    found[name] = preset_subject(BenchOptions(name), most)
    return found


def measure(named: dict[str, Subject], runtimes: list[str] | None, rounds: int) -> list[dict[str, Any]]:
    """One row for every network, runtime and setting; with int8 weights beside float ones where a runtime has them."""
    rows = []
    for name, subject in named.items():
        device = next(subject.net.parameters()).device
        for batch, threads in SETTINGS:
            both = [usual_cases(runtimes, [batch], threads, device, light) for light in (False, True)]
            for case in dict.fromkeys(itertools.chain(*both)):
                timing = bench(subject, case, rounds=rounds)
                rows.append({"network": name, **timing.to_plain()})
                print(f"{name} {timing.runtime_words} {batch} {timing.quotient:.2f}", file=sys.stderr)
    return rows


def runtime_of(row: dict[str, Any]) -> str:
    return runtime_words(row["runtime"], light_weights=row["light_weights"])


def ratio_table(rows: list[dict[str, Any]]) -> str:
    cells = [
        [
            "network",
            "runtime",
            "batch",
            "threads",
            "backbone ms",
            "glancefocus ms",
            "fewer macs",
            "less time",
            "quotient",
        ]
    ]
    for row in rows:
        cells.append(
            [
                row["network"],
                runtime_of(row),
                str(row["batch"]),
                str(row["threads"]),
                f"{row['backbone_ms']:.2f} ({row['backbone_ms_low']:.2f} to {row['backbone_ms_high']:.2f})",
                f"{row['glancefocus_ms']:.2f} ({row['glancefocus_ms_low']:.2f} to {row['glancefocus_ms_high']:.2f})",
                f"{row['mac_ratio']:.2f}",
                f"{row['time_ratio']:.2f}",
                f"{row['quotient']:.2f}",
            ]
        )
    return markdown_table(cells)


def share_table(rows: list[dict[str, Any]]) -> str:
    cells = [["network", "runtime", "batch", *(f"{name.replace('_', ' ')}, %" for name in SHARES), "ms of each look"]]
    for row in rows:
        shares = [f"{100 * row['shares'][name]:.1f}" for name in SHARES]
        looks = " / ".join(f"{ms:.2f}" for ms in row["ms_per_look"])
        cells.append([row["network"], runtime_of(row), str(row["batch"]), *shares, looks])
    return markdown_table(cells)


def verdicts(rows: list[dict[str, Any]]) -> list[str]:
    """A sentence for every network and setting: the fastest runtime, its quotient and overhead, and torch as it comes beside it."""
    told = []
    for name, batch in dict.fromkeys((row["network"], row["batch"]) for row in rows):
        own = [row for row in rows if (row["network"], row["batch"]) == (name, batch)]
        best = max(own, key=lambda row: row["quotient"])
        fastest = min(own, key=lambda row: row["glancefocus_ms"])
        goal = GOALS.get(name, {}).get(batch)
        wanted = "" if goal is None else f" (wanted: at least {goal})"
        overhead = 1 - fastest["shares"]["encoder_and_classifier"]
        sentence = (
            f"{name}, batch {batch}: the fastest is {runtime_of(fastest)}, with a quotient of {fastest['quotient']:.2f}{wanted}; "
            f"{100 * overhead:.1f} % of its time is not encoder or classifier"
        )
        plain = next((row for row in own if row["runtime"] == "plain"), None)
        if plain is not None:
            sentence += (
                f"; it is {plain['glancefocus_ms'] / fastest['glancefocus_ms']:.1f} times as fast as torch as it comes"
            )
        if best is not fastest:
            sentence += f"; the best quotient is {best['quotient']:.2f}, by {runtime_of(best)}"
        tuned = max((row for row in own if row["runtime"] != "plain"), key=lambda row: row["quotient"], default=best)
        if tuned not in (best, fastest):
            sentence += f", and without torch as it comes {tuned['quotient']:.2f}, by {runtime_of(tuned)}"
        told.append(sentence + ".")
    return told


def main(arguments: list[str] | None = None) -> None:
    words = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description="`gf bench` of three networks.")
    parser.add_argument("--bundle", type=Path, help="a trained network, beside its backbone.safetensors")
    parser.add_argument("--data", default="signs", help="what it was trained on")
    parser.add_argument("--runtimes", nargs="+", help="instead of all that are installed")
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--write", type=Path, help="put the tables into this file, such as docs/results.md")
    chosen = parser.parse_args(words)

    rows = measure(subjects(chosen.bundle, chosen.data), chosen.runtimes, chosen.rounds)
    body = (
        "What `gf bench` measures: milliseconds an image, medians of "
        f"{chosen.rounds} rounds in which backbone and glancefocus take turns, with quartiles; ratios are taken within each round. "
        "Quotient: 1 where all of the saving in multiply-adds reaches the clock. The trained network has the thresholds that "
        "make it as accurate as its backbone; the presets have made-up weights and the paper's shares of exits (ResNet-50 with the "
        f"light policy).\n\n{ratio_table(rows)}\n\nWhere the time of glancefocus goes:\n\n{share_table(rows)}\n\n"
        + "\n".join(f"- {sentence}" for sentence in verdicts(rows))
    )
    print(json.dumps(rows, indent=1) if chosen.json else body)
    if chosen.write is not None:
        write_section(
            chosen.write,
            "speed",
            title="Wall clock against the plain backbone",
            command=shlex.join(["python", "benchmarks/speed.py", *words]),
            machine=machine(),
            body=body,
        )


if __name__ == "__main__":
    main()
