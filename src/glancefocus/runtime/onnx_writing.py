"""Writes parts of a network as ONNX graphs: in float, or with int8 weights in memory-bound layers.

Memory-bound are heads, and convolutions on small maps.
"""

import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import glancefocus
from glancefocus.errors import BadSetting, MissingExtra
from glancefocus.files import fingerprint, replace_files, write_text
from glancefocus.machine import read_file
from glancefocus.network.modules import Encoder
from glancefocus.network.parts import Part

_TRACED_BATCH = 2  # a batch of one would be taken for a constant


def write_onnx(part: Part, file: Path, *, px: int | None = None, batch: int | None = None) -> None:
    """Write one part with its weights. Weights above 1.5 GB, which no ONNX file holds, are written beside it as `<file>.data`.

    px     the only size of images that the graph takes; None: every size that the part takes
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
        node.metadata_props.clear()  # source locations, which take more space than the graph itself
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
    """Without the exporter's internal messages, and its warning that inputs share the axis "batch", as they must."""
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
    """Refuse an axis that the code fixes: the exporter silently makes it a constant."""
    for value in [*program.model.graph.inputs, *program.model.graph.outputs]:
        if batch is None and isinstance(value.shape[0], int):
            raise BadSetting(
                f"the part {part.name!r} works only with a batch of {value.shape[0]} as a graph ({value.name} is fixed). "
                "Export it for one batch size."
            )


def _save(program: Any, file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replace_files(file) as aside:
            program.save(aside / file.name)
    except OSError as error:
        raise BadSetting(f"the graph {file} cannot be written: {error.strerror or error}.") from error


def _need(package: str) -> None:
    try:
        __import__(package)
    except ModuleNotFoundError:
        raise MissingExtra(package, "export") from None


REWRITING_VERSION = 2
"""Raise it with every change to the rewriting: cached graphs of another version are not used."""

HEAVY = 2**17
"""Number of weights from which a layer is memory-bound: half a megabyte as float32; a core's cache holds only a few of these."""

_FEW_PLACES = 64  # a map of 8 by 8; on larger maps convolutions are bound by arithmetic, not by memory
_BY_PIXEL = {"Relu": 1, "Add": 2}  # what may come between two products, and of how many maps


def convolutions_as_products(model: Any) -> list[str]:
    """Rewrite memory-bound convolutions of a model as matrix products, in place; returns the names of the products."""
    import onnx

    graph = model.graph
    if any(attribute.HasField("g") or attribute.graphs for node in graph.node for attribute in node.attribute):
        return []  # a branch or loop may read what is written here
    known = onnx.shape_inference.infer_shapes(model).graph
    shapes = {value.name: _sides(value) for value in [*known.value_info, *known.input, *known.output]}
    rewritten = _Rewritten(shapes)
    heavy = {tensor.name: tensor for tensor in graph.initializer if np.prod(tensor.dims) >= HEAVY}
    for node in graph.node:
        if _waits_for_weights(node, heavy, shapes):
            rewritten.add_product(node, onnx.numpy_helper.to_array(heavy[node.input[1]]))
        elif not rewritten.add_by_pixel(node):
            rewritten.add(node)
    for output in graph.output:
        rewritten.need_map(output.name)
    del graph.node[:]
    graph.node.extend(rewritten.nodes)
    graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in rewritten.constants.items())
    needed = {name for node in graph.node for name in node.input}
    left = [tensor for tensor in graph.initializer if tensor.name in needed]
    del graph.initializer[:]
    graph.initializer.extend(left)
    return rewritten.products


