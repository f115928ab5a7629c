"""Settings go through JSON unchanged, and whatever cannot work is refused with what was wrong."""

import json
from typing import Any

import pytest

from glancefocus.errors import BadSetting, UnknownName
from glancefocus.network.presets import PRESETS
from glancefocus.settings import NetworkSettings, PolicySettings, ViewSettings
from glancefocus.values import from_plain, to_plain

ODD = NetworkSettings(
    backbone="resnet18",
    classes=7,
    glance_px=64,
    focus=("32", "48"),
    looks=2,
    glance_resize="bilinear",
    classifier="cascaded",
    classifier_units=5,
    first_answer="own_head",
    policy=PolicySettings("linear", 8, 3, 100, 50, place=True),
    shared_encoder=True,
    backbone_options={"channels": [8, 16, 24, 32]},
    view=ViewSettings("stretch", 100, 120, 0.5, "bicubic", (0.1, 0.2, 0.3), (1.0, 2.0, 3.0)),
)


@pytest.mark.parametrize("settings", [ODD, *(p.settings for p in PRESETS.values())], ids=lambda s: s.backbone)
def test_settings_go_through_json_and_back(settings: NetworkSettings) -> None:
    assert from_plain(NetworkSettings, json.loads(json.dumps(to_plain(settings)))) == settings


def test_what_is_left_out_takes_its_default() -> None:
    assert from_plain(NetworkSettings, {"backbone": "resnet50"}) == NetworkSettings("resnet50")


def test_a_whole_number_may_stand_for_a_float() -> None:
    view = from_plain(ViewSettings, {"crop_pct": 1, "mean": [0, 0, 0]})
    assert view.crop_pct == 1.0
    assert all(isinstance(value, float) for value in (view.crop_pct, *view.mean))


@pytest.mark.parametrize(
    ("plain", "sentence"),
    [
        (None, "network must be a table of names and values, but got NoneType"),
        ([1], "network must be a table of names and values, but got list"),
        ({}, "network is incomplete: .*backbone"),
        ({"backbone": 5}, "network.backbone must be a text, but got 5"),
        ({"backbone": "a", "classes": 2.5}, "network.classes must be a whole number from 2 to 1,000,000, but got 2.5"),
        (
            {"backbone": "a", "classes": True},
            "network.classes must be a whole number from 2 to 1,000,000, but got True",
        ),
        (
            {"backbone": "a", "classes": None},
            "network.classes must be a whole number from 2 to 1,000,000, but got None",
        ),
        ({"backbone": "a", "shared_encoder": 1}, "network.shared_encoder must be true or false, but got 1"),
        ({"backbone": "a", "focus": 96}, "network.focus must be a list, but got 96"),
        ({"backbone": "a", "focus": [96]}, r"network.focus\[0\] must be a text, but got 96"),
        (
            {"backbone": "a", "patch_px": [96, "b"]},
            "network.patch_px must be a whole number from 8 to 16,384, but got 'b'",
        ),
        (
            {"backbone": "a", "classifier": "tree"},
            "network.classifier must be one of 'recurrent', 'cascaded', 'summed', but got 'tree'",
        ),
        ({"backbone": "a", "backbone_options": [1]}, r"network.backbone_options must be a table .*, but got \[1\]"),
        ({"backbone": "a", "policy": []}, "network.policy must be a table of names and values, but got list"),
        (
            {"backbone": "a", "policy": {"units": "x"}},
            "network.policy.units must be a whole number from 1 to 65,536, but got 'x'",
        ),
        (
            {"backbone": "a", "view": {"mean": [0.5, 0.5]}},
            r"network.view.mean must be a list of 3 values, but got \[0.5, 0.5\]",
        ),
        (
            {"backbone": "a", "view": {"crop_pct": "all"}},
            "network.view.crop_pct must be a number above 0 and at most 1, but got 'all'",
        ),
    ],
)
def test_plain_values_of_the_wrong_kind_are_refused(plain: Any, sentence: str) -> None:
    with pytest.raises(BadSetting, match=sentence):
        from_plain(NetworkSettings, plain, "network")


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(UnknownName, match="no setting in network named 'backbon'. Did you mean 'backbone'"):
        from_plain(NetworkSettings, {"backbon": "resnet50"}, "network")


@pytest.mark.parametrize(
    ("kind", "values", "sentence"),
    [
        (ViewSettings, {"height_px": 7}, "height_px must be a whole number from 8 to 16,384, but got 7"),
        (ViewSettings, {"width_px": 0}, "width_px must be a whole number from 8 to 16,384, but got 0"),
        (ViewSettings, {"crop_pct": 0.0}, "crop_pct must be a number above 0 and at most 1, but got 0.0"),
        (ViewSettings, {"crop_pct": 1.01}, "crop_pct must be a number above 0 and at most 1, but got 1.01"),
        (ViewSettings, {"std": (1.0, 0.0, 1.0)}, r"std\[1\] must be a number above 0 and at most 1,000, but got 0.0"),
        (PolicySettings, {"conv_kernel": 2}, "needs an odd kernel, but got 2. Use 1 or 3"),
        (PolicySettings, {"conv_kernel": -1}, "conv_kernel must be a whole number from 1 to 31, but got -1"),
        (PolicySettings, {"units": 0}, "units must be a whole number from 1 to 65,536, but got 0"),
        (PolicySettings, {"conv_channels": 0}, "conv_channels must be a whole number from 1 to 65,536"),
        (PolicySettings, {"linear_units": -5}, "linear_units must be a whole number from 1 to 65,536, but got -5"),
        (NetworkSettings, {"classes": 1}, "classes must be a whole number from 2 to 1,000,000, but got 1"),
        (NetworkSettings, {"looks": 65}, "looks must be a whole number from 1 to 64, but got 65"),
        (NetworkSettings, {"glance_px": 7}, "glance_px must be a whole number from 8 to 16,384, but got 7"),
        (NetworkSettings, {"classifier": "cascaded"}, "has no layer for the glance: its first_answer is 'own_head'"),
        (
            NetworkSettings,
            {"classifier_units": 0},
            "classifier_units must be a whole number from 1 to 65,536, but got 0",
        ),
    ],
)
def test_values_that_cannot_work_are_refused(kind: type[Any], values: dict[str, Any], sentence: str) -> None:
    more = {"backbone": "resnet50"} if kind is NetworkSettings else {}
    with pytest.raises(BadSetting, match=sentence):
        kind(**more, **values)


def test_a_network_that_only_glances_may_name_any_view() -> None:
    assert NetworkSettings("resnet50", looks=1, focus=("300", "whole@400")).looks == 1
