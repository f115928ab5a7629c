"""Convolutions as products in ONNX graphs: the same numbers, whatever their kernel, stride and edge."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from glancefocus.network.model import GlanceFocus
from glancefocus.network.parts import Part, take_apart
from glancefocus.runtime import onnx_writing
from glancefocus.runtime.onnx_writing import convolutions_as_products, write_light, write_onnx

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def answers(model: Any, inputs: tuple[Tensor, ...]) -> list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return list(session.run(None, {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}))


def counts(model: Any) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


class Block(nn.Module):
    """Convolutions of every kind, a residual sum between them, and a map that both a product and a pooling read."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.Conv2d(3, 8, 1, bias=False)
        self.wide = nn.Conv2d(8, 8, 3, padding=1)
        self.strided = nn.Conv2d(8, 6, 3, stride=2, padding=1)
        self.skipped = nn.Conv2d(8, 6, 1, stride=2)
        self.dilated = nn.Conv2d(6, 4, 3, padding=2, dilation=2)
        self.grouped = nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.covering = nn.Conv2d(6, 4, (4, 3), bias=False)  # as large as the map that it sees
        self.stretched = nn.Conv2d(6, 4, (4, 1))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        seen = torch.relu(self.wide(torch.relu(self.narrow(images))))
        both = torch.relu(self.strided(seen) + self.skipped(seen))
        row = self.covering(both) + self.stretched(both)
        return self.grouped(self.dilated(both)) + row, seen.mean(dim=(2, 3)) + both.mean()


def written(part: Part, tmp_path: Path) -> Any:
    write_onnx(part, tmp_path / "part.onnx")
    return onnx.load(tmp_path / "part.onnx")


def block_part() -> Part:
    torch.manual_seed(0)
    return Part("block", Block().eval(), ("images",), ("map", "average"), ((3, 7, 5),))


def test_products_give_the_numbers_of_convolutions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_writing, "HEAVY", 0)
    part = block_part()
    model = written(part, tmp_path)
    images = (torch.randn(3, 3, 7, 5),)
    expected = answers(model, images)
    products = convolutions_as_products(model)
    onnx.checker.check_model(model)
    kinds = counts(model)
    assert len(products) == kinds["MatMul"] == 7
    assert kinds["Conv"] == 1  # each group has weights of its own: not a product
    for found, wanted in zip(answers(model, images), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    names = [tensor.name for tensor in model.graph.initializer]
    assert "narrow.weight" not in names  # weights are there once
    assert "grouped.weight" in names


def test_between_products_pixels_stay_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One transposition into pixels, one out of them for the grouped convolution, one each for the maps that are averaged, and one
    for the larger of two of which one is stretched over the other: the smaller is a pixel."""
    monkeypatch.setattr(onnx_writing, "HEAVY", 0)
    model = written(block_part(), tmp_path)
    convolutions_as_products(model)
    assert counts(model)["Transpose"] == 5


class Gate(nn.Module):
    """Squeeze and excite: convolutions of a map of one pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(6, 4, 1)
        self.excite = nn.Conv2d(4, 6, 1)

    def forward(self, images: Tensor) -> Tensor:
        pooled = images.mean(dim=(2, 3), keepdim=True)
        return images * torch.sigmoid(self.excite(torch.relu(self.squeeze(pooled))))


def test_a_map_of_one_pixel_is_never_transposed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_writing, "HEAVY", 0)
    torch.manual_seed(0)
    model = written(Part("gate", Gate().eval(), ("images",), ("gated",), ((6, 9, 9),)), tmp_path)
    images = (torch.randn(3, 6, 9, 9),)
    expected = answers(model, images)
    assert len(convolutions_as_products(model)) == 2
    onnx.checker.check_model(model)
    np.testing.assert_allclose(answers(model, images)[0], expected[0], rtol=1e-5, atol=1e-5)
    assert counts(model)["Transpose"] == 0


def test_light_layers_and_large_maps_stay_convolutions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = block_part()
    assert convolutions_as_products(written(part, tmp_path)) == []
    monkeypatch.setattr(onnx_writing, "HEAVY", 0)
    monkeypatch.setattr(onnx_writing, "_FEW_PLACES", 12)  # 4 by 3, after the strided ones
    model = written(part, tmp_path)
    assert len(convolutions_as_products(model)) == 5
    assert counts(model)["Conv"] == 3


def test_a_part_with_light_weights_answers_nearly_alike(
    small_net: Callable[..., GlanceFocus], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights and inputs of each product keep 7 to 8 bits, and errors of a chain of them add up."""
    monkeypatch.setattr(onnx_writing, "HEAVY", 512)
    monkeypatch.setattr("glancefocus.runtime.onnx_writing.HEAVY", 512)
    part = next(part for part in take_apart(small_net()) if part.name == "focus")
    full, light = tmp_path / "focus.onnx", tmp_path / "focus.light.onnx"
    write_onnx(part, full)
    write_light(part, full, light)
    kinds = counts(onnx.load(light))
    assert kinds["MatMulInteger"] > 3
    assert kinds["Conv"] < counts(onnx.load(full))["Conv"]
    inputs = part.example(4, generator=torch.Generator().manual_seed(0))
    for found, wanted in zip(answers(onnx.load(light), inputs), answers(onnx.load(full), inputs), strict=True):
        assert 0 < np.abs(found - wanted).max() < 0.1 * np.abs(wanted).max()
