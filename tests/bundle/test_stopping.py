"""When a bundle stops: by budgets that change online, in multiply-adds or milliseconds, by deadlines, by other scores."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from glancefocus.bundle.bundle import Bundle
from glancefocus.errors import BadBudget, BadSetting
from glancefocus.exits.curve import Latency
from glancefocus.loop import CandidateRule
from glancefocus.machine import device_name

MakeBundle = Callable[..., Bundle]


def pixels() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def bundle(small_bundle: MakeBundle) -> Bundle:
    return small_bundle()


def latency_here(**changes: Any) -> Latency:
    """A millisecond for every look, measured where the tests run."""
    here = {"device": device_name(torch.device("cpu")), "threads": torch.get_num_threads(), "batch_size": 1}
    return Latency(**{**here, "glance_ms": 1.0, "focus_ms": ((1.0,), (1.0,)), **changes})


def told_apart(bundle: Bundle) -> torch.Tensor:
    """Eight images of whose answers the bundle is more or less sure, which fresh weights are not."""
    with torch.no_grad():
        for parameter in bundle.net.classifier.parameters():
            parameter.mul_(4)
    images = torch.rand(8, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    return images * torch.linspace(0.1, 1, 8).reshape(-1, 1, 1, 1)


def with_two_points(bundle: Bundle) -> tuple[Bundle, torch.Tensor]:
    """The bundle with a curve of two points, and the eight images that it was made from.

    cheap  half of the images leave at the glance, the others at the second look
    dear   half of them leave at the second look, the others at the third
    """
    images, macs = told_apart(bundle), bundle.costs.macs_after_look
    confidence = bundle.predict(images, looks=3).confidence_after.sort(dim=0).values
    middle = [float(column[3] + column[4]) / 2 for column in confidence.T]
    cheap = {"thresholds": [middle[0], -1.0, 0.0], "exits_per_look": [4, 4, 0], "mean_macs": (macs[0] + macs[1]) / 2}
    dear = {"thresholds": [1.0, middle[1], 0.0], "exits_per_look": [0, 4, 4], "mean_macs": (macs[1] + macs[2]) / 2}
    bundle.curve = [{**cheap, "accuracy": 0.5}, {**dear, "accuracy": 0.9}]
    return bundle, images


def test_a_budget_changed_online_changes_the_cost_of_the_next_prediction(small_bundle: MakeBundle) -> None:
    bundle, images = with_two_points(small_bundle())
    cheap, dear = (point["mean_macs"] for point in bundle.curve)
    glance, _, everything = bundle.costs.macs_after_look
    for budget, looks in [
        (cheap, [1] * 4 + [2] * 4),
        (dear, [2] * 4 + [3] * 4),
        (everything, [3] * 8),
        (glance, [1] * 8),
        (cheap, [1] * 4 + [2] * 4),
    ]:
        outcome = bundle.predict(images, budget_macs=budget)
        assert sorted(outcome.looks.tolist()) == looks
        assert float(outcome.cost_macs.mean()) == budget
    between = bundle.exit_rule(budget_macs=(cheap + dear) / 2).thresholds
    one, two = (point["thresholds"] for point in bundle.curve)
    assert between == pytest.approx([(a + b) / 2 for a, b in zip(one, two, strict=True)], abs=1e-12)


def test_a_budget_in_milliseconds_chooses_by_what_was_measured_here(small_bundle: MakeBundle) -> None:
    bundle, images = with_two_points(small_bundle())
    bundle.latencies = [latency_here(device="another chip", glance_ms=99.0), latency_here()]
    # cheap: 1 + 4 / 8 ms, dear: 1 + 8 / 8 + 4 / 8 ms
    for budget_ms, looks in [(1.5, [1] * 4 + [2] * 4), (2.5, [2] * 4 + [3] * 4), (3.0, [3] * 8), (1.2, [1] * 8)]:
        assert sorted(bundle.predict(images, budget_ms=budget_ms).looks.tolist()) == looks
    with pytest.raises(BadBudget, match=r"a budget of 0.9 ms is less than one glance \(1\)"):
        bundle.predict(images, budget_ms=0.9)
    with pytest.raises(BadSetting, match="not several of them"):
        bundle.predict(images, budget_ms=2.0, budget_macs=1e9)


@pytest.mark.parametrize("latencies", [[], [latency_here(device="another chip")], [latency_here(threads=7)]])
def test_milliseconds_that_were_not_measured_here_are_reported(
    latencies: list[Latency], small_bundle: MakeBundle
) -> None:
    bundle = replace(small_bundle(), latencies=latencies)
    assert bundle.latency_here() is None
    with pytest.raises(
        BadBudget,
        match="no milliseconds were measured on this device with this number of threads in this runtime. Run `gf",
    ):
        bundle.predict(pixels(), budget_ms=5.0)


def test_of_several_measurements_here_the_last_counts(bundle: Bundle) -> None:
    found = replace(bundle, latencies=[latency_here(glance_ms=1.0), latency_here(glance_ms=2.0)])
    assert found.latency_here() == latency_here(glance_ms=2.0)


def test_when_there_is_no_time_every_picture_still_gets_its_glance(bundle: Bundle) -> None:
    images = torch.rand(5, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    hurried = bundle.predict(images, deadline_ms=1e-6, batch_size=2)
    assert hurried.looks.tolist() == [1] * 5
    assert not hurried.sure.any()
    torch.testing.assert_close(hurried.logits, bundle.predict(images, looks=1).logits, rtol=0, atol=1e-5)
    assert hurried.cost_macs.tolist() == [bundle.costs.macs_after_look[0]] * 5


def test_with_time_enough_a_deadline_changes_nothing(small_bundle: MakeBundle) -> None:
    bundle, images = with_two_points(small_bundle())
    budget = bundle.curve[0]["mean_macs"]
    for asked in ({}, {"looks": 2}, {"budget_macs": budget}):
        one = bundle.predict(images, **asked, batch_size=3)
        two = bundle.predict(images, **asked, batch_size=3, deadline_ms=1e9)
        assert torch.equal(one.logits, two.logits)
        assert torch.equal(one.looks, two.looks)
        assert torch.equal(one.sure, two.sure)


@pytest.mark.parametrize("deadline_ms", [0.0, -5.0, float("nan")])
def test_a_deadline_lies_ahead(deadline_ms: float, bundle: Bundle) -> None:
    with pytest.raises(BadSetting, match="deadline_ms must be a number above 0 and at most 1,000,000,000, but got"):
        bundle.predict(pixels(), deadline_ms=deadline_ms)


def test_a_bundle_that_stops_by_value_pays_for_the_aim(small_bundle: MakeBundle) -> None:
    bundle = replace(small_bundle(), score="value", thresholds=(-1.0, -1.0, 0.0))
    outcome = bundle.predict(pixels())
    assert outcome.looks.tolist() == [1]
    assert outcome.cost_macs.tolist() == [bundle.costs.macs_after_look[0] + bundle.costs.policy_macs]


def test_random_exits_repeat(small_bundle: MakeBundle) -> None:
    bundle = replace(small_bundle(), score="random", thresholds=(0.5, 0.5, 0.0))
    images = torch.rand(16, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    one, two = (bundle.predict(images).looks.tolist() for _ in range(2))
    assert one == two
    assert set(one) == {1, 2, 3}


def test_temperatures_change_confidences_but_no_answers(small_bundle: MakeBundle) -> None:
    bundle = small_bundle()
    images = told_apart(bundle)
    cold = bundle.predict(images, looks=3)
    bundle.temperatures = (1.0, 1.0, 2.0)
    warm = bundle.predict(images, looks=3)
    assert torch.equal(warm.answer_after, cold.answer_after)
    torch.testing.assert_close(warm.logits * 2, cold.logits, rtol=0, atol=1e-5)
    assert bool((warm.confidence < cold.confidence).all())
    assert torch.equal(warm.confidence_after[:, :2], cold.confidence_after[:, :2])


def test_with_several_sizes_a_budget_takes_the_dearest_point_within_it(small_bundle: MakeBundle) -> None:
    bundle = small_bundle(focus=("32", "48"))
    glance, small, large = bundle.costs.macs_of_tree()[:3]
    rows = {"small": [[1.0, -1.0], [-1.0, -1.0], [0.0, 0.0]], "large": [[-1.0, 1.0], [-1.0, -1.0], [0.0, 0.0]]}
    bundle.curve = [
        {"thresholds": rows["small"], "mean_macs": float(small), "accuracy": 0.5},
        {"thresholds": rows["large"], "mean_macs": float(large), "accuracy": 0.6},
    ]
    for budget, patch_px in [
        (glance, [0, 0]),
        (small, [32, 0]),
        (large - 1, [32, 0]),
        (large, [48, 0]),
        (9e9, [48, 48]),
    ]:
        outcome = bundle.predict(pixels(), budget_macs=budget)
        assert outcome.patch_px.tolist() == [patch_px]
        assert float(outcome.cost_macs) <= budget
    rule = bundle.exit_rule(thresholds=rows["small"][:2])
    assert isinstance(rule, CandidateRule)
    assert rule.thresholds[-1] == (0.0, 0.0)


@pytest.mark.parametrize(
    ("thresholds", "sentence"),
    [
        ([0.5, 0.5], r"patches of 32, 48 px needs 2 thresholds for each look"),
        ([[0.5], [0.5]], r"2 candidate views needs 2 thresholds for each look, but got"),
        ([[0.5, 0.5]], "takes 3 looks, so it needs 2 thresholds, but got 1"),
    ],
)
def test_thresholds_for_several_sizes_come_in_rows(
    thresholds: list[Any], sentence: str, small_bundle: MakeBundle
) -> None:
    with pytest.raises(BadSetting, match=sentence):
        small_bundle(focus=("32", "48")).exit_rule(thresholds=thresholds)
