"""THE loop: an image that is sure leaves the batch, and nothing else about any answer changes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from glancefocus.adaptive import look_until_sure
from glancefocus.early_exit.rule import ExitRule, every_look
from glancefocus.look import Aim, Look
from glancefocus.network.policy import CentreCornerPolicy, RandomPolicy
from glancefocus.scene import Scene, as_scene


class ScriptedNet:
    """Answers class 0 of two as confidently as the script says, and writes down whom it was asked to focus on.

    confidence  one list a look, with a number for each image
    """

    def __init__(self, look_with: Callable[..., Look], confidence: Sequence[Sequence[float]]) -> None:
        self.look_with = look_with
        self.confidence = confidence
        self.rows_focused: list[list[int]] = []
        self.policy = CentreCornerPolicy(8)

    def glance(self, scene: Scene) -> Look:
        return replace(self.look_with(self.confidence[0]), scene=scene)

    def focus(self, look: Look, aim: Aim) -> Look:
        rows = look.rows.tolist()
        self.rows_focused.append(rows)
        next_look = self.look_with([self.confidence[look.number][r] for r in rows], number=look.number + 1, rows=rows)
        return replace(next_look, scene=look.scene, aim=aim)


def images(count: int) -> Scene:
    return as_scene(torch.zeros(count, 3, 8, 8))


def test_an_image_that_is_sure_is_never_looked_at_again(look_with: Callable[..., Look]) -> None:
    net = ScriptedNet(look_with, [[0.95, 0.30], [0.00, 0.99]])
    outcome = look_until_sure(net, images(2), ExitRule([0.9, 0.9]))
    assert outcome.looks.tolist() == [1, 2]
    assert net.rows_focused == [[1]]
    assert outcome.confidence.tolist() == pytest.approx([0.95, 0.99], abs=1e-6)


def test_nobody_is_focused_on_when_all_are_sure_at_the_glance(look_with: Callable[..., Look]) -> None:
    net = ScriptedNet(look_with, [[0.95, 0.99, 0.91]])
    outcome = look_until_sure(net, images(3), ExitRule([0.9, 0.9, 0.9]))
    assert outcome.looks.tolist() == [1, 1, 1]
    assert net.rows_focused == []
    assert outcome.where.isnan().all()


def test_rows_leave_one_after_another_and_keep_their_places(look_with: Callable[..., Look]) -> None:
    script = [[0.6, 0.95, 0.6, 0.6], [0.6, 0.0, 0.95, 0.6], [0.95, 0.0, 0.0, 0.6], [0.0, 0.0, 0.0, 0.55]]
    net = ScriptedNet(look_with, script)
    outcome = look_until_sure(net, images(4), ExitRule([0.9, 0.9, 0.9, 0.9]))
    assert outcome.looks.tolist() == [3, 1, 2, 4]
    assert net.rows_focused == [[0, 2, 3], [0, 3], [3]]
    assert outcome.confidence.tolist() == pytest.approx([0.95, 0.95, 0.95, 0.55], abs=1e-6)


def test_the_last_look_always_leaves_out_of_looks_unless_it_is_sure(look_with: Callable[..., Look]) -> None:
    net = ScriptedNet(look_with, [[0.6, 0.6], [0.7, 0.95]])
    outcome = look_until_sure(net, images(2), ExitRule([0.9, 0.9]))
    assert outcome.looks.tolist() == [2, 2]
    assert outcome.sure.tolist() == [False, True]
    assert outcome.out_of_looks.tolist() == [True, False]


def test_a_rule_for_one_look_only_glances(look_with: Callable[..., Look]) -> None:
    net = ScriptedNet(look_with, [[0.6, 0.7]])
    outcome = look_until_sure(net, images(2), every_look(1))
    assert outcome.looks.tolist() == [1, 1]
    assert outcome.where.shape == (2, 0, 2)
    assert net.rows_focused == []


def test_another_policy_may_aim(look_with: Callable[..., Look]) -> None:
    net = ScriptedNet(look_with, [[0.6], [0.6], [0.6]])
    own = look_until_sure(net, images(1), every_look(3))
    assert own.where[0].tolist() == [[0.5, 0.5], [0.0, 0.0]]  # the centre, then the first corner
    other = look_until_sure(net, images(1), every_look(3), RandomPolicy(8, torch.Generator().manual_seed(0)))
    drawn = torch.Generator().manual_seed(0)
    assert torch.equal(other.where[0], torch.cat([torch.rand(1, 2, generator=drawn) for _ in range(2)]))


VARIANTS: dict[str, dict[str, Any]] = {
    "recurrent": {},
    "recurrent with a linear policy": {"policy": {"head": "linear", "linear_units": 32, "units": 16}},
    "cascaded": {"classifier": "cascaded", "backbone": "mobilenetv3_small_050"},
    "own head when evaluating": {"first_answer": "own_head_evaluating", "glance_resize": "bilinear"},
    "shared encoder": {"shared_encoder": True, "glance_px": 24},
}


def halfway_thresholds(confidence: Tensor, share: float) -> list[float]:
    """One threshold a look in the middle of a gap between two confidences (N, T), so that no image is ever at it."""
    thresholds = []
    for column in confidence.T[:-1]:
        ordered = column.sort().values
        # The widest gap near the wanted share: rounding differs between batch sizes by about 1e-6.
        first, last = int((share - 0.2) * len(ordered)), int((share + 0.2) * len(ordered))
        index = first + int(ordered.diff()[first:last].argmax())
        assert ordered[index + 1] - ordered[index] > 4e-5
        thresholds.append(float((ordered[index] + ordered[index + 1]) / 2))
    return [*thresholds, 0.0]


@pytest.mark.parametrize("batch_size", [1, 2, 7, 64])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_loop_answers_as_if_every_look_were_taken_and_thresholded_afterwards(
    variant: str, batch_size: int, small_net: Callable[..., Any]
) -> None:
    net = small_net(**VARIANTS[variant], seed=batch_size)
    with torch.no_grad():
        # Answers and aims that differ between images: fresh weights would give nearly the same for all.
        scale = 100 if net.settings.classifier == "cascaded" else 4
        for part in (net.classifier, net.policy.actor, net.glance_encoder.backbone.get_classifier()):
            for parameter in part.parameters():
                parameter.mul_(scale)
    count = 64 if batch_size == 64 else 14
    scene = torch.randn(count, 3, 64, 64, generator=torch.Generator().manual_seed(batch_size)) * torch.linspace(
        0.2, 3, count
    ).reshape(-1, 1, 1, 1)
    with torch.inference_mode():
        whole = look_until_sure(net, as_scene(scene), every_look(3))
        for share in (0.3, 0.6):
            rule = ExitRule(halfway_thresholds(whole.confidence_after, share))
            above = whole.confidence_after > torch.tensor(rule.thresholds)
            above[:, -1] = True
            exits = above.int().argmax(dim=1)  # the first look above its threshold
            assert len(exits.unique()) > 1
            for start in range(0, count, batch_size):
                rows = slice(start, start + batch_size)
                outcome = look_until_sure(net, as_scene(scene[rows]), rule)
                assert outcome.looks.tolist() == (exits[rows] + 1).tolist()
                taken = exits[rows, None]
                expected = whole.answer_after[rows].gather(1, taken)[:, 0]
                assert torch.equal(outcome.answer, expected)
                confidence = whole.confidence_after[rows].gather(1, taken)[:, 0]
                torch.testing.assert_close(outcome.confidence, confidence, rtol=0, atol=1e-5)
                looked = ~outcome.where.isnan()
                torch.testing.assert_close(outcome.where[looked], whole.where[rows][looked], rtol=0, atol=1e-5)
                assert torch.equal(looked.all(dim=2).sum(dim=1) + 1, outcome.looks)
