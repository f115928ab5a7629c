"""The fourteen networks of the paper's appendix, by name, and what may be changed about them."""

from typing import Any

import pytest

from glancefocus.errors import BadSetting, UnknownName
from glancefocus.network.presets import PRESETS, network_settings
from glancefocus.settings import PolicySettings, ViewSettings

# Name, backbone, px of glance and patch, looks, px of the image, classifier, glance as resized by the released models.
PAPER = [
    ("gf-resnet50-96", "resnet50", 96, 5, 224, "recurrent", "antialias"),
    ("gf-resnet50-128", "resnet50", 128, 5, 224, "recurrent", "antialias"),
    ("gf-densenet121-96", "densenet121", 96, 5, 224, "recurrent", "antialias"),
    ("gf-densenet169-96", "densenet169", 96, 5, 224, "recurrent", "antialias"),
    ("gf-densenet201-96", "densenet201", 96, 5, 224, "recurrent", "antialias"),
    ("gf-regnety-600m-96", "regnety_006", 96, 5, 224, "recurrent", "antialias"),
    ("gf-regnety-800m-96", "regnety_008", 96, 5, 224, "recurrent", "antialias"),
    ("gf-regnety-1.6g-96", "regnety_016", 96, 5, 224, "recurrent", "antialias"),
    ("gf-mobilenetv3-large-100-96", "mobilenetv3_large_100", 96, 3, 224, "cascaded", "antialias"),
    ("gf-mobilenetv3-large-100-128", "mobilenetv3_large_100", 128, 3, 224, "cascaded", "antialias"),
    ("gf-mobilenetv3-large-125-128", "mobilenetv3_large_125", 128, 3, 224, "cascaded", "antialias"),
    ("gf-efficientnet-b2-128", "efficientnet_b2", 128, 4, 260, "cascaded", "antialias"),
    ("gf-efficientnet-b3-128", "efficientnet_b3", 128, 4, 300, "cascaded", "antialias"),
    ("gf-efficientnet-b3-144", "efficientnet_b3", 144, 4, 300, "cascaded", "antialias"),
]
PAPERS_NAMES = [row[0] for row in PAPER]


def test_the_presets_are_those_of_the_papers_appendix() -> None:
    ours = [
        (
            name,
            preset.settings.backbone,
            preset.settings.glance_px,
            preset.settings.looks,
            preset.settings.view.height_px,
            preset.settings.classifier,
            preset.settings.glance_resize,
        )
        for name, preset in PRESETS.items()
        if name in PAPERS_NAMES
    ]
    assert ours == PAPER
    for name in PAPERS_NAMES:
        settings = PRESETS[name].settings
        assert settings.focus == (str(settings.glance_px),)
        assert not settings.policy.place
        assert settings.view.width_px == settings.view.height_px
        assert settings.classes == 1000
        assert not settings.shared_encoder


@pytest.mark.parametrize(
    ("name", "backbone", "glance_px", "focus"),
    [
        ("gf-ms-resnet50-96", "resnet50", 96, ("96", "128", "160")),
        ("gf-ms-efficientnet-b3-128", "efficientnet_b3", 128, ("128", "160", "192")),
    ],
)
def test_the_networks_with_several_sizes_are_those_of_the_papers_appendix(
    name: str, backbone: str, glance_px: int, focus: tuple[str, ...]
) -> None:
    settings = PRESETS[name].settings
    assert (settings.backbone, settings.glance_px, settings.focus, settings.looks) == (backbone, glance_px, focus, 4)
    # Maps are upsampled after the policy's convolution, so ResNet-50 has one here, too.
    assert settings.policy == PolicySettings("conv", units=256)


def test_each_family_has_the_policy_and_first_answer_of_the_paper() -> None:
    linear, conv = PolicySettings("linear", linear_units=2048, units=1024), PolicySettings("conv", units=256)
    expected = {
        "resnet": (linear, "classifier"),
        "densene": (linear, "classifier"),
        "regnety": (conv, "own_head_evaluating"),
        "mobilen": (conv, "own_head"),
        "efficie": (conv, "own_head"),
    }
    for name in PAPERS_NAMES:
        settings = PRESETS[name].settings
        policy, first_answer = next(v for k, v in expected.items() if settings.backbone.startswith(k))
        assert settings.policy == policy
        assert settings.first_answer == first_answer
    assert conv.conv_channels == 32
    assert conv.conv_kernel == 1


