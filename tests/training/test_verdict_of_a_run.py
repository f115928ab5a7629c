"""A run ends with its verdict; its backbone can be tuned on smaller images, also later, also after it was stopped."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

import glancefocus as gf
from glancefocus.data.sources import open_data
from glancefocus.training.initialise import InitialiseStage
from glancefocus.training.loop import build_stage
from glancefocus.training.run import load_backbone, train, tune_rivals
from glancefocus.training.settings import TrainSettings
from glancefocus.training.stage import TrainingContext

Tiny = Callable[..., TrainSettings]
STAGES = ["backbone", "glance", "recognise", "aim"]


@pytest.fixture(scope="module")
def judged_run(tiny_settings: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judged") / "run"
    train(tiny_settings(stages=STAGES, rivals="as-is"), folder, quiet=True)
    return folder


def notes_of(run: Path) -> dict[str, Any]:
    return gf.load(run / "bundle").notes


def test_a_run_ends_with_a_verdict_and_a_comparison_of_its_aims(judged_run: Path) -> None:
    notes = notes_of(judged_run)
    verdict = notes["verdict"]
    assert verdict["outcome"] == "undecided"  # with 10 images
    assert verdict["images"] == 10
    assert verdict["remarks"] == ["no cascade: choosing its thresholds takes at least 20 images."]
    assert {point["kind"] for point in verdict["points"]} == {"backbone", "resized", "tuned", "glancefocus"}
    own = [point["name"] for point in verdict["points"] if point["kind"] == "tuned"]
    assert own == ["backbone at 32 px (the glance encoder)"]
    assert verdict["budgets"] == []
    last = [json.loads(line) for line in (judged_run / "metrics.jsonl").read_text().splitlines()][-1]
    assert notes["aims"] == last["aims"]
    card = (judged_run / "bundle" / "README.md").read_text()
    assert verdict["sentence"] in card
    assert "difference_low" not in card


def test_a_run_without_the_stage_backbone_reports_that_there_are_no_rivals(tiny_settings: Tiny, tmp_path: Path) -> None:
    train(tiny_settings(stages=["recognise"], rivals="as-is"), tmp_path / "run", quiet=True)
    verdict = notes_of(tmp_path / "run")["verdict"]
    assert verdict["outcome"] == "no rivals"
    assert "backbone.safetensors" in verdict["sentence"]


def test_a_finished_run_is_given_tuned_rivals_later(judged_run: Path, tiny_settings: Tiny) -> None:
    before = {name: (judged_run / name).stat().st_mtime_ns for name in ("last.ckpt", "backbone.safetensors")}
    settings = tiny_settings(stages=STAGES, rivals="tuned")
    train(settings, judged_run, quiet=True)
    after = {name: (judged_run / name).stat().st_mtime_ns for name in before}
    assert after == before  # nothing else was trained again
    files = sorted(file.name for file in judged_run.glob("rival-*"))
    assert [file.split(".")[0] for file in files] == ["rival-40", "rival-56", "rival-72", "rival-80"]
    assert all(file.endswith(".safetensors") for file in files)
    verdict = notes_of(judged_run)["verdict"]
    assert [point["kind"] for point in verdict["points"]].count("tuned") == 4 + 1  # and the glance encoder
    plain, tuned = load_backbone(settings, judged_run), gf.load(judged_run / "bundle").net
    assert plain is not None
    tuned.focus_encoder.backbone.load_state_dict(safetensors_of(judged_run / files[0]))
    one, other = plain.focus_encoder.state_dict(), tuned.focus_encoder.state_dict()
    assert any(bool((one[name] != other[name]).any()) for name in one)


def safetensors_of(file: Path) -> dict[str, torch.Tensor]:
    import safetensors.torch

    return safetensors.torch.load_file(file)


def test_tuning_that_was_stopped_continues_with_the_same_size(
    judged_run: Path, tiny_settings: Tiny, tmp_path: Path
) -> None:
    settings = tiny_settings(stages=STAGES)
    (tmp_path / "backbone.safetensors").write_bytes((judged_run / "backbone.safetensors").read_bytes())
    data = open_data(settings.data, settings.network.view)
    asked: list[str] = []

    def go_through(context: TrainingContext, folder: Path, plan: list[str]) -> None:
        asked.append(plan[0])
        if len(asked) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune_rivals(settings, data, Accelerator(cpu=True), tmp_path, go_through)
    first, second = asked
    assert (tmp_path / f"{first}.safetensors").exists()
    assert not (tmp_path / f"{second}.safetensors").exists()
    tune_rivals(settings, data, Accelerator(cpu=True), tmp_path, go_through)
    assert asked[:3] == [first, second, second]
    assert len(asked) == len(set(asked)) + 1  # the others follow, each once
    assert (tmp_path / f"{second}.safetensors").exists()
    assert not (tmp_path / second).exists()


def test_a_rival_is_trained_like_the_glance_encoder_but_for_the_evidence(judged_run: Path, tiny_settings: Tiny) -> None:
    settings = tiny_settings(stages=STAGES, glance={"epochs": 3, "lr": 0.02, "evidence_weight": 1.0})
    net = load_backbone(settings, judged_run)
    assert net is not None
    data = open_data(settings.data, settings.network.view)
    stage = build_stage("rival-56", TrainingContext(net, data, settings, Accelerator(cpu=True)))
    assert isinstance(stage, InitialiseStage)
    assert stage.epochs == 3
    assert stage.optimizer.param_groups[0]["lr"] == 0.02
    assert stage.encoder is net.focus_encoder
    assert stage.evidence is None
