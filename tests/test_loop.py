"""THE loop: an image that is sure leaves the batch, and nothing else about any answer changes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.splits import MemorySplit
from glancefocus.evaluation.records import record_looks
from glancefocus.look import Aim, Look, Scene, as_scene
from glancefocus.loop import CandidateRule, Deadline, ExitRule, Value, every_look, look_until_sure
from glancefocus.network.policy import CentreCornerPolicy, RandomPolicy
from glancefocus.outcome import Costs


class ScriptedNet:
    """Answers class 0 of two as confidently as the script says, and writes down whom it was asked to focus on.

    confidence  one list a look, with a number for each image
    """

    def __init__(self, look_with: Callable[..., Look], confidence: Sequence[Sequence[float]]) -> None:
        self.look_with = look_with
        self.confidence = confidence
        self.rows_focused: list[list[int]] = []
        self.policy = CentreCornerPolicy()

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


def test_no_image_is_focused_on_when_all_are_sure_at_the_glance(look_with: Callable[..., Look]) -> None:
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
    other = look_until_sure(net, images(1), every_look(3), RandomPolicy([0], torch.Generator().manual_seed(0)))
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


class ExpectingPolicy:
    """Aims at the centre, expects of looking on what the script says, and writes down for whom it was asked to aim.

    value  one list a look, with a number for each image
    """

    def __init__(self, value: Sequence[Sequence[float]]) -> None:
        self.value = value
        self.rows_aimed: list[list[int]] = []

    def aim(self, look: Look) -> Aim:
        rows = look.rows.tolist()
        self.rows_aimed.append(rows)
        value = torch.tensor([self.value[look.number - 1][row] for row in rows])
        return Aim(where=torch.full((look.count, 2), 0.5), candidate=0, value=value)


def test_by_value_the_policy_aims_before_anybody_leaves_and_only_once_a_look(look_with: Callable[..., Look]) -> None:
    net = ScriptedNet(look_with, [[0.6] * 3, [0.7] * 3, [0.8] * 3])
    policy = ExpectingPolicy([[-2.0, 1.0, 1.0], [0.0, -2.0, 1.0]])  # below 0: sigmoid(-v) is above a half
    outcome = look_until_sure(net, images(3), ExitRule([0.5, 0.5, 0.0], Value()), policy)
    assert outcome.looks.tolist() == [1, 2, 3]
    assert outcome.sure.tolist() == [True, True, False]
    assert policy.rows_aimed == [[0, 1, 2], [1, 2]]  # nobody needs an aim after the last look
    assert net.rows_focused == [[1, 2], [2]]
    assert outcome.confidence.tolist() == pytest.approx([0.6, 0.7, 0.8], abs=1e-6)


def test_an_aim_that_no_look_followed_is_paid_for(look_with: Callable[..., Look]) -> None:
    # A glance 100, a focus 50, answers 3, 5 and 6; an aim 7 after the glance and 9 after a patch.
    costs = Costs(100, 110, {8: 50}, 7, (3, 5, 6), 1000, {8: 9})
    net = ScriptedNet(look_with, [[0.6] * 3, [0.7] * 3, [0.8] * 3])
    policy = ExpectingPolicy([[-2.0, 1.0, 1.0], [0.0, -2.0, 1.0]])
    by_value = look_until_sure(net, images(3), ExitRule([0.5, 0.5, 0.0], Value()), policy)
    assert by_value.aims_first
    after_two, after_three = 103 + 7 + 50 + 5, 103 + 7 + 50 + 5 + 9 + 50 + 6
    assert replace(by_value, costs=costs).cost_macs.tolist() == [103 + 7, after_two + 9, after_three]
    net = ScriptedNet(look_with, [[0.95, 0.6, 0.6], [0.0, 0.95, 0.6], [0.0, 0.0, 0.6]])
    by_confidence = look_until_sure(net, images(3), ExitRule([0.9, 0.9, 0.0]))
    assert by_confidence.looks.tolist() == by_value.looks.tolist()
    assert replace(by_confidence, costs=costs).cost_macs.tolist() == [103, after_two, after_three]


def test_by_value_the_rows_that_stay_are_looked_at_where_they_would_have_been_anyway(
    small_net: Callable[..., Any],
) -> None:
    net = small_net()
    with torch.inference_mode():
        for part in (net.policy.actor, net.policy.critic):
            for parameter in part.parameters():
                parameter.mul_(20)  # aims and values that differ between images
        scene = torch.randn(12, 3, 64, 64, generator=torch.Generator().manual_seed(0))
        whole = look_until_sure(net, as_scene(scene), every_look(3))
        glance = net.glance(scene)
        at_glance = Value().of(glance, net.policy.aim(glance)).sort().values
        rule = ExitRule([float(at_glance[5] + at_glance[6]) / 2, 1.0, 0.0], Value())
        outcome = look_until_sure(net, as_scene(scene), rule)
    assert sorted(outcome.looks.tolist()) == [1] * 6 + [3] * 6
    stay = outcome.looks == 3
    torch.testing.assert_close(outcome.where[stay], whole.where[stay], rtol=0, atol=1e-5)
    torch.testing.assert_close(outcome.logits[stay], whole.logits[stay], rtol=0, atol=1e-5)
    assert outcome.where[~stay].isnan().all()
    assert outcome.where.isfinite().any()


class TickingClock:
    """Shows one second more each time that it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.mark.parametrize(("ends_at", "looks"), [(-5.0, 1), (1.9, 1), (2.0, 2), (3.1, 3), (100.0, 4)])
