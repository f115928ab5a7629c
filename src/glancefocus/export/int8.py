"""Int8 by static quantisation: no training, only some calibration images that say how large numbers become."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from glancefocus.export.quiet import quiet
from glancefocus.export.samples import Sample
from glancefocus.export.standalone.loop import Looker, RunGraph
from glancefocus.export.standalone.views import Array, see

COVERAGES: dict[str, tuple[str, ...] | None] = {"everything": None, "convolutions": ("Conv",)}
"""What is quantised: every operation that can be; or convolutions only, so that heads and memories stay as they are."""

Feeds = dict[str, list[tuple[Array, ...]]]
"""{graph: inputs of every time that it was run}."""


class _Recorded:
    """Runs graphs and keeps what went in."""

    def __init__(self, graphs: RunGraph) -> None:
        self.graphs = graphs
        self.feeds: Feeds = {}

    def __call__(self, graph: str, *inputs: Array) -> list[Array]:
        self.feeds.setdefault(graph, []).append(inputs)
        return self.graphs(graph, *inputs)


class _Reader:
    """Gives recorded inputs to the calibration, one run after the other."""

    def __init__(self, names: list[str], feeds: list[tuple[Array, ...]]) -> None:
        self.feeds = iter([dict(zip(names, feed, strict=True)) for feed in feeds])

    def get_next(self) -> dict[str, Array] | None:
        return next(self.feeds, None)


def record_feeds(looker: Looker, sample: Sample, ways: dict[str, Any]) -> Feeds:
    """What every graph is given while these pictures are looked at: glances, and patches where the policy really aims."""
    recorded = _Recorded(looker.graphs)
    recording = Looker(looker.about, recorded)
    for thresholds in ways.values():
        for pictures in sample.batches():
            recording.look([see(frames, looker.about) for frames in pictures], thresholds)
    return recorded.feeds


def quantise(about: dict[str, Any], folder: Path, feeds: Feeds, coverage: str, into: Path) -> None:
    """Write every ONNX graph of a folder into another one, in int8."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    operations = COVERAGES[coverage]
    for graph in about["graphs"]:
        names = [given["name"] for given in graph["inputs"]]
        with tempfile.TemporaryDirectory(dir=into) as aside, quiet():
            prepared = Path(aside) / "prepared.onnx"
            quant_pre_process(folder / graph["file"], prepared, skip_symbolic_shape=True)
            quantize_static(
                prepared,
                into / graph["file"],
                _Reader(names, feeds[graph["name"]]),
                quant_format=QuantFormat.QDQ,
                op_types_to_quantize=None if operations is None else list(operations),
                per_channel=True,
                # Of weights 7 bits: processors without VNNI add two products of 8 bits into 16, which overflows.
                reduce_range=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
            )


def accuracy(looker: Looker, sample: Sample, thresholds: Any) -> float:
    """Share of right answers."""
    assert sample.labels is not None
    answers: list[int] = []
    for pictures in sample.batches():
        rows = looker.look([see(frames, looker.about) for frames in pictures], thresholds)
        answers += [int(row.logits.argmax()) for row in rows]
    return float((np.array(answers) == np.array(sample.labels)).mean())
