"""glancefocus.json, which describes an exported network to programs in any language, and the README beside it."""

import json
from pathlib import Path
from typing import Literal, NotRequired, TypedDict, cast

import glancefocus
from glancefocus.bundle.bundle import Bundle
from glancefocus.errors import BadSetting
from glancefocus.escaping import markdown
from glancefocus.exits.curve import leave_thresholds, rising, stay_thresholds
from glancefocus.export.formats import Format
from glancefocus.export.standalone.predict import Graph, Manifest, PartCosts, StoredPoint, Tensor, View
from glancefocus.files import write_text
from glancefocus.settings import to_plain
from glancefocus.values import read_json

MANIFEST_FILE = "glancefocus.json"
FORMAT = 1


class Agreement(TypedDict):
    """How an exported network compares with the one that it was made from.

    same_boxes  images where both looked at the same patches
    undecided   differing images where rounding decides: a score on its threshold, a patch on the border between two pixels
    confidence_difference  the largest one among images where both looked at the same patches
    """

    images: int
    same_answers: int
    same_looks: int
    same_boxes: NotRequired[int]
    undecided: int
    confidence_difference: float
    exits_per_look: NotRequired[list[int]]
    accuracy_before: NotRequired[float]
    accuracy_after: NotRequired[float]


class Compared(TypedDict):
    """Agreement on the images of one source, for every way to stop."""

    source: str
    ways: dict[str, Agreement]


class Int8Result(TypedDict):
    """What was quantised, what it was calibrated with, and the accuracy before and after."""

    covers: str
    calibration_source: str
    calibration_images: int
    calibration_accuracy: dict[str, float]
    source: str
    images: int
    accuracy_before: float
    accuracy_after: float


class LooksGraph(TypedDict):
    """looks.onnx: all looks in one graph."""

    file: str
    inputs: list[Tensor]
    outputs: list[str]
    thresholds: list[float]
    compared: Agreement


class ExportManifest(Manifest):
    """Everything in glancefocus.json: what predict.py reads, and how the export was made and compared."""

    format: int
    made_by: str
    int8: Literal[False] | Int8Result
    bundle: str
    compared: NotRequired[Compared]
    one_graph: NotRequired[LooksGraph | None]


def describe(bundle: Bundle, to: Format, graphs: list[Graph]) -> ExportManifest:
    """The manifest of a network that has just been written as these graphs."""
    settings, looks, sizes = bundle.settings, bundle.settings.looks, len(bundle.settings.patch_px)
    points = rising(sorted((p for p in bundle.curve if "mean_macs" in p), key=lambda p: p["mean_macs"]))
    return {
        "format": FORMAT,
        "made_by": f"glancefocus {glancefocus.__version__}",
        "runtime": to.name,
        "batch": to.batch,
        "int8": False,
        "glance_px": settings.glance_px,
        "patch_px": list(settings.patch_px),
        "looks": looks,
        "frames": settings.frames,
        "glance_resize": settings.glance_resize,
        "classifier": settings.classifier,
        "policy_units": settings.policy.units,
        "view": cast(View, to_plain(settings.view)),
        "classes": list(bundle.classes),
        "score": bundle.score,
        "thresholds": None if bundle.thresholds is None else list(bundle.thresholds),
        "temperatures": None if bundle.temperatures is None else list(bundle.temperatures),
        "cheapest": {"mean_macs": bundle.costs.macs_after_look[0], "thresholds": leave_thresholds(looks, sizes)},
        "dearest": {"mean_macs": max(bundle.costs.macs_of_tree()), "thresholds": stay_thresholds(looks, sizes)},
        "curve": cast(list[StoredPoint], points),
        "costs": cast(PartCosts, bundle.costs.to_plain()),
        "graphs": graphs,
        "bundle": bundle.fingerprint,
    }


def check_exportable(bundle: Bundle) -> None:
    """Refuse a bundle that predict.py cannot run."""
    if bundle.score == "random":
        raise BadSetting(
            "this bundle stops at random, which is meant for comparisons only. Choose another score with `gf budget --score`."
        )


