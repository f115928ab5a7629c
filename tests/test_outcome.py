"""What the recorder writes down during the looks, and what an outcome reports."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from glancefocus.look import Aim, Look
from glancefocus.outcome import Costs, Outcome, OutcomeRecorder

COSTS = Costs(100, 110, {8: 50}, 7, (3, 5), 1000)


def recorded(look_with: Callable[..., Look]) -> Outcome:
    """Two images, two looks: the first leaves sure at the glance, the second is focused on at (0.25, 0.5)."""
    recorder = OutcomeRecorder(2)
    recorder.record(look_with([0.9, 0.4]), torch.tensor([True, False]), torch.tensor([True, False]))
    aim = Aim(where=torch.tensor([[0.25, 0.5]]), candidate=0)
    focus = replace(look_with([0.8], number=2, rows=[1]), aim=aim)
    recorder.record(focus, torch.tensor([True]), torch.tensor([False]))
    return recorder.finish(classes=("cat", "dog"), costs=COSTS)


def test_each_image_keeps_the_answer_of_the_look_at_which_it_left(look_with: Callable[..., Look]) -> None:
    outcome = recorded(look_with)
    assert len(outcome) == 2
    assert outcome.answer.tolist() == [0, 0]
    assert outcome.confidence.tolist() == pytest.approx([0.9, 0.8], abs=1e-6)
    assert outcome.looks.tolist() == [1, 2]
    assert outcome.sure.tolist() == [True, False]
    assert outcome.out_of_looks.tolist() == [False, True]
    torch.testing.assert_close(outcome.logits.softmax(1)[:, 0], torch.tensor([0.9, 0.8]), rtol=0, atol=1e-6)


def test_every_look_that_was_taken_is_written_down_and_no_other(look_with: Callable[..., Look]) -> None:
    outcome = recorded(look_with)
    assert outcome.where[0].isnan().all()
    assert outcome.where[1].tolist() == [[0.25, 0.5]]
    assert outcome.candidate.tolist() == [[-1], [0]]
    assert outcome.answer_after.tolist() == [[0, -1], [1, 0]]  # 0.4 for class 0 is 0.6 for class 1
    assert outcome.confidence_after[0, 0].item() == pytest.approx(0.9, abs=1e-6)
    assert outcome.confidence_after[0, 1].isnan()
    assert outcome.confidence_after[1].tolist() == pytest.approx([0.6, 0.8], abs=1e-6)


def test_the_cost_is_that_of_the_looks_taken(look_with: Callable[..., Look]) -> None:
    assert recorded(look_with).cost_macs.tolist() == [103, 103 + 7 + 50 + 5]


def test_without_a_table_of_costs_there_is_no_cost(look_with: Callable[..., Look]) -> None:
    with pytest.raises(ValueError, match="without a table of costs"):
        _ = replace(recorded(look_with), costs=None).cost_macs


def test_a_label_is_the_name_of_the_class_or_its_number(look_with: Callable[..., Look]) -> None:
    outcome = recorded(look_with)
    assert outcome.label == ["cat", "cat"]
    assert replace(outcome, classes=None).label == ["0", "0"]


def test_top_names_the_likeliest_first_and_at_most_all(look_with: Callable[..., Look]) -> None:
    outcome = recorded(look_with)
    assert outcome.top(1, 1) == [("cat", pytest.approx(0.8, abs=1e-6))]
    assert [name for name, _ in outcome.top(1, 5)] == ["cat", "dog"]


def test_patches_of_several_sizes_are_written_down_each(look_with: Callable[..., Look]) -> None:
    recorder = OutcomeRecorder(2)
    no_rows, all_rows = torch.zeros(2, dtype=torch.bool), torch.ones(2, dtype=torch.bool)
    recorder.record(look_with([0.5, 0.5]), no_rows, no_rows)
    sizes = torch.tensor([1, 0])
    focus = replace(look_with([0.5, 0.5], number=2), aim=Aim(torch.zeros(2, 2), sizes), candidate=sizes)
    recorder.record(focus, all_rows, no_rows)
    assert recorder.finish().candidate.tolist() == [[1], [0]]


def test_outcomes_of_batches_join_in_order(look_with: Callable[..., Look]) -> None:
    one = recorded(look_with)
    both = Outcome.join([one, replace(one, answer=torch.tensor([1, 1]))])
    assert both.label == ["cat", "cat", "dog", "dog"]
    assert both.looks.tolist() == [1, 2, 1, 2]
    assert both.where.shape == (4, 1, 2)
    assert both.cost_macs.tolist() == [103, 165, 103, 165]


def test_recording_keeps_no_gradients(look_with: Callable[..., Look]) -> None:
    look = look_with([0.5])
    look.logits.requires_grad_()
    recorder = OutcomeRecorder(1)
    recorder.record(look, torch.tensor([True]), torch.tensor([False]))
    outcome = recorder.finish()
    assert not outcome.logits.requires_grad
    assert not outcome.confidence.requires_grad
