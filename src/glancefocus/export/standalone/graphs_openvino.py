"""Graphs by OpenVINO."""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from glancefocus.export.standalone.views import Array


class Graphs:
    """Graphs by OpenVINO, in full precision."""

    def __init__(self, files: dict[str, Path], threads: int) -> None:
        modules: Any = sys.modules
        modules.setdefault("openvino_telemetry", None)  # else it reports its use over the network
        import openvino

        told = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
        core = openvino.Core()
        self.graphs = {name: core.compile_model(str(file), "CPU", told) for name, file in files.items()}

    def __call__(self, graph: str, *inputs: Array) -> list[Array]:
        outputs = (
            self.graphs[graph].create_infer_request().infer(list(inputs))
        )  # one for each call, for calls from several threads
        return [np.array(outputs[index]) for index in range(len(outputs))]
