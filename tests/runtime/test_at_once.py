"""All looks at a single image in one graph: what the loop comes to, in one run; where it is not for that, the loop runs."""

import math
import shutil
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor

from glancefocus.bench.latency import measure_latency
from glancefocus.bench.time_shares import SHARES, ms_of_looks_at_once, time_shares
from glancefocus.bench.wall_clock import forced_exits
from glancefocus.bundle.bundle import Bundle
from glancefocus.exits.rule import Deadline, ExitRule, every_look
from glancefocus.exits.score import Confidence, Entropy
from glancefocus.look import Aim, Look
from glancefocus.loop import look_until_sure, run_looks
from glancefocus.network.model import GlanceFocus
from glancefocus.network.parts import take_apart
from glancefocus.network.policy import RandomPolicy
from glancefocus.outcome import Outcome, OutcomeRecorder
from glancefocus.runtime.choose import RuntimeOptions, open_runtime
from glancefocus.runtime.graphs import write_onnx
from glancefocus.runtime.network import PartsNetwork
from glancefocus.runtime.one_graph import fits_one_graph
from glancefocus.scene import ImageBatch, MixedImages, as_scene

Make = Callable[..., GlanceFocus]


class NeverSure(Confidence):
    """A confidence of somebody's own."""

    def of(self, look: Look, aim: Aim | None) -> Tensor:
        return look.confidence * 0


FITTING = {
    "recurrent": {"looks": 4},
    "cascaded": {"looks": 4, "classifier": "cascaded", "first_answer": "own_head"},
    "other glance": {"glance_px": 48, "looks": 4},
    "two looks": {"looks": 2},
    "as released": {"glance_resize": "bicubic"},
}


def images(count: int = 6, height: int = 64, width: int = 72) -> Tensor:
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(0))


def opened(net: GlanceFocus, cache: Path | None, **options: Any) -> PartsNetwork:
    looking = open_runtime(net, "onnx", cache=cache, options=RuntimeOptions(**options))
    assert isinstance(looking, PartsNetwork)
    return looking


def by_the_loop(net: Any, image: Tensor, rule: ExitRule) -> Outcome:
    recorder = OutcomeRecorder(rule.looks)
    with torch.inference_mode():
        run_looks(net, as_scene(image), rule, net.policy, recorder)
    return recorder.finish()


def at_once_of(net: PartsNetwork, image: Any, rule: ExitRule) -> Outcome:
    with torch.inference_mode():
        net.look_at_once(as_scene(image), rule)  # the very first is left to the loop
        outcome = net.look_at_once(as_scene(image), rule)
    assert outcome is not None
    return outcome


def declines(net: PartsNetwork, scene: Any, rule: ExitRule) -> bool:
    with torch.inference_mode():
        return all(net.look_at_once(scene, rule) is None for _ in range(2))


def assert_same(one: Outcome, other: Outcome, atol: float = 1e-5) -> None:
    for name in (field.name for field in fields(Outcome)):
        ours, theirs = getattr(one, name), getattr(other, name)
        if isinstance(ours, Tensor):
            assert ours.dtype == theirs.dtype, name
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=atol, equal_nan=True, msg=name)
        else:
            assert ours == theirs, name


@pytest.mark.parametrize("kind", FITTING)
def test_one_run_comes_to_what_the_loop_does(kind: str, small_net: Make, graph_cache: Path) -> None:
    net = small_net(**FITTING[kind]).eval()
    looking, looks = opened(net, graph_cache), net.settings.looks
    taken = set()
    confidences = torch.cat([by_the_loop(net, image, every_look(looks)).confidence_after for image in images()])
    middle = confidences.median(dim=0).values.tolist()
    rules = [every_look(looks), every_look(1), every_look(2), ExitRule(middle), ExitRule([*middle[:-1], 0.0])]
    for image in images():
        for rule in rules:
            outcome = at_once_of(looking, image, rule)
            assert_same(outcome, by_the_loop(net, image, rule))
            if rule.thresholds == tuple(middle):
                taken.add(int(outcome.looks))
    assert len(taken) > 1  # some images left earlier than others


def test_exits_that_were_decided_are_kept(small_net: Make, graph_cache: Path) -> None:
    net = small_net(looks=4).eval()
    looking = opened(net, graph_cache)
    for exit_after in (1, 2, 3, 4):
        rule = forced_exits([exit_after], 4)
        outcome = at_once_of(looking, images(1), rule)
        assert_same(outcome, by_the_loop(net, images(1), rule))
        assert outcome.looks.tolist() == [exit_after]


