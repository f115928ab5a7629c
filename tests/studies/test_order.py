"""Multiply-adds of training, worked out by hand from the costs of the parts."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from glancefocus.data.sources import DataSettings
from glancefocus.errors import BadSetting
from glancefocus.network.macs import count_costs
from glancefocus.studies.catalogue import study_named
from glancefocus.studies.networks import Scope, chain
from glancefocus.studies.order import Order, image_counts, plan_study, training_macs
from glancefocus.studies.rivals import CHECKPOINT, check_latencies, exits_runs

SCOPE = Scope("tiny", "signs", assignments=("data.scenes=[100,10,10]",))


def test_every_stage_costs_its_passes() -> None:
    runs = chain(SCOPE)
    costs = count_costs(runs.stage1.settings.network)
    glance, looks = costs.macs_after_look[0], costs.macs_after_look[-1]
    patches, record = looks - glance, 10 * looks
    epochs = runs.backbone.settings.backbone.epochs
    # A backward pass costs two forward passes; 10 images are validated after each epoch, and recorded at the end.
    assert training_macs(runs.backbone.settings, 100, 10) == epochs * 310 * costs.backbone_macs + record
    # Stage I keeps the encoders as they are: forward passes only.
    epochs = runs.stage1.settings.recognise.epochs
    assert training_macs(runs.stage1.settings, 100, 10) == epochs * 110 * looks + record
    # The contrastive reward compares each patch with one random patch.
    assert runs.stage2 is not None
    epochs = runs.stage2.settings.aim.epochs
    assert training_macs(runs.stage2.settings, 100, 10) == epochs * (100 * (glance + 2 * patches) + 10 * looks) + record
    # Stage III keeps the glance encoder.
    assert runs.stage3 is not None
    epochs = runs.stage3.settings.finetune.epochs
    assert training_macs(runs.stage3.settings, 100, 10) == epochs * (100 * (glance + 3 * patches) + 10 * looks) + record


def test_a_built_in_data_set_has_as_many_images_as_scenes() -> None:
    assert image_counts(chain(SCOPE).backbone.settings) == (100, 10)


def test_the_papers_data_is_assumed_where_there_is_none() -> None:
    paper = Scope("paper", None)
    assert image_counts(chain(paper, "gf-resnet50-96").backbone.settings) == (1_281_167, 50_000)
    clips = chain(paper, "gf-tsm-resnet50-96-8f")
    assert image_counts(clips.backbone.settings)[0] == pytest.approx(168_913)
    assert clips.stage3 is None  # the paper leaves it out for clips


def test_a_comparison_network_is_new_then_begun_then_finished(tmp_path: Path) -> None:
    run = exits_runs(Scope("tiny", "signs"))["MSDNet"]
    assert run.state(tmp_path) == "new"
    place = run.place(tmp_path)
    place.mkdir(parents=True)
    for epochs, state in ((3, "begun"), (run.training.epochs, "finished")):
        torch.save({"epochs": epochs}, place / CHECKPOINT)
        assert run.state(tmp_path) == state
    # The plan must not count it again.
    plan = plan_study(Order(study_named("msdnet"), seeds=1), tmp_path, trillions=1)
    (planned,) = [each for each in plan.runs if each.name == run.name]
    assert (planned.state, planned.hours) == ("finished", 0)


def test_a_comparison_network_is_found_whichever_way_its_data_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = exits_runs(Scope("tiny", "signs"))["MSDNet"]
    monkeypatch.chdir(tmp_path)
    one, other = (replace(run, data=DataSettings(source)) for source in ("pictures", str(tmp_path / "pictures") + "/"))
    assert one.content == other.content
    assert one.content != replace(run, data=DataSettings("others")).content


def test_latencies_of_every_network_must_be_there_before_anything_is_trained(tmp_path: Path) -> None:
    runs = ("resnet50-96", "backbone of resnet50-96", "resnet50-128")
    (tmp_path / "resnet50-96.json").touch()
    with pytest.raises(BadSetting, match=r"--latency-file must be a folder here, because the study has 2 networks"):
        check_latencies(tmp_path / "resnet50-96.json", runs)
    with pytest.raises(BadSetting, match=r"there is no file .*resnet50-128\.json"):
        check_latencies(tmp_path, runs)
    check_latencies(tmp_path / "resnet50-96.json", runs[:2])
