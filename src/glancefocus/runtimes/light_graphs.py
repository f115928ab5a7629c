"""Light weights in ONNX graphs: int8 in heads and where a convolution waits for its weights, everything else as it was."""

import math
import os
from pathlib import Path
from typing import Any

from glancefocus.errors import MissingExtra
from glancefocus.files import folder_aside
from glancefocus.network.parts import Part
from glancefocus.runtimes.few_places import HEAVY, convolutions_as_products
from glancefocus.runtimes.light_heads import head_layers


def write_light(part: Part, file: Path, light: Path) -> None:
    """Write the graph `file` of a part once more, with light weights."""
    try:
        import onnx
        from onnxruntime import quantization
        from onnxruntime.quantization.quant_utils import add_pre_process_metadata
    except ModuleNotFoundError as error:
        raise MissingExtra(str(error.name), "export") from None
    model = onnx.load(file)
    add_pre_process_metadata(model)  # the graph is clean already: nobody needs to be told to clean it
    names = [*_products(model, [f"{name}." for name in head_layers(part.module)]), *convolutions_as_products(model)]
    # The quantiser transposes weights, and would not change what is noted of their shapes.
    del model.graph.value_info[:]
    with folder_aside(light) as aside:
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
        os.replace(written, light)


def _products(model: Any, beginnings: list[str]) -> list[str]:
    """The names of the products whose weights are a head's; the quantiser makes a Gemm a MatMul, and renames it."""
    weights = {tensor.name: math.prod(tensor.dims) for tensor in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type in ("Gemm", "MatMul")]
    own = [node for node in nodes if node.input[1].startswith(tuple(beginnings))]
    heads = [node.name for node in own if weights.get(node.input[1], 0) >= HEAVY]
    return [*heads, *(f"{name}_MatMul" for name in heads)]
