"""What `gf bench` works out of its measurements; how fast anything is, is not a matter of tests."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from glancefocus.bundle.bundle import Bundle
from glancefocus.errors import BadSetting
from glancefocus.evaluation import wall_clock as bench_module
from glancefocus.evaluation.choosing import cheapest_as_accurate, representative_rows
from glancefocus.evaluation.latency import SHARES, Stopwatch, TimedScene, in_turns, time_shares
from glancefocus.evaluation.wall_clock import Case, Subject, bench, forced_subject, images_needed, summary, usual_cases
from glancefocus.exits.table import LookTable
from glancefocus.look import as_scene
from glancefocus.loop import every_look
from glancefocus.network.model import GlanceFocus
from glancefocus.region import Region
from glancefocus.runtime.choose import RuntimeOptions, open_runtime
from glancefocus.settings import native, whole

MakeNet = Callable[..., GlanceFocus]


def test_ratios_are_taken_within_each_round() -> None:
    # The second round ran on a machine three times as slow.
    found = summary({"backbone": [0.4, 1.2, 0.6], "glancefocus": [0.2, 0.6, 0.2]}, images=10, mac_ratio=2.5)
    assert found["backbone_ms"] == pytest.approx(60)
    assert found["glancefocus_ms"] == pytest.approx(20)
    assert found["backbone_ms_low"] == pytest.approx(50)
    assert found["backbone_ms_high"] == pytest.approx(90)
    assert found["time_ratio"] == pytest.approx(2.0)
    assert found["quotient"] == pytest.approx(0.8)
    assert summary({"backbone": [0.4], "glancefocus": [0.1]}, 1, 4.0)["quotient"] == pytest.approx(1.0)


def test_batches_of_one_run_on_one_thread_and_there_are_enough_of_them() -> None:
    cases = usual_cases(["eager", "onnx"], [1, 64], None, torch.device("cpu"))
    assert [(case.runtime, case.batch) for case in cases] == [("eager", 1), ("eager", 64), ("onnx", 1), ("onnx", 64)]
    assert cases[0].threads == 1
    assert cases[1].threads >= 1
    assert [case.threads for case in usual_cases(["eager"], [1, 64], 3, torch.device("cpu"))] == [3, 3]
    runtimes = {case.runtime for case in usual_cases(None, [1], None, torch.device("cpu"))}
    assert {"plain", "eager"} <= runtimes
    assert "compile" not in runtimes
    assert [images_needed(batch) for batch in (1, 3, 20, 64)] == [20, 21, 20, 64]
    with pytest.raises(BadSetting, match="batch is 0"):
        images_needed(0)


def test_rounds_end_when_their_time_is_over_but_three_are_measured() -> None:
    shares: list[float] = []
    nap = {"backbone": lambda: time.sleep(0.01), "glancefocus": lambda: None}
    cpu = torch.device("cpu")
    times = in_turns(nap, cpu, rounds=50, warm_up=1, seconds=0.0, progress=shares.append)
    assert [len(seconds) for seconds in times.values()] == [3, 3]
    assert shares[:3] == pytest.approx([0, 1 / 51, 2 / 51])
    assert len(in_turns(nap, cpu, rounds=50, warm_up=1, seconds=0.15)["backbone"]) in range(3, 16)
    assert len(in_turns(nap, cpu, rounds=4, warm_up=0, seconds=60.0)["backbone"]) == 4


@pytest.mark.parametrize("kind", [{}, {"frames": 2, "shift_div": 4, "classifier": "cascaded"}, {"patch_px": (32, 48)}])
@pytest.mark.parametrize("runtime", ["plain", "eager"])
def test_forced_exits_cost_what_they_should(
    runtime: str, kind: dict[str, Any], small_bundle: Callable[..., Bundle]
) -> None:
    bundle = small_bundle(**kind)
    subject = forced_subject(bundle.net, bundle.costs, [0.5, 0.25, 0.25], 20, torch.Generator().manual_seed(0))
    threads = torch.get_num_threads()
    timing = bench(subject, Case(runtime, 10, 1), rounds=1, warm_up=0)
    assert torch.get_num_threads() == threads
    assert timing.exits == [10, 5, 5]
    spent = np.dot([0.5, 0.25, 0.25], bundle.costs.macs_after_look)
    assert timing.mac_ratio == pytest.approx(bundle.costs.backbone_macs / spent, rel=1e-9)
    assert timing.quotient == pytest.approx(timing.time_ratio / timing.mac_ratio, rel=1e-9)
    assert tuple(timing.shares) == SHARES
    assert sum(timing.shares.values()) == pytest.approx(1, abs=1e-9)
    assert len(timing.ms_per_look) == 3
    wanted = {"runtime", "batch", "threads", "backbone_ms", "glancefocus_ms", "mac_ratio", "time_ratio", "quotient"}
    assert wanted <= timing.to_plain().keys()


def test_light_weights_are_for_backbone_and_glancefocus_alike(
    small_bundle: Callable[..., Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[str, bool]] = []

    def note(which: str, open_: Any) -> Any:
        def recorded(net: GlanceFocus, name: str, *, options: RuntimeOptions) -> Any:
            opened.append((which, options.light_weights))
            return open_(net, name, options=options)

        return recorded

    for which in ("open_runtime", "open_backbone"):
        monkeypatch.setattr(f"glancefocus.evaluation.wall_clock.{which}", note(which, getattr(bench_module, which)))
    bundle = small_bundle()
    subject = forced_subject(bundle.net, bundle.costs, [0.5, 0.25, 0.25], 20, torch.Generator().manual_seed(0))
    subject = replace(subject, accuracy=0.5, backbone_accuracy=0.5)
    light = bench(subject, Case("onnx", 10, 1, light_weights=True), rounds=1, warm_up=0)
    assert light.light_weights
    assert light.accuracy is light.backbone_accuracy is None  # known of float weights only
    (case,) = usual_cases(["plain"], [10], 1, torch.device("cpu"), light_weights=True)  # which has none
    plain = bench(subject, case, rounds=1, warm_up=0)
    assert not plain.light_weights
    assert plain.accuracy == 0.5
    assert opened == [
        ("open_runtime", True),
        ("open_backbone", True),
        ("open_runtime", False),
        ("open_backbone", False),
    ]


def test_an_exit_rule_is_followed(small_bundle: Callable[..., Bundle]) -> None:
    bundle = small_bundle()
    images = torch.rand(20, 3, 64, 64)
    subject = Subject(bundle.net, bundle.net, bundle.costs, images, rule=every_look(3), accuracy=0.9)
    timing = bench(subject, Case("eager", 20, 1), rounds=1, warm_up=0)
    assert timing.exits == [0, 0, 20]
    assert timing.accuracy == 0.9


def test_every_tick_of_the_clock_is_accounted_for(small_net: MakeNet) -> None:
    """A clock that ticks once whenever it is asked: every timed call takes one tick, and what is around it the rest."""
    now = [0]

    def clock() -> float:
        now[0] += 1
        return now[0]

    images = torch.rand(2, 3, 64, 64)
    shares, ms_per_look = time_shares(
        open_runtime(small_net(), "eager"), [images], [every_look(3)], rounds=2, clock=clock
    )
    # Of a batch: glance and two focuses, two aims, two crops, one resize: 8 calls, asked for the time twice each. With the whole
    # that is 18 answers, 17 ticks between the first and the last.
    assert shares == pytest.approx(
        {"encoder_and_classifier": 3 / 17, "policy": 2 / 17, "crop": 2 / 17, "resize": 1 / 17, "python": 9 / 17}
    )
    assert ms_per_look == [500.0, 1000.0, 1000.0]  # the glance is one call for two images, a focus is two with its aim


def test_a_timed_scene_shows_what_the_scene_shows() -> None:
    watch = Stopwatch()
    scene = as_scene(torch.rand(3, 4, 3, 16, 16))
    timed = TimedScene(scene, watch)
    assert (timed.count, timed.frames) == (3, 4)
    assert torch.equal(timed.view(Region(whole(8))), scene.view(Region(whole(8))))
    rows = torch.tensor([2, 0])
    assert torch.equal(
        timed.keep(rows).view(Region(native(8), torch.rand(2, 2) * 0)),
        scene.keep(rows).view(Region(native(8), torch.zeros(2, 2))),
    )
    assert set(watch.seconds) == {"resize", "crop"}


def test_the_cheapest_point_that_is_as_accurate_is_taken_or_else_the_most_accurate() -> None:
    curve = [
        {"accuracy": 0.7, "mean_macs": 1.0},
        {"accuracy": 0.9, "mean_macs": 3.0},
        {"accuracy": 0.8, "mean_macs": 2.0},
        {"accuracy": 0.9, "mean_macs": 4.0},
    ]
    assert cheapest_as_accurate(curve, 0.75)["mean_macs"] == 2.0
    assert cheapest_as_accurate(curve, 0.95)["mean_macs"] == 3.0


def test_representative_images_leave_in_the_same_shares_as_all() -> None:
    score = np.array([[0.9, 0.9], [0.1, 0.9], [0.9, 0.9], [0.9, 0.9]], dtype=np.float32)
    table = LookTable(score, np.ones((4, 2), dtype=np.bool_), np.array([1.0, 2.0]))
    thresholds = np.array([0.5, 0.0], dtype=np.float32)
    rows = representative_rows(table, thresholds, 8)
    assert rows.count(1) == 2
    assert sorted(rows) == [0, 0, 1, 1, 2, 2, 3, 3]
