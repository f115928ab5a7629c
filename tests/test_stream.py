"""Batches that look on together: fuller focus batches, the same answers in the same order, and nobody waits for too long."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from glancefocus.bundle.bundle import Bundle
from glancefocus.bundle.predicting import Viewed
from glancefocus.errors import BadSetting
from glancefocus.look import Aim, Look, Scene, as_scene
from glancefocus.loop import CandidateRule, Confidence, Deadline, ExitRule, Score, Value, every_look, look_until_sure
from glancefocus.network.model import GlanceFocus
from glancefocus.network.policy import CentreCornerPolicy
from glancefocus.outcome import Outcome
from glancefocus.region import Region
from glancefocus.settings import native, whole
from glancefocus.stream import HELD_BATCHES, JoinedScenes, MergedLooks, join_scenes, look_at_stream

LookWith = Callable[..., Look]
MakeNet = Callable[..., GlanceFocus]


class BrightNet:
    """As sure of class 0 as an image is bright; each focus look adds 0.2. Writes down how many rows each focus call had."""

    def __init__(self, look_with: LookWith) -> None:
        self.look_with = look_with
        self.rows_focused: list[int] = []
        self.policy = CentreCornerPolicy()

    def glance(self, scene: Scene) -> Look:
        return replace(self.look_with(scene.view(Region(whole(8)))[:, 0, 0, 0].tolist()), scene=scene)

    def focus(self, look: Look, aim: Aim) -> Look:
        self.rows_focused.append(look.count)
        brightness = look.scene.view(Region(native(8), aim.where))[:, 0, 0, 0] + 0.2 * look.number
        seen = self.look_with(brightness.tolist(), number=look.number + 1, rows=look.rows.tolist())
        return replace(seen, scene=look.scene, aim=aim)


def bright(*brightness: float) -> Scene:
    return as_scene(torch.tensor(brightness)[:, None, None, None].expand(-1, 3, 8, 8).clone())


def assert_same(one: Outcome, other: Outcome) -> None:
    for field in fields(Outcome):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if isinstance(mine, Tensor):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)
        else:
            assert mine == theirs, field.name


def test_rows_that_stay_wait_until_a_batch_is_full(look_with: LookWith) -> None:
    net = BrightNet(look_with)
    stream = [bright(0.95, 0.75), bright(0.95, 0.8), bright(0.75, 0.95), bright(0.8, 0.95)]
    outcomes = list(look_at_stream(net, stream, ExitRule([0.9, 0.9]), full_batch=4))
    assert net.rows_focused == [4]
    assert [outcome.looks.tolist() for outcome in outcomes] == [[1, 2], [1, 2], [2, 1], [2, 1]]
    confidence = torch.cat([outcome.confidence for outcome in outcomes])
    assert confidence.tolist() == pytest.approx([0.95, 0.95, 0.95, 1, 0.95, 0.95, 1, 0.95], abs=1e-6)


def test_at_the_end_of_the_stream_no_row_waits_any_more_and_later_looks_are_joined(look_with: LookWith) -> None:
    net = BrightNet(look_with)
    # Four rows fill the second look; two of them need a third, for which the fifth row joins them at the end.
    stream = [bright(0.6, 0.85), bright(0.6, 0.85), bright(0.6)]
    outcomes = list(look_at_stream(net, stream, ExitRule([0.9, 0.9, 0.9]), full_batch=4))
    assert net.rows_focused == [4, 1, 3]
    assert [outcome.looks.tolist() for outcome in outcomes] == [[3, 2], [3, 2], [3]]


def test_outcomes_come_in_the_order_of_the_scenes_and_as_soon_as_all_before_them_have(look_with: LookWith) -> None:
    net = BrightNet(look_with)
    asked: list[int] = []

    def scenes() -> Iterator[Scene]:
        for number, brightness in enumerate(([0.95], [0.7], [0.96], [0.75], [0.97])):
            asked.append(number)
            yield bright(*brightness)

    stream = look_at_stream(net, scenes(), ExitRule([0.9, 0.8]), full_batch=2)
    came = []
    for outcome in stream:
        came.append((round(float(outcome.confidence[0]), 3), len(asked)))
    # The third is sure at once, but the second, which it must not overtake, waits for the fourth.
    assert came == [(0.95, 1), (0.9, 4), (0.96, 4), (0.95, 4), (0.97, 5)]


def test_no_row_waits_for_longer_than_allowed(look_with: LookWith) -> None:
    net, now = BrightNet(look_with), [0.0]
    merged = MergedLooks(net, ExitRule([0.9, 0.9, 0.9]), full_batch=8, wait_ms=100, clock=lambda: now[0])
    merged.add(bright(0.6, 0.95))
    for ms in (0, 50, 99):
        now[0] = ms / 1000
        merged.look_on()
        assert net.rows_focused == []
    merged.add(bright(0.6))
    now[0] = 0.1
    merged.look_on()
    # The first has waited enough, for all of its looks; the second goes with it, for a batch of two costs less than two batches.
    assert net.rows_focused == [2, 2]
    assert [outcome.looks.tolist() for outcome in merged.finished()] == [[3, 1], [3]]


def test_a_source_with_nothing_to_give_lets_limits_be_obeyed(look_with: LookWith) -> None:
    net, now = BrightNet(look_with), [0.0]

    def scenes() -> Iterator[Scene | None]:
        yield bright(0.6)
        for ms in (5, 9, 10):
            now[0] = ms / 1000
            yield None
            assert len(net.rows_focused) == (1 if ms == 10 else 0)

    stream = look_at_stream(net, scenes(), ExitRule([0.9, 0.0]), full_batch=8, wait_ms=10, clock=lambda: now[0])
    assert [outcome.looks.tolist() for outcome in stream] == [[2]]


def test_without_waiting_every_batch_goes_on_alone(look_with: LookWith) -> None:
    net = BrightNet(look_with)
    list(look_at_stream(net, [bright(0.6, 0.6), bright(0.6)], ExitRule([0.9, 0.0]), full_batch=8, wait_ms=0))
    assert net.rows_focused == [2, 1]


def test_a_row_that_no_other_joins_does_not_hold_its_scene_for_ever(look_with: LookWith) -> None:
    net = BrightNet(look_with)
    came = [len(net.rows_focused)]

    def scenes() -> Iterator[Scene]:
        yield bright(0.6)
        for _ in range(3 * HELD_BATCHES):
            yield bright(0.95)
            came.append(len(net.rows_focused))

    list(look_at_stream(net, scenes(), ExitRule([0.9, 0.0]), full_batch=2))
    assert came.index(1) == 2 * HELD_BATCHES


def middle_thresholds(net: GlanceFocus, images: Tensor, score: Score) -> list[float]:
    """For every look but the last the middle of the widest gap between the scores of about half of the images and of the others."""
    look, thresholds = net.glance(images), []
    while look.number < net.settings.looks:
        aim = net.policy.aim(look)
        ordered = score.of(look, aim).sort().values
        first, last = int(0.3 * len(ordered)), int(0.7 * len(ordered))
        index = first + int(ordered.diff()[first:last].argmax())
        assert ordered[index + 1] - ordered[index] > 4e-5  # rounding differs between batch sizes by about 1e-6
        thresholds.append(float(ordered[index : index + 2].mean()))
        look = net.focus(look, aim)
    return [*thresholds, 0.0]


@pytest.mark.parametrize("score", [Confidence(), Value()], ids=["confidence", "value"])
@pytest.mark.parametrize("network", [{}, {"classifier": "cascaded"}], ids=["recurrent", "cascaded"])
def test_merged_answers_are_those_of_every_batch_alone(
    network: dict[str, Any], score: Score, small_net: MakeNet
) -> None:
    net = small_net(**network, seed=3)
    with torch.no_grad():
        for part in (net.classifier, net.policy.actor, net.policy.critic):
            for parameter in part.parameters():
                parameter.mul_(10 if part is net.policy.critic else 100 if network else 4)
    spread = torch.linspace(0.2, 3, 30).reshape(-1, 1, 1, 1)
    images = torch.randn(30, 3, 64, 64, generator=torch.Generator().manual_seed(0)) * spread
    with torch.inference_mode():
        rule = ExitRule(middle_thresholds(net, images, score), score)
        scenes = [as_scene(images[start : start + 4]) for start in range(0, 30, 4)]
        alone = [look_until_sure(net, scene, rule) for scene in scenes]
        together = list(look_at_stream(net, iter(scenes), rule, full_batch=8))
    assert {int(n) for outcome in alone for n in outcome.looks} == {1, 2, 3}
    for one, other in zip(alone, together, strict=True):
        assert_same(one, other)


def test_rows_with_patches_of_different_sizes_are_merged_too(small_net: MakeNet) -> None:
    net = small_net(patch_px=(32, 48), looks=3, seed=1)
    images = torch.randn(12, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        confidence = look_until_sure(net, as_scene(images), every_look(3)).confidence_after
        first, second = (confidence[:, look].sort().values for look in (0, 1))
        middle = [float((column[5] + column[6]) / 2) for column in (first, second)]
        rule = CandidateRule([[middle[0], 2.0], [middle[1], 2.0], [0.0, 0.0]], candidates=2)
        scenes = [as_scene(images[start : start + 3]) for start in range(0, 12, 3)]
        alone = [look_until_sure(net, scene, rule) for scene in scenes]
        together = list(look_at_stream(net, scenes, rule, full_batch=6))
    assert {0, 1} <= set(torch.cat([outcome.candidate for outcome in alone]).flatten().tolist())
    for one, other in zip(alone, together, strict=True):
        assert_same(one, other)


def test_images_and_clips_of_different_sizes_are_merged(small_bundle: Callable[..., Bundle]) -> None:
    generator = torch.Generator().manual_seed(0)
    for frames in (1, 4):
        bundle = small_bundle(**({"frames": frames, "shift_div": 4} if frames > 1 else {}))
        sides = [(64, 64), (64, 96), (96, 64), (64, 64), (64, 64)]
        shape = () if frames == 1 else (frames,)
        images = [torch.rand(*shape, 3, *side, generator=generator) for side in sides]
        viewed = [Viewed(image) for image in images]
        alone = bundle.predict_images(images, bundle.exit_rule(looks=3), batch_size=2)
        assert_same(alone, bundle.predict(viewed, looks=3, batch_size=2, merge=True))


def test_a_bundle_merges_batches_of_pictures(small_bundle: Callable[..., Bundle]) -> None:
    bundle = small_bundle(seed=5)
    pictures = torch.randint(0, 256, (11, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    confidence = bundle.predict(pictures, looks=1).confidence.sort().values
    thresholds = [float(confidence[5:7].mean()), 0.0]
    alone = bundle.predict(pictures, thresholds=thresholds, batch_size=3, merge=False)
    assert set(alone.looks.tolist()) == {1, 2}
    assert_same(alone, bundle.predict(pictures, thresholds=thresholds, batch_size=3, merge=True))
    streamed = list(bundle.predict_stream([*pictures[:4], None, *pictures[4:]], thresholds=thresholds, batch_size=3))
    assert [len(outcome) for outcome in streamed] == [3, 1, 3, 3, 1]
    assert_same(alone, Outcome.join(streamed))
    assert streamed[0].label[0] in bundle.classes
    assert int(streamed[0].cost_macs[0]) > 0


def test_a_stream_leaves_the_caller_out_of_inference_mode(small_bundle: Callable[..., Bundle]) -> None:
    pictures = torch.zeros(4, 3, 64, 64, dtype=torch.uint8)
    for _ in small_bundle().predict_stream(pictures, batch_size=2):
        assert not torch.is_inference_mode_enabled()


def test_joining_scenes_copies_no_images_and_keeps_any_order() -> None:
    one, two, three = bright(0.1, 0.2), bright(0.3), bright(0.4, 0.5, 0.6)
    joined = join_scenes([one, join_scenes([two, three])])
    assert isinstance(joined, JoinedScenes)
    assert joined.count == 6
    assert joined.scenes == (one, two, three)
    kept = joined.keep(torch.tensor([5, 0, 1, 0, 4]))
    assert kept.count == 5
    brightness = kept.view(Region(native(8), torch.zeros(5, 2)))[:, 0, 0, 0]
    assert brightness.tolist() == pytest.approx([0.6, 0.1, 0.2, 0.1, 0.5])
    images = [scene.images.data_ptr() for scene in kept.scenes]  # type: ignore[attr-defined]
    assert images == [part.images.data_ptr() for part in (three, one, three)]  # type: ignore[attr-defined]
    assert joined.view(Region(whole(8)))[:, 0, 0, 0].tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])


def test_clips_are_not_joined_with_images() -> None:
    with pytest.raises(BadSetting, match="must have the same number of frames, but these have \\[1, 4\\]"):
        join_scenes([bright(0.1), as_scene(torch.zeros(1, 4, 3, 8, 8))])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"full_batch": 0}, "full_batch must be a whole number"),
        ({"wait_ms": -1}, "wait_ms must be a number from 0"),
        ({"wait_ms": float("nan")}, "wait_ms must be a number from 0"),
    ],
)
def test_bad_limits_are_said_at_once(changes: dict[str, Any], sentence: str, look_with: LookWith) -> None:
    with pytest.raises(BadSetting, match=sentence):
        look_at_stream(BrightNet(look_with), [], every_look(2), **changes)


def test_a_deadline_and_merging_do_not_go_together(look_with: LookWith, small_bundle: Callable[..., Bundle]) -> None:
    rule = replace(every_look(2), deadline=Deadline(lambda: 0.0, 0.0, 1.0))
    with pytest.raises(BadSetting, match="a deadline is for one batch, but pooled batches wait for each other"):
        look_at_stream(BrightNet(look_with), [], rule)
    pictures: Sequence[Any] = torch.zeros(2, 3, 64, 64, dtype=torch.uint8)
    with pytest.raises(BadSetting, match="Leave the deadline out, or turn pooling off"):
        small_bundle().predict(pictures, deadline_ms=1000, merge=True)
