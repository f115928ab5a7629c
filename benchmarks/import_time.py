"""How long importing takes: `import glancefocus` against `import torch, timm`, and `gf --help`, each in a fresh interpreter.

python benchmarks/import_time.py
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path

from results import machine, markdown_table, write_section

BASELINE = "import torch, timm"
# torchvision, which timm imports, is made whole first where its wheel does not fit torch; elsewhere that does nothing.
WHOLE = "from glancefocus.machine import ensure_torchvision; ensure_torchvision()"
EVERYTHING = "import glancefocus as gf; [getattr(gf, name) for name in gf.__all__]"

PROGRAMS: dict[str, list[str]] = {
    "python, nothing imported": ["-c", "pass"],
    BASELINE: ["-c", f"{WHOLE}; {BASELINE}"],
    "import glancefocus": ["-c", "import glancefocus"],
    "import glancefocus, every public name used": ["-c", EVERYTHING],
    "gf --help": ["-m", "glancefocus.cli.main", "--help"],
}


def measure(programs: dict[str, list[str]], rounds: int) -> dict[str, list[float]]:
    """{name: seconds of the whole process in each round}; the programs take turns, and a first round is not counted."""
    times: dict[str, list[float]] = {name: [] for name in programs}
    for number in range(-1, rounds):
        for name, arguments in programs.items():
            started = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            if number >= 0:
                times[name].append(time.perf_counter() - started)
    return times


def summarise(times: dict[str, list[float]], baseline: str = BASELINE) -> list[dict[str, float | str]]:
    """One row a program: median, fastest and slowest in seconds, and the ratio of its median to the baseline's."""
    against = statistics.median(times[baseline])
    return [
        {
            "program": name,
            "median_s": statistics.median(values),
            "low_s": min(values),
            "high_s": max(values),
            "ratio": statistics.median(values) / against,
        }
        for name, values in times.items()
    ]


def table(rows: list[dict[str, float | str]]) -> str:
    cells = [["program", "seconds", "fastest to slowest", f"of `{BASELINE}`"]]
    for row in rows:
        cells.append(
            [
                f"`{row['program']}`",
                f"{row['median_s']:.2f}",
                f"{row['low_s']:.2f} to {row['high_s']:.2f}",
                f"{row['ratio']:.3f}",
            ]
        )
    return markdown_table(cells)


def main(arguments: list[str] | None = None) -> None:
    words = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description="How long importing takes, in fresh interpreters.")
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds; every program once in each")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--write", type=Path, help="put the table into this file, such as docs/results.md")
    chosen = parser.parse_args(words)
    if chosen.rounds < 1:
        parser.error("at least one round is needed")

    rows = summarise(measure(PROGRAMS, chosen.rounds))
    print(json.dumps(rows, indent=1) if chosen.json else table(rows))
    if chosen.write is not None:
        body = (
            f"Medians of {chosen.rounds} rounds in which the programs take turns, each in a fresh interpreter whose start is "
            f"counted too. Public names are imported when they are first used.\n\n{table(rows)}"
        )
        write_section(
            chosen.write,
            "import_time",
            title="Time of importing",
            command=shlex.join(["python", "benchmarks/import_time.py", *words]),
            machine=machine(),
            body=body,
        )


if __name__ == "__main__":
    main()
