"""What looking costs, worked out by hand."""

import json

import pytest
import torch

from glancefocus.bundle.files import read_costs
from glancefocus.errors import BadSetting
from glancefocus.outcome import Costs

# A glance 100, an aim 7, a focus 100 at 32 px and 250 at 48 px, answers 3, 5 and 6.
COSTS = Costs(
    encoder_macs=100,
    encoder_with_head_macs=110,
    focus_encoder_macs={"32": 100, "48": 250},
    policy_macs=7,
    classifier_macs=(3, 5, 6),
    backbone_macs=1000,
)


def test_macs_after_look_adds_up_with_the_largest_patches() -> None:
    assert COSTS.macs_after_look == (103, 103 + 7 + 250 + 5, 103 + 7 + 250 + 5 + 7 + 250 + 6)


def test_an_image_pays_for_the_looks_it_took_at_the_sizes_they_had() -> None:
    looks = torch.tensor([1, 2, 2, 3, 3])
    candidate = torch.tensor([[-1, -1], [0, -1], [1, -1], [0, 1], [1, 1]])
    spent = COSTS.spent(looks, candidate)
    assert spent.tolist() == [103, 215, 365, 215 + 263, 628]
    assert spent.dtype == torch.float64
    assert spent[4] == COSTS.macs_after_look[2]


def test_patches_beyond_the_last_look_taken_cost_nothing() -> None:
    assert COSTS.spent(torch.tensor([1]), torch.tensor([[1, 1]])).tolist() == [103]


def test_fewer_looks_than_the_table_has_are_fine() -> None:
    assert COSTS.spent(torch.tensor([1, 2]), torch.tensor([[-1], [0]])).tolist() == [103, 215]
    assert COSTS.spent(torch.tensor([1, 1]), torch.zeros(2, 0, dtype=torch.int64)).tolist() == [103, 103]


def test_costs_go_through_json_and_back() -> None:
    plain = json.loads(json.dumps(COSTS.to_plain()))
    assert plain["macs_after_look"] == [103, 365, 628]
    assert read_costs(plain) == COSTS


@pytest.mark.parametrize(
    "change",
    [
        {"encoder_macs": None},
        {"encoder_macs": 10**30},
        {"encoder_macs": 1.5},
        {"backbone_macs": -1},
        {"focus_encoder_macs": [1]},
        {"focus_encoder_macs": {"x": 1}},
        {"focus_encoder_macs": {"9" * 5000: 1}},
        {"classifier_macs": 3},
    ],
)
def test_a_field_that_cannot_be_is_refused_by_its_name(change: dict[str, object]) -> None:
    (name,) = change
    with pytest.raises(BadSetting, match=f"costs.{name} must"):
        read_costs({**COSTS.to_plain(), **change})


def test_a_table_with_a_hole_names_what_is_missing() -> None:
    plain = COSTS.to_plain()
    del plain["policy_macs"]
    with pytest.raises(BadSetting, match="costs.policy_macs is missing"):
        read_costs(plain)
