"""Parts as ONNX graphs, run by OpenVINO."""

import ctypes
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glancefocus.errors import BadSetting, ForkedThreads, MissingExtra
from glancefocus.runtime.runner import watch


class OpenVinoRunner:
    """One compiled graph for each part, on the CPU, in float32. Several threads may call it at the same time.

    graphs   {part: file}; ONNX, or OpenVINO's own XML
    threads  for one part; None: as many as torch uses
    """

    def __init__(self, graphs: Mapping[str, Path], *, threads: int | None = None) -> None:
        self.threads = torch.get_num_threads() if threads is None else threads
        self.lost_threads = False
        openvino = import_openvino()
        core = openvino.Core()
        hints = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",  # some processors would compute in bfloat16
            "INFERENCE_NUM_THREADS": self.threads,
        }
        self._compiled: dict[str, Any] = {}
        for part, file in graphs.items():
            try:
                self._compiled[part] = core.compile_model(str(file), "CPU", hints)
            except RuntimeError as error:
                raise BadSetting(
                    f"{file} is not a graph that OpenVINO can run ({str(error).strip().splitlines()[-1]}). "
                    "Delete it or export it again."
                ) from None

        # A request holds the inputs and outputs of one call. Those that are not in use wait here for the next call.
        self._idle: dict[str, list[Any]] = {part: [] for part in graphs}
        watch(self)

    def __call__(self, part: str, *inputs: Tensor) -> Sequence[Tensor]:
        if self.lost_threads:
            raise ForkedThreads(self.threads)
        given = [tensor.detach().contiguous().numpy() for tensor in inputs]
        try:
            request = self._idle[part].pop()
        except IndexError:
            request = self._compiled[part].create_infer_request()
        outputs = [torch.from_numpy(output) for output in request.infer(given, share_inputs=True).values()]
        self._idle[part].append(request)
        return outputs

    def __del__(self) -> None:
        self._idle, self._compiled = {}, {}
        _reset_signal_stack()

    def held(self) -> list[Any]:
        return [*self._compiled.values(), *(request for requests in self._idle.values() for request in requests)]


class _SignalStack(ctypes.Structure):
    """stack_t of the C library on Linux."""

    _fields_ = (("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


_NO_SIGNAL_STACK = 2  # SS_DISABLE


def _reset_signal_stack() -> None:
    """Let signals use the ordinary stack of this thread again.

    When OpenVINO frees a compiled graph, it may leave memory that is already freed as the stack for signal handlers. Python's
    handlers use that stack, so the next Ctrl-C would be a segmentation fault.
    """
    if sys.platform == "linux":
        with suppress(Exception):  # Python may be shutting down
            ctypes.CDLL(None).sigaltstack(ctypes.byref(_SignalStack(None, _NO_SIGNAL_STACK, 0)), None)


def import_openvino() -> Any:
    """The package, without the part of it that reports over the network that it is used, and keeps an id in the home folder."""
    modules: Any = sys.modules
    reports = "openvino_telemetry"
    blocked = reports not in modules
    if blocked:
        modules[reports] = None  # as if it were not installed; then OpenVINO has a stub for it
    try:
        import openvino
    except ModuleNotFoundError:
        raise MissingExtra("openvino", "openvino") from None
    finally:
        if blocked:
            del modules[reports]
    return openvino
