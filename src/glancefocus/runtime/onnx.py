"""Parts as ONNX graphs, run by ONNX Runtime."""

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glancefocus.errors import BadSetting, ForkedThreads, GlancefocusError, MissingExtra
from glancefocus.runtime.forking import watch
from glancefocus.runtime.one_graph import INPUTS, OUTPUTS, one_graph
from glancefocus.settings import NetworkSettings


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
        self.graphs = dict(graphs)
        self.threads = torch.get_num_threads() if threads is None else threads
        self.lost_threads = False
        self.sessions = {part: open_session(file, self.device, self.threads) for part, file in graphs.items()}
        self._inputs = {part: [v.name for v in session.get_inputs()] for part, session in self.sessions.items()}
        self._outputs = {part: [v.name for v in session.get_outputs()] for part, session in self.sessions.items()}
        watch(self)

    def __call__(self, part: str, *inputs: Tensor) -> Sequence[Tensor]:
        if self.lost_threads:
            raise ForkedThreads(self.threads)
        session, names = self.sessions[part], self._inputs[part]
        inputs = tuple(tensor.detach().contiguous() for tensor in inputs)
        if self.device.type == "cuda":
            return self._on_gpu(session, names, inputs)
        given = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}
        return [torch.from_numpy(output) for output in session.run(self._outputs[part], given)]

    def held(self) -> list[Any]:
        return list(self.sessions.values())

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


class OnnxAllLooks:
    """The graph of all looks, see one_graph.py. It is put together and opened when somebody first looks at a single image.

    graphs   {part: file}, which must still be there then
    threads  for the graph
    profile  where to write what each node takes, beginning with this; None: nowhere
    """

    def __init__(
        self,
        graphs: Mapping[str, Path],
        settings: NetworkSettings,
        policy_units: int,
        threads: int,
        profile: Path | None = None,
    ) -> None:
        self.graphs = dict(graphs)
        self.settings = settings
        self.policy_units = policy_units
        self.threads = threads
        self.profile = profile
        self.session: Any = None
        self.lost_threads = False
        self._tried = False
        self._opening = threading.Lock()
        watch(self)

    def profiled(self, file: Path) -> "OnnxAllLooks":
        """The same, which takes notes of its time, see seconds_of_nodes."""
        return OnnxAllLooks(self.graphs, self.settings, self.policy_units, self.threads, file)

    @property
    def opens(self) -> bool:
        """Opens the graph when first asked. False where that fails, and while another thread does it: then the loop runs."""
        if not self._tried and self._opening.acquire(blocking=False):
            try:
                self.session = self.session or self._open()
                self._tried = True
            finally:
                self._opening.release()
        return self.session is not None

    def _open(self) -> Any:
        """None where the parts cannot be put together, or are not there any more."""
        try:
            model = one_graph(self.graphs, self.settings, self.policy_units)
            return open_session(model.SerializeToString(), torch.device("cpu"), self.threads, self.profile)
        except (GlancefocusError, OSError):
            return None

    def held(self) -> list[Any]:
        return [] if self.session is None else [self.session]

    def __call__(self, *inputs: NDArray[np.float32]) -> Sequence[Any] | None:
        if self.lost_threads:
            raise ForkedThreads(self.threads)
        try:
            outputs: Sequence[Any] = self.session.run(OUTPUTS, dict(zip(INPUTS, inputs, strict=True)))
        except Exception as error:
            if not _is_of_onnx_runtime(error):
                raise
            return None  # numbers that are none, aimed nowhere; the loop says what is wrong
        return outputs

    def seconds_of_nodes(self) -> list[tuple[str, float]]:
        """(name, seconds) of every node each time that it was run, but not of those that run others. Ends the profile."""
        events = json.loads(Path(self.session.end_profiling()).read_text(encoding="utf-8"))
        ending = "_kernel_time"
        return [
            (str(event["name"]).removesuffix(ending), 1e-6 * float(event["dur"]))
            for event in events
            if event["name"].endswith(ending) and event["args"]["op_name"] not in ("Loop", "If")
        ]


def open_session(graph: Path | bytes, device: torch.device, threads: int, profile: Path | None = None) -> Any:
    """A session for a graph: a file, or what would be in one."""
    onnxruntime = _import(device)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3  # errors
    # Threads spin while they wait for their share of a graph, but not from one run to the next: then they would take the cores
    # that resizing, cropping and the loop need.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if profile is not None:
        options.enable_profiling, options.profile_file_prefix = True, str(profile)
    providers: list[Any] = ["CPUExecutionProvider"]
    if device.type == "cuda":
        providers.insert(0, ("CUDAExecutionProvider", {"device_id": device.index or 0}))
    try:
        return onnxruntime.InferenceSession(
            graph if isinstance(graph, bytes) else str(graph), options, providers=providers
        )
    except Exception as error:
        if not _is_of_onnx_runtime(error):
            raise
        name = "the graph of all looks" if isinstance(graph, bytes) else graph
        raise BadSetting(
            f"{name} is not a graph that ONNX Runtime can run ({str(error).splitlines()[0]}). Delete it or export it again."
        ) from None


def _is_of_onnx_runtime(error: Exception) -> bool:
    """ONNX Runtime raises classes of its own, which it does not make public."""
    return "pybind11_state" in type(error).__module__


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
