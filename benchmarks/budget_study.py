"""Thresholds for budgets on a trained `signs` network: solvers compared, exit scores compared, and the cost that really occurs.

    gf demo -o demo && python benchmarks/budget_study.py demo/run/bundle --write docs/results.md

Thresholds are chosen on the validation scenes and measured on the test scenes, which chose nothing.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from results import machine, markdown_table, write_section

from glancefocus.bundle.bundle import load
from glancefocus.data.splits import MemorySplit
from glancefocus.evaluation.assess import assess, look_table
from glancefocus.evaluation.records import Records, looks_folder
from glancefocus.exits.one_size import direct_curve, geometric_within
from glancefocus.exits.table import LookTable, Thresholds
from glancefocus.loop import SCORES

BUDGETS = 20


def right(table: LookTable, thresholds: Thresholds) -> NDArray[np.bool_]:
    """(N,) whether each image is answered rightly with these thresholds."""
    return table.correct[np.arange(len(table)), table.exits(thresholds)]


def difference(one: NDArray[np.bool_], two: NDArray[np.bool_], draws: int = 2000) -> tuple[float, float, float]:
    """Accuracy of one less that of two on the same images, with the 95 % interval of a paired bootstrap."""
    gap = one.astype(np.int64) - two.astype(np.int64)
    rows = np.random.default_rng(0).integers(0, len(gap), (draws, len(gap)))
    low, high = np.quantile(gap[rows].mean(axis=1), [0.025, 0.975])
    return float(gap.mean()), float(low), float(high)


def solvers(val: LookTable, test: LookTable) -> tuple[str, dict[str, int]]:
    """Direct against geometric at evenly spaced budgets, on the images that chose and on those that did not."""
    budgets = np.linspace(val.cheapest, val.dearest, BUDGETS + 2)[1:-1].tolist()
    rows = [
        [
            "budget, M",
            "geometric, val %",
            "direct, val %",
            "geometric, test %",
            "direct, test %",
            "difference (95 %)",
            "cost, test M",
        ]
    ]
    below_on_val, clearly_below_on_test = 0, 0
    for budget, direct in zip(budgets, direct_curve(val, budgets), strict=True):
        rule = geometric_within(val, budget)
        own = [100 * float(right(table, t).mean()) for table in (val, test) for t in (rule, direct)]
        mean, low, high = difference(right(test, direct), right(test, rule))
        below_on_val += own[1] < own[0]
        clearly_below_on_test += high < 0
        cost = test.point(direct)["mean_macs"] / 1e6
        rows.append([
            f"{budget / 1e6:.2f}", *(f"{value:.1f}" for value in own),
            f"{100 * mean:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})", f"{cost:.2f}",
        ])  # fmt: skip
    return markdown_table(rows), {"below_on_val": below_on_val, "clearly_below_on_test": clearly_below_on_test}


def scores(findings: dict[str, list[dict[str, Any]]]) -> tuple[str, int]:
    """The paper's table: exit criteria by budgets; and at how many budgets confidence does not beat random exits."""
    budgets = [point["budget_macs"] for point in findings["confidence"]]
    rows = [["exit score", *(f"{budget / 1e6:.1f}M" for budget in budgets)]]
    for score in ("random", *(s for s in SCORES if s not in ("random", "confidence")), "confidence"):
        rows.append([score, *(f"{100 * point['accuracy']:.1f} %" for point in findings[score])])
    pairs = zip(findings["confidence"], findings["random"], strict=True)
    return markdown_table(rows), sum(sure["accuracy"] <= chance["accuracy"] for sure, chance in pairs)


def real_costs(folder: Path, split: MemorySplit, budgets: list[float]) -> str:
    """`gf predict` over a folder of the test scenes with each budget: what it really cost on average."""
    rows = [["budget, M", "average cost of the folder, M", "ratio", "right, %"]]
    with tempfile.TemporaryDirectory() as place:
        names = {}
        for index in range(len(split)):
            name = str(Path(place) / f"{index:05d}.png")
            names[name] = int(split.labels[index])
            Image.fromarray(split.images[index].permute(1, 2, 0).numpy()).save(name)
        classes = load(folder).classes
        for budget in budgets:
            command = [
                sys.executable,
                "-m",
                "glancefocus.cli.main",
                "predict",
                str(folder),
                place,
                "--budget-macs",
                str(budget),
                "--json",
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            answers = json.loads(done.stdout)
            cost = float(np.mean([a["cost_macs"] for a in answers]))
            share = np.mean([a["label"] == classes[names[a["file"]]] for a in answers])
            rows.append([f"{budget / 1e6:.2f}", f"{cost / 1e6:.2f}", f"{cost / budget:.3f}", f"{100 * share:.1f}"])
    return markdown_table(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    bundle = load(options.bundle)
    records = Records(bundle, "signs", looks_folder(options.bundle))
    val, test = look_table(bundle, records.of("val")), look_table(bundle, records.of("test"))
    findings = assess(bundle, records.of("test"), records.of("val"))
    solver_table, counts = solvers(val, test)
    score_table, not_better = scores(findings.scores)
    split = records.splits["test"]
    assert isinstance(split, MemorySplit)
    saturated = max(point["mean_macs"] for point in bundle.curve)
    budgets = [float(b) for b in np.linspace(val.cheapest, min(saturated, val.dearest), 7)[1:-1]]
    body = (
        f"Direct against geometric solver at {BUDGETS} budgets, chosen on {len(val)} validation scenes, measured on {len(test)} "
        f"test scenes:\n\n{solver_table}\n\nOn the scenes that chose, the direct solver is below the geometric rule at "
        f"{counts['below_on_val']} of {BUDGETS} budgets; on the test scenes its whole interval is below at "
        f"{counts['clearly_below_on_test']}.\n\nExit scores (thresholds solved in the same way for each, on the validation scenes; "
        f"value: the critic's, its aim is paid for):\n\n{score_table}\n\nConfidence is not better than random exits at "
        f"{not_better} of {len(findings.scores['random'])} budgets.\n\n`gf predict FOLDER --budget-macs` over the "
        f"{len(test)} test scenes as files:\n\n{real_costs(options.bundle, split, budgets)}"
    )
    print(body)
    if options.write:
        write_section(
            options.write,
            "budgets",
            title="Budgets: solvers, exit scores, and the cost that really occurs",
            command="python benchmarks/budget_study.py demo/run/bundle --write docs/results.md",
            machine=machine(),
            body=body,
        )


if __name__ == "__main__":
    main()
