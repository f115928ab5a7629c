"""A zooming network takes its views in their order: records, thresholds, costs and predictions all have that one sequence."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from glancefocus.bundle.bundle import Bundle
from glancefocus.bundle.files import SETTINGS_FILE, read_latency_file
from glancefocus.data.splits import MemorySplit
from glancefocus.errors import BadSetting
from glancefocus.evaluation.assess import assess, look_table
from glancefocus.evaluation.choosing import best_temperature, fit_temperatures
from glancefocus.evaluation.every_look import compare
from glancefocus.evaluation.latency import measure_latency
from glancefocus.evaluation.records import Records, record_looks
from glancefocus.evaluation.tables import look_rows
from glancefocus.exits.budget import solve_curve, solve_within, thresholds_of_a_run
from glancefocus.exits.record import LookRecord
from glancefocus.look import as_scene
from glancefocus.loop import ExitRule, Policy, every_look, frozen, look_until_sure
from glancefocus.network.modules import RecurrentClassifier
from glancefocus.network.policy import InTurns, OneCandidate
from glancefocus.settings import NetworkSettings, ViewSettings, view_in_order

MakeBundle = Callable[..., Bundle]
SIDE, COUNT = 128, 12
PLAIN_VIEW: dict[str, Any] = {
    "fit": "whole",
    "height_px": SIDE,
    "width_px": SIDE,
    "mean": (0.5,) * 3,
    "std": (0.5,) * 3,
}
VIEW = ViewSettings(**PLAIN_VIEW)
STEPS = ("0.75@32", "0.5@32", "40")


@pytest.fixture
def bundle(small_bundle: MakeBundle, split: MemorySplit) -> Bundle:
    """A zooming network with three views and four looks, which gives these images different answers, also at different looks."""
    found = small_bundle(zoom=True, focus=STEPS, looks=4, view=PLAIN_VIEW, seed=2)
    classifier = found.net.classifier
    assert isinstance(classifier, RecurrentClassifier)
    with torch.no_grad():
        for parameter in classifier.parameters():
            parameter.mul_(4)
        classifier.gru.bias_ih.zero_()
        classifier.gru.bias_hh.zero_()
        logits = found.predict(pictures(split), looks=4).logits_after
        assert logits is not None
        classifier.linear.bias -= logits.mean(dim=(0, 1))
    return found


@pytest.fixture
def split() -> MemorySplit:
    coarse = torch.rand(COUNT, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    pixels = (255 * F.interpolate(coarse, size=(SIDE, SIDE))).to(torch.uint8)
    return MemorySplit(pixels, torch.arange(COUNT) % 3, VIEW)


def pictures(split: MemorySplit) -> list[torch.Tensor]:
    return list(split.images)


def recorded(bundle: Bundle, split: MemorySplit, folder: Path) -> LookRecord:
    return record_looks(bundle, split, folder, source="noise", name="val")


def focus_looks(bundle: Bundle, work: Callable[[], Any]) -> int:
    """How many patches the focus encoder sees in this work."""
    rows: list[int] = []
    hook = bundle.net.focus_encoder.register_forward_hook(lambda module, seen, out: rows.append(len(seen[0])))
    work()
    hook.remove()
    return sum(rows)


def test_each_view_comes_once_and_the_last_one_again_and_again() -> None:
    assert [view_in_order(number, 3) for number in range(1, 6)] == [0, 1, 2, 2, 2]
    settings = NetworkSettings("resnet18", focus=STEPS, looks=6, zoom=True)
    assert settings.view_order == (0, 1, 2, 2, 2)
    assert (settings.view_choices, settings.next_views(1), settings.next_views(5)) == (1, (0,), (2,))
    other = replace(settings, zoom=False)
    assert (other.view_order, other.view_choices, other.next_views(1)) == (None, 3, (0, 1, 2))


def test_many_looks_of_a_zooming_network_are_not_too_many_sequences() -> None:
    NetworkSettings("resnet18", focus=STEPS, looks=12, zoom=True)
    with pytest.raises(BadSetting, match="with 3 candidate views and 12 looks there are more than 100,000 sequences"):
        NetworkSettings("resnet18", focus=STEPS, looks=12)


def test_only_the_sequence_in_order_is_looked_at(
    bundle: Bundle, split: MemorySplit, small_bundle: MakeBundle, tmp_path: Path
) -> None:
    """Three focus looks for each image; without zoom 3 + 9 + 27."""
    assert focus_looks(bundle, lambda: recorded(bundle, split, tmp_path)) == 3 * COUNT
    plain = small_bundle(focus=STEPS, looks=4, view=PLAIN_VIEW)
    assert focus_looks(plain, lambda: recorded(plain, split, tmp_path)) == 39 * COUNT


def test_a_record_holds_what_predictions_look_at(bundle: Bundle, split: MemorySplit, tmp_path: Path) -> None:
    bundle.temperatures = (0.5, 2.0, 1.0, 3.0)
    record = recorded(bundle, split, tmp_path)
    assert record.answer.shape == (COUNT, 4)
    for looks in range(1, 5):
        outcome = bundle.predict(pictures(split), looks=looks)
        assert outcome.candidate.tolist() == [[0, 1, 2][: looks - 1]] * COUNT
        np.testing.assert_allclose(record.confidence[:, looks - 1], outcome.confidence.numpy(), rtol=0, atol=1e-5)
        assert outcome.cost_macs.tolist() == [bundle.costs.macs_after_look[looks - 1]] * COUNT
    assert bundle.costs.macs_after_look == bundle.costs.macs_along((0, 1, 2)) == bundle.costs.macs_of_tree()


def test_thresholds_are_one_for_each_look_and_predictions_follow_them(
    bundle: Bundle, split: MemorySplit, tmp_path: Path
) -> None:
    table = look_table(bundle, recorded(bundle, split, tmp_path))
    assert (table.sizes, table.looks) == (1, 4)
    budget = (bundle.costs.macs_after_look[0] + bundle.costs.macs_after_look[2]) / 2
    bundle.curve = solve_curve(table, 9)
    thresholds = solve_within(table, budget, spare=0.0)
    assert thresholds.shape == (4,)
    exits = table.exits(thresholds)
    assert len(set(exits.tolist())) > 1, "images stop at different looks"
    bundle.thresholds = frozen(thresholds.tolist())
    outcome = bundle.predict(pictures(split), batch_size=5)  # undecided images of several batches are pooled
    assert outcome.looks.tolist() == (exits + 1).tolist()
    assert outcome.cost_macs.tolist() == table.cost[exits].tolist()
    assert outcome.cost_macs.mean() <= budget
    for point in bundle.curve:
        again = bundle.predict(pictures(split), thresholds=point["thresholds"])
        assert again.cost_macs.mean() == pytest.approx(point["mean_macs"], rel=1e-9)
    assert all(isinstance(each, float) for each in bundle.exit_rule(budget_macs=budget).thresholds)
    glance, *_, every = bundle.costs.macs_after_look
    for spent in (glance, every):
        assert bundle.predict(pictures(split), budget_macs=spent).cost_macs.tolist() == [spent] * COUNT
    loaded = Bundle.load(bundle.save(tmp_path / "bundle"))
    assert loaded.thresholds == bundle.thresholds
    assert loaded.costs == bundle.costs
    assert loaded.predict(pictures(split)).looks.tolist() == outcome.looks.tolist()


def test_the_loop_takes_the_views_in_order_by_itself(bundle: Bundle, split: MemorySplit) -> None:
    images = torch.randn(3, 3, SIDE, SIDE)
    with torch.inference_mode():
        outcome = look_until_sure(bundle.net, bundle.net.glance(images).scene, ExitRule([2, 2, 2, 0]))
        rule = look_until_sure(bundle.use("plain").net, bundle.net.glance(images).scene, ExitRule([2, 2, 2, 0]))
    assert outcome.candidate.tolist() == rule.candidate.tolist() == [[0, 1, 2]] * 3


def test_a_policy_that_is_a_rule_has_the_same_order(small_bundle: MakeBundle) -> None:
    rule = small_bundle(zoom=True, focus=STEPS, looks=4, view=PLAIN_VIEW, policy={"kind": "centre_corner"})
    assert rule.predict(torch.rand(1, 3, SIDE, SIDE)).candidate.tolist() == [[0, 1, 2]]


def test_temperatures_are_fitted_along_the_sequence(bundle: Bundle, split: MemorySplit) -> None:
    images = torch.stack([image for images, _ in split.batches([range(COUNT)]) for image in images])

    def expected(policy: Policy) -> list[float]:
        with torch.inference_mode():
            logits = look_until_sure(bundle.net, as_scene(images), every_look(4), policy).logits_after
        assert logits is not None
        return [best_temperature(logits[:, look], split.labels) for look in range(4)]

    found = fit_temperatures(bundle.net, split)
    turns = InTurns([OneCandidate(bundle.net.policy, view) for view in (0, 1, 2)])
    assert found == pytest.approx(expected(turns), rel=0.01)
    assert found[1] != pytest.approx(expected(OneCandidate(bundle.net.policy, 2))[1], rel=0.1)


def test_an_evaluation_reports_the_sequence(bundle: Bundle, split: MemorySplit, tmp_path: Path) -> None:
    record = recorded(bundle, split, tmp_path)
    table = look_table(bundle, record)
    bundle.curve = solve_curve(table, 5)
    bundle.thresholds = frozen(thresholds_of_a_run(table, bundle.costs.backbone_macs).tolist())
    bundle.latencies = [measure_latency(bundle, repeats=1, warm_up=0)]
    assert [len(row) for row in bundle.latencies[0].focus_ms] == [1, 1, 1]
    findings = assess(bundle, record, points=5)
    right = [
        float((bundle.predict(pictures(split), looks=looks).answer == split.labels).float().mean())
        for looks in range(1, 5)
    ]
    assert len(set(right)) > 1
    assert findings.accuracy_after_look == pytest.approx(right, abs=1e-6)
    assert findings.macs_after_look == list(bundle.costs.macs_after_look)
    assert findings.fixed_size_curves == {}
    assert not findings.chooses_views
    assert [name for name, _ in look_rows(findings) if name.startswith("threshold")] == ["threshold"]
    assert len(findings.ms_after_look or []) == 4
    assert compare(bundle, split, None).accuracy_per_look == pytest.approx(right, abs=1e-6)
    spent = bundle.latencies[0].ms_after_look
    assert bundle.exit_rule(budget_ms=spent[-1] + 1).thresholds == (1.0, 1.0, 1.0, 0.0)


def test_milliseconds_of_another_device_have_one_number_for_each_look(bundle: Bundle, tmp_path: Path) -> None:
    file = tmp_path / "phone.json"
    file.write_text(json.dumps({"device": "phone", "glance_ms": 1, "focus_ms": [[2], [3], [4]]}))
    assert read_latency_file(file, bundle.settings).ms_of_tree() == (1, 3, 6, 10)
    file.write_text(json.dumps({"device": "phone", "glance_ms": 1, "focus_ms": [[2, 2, 2]] * 3}))
    with pytest.raises(BadSetting, match="focus_ms for 3 focus looks with 1 candidate view each"):
        read_latency_file(file, bundle.settings)


def test_a_record_of_every_sequence_is_read_as_the_one_in_order(
    bundle: Bundle, split: MemorySplit, tmp_path: Path
) -> None:
    """With three views and four looks the sequence 0, 1, 2 is at the nodes 0, 1, 4 + 1 and 13 + 1 * 3 + 2 of 40."""
    record = recorded(bundle, split, tmp_path)
    about = replace(record.about, views=STEPS)
    numbers = np.tile(np.arange(40), (COUNT, 1))
    scores = (numbers / 40).astype(np.float32)
    tree = LookRecord(about, scores, scores, scores, numbers.astype(np.uint16), np.asarray(record.label))
    found = tree.along((0, 1, 2), "coarse to fine")
    assert found.answer[0].tolist() == [0, 1, 5, 18]
    assert look_table(bundle, found).sizes == 1

    folder = next(tmp_path.glob("val-*"))
    (folder / "about.json").write_text(json.dumps({"format": 2, **vars(about)}))
    for name in ("confidence", "entropy", "value", "answer"):
        np.save(folder / f"{name}.npy", getattr(tree, name))
    assert recorded(bundle, split, tmp_path).answer[3].tolist() == [0, 1, 5, 18]
    assert Records(bundle, str(folder), tmp_path).of("val").answer[3].tolist() == [0, 1, 5, 18]


def test_a_bundle_whose_thresholds_chose_the_views_still_loads(bundle: Bundle, tmp_path: Path) -> None:
    """The largest threshold of a look said when to stop. The curve belongs to other views."""
    file = bundle.save(tmp_path / "bundle") / SETTINGS_FILE
    plain = json.loads(file.read_text())
    rows = [[0.7, -1, 0.2], [-1, 0.6, 0.5], [-1, -1, -1], [0, 0, 0]]
    latency = {"device": "cpu", "threads": 1, "batch_size": 1, "glance_ms": 1.0, "focus_ms": [[1.0, 2.0, 3.0]] * 3}
    point = {"thresholds": rows, "mean_macs": 5.0}
    file.write_text(json.dumps({**plain, "thresholds": rows, "curve": [point], "latencies": [latency]}))
    found = Bundle.load(tmp_path / "bundle")
    assert found.thresholds == (0.7, 0.6, -1, 0)
    assert (found.curve, found.latencies) == ([], [])
