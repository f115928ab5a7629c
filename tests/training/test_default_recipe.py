"""`gf train FOLDER` with nothing but a small backbone: the default recipe from pictures to a bundle that answers."""

import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import glancefocus as gf
from glancefocus.network.build import count_parameters
from glancefocus.training.recipes import train_settings
from glancefocus.training.run import train

COLOURS = {"red": (200, 60, 60), "green": (60, 200, 60)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Pictures of 40x48 px: a coloured square at a random place on noise."""
    generator = np.random.default_rng(0)
    for name, colour in COLOURS.items():
        (tmp_path / "squares" / name).mkdir(parents=True)
        for number in range(30):
            pixels = generator.integers(0, 100, (40, 48, 3), dtype=np.uint8)
            top, left = generator.integers(0, 24), generator.integers(0, 32)
            pixels[top : top + 16, left : left + 16] = colour
            Image.fromarray(pixels).save(tmp_path / "squares" / name / f"{number}.png")
    return tmp_path / "squares"


def test_the_default_recipe_learns_plans_judges_and_answers(folder: Path, tmp_path: Path) -> None:
    few = ["backbone.epochs=4", "glance.epochs=2", "recognise.epochs=2", "point.epochs=1", "network.policy.units=8"]
    settings = train_settings(str(folder), backbone="test_resnet", changes={"weights": "none"}, assignments=few)
    assert settings.network.focus == ("0.8@32", "whole@64")
    assert settings.network.whole_encoder
    bundle = train(settings, tmp_path / "run", quiet=True, planned=True, reported=True)
    assert (tmp_path / "run" / "report" / "report.html").is_file()
    assert bundle.temperatures is not None
    assert bundle.notes["verdict"]["outcome"] != "no rivals"
    # By default it never costs more than the backbone.
    spent = bundle.predict(sorted(folder.glob("*/*.png"))).cost_macs
    assert float(spent.mean()) <= bundle.costs.backbone_macs
    again = gf.load(tmp_path / "run" / "bundle", device="cpu")
    outcome = again.predict(folder / "red" / "0.png", looks=3)
    assert outcome.looks.tolist() == [3]
    # The encoder of whole images is the backbone as its stage left it.
    net = bundle.net
    assert net.whole_encoder is not None
    parameters = sum(weight.numel() for weight in net.parameters())
    assert count_parameters(settings.network) == parameters


def test_the_teacher_of_a_run_without_the_stage_backbone_is_its_baseline(folder: Path, tmp_path: Path) -> None:
    few = ["glance.epochs=1", "recognise.epochs=1", "network.policy.units=8"]
    choose = functools.partial(train_settings, str(folder), backbone="test_resnet")
    first = choose(changes={"weights": "none"}, stages=["backbone"], assignments=["backbone.epochs=1"])
    train(first, tmp_path / "first", quiet=True)
    teacher = str(tmp_path / "first" / "backbone.safetensors")
    changes = {"weights": "none", "teacher": teacher}
    bundle = train(choose(changes=changes, stages=["glance", "1"], assignments=few), tmp_path / "second", quiet=True)
    assert bundle.notes["verdict"]["outcome"] != "no rivals"
    assert bundle.net.whole_encoder is not None
    trained = load_file(teacher)
    for tensors in (
        bundle.net.whole_encoder.backbone.state_dict(),
        load_file(tmp_path / "second" / "backbone.safetensors"),
    ):
        assert all(torch.equal(trained[name], tensor) for name, tensor in tensors.items())


def test_the_encoder_of_smaller_whole_images_learns_from_the_backbone(folder: Path, tmp_path: Path) -> None:
    few = ["backbone.epochs=1", "recognise.epochs=1", "recognise.encoder_lr=0.01", "network.policy.units=8"]
    # At full size it stays the plain backbone.
    for name in ("whole@48", "whole@64"):
        settings = train_settings(
            str(folder),
            backbone="test_resnet",
            network={"focus": ["0.8@32", "0.8@48", name]},
            changes={"weights": "none"},
            stages=["backbone", "1"],
            assignments=few,
        )
        assert settings.network.whole_encoder
        net = train(settings, tmp_path / name, quiet=True).net
        assert net.whole_encoder is not None
        plain = load_file(tmp_path / name / "backbone.safetensors")
        same = all(torch.equal(plain[each], weight) for each, weight in net.whole_encoder.backbone.state_dict().items())
        assert same is (name == "whole@64")


def test_without_lessons_every_batch_of_stage_1_trains_the_focus_encoder(folder: Path, tmp_path: Path) -> None:
    """Random views that include the frozen encoder of whole images would leave some batches without a gradient."""
    choose = functools.partial(train_settings, str(folder), backbone="test_resnet", changes={"weights": "none"})
    settings = choose(stages=["1"], assignments=["recognise.epochs=2", "batch_size=4", "network.looks=2"])
    assert settings.network.whole_encoder
    assert settings.recognise.aims == "random"
    train(settings, tmp_path / "run", quiet=True)
    assert (tmp_path / "run" / "bundle").is_dir()