class _Rewritten:
    """The nodes of the new graph. A map (B, C, H, W) that a product made or read is also known as its pixels (B, H x W, C)."""

    def __init__(self, shapes: dict[str, tuple[int, int, int] | None]) -> None:
        self.shapes = shapes
        self.nodes: list[Any] = []
        self.constants: dict[str, NDArray[Any]] = {}
        self.products: list[str] = []
        self._pixels: dict[str, str] = {}
        self._only_pixels: set[str] = set()

    def add(self, node: Any) -> None:
        """A node that stays as it is, and reads maps."""
        for name in node.input:
            self.need_map(name)
        self.nodes.append(node)

    def add_by_pixel(self, node: Any) -> bool:
        """A node between products that does the same to every pixel, where it reads only pixels; returns whether it is one."""
        if _BY_PIXEL.get(node.op_type) != len(node.input) or not all(name in self._only_pixels for name in node.input):
            return False
        if len({self.shapes[name] for name in node.input}) > 1:  # one is stretched over the other
            return False
        rows = self._node(node.op_type, f"{node.output[0]}/pixels", [self._pixels[name] for name in node.input])
        self._made_pixels(node.output[0], rows)
        return True

    def add_product(self, node: Any, filters: NDArray[np.float32]) -> None:
        """A convolution."""
        seen, made = self.shapes[node.input[0]], self.shapes[node.output[0]]
        assert seen is not None
        assert made is not None
        count, channels, *kernel = filters.shape
        rows = self._pixels_of(node.input[0])
        which = np.array(list(_pixels_seen(node, kernel, seen[1:], made[1:])))
        pixels, named = seen[1] * seen[2], f"{node.output[0]}/"
        if kernel != [1, 1] or not np.array_equal(which, np.arange(pixels)):
            if which.max() == pixels:  # beyond the edge: a pixel of zeros
                rows = self._node("Pad", f"{named}padded", [rows, self._constant("one_more_pixel", [0, 0, 0, 0, 1, 0])])
            rows = self._node("Gather", f"{named}gathered", [rows, self._constant(f"{named}which", which)], axis=1)
            shape = [0, made[1] * made[2], kernel[0] * kernel[1] * channels]
            rows = self._node("Reshape", f"{named}seen", [rows, self._constant(f"{named}seen_shape", shape)])
        columns = np.ascontiguousarray(filters.transpose(2, 3, 1, 0).reshape(-1, count))
        product = self._node("MatMul", f"{named}product", [rows, self._constant(f"{named}filters", columns)])
        self.products.append(product)
        if len(node.input) > 2 and node.input[2]:
            product = self._node("Add", f"{named}biased", [product, node.input[2]])
        self._made_pixels(node.output[0], product)

    def need_map(self, name: str) -> None:
        """Make a map of what is only known as pixels."""
        if name not in self._only_pixels:
            return
        self._only_pixels.remove(name)
        shape = self.shapes[name]
        assert shape is not None
        flat = self._pixels[name]
        if shape[1:] != (1, 1):  # of a single pixel both orders are the same
            flat = self._node("Transpose", f"{name}/flat", [flat], perm=[0, 2, 1])
        self._node("Reshape", name, [flat, self._constant(f"{name}/shape", [0, *shape])])

    def _pixels_of(self, name: str) -> str:
        if name not in self._pixels:
            shape = self.shapes[name]
            assert shape is not None
            single = shape[1:] == (1, 1)
            sides = [1, shape[0]] if single else [shape[0], shape[1] * shape[2]]
            flat = self._node("Reshape", f"{name}/flat", [name, self._constant(f"{name}/flat_shape", [0, *sides])])
            self._pixels[name] = flat if single else self._node("Transpose", f"{name}/pixels", [flat], perm=[0, 2, 1])
        return self._pixels[name]

    def _made_pixels(self, name: str, rows: str) -> None:
        self._pixels[name] = rows
        self._only_pixels.add(name)

    def _node(self, kind: str, output: str, inputs: list[str], **attributes: Any) -> str:
        from onnx import helper

        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def _constant(self, name: str, values: Any) -> str:
        self.constants[name] = np.asarray(values)
        return name


def _sides(value: Any) -> tuple[int, int, int] | None:
    """(C, H, W) of a map (B, C, H, W), where the graph fixes them."""
    axes = value.type.tensor_type.shape.dim
    if len(axes) != 4 or not all(axis.dim_value > 0 for axis in axes[1:]):
        return None
    return axes[1].dim_value, axes[2].dim_value, axes[3].dim_value


def _waits_for_weights(node: Any, heavy: dict[str, Any], shapes: dict[str, tuple[int, int, int] | None]) -> bool:
    if node.op_type != "Conv" or node.input[1] not in heavy or shapes.get(node.input[0]) is None:
        return False
    made, how = shapes.get(node.output[0]), _attributes(node)
    plain = how.get("group", 1) == 1 and how.get("auto_pad", b"NOTSET") == b"NOTSET"
    return plain and made is not None and made[1] * made[2] <= _FEW_PLACES