def test_views_are_those_that_the_papers_models_were_evaluated_with() -> None:
    assert network_settings("gf-resnet50-96").view == ViewSettings("crop", 224, 224, 0.875, "bilinear")
    assert network_settings("gf-efficientnet-b2-128").view == ViewSettings("crop", 260, 260, 0.875, "bicubic")
    assert network_settings("gf-efficientnet-b3-144").view == ViewSettings("crop", 300, 300, 0.904, "bicubic")


def test_a_preset_may_be_changed_in_any_field() -> None:
    changed = network_settings(
        "gf-resnet50-96", classes=7, looks=3, patch_px=64, policy={"units": 512}, view={"fit": "whole"}
    )
    assert (changed.classes, changed.looks, changed.focus, changed.glance_px) == (7, 3, ("64",), 96)
    assert changed.policy == PolicySettings("linear", linear_units=2048, units=512)
    assert changed.view == ViewSettings("whole")
    assert network_settings("gf-resnet50-96", patch_px=[96, 128]).focus == ("96", "128")
    assert network_settings("gf-resnet50-96", focus="whole@160").focus == ("whole@160",)
    assert network_settings("gf-resnet50-96", policy=PolicySettings("conv")).policy == PolicySettings("conv")


def test_any_backbone_takes_what_the_paper_chose_for_its_family() -> None:
    assert network_settings(backbone="resnet18.a1_in1k").policy.head == "linear"
    assert network_settings(backbone="mobilenetv3_small_050").classifier == "cascaded"
    assert network_settings(backbone="tf_efficientnet_lite0").looks == 4
    other = network_settings(backbone="convnext_atto", classes=3)
    assert (other.classifier, other.policy.head, other.looks, other.glance_resize) == (
        "recurrent",
        "conv",
        5,
        "antialias",
    )


def test_a_cascaded_classifier_brings_its_first_answer_along() -> None:
    assert network_settings(backbone="convnext_atto", classifier="cascaded").first_answer == "own_head"


def test_a_misspelt_preset_gets_a_suggestion() -> None:
    with pytest.raises(UnknownName, match="no preset named 'gf-resnet50-69'. Did you mean 'gf-resnet50-96'"):
        network_settings("gf-resnet50-69")
    with pytest.raises(UnknownName, match="no preset named 'zebra'. `gf models` lists them all"):
        network_settings("zebra")


def test_either_a_preset_or_a_backbone_must_be_named() -> None:
    with pytest.raises(BadSetting, match="name either a preset or a backbone"):
        network_settings()
    with pytest.raises(BadSetting, match="name either a preset or a backbone"):
        network_settings("gf-resnet50-96", backbone="resnet50")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"look": 3}, "no setting named 'look'. Did you mean 'looks'"),
        ({"policy": {"unit": 3}}, "no setting in policy named 'unit'. Did you mean 'units'"),
        ({"policy": 5}, "policy must be a table of names and values, but got int"),
        ({"view": "crop"}, "view must be a table of names and values, but got str"),
        ({"classes": 1}, "classes must be a whole number from 2 to 1,000,000, but got 1"),
        ({"looks": 0}, "from 1 to 64, but got 0"),
        ({"looks": "3"}, "looks must be a whole number from 1 to 64, but got '3'"),
        ({"patch_px": 225}, r"the view 225 is larger than the image \(224 px\)"),
        ({"patch_px": ()}, "focus must name one or several different views, but got none"),
        ({"patch_px": 4}, "patch_px must be a whole number from 8 to 16,384, but got 4"),
        ({"glance_resize": "nearest"}, "must be one of 'antialias', 'bicubic', 'bilinear', but got 'nearest'"),
    ],
)
def test_a_change_that_cannot_work_says_why(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadSetting, match=sentence):
        network_settings("gf-resnet50-96", **changes)


@pytest.mark.parametrize("backbone", ["mobilenetv3_large_100", "tf_mobilenetv3_large_100"])
def test_a_backbone_belongs_to_its_family_with_the_weights_of_either_framework(backbone: str) -> None:
    settings = network_settings(backbone=backbone, classes=10, glance_px=96, focus=("96",))
    assert (settings.looks, settings.classifier, settings.first_answer) == (3, "cascaded", "own_head")


def test_dropout_is_that_of_the_released_code() -> None:
    options = {name: PRESETS[name].settings.backbone_options for name in PAPERS_NAMES}
    light = {"drop_rate": 0.2, "drop_path_rate": 0.2}
    efficient = {"drop_rate": 0.3, "drop_path_rate": 0.2}
    for name, found in options.items():
        expected = light if "mobilenet" in name else efficient if "efficientnet" in name else {}
        assert found == expected, name
    assert network_settings(backbone="mobilenetv3_large_100").backbone_options == {}
