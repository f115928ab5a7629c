"""CUDA graphs: a part is recorded once for every shape of its inputs, and then replayed by the GPU without Python in between."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_WARM_UP = 3  # libraries choose their algorithms and allocate in the first runs, which must not be recorded


@dataclass(frozen=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


class CudaGraphs:
    """Runs modules by recordings, one for every shape that comes; give it few shapes (see buckets.py)."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self.modules = modules
        self._recordings: dict[tuple[str, tuple[torch.Size, ...]], _Recording] = {}

    def __call__(self, part: str, *inputs: Tensor) -> Sequence[Tensor]:
        key = part, tuple(tensor.shape for tensor in inputs)
        if key not in self._recordings:
            self._recordings[key] = _record(self.modules[part], inputs)
        recording = self._recordings[key]
        for place, tensor in zip(recording.inputs, inputs, strict=True):
            place.copy_(tensor)
        recording.graph.replay()
        return [output.clone() for output in recording.outputs]  # the next replay writes over them


def _record(module: nn.Module, inputs: tuple[Tensor, ...]) -> _Recording:
    places = tuple(tensor.clone() for tensor in inputs)
    aside = torch.cuda.Stream(places[0].device)  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream(places[0].device))
    with torch.cuda.stream(aside):
        for _ in range(_WARM_UP):
            module(*places)
    torch.cuda.current_stream(places[0].device).wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = module(*places)
    return _Recording(graph, places, (outputs,) if isinstance(outputs, Tensor) else tuple(outputs))
