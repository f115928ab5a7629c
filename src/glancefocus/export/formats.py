"""The formats that a network can be exported to: what each needs, and how its graphs are written."""

import contextlib
import copy
import importlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from glancefocus.errors import BadExport, GlancefocusError, MissingEnvironment, MissingExtra, UnknownName
from glancefocus.export.standalone.predict import Graph, Tensor
from glancefocus.network.model import GlanceFocus
from glancefocus.network.parts import Part, take_apart
from glancefocus.progress import Progress
from glancefocus.runtime.graphs import write_onnx
from glancefocus.runtime.openvino import import_openvino
from glancefocus.runtime.torch import as_tuple


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

    Where graphs take only one batch size, they also take only one patch size: a part gets one graph for each size then.
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
    except Exception as error:  # converters raise many kinds of errors for operations that they do not know
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
    """Names and shapes of inputs and of outputs; a side that differs between patch sizes is "any"."""
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
