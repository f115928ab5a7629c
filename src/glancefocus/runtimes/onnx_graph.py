"""Writes a part of a network as an ONNX graph."""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glancefocus.errors import BadSetting, MissingExtra
from glancefocus.files import folder_aside
from glancefocus.network.parts import Part

_TRACED_BATCH = 2  # a batch of one would be taken for a constant


def write_onnx(part: Part, file: Path, *, px: int | None = None, batch: int | None = None) -> None:
    """Write one part, with its weights inside: above 1.5 GB, which no ONNX file holds, they lie beside it as `<file>.data`.

    px     the only size of images that the graph takes; None: every size that the part knows
    batch  the only batch size that it takes; None: any
    """
    if px is not None and px not in part.px:
        raise BadSetting(f"the part {part.name!r} takes images of {list(part.px)} px, but px is {px}.")
    if batch is not None and batch < 1:
        raise BadSetting(f"a graph is for a batch of at least 1, but got {batch}.")
    example = part.example(_TRACED_BATCH if batch is None else batch, px)
    program = _traced(part, example, _free_axes(part, example, px, batch))
    _check_free(part, program, batch)
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()  # where in whose folders each line of code stands, more than the graph itself
    _save(program, file)


def _free_axes(
    part: Part, example: tuple[Tensor, ...], px: int | None, batch: int | None
) -> tuple[dict[int, Any], ...]:
    axes: list[dict[int, Any]] = [{} if batch is not None else {0: "batch"} for _ in example]
    if px is None and len(part.px) > 1:
        rank = example[0].dim()
        axes[0] |= {rank - 2: "height", rank - 1: "width"}
    return tuple(axes)


def _traced(part: Part, example: tuple[Tensor, ...], free: tuple[dict[int, Any], ...]) -> Any:
    """torch's ONNX program of a part."""
    _need("onnx")
    _need("onnxscript")
    part.module.eval()
    device = next((p.device for p in part.module.parameters()), torch.device("cpu"))
    with _quietly(), torch.no_grad():
        try:
            return torch.onnx.export(
                part.module,
                tuple(tensor.to(device) for tensor in example),
                input_names=part.inputs,
                output_names=part.outputs,
                dynamic_shapes=free,
                dynamo=True,
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            raise BadSetting(
                f"the part {part.name!r} of this network cannot be written as a graph: {_cause(error)} "
                "Use the runtime 'eager', or another backbone."
            ) from error


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what the exporter says of its own insides, and that inputs share the axis "batch", as they must."""
    log = logging.getLogger("onnxscript")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _cause(error: BaseException) -> str:
    """The first line of what went wrong inside."""
    inner: BaseException = error
    while inner.__cause__ is not None:
        inner = inner.__cause__
    return str(inner).strip().partition("\n")[0]


def _check_free(part: Part, program: Any, batch: int | None) -> None:
    """The exporter takes an axis that the code fixes for a constant, and says nothing: we do."""
    for value in [*program.model.graph.inputs, *program.model.graph.outputs]:
        if batch is None and isinstance(value.shape[0], int):
            raise BadSetting(
                f"the part {part.name!r} works only with a batch of {value.shape[0]} as a graph ({value.name} is fixed). "
                "Export it for one batch size."
            )


def _save(program: Any, file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with folder_aside(file) as aside:
            program.save(aside / file.name)
            for written in sorted(aside.iterdir(), reverse=True):  # the weights first, then the graph that names them
                os.replace(written, file.parent / written.name)
    except OSError as error:
        raise BadSetting(f"the graph {file} cannot be written: {error.strerror or error}.") from error


def _need(package: str) -> None:
    try:
        __import__(package)
    except ModuleNotFoundError:
        raise MissingExtra(package, "export") from None