def _pixels_seen(node: Any, kernel: list[int], seen: tuple[int, int], made: tuple[int, int]) -> Iterator[int]:
    """For every place and every weight of a filter there: which pixel it is applied to; one more than the last beyond the edge."""
    how = _attributes(node)
    strides, dilations = how.get("strides", [1, 1]), how.get("dilations", [1, 1])
    above, left = how.get("pads", [0, 0, 0, 0])[:2]
    for place_y, place_x in np.ndindex(*made):
        for weight_y, weight_x in np.ndindex(*kernel):
            y = place_y * strides[0] - above + weight_y * dilations[0]
            x = place_x * strides[1] - left + weight_x * dilations[1]
            inside = 0 <= y < seen[0] and 0 <= x < seen[1]
            yield y * seen[1] + x if inside else seen[0] * seen[1]


def _attributes(node: Any) -> dict[str, Any]:
    from onnx import helper

    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def head_layers(module: nn.Module) -> dict[str, nn.GRUCell | nn.Linear]:
    """{name: layer} of the heads in a part: every GRU and linear layer outside of the encoder, and the encoder's own head."""
    inside: set[nn.Module] = set()
    for encoder in (inner for inner in module.modules() if isinstance(inner, Encoder)):
        own = encoder.backbone.get_classifier()
        inside |= set(encoder.modules()) - set(own if isinstance(own, tuple) else [own])
    return {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, (nn.GRUCell, nn.Linear)) and layer not in inside
    }


def write_light(part: Part, file: Path, light: Path) -> None:
    """Write the graph `file` of a part once more, with light weights."""
    try:
        import onnx
        from onnxruntime import quantization
        from onnxruntime.quantization.quant_utils import add_pre_process_metadata
    except ModuleNotFoundError as error:
        raise MissingExtra(str(error.name), "export") from None
    model = onnx.load(file)
    add_pre_process_metadata(model)  # the graph is preprocessed already: no warning is needed
    names = [*_products(model, [f"{name}." for name in head_layers(part.module)]), *convolutions_as_products(model)]
    # The quantiser transposes weights, and would not change what is noted of their shapes.
    del model.graph.value_info[:]
    with replace_files(light) as aside:
        written = aside / light.name
        if names:
            quantization.quantize_dynamic(
                model,
                written,
                op_types_to_quantize=["MatMul", "Gemm"],
                nodes_to_quantize=names,
                per_channel=True,
                reduce_range=True,  # weights of 7 bits: processors without VNNI would overflow
                weight_type=quantization.QuantType.QInt8,
            )
        else:
            onnx.save(model, written)


def _products(model: Any, beginnings: list[str]) -> list[str]:
    """The names of the products whose weights are a head's; the quantiser makes a Gemm a MatMul, and renames it."""
    weights = {tensor.name: math.prod(tensor.dims) for tensor in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type in ("Gemm", "MatMul")]
    own = [node for node in nodes if node.input[1].startswith(tuple(beginnings))]
    heads = [node.name for node in own if weights.get(node.input[1], 0) >= HEAVY]
    return [*heads, *(f"{name}_MatMul" for name in heads)]


def is_whole(file: Path) -> bool:
    """Whether a graph is there, and is byte for byte what was written."""
    try:
        return read_file(hash_file(file), 1024) == _hash_of(file).encode()
    except OSError:
        return False


def note_hash(file: Path) -> None:
    """Write the hash of a graph beside it."""
    with suppress(OSError):  # a full disk: the graph is written again next time
        write_text(hash_file(file), _hash_of(file))


def hash_file(file: Path) -> Path:
    """The file with the hash of a graph."""
    return file.with_name(f"{file.name}.sha256")


def _hash_of(file: Path) -> str:
    """Hash of a graph, and of the weights beside it where the graph is large."""
    weights = file.with_name(f"{file.name}.data")
    return " ".join(fingerprint(each) for each in ([file, weights] if weights.exists() else [file]))


def part_fingerprint(part: Part) -> str:
    """Hash of a part's weights and modules, and of the versions that write its graph: if one of them differs, the file differs."""
    about = [part.name, part.inputs, part.outputs, part.shapes, part.px, str(part.module)]
    weights = [value for named in part.module.state_dict().items() for value in named]
    return fingerprint([*about, glancefocus.__version__, torch.__version__], *weights)[:20]
