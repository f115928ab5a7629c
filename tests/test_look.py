"""A look is a value: keeping some of its rows keeps everything of these rows and nothing of the others."""

import math
from dataclasses import replace

import pytest
import torch

from glancefocus.look import Aim, ImageBatch, Look
from glancefocus.loop import ExitRule
from glancefocus.network.modules import rows_by_candidate
from glancefocus.region import Region
from glancefocus.settings import native, whole
from glancefocus.stream import join_looks


def look_of_four(candidate: int | torch.Tensor = 0) -> Look:
    numbers = torch.arange(4.0)
    aim = Aim(
        where=numbers[:, None].expand(4, 2) / 4,
        candidate=candidate,
        memory=numbers[:, None] + 10,
        mean=numbers[:, None].expand(4, 2) / 8,
        value=numbers + 20,
        log_prob=numbers + 30,
    )
    return Look(
        number=2,
        scene=ImageBatch(numbers[:, None, None, None].expand(4, 3, 8, 8)),
        rows=torch.tensor([0, 2, 5, 7]),
        logits=torch.stack([numbers, -numbers], dim=1),
        vector=numbers[:, None] + 40,
        map=numbers[:, None, None, None] + 50,
        candidate=candidate,
        memory=numbers[:, None] + 60,
        policy_memory=numbers[:, None] + 70,
        aim=aim,
    )


def test_keep_takes_the_same_rows_of_everything() -> None:
    kept = look_of_four(torch.tensor([8, 6, 8, 4])).keep(torch.tensor([False, True, False, True]))
    assert kept.number == 2
    assert kept.count == 2
    assert kept.rows.tolist() == [2, 7]
    assert kept.logits.tolist() == [[1, -1], [3, -3]]
    assert kept.vector.flatten().tolist() == [41, 43]
    assert kept.map.flatten().tolist() == [51, 53]
    assert torch.as_tensor(kept.candidate).tolist() == [6, 4]
    assert kept.memory.flatten().tolist() == [61, 63]
    assert kept.policy_memory is not None
    assert kept.policy_memory.flatten().tolist() == [71, 73]
    assert kept.scene.view(Region(whole(1, "bilinear"))).amax(dim=(1, 2, 3)).tolist() == [1, 3]
    aim = kept.aim
    assert aim is not None
    assert aim.where[:, 0].tolist() == [0.25, 0.75]
    assert torch.as_tensor(aim.candidate).tolist() == [6, 4]
    assert aim.memory is not None
    assert aim.memory.flatten().tolist() == [11, 13]
    assert aim.mean is not None
    assert aim.mean[:, 1].tolist() == [0.125, 0.375]
    assert aim.value is not None
    assert aim.value.tolist() == [21, 23]
    assert aim.log_prob is not None
    assert aim.log_prob.tolist() == [31, 33]


def test_keeping_twice_keeps_the_place_in_the_first_batch() -> None:
    kept = look_of_four().keep(torch.tensor([True, True, False, True])).keep(torch.tensor([False, True, True]))
    assert kept.rows.tolist() == [2, 7]
    assert kept.scene.view(Region(native(1), torch.zeros(2, 2))).flatten(1)[:, 0].tolist() == [1, 3]


def test_keeping_all_rows_copies_nothing() -> None:
    look = look_of_four()
    assert look.keep(torch.ones(4, dtype=torch.bool)) is look


def test_keeping_no_row_leaves_an_empty_look() -> None:
    assert look_of_four().keep(torch.zeros(4, dtype=torch.bool)).count == 0


def test_one_size_for_all_rows_stays_one_number() -> None:
    kept = look_of_four(0).keep(torch.tensor([True, False, False, False]))
    assert kept.candidate == 0
    assert kept.aim is not None
    assert kept.aim.candidate == 0


def test_what_an_aim_does_not_know_stays_unknown() -> None:
    kept = Aim(where=torch.rand(3, 2), candidate=0).keep(torch.tensor([0, 2]))
    assert kept.where.shape == (2, 2)
    assert (kept.memory, kept.mean, kept.value, kept.log_prob) == (None, None, None, None)


def test_confidence_is_the_largest_probability() -> None:
    look = look_of_four().keep(torch.tensor([False, True, False, False]))
    assert look.confidence.item() == pytest.approx(math.e / (math.e + 1 / math.e), abs=1e-6)


def test_confidence_of_half_precision_is_computed_in_full() -> None:
    look = look_of_four()
    half = Look(**{**vars(look), "logits": look.logits.half()})
    assert half.confidence.dtype == torch.float32


def test_an_answer_that_is_known_is_not_worked_out_again() -> None:
    known = torch.tensor([0.5, 0.6, 0.7, 0.8]), torch.tensor([0, 1, 2, 3])
    look = replace(look_of_four(0), known_best=known)
    assert look.best is known
    assert look.confidence is known[0]
    confidence, answer = look.at(torch.tensor([3, 1])).best
    assert confidence.tolist() == known[0][[3, 1]].tolist()
    assert answer.tolist() == [3, 1]


def test_what_was_known_of_other_logits_is_forgotten() -> None:
    known = torch.full((4,), 0.5), torch.full((4,), 1)
    look = replace(look_of_four(0), known_best=known)
    fresh = look_of_four(0)
    calibrated = ExitRule([0.5, 0.5], temperatures=(1.0, 2.0)).calibrated(look)
    torch.testing.assert_close(calibrated.confidence, (fresh.logits / 2).softmax(dim=1).amax(dim=1))
    assert torch.equal(join_looks([look, fresh]).confidence, torch.cat([fresh.confidence, fresh.confidence]))


def test_rows_are_grouped_by_their_size() -> None:
    groups = rows_by_candidate(torch.tensor([48, 32, 48, 64, 32]))
    assert [(size, rows.tolist()) for size, rows in groups] == [(32, [1, 4]), (48, [0, 2]), (64, [3])]
