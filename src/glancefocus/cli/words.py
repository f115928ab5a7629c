"""Words that several verbs of `gf` share."""

from typing import Annotated

from cyclopts import Parameter

from glancefocus import values

BundleName = Annotated[
    str,
    Parameter(
        help="A folder written by training or by `gf import`, or hf://user/name (hf://user/name@revision) on Hugging Face's hub."
    ),
]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON for machines instead of a table.")]
Runtime = Annotated[
    str | None,
    Parameter(
        help="Inference backend: eager, compile, onnx, openvino, plain, or auto (the fastest here). Answers are the same."
    ),
]
Threads = Annotated[values.Threads | None, Parameter(help="CPU threads to compute with.")]
LightWeights = Annotated[
    bool,
    Parameter(
        negative="",
        help="With --runtime onnx: int8 weights in memory-bound layers, faster for single pictures and small batches. "
        "They are rounded, so a few answers may differ.",
    ),
]
