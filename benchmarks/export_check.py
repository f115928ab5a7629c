"""Compares every export of a trained `signs` network with the network, and runs its predict.py in an environment without torch.

    gf demo -o demo && make environment-executorch environment-litert
    python benchmarks/export_check.py demo/run/bundle --write docs/results.md

The phone runtimes run in environments of their own; where one was not made, its row is empty.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

from results import machine, markdown_table, write_section

from glancefocus.bundle.bundle import load
from glancefocus.export.compare import Sample, open_sample

ROOT = Path(__file__).parent.parent
WITHOUT_TORCH = ("onnxruntime", "numpy", "Pillow")
EXPORTS = (
    ("onnx", False),
    ("onnx", True),
    ("openvino", False),
    ("openvino", True),
    ("executorch", False),
    ("litert", False),
)


def interpreter(to: str) -> Path:
    """The Python interpreter that a format is exported with."""
    return ROOT / f".venv-{to}" / "bin" / "python" if to in ("executorch", "litert") else Path(sys.executable)


def export(python: Path, bundle: Path, folder: Path, to: str, int8: bool, count: int) -> dict[str, Any]:
    """What `gf export --json` prints."""
    words = ["export", bundle, "--to", to, "-o", folder, "--images", "signs", "--max-images", count, "--json"]
    words += ["--int8", "--calibrate", "signs"] if int8 else []
    command = [str(python), "-m", "glancefocus.cli.main", *map(str, words)]
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, env=surroundings, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


def row(to: str, int8: bool, printed: dict[str, Any] | None) -> list[str]:
    """One line of the table; None: the environment was not made."""
    name = f"{to}{', int8' if int8 else ''}"
    if printed is None:
        return [name, "environment not made", *[""] * 5]
    found = printed["compared"]["ways"]["stopping above thresholds"]
    before, after = (100 * found[f"accuracy_{when}"] for when in ("before", "after"))
    return [
        name,
        *(str(found[key]) for key in ("images", "same_answers", "same_looks")),
        f"{found['confidence_difference']:.1e}",
        f"{before:.1f} → {after:.1f}",
        f"{printed['bytes'] / 1e6:.2f}",
    ]


def one_graph_row(printed: dict[str, Any]) -> list[str]:
    """The row of looks.onnx, where the export has one."""
    found = printed["one_graph"]["compared"]
    counts = [str(found[key]) for key in ("images", "same_answers", "same_looks")]
    return ["onnx, all looks in one graph", *counts, f"{found['confidence_difference']:.1e}", "", ""]


def fresh_environment(folder: Path) -> Path:
    """The interpreter of a new environment with the packages that predict.py needs, and no others."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", *WITHOUT_TORCH], check=True)
    return python


def without_torch(python: Path, exported: Path, bundle_folder: Path, sample: Sample, place: Path) -> dict[str, Any]:
    """Run predict.py with this interpreter on the pictures as files, and compare it with the bundle."""
    place.mkdir()
    files = []
    for number, frames in enumerate(frames for batch in sample.batches() for frames in batch):
        files.append(place / f"{number:05}.png")
        frames[0].save(files[-1])
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    absent = [
        python,
        "-c",
        "import importlib.util as u; print([n for n in ('torch', 'glancefocus') if u.find_spec(n)])",
    ]
    found = subprocess.run(absent, capture_output=True, text=True, check=True, env=clean).stdout.strip()
    if found != "[]":
        raise SystemExit(f"the fresh environment is not without torch: it has {found}")
    command = [python, exported / "predict.py", place]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=clean)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    outcome = load(bundle_folder, device="cpu").predict(files)
    return {
        "images": len(lines),
        "same_answers": sum(line["label"] == label for line, label in zip(lines, outcome.label, strict=True)),
        "same_looks": sum(line["looks"] == looks for line, looks in zip(lines, outcome.looks.tolist(), strict=True)),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--only", nargs="*", help="formats; default: all")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args(arguments)
    rows = [["export", "images", "same answers", "same looks", "confidence differs by", "accuracy, %", "MB"]]
    with tempfile.TemporaryDirectory() as place:
        for to, int8 in EXPORTS:
            if options.only and to not in options.only:
                continue
            python, folder = interpreter(to), Path(place) / f"{to}{'-int8' if int8 else ''}"
            printed = export(python, options.bundle, folder, to, int8, options.images) if python.exists() else None
            rows.append(row(to, int8, printed))
            if printed is not None and printed.get("one_graph") is not None:
                rows.append(one_graph_row(printed))
        exported = Path(place) / "onnx"
        if not exported.exists():
            export(interpreter("onnx"), options.bundle, exported, "onnx", False, options.images)
        sample = open_sample(load(options.bundle, device="cpu"), "signs").at_most(options.images)
        python = fresh_environment(Path(place) / "fresh")
        alone = without_torch(python, exported, options.bundle, sample, Path(place) / "pictures")
    body = (
        f"Each export beside the eager network on test scenes of `signs`, stopping above thresholds:\n\n{markdown_table(rows)}\n\n"
        f"`predict.py` of the ONNX export in a fresh environment with {', '.join(WITHOUT_TORCH)} and no torch: "
        f"{alone['same_answers']} of {alone['images']} answers and {alone['same_looks']} numbers of looks are those of the bundle."
    )
    print(body)
    if options.write:
        write_section(
            options.write,
            "export",
            title="Exports: the same answers and looks on other runtimes",
            command="python benchmarks/export_check.py demo/run/bundle --write docs/results.md",
            machine=machine(),
            body=body,
        )


if __name__ == "__main__":
    main()