def test_a_deadline_ends_the_looking_but_never_before_the_glance(
    ends_at: float, looks: int, look_with: Callable[..., Look]
) -> None:
    # The clock is read once after every look, so looks take a second each: look t + 1 would be over at second t + 1.
    net = ScriptedNet(look_with, [[0.6, 0.95]] + [[0.6, 0.6]] * 3)
    rule = ExitRule([0.9, 0.9, 0.9, 0.0], deadline=Deadline(TickingClock(), starts_at=0.0, ends_at=ends_at))
    outcome = look_until_sure(net, images(2), rule)
    assert outcome.looks.tolist() == [looks, 1]
    assert outcome.sure.tolist() == [False, True]


def away_from_scores(scores: np.ndarray[Any, Any], random: np.random.Generator) -> float:
    """A threshold anywhere among the scores, but at none of them: rounding differs between batch sizes by about 1e-6."""
    ordered = np.sort(scores, axis=None)
    wide = np.flatnonzero(np.diff(ordered) > 4e-5)
    place = random.choice(wide)
    return float((ordered[place] + ordered[place + 1]) / 2)


def test_with_several_sizes_the_loop_does_what_the_tree_of_looks_says(
    small_bundle: Callable[..., Bundle], tmp_path: Path
) -> None:
    bundle = small_bundle(patch_px=(32, 48))
    with torch.no_grad():
        for part in (bundle.net.classifier, bundle.net.policy.actor):
            for parameter in part.parameters():
                parameter.mul_(4)  # answers and aims that differ between images
    pixels = torch.randint(0, 256, (16, 3, 64, 64), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    split = MemorySplit(pixels, torch.arange(16) % 3, bundle.settings.view)
    record = record_looks(bundle, split, tmp_path, source="noise", name="all")
    macs = bundle.costs.macs_of_tree()
    table = record.table(macs)
    paths = [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)]  # of the nodes, level by level
    random, nodes_left_at = np.random.default_rng(0), set()
    scene, _ = next(iter(split.batches([range(16)])))
    for _ in range(8):
        rows = [
            [away_from_scores(level, random) for _ in range(2)] for level in (table.score[:, :1], table.score[:, 1:3])
        ]
        rule = CandidateRule([*rows, [0.0, 0.0]], candidates=2)
        nodes = table.exits(np.asarray(rule.thresholds, dtype=np.float32)).tolist()
        nodes_left_at.update(nodes)
        with torch.inference_mode():
            outcome = replace(look_until_sure(bundle.net, as_scene(scene), rule), costs=bundle.costs)
        assert outcome.looks.tolist() == [len(paths[node]) + 1 for node in nodes]
        assert [tuple(each for each in row if each >= 0) for row in outcome.candidate.tolist()] == [
            paths[n] for n in nodes
        ]
        assert outcome.answer.tolist() == [int(record.answer[row, node]) for row, node in enumerate(nodes)]
        assert outcome.cost_macs.tolist() == [macs[node] for node in nodes]
        confidence = [float(record.confidence[row, node]) for row, node in enumerate(nodes)]
        assert outcome.confidence.tolist() == pytest.approx(confidence, abs=1e-5)
    assert nodes_left_at == set(range(7))
