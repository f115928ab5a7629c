"""Runs on images of which only regions are seen: networks learn to zoom in a toy world, and large files are never decoded whole."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFile

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.scene_splits import DrawnScenes, FileScenes
from glancefocus.data.signs import Box
from glancefocus.data.sources import open_data
from glancefocus.data.wide_signs import WideSignsSettings
from glancefocus.errors import BadSetting
from glancefocus.evaluation.every_look import evaluate_every_look
from glancefocus.network.policy import RandomPolicy
from glancefocus.network.zooming import InSteps
from glancefocus.region import Box as PixelBox
from glancefocus.training.recipes import train_settings
from glancefocus.training.run import train
from glancefocus.training.settings import TrainSettings
from glancefocus.values import from_plain

Runs = Any  # of conftest.py
SIDE_PX, HALO_PX, OBJECT_PX = 1024, 160, 12
COLOURS = ((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0))


class ToyScene:
    """A light square on grey with a small one in its middle, whose colour is the class. Too small to be seen in a glance.

    The class 0 has no squares.
    """

    turn = None
    held_bytes = 0
    most_drawn = 0  # pixels of the largest region that was drawn at full resolution

    def __init__(self, settings: WideSignsSettings, label: int, seed: int) -> None:
        self.name, self.label, self.seed = f"toy {seed}", label, seed
        self.sizes = tuple((settings.width >> level, settings.height >> level) for level in range(6))
        rng = np.random.default_rng(seed)
        self.y, self.x = (rng.uniform(HALO_PX / 2, side - HALO_PX / 2) for side in (settings.height, settings.width))
        self.halo = tuple(rng.integers(150, 256, 3).tolist())  # so that its mean colour does not tell the class
        half = OBJECT_PX / 2
        self.box: Box | None = (self.y - half, self.x - half, self.y + half, self.x + half) if label else None

    def read(self, level: int, box: PixelBox) -> Image.Image:
        left, top, right, bottom = box
        if level == 0:
            ToyScene.most_drawn = max(ToyScene.most_drawn, (right - left) * (bottom - top))
        picture = Image.new("RGB", (right - left, bottom - top), (90, 90, 90))
        draw = ImageDraw.Draw(picture)
        for side, colour in ((HALO_PX, self.halo), (OBJECT_PX, COLOURS[self.label - 1])):
            if self.label:
                half, scale = side / 2, 1 << level
                edges = (self.x - half, self.y - half, self.x + half, self.y + half)
                draw.rectangle(
                    [edge / scale - first for edge, first in zip(edges, (left, top) * 2, strict=True)], colour
                )
        return picture


def toy_settings(**changes: Any) -> TrainSettings:
    """A zooming network of two steps; each of its views is 32 px."""
    plain: dict[str, Any] = {
        "data": {
            "source": "signs",
            "workers": 0,
            "scenes": [600, 60, 20],
            "signs": {"height": SIDE_PX, "width": SIDE_PX},
            "augment": {"shift_px": 0},
        },
        "network": {
            "backbone": "resnet18",
            "backbone_options": {
                "layers": [1, 1, 1, 1],
                "channels": [8, 16, 24, 32],
                "stem_width": 8,
                "output_stride": 8,
                "zero_init_last": False,
            },
            "classes": 5,
            "glance_px": 32,
            "focus": ["0.25@32", "32"],
            "looks": 3,
            "classifier_units": 32,
            "policy": {"units": 64},
            "zoom": True,
            "view": {"fit": "whole", "height_px": SIDE_PX, "width_px": SIDE_PX},
        },
        "stages": ["glance", "recognise", "point"],
        "batch_size": 20,
        "rivals": "none",
        "glance": {"epochs": 1, "lr": 1e-3, "optimizer": "adamw", "evidence_weight": 1.0},
        "recognise": {
            "epochs": 6,
            "encoder_lr": 2e-3,
            "classifier_lr": 2e-3,
            "optimizer": "adamw",
            "aims": "known",
            "deviation": 0.1,
            "random_share": 0.1,
            "point_weight": 0.5,
        },
        "point": {"epochs": 3},
    }
    for name, value in changes.items():
        plain[name] = {**plain.get(name, {}), **value} if isinstance(value, dict) else value
    return from_plain(TrainSettings, plain)


@pytest.fixture
def _toy_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """The world signs with toy scenes, which are drawn by region from a smaller size on."""
    monkeypatch.setattr("glancefocus.data.scene_splits.WideScene", ToyScene)
    monkeypatch.setattr("glancefocus.data.worlds.LARGE_PIXELS", SIDE_PX * SIDE_PX - 1)


FEW = {"data": {"scenes": [40, 10, 5]}, "batch_size": 10, "recognise": {"epochs": 1}, "point": {"epochs": 1}}


@pytest.mark.usefixtures("_toy_world")
def test_a_zooming_network_learns_to_find_what_its_glance_cannot_see(tmp_path: Path) -> None:
    """The class can only be seen in a patch of 32 px that contains the object of 12 px, in a scene of 1,024 px."""
    ToyScene.most_drawn = 0
    settings = toy_settings()
    bundle = train(settings, tmp_path / "run", quiet=True)
    val = open_data(settings.data, settings.network.view).val
    learnt = evaluate_every_look(bundle.net, val)
    assert val.boxes is not None
    assert learnt.accuracy_per_look[0] < 0.6, "one glance is not enough"
    assert learnt.accuracy_per_look[2] > 0.85
    assert learnt.hit_rate_per_focus(val.boxes)[0] > 0.9
    by_chance = InSteps(bundle.net, RandomPolicy((0,), torch.Generator().manual_seed(0)))
    assert evaluate_every_look(bundle.net, val, by_chance).accuracy_per_look[2] < 0.6
    assert ToyScene.most_drawn <= (2 * HALO_PX) ** 2, "nothing larger than a region was drawn at full resolution"
    assert bundle.notes["validation_accuracy_per_look"] == pytest.approx(learnt.accuracy_per_look, abs=1e-4)
    # The bundle finds the object by itself, with thresholds that were chosen at the end of the run.
    assert max(point["accuracy"] for point in bundle.curve) > 0.85


@pytest.mark.usefixtures("_toy_world")
def test_a_resumed_run_is_the_same_as_an_uninterrupted_one(tmp_path: Path, runs: Runs) -> None:
    settings = toy_settings(**FEW, checkpoint_minutes=0)
    train(settings, tmp_path / "once", quiet=True)
    runs.interrupted(settings, tmp_path / "twice")
    train(settings, tmp_path / "twice", quiet=True)
    assert runs.same(runs.weights(tmp_path / "once"), runs.weights(tmp_path / "twice"))


@pytest.mark.usefixtures("_toy_world")
def test_batches_can_be_computed_in_parts_and_the_report_shows_scenes(tmp_path: Path) -> None:
    settings = toy_settings(**FEW, accumulation=3)
    train(settings, tmp_path / "run", quiet=True, planned=True, reported=True)
    assert (tmp_path / "run" / "report" / "report.html").read_text().count("data:image") > 5


@pytest.mark.usefixtures("_toy_world")
def test_training_scenes_are_new_in_every_epoch_and_others_stay() -> None:
    settings = toy_settings()
    data = open_data(settings.data, settings.network.view)
    assert isinstance(data.train, DrawnScenes)
    places = [next(data.train.batches([[0, 1]], seed))[0].centres for seed in (1, 1, 2)]
    assert torch.equal(places[0].nan_to_num(), places[1].nan_to_num())
    assert not torch.equal(places[0].nan_to_num(), places[2].nan_to_num())
    kept = [next(data.val.batches([[0, 1]], seed))[0].centres for seed in (1, 2)]
    assert torch.equal(kept[0].nan_to_num(), kept[1].nan_to_num())
    assert data.train.boxes is None
    assert data.val.boxes is not None
    assert data.val.boxes.shape == (60, 4)


@pytest.mark.usefixtures("_toy_world")
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"stages": ["backbone", "glance"]}, "the stage backbone trains on whole images at full resolution"),
        ({"point": {"crop_weight": 1.0}}, "point.crop_weight needs whole images"),
        ({"stages": ["glance", "joint"], "joint": {"whole_image_weight": 1.0}}, "joint.whole_image_weight needs whole"),
        ({"data": {"augment": {"shift_px": 9}}}, "are not shifted, but got shift_px=9"),
    ],
)
def test_what_needs_whole_scenes_is_refused(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=sentence):
        train(toy_settings(**changes), tmp_path / "run", quiet=True)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"network": {"frames": 8}}, "zoom=true is for images, but this network sees clips of 8 frames"),
        ({"network": {"focus": ["32", "whole@64"]}}, "has no place for views of the whole image"),
        ({"network": {"looks": 2}}, "there are 2 steps from the whole image .* has 2 looks. Use --looks 3"),
    ],
)
def test_networks_that_cannot_be_trained_to_zoom_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadSetting, match=sentence):
        toy_settings(**changes)


def test_known_places_are_refused_where_there_are_none(
    tiny_settings: Callable[..., TrainSettings], tmp_path: Path
) -> None:
    settings = tiny_settings(stages=["recognise"], recognise={"aims": "known"})
    with pytest.raises(BadSetting, match=r"recognise.aims=known needs known places of objects"):
        train(settings, tmp_path / "run", quiet=True)


def test_large_scenes_of_signs_have_a_recipe_of_their_own() -> None:
    settings = train_settings(
        "signs",
        network={"view": {"height_px": 4096, "width_px": 4096}},
        assignments=["network.zoom=true"],
    )
    assert settings.network.zoom
    assert settings.network.focus == ("0.25@64", "0.0625@64", "64")
    assert settings.network.looks == 4
    assert settings.stages == ("small", "glance", "recognise", "point")
    assert settings.recognise.aims == "known"
    assert settings.data.signs.height == 4096
    small = train_settings("signs", network={"view": {"height_px": 960, "width_px": 1280}})
    assert "backbone" in small.stages, "scenes of up to 4.2 megapixels are drawn whole, as before"


pytest.importorskip("pyvips")
WORDS = {
    "network": {"glance_px": 32, "focus": ["0.5@32", "32"], "looks": 3, "view": {"fit": "whole"}},
    "data": {"workers": 0},
    "changes": {"weights": "none", "batch_size": 4},
}


@pytest.fixture
def large_files(large_pictures: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The large pictures and a small one; decoding a large one whole fails."""
    Image.new("RGB", (90, 80), (9, 99, 9)).save(large_pictures / "a" / "small.png")
    decode = ImageFile.ImageFile.load

    def guarded(picture: ImageFile.ImageFile) -> Any:
        assert picture.width * picture.height <= 60_000, "a large picture was decoded whole"
        return decode(picture)

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", guarded)
    return large_pictures


