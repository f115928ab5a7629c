"""Words that several verbs of `gf` share."""

from typing import Annotated

from cyclopts import Parameter

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
        help="Who computes: eager, compile, onnx, openvino, plain, or auto for the fastest here. Answers are the same."
    ),
]
Threads = Annotated[int | None, Parameter(help="Threads of the CPU to compute with.")]
LightWeights = Annotated[
    bool,
    Parameter(
        negative="",
        help="With --runtime onnx or eager: int8 weights where reading them takes the time, for single pictures and small "
        "batches. They are rounded, so answers may differ now and then.",
    ),
]
