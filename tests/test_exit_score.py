"""How sure an image is, by every score: 0 and 1 at the ends, numbers by hand in between."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from glancefocus.errors import BadSetting, UnknownName
from glancefocus.look import Aim, Look
from glancefocus.loop import SCORES, Confidence, Entropy, Random, Value, entropy, score_named

MakeLook = Callable[..., Look]


def aim_with(value: list[float] | None) -> Aim:
    count = 1 if value is None else len(value)
    return Aim(where=torch.zeros(count, 2), candidate=0, value=None if value is None else torch.tensor(value))


def test_the_confidence_is_the_largest_probability(look_with: MakeLook) -> None:
    # 0.3 for one class is 0.7 for the other
    assert Confidence().of(look_with([0.9, 0.3, 0.5]), None).tolist() == pytest.approx([0.9, 0.7, 0.5], abs=1e-6)


def test_equal_probabilities_score_zero_by_entropy_and_a_certain_answer_one(look_with: MakeLook) -> None:
    logits = torch.tensor([[2.0, 2.0, 2.0, 2.0], [100.0, 0.0, 0.0, 0.0], [5.0, 5.0, -100.0, -100.0]])
    look = replace(look_with([0.5] * 3), logits=logits)
    # Two equal classes of four: ln 2 of ln 4, which is a half.
    assert Entropy().of(look, None).tolist() == pytest.approx([0.0, 1.0, 0.5], abs=1e-6)


def test_the_entropy_is_in_nats() -> None:
    logits = torch.tensor([[math.log(0.5), math.log(0.25), math.log(0.25)]])
    assert entropy(logits).item() == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(4), abs=1e-6)


def test_entropy_and_confidence_rank_two_classes_alike(look_with: MakeLook) -> None:
    look = look_with([0.55, 0.95, 0.75, 0.6])
    assert Entropy().of(look, None).argsort().tolist() == Confidence().of(look, None).argsort().tolist() == [0, 3, 2, 1]


def test_the_less_the_critic_expects_the_surer_an_image_is(look_with: MakeLook) -> None:
    aim = aim_with([0.0, math.log(3), -math.log(3)])
    # sigmoid(-v): a half, 1 / (1 + 3), 1 / (1 + 1/3)
    assert Value().of(look_with([0.5] * 3), aim).tolist() == pytest.approx([0.5, 0.25, 0.75], abs=1e-6)


@pytest.mark.parametrize("aim", [None, aim_with(None)])
def test_the_value_needs_a_critic(aim: Aim | None, look_with: MakeLook) -> None:
    with pytest.raises(BadSetting, match="'value' needs a policy with a critic. Use confidence or entropy"):
        Value().of(look_with([0.5]), aim)


def test_only_the_value_needs_an_aim_before_anybody_leaves() -> None:
    assert {name: score_named(name).needs_aim for name in SCORES} == {
        "confidence": False,
        "entropy": False,
        "value": True,
        "random": False,
    }


def test_random_scores_repeat_by_their_generator_and_go_on(look_with: MakeLook) -> None:
    look = look_with([0.5] * 1000)
    one, two = (Random(torch.Generator().manual_seed(3)) for _ in range(2))
    first = one.of(look, None)
    assert torch.equal(first, two.of(look, None))
    assert not torch.equal(first, one.of(look, None))
    assert 0 <= float(first.min()) < 0.01
    assert 0.99 < float(first.max()) < 1
    assert abs(float(first.mean()) - 0.5) < 0.05


@pytest.mark.parametrize("name", SCORES)
def test_a_score_is_found_by_its_name(name: str, look_with: MakeLook) -> None:
    score = score_named(name, torch.Generator().manual_seed(0))
    assert score.name == name
    assert score.of(look_with([0.5, 0.6]), aim_with([0.0, 1.0])).shape == (2,)


def test_a_misspelt_score_gets_a_suggestion() -> None:
    with pytest.raises(UnknownName, match="there is no exit score named 'confidance'. Did you mean 'confidence'?"):
        score_named("confidance")
