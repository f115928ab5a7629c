"""`gf export`: writes a network for another runtime, and compares it with the bundle."""

import json
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any

from rich.table import Table

from glancefocus.cli.main import BundleName, Flag, Json, OutputName, command_options, output
from glancefocus.cli.printing import cell, print_line, progress_bars
from glancefocus.errors import BadSetting
from glancefocus.values import Count, Points


@command_options
@dataclass(frozen=True)
class ExportOptions:
    """Options of `gf export`."""

    bundle: BundleName
    _: KW_ONLY
    to: str
    """Format: onnx, openvino, executorch or litert. The last two need their own environments, see docs/export.md."""
    output: Annotated[Path, OutputName]
    """The folder to write. An older export there is replaced."""
    images: str | None = None
    """Images for the comparison: data as for `gf evaluate`, or any folder of images. Default: generated images."""
    max_images: Count = 200
    """Compare on at most this many images."""
    int8: Flag = False
    """Quantise the graphs to 8-bit integers: smaller files, and some loss of accuracy (see --max-drop). For onnx and
    openvino. Needs --calibrate."""
    calibrate: str | None = None
    """With --int8: labelled images, given as DATA of `gf evaluate`. Training images (or one half, if there is only one split) run
    through the network to find the range of values in every layer, which sets the 8-bit scales. Test images (or the other
    half) measure how much accuracy is lost. It has nothing to do with temperatures or thresholds."""
    max_drop: Points = 1.0
    """Percentage points of accuracy that --int8 may lose, such as 1. If it loses more, nothing is written."""
    json: Json = False

    def __post_init__(self) -> None:
        if self.int8 and self.calibrate is None:
            raise BadSetting("int8 needs images to calibrate with: name labelled data with --calibrate DATA.")
        if self.calibrate is not None and not self.int8:
            raise BadSetting(
                "--calibrate is for int8. Add --int8, or leave it out; --images names the images for the comparison."
            )


def export(options: ExportOptions) -> None:
    """Export a network for another runtime, with a program (predict.py) that runs it without glancefocus.

    The exported network is compared with the bundle before it replaces an older export: answers and numbers of looks must be equal.

    Example: gf export runs/signs/bundle --to onnx -o exported/signs --images signs
    """
    from glancefocus.bundle.bundle import load
    from glancefocus.export.contents import format_named
    from glancefocus.export.deliver import Int8, export_bundle

    format_named(options.to)  # refuses an unknown format before the bundle is loaded
    bundle = load(options.bundle, device="cpu")
    int8 = None if options.calibrate is None else Int8(options.calibrate, max_drop=options.max_drop / 100)
    with progress_bars(quiet=options.json) as progress:
        manifest = export_bundle(
            bundle,
            options.output,
            options.to,
            images=options.images,
            max_images=options.max_images,
            int8=int8,
            progress=progress,
        )
    result = {
        "folder": str(options.output),
        "to": options.to,
        "graphs": [graph["file"] for graph in manifest["graphs"]],
        "one_graph": manifest.get("one_graph"),
        "bytes": sum(file.stat().st_size for file in options.output.iterdir()),
        "compared": manifest["compared"],
        "int8": manifest["int8"] or None,
    }
    if options.json:
        print(json.dumps(result, indent=1, allow_nan=False))
    else:
        _print(result)


def _print(result: dict[str, Any]) -> None:
    table = Table(title=f"compared with the network on {cell(result['compared']['source'])}", title_justify="left")
    table.add_column("looking")
    for name in ("images", "same answers", "same looks", "same boxes", "confidence differs by"):
        table.add_column(name, justify="right")
    for words, found in result["compared"]["ways"].items():
        same = [f"{found[f'same_{what}']}" for what in ("answers", "looks", "boxes")]
        table.add_row(words, str(found["images"]), *same, f"{found['confidence_difference']:.1e}")
    output().print(table)
    int8 = result["int8"]
    if int8:
        print_line(
            f"int8 ({int8['covers']}): {100 * int8['accuracy_after']:.1f} % right, {100 * int8['accuracy_before']:.1f} % before, "
            f"on {int8['images']} images of {int8['source']}"
        )
    one = result["one_graph"]
    if one is not None:
        found = one["compared"]
        print_line(
            f"{one['file']}, all looks in one graph: of {found['images']} images {found['same_answers']} have the same answer, "
            f"{found['same_looks']} take as many looks"
        )
    print_line(f"wrote {result['folder']}: {len(result['graphs'])} graphs, {result['bytes'] / 1e6:.1f} MB")
    print_line(f"try it: python {result['folder']}/predict.py photo.jpg")
