"""Writes the parts of a network as the graphs of a format."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from glancefocus.errors import BadExport, GlancefocusError
from glancefocus.escaping import markdown
from glancefocus.export.formats import Format, quiet
from glancefocus.export.script import packages
from glancefocus.network.model import GlanceFocus
from glancefocus.network.parts import Part, take_apart
from glancefocus.progress import Progress
from glancefocus.runtime.graphs import write_onnx
from glancefocus.runtime.openvino import import_openvino
from glancefocus.runtime.torch import as_tuple


def write_graphs(net: GlanceFocus, to: Format, folder: Path, progress: Progress | None = None) -> list[dict[str, Any]]:
    """Write every graph into a folder; what each is called, and what goes in and out.

    A graph that takes one batch size takes one size of patches, too, so there is one for each.
    """
    wanted: list[tuple[Part, int | None, str]] = []
    # Converters expect weights laid out as torch makes them, not channels last.
    laid_out = copy.deepcopy(net).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    for part in take_apart(laid_out):
        if to.batch is None or len(part.px) < 2:
            wanted.append((part, None, part.name))
        else:
            wanted += [(part, px, f"{part.name}_{px}") for px in part.px]
    graphs = []
    for number, (part, px, name) in enumerate(wanted, start=1):
        file = f"{name}{to.suffix}"
        write_part(to, part, folder / file, px)
        graphs.append({"name": name, "file": file, **_signature(part, px, to.batch)})
        if progress is not None:
            progress("writing graphs", number, len(wanted))
    return graphs


def write_part(to: Format, part: Part, file: Path, px: int | None = None) -> None:
    """Write one graph, for images of this size where the format takes one only."""
    try:
        with quiet(), torch.no_grad():
            _WRITERS[to.name](part, px, file)
    except GlancefocusError:
        raise
    except Exception as error:  # converters raise anything where they do not know an operation
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
    """An ONNX graph as one of OpenVINO, in its own precision; the ONNX files are removed."""
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


def _signature(part: Part, px: int | None, batch: int | None) -> dict[str, Any]:
    """Names and shapes of inputs and outputs; "batch" and "any" are free."""
    seen = [_shapes(part, size, batch) for size in ((px,) if px is not None else part.px or (None,))]
    merged = [_merged(shapes) for shapes in zip(*seen, strict=True)]
    names = (*part.inputs, *part.outputs)
    told = [{"name": name, "shape": shape} for name, shape in zip(names, merged, strict=True)]
    return {"inputs": told[: len(part.inputs)], "outputs": told[len(part.inputs) :]}


def _shapes(part: Part, px: int | None, batch: int | None) -> list[list[int | str]]:
    given = part.example(1, px)
    with torch.inference_mode():
        made = as_tuple(part.module(*given))
    first: int | str = "batch" if batch is None else batch
    return [[first, *map(int, tensor.shape[1:])] for tensor in (*given, *made)]


def _merged(shapes: Sequence[list[int | str]]) -> list[int | str]:
    return [sides[0] if len(set(sides)) == 1 else "any" for sides in zip(*shapes, strict=True)]


def export_readme(about: dict[str, Any], to: Format) -> str:
    """What is in the folder, how to run it, and how well it does what its network did."""
    graphs = "\n".join(
        f"| `{graph['file']}` | {_ends(graph['inputs'])} | {_ends(graph['outputs'])} |" for graph in about["graphs"]
    )
    kind = "int8" if about["int8"] else "full precision"
    what = "pictures" if about["frames"] == 1 else f"clips of {about['frames']} frames, each in a folder,"
    source = markdown(about["compared"]["source"])
    return f"""# A glance-and-focus network for {to.name}, {kind}

It looks at {what} quickly first ({about["glance_px"]} px), then at up to {about["looks"] - 1} patches of
{", ".join(map(str, about["patch_px"]))} px, and stops once its score is above the threshold of a look.
{len(about["classes"])} classes.

    pip install {" ".join(packages(to))}
    python predict.py photo.jpg

`predict.py` is the whole loop; it needs nothing else. It prints a line of JSON for each picture; `--json` prints one array, `--csv`
a table. `sure` means that the score was above its `threshold`, however large that is, and not that the answer is right.
 `glancefocus.json` holds what the loop needs beside the graphs: view,
classes, thresholds, operating points, costs. Programs in other languages run the same graphs:

| graph | in | out |
|---|---|---|
{graphs}

{_one_file(about)}Before it was put here it was compared with the network it was made from, on {source}:

{_compared(about)}
"""


def _one_file(about: dict[str, Any]) -> str:
    one = about.get("one_graph")
    if one is None:
        return ""
    size = tuple(one["inputs"][0]["shape"])
    found = one["compared"]
    return f"""`{one["file"]}` is all of them in one, with the loop inside. It is given `images` {size}, normalised as `view` in
`glancefocus.json` says, and `thresholds`, one for each look (`one_graph`, there). It gives `logits` after the last look;
`answer` and `confidence` after the glance; `answers`, `confidences` and `where` (y, x in 0 to 1) after each closer look, of which
there are fewer where it stopped earlier. Of {found["images"]} images {found["same_answers"]} had the same answer, and
{found["same_looks"]} took as many looks.

"""


def _ends(ends: list[dict[str, Any]]) -> str:
    return "<br>".join(f"{end['name']} {tuple(end['shape'])}".replace("'", "") for end in ends)


def _compared(about: dict[str, Any]) -> str:
    lines = [
        "| looking | images | same answers | same looks | largest difference of a confidence |",
        "|---|---:|---:|---:|---:|",
    ]
    for way, found in about["compared"]["ways"].items():
        lines.append(
            f"| {way} | {found['images']} | {found['same_answers']} | {found['same_looks']} "
            f"| {found['confidence_difference']:.1e} |"
        )
    told = "\n".join(lines)
    if about["int8"]:
        found = about["int8"]
        told += (
            f"\n\nInt8, on {markdown(found['source'])}: {100 * found['accuracy_after']:.1f} % right, "
            f"{100 * found['accuracy_before']:.1f} % before; calibrated with {found['calibration_images']} images of "
            f"{markdown(found['calibration_source'])}."
        )
    return told
