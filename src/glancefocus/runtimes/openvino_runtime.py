"""Parts as ONNX graphs, run by OpenVINO."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glancefocus.errors import BadSetting, MissingExtra


class OpenVinoRunner:
    """One compiled graph for each part, on the CPU, in float32.

    graphs   {part: file}; ONNX, or OpenVINO's own XML
    threads  for one part; None: as many as torch uses
    """

    def __init__(self, graphs: Mapping[str, Path], *, threads: int | None = None) -> None:
        openvino = _import()
        core = openvino.Core()
        hints = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",  # some processors would compute in bfloat16
            "INFERENCE_NUM_THREADS": torch.get_num_threads() if threads is None else threads,
        }
        self._requests: dict[str, Any] = {}
        for part, file in graphs.items():
            try:
                self._requests[part] = core.compile_model(str(file), "CPU", hints).create_infer_request()
            except RuntimeError as error:
                raise BadSetting(
                    f"{file} is not a graph that OpenVINO can run ({str(error).strip().splitlines()[-1]}). "
                    "Delete it or export it again."
                ) from None

    def __call__(self, part: str, *inputs: Tensor) -> Sequence[Tensor]:
        given = [tensor.detach().contiguous().numpy() for tensor in inputs]
        outputs = self._requests[part].infer(given, share_inputs=True)
        return [torch.from_numpy(output) for output in outputs.values()]


def _import() -> Any:
    try:
        import openvino
    except ModuleNotFoundError:
        raise MissingExtra("openvino", "openvino") from None
    return openvino
