"""Parts as ONNX graphs, run by ONNX Runtime."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glancefocus.errors import BadSetting, MissingExtra


class OnnxRunner:
    """One session for each part.

    graphs   {part: file}; int8 graphs are run like any other
    device   where tensors come from and go to; on a GPU ONNX Runtime must have its CUDA provider
    threads  for one part; None: as many as torch uses
    """

    def __init__(
        self, graphs: Mapping[str, Path], *, device: torch.device | None = None, threads: int | None = None
    ) -> None:
        self.device = torch.device("cpu") if device is None else device
        self._onnxruntime = _import(self.device)
        self.sessions = {
            part: self._open(file, torch.get_num_threads() if threads is None else threads)
            for part, file in graphs.items()
        }
        self._inputs = {part: [v.name for v in session.get_inputs()] for part, session in self.sessions.items()}
        self._outputs = {part: [v.name for v in session.get_outputs()] for part, session in self.sessions.items()}

    def __call__(self, part: str, *inputs: Tensor) -> Sequence[Tensor]:
        session, names = self.sessions[part], self._inputs[part]
        inputs = tuple(tensor.detach().contiguous() for tensor in inputs)
        if self.device.type == "cuda":
            return self._on_gpu(session, names, inputs)
        given = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}
        return [torch.from_numpy(output) for output in session.run(self._outputs[part], given)]

    def _on_gpu(self, session: Any, names: Sequence[str], inputs: Sequence[Tensor]) -> list[Tensor]:
        """Reads the inputs where they are; the outputs stay on the GPU."""
        binding = session.io_binding()
        index = self.device.index or 0
        torch.cuda.current_stream(self.device).synchronize()  # ONNX Runtime has a stream of its own
        for name, tensor in zip(names, inputs, strict=True):
            binding.bind_input(name, "cuda", index, "float32", tuple(tensor.shape), tensor.data_ptr())
        for output in session.get_outputs():
            binding.bind_output(output.name, "cuda", index)
        session.run_with_iobinding(binding)
        return [torch.utils.dlpack.from_dlpack(value._ortvalue.to_dlpack()) for value in binding.get_outputs()]

    def _open(self, file: Path, threads: int) -> Any:
        onnxruntime = self._onnxruntime
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = 3  # errors
        # Threads that spin while they wait would take the cores that resizing, cropping and the loop need.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        providers: list[Any] = ["CPUExecutionProvider"]
        if self.device.type == "cuda":
            providers.insert(0, ("CUDAExecutionProvider", {"device_id": self.device.index or 0}))
        try:
            return onnxruntime.InferenceSession(str(file), options, providers=providers)
        except Exception as error:  # ONNX Runtime raises classes of its own, which it does not make public
            if "pybind11_state" not in type(error).__module__:
                raise
            raise BadSetting(
                f"{file} is not a graph that ONNX Runtime can run ({str(error).splitlines()[0]}). Delete it or export it again."
            ) from None


def _import(device: torch.device) -> Any:
    try:
        import onnxruntime
    except ModuleNotFoundError:
        raise MissingExtra("onnxruntime", "export") from None
    if device.type == "cuda" and not onnx_has_gpu():
        raise BadSetting(
            "the network is on a GPU, and this ONNX Runtime only computes on the CPU. Install onnxruntime-gpu in its place, "
            "or use the runtime 'compile'."
        )
    return onnxruntime


def onnx_has_gpu() -> bool:
    """Whether this ONNX Runtime computes on GPUs."""
    import onnxruntime

    return "CUDAExecutionProvider" in onnxruntime.get_available_providers()
