"""Writes the parts of a network as the graphs of a format."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from glancefocus.errors import BadExport, GlancefocusError
from glancefocus.export.formats import Format
from glancefocus.export.quiet import quiet
from glancefocus.network.glance_focus import GlanceFocus
from glancefocus.network.parts import Part, take_apart
from glancefocus.runtimes.eager import as_tuple
from glancefocus.runtimes.onnx_graph import write_onnx
from glancefocus.runtimes.openvino_runtime import import_openvino

Progress = Callable[[str, int, int], None]


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
