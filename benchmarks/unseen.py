"""Runs of the usual recipe on small sets of photographs, beside their rivals on photographs that took no part in them.

    gf train birds/ --weights weights.pth -o runs/birds
    python benchmarks/unseen.py runs/birds=other-birds/ runs/pets=other-pets/ --write docs/results.md

The other photographs are in class folders of the same names. Thresholds, temperatures and the weights of looks are those of the
bundle, chosen on the run's own held-out photographs. The rivals are the backbone at one size and cascades of it with the run's own
encoders; the thresholds of a cascade are cross-fitted on the unseen photographs, which favours it.
"""

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

from first_run import evaluated, looks_words
from results import machine, markdown_table, write_section

HEAD = [
    "run",
    "learnt from",
    "unseen",
    "after each look, %",
    "own thresholds, %",
    "M",
    "backbone, %",
    "M",
    "rivals at that cost, %",
    "difference (95 %)",
]


def row_of(name: str, learnt_from: int, findings: dict[str, Any]) -> list[str]:
    """One row of the table, from the findings of `gf evaluate --json` on the unseen photographs."""
    verdict, chosen = findings["verdict"], findings["chosen"]
    backbone = next(point for point in verdict["points"] if point["kind"] == "backbone")
    low, mean, high = (100 * verdict[key] for key in ("difference_low", "difference", "difference_high"))
    return [
        name,
        f"{learnt_from:,}",
        f"{verdict['images']:,}",
        looks_words(findings),
        f"{100 * chosen['accuracy']:.1f}",
        f"{chosen['mean_macs'] / 1e6:.0f}",
        f"{100 * backbone['accuracy']:.1f}",
        f"{backbone['mean_macs'] / 1e6:.0f}",
        f"{100 * verdict['rival_accuracy']:.1f}",
        f"{mean:+.1f} ({low:+.1f} to {high:+.1f})",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN=UNSEEN", help="folders of runs and of unseen photographs")
    parser.add_argument("--about", default="", help="which photographs, and how the runs were made")
    parser.add_argument("--write", type=Path, help="put the table into this file, such as docs/results.md")
    asked = parser.parse_args()
    rows = [HEAD]
    for pair in asked.runs:
        run, _, unseen = pair.partition("=")
        bundle = Path(run) / "bundle"
        learnt_from = json.loads((bundle / "bundle.json").read_text())["notes"]["images"]["train"]
        rows.append(row_of(Path(run).name, learnt_from, evaluated(bundle, unseen)))
        print(markdown_table(rows), flush=True)
    body = f"{asked.about}\n\n{markdown_table(rows)}" if asked.about else markdown_table(rows)
    if asked.write is not None:
        command = shlex.join(["python", "benchmarks/unseen.py", *asked.runs])
        title = "Small sets of photographs, measured on unseen ones"
        write_section(asked.write, "unseen", title=title, command=command, machine=machine(), body=body)


if __name__ == "__main__":
    main()