def test_light_weights_are_those_of_the_parts(small_net: Make, graph_cache: Path) -> None:
    looking = opened(small_net(looks=4).eval(), graph_cache, light_weights=True)
    for image in images(3):
        assert_same(at_once_of(looking, image, every_look(4)), by_the_loop(looking, image, every_look(4)))


@pytest.mark.parametrize("kind", ["recurrent", "cascaded"])
def test_exported_graphs_are_put_together_too(kind: str, small_net: Make, tmp_path: Path) -> None:
    net = small_net(**FITTING[kind] | {"looks": 3}).eval()
    for part in take_apart(net):  # which do not say how sure they are
        write_onnx(part, tmp_path / f"{part.name}.onnx")
    looking = opened(net, None, graphs=tmp_path)
    for image in images(3):
        assert_same(at_once_of(looking, image, every_look(3)), by_the_loop(net, image, every_look(3)))


def test_graphs_that_cannot_be_put_together_leave_it_to_the_loop(
    small_net: Make, graph_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = small_net(looks=3).eval()
    looking = opened(net, graph_cache)
    monkeypatch.setattr("glancefocus.runtime.onnx.one_graph", lambda *_: onnx.ModelProto())
    assert declines(looking, as_scene(images(1)), every_look(3))


def test_without_the_package_of_graphs_the_loop_runs(
    small_net: Make, graph_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = opened(small_net(looks=3).eval(), graph_cache)
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert declines(looking, as_scene(images(1)), every_look(3))


def test_graphs_that_no_file_could_hold_are_left_to_the_loop(
    small_net: Make, graph_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = opened(small_net(looks=3).eval(), graph_cache)
    monkeypatch.setattr("glancefocus.runtime.one_graph.MOST_BYTES", 1000)
    assert declines(looking, as_scene(images(1)), every_look(3))


def test_the_first_single_image_is_left_to_the_loop(small_net: Make, graph_cache: Path) -> None:
    looking = opened(small_net(looks=3).eval(), graph_cache)
    assert looking.at_once is not None
    for expected in (False, True):
        with torch.inference_mode():
            look_until_sure(looking, as_scene(images(1)), every_look(3))
        assert (looking.at_once.run.session is not None) is expected  # type: ignore[attr-defined]


def test_numbers_that_are_none_are_left_to_the_loop(small_net: Make, graph_cache: Path) -> None:
    looking = opened(small_net(looks=3).eval(), graph_cache)
    outcome = at_once_of(looking, images(1), every_look(3))
    with torch.inference_mode():
        assert looking.look_at_once(as_scene(images(1) * math.nan), every_look(3)) is None
    assert_same(at_once_of(looking, images(1), every_look(3)), outcome)


def test_what_is_more_than_one_image_or_confidence_goes_through_the_loop(small_net: Make, graph_cache: Path) -> None:
    net = small_net(looks=3).eval()
    looking = opened(net, graph_cache)
    one, plain = images(1), every_look(3)
    deadline = Deadline(lambda: 0.0, 0.0, 1.0)
    not_for_it: list[tuple[Any, ExitRule]] = [
        (as_scene(images(2)), plain),
        (as_scene(one), replace(plain, temperatures=(1.0, 2.0, 1.0))),
        (as_scene(one), replace(plain, deadline=deadline)),
        (as_scene(one), replace(plain, score=Entropy())),
        (as_scene(one), forced_exits([1, 2], 3)),
        (as_scene(images(1, height=20)), ExitRule([0.0] * 3)),  # smaller than a patch
        (ImageBatch((one * 0).to(torch.uint8), view=net.settings.view), plain),
        (MixedImages((one[0],)), plain),
        (as_scene(one.double()), plain),
        (as_scene(one), every_look(4)),  # more than the network was made for
        (as_scene(one), replace(plain, score=NeverSure())),
        (as_scene(one), replace(forced_exits([2], 3), temperatures=(1.0, 5.0, 1.0))),
        (as_scene(one), replace(forced_exits([2], 3), deadline=deadline)),
    ]
    for scene, rule in not_for_it:
        assert declines(looking, scene, rule), rule
    assert looking.at_once.run.session is None  # type: ignore[union-attr]
    assert_same(look_until_sure(looking, as_scene(one), replace(plain, score=Entropy())), by_the_loop(net, one, plain))
    aimed = look_until_sure(looking, as_scene(one), plain, RandomPolicy((32,), torch.Generator().manual_seed(0)))
    assert not torch.equal(aimed.where, by_the_loop(net, one, plain).where)


def test_one_row_of_a_batch_is_a_single_image(small_net: Make, graph_cache: Path) -> None:
    net = small_net(looks=3).eval()
    scene = as_scene(images(4)).keep(torch.tensor([2]))
    outcome = at_once_of(opened(net, graph_cache), scene, every_look(3))
    assert_same(outcome, by_the_loop(net, images(4)[2], every_look(3)))


def test_images_that_somebody_differentiates_are_looked_at_too(small_net: Make, graph_cache: Path) -> None:
    looking = opened(small_net(looks=3).eval(), graph_cache)
    image = images(1).requires_grad_()
    look_until_sure(looking, as_scene(image), every_look(3))
    assert_same(look_until_sure(looking, as_scene(image), every_look(3)), at_once_of(looking, images(1), every_look(3)))


def test_images_of_any_size_go_through_one_graph(small_net: Make, graph_cache: Path) -> None:
    net = small_net(looks=3).eval()
    looking = opened(net, graph_cache)
    for height, width in ((64, 72), (90, 70), (32, 300)):
        image = images(1, height, width)
        assert_same(at_once_of(looking, image, every_look(3)), by_the_loop(net, image, every_look(3)))


def test_where_the_graphs_are_gone_the_loop_runs(small_net: Make, graph_cache: Path, tmp_path: Path) -> None:
    net = small_net(looks=3).eval()
    opened(net, graph_cache)
    shutil.copytree(graph_cache, tmp_path / "cache")
    looking = opened(net, tmp_path / "cache")
    shutil.rmtree(tmp_path / "cache")
    with torch.inference_mode():
        assert looking.look_at_once(as_scene(images(1)), every_look(3)) is None
        assert_same(
            look_until_sure(looking, as_scene(images(1)), every_look(3)), by_the_loop(net, images(1), every_look(3))
        )


def test_only_images_in_patches_of_one_size_fit(small_net: Make, kind: dict[str, Any]) -> None:
    settings = small_net(**kind).settings
    assert fits_one_graph(settings) == ("frames" not in kind and kind.get("patch_px", (32,)) == (32,))
    assert not fits_one_graph(replace(settings, looks=1))


def test_shares_are_told_of_the_graph(small_net: Make, graph_cache: Path) -> None:
    looking = opened(small_net(looks=3, glance_px=48).eval(), graph_cache)
    picture = images(1, 600, 600)
    shares, ms_per_look = time_shares(looking, [picture] * 2, [every_look(3)] * 2, rounds=2)
    assert tuple(shares) == SHARES
    assert sum(shares.values()) == pytest.approx(1)
    assert all(0 < share < 1 for share in shares.values())
    assert shares["resize"] > shares["crop"]  # of so large an image
    assert len(ms_per_look) == 3


class TakesItsTime:
    """A network that looks at once, and takes the seconds of its looks."""

    def __init__(self, seconds: list[float]) -> None:
        self.seconds = seconds
        self.now = 0.0

    def look_at_once(self, scene: Any, rule: ExitRule) -> Any:
        self.now += sum(self.seconds[: rule.looks])
        return "an outcome"


def test_a_look_is_by_how_much_one_more_takes_longer() -> None:
    net = TakesItsTime([0.5, 0.25, 0.125])
    assert ms_of_looks_at_once(net, images(1), 3, repeats=3, warm_up=1, clock=lambda: net.now) == [500, 250, 125]
    backwards = TakesItsTime([0.5, -0.25, 0.05])  # as a busy moment would make it
    each = ms_of_looks_at_once(backwards, images(1), 3, repeats=3, warm_up=1, clock=lambda: backwards.now)
    assert each == pytest.approx([100, 100, 100])


def test_milliseconds_are_those_of_the_path_that_predict_takes(
    small_bundle: Callable[..., Bundle], graph_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLANCEFOCUS_CACHE", str(graph_cache))
    for changes, in_one_graph in (
        ({}, True),
        ({"temperatures": (1.0, 2.0, 1.0)}, False),
        ({"score": "entropy"}, False),
    ):
        bundle = replace(small_bundle(), **changes).use("onnx")
        latency = measure_latency(bundle, repeats=1, warm_up=0)
        assert len(latency.focus_ms) == bundle.settings.looks - 1
        assert isinstance(bundle.looking, PartsNetwork)
        assert bundle.looking.at_once is not None
        assert (bundle.looking.at_once.run.session is not None) is in_one_graph
