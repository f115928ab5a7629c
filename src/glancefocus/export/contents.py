"""The contents of an exported folder: graphs in one of the formats, glancefocus.json, which describes them, and a README."""

import contextlib
import copy
import importlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NotRequired, TypedDict, cast

import torch

import glancefocus
from glancefocus.bundle.bundle import Bundle
from glancefocus.errors import BadExport, BadSetting, GlancefocusError, MissingEnvironment, MissingExtra, UnknownName
from glancefocus.exits.curve import leave_thresholds, rising, stay_thresholds
from glancefocus.exits.record import view_words
from glancefocus.export.predict import Candidate, Graph, Manifest, PartCosts, StoredPoint, Tensor, View
from glancefocus.files import write_text
from glancefocus.machine import read_json
from glancefocus.network.model import GlanceFocus
from glancefocus.network.parts import Part, focus_part, take_apart
from glancefocus.progress import Progress
from glancefocus.runtime.backends import as_tuple, import_openvino
from glancefocus.runtime.onnx_writing import write_onnx
from glancefocus.settings import NetworkSettings
from glancefocus.values import markdown, to_plain


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress logging, warnings and printing below errors while the block runs: converters are talkative."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


@dataclass(frozen=True)
class Format:
    """One format.

    suffix       of its graph files
    batch        the only batch size that its graphs take; None: any
    runtime      the package that predict.py runs its graphs with
    packages     modules that writing and running it needs
    extra        the extra of glancefocus that installs them; None: they need their own environment
    environment  the name of that environment, as in `make environment-NAME`
    """

    name: str
    suffix: str
    batch: int | None
    runtime: str
    packages: tuple[str, ...]
    extra: str | None = None
    environment: str = ""

    def check_installed(self) -> None:
        """Refuse to go on where a package is missing; the error says how to install it."""
        for package in self.packages:
            try:
                with quiet():
                    importlib.import_module(package)
            except ModuleNotFoundError as error:
                if self.extra is not None:
                    raise MissingExtra(package, self.extra) from None
                raise MissingEnvironment(str(error.name or package), self.environment) from None


FORMATS = {
    one.name: one
    for one in (
        Format("onnx", ".onnx", None, "onnxruntime", ("onnx", "onnxscript", "onnxruntime"), "export"),
        Format("openvino", ".xml", None, "openvino", ("onnx", "onnxscript", "openvino"), "openvino"),
        Format("executorch", ".pte", 1, "executorch", ("executorch.runtime",), environment="executorch"),
        Format("litert", ".tflite", 1, "ai-edge-litert", ("litert_torch", "ai_edge_litert"), environment="litert"),
    )
}


def format_named(name: str) -> Format:
    """The format of this name; an unknown one is refused with a suggestion."""
    if name not in FORMATS:
        raise UnknownName("format", name, FORMATS, f"There are {', '.join(FORMATS)}.")
    return FORMATS[name]


def write_graphs(net: GlanceFocus, to: Format, folder: Path, progress: Progress | None = None) -> list[Graph]:
    """Write every part of a network as a graph into a folder; returns their names, files, inputs and outputs.

    Where graphs take only one batch size, they also take only one candidate view: a part gets one graph for each size then.
    """
    wanted: list[tuple[Part, int | None, str]] = []
    # Converters expect weights in torch's default memory layout, not channels last.
    laid_out = copy.deepcopy(net).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    for part in take_apart(laid_out):
        if to.batch is None or len(part.px) < 2:
            wanted.append((part, None, part.name))
        else:
            wanted += [(part, px, f"{part.name}_{px}") for px in part.px]
    graphs: list[Graph] = []
    for number, (part, px, name) in enumerate(wanted, start=1):
        file = f"{name}{to.suffix}"
        write_part(to, part, folder / file, px)
        inputs, outputs = _signature(part, px, to.batch)
        graphs.append({"name": name, "file": file, "inputs": inputs, "outputs": outputs})
        if progress is not None:
            progress("writing graphs", number, len(wanted))
    return graphs


def write_part(to: Format, part: Part, file: Path, px: int | None = None) -> None:
    """Write one graph; px: the size of its images, where the format takes only one."""
    try:
        with quiet(), torch.no_grad():
            _WRITERS[to.name](part, px, file)
    except GlancefocusError:
        raise
    except Exception as error:  # converters raise many kinds of errors for operations that they do not support
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise BadExport(
            f"{to.name} cannot take the part {part.name!r} of this network ({reason}). Nothing was written."
        ) from error


def _onnx(part: Part, px: int | None, file: Path) -> None:
    write_onnx(part, file)


def _openvino(part: Part, px: int | None, file: Path) -> None:
    aside = file.with_suffix(".onnx")
    write_onnx(part, aside)
    onnx_to_openvino(aside, file)


def onnx_to_openvino(onnx_file: Path, file: Path) -> None:
    """Convert an ONNX graph to OpenVINO, in its own precision; the ONNX files are removed."""
    openvino = import_openvino()
    openvino.save_model(openvino.convert_model(onnx_file), file, compress_to_fp16=False)
    for old in (onnx_file, onnx_file.with_name(f"{onnx_file.name}.data")):
        old.unlink(missing_ok=True)


