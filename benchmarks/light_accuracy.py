"""What light weights cost in accuracy: the same bundle with float and with int8 weights, on the same test images.

    python benchmarks/light_accuracy.py runs/pets/bundle pets.csv --name "EfficientNet-Lite0 on Oxford pets" --write docs/results.md

Both ways of looking are recorded beside the bundle, so that a second call only writes.
"""

import argparse
import shlex
import sys
from pathlib import Path

from results import machine, markdown_table, write_section

from glancefocus.bundle.bundle import load
from glancefocus.evaluation.assess import look_table, own_thresholds, point_with_exits
from glancefocus.evaluation.records import Records, looks_folder


def row_of(bundle_folder: Path, data: str, runtime: str, light_weights: bool) -> tuple[int, list[str]]:
    """How many test images there are, and a row of the table."""
    bundle = load(bundle_folder, device="cpu", runtime=runtime, light_weights=light_weights)
    records = Records(bundle, data, looks_folder(bundle_folder), workers=0, max_bad_files=100, progress=None)
    name = records.first_of("test", "val", "all")
    if name is None:
        raise SystemExit(f"{data} has no images to measure on")
    table = look_table(bundle, records.of(name))
    point = point_with_exits(table, own_thresholds(bundle))
    stopping = (
        f"{100 * point['accuracy']:.2f} ({100 * point['accuracy_low']:.1f} to {100 * point['accuracy_high']:.1f})"
    )
    looks = [f"{100 * accuracy:.2f}" for accuracy in table.accuracy_after_look]
    return len(table), ["int8 where heavy" if light_weights else "float", *looks, stopping]


def main(arguments: list[str] | None = None) -> None:
    words = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description="Accuracy with light weights.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("data")
    parser.add_argument("--name", required=True, help="the network and its data, in words")
    parser.add_argument("--runtime", default="onnx")
    parser.add_argument("--write", type=Path, help="put the table into this file, such as docs/results.md")
    chosen = parser.parse_args(words)

    found = [row_of(chosen.bundle, chosen.data, chosen.runtime, light) for light in (False, True)]
    images, looks = found[0][0], len(found[0][1]) - 2
    header = ["weights", "glance", *(f"look {n}" for n in range(2, looks + 1)), "stopping above thresholds (95 %)"]
    body = f"{chosen.name}, {images:,} test images, runtime {chosen.runtime}; accuracy in %:\n\n" + markdown_table(
        [header, *(row for _, row in found)]
    )
    print(body)
    if chosen.write is not None:
        write_section(
            chosen.write,
            "light_accuracy",
            title="Light weights: what rounding costs",
            command=shlex.join(["python", "benchmarks/light_accuracy.py", *words]),
            machine=machine(),
            body=body,
        )


if __name__ == "__main__":
    main()
