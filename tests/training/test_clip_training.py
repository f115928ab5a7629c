"""Clips are learnt from by the same run, stages and bundle as images; only the defaults are those of A.4."""

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.sources import DataSettings, open_data
from glancefocus.evaluation.boxes import draw_rows
from glancefocus.evaluation.every_look import backbone_accuracy, evaluate_every_look
from glancefocus.evaluation.records import record_looks
from glancefocus.training.recipes import train_settings
from glancefocus.training.run import load_backbone, train
from glancefocus.training.run_folder import prepare_folder
from glancefocus.training.settings import TrainSettings
from glancefocus.values import from_plain

STAGES = ("backbone", "glance", "recognise", "aim", "finetune")


def tiny(**changes: Any) -> TrainSettings:
    """All stages on a handful of clips of four frames."""
    plain: dict[str, Any] = {
        "data": {
            "source": "gestures",
            "workers": 0,
            "scenes": [12, 6, 6],
            "gestures": {"frames": 4, "height": 64, "width": 64},
        },
        "network": {
            "backbone": "test_resnet",
            "classes": 7,
            "glance_px": 32,
            "focus": ["32"],
            "looks": 3,
            "frames": 4,
            "classifier": "cascaded",
            "first_answer": "own_head",
            "policy": {"units": 8, "conv_channels": 2},
            "view": {"fit": "whole", "height_px": 64, "width_px": 64},
        },
        "batch_size": 6,
        **{stage: {"epochs": 1} for stage in STAGES},
    }
    return from_plain(TrainSettings, {**plain, **changes})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips") / "run"
    train(tiny(), folder, quiet=True)
    return folder


def test_a_run_on_clips_goes_through_all_stages_and_leaves_a_bundle(run: Path) -> None:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["stage"] for row in rows] == list(STAGES)
    assert len(rows[-1]["val_accuracy"]) == 3
    assert len(rows[3]["hit_rate"]) == 2  # boxes of the discs, in the stage that aims
    bundle = Bundle.load(run / "bundle")
    assert bundle.settings.frames == 4
    assert bundle.classes == ("none", "left", "right", "up", "down", "circle", "still")
    assert bundle.thresholds is not None


def test_clips_show_where_their_evidence_is(tmp_path: Path) -> None:
    changes = {"stages": ["backbone", "glance", "recognise", "point", "finetune"], "accumulation": 2}
    more = {"glance": {"evidence_weight": 1.0}, "point": {}, "finetune": {"mistaken_glances": 0.5}}
    train(tiny(**changes, **{s: {"epochs": 1, **own} for s, own in more.items()}), tmp_path / "run", quiet=True)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["stage"] for row in rows] == changes["stages"]


def test_a_bundle_of_clips_gives_the_same_answers_one_by_one_and_in_a_batch_with_exits(run: Path) -> None:
    bundle = Bundle.load(run / "bundle")
    data = open_data(tiny().data, tiny().network.view, frames=4)
    assert data.test is not None
    clips = data.test.images  # type: ignore[attr-defined]
    together = bundle.predict(clips, thresholds=[0.19, 0.19])
    for row in range(len(clips)):
        alone = bundle.predict(clips[row], thresholds=[0.19, 0.19])
        assert alone.label == together.label[row : row + 1]
        assert alone.looks.tolist() == together.looks[row : row + 1].tolist()
        torch.testing.assert_close(alone.confidence, together.confidence[row : row + 1], rtol=0, atol=1e-5)


def test_records_and_evaluations_are_made_by_the_same_code(run: Path, tmp_path: Path) -> None:
    bundle = Bundle.load(run / "bundle")
    data = open_data(tiny().data, tiny().network.view, frames=4)
    record = record_looks(bundle, data.val, tmp_path, source="gestures", name="val", batch_size=4)
    evaluation = evaluate_every_look(bundle.net, data.val)
    assert record.about.images == 6
    assert evaluation.image_hw == (64, 64)
    assert torch.equal(torch.from_numpy(record.answer.copy()).long(), evaluation.outcome.answer_after)
    plain = load_backbone(tiny(), run)
    assert plain is not None
    assert 0 <= backbone_accuracy(plain, data.val) <= 1


def test_the_gallery_shows_clips_as_strips(run: Path) -> None:
    bundle = Bundle.load(run / "bundle")
    data = open_data(tiny().data, tiny().network.view, frames=4)
    (url,) = draw_rows(bundle, data.val, [0])
    picture = base64.b64decode(url.partition("base64,")[2])
    # Four frames of 64 px, enlarged five times, with gaps of 7 px between them.
    assert Image.open(io.BytesIO(picture)).width == 4 * 320 + 3 * 7


def test_a_run_that_is_older_than_a_setting_is_resumed(run: Path, tmp_path: Path) -> None:
    settings = json.loads((run / "settings.json").read_text())
    del settings["data"]["max_bad_files"], settings["network"]["shift_div"]
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    (tmp_path / "last.ckpt").write_bytes(b"never read")
    prepare_folder(tmp_path, tiny())


def test_clips_have_the_defaults_of_the_papers_appendix(make_video: Callable[..., Path], tmp_path: Path) -> None:
    for name in ("wave", "nod"):
        (tmp_path / name).mkdir()
        make_video(tmp_path / name / "clip.mp4", frames=2)
    settings = train_settings(str(tmp_path), preset="gf-tsm-resnet50-96-12f")
    network = settings.network
    assert (network.glance_px, network.focus, network.looks, network.frames) == (96, ("96",), 3, 12)
    assert (network.classifier, network.shift_div, network.view.height_px) == ("cascaded", 8, 224)
    assert settings.stages == ("backbone", "glance", "recognise", "aim")
    assert settings.batch_size == 64
    assert (settings.glance.epochs, settings.glance.lr) == (10, 0.1)
    assert (settings.recognise.epochs, settings.recognise.classifier_lr) == (30, 0.01)
    assert settings.recognise.freeze_encoders
    assert (settings.aim.epochs, settings.aim.lr) == (50, 3e-4)
    assert not settings.data.augment.flip
    # Weights that were given change nothing about that: TSM starts from ImageNet's.
    assert train_settings(str(tmp_path), preset="gf-tsm-resnet50-96-12f", changes={"weights": "a"}).glance.lr == 0.1
    jester = train_settings(str(tmp_path), preset="gf-tsm-resnet50-80-jester")
    assert (jester.network.glance_px, jester.glance.lr, jester.recognise.epochs) == (80, 0.01, 10)
    flipped = train_settings(
        str(tmp_path), backbone="resnet18", network={"frames": 8}, data={"augment": {"flip": True}}
    )
    assert flipped.data.augment.flip
    assert (flipped.network.classifier, flipped.network.policy.head) == ("cascaded", "conv")


def test_gestures_are_drawn_as_the_network_looks_at_them() -> None:
    settings = train_settings("gestures", network={"frames": 5})
    drawn = settings.data.gestures
    assert (drawn.frames, drawn.height, drawn.width) == (5, 128, 128)
    assert settings.network.frames == 5
    assert settings.network.view.fit == "whole"
    assert isinstance(settings.data, DataSettings)
