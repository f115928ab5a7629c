"""looks.onnx: the whole loop in one graph, which needs nothing but ONNX Runtime."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from glancefocus.bundle.bundle import Bundle
from glancefocus.errors import BadExport, BadSetting
from glancefocus.export import composing, looks_graph
from glancefocus.export.compare import Sample, made_up, viewed
from glancefocus.export.composing import resize_matrix
from glancefocus.export.contents import FORMATS, write_graphs
from glancefocus.export.looks_graph import fits_one_graph, write_looks_graph
from glancefocus.loop import ExitRule
from glancefocus.region import resized
from glancefocus.settings import GlanceResize

Described = Callable[[Path], dict[str, Any]]


@pytest.mark.parametrize("resize", ["antialias", "bicubic", "bilinear"])
def test_resizing_is_a_product_on_either_side(resize: GlanceResize) -> None:
    image = torch.randn(1, 3, 40, 56, generator=torch.Generator().manual_seed(0))
    product = resize_matrix(40, 24, resize) @ image.numpy() @ resize_matrix(56, 24, resize).T
    np.testing.assert_allclose(product, resized(image, (24, 24), resize).numpy(), atol=1e-5)
    assert np.array_equal(resize_matrix(24, 24, resize), np.eye(24))


def looks_of_both(session: Any, bundle: Bundle, image: torch.Tensor, thresholds: list[float]) -> int:
    """Number of looks that graph and bundle take at an image; fails unless they see and answer the same."""
    given = {"images": image[None].contiguous().numpy(), "thresholds": np.array(thresholds, np.float32)}
    logits, answer, confidence, answers, confidences, where = session.run(None, given)
    outcome = bundle.predict_images([image], ExitRule(thresholds))
    looks = 1 + len(answers)
    assert outcome.looks.tolist() == [looks]
    assert outcome.answer_after[0, :looks].tolist() == [*answer, *answers.ravel()]
    np.testing.assert_allclose([*confidence, *confidences.ravel()], outcome.confidence_after[0, :looks], atol=1e-5)
    np.testing.assert_allclose(logits, outcome.logits, atol=1e-4)
    np.testing.assert_allclose(where.reshape(-1, 2), outcome.where[0, : looks - 1], atol=1e-5)
    return looks


PLACE = {"units": 16, "conv_channels": 4, "place": True}
WIDE = {"height_px": 64, "width_px": 80}


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": PLACE},
        {"focus": ("0.5@48",), "policy": PLACE, "view": WIDE},
        {"focus": ("0.6@48",), "classifier_place": True},
        {"focus": ("40px@32",), "classifier": "summed", "looks": 2},
        {"focus": ("whole@48",), "classifier": "summed", "policy": PLACE, "view": WIDE},
        {"focus": ("whole@64",), "classifier": "cascaded", "first_answer": "own_head"},
        {"first_view": "centre", "policy": PLACE, "view": WIDE},
        {"first_view": "centre", "policy": {**PLACE, "kind": "centre_corner"}, "view": WIDE, "looks": 4},
        {"policy": {**PLACE, "kind": "centre_corner"}, "looks": 4},
        {"first_view": "centre", "classifier_place": True, "view": WIDE},
        {"first_view": "centre", "classifier_place": True, "policy": {**PLACE, "kind": "centre_corner"}, "looks": 4},
    ],
    ids=lambda changes: " ".join(
        [
            *changes.get("focus", ["32"]),
            changes.get("classifier", "recurrent"),
            changes.get("first_view", "glance"),
            changes.get("policy", {}).get("kind", "learnt"),
        ]
    ),
)
def test_one_view_of_any_kind_fits(
    small_bundle: Callable[..., Bundle], tmp_path: Path, changes: dict[str, Any]
) -> None:
    bundle = small_bundle(**changes)
    looks, sample = bundle.settings.looks, made_up(bundle.settings, count=8)
    assert fits_one_graph(bundle)
    graphs = write_graphs(bundle.net, FORMATS["onnx"], tmp_path)
    about = write_looks_graph(bundle, graphs, tmp_path, sample)
    assert about is not None
    assert about["compared"]["same_looks"] == about["compared"]["same_answers"] == 8
    session = onnxruntime.InferenceSession(tmp_path / "looks.onnx")
    for frames in next(sample.batches()):
        assert looks_of_both(session, bundle, viewed(frames, bundle), [1.0] * looks) == looks


def test_it_answers_as_the_bundle_does_by_any_thresholds(
    onnx_folder: Path, exported_bundle: Bundle, described: Described
) -> None:
    session = onnxruntime.InferenceSession(onnx_folder / "looks.onnx")
    manifest = described(onnx_folder)
    taken, own = set(), manifest["thresholds"]
    for frames in next(made_up(exported_bundle.settings, count=12, seed=3).batches()):
        image = viewed(frames, exported_bundle)
        for thresholds in (own, exported_bundle.curve[0]["thresholds"], [1.0, 1.0, 1.0], [1.0]):
            taken.add(looks_of_both(session, exported_bundle, image, thresholds))
    assert taken == {1, 2, 3}
    compared = manifest["one_graph"]["compared"]
    assert compared.pop("confidence_difference") < 1e-5
    assert compared == {"images": 32, "same_answers": 32, "same_looks": 32, "undecided": 0}
    assert manifest["one_graph"]["inputs"][0]["shape"] == [1, 3, *image.shape[1:]]
    assert "`looks.onnx`" in (onnx_folder / "README.md").read_text(encoding="utf-8")


def test_it_is_not_for_other_scores_temperatures_and_several_views(
    exported_bundle: Bundle, small_bundle: Callable[..., Bundle]
) -> None:
    assert fits_one_graph(exported_bundle)
    assert not fits_one_graph(replace(exported_bundle, score="entropy"))
    assert not fits_one_graph(replace(exported_bundle, temperatures=(1.0, 2.0, 1.0)))
    assert not fits_one_graph(small_bundle(focus=("32", "48")))
    assert not fits_one_graph(small_bundle(first_view="random"))


def test_pictures_that_keep_another_size_than_the_views_are_not_for_it(
    onnx_folder: Path, small_bundle: Callable[..., Bundle], described: Described, tmp_path: Path
) -> None:
    manifest = described(onnx_folder)
    for graph in manifest["graphs"]:
        (tmp_path / graph["file"]).write_bytes((onnx_folder / graph["file"]).read_bytes())
    bundle = small_bundle(view={"fit": "whole"})
    other = Sample([torch.zeros(3, 88, 99, dtype=torch.uint8)] * 2, "larger")
    assert write_looks_graph(bundle, manifest["graphs"], tmp_path, other) is None
    assert not (tmp_path / "looks.onnx").exists()


def test_one_that_answers_otherwise_is_refused(
    onnx_folder: Path, exported_bundle: Bundle, described: Described, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = described(onnx_folder)
    for graph in manifest["graphs"]:
        (tmp_path / graph["file"]).write_bytes((onnx_folder / graph["file"]).read_bytes())
    upside_down = resize_matrix(exported_bundle.settings.view.height_px, 32, "antialias")[::-1]
    monkeypatch.setattr(composing, "resize_matrix", lambda side, px, resize: upside_down)
    with pytest.raises(BadExport, match=r"do not answer as .* \(looks.onnx\). The first: image \d+ is class"):
        write_looks_graph(exported_bundle, manifest["graphs"], tmp_path, made_up(exported_bundle.settings))


def test_graphs_that_cannot_be_put_together_are_delivered_without_it(
    onnx_folder: Path, exported_bundle: Bundle, described: Described, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*_: Any, **__: Any) -> None:
        raise BadSetting("no")

    monkeypatch.setattr(looks_graph, "one_graph", cannot)
    graphs = described(onnx_folder)["graphs"]
    assert write_looks_graph(exported_bundle, graphs, onnx_folder, made_up(exported_bundle.settings)) is None
