"""The recipe fits the number and the size of the images; what the user names stays."""

from pathlib import Path

import pytest
from PIL import Image

import glancefocus as gf
from glancefocus.errors import UnknownName
from glancefocus.training.fitted import (
    DEFAULT_BACKBONE,
    Fitting,
    Survey,
    fitted_batch,
    fitted_epochs,
    fitted_recipe,
    fitted_sizes,
)
from glancefocus.training.recipes import train_settings


def survey_of(images: int, side_px: int = 500) -> Survey:
    return Survey(("a", "b"), {"train": {"a": images // 2, "b": images - images // 2}}, (side_px,) * 5)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(30):
            Image.new("RGB", (48, 60)).save(tmp_path / "pets" / name / f"{number}.png")
    return str(tmp_path / "pets")


@pytest.mark.parametrize(("images", "batch"), [(12, 4), (27, 4), (260, 8), (500, 16), (768, 32), (20_000, 32)])
def test_an_epoch_has_some_tens_of_updates_where_there_are_images_for_it(images: int, batch: int) -> None:
    assert fitted_batch(images) == batch
    if images >= 24 * 4:
        assert images // batch >= 24


def test_a_gpu_gets_larger_batches() -> None:
    assert fitted_batch(20_000, on_gpu=True) == 128


def test_few_images_are_seen_often_and_many_a_few_times() -> None:
    assert [fitted_epochs("backbone", n) for n in (40, 1500, 3000, 100_000)] == [15, 10, 5, 3]
    assert fitted_epochs("backbone", 1500, "quick") == 3  # a third of 10, rounded
    assert fitted_epochs("backbone", 1500, "thorough") == 30
    assert fitted_epochs("backbone", 1500, pretrained=False) == 40
    assert fitted_epochs("backbone", 500, photos=False) == 10


def test_many_classes_need_more_epochs_of_the_backbone() -> None:
    assert fitted_epochs("backbone", 5000, classes=37) == 3  # 15,000 visits
    assert fitted_epochs("backbone", 5000, classes=200) == 10  # 250 visits for each class
    assert fitted_epochs("backbone", 600, classes=200) == 15  # the most
    assert fitted_epochs("glance", 5000, classes=200) == fitted_epochs("glance", 5000)


def test_large_images_are_shown_to_the_backbone_at_half_of_their_size_first() -> None:
    fitting = Fitting(survey_of(3000), pretrained=True)
    assert fitted_recipe(fitting, 448)["backbone"]["half_size"] == 0.6
    assert "half_size" not in fitted_recipe(fitting, 224)["backbone"]


def test_rates_go_with_the_batch() -> None:
    small, large = (fitted_recipe(Fitting(survey_of(n), pretrained=True)) for n in (260, 5000))
    assert large["backbone"]["lr"] == pytest.approx(4 * small["backbone"]["lr"])  # batches of 32 and of 8
    assert small["data"]["augment"]["crop"] == 0.35


@pytest.mark.parametrize(
    ("side_px", "sizes"),
    [
        (500, {"glance_px": 96, "focus": ("0.8@128", "whole@224")}),
        (64, {"view": {"height_px": 128, "width_px": 128}, "glance_px": 64, "focus": ("0.8@64", "whole@128")}),
        (28, {"view": {"height_px": 64, "width_px": 64}, "glance_px": 32, "focus": ("0.8@32", "whole@64")}),
    ],
)
def test_small_pictures_are_not_blown_up_to_224_px(side_px: int, sizes: dict[str, object]) -> None:
    assert fitted_sizes(survey_of(10, side_px), {}) == {
        **sizes,
        "looks": 3,
        "policy": {"head": "conv", "units": 256},
        "classifier": "summed",
        "whole_encoder": True,
    }


def test_a_second_zoomed_view_needs_enough_held_out_images_for_its_thresholds() -> None:
    few, many = (Survey(("a",), {"train": {"a": 5 * n}, "val": {"a": n}}, (500,)) for n in (399, 400))
    assert fitted_sizes(few, {})["focus"] == ("0.8@128", "whole@224")
    # The whole image is smaller than for the backbone: its encoder learns from the backbone, too.
    assert fitted_sizes(many, {})["focus"] == ("0.8@128", "0.8@160", "whole@192")
    # 4/7 and 5/7 of 64 px are both 32 px
    assert fitted_sizes(many, {"view": {"height_px": 64, "width_px": 64}})["focus"] == ("0.8@32", "whole@64")


@pytest.mark.parametrize(
    ("focus", "separate"),
    [(["0.5@112", "whole@160"], True), (["whole@160", "whole@224"], False), (["0.5@112"], False)],
)
def test_views_of_the_whole_image_have_an_encoder_of_their_own_beside_views_of_parts(
    focus: list[str], separate: bool
) -> None:
    assert fitted_sizes(survey_of(10), {"focus": focus})["whole_encoder"] is separate


def test_sizes_that_the_user_names_stay() -> None:
    named = {"glance_px": 64, "view": {"height_px": 320, "width_px": 448}}
    assert fitted_sizes(survey_of(10), named) == {
        "focus": ("0.8@192", "whole@320"),
        "looks": 3,
        "policy": {"head": "conv", "units": 256},
        "classifier": "summed",
        "whole_encoder": True,
    }


def test_a_folder_alone_is_enough(folder: str) -> None:
    settings = train_settings(folder)
    assert (settings.network.backbone, settings.weights) == (DEFAULT_BACKBONE, "pretrained")
    assert (settings.network.classes, settings.batch_size) == (2, 4)
    assert (settings.network.view.height_px, settings.data.augment.crop) == (96, 0.35)  # twice 48 px
    assert settings.backbone.epochs == 15
    assert settings.keep_statistics
    assert settings.stages == ("backbone", "glance", "recognise", "point")
    assert (settings.glance.distill, settings.recognise.aims, settings.network.policy.place) == (0.7, "evidence", True)


def test_the_policy_of_photographs_is_small_whatever_the_backbone(folder: str) -> None:
    # The paper's policy of ResNets reads the whole map: two linear layers of 2,048 and 1,024 units.
    assert gf.create(backbone="resnet18", classes=2).settings.policy.head == "linear"
    policy = train_settings(folder, backbone="resnet18").network.policy
    assert (policy.head, policy.units, policy.place) == ("conv", 256, True)
    named = train_settings(folder, backbone="resnet18", assignments=["network.policy.head=linear"])
    assert named.network.policy.head == "linear"


def test_a_resnet_copies_its_teacher_at_a_lower_rate_than_a_light_network(folder: str) -> None:
    light, other = (
        train_settings(folder, backbone=name, changes={"weights": "pretrained"})
        for name in ("tf_efficientnet_lite0", "resnet50")
    )
    # Batches of 4 images: sqrt(4 / 32) of 0.0005 and of 0.00007, rounded to one digit.
    assert (light.glance.lr, light.recognise.encoder_lr) == (2e-4, 2e-4)
    assert (other.glance.lr, other.recognise.encoder_lr) == (2e-5, 2e-5)


def test_stages_without_the_backbone_learn_from_labels_only(folder: str) -> None:
    settings = train_settings(folder, stages=["glance,1"])
    assert (settings.glance.distill, settings.recognise.distill, settings.recognise.aims) == (0.0, 0.0, "random")
    taught = train_settings(folder, stages=["glance,1"], changes={"teacher": "trained.safetensors"})
    assert (taught.glance.distill, taught.recognise.aims) == (0.7, "evidence")


def test_random_initialisation_is_asked_for_by_none(folder: str) -> None:
    settings = train_settings(folder, changes={"weights": "none"})
    assert settings.weights is None
    assert settings.backbone.epochs == 60
    assert not settings.keep_statistics


def test_the_papers_presets_keep_the_papers_defaults(folder: str) -> None:
    settings = train_settings(folder, preset="gf-resnet50-96")
    assert (settings.batch_size, settings.recognise.epochs, settings.data.augment.crop) == (256, 60, 0.08)
    assert (settings.network.glance_px, settings.network.view.height_px, settings.weights) == (96, 224, None)


def test_effort_scales_the_epochs_of_any_recipe(folder: str) -> None:
    assert train_settings(folder, effort="quick").backbone.epochs == 5
    assert train_settings("signs", effort="thorough").glance.epochs == 18  # three times the recipe's 6
    assert train_settings("signs", effort="quick").joint.epochs == 20  # a third of the default of 60


def test_an_assignment_overrides_the_recipe(folder: str) -> None:
    settings = train_settings(folder, effort="quick", assignments=["backbone.epochs=2", "batch_size=6"])
    assert (settings.backbone.epochs, settings.batch_size) == (2, 6)


def test_a_misspelt_backbone_is_reported_before_the_data_is_read() -> None:
    with pytest.raises(UnknownName, match="no backbone named 'resnet81'"):
        train_settings("no such folder", backbone="resnet81")
