"""A network with several candidate views goes through all stages, gets thresholds for its sizes, answers, and resumes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glancefocus as gf
from glancefocus.evaluation.assess import look_table
from glancefocus.exits.record import LookRecord
from glancefocus.loop import CandidateRule
from glancefocus.training.run import train
from glancefocus.training.settings import TrainSettings

pytestmark = pytest.mark.usefixtures("_tiny_world")
SIZES, LOOKS = (32, 48), 3


@pytest.fixture(scope="module")
def settings(tiny_settings: Callable[..., TrainSettings]) -> TrainSettings:
    """All stages on a handful of scenes, with patches of two sizes and three looks."""
    return tiny_settings(network={"focus": list(map(str, SIZES)), "looks": LOOKS})


@pytest.fixture(scope="module")
def whole_run(_tiny_world: None, settings: TrainSettings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train(settings, folder, quiet=True)
    return folder


def test_all_stages_run(whole_run: Path) -> None:
    rows = [json.loads(line) for line in (whole_run / "metrics.jsonl").read_text().splitlines()]
    assert [row["stage"] for row in rows] == ["backbone", "glance", "recognise", "aim", "aim", "finetune"]
    assert [len(row["val_accuracy"]) for row in rows] == [1, 1, 3, 3, 3, 3]
    assert all(np.isfinite(row["loss"]) for row in rows)


def test_the_bundle_has_thresholds_for_every_look_and_size(whole_run: Path) -> None:
    bundle = gf.load(whole_run / "bundle", device="cpu")
    assert np.asarray(bundle.thresholds).shape == (LOOKS, len(SIZES))
    assert isinstance(bundle.exit_rule(), CandidateRule)
    assert bundle.curve
    for point in bundle.curve:
        assert np.asarray(point["thresholds"]).shape == (LOOKS, len(SIZES))
        patches = np.asarray(point["patches_per_look_and_size"])
        assert patches.shape == (LOOKS - 1, len(SIZES))
        exits = point["exits_per_look"]
        assert sum(exits) == 10
        assert patches.sum(axis=1).tolist() == [exits[1] + exits[2], exits[2]]
        assert bundle.costs.macs_after_look[0] <= point["mean_macs"] <= max(bundle.costs.macs_of_tree())


def test_the_look_record_of_the_thresholds_is_kept_beside_the_bundle(whole_run: Path) -> None:
    bundle = gf.load(whole_run / "bundle", device="cpu")
    (folder,) = (whole_run / "bundle-looks").iterdir()
    record = LookRecord.load(folder)
    record.check_made_for(bundle.fingerprint, bundle.notes["thresholds_data"])
    assert record.confidence.shape == (10, 1 + 2 + 4)
    table = look_table(bundle, record)
    for point in bundle.curve:
        measured = table.point(np.asarray(point["thresholds"], np.float32))
        assert measured["accuracy"] == point["accuracy"]
        assert measured["mean_macs"] == point["mean_macs"]


def test_the_bundle_answers_by_its_thresholds_and_within_budgets(whole_run: Path) -> None:
    bundle = gf.load(whole_run / "bundle", device="cpu")
    images = torch.rand(6, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    assert set(bundle.predict(images).label) <= set(bundle.classes)
    every = bundle.predict(images, looks=LOOKS)
    assert every.looks.tolist() == [LOOKS] * 6
    assert set(every.patch_px.flatten().tolist()) == {48}
    tree = bundle.costs.macs_of_tree()
    for budget in (tree[0], (tree[0] + tree[-1]) / 2, tree[-1]):
        spent = bundle.predict(images, budget_macs=budget).cost_macs
        assert set(spent.tolist()) <= set(tree)
    assert spent.tolist() == [tree[-1]] * 6  # every look fits, with the largest patches


def test_a_stopped_run_ends_as_one_never_stopped(
    runs: Any, settings: TrainSettings, whole_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"

    runs.interrupted(settings, run, when=lambda: _in_stage(run, "recognise"))
    assert not (run / "bundle").exists()
    bundle = train(settings, run, quiet=True)
    assert runs.same(runs.weights(run), runs.weights(whole_run))
    whole = gf.load(whole_run / "bundle", device="cpu")
    assert bundle.thresholds == whole.thresholds
    assert bundle.curve == whole.curve


def _in_stage(run: Path, stage: str) -> bool:
    """The stage, or one after it, has ended an epoch."""
    file = run / "metrics.jsonl"
    return file.exists() and f'"{stage}"' in file.read_text()


@pytest.mark.parametrize("classifier", ["summed", "recurrent"])
def test_views_of_any_extent_go_through_all_stages(
    tiny_settings: Callable[..., TrainSettings], tmp_path: Path, classifier: str
) -> None:
    network = {
        "focus": ["32", "0.5@32", "whole@48"],
        "looks": 3,
        "classifier": classifier,
        "policy": {"units": 8, "conv_channels": 2, "place": True},
    }
    stages = ["backbone", "glance", "recognise", "point", "aim", "finetune"]
    bundle = train(tiny_settings(network=network, stages=stages), tmp_path / "run", quiet=True, reported=True)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert list(dict.fromkeys(row["stage"] for row in rows)) == stages
    assert all(np.isfinite(row["loss"]) for row in rows)
    assert np.asarray(bundle.thresholds).shape == (3, 3)
    assert list(bundle.costs.focus_encoder_macs) == ["32", "0.5@32", "whole@48"]
    outcome = bundle.predict(torch.rand(2, 3, 96, 96), looks=3)
    for (left, top, right, bottom), last in outcome.boxes:  # half of the side, then the whole image
        assert (right - left, bottom - top) == (48, 48)
        assert last == (0, 0, 96, 96)
