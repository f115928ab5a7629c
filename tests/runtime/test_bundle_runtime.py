"""A bundle whose network looks by another runtime: loading, predicting, milliseconds, the command."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import glancefocus as gf
from glancefocus.bundle.bundle import Bundle
from glancefocus.bundle.files import read_latency
from glancefocus.cli.main import main
from glancefocus.errors import BadSetting, UnknownName
from glancefocus.evaluation.latency import measure_latency
from glancefocus.runtime import onnx_writing

Run = Callable[..., str]


@pytest.fixture(scope="module")
def folder(small_bundle: Callable[..., Bundle], tmp_path_factory: pytest.TempPathFactory) -> Path:
    bundle = small_bundle()
    bundle.thresholds = (0.4, 0.4, 0.0)
    return bundle.save(tmp_path_factory.mktemp("runtime") / "bundle")


@pytest.fixture(autouse=True)
def shared_cache(graph_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLANCEFOCUS_CACHE", str(graph_cache))


@pytest.mark.parametrize("runtime", ["eager", "onnx", "openvino", "plain"])
def test_a_bundle_predicts_the_same_in_every_runtime(folder: Path, runtime: str) -> None:
    images = torch.rand(6, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    own, other = gf.load(folder, device="cpu"), gf.load(folder, device="cpu", runtime=runtime)
    assert (own.runtime, other.runtime) == (None, runtime)
    expected, found = own.predict(images), other.predict(images)
    assert found.label == expected.label
    assert torch.equal(found.looks, expected.looks)
    torch.testing.assert_close(found.confidence, expected.confidence, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("runtime", ["onnx", "openvino"])
def test_graphs_say_the_best_answer_themselves(folder: Path, runtime: str) -> None:
    images = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    bundle = gf.load(folder, device="cpu", runtime=runtime)
    look = bundle.net.glance(images)
    for _ in range(2):
        confidence, answer = look.logits.softmax(dim=1).max(dim=1)
        assert look.known_best is not None
        torch.testing.assert_close(look.known_best[0], confidence)
        assert torch.equal(look.known_best[1], answer)
        look = bundle.net.focus(look, bundle.net.policy.aim(look))


@pytest.fixture
def all_weights_are_heavy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that those of a small network are light, too; their graphs must not be found by others."""
    monkeypatch.setenv("GLANCEFOCUS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(onnx_writing, "HEAVY", 1)


@pytest.mark.usefixtures("all_weights_are_heavy")
def test_light_weights_are_another_runtime_and_another_network(folder: Path) -> None:
    images = torch.rand(6, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    bundle, own = gf.load(folder, device="cpu", runtime="onnx", light_weights=True), gf.load(folder, device="cpu")
    assert bundle.runtime == "onnx, light weights"
    assert bundle.fingerprint != own.fingerprint == gf.load(folder, device="cpu", runtime="onnx").fingerprint
    found, expected = bundle.predict(images, looks=1), own.predict(images, looks=1)
    moved = (found.logits - expected.logits).abs().max()
    assert 0 < moved < 0.2 * expected.logits.abs().max()
    bundle.latencies = [measure_latency(bundle, repeats=1)]
    assert bundle.latency_here() is not None
    assert bundle.use("onnx").latency_here() is None


def test_light_weights_are_refused_where_no_part_reads_them(folder: Path) -> None:
    with pytest.raises(BadSetting, match="light weights are for ONNX Runtime. Name it, too"):
        gf.load(folder, light_weights=True)
    with pytest.raises(BadSetting, match="light_weights is for the runtime onnx, not for 'openvino'"):
        gf.load(folder, device="cpu", runtime="openvino", light_weights=True)


def test_milliseconds_are_those_of_the_runtime(folder: Path) -> None:
    bundle = gf.load(folder, device="cpu", runtime="eager")
    own = measure_latency(gf.load(folder, device="cpu"), repeats=1)
    bundle.latencies = [own]
    assert bundle.latency_here() is None  # those were the network's own
    bundle.latencies.append(measure_latency(bundle, repeats=1))
    assert bundle.latency_here() is bundle.latencies[1]
    assert [latency.runtime for latency in bundle.latencies] == [None, "eager"]
    assert read_latency(json.loads(json.dumps(bundle.latencies[1].to_plain())), "latency") == bundle.latencies[1]
    assert replace(bundle).runtime == bundle.runtime


def test_a_runtime_stays_on_its_device(folder: Path) -> None:
    bundle = gf.load(folder, device="cpu", runtime="eager")
    assert bundle.to("cpu") is bundle
    with pytest.raises(
        BadSetting, match="the runtime 'eager' was opened on the cpu. Load the bundle with device='meta'"
    ):
        bundle.to("meta")


def test_a_misspelt_runtime_is_reported_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="no runtime named 'openvin'. Did you mean 'openvino'"):
        gf.load(tmp_path / "nothing", runtime="openvin")


def test_clips_of_another_length_are_refused_by_every_runtime(folder: Path) -> None:
    looking = gf.load(folder, device="cpu", runtime="eager").net
    with pytest.raises(BadSetting, match="this network looks at images, but got clips of 2 frames"):
        looking.glance(torch.zeros(1, 2, 3, 64, 64))


def test_the_command_takes_a_runtime_and_threads(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    answers = []
    onnx = ["--runtime", "onnx", "--threads", "1"]
    for words in ([], onnx, [*onnx, "--light-weights"]):
        with pytest.raises(SystemExit) as ended:
            main(["predict", str(folder), str(tmp_path / "a.png"), "--json", *words])
        assert ended.value.code == 0
        (answer,) = json.loads(capsys.readouterr().out)
        answers.append(answer)
    assert answers[0]["label"] == answers[1]["label"] == answers[2]["label"]
    assert answers[0]["looks"] == answers[1]["looks"] == answers[2]["looks"]
    with pytest.raises(SystemExit) as ended:
        main(["predict", str(folder), str(tmp_path / "a.png"), "--runtime", "onxx"])
    assert ended.value.code == 2
    assert "there is no runtime named 'onxx'. Did you mean 'onnx'?" in capsys.readouterr().err
