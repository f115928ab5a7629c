"""`gf bench`: ratios for people and machines, one sentence for a mistake."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from glancefocus.bundle.bundle import Bundle
from glancefocus.cli.bench import BenchOptions, preset_subject
from glancefocus.evaluation.wall_clock import Case, Subject, Timing, bench

Run = Callable[..., Any]
QUICK = ("--runtime", "eager", "--batch", 4, "--threads", 1, "--rounds", 1)


@pytest.fixture(scope="module")
def run_folder(small_bundle: Callable[..., Bundle], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """run/bundle, run/backbone.safetensors and pets/ with 12 pictures."""
    folder = tmp_path_factory.mktemp("bench")
    bundle = small_bundle()
    with torch.no_grad():
        for parameter in bundle.net.classifier.parameters():
            parameter.mul_(4)
    bundle.save(folder / "run" / "bundle")
    weights = {name: tensor.clone() for name, tensor in bundle.net.focus_encoder.backbone.state_dict().items()}
    safetensors.torch.save_file(weights, folder / "run" / "backbone.safetensors")
    random = np.random.default_rng(0)
    for number in range(12):
        file = folder / "pets" / ("cat", "dog", "eel")[number % 3] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(file)
    return folder


def test_a_preset_is_measured_with_made_up_weights_and_forced_exits(gf: Run) -> None:
    words = ("bench", "gf-mini-48", "--exits", "0.5,0.3,0.1,0.1", "--set", "policy.units=16", *QUICK, "--json")
    (row,) = gf(*words)
    assert (row["runtime"], row["batch"], row["threads"]) == ("eager", 4, 1)
    assert row["exits"] == [10, 6, 2, 2]
    assert row["rounds"] == 1
    assert row["mac_ratio"] == pytest.approx(5.92, abs=0.03)
    assert row["quotient"] == pytest.approx(row["time_ratio"] / row["mac_ratio"], rel=1e-9)


def test_all_runtimes_are_measured_with_and_without_light_weights(gf: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def note(subject: Subject, case: Case, *, rounds: int, **more: Any) -> Timing:
        measured.append((case.runtime, case.light_weights))
        return bench(subject, replace(case, runtime="eager", light_weights=False), rounds=rounds, warm_up=0)

    monkeypatch.setattr("glancefocus.evaluation.wall_clock.bench", note)
    words = ("bench", "gf-mini-48", "--exits", "1,0,0,0", "--batch", 4, "--rounds", 1, "--json")
    gf(*words)
    assert measured == [("eager", False), ("onnx", False), ("openvino", False)]
    measured.clear()
    gf(*words, "--all")
    assert [runtime for runtime, light in measured if light] == ["onnx"]
    assert {runtime for runtime, light in measured if not light} >= {"plain", "eager", "onnx", "openvino"}
    for more, light in (((), False), (("--light-weights",), True), (("--no-light-weights",), False)):
        measured.clear()
        gf(*words, "--runtime", "onnx", *more)
        assert measured == [("onnx", light)]


def test_people_get_two_tables(gf: Run, run_folder: Path) -> None:
    found = gf("bench", run_folder / "run" / "bundle", "--exits", "0.5,0.5,0", *QUICK)
    assert "against its plain backbone" in found
    assert "where the time of glancefocus goes" in found
    assert "of 20 images 10 / 10 / 0 stopped after look 1 / 2 / 3" in found


def test_by_default_it_is_brief_and_all_measures_everything(gf: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, bool]] = []

    def note(subject: Subject, case: Case, *, rounds: int, warm_up: int, seconds: float | None, **more: Any) -> Timing:
        asked.append((case.batch, rounds, seconds is not None))
        return bench(subject, Case("eager", 1, 1), rounds=1, warm_up=0)

    monkeypatch.setattr("glancefocus.evaluation.wall_clock.bench", note)
    words = ("bench", "gf-mini-48", "--exits", "1,0,0,0", "--json", "--runtime", "eager")
    gf(*words)
    assert asked == [(1, 7, True), (32, 7, True)]
    asked.clear()
    gf(*words, "--all")
    assert asked == [(1, 7, False), (64, 7, False), (128, 7, False)]


def test_rows_are_shown_as_they_come(
    gf: Run, run_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []

    def note(subject: Subject, case: Case, **more: Any) -> Timing:
        shown.append(capsys.readouterr().out)
        return bench(subject, case, rounds=1, warm_up=0)

    monkeypatch.setattr("glancefocus.evaluation.wall_clock.bench", note)
    words = ("--exits", "0.5,0.5,0", "--runtime", "plain", "eager", "--batch", 4, "--threads", 1)
    rest = gf("bench", run_folder / "run" / "bundle", *words)
    assert "against its plain backbone" in shown[0]
    assert "quotien" in shown[0]  # a narrow terminal cuts the last column
    assert shown[1].split()[:3] == ["plain", "4", "1"]
    assert rest.split()[:3] == ["eager", "4", "1"]
    assert "where the time of glancefocus goes" in rest


def test_with_data_thresholds_are_as_accurate_as_the_backbone(gf: Run, run_folder: Path) -> None:
    (row,) = gf("bench", run_folder / "run" / "bundle", run_folder / "pets", *QUICK, "--json")
    assert 0 <= row["backbone_accuracy"] <= 1
    assert row["accuracy"] is not None
    assert sum(row["exits"]) == 20


def test_a_bundles_own_thresholds_say_how_many_leave(
    gf: Run, small_bundle: Callable[..., Bundle], tmp_path: Path
) -> None:
    curve = [{"thresholds": [0.5, 0.4, 0.0], "mean_macs": 1.0, "accuracy": 0.5, "exits_per_look": [3, 1, 1]}]
    small_bundle(thresholds=(0.5, 0.4, 0.0), curve=curve).save(tmp_path / "bundle")
    (row,) = gf("bench", tmp_path / "bundle", *QUICK, "--json")
    assert row["exits"] == [12, 4, 4]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("gf-mini-84",), "there is no bundle or preset named 'gf-mini-84'. Did you mean 'gf-mini-48'"),
        (("gf-mini-48",), "the shares of images that stop after each of 4 looks are unknown"),
        (("gf-mini-48", "--exits", "0.5,0.6,0.1,0.1"), "which sum to 1, but got 0.5, 0.6, 0.1, 0.1"),
        (("gf-mini-48", "--exits", "half"), "--exits must be a number from 0 to 1, but got half"),
        (("gf-mini-48", "--exits", "1,0,0,0", "--budget-macs", "9e6"), "not both"),
        (("gf-mini-48", "--budget-macs", "5"), "less than one glance"),
        (("gf-mini-48", "--exits", "1,0,0,0", "--batch", "0"), "--batch must be a whole number from 1"),
        (
            ("gf-mini-48", "--exits", "1,0,0,0", "--batch", "many"),
            "--batch must be a whole number from 1 to 65,536, but got many",
        ),
        (("gf-mini-48", "--exits", "1,0,0,0", "--rounds", "0"), "--rounds must be a whole number from 1"),
        (("gf-mini-48", "--exits", "1,0,0,0", "--runtime", "onyx"), "Did you mean 'onnx'?"),
        (("gf-mini-48", "signs"), "gf-mini-48 has random weights, which recognise nothing in signs"),
        (("gf-mini-48", "--set", "policy.unit=3", "--exits", "1,0,0,0"), "unit"),
    ],
)
def test_mistakes_get_one_sentence(words: tuple[str, ...], sentence: str, gf: Run) -> None:
    quick = list(map(str, QUICK))
    given = {word for word in words if word.startswith("--")}
    rest = [w for name, value in zip(quick[::2], quick[1::2], strict=True) if name not in given for w in (name, value)]
    assert sentence in gf("bench", *words, *rest, code=2)


def test_a_bundle_is_measured_as_it_is(gf: Run, run_folder: Path, tmp_path: Path) -> None:
    bundle = run_folder / "run" / "bundle"
    assert "they are for presets. Leave them out" in gf("bench", bundle, "--light-policy", code=2)
    assert "Leave the data out" in gf("bench", bundle, run_folder / "pets", "--exits", "1,0,0,0", code=2)
    missing = gf("bench", bundle, run_folder / "pets", "--backbone", tmp_path / "none.safetensors", code=2)
    assert "there is no plain backbone at" in missing


@pytest.mark.parametrize(
    ("preset", "fewer_macs"),
    [
        ("gf-resnet50-96", 1.90),
        (
            "gf-mobilenetv3-large-100-96",
            None,
        ),  # all of its looks cost less than the paper's budget: the shares are equal
    ],
)
def test_the_papers_shares_are_the_default_of_its_networks(preset: str, fewer_macs: float | None) -> None:
    subject = preset_subject(BenchOptions(preset, light_policy=True), most_images=300)
    assert subject.net.settings.policy.units == 256
    assert subject.exits is not None
    counts = [subject.exits.count(look) for look in range(1, subject.net.settings.looks + 1)]
    assert counts == sorted(counts, reverse=True)
    if fewer_macs is None:
        assert counts == [100, 100, 100]
    else:
        spent = sum(subject.costs.macs_after_look[look - 1] for look in subject.exits) / 300
        assert subject.costs.backbone_macs / spent == pytest.approx(fewer_macs, rel=0.01)


def test_a_whole_split_is_measured_in_images_per_second(gf: Run, run_folder: Path) -> None:
    words = ("bench", run_folder / "run" / "bundle", run_folder / "pets", "--whole-split", "--device", "cpu")
    found = gf(*words, "--batch", 5, "--json")
    assert (found["images"], found["batch"], sum(found["exits"])) == (12, 5, 12)
    assert found["device"].endswith("eager")
    assert found["glancefocus_per_second"] > 0
    assert found["time_ratio"] == pytest.approx(found["glancefocus_per_second"] / found["backbone_per_second"])
    assert "images per second" in gf(*words)


def test_a_wrong_device_or_a_whole_split_of_nothing_gets_its_sentence(gf: Run, run_folder: Path) -> None:
    printed = gf("bench", "gf-mini-48", "--exits", "1,0,0,0", "--device", "moon", code=2)
    assert printed.startswith("gf: --device moon cannot be used here")
    assert "Name the data" in gf("bench", run_folder / "run" / "bundle", "--whole-split", code=2)
    two = ("--whole-split", "--batch", 4, 8)
    assert "one batch size" in gf("bench", run_folder / "run" / "bundle", run_folder / "pets", *two, code=2)
