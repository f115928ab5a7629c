"""The arithmetic of benchmarks/serving.py and serving_checks.py, on numbers worked out by hand, and the plain backbone."""

import asyncio
import importlib
import json
import math
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from glancefocus.bundle.bundle import Bundle
from glancefocus.bundle.predicting import scene_of
from glancefocus.evaluation.rivals import own_answers
from glancefocus.training.checkpoint import save_weights

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def program(name: str, fixture: str | None = None) -> Any:
    """A fixture: the module of one benchmark."""

    @pytest.fixture(name=fixture or name)
    def module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
        monkeypatch.syspath_prepend(str(BENCHMARKS))
        return importlib.import_module(name)

    return module


comparison_module = program("serving", "comparison")
serving_load_module = program("serving_load")
serving_checks_module = program("serving_checks")
serving_overload_module = program("serving_overload")
plain_backbone_module = program("plain_backbone")


@pytest.fixture
def pictures(tmp_path: Path, png: Callable[..., bytes], small_bundle: Callable[..., Bundle]) -> list[Path]:
    """Twelve pictures, in the folders of the classes that a small bundle gives them after all looks."""
    bundle, files = small_bundle(), []
    for seed in range(12):
        content = png(seed)
        (label,) = bundle.predict(content, looks=3).label
        file = tmp_path / "pictures" / label / f"{seed}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        files.append(file)
    return files


def test_requests_come_at_the_rate_of_each_step(serving_load: types.ModuleType) -> None:
    times = serving_load.profile([(100, 10), (1000, 10)], seed=0)
    assert times == sorted(times)
    assert times == serving_load.profile([(100, 10), (1000, 10)], seed=0)
    slow = sum(time < 10 for time in times)
    assert 840 < slow < 1160  # 1000, with five standard deviations
    assert 9500 < len(times) - slow < 10500
    assert times[-1] < 20


def test_a_refused_request_counts_as_late(serving_load: types.ModuleType) -> None:
    sample = serving_load.Sample
    samples = [
        *(sample(0.0, 10.0, 200, right=True), sample(0.5, 20.0, 200), sample(1.0, 30.0, 200, right=True)),
        *(sample(1.5, 1.0, 503), sample(1.6, 5.0, serving_load.CUT_OFF)),
    ]
    assert serving_load.summary(samples, seconds=2.0, limit_ms=25.0) == {
        "offered": 2.5,
        "goodput": 1.0,
        "median_ms": 20.0,
        "p99_ms": math.inf,
        "refused": 1,
        "failed": 1,
        "accuracy": 0.6667,
    }


def test_servers_are_compared_at_their_highest_goodput_within_the_limit(comparison: types.ModuleType) -> None:
    def row(server: str, offered: float, p99_ms: float, median_ms: float) -> dict[str, Any]:
        more = {"goodput": offered, "p99_ms": p99_ms, "median_ms": median_ms}
        return {"server": server, "offered": offered, **more, "refused": 0, "failed": 0, "accuracy": 0.9}

    rows = [row("look", 10.0, 50.0, 30.0), row("plain", 10.0, 60.0, 60.0)]
    rows += [row("look", 20.0, 90.0, 44.0), row("plain", 20.0, 110.0, 40.0)]
    text = comparison.report(rows, 100.0)
    assert "plain: 10 answers a second within 100 ms." in text
    assert "look has 2.00 times the goodput of plain." in text
    assert "-50 % at 10 a second; +10 % at 20 a second" in text
    assert "plain: 99 of 100 requests were never within 40 ms." in comparison.report(rows, 40.0)


def test_a_server_has_recovered_after_the_last_late_request(
    serving_overload: types.ModuleType, serving_load: types.ModuleType
) -> None:
    sample = serving_load.Sample
    late = [sample(6.0, 900.0, 200), sample(16.0, 900.0, 200), sample(18.0, 1.0, 503), sample(20.0, 90.0, 200)]
    run = serving_overload.Overload(late, began=5.0, ended=15.0)
    assert [each.sent for each in run.during()] == [6.0]
    queued = serving_overload.Overload([sample(14.5, 900.0, 200)], began=5.0, ended=15.0)
    assert queued.answered_meanwhile() == 0  # its answer came afterwards
    assert run.recovered_after(100.0) == 3.0
    assert run.answered_meanwhile() == 1
    assert serving_overload.Overload(late[:1], 5.0, 15.0).recovered_after(100.0) == 0.0


def test_requests_that_were_sent_well_before_the_signal_must_be_answered(
    serving_checks: types.ModuleType, serving_load: types.ModuleType
) -> None:
    sample, cut_off = serving_load.Sample, serving_load.CUT_OFF
    samples = [
        sample(1.0, 500.0, 200),
        sample(9.0, 3000.0, 200),  # waits at the time of the signal
        sample(9.3, 200.0, cut_off),  # lost
        sample(9.8, 200.0, cut_off),  # the server may not have accepted it
        sample(9.0, 1500.0, cut_off, late_ms=900.0),  # the same: it was sent late
        sample(11.0, 1.0, serving_load.NO_CONNECTION),
    ]
    assert serving_checks.outcome_of_stop(samples, signalled=10.0) == (3, 1, 1)