def settings_for(folder: Path, **words: Any) -> TrainSettings:
    stages = ("glance", "recognise") if "stages" in words else ("glance", "recognise", "aim")
    epochs = [f"{stage}.epochs=1" for stage in stages]
    tables = {name: {**WORDS[name], **words.pop(name, {})} for name in WORDS}
    return train_settings(str(folder), backbone="test_resnet", assignments=epochs, **tables, **words)


@pytest.mark.parametrize("zoom", [False, True])
def test_a_run_on_large_files_reads_only_regions(zoom: bool, large_files: Path, tmp_path: Path) -> None:
    network = {**WORDS["network"], "zoom": zoom, **({"classifier": "recurrent"} if zoom else {})}
    settings = settings_for(large_files, network=network)
    assert settings.stages == ("glance", "recognise", "aim")
    data = open_data(settings.data, settings.network.view)
    assert isinstance(data.train, FileScenes)
    bundle = train(settings, tmp_path / "run", quiet=True, planned=True, reported=True)
    assert (tmp_path / "run" / "report" / "report.html").exists()
    outcome = Bundle.load(tmp_path / "run" / "bundle").predict(large_files / "a" / "0.tif")
    assert outcome.label[0] in bundle.classes


def test_the_stage_point_needs_known_places(large_files: Path, tmp_path: Path) -> None:
    settings = settings_for(large_files, stages=["glance,1,point"])
    with pytest.raises(BadSetting, match=r"only regions are read. Train the policy by reinforcement, stage 2, instead"):
        train(settings, tmp_path / "run", quiet=True)
    settings = settings_for(large_files, stages=["initialise,1"])
    with pytest.raises(BadSetting, match=r"the stage backbone trains on whole .* such as --stages glance,1,2"):
        train(settings, tmp_path / "run", quiet=True)


def test_large_files_are_mirrored_and_not_moved(large_files: Path) -> None:
    settings = settings_for(large_files, data={"augment": {"shift_px": 5}})
    with pytest.raises(BadSetting, match="are only mirrored"):
        open_data(settings.data, settings.network.view)
