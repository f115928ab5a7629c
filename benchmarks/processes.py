"""One training process against two with the same batch between them: what both reach on the test scenes of `signs`.

    gf train signs -o runs/one && gf train signs -o runs/two --processes 2
    python benchmarks/processes.py runs/one runs/two --write docs/results.md

Batch norms see half a batch in each of two processes, so the weights differ; the accuracy should not.
"""

import argparse
import math
from pathlib import Path

from results import machine, markdown_table, write_section
from run_results import measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("one", type=Path)
    parser.add_argument("two", type=Path)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    results = {"one process": measure(options.one), "two processes": measure(options.two)}
    looks = len(results["one process"]["accuracy_per_look"])
    rows = [["accuracy, %", "backbone", "glance", *(f"look {look}" for look in range(2, looks + 1))]]
    for name, result in results.items():
        shares = [result["backbone_accuracy"], *result["accuracy_per_look"]]
        rows.append([name, *(f"{100 * share:.1f}" for share in shares)])
    images = results["one process"]["images"]
    last = [result["accuracy_per_look"][-1] for result in results.values()]
    error = math.sqrt(sum(share * (1 - share) / images for share in last))
    body = (
        f"{markdown_table(rows)}\n\nMeasured on {images:,} test scenes. At the last look two processes differ from one by "
        f"{100 * (last[1] - last[0]):+.1f} points; one standard error of that difference is {100 * error:.1f}."
    )
    print(body)
    if options.write:
        write_section(
            options.write,
            "processes",
            title="One training process against two",
            command="gf train signs -o runs/one && gf train signs -o runs/two --processes 2",
            machine=machine(),
            body=body,
        )


if __name__ == "__main__":
    main()