ANSWER = {
    "file": "a.png",
    "label": "cat",
    "confidence": 0.5,
    "looks": 2,
    "threshold": None,
    "where": [[0.25, 0.75]],
    "boxes": [[0, 0, 9, 9]],
    "top": [{"label": "cat", "confidence": 0.5}],
}


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"file": "b.png", "confidence": 0.50005, "budget_macs": 1.0}, []),
        ({"confidence": 0.5002}, ["confidence"]),
        ({"label": "dog", "looks": 3}, ["label", "looks"]),
        ({"boxes": [[0, 0, 9, 8]]}, ["boxes"]),
        ({"where": [[0.25, 0.7502]]}, ["where"]),
        ({"where": []}, ["where"]),
        ({"threshold": 0.5}, ["threshold"]),
        ({"top": [{"label": "dog", "confidence": 0.5}]}, ["top"]),
        ({"top": [{"label": "cat", "confidence": 0.6}]}, ["top"]),
        ({"top": []}, ["top"]),
    ],
)
def test_answers_differ_in_every_field_but_for_rounding(
    serving_checks: types.ModuleType, changes: dict[str, Any], fields: list[str]
) -> None:
    largest = dict.fromkeys(serving_checks.NUMBERS, 0.0)
    assert serving_checks.different({**ANSWER, **changes}, ANSWER, largest) == fields
    assert largest["confidence"] == pytest.approx(abs(changes.get("confidence", 0.5) - 0.5))


def test_memory_is_compared_from_the_second_tenth_to_the_last(serving_checks: types.ModuleType) -> None:
    assert serving_checks.beginning_and_end([1, 1, 4, 6, *[9] * 14, 7, 8]) == (5, 7.5)


def test_the_plain_backbone_as_a_bundle_answers_with_its_own_head(
    plain_backbone: types.ModuleType, small_bundle: Callable[..., Bundle], pictures: list[Path], tmp_path: Path
) -> None:
    bundle, weights = small_bundle(), tmp_path / "backbone.safetensors"
    other = small_bundle(seed=5).net.focus_encoder
    save_weights(weights, other.backbone)
    for px in (64, 32):
        plain = plain_backbone.plain_bundle(bundle, weights, px)
        loaded = Bundle.load(plain.save(tmp_path / f"plain-{px}"))
        outcome = loaded.predict(pictures)
        with torch.inference_mode():
            expected = own_answers(other, scene_of(bundle, [bundle.view(each) for each in pictures]).whole, (px, px))
        torch.testing.assert_close(outcome.logits.softmax(dim=1), expected, rtol=0, atol=1e-5)
        assert outcome.looks.tolist() == [1] * len(pictures)
    costs = plain_backbone.plain_bundle(bundle, weights, 64).costs.macs_after_look
    assert list(costs) == pytest.approx([bundle.costs.backbone_macs], rel=1e-4)


def test_the_cheapest_plain_backbone_that_is_as_accurate_is_the_rival(
    plain_backbone: types.ModuleType, small_bundle: Callable[..., Bundle], pictures: list[Path], tmp_path: Path
) -> None:
    bundle, weights = small_bundle(), tmp_path / "backbone.safetensors"
    save_weights(weights, small_bundle(seed=5).net.focus_encoder.backbone)
    known = {
        px: plain_backbone.accuracy(plain_backbone.plain_bundle(bundle, file, px), pictures)
        for px, file in plain_backbone.sizes(bundle, weights)
    }
    assert list(known) == sorted(known)
    for target in sorted(set(known.values())):
        found = plain_backbone.as_accurate(bundle, weights, pictures, target)
        assert found.px == next(px for px, share in known.items() if share >= target)
        assert (found.accuracy, found.tuned) == (known[found.px], False)
    assert plain_backbone.as_accurate(bundle, weights, pictures, 1.1).accuracy == max(known.values())


def test_weights_that_were_trained_at_a_size_are_tried_there_first(
    plain_backbone: types.ModuleType, small_bundle: Callable[..., Bundle], tmp_path: Path
) -> None:
    bundle, weights, tuned = small_bundle(), tmp_path / "backbone.safetensors", tmp_path / "rival-48.safetensors"
    for file in (weights, tuned):
        save_weights(file, bundle.net.focus_encoder.backbone)
    assert [file for px, file in plain_backbone.sizes(bundle, weights) if px == 48] == [tuned, weights]


def test_a_real_server_is_loaded_and_its_answers_compared(
    serving: Callable[..., Any],
    serving_load: types.ModuleType,
    serving_checks: types.ModuleType,
    curved_bundle: Bundle,
    pictures: list[Path],
    limits: Callable[..., Any],
) -> None:
    with serving({"pets": curved_bundle}, limits=limits(waiting=500, requests=500)) as running:
        times = [0.0, 0.01, 0.02, 0.5]
        samples = asyncio.run(serving_load.offer(running.url, pictures, times, options={"looks": "3"}))
        kinds = serving_checks.option_sets(curved_bundle)
        asked = asyncio.run(serving_load.keep_busy(running.url, pictures, count=30, concurrency=8, options=kinds))
    assert [sample.sent for sample in samples] == times
    assert all(sample.status == 200 and sample.right for sample in samples)  # the folders are named so
    assert all(0 < sample.server_ms <= sample.latency_ms for sample in samples)
    known = serving_checks.offline(curved_bundle, pictures, kinds)
    assert len(asked) == 30
    assert len({json.dumps(each.options) for each in asked}) > 2
    for each in asked:
        assert each.status == 200
        largest = dict.fromkeys(serving_checks.NUMBERS, 0.0)
        assert serving_checks.different(each.answer, known[each.file, json.dumps(each.options)], largest) == []


def test_a_server_that_is_not_there_is_no_connection(serving_load: types.ModuleType, pictures: list[Path]) -> None:
    url = f"http://127.0.0.1:{serving_load.free_port()}"
    (sample,) = asyncio.run(serving_load.offer(url, pictures, [0.0]))
    assert (sample.status, sample.right) == (serving_load.NO_CONNECTION, False)
