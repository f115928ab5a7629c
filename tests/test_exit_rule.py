"""Which images stop after which look, sure or out of looks or out of time; and the size of the next patch."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from glancefocus.errors import BadSetting
from glancefocus.look import Aim, Look
from glancefocus.loop import CandidateRule, Deadline, Entropy, ExitRule, Value, every_look, fixed_looks
from glancefocus.settings import native, whole


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


def test_a_threshold_of_zero_before_the_last_stops_every_image_as_sure(look_with: Callable[..., Look]) -> None:
    rule = ExitRule([0.0, 0.0])
    assert rule.leaves(look_with([0.5, 0.6])).tolist() == [True, True]
    assert rule.sure(look_with([0.5, 0.6])).tolist() == [True, True]


def test_a_threshold_of_one_stops_no_image(look_with: Callable[..., Look]) -> None:
    look = look_with([0.5])
    certain = Look(**{**vars(look), "logits": torch.tensor([[100.0, -100.0]])})
    assert certain.confidence.item() == 1.0
    assert not ExitRule([1.0, 0.0]).leaves(certain).item()


def test_every_look_is_taken_by_every_image_and_none_is_sure(look_with: Callable[..., Look]) -> None:
    rule = every_look(3)
    assert rule.looks == 3
    for number in (1, 2):
        assert not rule.leaves(look_with([0.999999, 0.5], number=number)).any()
    assert rule.leaves(look_with([0.999999, 0.5], number=3)).all()
    assert not rule.sure(look_with([0.999999, 0.5], number=3)).any()


def test_a_fixed_number_of_looks_is_taken_by_every_image(look_with: Callable[..., Look]) -> None:
    rule = fixed_looks(2, [native(96)])
    assert not rule.leaves(look_with([0.999999, 0.5])).any()
    assert rule.leaves(look_with([0.999999, 0.5], number=2)).all()
    growing = fixed_looks(3, [native(96), whole(160)])
    assert isinstance(growing, CandidateRule)
    assert not growing.leaves(look_with([0.999999, 0.5])).any()
    assert growing.next_candidate(look_with([0.999999, 0.5])).tolist() == [0, 0]
    assert growing.next_candidate(look_with([0.999999, 0.5], number=2)).tolist() == [1, 1]
    assert growing.leaves(look_with([0.999999, 0.5], number=3)).all()


def test_a_rule_needs_thresholds() -> None:
    with pytest.raises(BadSetting, match="needs one threshold for each look, but got none"):
        ExitRule([])


def test_a_threshold_must_be_a_number() -> None:
    with pytest.raises(BadSetting, match="a threshold must be a number, but got nan"):
        ExitRule([0.5, math.nan])


def size_rule(*rows: list[float], **more: Any) -> CandidateRule:
    return CandidateRule(list(rows), candidates=3, **more)


def test_with_several_sizes_an_image_stops_above_all_thresholds_of_its_look(look_with: Callable[..., Look]) -> None:
    rule = size_rule([0.6, 0.9, 0.7], [0.8, 0.6, 0.7], [0.0, 0.0, 0.0])
    assert rule.leaves(look_with([0.95, 0.85, 0.65])).tolist() == [True, False, False]
    assert rule.leaves(look_with([0.95, 0.85, 0.65], number=2)).tolist() == [True, True, False]


def test_the_next_patch_has_the_size_of_the_smallest_threshold_that_is_not_below_the_score(
    look_with: Callable[..., Look],
) -> None:
    rule = size_rule([0.6, 0.9, 0.7], [0.9, 0.8, 0.55], [0.0, 0.0, 0.0])
    # after the glance: up to 0.6 candidate 0, up to 0.7 candidate 2, up to 0.9 candidate 1
    assert rule.next_candidate(look_with([0.55, 0.65, 0.75, 0.89])).tolist() == [0, 2, 1, 1]
    # after the second look: up to 0.55 candidate 2, up to 0.8 candidate 1, up to 0.9 candidate 0
    assert rule.next_candidate(look_with([0.52, 0.6, 0.85], number=2)).tolist() == [2, 1, 0]


def test_an_image_exactly_at_a_threshold_is_not_above_it_and_takes_its_size(look_with: Callable[..., Look]) -> None:
    look = look_with([0.5])  # both logits equal: exactly 0.5
    above = size_rule([0.5, 0.75, 0.25], [0.0, 0.0, 0.0])
    assert above.next_candidate(look).tolist() == [0]
    at_the_largest = size_rule([0.25, 0.125, 0.5], [0.0, 0.0, 0.0])
    assert not at_the_largest.leaves(look).item()
    assert at_the_largest.next_candidate(look).tolist() == [2]


def test_of_equal_thresholds_the_first_size_comes(look_with: Callable[..., Look]) -> None:
    assert size_rule([0.5, 0.8, 0.8], [0.0] * 3).next_candidate(look_with([0.7])).tolist() == [1]
    assert size_rule([0.8, 0.8, 0.8], [0.0] * 3).next_candidate(look_with([0.7])).tolist() == [0]


def test_a_size_below_every_score_is_never_taken(look_with: Callable[..., Look]) -> None:
    rule = size_rule([-1.0, -1.0, 1.0], [0.0] * 3)
    assert rule.next_candidate(look_with([0.5, 0.7, 0.999])).tolist() == [2, 2, 2]
    assert size_rule([-1.0] * 3, [0.0] * 3).leaves(look_with([0.5, 0.7])).all()


def test_the_last_look_leaves_with_several_sizes_too(look_with: Callable[..., Look]) -> None:
    rule = size_rule([0.9, 0.9, 0.9], [0.0, 0.0, 0.0])
    last = look_with([0.99, 0.5], number=2)
    assert rule.leaves(last).tolist() == [True, True]
    assert rule.sure(last).tolist() == [False, False]
    assert size_rule([0.9] * 3, [0.2, 0.9, 0.3]).sure(last).tolist() == [True, False]


def test_the_same_rule_by_a_plain_transcription_of_the_papers_equations(look_with: Callable[..., Look]) -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        thresholds = random.uniform(0.5, 1, 3).astype(np.float32)
        look = look_with(random.uniform(0.5, 1, 20).tolist())
        rule = size_rule(thresholds.astype(float).tolist(), [0.0] * 3)
        leaves, sizes = rule.leaves(look), rule.next_candidate(look)
        for row, score in enumerate(look.confidence.numpy()):
            at_least = [(threshold, place) for place, threshold in enumerate(thresholds) if threshold >= score]
            assert bool(leaves[row]) == (not at_least)
            if at_least:
                assert int(sizes[row]) == min(at_least)[1]


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([[0.5, 0.5], [0.0, 0.0]], r"3 candidate views needs 3 thresholds for each look, but got \[\[0.5"),
        ([[0.5, 0.5, 0.5], [0.0]], "needs 3 thresholds for each look"),
        ([[0.5, math.nan, 0.5], [0.0, 0.0, 0.0]], "a threshold must be a number, but got nan"),
        ([], "needs one threshold for each look, but got none"),
    ],
)
def test_thresholds_that_do_not_fit_the_sizes_are_refused(rows: list[list[float]], sentence: str) -> None:
    with pytest.raises(BadSetting, match=sentence):
        CandidateRule(rows, candidates=3)


def test_the_value_cannot_choose_a_size() -> None:
    with pytest.raises(
        BadSetting, match="the score also chooses the next size, which 'value' cannot. Use confidence or entropy"
    ):
        size_rule([0.5] * 3, [0.0] * 3, score=Value())


def test_another_score_decides_by_the_same_thresholds(look_with: Callable[..., Look]) -> None:
    # Of two classes 0.9 and 0.1: entropy 0.325 of ln 2 = 0.693, so the score is 1 - 0.469 = 0.531.
    look = look_with([0.9])
    assert ExitRule([0.53, 0.0], Entropy()).leaves(look).item()
    assert not ExitRule([0.54, 0.0], Entropy()).leaves(look).item()
    assert size_rule([0.53, 0.8, 0.54], [0.0] * 3, score=Entropy()).next_candidate(look).tolist() == [2]


def test_a_rule_by_value_asks_for_an_aim_before_all_looks_but_the_last(look_with: Callable[..., Look]) -> None:
    rule = ExitRule([0.5, 0.5, 0.5], Value())
    assert [rule.needs_aim(look_with([0.5], number=n)) for n in (1, 2, 3)] == [True, True, False]
    aim = Aim(where=torch.zeros(2, 2), candidate=0, value=torch.tensor([-1.0, 1.0]))
    assert rule.sure(look_with([0.5, 0.5]), aim).tolist() == [True, False]  # sigmoid(1) and sigmoid(-1)
    assert not rule.sure(look_with([0.99, 0.99], number=3)).any()
    assert not ExitRule([0.5, 0.5]).needs_aim(look_with([0.5]))


def test_temperatures_divide_the_logits_of_their_look(look_with: Callable[..., Look]) -> None:
    rule = ExitRule([0.8, 0.8, 0.0], temperatures=(1.0, 2.0, 0.5))
    odds_of_nine = [0.9, 0.1]  # logits differ by ln 9
    for number, confidence in ((1, 0.9), (2, 0.75), (3, 81 / 82)):  # odds of 9, of 9^(1/2) = 3, of 9^2 = 81
        look = look_with(odds_of_nine, number=number)
        calibrated = rule.calibrated(look)
        assert calibrated.confidence.tolist() == pytest.approx([confidence] * 2, abs=1e-6)
        assert torch.equal(calibrated.logits.argmax(dim=1), look.logits.argmax(dim=1))
    second = look_with(odds_of_nine, number=2)
    assert rule.leaves(second).all()
    assert not rule.leaves(rule.calibrated(second)).any()
    assert ExitRule([0.8, 0.0]).calibrated(second) is second


@pytest.mark.parametrize(
    "temperatures", [(1.0, 1.0), (1.0, 1.0, 0.0), (1.0, -1.0, 1.0), (1.0, math.inf, 1.0), (1.0, math.nan, 1.0), ()]
)
def test_temperatures_that_cannot_be_are_refused(temperatures: tuple[float, ...]) -> None:
    with pytest.raises(BadSetting, match=r"there must be 3 temperatures above 0, but got \["):
        ExitRule([0.5, 0.5, 0.0], temperatures=temperatures)


class Clock:
    """Shows the time that it was set to."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def test_another_look_is_allowed_if_it_is_over_in_time_at_the_pace_so_far(look_with: Callable[..., Look]) -> None:
    clock = Clock()
    deadline = Deadline(clock, starts_at=100.0, ends_at=110.0)
    for now, number, allowed in [
        (105.0, 1, True),  # the glance took 5 s: the next look would be over at 110, just in time
        (105.1, 1, False),
        (106.0, 2, True),  # two looks took 3 s each: 109
        (107.0, 2, False),  # 3.5 s each: 110.5
        (108.0, 4, True),  # 2 s each: 110
        (111.0, 1, False),  # time is up
    ]:
        clock.now = now
        assert deadline.allows_another(look_with([0.5], number=number)) == allowed


def test_when_time_is_up_every_image_stops_and_only_the_sure_are_sure(look_with: Callable[..., Look]) -> None:
    clock = Clock(1.0)
    rule = ExitRule([0.9, 0.9, 0.0], deadline=Deadline(clock, starts_at=0.0, ends_at=10.0))
    look = look_with([0.95, 0.6])
    assert rule.leaves(look).tolist() == [True, False]
    clock.now = 6.0
    assert rule.leaves(look).tolist() == [True, True]
    assert rule.sure(look).tolist() == [True, False]


def test_the_deadline_holds_with_several_sizes(look_with: Callable[..., Look]) -> None:
    rule = size_rule([1.0] * 3, [0.0] * 3, deadline=Deadline(Clock(6.0), starts_at=0.0, ends_at=10.0))
    assert rule.leaves(look_with([0.5, 0.6])).all()