def write_manifest(manifest: ExportManifest, folder: Path) -> ExportManifest:
    """Write the manifest; returns it as a reader of the file gets it, with lists instead of tuples."""
    text = json.dumps(manifest, indent=1, allow_nan=False)
    write_text(folder / MANIFEST_FILE, text + "\n")
    read: ExportManifest = json.loads(text)
    return read


def is_export(folder: Path) -> bool:
    """Whether the folder holds an earlier export."""
    try:
        manifest = read_json(folder / MANIFEST_FILE, 64 << 20)
    except (OSError, BadSetting):
        return False
    return isinstance(manifest, dict) and {"format", "runtime", "graphs"} <= manifest.keys()


def export_readme(manifest: ExportManifest, to: Format) -> str:
    """README.md of an exported folder: what is in it, how to run it, and how it compares with its network."""
    graphs = "\n".join(
        f"| `{graph['file']}` | {_tensors(graph['inputs'])} | {_tensors(graph['outputs'])} |"
        for graph in manifest["graphs"]
    )
    precision = "int8" if manifest["int8"] else "full precision"
    what = "pictures" if manifest["frames"] == 1 else f"clips of {manifest['frames']} frames, each in a folder,"
    return f"""# A glance-and-focus network for {to.name}, {precision}

It looks at {what} quickly first ({manifest["glance_px"]} px), then at up to {manifest["looks"] - 1} patches of
{", ".join(map(str, manifest["patch_px"]))} px, and stops once its score is above the threshold of a look.
{len(manifest["classes"])} classes.

    pip install {to.runtime} numpy Pillow
    python predict.py photo.jpg

`predict.py` is the whole program; it needs no other file than those in this folder. It prints one line of JSON for each picture;
`--json` prints one array, `--csv` a table. `sure` means that the score was above its `threshold`, whatever that is. It does not
mean that the answer is right. `glancefocus.json` holds what the program needs beside the graphs: view, classes, thresholds,
operating points, costs. Programs in other languages can run the same graphs:

| graph | in | out |
|---|---|---|
{graphs}

{_looks_graph(manifest)}Before it was put here it was compared with the network it was made from:

{_comparison(manifest)}
"""


def _looks_graph(manifest: ExportManifest) -> str:
    one = manifest.get("one_graph")
    if one is None:
        return ""
    size, found = tuple(one["inputs"][0]["shape"]), one["compared"]
    return f"""`{one["file"]}` is all of them in one graph, with the loop inside. Its inputs are `images` {size}, normalised as
`view` in `glancefocus.json` says, and `thresholds`, one for each look (`one_graph` in that file). Its outputs are `logits` after
the last look; `answer` and `confidence` after the glance; and `answers`, `confidences` and `where` (y, x from 0 to 1) after each
focus look that was taken. On {found["images"]} images, {found["same_answers"]} had the same answer and
{found["same_looks"]} took as many looks.

"""


def _tensors(tensors: list[Tensor]) -> str:
    return "<br>".join(f"{tensor['name']} {tuple(tensor['shape'])}".replace("'", "") for tensor in tensors)


def _comparison(manifest: ExportManifest) -> str:
    compared = manifest["compared"]
    lines = [
        f"Images: {markdown(compared['source'])}.",
        "",
        "| how it stops | images | same answers | same looks | largest difference of a confidence |",
        "|---|---:|---:|---:|---:|",
    ]
    for way, found in compared["ways"].items():
        lines.append(
            f"| {way} | {found['images']} | {found['same_answers']} | {found['same_looks']} "
            f"| {found['confidence_difference']:.1e} |"
        )
    int8 = manifest["int8"]
    if int8:
        lines += [
            "",
            f"Int8, on {markdown(int8['source'])}: {100 * int8['accuracy_after']:.1f} % right, "
            f"{100 * int8['accuracy_before']:.1f} % before; calibrated with {int8['calibration_images']} images of "
            f"{markdown(int8['calibration_source'])}.",
        ]
    return "\n".join(lines)