def _executorch(part: Part, px: int | None, file: Path) -> None:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    program = torch.export.export(part.module, part.example(1, px))
    lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()]).to_executorch()
    file.write_bytes(lowered.buffer)


def _litert(part: Part, px: int | None, file: Path) -> None:
    import litert_torch

    litert_torch.convert(part.module, part.example(1, px)).export(str(file))


_WRITERS: dict[str, Callable[[Part, int | None, Path], None]] = {
    "onnx": _onnx,
    "openvino": _openvino,
    "executorch": _executorch,
    "litert": _litert,
}


def _signature(part: Part, px: int | None, batch: int | None) -> tuple[list[Tensor], list[Tensor]]:
    """Names and shapes of inputs and of outputs; a side that differs between candidate views is "any"."""
    by_size = [_shapes(part, size, batch) for size in ((px,) if px is not None else part.px or (None,))]
    merged = [_merged(shapes) for shapes in zip(*by_size, strict=True)]
    names = (*part.inputs, *part.outputs)
    tensors: list[Tensor] = [{"name": name, "shape": shape} for name, shape in zip(names, merged, strict=True)]
    return tensors[: len(part.inputs)], tensors[len(part.inputs) :]


def _shapes(part: Part, px: int | None, batch: int | None) -> list[list[int | str]]:
    given = part.example(1, px)
    with torch.inference_mode():
        made = as_tuple(part.module(*given))
    first: int | str = "batch" if batch is None else batch
    return [[first, *map(int, tensor.shape[1:])] for tensor in (*given, *made)]


def _merged(shapes: Sequence[list[int | str]]) -> list[int | str]:
    return [sides[0] if len(set(sides)) == 1 else "any" for sides in zip(*shapes, strict=True)]


MANIFEST_FILE = "glancefocus.json"
FORMAT = 2


class Agreement(TypedDict):
    """How an exported network compares with the one that it was made from.

    same_boxes  images where both looked at the same regions
    undecided   differing images where rounding decides: a score on its threshold, a region on the border between two pixels
    confidence_difference  the largest one among images where both looked at the same regions
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
    settings, looks, views = bundle.settings, bundle.settings.looks, len(bundle.settings.candidates)
    points = rising(sorted((p for p in bundle.curve if "mean_macs" in p), key=lambda p: p["mean_macs"]))
    return {
        "format": FORMAT,
        "made_by": f"glancefocus {glancefocus.__version__}",
        "runtime": to.name,
        "batch": to.batch,
        "int8": False,
        "first_view": settings.first_view,
        "glance_px": settings.glance_px,
        "candidates": [_candidate(settings, each, graphs) for each in range(views)],
        "looks": looks,
        "frames": settings.frames,
        "glance_resize": settings.glance_resize,
        "classifier": settings.classifier,
        "policy": settings.policy.kind,
        "policy_units": settings.policy.units,
        "place": settings.policy.place,
        "classifier_place": settings.classifier_place,
        "view": cast(View, to_plain(settings.view)),
        "classes": list(bundle.classes),
        "score": bundle.score,
        "thresholds": None if bundle.thresholds is None else list(bundle.thresholds),
        "temperatures": None if bundle.temperatures is None else list(bundle.temperatures),
        "cheapest": {"mean_macs": bundle.costs.macs_after_look[0], "thresholds": leave_thresholds(looks, views)},
        "dearest": {"mean_macs": max(bundle.costs.macs_of_tree()), "thresholds": stay_thresholds(looks, views)},
        "curve": cast(list[StoredPoint], points),
        "costs": cast(PartCosts, bundle.costs.to_plain()),
        "graphs": graphs,
        "bundle": bundle.fingerprint,
    }


def _candidate(settings: NetworkSettings, number: int, graphs: list[Graph]) -> Candidate:
    view, part = settings.candidates[number], focus_part(settings, number)
    of_size = f"{part}_{view.px}"  # where graphs take one size each, see write_graphs
    graph = of_size if any(each["name"] == of_size for each in graphs) else part
    share = view.share_of(settings.view.height_px, settings.view.width_px)
    return {"name": view.name, "px": view.px, "extent": view.extent, "share": share, "graph": graph}


def check_exportable(bundle: Bundle) -> None:
    """Refuse a bundle that predict.py cannot run."""
    if bundle.settings.zoom:
        raise BadSetting("networks with zoom=true cannot be exported: predict.py cannot zoom. Use the bundle itself.")
    if bundle.score == "random":
        raise BadSetting("this bundle stops at random, for comparisons. Choose another score with `gf budget --score`.")


def write_manifest(manifest: ExportManifest, folder: Path) -> ExportManifest:
    """Write the manifest; returns it as a reader of the file gets it, with lists instead of tuples."""
    text = json.dumps(manifest, indent=1, allow_nan=False)
    write_text(folder / MANIFEST_FILE, text + "\n")
    return cast(ExportManifest, json.loads(text))


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
    first = {"glance": "quickly", "centre": "at the centre", "random": "at a drawn place"}[manifest["first_view"]]
    return f"""# A glance-and-focus network for {to.name}, {precision}

It looks at {what} {first} first ({manifest["glance_px"]} px), then at up to {manifest["looks"] - 1} times at
{view_words([view["name"] for view in manifest["candidates"]])}, and stops once its score is above the threshold of a look.
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
