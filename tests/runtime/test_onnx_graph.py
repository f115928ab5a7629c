"""Graphs that are written answer as the parts do, at every batch size and candidate view."""

import collections
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor

from glancefocus.errors import BadSetting
from glancefocus.network.model import GlanceFocus
from glancefocus.network.parts import Part, take_apart
from glancefocus.runtime.choose import graphs_of
from glancefocus.runtime.onnx_writing import write_onnx


def by_eager(part: Part, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    with torch.inference_mode():
        outputs = part.module(*inputs)
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)


def by_graph(part: Part, file: Path, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == list(part.inputs)
    assert [value.name for value in session.get_outputs()] == list(part.outputs)
    given = {name: value.numpy() for name, value in zip(part.inputs, inputs, strict=True)}
    return tuple(torch.from_numpy(output) for output in session.run(None, given))


def test_every_part_answers_as_a_graph_at_every_batch_and_patch_size(
    small_net: Callable[..., GlanceFocus], graph_cache: Path, kind: dict[str, Any]
) -> None:
    parts = take_apart(small_net(**kind))
    with graphs_of(parts, graph_cache) as files:
        for part in parts:
            file = files[part.name]
            for batch in (1, 3):
                for px in part.px or (None,):
                    inputs = part.example(batch, px, torch.Generator().manual_seed(batch))
                    for graph, eager in zip(by_graph(part, file, inputs), by_eager(part, inputs), strict=True):
                        torch.testing.assert_close(graph, eager, rtol=1e-5, atol=1e-5)
            model = onnx.load(file)
            assert ".py" not in str(model.graph.node)  # nothing of our own folders
            onnx.shape_inference.infer_shapes(model, strict_mode=True)


def test_writing_graphs_leaves_nothing_half_written(small_net: Callable[..., GlanceFocus], tmp_path: Path) -> None:
    with graphs_of(take_apart(small_net(looks=1)), tmp_path) as files:
        assert files
    assert [file.name for file in (tmp_path / "graphs").glob(".*")] in ([], [".lock"])


def test_a_graph_can_be_for_one_batch_and_one_patch_size(small_net: Callable[..., GlanceFocus], tmp_path: Path) -> None:
    focus = take_apart(small_net(focus=("32", "48"), looks=2))[-1]
    write_onnx(focus, tmp_path / "focus.onnx", px=48, batch=1)
    patches, memory = onnxruntime.InferenceSession(tmp_path / "focus.onnx").get_inputs()
    assert patches.shape == [1, 3, 48, 48]
    assert memory.shape == [1, 16]


def test_no_batch_norm_is_left_in_a_graph(small_net: Callable[..., GlanceFocus], tmp_path: Path) -> None:
    glance = take_apart(small_net(backbone="test_efficientnet", looks=1))[0]
    write_onnx(glance, tmp_path / "glance.onnx")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "as_run.onnx")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    onnxruntime.InferenceSession(tmp_path / "glance.onnx", options)
    kinds = collections.Counter(node.op_type for node in onnx.load(tmp_path / "as_run.onnx").graph.node)
    assert kinds["BatchNormalization"] == 0
    assert kinds["Conv"] + kinds["FusedConv"] >= 9


def test_a_size_or_batch_that_a_part_cannot_have_is_refused(
    small_net: Callable[..., GlanceFocus], tmp_path: Path
) -> None:
    glance = take_apart(small_net(looks=1))[0]
    with pytest.raises(BadSetting, match="takes images of \\[32\\] px, but px is 33"):
        write_onnx(glance, tmp_path / "glance.onnx", px=33)
    with pytest.raises(BadSetting, match="a batch of at least 1, but got 0"):
        write_onnx(glance, tmp_path / "glance.onnx", batch=0)


def test_a_place_that_cannot_be_written_is_said(small_net: Callable[..., GlanceFocus], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answer = take_apart(small_net(classifier="cascaded", first_answer="own_head", looks=2))[-1]
    with pytest.raises(BadSetting, match="answer_2.onnx cannot be written: "):
        write_onnx(answer, tmp_path / "file" / "answer_2.onnx")
