"""Findings are measured on images that thresholds were not chosen on; the numbers are worked out by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from glancefocus.bundle.bundle import Bundle
from glancefocus.evaluation.assess import (
    assess,
    halves,
    largest_nodes,
    look_table,
    own_thresholds,
    point_with_exits,
    solved,
)
from glancefocus.exits.budget import with_interval
from glancefocus.exits.curve import Latency, best_thresholds
from glancefocus.exits.one_size import direct_curve
from glancefocus.exits.record import LookRecord, RecordAbout, writing_record
from glancefocus.exits.table import LookTable
from glancefocus.machine import device_name

MakeBundle = Callable[..., Bundle]


@pytest.mark.parametrize("count", [2, 3, 10, 101])
def test_halves_share_no_image_and_leave_none_out(count: int) -> None:
    one, two = halves(count)
    assert sorted([*one.tolist(), *two.tolist()]) == list(range(count))
    assert 0 <= len(two) - len(one) <= 1


def test_the_seed_decides_the_halves() -> None:
    assert [half.tolist() for half in halves(50, 1)] == [half.tolist() for half in halves(50, 1)]
    assert halves(50, 1)[0].tolist() != halves(50, 2)[0].tolist()
    assert halves(50)[0].tolist() != list(range(25))  # neighbours in a data set are often of one class


def contrary_halves() -> LookTable:
    """Twenty images, of which half are surest where they are right at the glance, and half where they are wrong at it.

    In the first half a threshold of 0.5 is always right: an image above it is right at the glance, any other at the second
    look. In the second half it is always wrong, and nothing is right more often than every other time.
    """
    one, _ = halves(20)
    first = np.isin(np.arange(20), one)
    high = np.zeros(20, dtype=bool)
    for half in (first, ~first):
        high[np.flatnonzero(half)[:5]] = True
    score = np.stack([np.where(high, 0.9, 0.1), np.ones(20)], axis=1).astype(np.float32)
    at_glance = high == first
    return LookTable(score, np.stack([at_glance, ~at_glance], axis=1), np.array([10.0, 30.0]))


def test_no_image_chooses_the_thresholds_that_it_is_measured_with() -> None:
    table = contrary_halves()
    one, two = halves(20)
    chosen_by_itself = [solved(table.rows(half), table.rows(half), [30.0])[0] for half in (one, two)]
    assert [point["accuracy"] for point in chosen_by_itself] == [1.0, 0.5]
    (crosswise,) = solved(None, table, [30.0])
    # In the second half neither look is right more than every other time, so that all leave at the glance, and the first half
    # is right in 5 of 10; the first half's threshold is wrong about every image of the second, of which 5 leave at the glance.
    assert crosswise["accuracy"] == (5 + 0) / 20
    assert crosswise["exits_per_look"] == [15, 5]
    assert crosswise["mean_macs"] == (15 * 10 + 5 * 30) / 20
    assert crosswise["budget_macs"] == 30.0


def test_thresholds_chosen_on_one_table_are_measured_on_another() -> None:
    table = contrary_halves()
    one, two = halves(20)
    (point,) = solved(table.rows(one), table.rows(two), [30.0])
    assert point["accuracy"] == 0.0
    assert point["exits_per_look"] == [5, 5]


def four_images() -> LookTable:
    return LookTable(
        score=np.array([[0.9, 0.9, 0.9], [0.4, 0.8, 0.7], [0.3, 0.2, 0.6], [0.5, 0.1, 0.1]], dtype=np.float32),
        correct=np.array([[True, True, True], [True, True, False], [False, True, True], [True, False, False]]),
        macs=np.array([10.0, 30.0, 60.0]),
    )


def test_images_that_leave_after_a_look_are_counted_with_their_accuracy() -> None:
    point = point_with_exits(four_images(), [0.5, 0.5, 0.0])
    assert point["exits_per_look"] == [1, 1, 2]
    assert point["accuracy_of_exits"] == [1.0, 1.0, 0.5]
    assert point_with_exits(four_images(), [-1.0, 0.5, 0.0])["accuracy_of_exits"] == [0.75, None, None]


def test_an_interval_follows_from_the_numbers_of_right_and_wrong_answers() -> None:
    point = with_interval({"accuracy": 0.5}, 400)
    # 1.96 deviations of sqrt(0.5 x 0.5 / 400) = 0.025, drawn towards the middle by z^2 / 400
    assert point["accuracy_low"] == pytest.approx(0.4512, abs=1e-4)
    assert point["accuracy_high"] == pytest.approx(0.5488, abs=1e-4)


def test_no_mistake_among_a_few_images_does_not_mean_no_mistake_ever() -> None:
    point = with_interval({"accuracy": 1.0}, 1000)
    assert point["accuracy_low"] == pytest.approx(1 / (1 + 1.959964**2 / 1000))  # Wilson's, in closed form: 99.62 %
    assert point["accuracy_high"] == 1.0
    assert with_interval({"accuracy": 0.0}, 4)["accuracy_high"] == pytest.approx(0.49, abs=0.01)


@pytest.mark.parametrize("accuracy", [0.0, 1.0])
def test_rounding_does_not_put_an_accuracy_outside_its_interval(accuracy: float) -> None:
    for images in range(1, 300):
        point = with_interval({"accuracy": accuracy}, images)
        assert point["accuracy_low"] <= accuracy <= point["accuracy_high"]


def test_the_largest_patches_are_the_last_node_of_every_level() -> None:
    tree = LookTable(np.zeros((1, 13), np.float32), np.zeros((1, 13), bool), np.arange(13.0), sizes=3)
    assert largest_nodes(tree) == [0, 3, 12]


IMAGES = 40


def record_of(bundle: Bundle, folder: Path, seed: int = 0, **about: Any) -> LookRecord:
    """A record with made-up scores of a network that gets better with every look; at confidence 0.75 it is right about as often."""
    settings, random = bundle.settings, np.random.default_rng(seed)
    facts = RecordAbout(
        **{
            "network": bundle.fingerprint,
            "data": f"data-{seed}",
            "source": "pets",
            "split": "test",
            "images": IMAGES,
            "looks": settings.looks,
            "views": tuple(view.name for view in settings.candidates),
            **about,
        }
    )
    shape = (facts.images, facts.nodes)
    score: NDArray[np.float32] = random.random(shape, dtype=np.float32)
    label = random.integers(0, 3, facts.images)
    wrong = random.random(shape) > 0.5 + score / 2
    answer = (label[:, None] + wrong) % 3
    with writing_record(folder / str(seed), facts) as writer:
        writer.add(label, answer=answer, confidence=score, entropy=score**2, value=1 - score)
    return LookRecord.load(folder / str(seed))


def test_the_table_of_a_record_has_the_costs_of_the_bundles_score(small_bundle: MakeBundle, tmp_path: Path) -> None:
    bundle = small_bundle()
    record = record_of(bundle, tmp_path)
    glance, second, third = bundle.costs.macs_after_look
    aim = bundle.costs.policy_macs
    assert look_table(bundle, record).macs.tolist() == [glance, second, third]
    assert look_table(bundle, record).score.tolist() == record.confidence.tolist()
    # by value an image has been aimed for before it leaves, except after the last look
    by_value = look_table(bundle, record, "value")
    assert by_value.macs.tolist() == [glance + aim, second + bundle.costs.focus_policy_macs["32"], third]
    assert by_value.score.tolist() == record.value.tolist()
    assert look_table(bundle, record).ms is None
    bundle.score = "entropy"
    assert look_table(bundle, record).score.tolist() == record.entropy.tolist()


def test_without_thresholds_of_its_own_a_bundle_takes_every_look(small_bundle: MakeBundle) -> None:
    assert own_thresholds(small_bundle()) == [1.0, 1.0, 0.0]
    assert own_thresholds(small_bundle(patch_px=(32, 48))) == [[-1.0, 1.0], [-1.0, 1.0], [0.0, 0.0]]
    assert own_thresholds(small_bundle(thresholds=(0.5, 0.6, 0.0))) == (0.5, 0.6, 0.0)


def test_findings_are_complete_and_go_through_json(small_bundle: MakeBundle, tmp_path: Path) -> None:
    bundle = small_bundle(thresholds=(0.5, 0.5, 0.0))
    record = record_of(bundle, tmp_path)
    findings = assess(bundle, record, points=5)
    table = look_table(bundle, record)
    assert findings.data == "pets, test"
    assert findings.chosen_on == "parts of these images for the other parts, in turns"
    assert findings.images == IMAGES
    assert findings.accuracy_after_look == table.accuracy_after_look
    glance, _, everything = bundle.costs.macs_after_look
    assert [point["budget_macs"] for point in findings.curve] == pytest.approx(
        np.linspace(glance, everything, 5).tolist(), abs=1
    )
    assert findings.curve[0]["exits_per_look"] == [IMAGES, 0, 0]
    for point in findings.curve:
        assert sum(point["exits_per_look"]) == IMAGES
        assert point["accuracy_low"] <= point["accuracy"] <= point["accuracy_high"]
    assert findings.chosen["accuracy"] == table.point(np.array([0.5, 0.5, 0.0], np.float32))["accuracy"]
    assert set(findings.scores) == {"confidence", "entropy", "value", "random"}
    budgets = {tuple(point["budget_macs"] for point in curve) for curve in findings.scores.values()}
    assert len(budgets) == 1  # the same ones for every score
    assert all(glance < budget < everything for budget in budgets.pop())
    assert findings.fixed_size_curves == {}
    assert [sum(entry["count"] for entry in look) for look in findings.reliability] == [IMAGES] * 3
    assert len(findings.calibration_error) == 3
    assert findings.ms_after_look is None
    plain = json.loads(json.dumps(findings.to_plain(), allow_nan=False))
    assert {"budget_macs", "mean_macs", "accuracy", "thresholds", "exits_per_look"} <= plain["curve"][0].keys()


def test_the_bundles_own_curve_is_measured_where_it_has_one(small_bundle: MakeBundle, tmp_path: Path) -> None:
    thresholds = [[-1.0, -1.0, 0.0], [0.5, 0.5, 0.0]]
    curve = [{"thresholds": t, "budget_macs": b, "mean_macs": b} for t, b in zip(thresholds, (5e6, 8e6), strict=True)]
    bundle = small_bundle(curve=curve, notes={"thresholds_chosen_on": "pets, val", "thresholds_data": "data-1"})
    record = record_of(bundle, tmp_path)
    findings = assess(bundle, record)
    assert [point["thresholds"] for point in findings.curve] == thresholds
    assert [point["budget_macs"] for point in findings.curve] == [5e6, 8e6]
    table = look_table(bundle, record)
    for point in findings.curve:
        measured = table.point(np.asarray(point["thresholds"], np.float32))
        assert (point["accuracy"], point["mean_macs"]) == (measured["accuracy"], measured["mean_macs"])
    assert findings.chosen_on == "pets, val"


def test_thresholds_are_not_measured_on_the_images_that_they_were_chosen_on(
    small_bundle: MakeBundle, tmp_path: Path
) -> None:
    """Random scores: they seem useful on the images that the thresholds were chosen on, but not on others."""
    bundle = small_bundle()
    record = random_record(tmp_path, images=60)
    table = look_table(bundle, record)
    budgets = np.linspace(table.cheapest, table.dearest, 40).tolist()
    lucky = direct_curve(table, budgets)  # which follows every single answer
    bundle.curve = [{"budget_macs": b, **table.point(found)} for b, found in zip(budgets, lucky, strict=True)]
    bundle.thresholds = best_thresholds(bundle.curve)
    always = max(table.accuracy_after_look)
    flattering = assess(bundle, record, points=5)
    assert flattering.chosen["accuracy"] > always + 0.03
    fair = assess(bundle, record, chose=True, points=5)
    assert fair.chosen["accuracy"] < flattering.chosen["accuracy"] - 0.04
    assert fair.chosen["thresholds"] == np.asarray(bundle.thresholds, dtype=np.float32).tolist()
    assert sum(fair.chosen["exits_per_look"]) == 60
    assert max(point["accuracy"] for point in fair.curve) < max(point["accuracy"] for point in flattering.curve)
    assert fair.chosen_on == "parts of these images for the other parts, in turns"
    # Thresholds that are not the best of the curve are those of a budget: others within that cost are chosen in turns.
    bundle.thresholds = tuple(bundle.curve[20]["thresholds"])
    budget = assess(bundle, record, chose=True, points=5).chosen
    assert budget["mean_macs"] < 1.1 * bundle.curve[20]["mean_macs"]
    bundle.thresholds = None
    assert assess(bundle, record, chose=True, points=5).chosen["accuracy"] == table.accuracy_after_look[-1]


def random_record(folder: Path, images: int) -> LookRecord:
    """Three looks at images of two classes, all of whose scores and answers are drawn at random."""
    random = np.random.default_rng(0)
    about = RecordAbout("net", "data", "pets", "val", images, 3, ("32",))
    with writing_record(folder / "record", about) as writer:
        scores = {name: random.random((images, 3), dtype=np.float32) for name in ("confidence", "entropy", "value")}
        writer.add(random.integers(0, 2, images), answer=random.integers(0, 2, (images, 3)), **scores)
    return LookRecord.load(folder / "record")


def test_other_images_may_choose_the_thresholds(small_bundle: MakeBundle, tmp_path: Path) -> None:
    bundle = small_bundle()
    choosing = record_of(bundle, tmp_path, seed=5, split="val")
    findings = assess(bundle, record_of(bundle, tmp_path), choosing, points=4)
    assert findings.chosen_on == "pets, val"
    chosen = solved(
        look_table(bundle, choosing), look_table(bundle, choosing), [p["budget_macs"] for p in findings.curve]
    )
    assert [point["thresholds"] for point in findings.curve] == [point["thresholds"] for point in chosen]
    # What was chosen fits the budget where it was chosen; elsewhere it may cost a little more.
    assert all(point["mean_macs"] <= point["budget_macs"] * (1 + 1e-9) for point in chosen)


def test_milliseconds_are_reported_if_they_were_measured(small_bundle: MakeBundle, tmp_path: Path) -> None:
    bundle = small_bundle()
    name, threads = device_name(bundle.device), torch.get_num_threads()
    bundle.latencies = [Latency(name, threads, 1, 1.0, ((2.0,), (3.0,)))]
    findings = assess(bundle, record_of(bundle, tmp_path), points=3)
    assert findings.ms_after_look == [1.0, 3.0, 6.0]
    assert findings.device == f"{name}, {threads} thread{'' if threads == 1 else 's'}, batch 1"
    assert findings.curve[0]["mean_ms"] == 1.0
    assert findings.curve[-1]["mean_ms"] <= 6.0


def test_with_several_sizes_each_is_also_assessed_alone(small_bundle: MakeBundle, tmp_path: Path) -> None:
    curve = [
        {"thresholds": [[-1.0, -1.0]] * 2 + [[0.0, 0.0]], "mean_macs": 4e6},
        {"thresholds": [[0.4, 0.8], [0.8, 0.4], [0.0, 0.0]], "mean_macs": 1e7},
    ]
    bundle = small_bundle(patch_px=(32, 48), curve=curve)
    record = record_of(bundle, tmp_path)
    findings = assess(bundle, record, points=6)
    table = look_table(bundle, record)
    assert findings.accuracy_after_look == table.fixed_size(1).accuracy_after_look
    assert set(findings.fixed_size_curves) == {"32", "48"}
    for size, px in enumerate(("32", "48")):
        own = table.fixed_size(size)
        for point in findings.fixed_size_curves[px]:
            assert sum(point["exits_per_look"]) == IMAGES
            assert point["budget_macs"] <= own.dearest * (1 + 1e-9)
            assert "patches_per_look_and_size" not in point
    assert len(findings.fixed_size_curves["32"]) < len(findings.fixed_size_curves["48"]) == 6
    for point in findings.curve:
        patches = np.asarray(point["patches_per_look_and_size"])
        # images that did not leave at the glance took a patch, those that did not leave at the second look another one
        assert patches.sum(axis=1).tolist() == [sum(point["exits_per_look"][1:]), point["exits_per_look"][2]]
    assert [sum(entry["count"] for entry in look) for look in findings.reliability] == [IMAGES] * 3
    json.dumps(findings.to_plain(), allow_nan=False)
