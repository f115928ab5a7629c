"""Parts as ONNX graphs, run by ONNX Runtime."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glancefocus.errors import BadSetting, ForkedThreads, MissingExtra
from glancefocus.runtime.runner import watch


class OnnxRunner:
    """One session for each part, on the CPU. Several threads may call it at the same time.

    graphs   {part: file}; int8 graphs are run like any other
    threads  for one part; None: as many as torch uses
    """

    def __init__(self, graphs: Mapping[str, Path], *, threads: int | None = None) -> None:
        self.threads = torch.get_num_threads() if threads is None else threads
        self.lost_threads = False
        self.sessions = {part: open_session(file, self.threads) for part, file in graphs.items()}
        self._inputs = {part: [v.name for v in session.get_inputs()] for part, session in self.sessions.items()}
        self._outputs = {part: [v.name for v in session.get_outputs()] for part, session in self.sessions.items()}
        watch(self)

    def __call__(self, part: str, *inputs: Tensor) -> Sequence[Tensor]:
        if self.lost_threads:
            raise ForkedThreads(self.threads)
        arrays = (tensor.detach().contiguous().numpy() for tensor in inputs)
        given = dict(zip(self._inputs[part], arrays, strict=True))
        return [torch.from_numpy(output) for output in self.sessions[part].run(self._outputs[part], given)]

    def held(self) -> list[Any]:
        return list(self.sessions.values())


def open_session(graph: Path | bytes, threads: int) -> Any:
    """A session for a graph: a file, or the content of one."""
    try:
        import onnxruntime
    except ModuleNotFoundError:
        raise MissingExtra("onnxruntime", "export") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3  # errors
    # Threads spin while they wait for their share of a graph, but not from one run to the next: then they would take the cores
    # that resizing, cropping and the loop need.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    try:
        content = graph if isinstance(graph, bytes) else str(graph)
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        if "pybind11_state" not in type(error).__module__:  # ONNX Runtime's own error classes are not public
            raise
        name = "the graph of all looks" if isinstance(graph, bytes) else graph
        raise BadSetting(
            f"{name} is not a graph that ONNX Runtime can run ({str(error).splitlines()[0]}). Delete it or export it again."
        ) from None
