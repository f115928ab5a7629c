"""Parts as torch modules made ready for answering: batch norms folded, channels last, no gradients."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from glancefocus.errors import BadSetting
from glancefocus.network.parts import Part
from glancefocus.runtimes.buckets import in_buckets
from glancefocus.runtimes.cuda_graphs import CudaGraphs
from glancefocus.runtimes.folding import fold_batch_norms
from glancefocus.runtimes.light_heads import lighten


class EagerRunner:
    """Runs copies of the parts; the network that they came from stays as it is.

    half         on a GPU: weights and arithmetic in half precision; what goes in and out stays float32
    cuda_graphs  on a GPU: each part is recorded once for every bucket of batch sizes and then replayed, without Python in between
    light_heads  int8 weights in the heads, see light_heads.py
    """

    def __init__(
        self, parts: Sequence[Part], *, half: bool = False, cuda_graphs: bool = False, light_heads: bool = False
    ) -> None:
        self.device = device_of(parts)
        check_for_gpu(self.device, half=half, cuda_graphs=cuda_graphs)
        self.half = half
        self.modules = ready_modules(parts)
        if light_heads:
            lighten(self.modules.values())
        if half:
            for module in self.modules.values():
                module.half()
        self.graphs = CudaGraphs(self.modules) if cuda_graphs else None

    @torch.inference_mode()
    def __call__(self, part: str, *inputs: Tensor) -> Sequence[Tensor]:
        if self.half:
            inputs = tuple(tensor.half() for tensor in inputs)
        inputs = tuple(channels_last(tensor) for tensor in inputs)
        if self.graphs is not None:
            graphs = self.graphs
            outputs: Sequence[Tensor] = in_buckets(lambda *filled: graphs(part, *filled), inputs)
        else:
            outputs = as_tuple(self.modules[part](*inputs))
        return [tensor.float() for tensor in outputs] if self.half else outputs


def ready_modules(parts: Sequence[Part]) -> dict[str, nn.Module]:
    """Copies of the parts' modules, which share among them what the parts share, with batch norms folded, channels last."""
    copies = {part.name: module for part, module in zip(parts, _copies(parts), strict=True)}
    device = device_of(parts)
    for part in parts:
        module = copies[part.name].eval().requires_grad_(False)
        fold_batch_norms(module, tuple(tensor.to(device) for tensor in part.example(1)))
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return copies


def _copies(parts: Sequence[Part]) -> list[nn.Module]:
    return copy.deepcopy([part.module for part in parts])


def device_of(parts: Sequence[Part]) -> torch.device:
    """Where the weights are."""
    return next((p.device for part in parts for p in part.module.parameters()), torch.device("cpu"))


def channels_last(tensor: Tensor) -> Tensor:
    """Images laid out as convolutions like them; clips and vectors as they are."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def as_tuple(outputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The outputs of a part, also where there is only one."""
    return (outputs,) if isinstance(outputs, Tensor) else outputs


def check_for_gpu(device: torch.device, **wishes: bool) -> None:
    """Refuse on a CPU what only a GPU can do."""
    for name, wished in wishes.items():
        if wished and device.type != "cuda":
            raise BadSetting(
                f"{name} is for a GPU, but the network is on the {device.type}. Move it to a GPU, or leave {name} out."
            )
