"""Parts compiled by torch: kernels written for this network and this machine, at the price of minutes before the first answer."""

import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from glancefocus.errors import BadSetting, UnknownName
from glancefocus.network.parts import Part
from glancefocus.runtimes.buckets import in_buckets
from glancefocus.runtimes.eager import as_tuple, channels_last, check_for_gpu, device_of, ready_modules

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


class CompiledRunner:
    """Runs the parts of EagerRunner compiled, each when it is first used.

    mode     of torch.compile
    buckets  True: one fixed shape for every power of two, which batches are filled up to; needed for CUDA graphs
             (mode reduce-overhead). False: one kernel for one row, one for any number of rows
    backend  of torch.compile
    """

    def __init__(
        self,
        parts: Sequence[Part],
        *,
        mode: str = "default",
        buckets: bool = False,
        half: bool = False,
        backend: str = "inductor",
    ) -> None:
        if mode not in MODES:
            raise UnknownName("mode of torch.compile", mode, MODES, f"There are {', '.join(MODES)}.")
        device = device_of(parts)
        check_for_gpu(device, half=half)
        if backend == "inductor" and device.type == "cpu":
            check_compiler()
        self.buckets = buckets
        self.half = half
        self.modules = {
            name: torch.compile(
                module.half() if half else module,
                dynamic=not buckets,
                backend=backend,
                options=_options(mode) if backend == "inductor" else None,
            )
            for name, module in ready_modules(parts).items()
        }

    @torch.no_grad()  # weights are built into the code only while nobody asks for gradients
    def __call__(self, part: str, *inputs: Tensor) -> Sequence[Tensor]:
        if self.half:
            inputs = tuple(tensor.half() for tensor in inputs)
        inputs = tuple(channels_last(tensor) for tensor in inputs)
        outputs = in_buckets(self._run(part), inputs) if self.buckets else self._run(part)(*inputs)
        return [tensor.float() for tensor in outputs] if self.half else outputs

    def _run(self, part: str) -> Any:
        def run(*inputs: Tensor) -> Sequence[Tensor]:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
            outputs = as_tuple(self.modules[part](*inputs))
            return (
                [output.clone() for output in outputs] if outputs[0].is_cuda else outputs
            )  # the next run writes over them

        return run


def _options(mode: str) -> dict[str, Any]:
    """What torch.compile makes of a mode, with weights built into the code."""
    return {**torch._inductor.list_mode_options(mode), "freezing": True}


def check_compiler() -> None:
    """Refuse where torch would find no C++ compiler."""
    wanted = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(wanted) is None:
        raise BadSetting(
            f"the runtime 'compile' needs a C++ compiler, and there is no {wanted}. "
            "Install one, name it in the variable CXX, or use the runtime 'onnx'."
        )
