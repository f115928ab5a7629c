"""`gf export`: a folder of graphs that answers as the bundle does, and how that was found out."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from glancefocus.bundle.loading import load
from glancefocus.cli.printing import cell, output, progress_bars, say
from glancefocus.errors import BadSetting
from glancefocus.export.deliver import Int8, export_bundle
from glancefocus.export.formats import format_named


@dataclass(frozen=True)
class ExportAsked:
    """What the user asked for; max_drop in points."""

    to: str
    images: str | None
    max_images: int
    int8: bool
    calibrate: str | None
    max_drop: float

    def __post_init__(self) -> None:
        format_named(self.to)
        if self.int8 and self.calibrate is None:
            raise BadSetting("int8 needs images to calibrate with: name labelled data with --calibrate DATA.")
        if self.calibrate is not None and not self.int8:
            raise BadSetting(
                "--calibrate is for int8. Add --int8, or leave it out; --images names what is compared on."
            )


def export_folder(bundle_folder: Path, folder: Path, asked: ExportAsked, *, as_json: bool) -> None:
    """Export, compare, and tell what came of it."""
    bundle = load(bundle_folder, device="cpu")
    int8 = None if asked.calibrate is None else Int8(asked.calibrate, max_drop=asked.max_drop / 100)
    with progress_bars(quiet=as_json) as progress:
        about = export_bundle(
            bundle,
            folder,
            asked.to,
            images=asked.images,
            max_images=asked.max_images,
            int8=int8,
            progress=progress,
        )
    told = {
        "folder": str(folder),
        "to": asked.to,
        "graphs": [graph["file"] for graph in about["graphs"]],
        "one_graph": about.get("one_graph"),
        "bytes": sum(file.stat().st_size for file in folder.iterdir()),
        "compared": about["compared"],
        "int8": about["int8"] or None,
    }
    if as_json:
        print(json.dumps(told, indent=1, allow_nan=False))
    else:
        _print(told)


def _print(told: dict[str, Any]) -> None:
    table = Table(title=f"compared with the network on {cell(told['compared']['source'])}", title_justify="left")
    table.add_column("looking")
    for name in ("images", "same answers", "same looks", "same boxes", "confidence differs by"):
        table.add_column(name, justify="right")
    for words, found in told["compared"]["ways"].items():
        same = [f"{found[f'same_{what}']}" for what in ("answers", "looks", "boxes")]
        table.add_row(words, str(found["images"]), *same, f"{found['confidence_difference']:.1e}")
    output().print(table)
    int8 = told["int8"]
    if int8:
        say(
            f"int8 ({int8['covers']}): {100 * int8['accuracy_after']:.1f} % right, {100 * int8['accuracy_before']:.1f} % before, "
            f"on {int8['images']} images of {int8['source']}"
        )
    one = told["one_graph"]
    if one is not None:
        found = one["compared"]
        say(
            f"{one['file']}, all looks in one graph: of {found['images']} images {found['same_answers']} have the same answer, "
            f"{found['same_looks']} take as many looks"
        )
    say(f"wrote {told['folder']}: {len(told['graphs'])} graphs, {told['bytes'] / 1e6:.1f} MB")
    say(f"try it: python {told['folder']}/predict.py photo.jpg")
