"""Graphs by ONNX Runtime."""

import os
from pathlib import Path

from glancefocus.export.standalone.views import Array


class Graphs:
    """Graphs by ONNX Runtime."""

    def __init__(self, files: dict[str, Path], threads: int) -> None:
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # else it reports its use over the network
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.sessions = {
            name: onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
            for name, file in files.items()
        }

    def __call__(self, graph: str, *inputs: Array) -> list[Array]:
        session = self.sessions[graph]
        names = [given.name for given in session.get_inputs()]
        outputs: list[Array] = session.run(None, dict(zip(names, inputs, strict=True)))
        return outputs
