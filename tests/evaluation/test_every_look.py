"""What is measured over a split: accuracy after each look, hits, and what the backbone costs more."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.splits import MemorySplit
from glancefocus.evaluation.every_look import (
    Evaluation,
    aimed_candidate,
    backbone_accuracy,
    check_aims,
    compare,
    evaluate_every_look,
    holds,
    mac_ratio,
)
from glancefocus.network.model import GlanceFocus
from glancefocus.network.policy import CentreCornerPolicy, OneCandidate
from glancefocus.outcome import Outcome
from glancefocus.settings import View, ViewSettings, native, whole

Net = Callable[..., GlanceFocus]
NAN = float("nan")


def noise(count: int = 10, boxes: torch.Tensor | None = None) -> MemorySplit:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, 64, 64), generator=generator, dtype=torch.uint8)
    view = ViewSettings(fit="whole", height_px=64, width_px=64)
    return MemorySplit(images, torch.arange(count) % 3, view, boxes=boxes)


def test_a_patch_holds_a_box_only_when_the_whole_of_it_is_inside() -> None:
    # Patches of 10 px in images of 30x50 px: (0.5, 0.5) starts at (10, 20) and ends at (20, 30).
    where = torch.tensor([[0.5, 0.5]] * 6)
    boxes = torch.tensor(
        [[10, 20, 20, 30], [12, 22, 15, 25], [9, 20, 19, 30], [10, 20, 21, 30], [10, 19, 20, 29], [10, 21, 20, 31]]
    ).float()
    assert holds(where, boxes, (30, 50), native(10)).tolist() == [True, True, False, False, False, False]


def test_a_look_at_the_whole_image_holds_every_box() -> None:
    boxes = torch.tensor([[0, 0, 30, 50], [12, 22, 15, 25]]).float()
    where = torch.zeros(2, 2)
    assert holds(where, boxes, (30, 50), whole(16)).tolist() == [True, True]
    assert holds(where, boxes, (30, 50), View(16, 0.5)).tolist() == [False, False]  # 15 px from the upper left corner


def test_hit_rates_of_a_network_with_views_of_the_whole_image(small_net: Net) -> None:
    net = small_net(focus=["32", "whole@48"])
    split = noise(4, boxes=torch.tensor([[0.0, 0.0, 64.0, 64.0]] * 4))  # objects as large as the image
    learnt = evaluate_every_look(net, split)  # with the largest view, which is the whole image
    assert learnt.hit_rate_per_focus(split.boxes) == [1.0, 1.0]
    patches = evaluate_every_look(net, split, OneCandidate(net.policy, 0))
    assert patches.hit_rate_per_focus(split.boxes) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("focus", "candidate"), [(["32", "whole@48"], 0), (["32", "48"], 1), (["whole@40", "48"], 1), (["whole@48"], 0)]
)
def test_aims_are_compared_with_a_view_that_has_a_place(small_net: Net, focus: list[str], candidate: int) -> None:
    assert aimed_candidate(small_net(focus=focus).settings) == candidate


def test_without_a_view_that_has_a_place_no_aims_are_compared(small_net: Net) -> None:
    checked = check_aims(small_net(focus=["whole@40", "whole@48"]), noise(4))
    assert not checked.better
    assert checked.sentence == "Every focus look shows the whole image: there are no aims to compare."


def test_the_hit_rate_counts_only_images_with_an_object() -> None:
    where = torch.tensor([[[0.0, 0.0], [1.0, 1.0]], [[1.0, 1.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]])
    outcome = Outcome(
        answer=torch.zeros(3, dtype=torch.long),
        confidence=torch.ones(3),
        looks=torch.full((3,), 3),
        sure=torch.zeros(3, dtype=torch.bool),
        logits=torch.zeros(3, 0),
        where=where,
        candidate=torch.zeros(3, 2, dtype=torch.int64),
        views=(native(8),),
        answer_after=torch.tensor([[0, 1, 1], [2, 2, 1], [0, 0, 0]]),
        confidence_after=torch.ones(3, 3),
    )
    evaluation = Evaluation(outcome, torch.tensor([1, 2, 0]), (16, 16))
    # In the first image it is at the top left, in the second too, in the third nowhere.
    boxes = torch.tensor([[1.0, 1, 5, 5], [0, 0, 8, 8], [NAN] * 4])
    assert evaluation.hit_rate_per_focus(boxes) == [0.5, 0.5]
    assert evaluation.hit_rate_per_focus(boxes[[0, 0, 2]]) == [0.5, 0.5]
    assert evaluation.accuracy_per_look == pytest.approx([2 / 3, 1.0, 2 / 3], abs=1e-6)


def test_a_second_look_at_the_place_of_a_miss_is_counted() -> None:
    """Squares of 8 px in an image of 24 px: `where` times 16 is their corner. The object is 4 px at the top left."""
    first = [[0.5, 0.5], [0.5, 0.5], [0.0, 0.0], [0.5, 0.5], [0.5, 0.5]]  # all but the third miss
    second = [[0.5, 0.625], [0.5, 0.8125], [0.0, 0.0], [0.0, 0.0], [0.5, 0.5]]  # 6 of 8 px in common, 3, 8, none, 8
    outcome = Outcome(
        answer=torch.zeros(5, dtype=torch.long),
        confidence=torch.ones(5),
        looks=torch.full((5,), 3),
        sure=torch.zeros(5, dtype=torch.bool),
        logits=torch.zeros(5, 0),
        where=torch.tensor([first, second]).transpose(0, 1),
        candidate=torch.zeros(5, 2, dtype=torch.int64),
        views=(native(8),),
        answer_after=torch.zeros(5, 3, dtype=torch.long),
        confidence_after=torch.ones(5, 3),
    )
    evaluation = Evaluation(outcome, torch.zeros(5, dtype=torch.long), (24, 24))
    boxes = torch.tensor([[1.0, 1, 5, 5]] * 4 + [[NAN] * 4])  # the fifth image has no object
    assert evaluation.misses_seen_again(boxes) == [pytest.approx(1 / 3)]
    assert math.isnan(evaluation.misses_seen_again(boxes[[4] * 5])[0])


def test_a_wrong_answer_counts_as_zero_whatever_its_confidence() -> None:
    outcome = Outcome(
        answer=torch.zeros(2, dtype=torch.long),
        confidence=torch.ones(2),
        looks=torch.full((2,), 2),
        sure=torch.zeros(2, dtype=torch.bool),
        logits=torch.zeros(2, 0),
        where=torch.zeros(2, 1, 2),
        candidate=torch.zeros(2, 1, dtype=torch.int64),
        views=(native(8),),
        answer_after=torch.tensor([[0, 1], [2, 2]]),
        confidence_after=torch.tensor([[0.9, 0.6], [0.4, 0.8]]),
    )
    evaluation = Evaluation(outcome, torch.tensor([1, 2]), (16, 16))
    assert evaluation.surely_right == pytest.approx((0.6 + 0.4 + 0.8) / 4, abs=1e-6)


def test_a_split_in_batches_is_each_image_alone(small_net: Net) -> None:
    net, split = small_net(), noise()
    evaluation = evaluate_every_look(net, split, batch_size=4)
    assert len(evaluation.outcome) == 10
    assert evaluation.image_hw == (64, 64)
    with torch.inference_mode():
        for row in range(10):
            images, labels = next(iter(split.batches([[row]])))
            look = net.glance(images)
            for column in range(3):
                assert int(evaluation.outcome.answer_after[row, column]) == int(look.logits.argmax())
                expected = float(look.confidence)
                assert float(evaluation.outcome.confidence_after[row, column]) == pytest.approx(expected, abs=1e-5)
                if column < 2:
                    aim = net.policy.aim(look)
                    torch.testing.assert_close(evaluation.outcome.where[row, column], aim.where[0], rtol=0, atol=1e-5)
                    look = net.focus(look, aim)
            assert int(evaluation.labels[row]) == int(labels)


def test_some_rows_fewer_looks_and_other_aims_can_be_asked_for(small_net: Net) -> None:
    seen: list[tuple[int, int]] = []
    evaluation = evaluate_every_look(
        small_net(),
        noise(),
        CentreCornerPolicy(),
        looks=2,
        rows=[7, 2, 5],
        batch_size=2,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert evaluation.labels.tolist() == [1, 2, 2]
    assert evaluation.outcome.where.tolist() == [[[0.5, 0.5]]] * 3
    assert evaluation.outcome.answer_after.shape == (3, 2)
    assert seen == [(2, 3), (3, 3)]


def test_evaluating_changes_neither_mode_nor_weights(small_net: Net) -> None:
    net = small_net()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    net.train()
    evaluate_every_look(net, noise(4))
    backbone_accuracy(net, noise(4))
    assert net.training
    assert net.focus_encoder.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_the_backbones_accuracy_is_that_of_the_focus_encoder_on_whole_images(small_net: Net) -> None:
    net, split = small_net(), noise()
    images, labels = next(iter(split.batches([range(10)])))
    with torch.inference_mode():
        answers = net.focus_encoder.own_head(net.focus_encoder(images).vector).argmax(dim=1)
    assert backbone_accuracy(net, split, batch_size=3) == int((answers == labels).sum()) / 10
    assert backbone_accuracy(net, split, rows=[1]) == float(answers[1] == labels[1])


def test_the_ratio_is_to_the_cheapest_point_that_is_as_accurate() -> None:
    curve = [
        {"mean_macs": 10.0, "accuracy": 0.8},
        {"mean_macs": 20.0, "accuracy": 0.9},
        {"mean_macs": 25.0, "accuracy": 0.95},
    ]
    assert mac_ratio(curve, 0.9, 100) == 5.0
    assert mac_ratio(curve, 0.91, 100) == 4.0
    assert mac_ratio(curve, 0.99, 100) is None
    assert mac_ratio(curve, None, 100) is None


def test_a_comparison_sets_learnt_aims_beside_random_ones_and_corners(small_bundle: Callable[..., Bundle]) -> None:
    boxes = torch.tensor([[20.0, 20, 40, 40]]).repeat(10, 1)
    boxes[0] = NAN
    split = noise(boxes=boxes)
    curve = [{"thresholds": [1.0, 1.0, 0.0]}, {"thresholds": [0.0, 0.0, 0.0]}]
    bundle = small_bundle(thresholds=(0.9, 0.9, 0.0), curve=curve)
    comparison = compare(bundle, split, backbone_accuracy=0.0)
    assert comparison.accuracy_per_look == evaluate_every_look(bundle.net, split).accuracy_per_look
    costs = bundle.costs.macs_after_look
    # sorted by cost: all images leave at the glance; no image leaves before the last look
    assert [point["mean_macs"] for point in comparison.curve] == [costs[0], costs[-1]]
    assert [point["exits_per_look"] for point in comparison.curve] == [[10, 0, 0], [0, 0, 10]]
    assert comparison.mac_ratio_at_backbone_accuracy == bundle.costs.backbone_macs / costs[0]
    # Two looks at every image are not on the curve, but count.
    two = comparison.accuracy_per_look[1]
    only_late = replace(bundle, curve=curve[:1])
    ratio = compare(only_late, split, backbone_accuracy=round(two, 6) - 1e-6).mac_ratio_at_backbone_accuracy
    reached = [macs for macs, accuracy in zip(costs, comparison.accuracy_per_look, strict=True) if accuracy >= two]
    assert ratio == bundle.costs.backbone_macs / reached[0]
    assert comparison.hit_rate_per_focus is not None
    assert len(comparison.hit_rate_per_focus) == 2
    corners = evaluate_every_look(bundle.net, split, CentreCornerPolicy())
    assert comparison.accuracy_per_look_centre_corner == corners.accuracy_per_look
    assert corners.hit_rate_per_focus(boxes)[0] == 1.0  # the centre patch is (16, 16) to (48, 48)
    plain = comparison.to_plain()
    assert {"accuracy_per_look", "accuracy_per_look_random_aims", "hit_rate_per_focus"} <= plain.keys()
    assert {"backbone_accuracy", "backbone_macs", "mac_ratio_at_backbone_accuracy"} <= plain.keys()
