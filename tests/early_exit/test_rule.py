"""Who leaves after which look, and whether sure or out of looks."""

import math
from collections.abc import Callable

import pytest
import torch

from glancefocus.early_exit.rule import ExitRule, every_look
from glancefocus.errors import BadSetting
from glancefocus.look import Look


def test_an_image_leaves_above_the_threshold_of_this_look(look_with: Callable[..., Look]) -> None:
    rule = ExitRule([0.9, 0.6, 0.0])
    assert rule.leaves(look_with([0.95, 0.85, 0.3])).tolist() == [True, False, False]
    assert rule.leaves(look_with([0.95, 0.85, 0.3], number=2)).tolist() == [
        True,
        True,
        True,
    ]  # 0.3 is 0.7 for the other
    assert rule.sure(look_with([0.95, 0.55], number=2)).tolist() == [True, False]


def test_an_image_exactly_at_the_threshold_stays(look_with: Callable[..., Look]) -> None:
    look = look_with([0.5])  # both logits equal: exactly 0.5
    assert look.confidence.item() == 0.5
    assert not ExitRule([0.5, 0.0]).leaves(look).item()
    just_below = float(torch.nextafter(torch.tensor(0.5), torch.tensor(0.0)))  # the float32 before it
    assert ExitRule([just_below, 0.0]).leaves(look).item()


def test_the_last_look_always_leaves(look_with: Callable[..., Look]) -> None:
    rule = ExitRule([0.9, 0.9])
    last = look_with([0.95, 0.6], number=2)
    assert rule.leaves(last).tolist() == [True, True]
    assert rule.sure(last).tolist() == [True, False]


def test_a_last_threshold_of_zero_means_out_of_looks(look_with: Callable[..., Look]) -> None:
    rule = ExitRule([0.9, 0.0])
    assert rule.sure(look_with([0.99], number=2)).tolist() == [False]
    assert rule.leaves(look_with([0.99], number=2)).tolist() == [True]


def test_a_threshold_of_zero_before_the_last_lets_everybody_go_sure(look_with: Callable[..., Look]) -> None:
    rule = ExitRule([0.0, 0.0])
    assert rule.leaves(look_with([0.5, 0.6])).tolist() == [True, True]
    assert rule.sure(look_with([0.5, 0.6])).tolist() == [True, True]


def test_a_threshold_of_one_lets_nobody_go(look_with: Callable[..., Look]) -> None:
    look = look_with([0.5])
    certain = Look(**{**vars(look), "logits": torch.tensor([[100.0, -100.0]])})
    assert certain.confidence.item() == 1.0
    assert not ExitRule([1.0, 0.0]).leaves(certain).item()


def test_every_look_is_taken_by_everybody_and_nobody_is_sure(look_with: Callable[..., Look]) -> None:
    rule = every_look(3)
    assert rule.looks == 3
    for number in (1, 2):
        assert not rule.leaves(look_with([0.999999, 0.5], number=number)).any()
    assert rule.leaves(look_with([0.999999, 0.5], number=3)).all()
    assert not rule.sure(look_with([0.999999, 0.5], number=3)).any()


def test_a_rule_needs_thresholds() -> None:
    with pytest.raises(BadSetting, match="needs one threshold for each look, but got none"):
        ExitRule([])


def test_a_threshold_must_be_a_number() -> None:
    with pytest.raises(BadSetting, match="thresholds must be numbers, but got"):
        ExitRule([0.5, math.nan])
