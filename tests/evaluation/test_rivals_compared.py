"""The whole verdict: a bundle, its rivals on the same images, thresholds chosen on other images."""

import html
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.splits import MemorySplit
from glancefocus.errors import BadBundle
from glancefocus.evaluation.assess import assess
from glancefocus.evaluation.figures import as_png, rivals_figure
from glancefocus.evaluation.latency import RivalTimes, measure_rival_times
from glancefocus.evaluation.records import record_looks
from glancefocus.evaluation.report import verdict_section
from glancefocus.evaluation.rivals import Weights, judge
from glancefocus.evaluation.tables import (
    BUDGET_COLUMNS,
    budget_rows_words,
    verdict_csv_rows,
    verdict_lines,
    verdict_table,
)
from glancefocus.evaluation.verdict import Size, Verdict, noted_verdict
from glancefocus.exits.curve import Unit
from glancefocus.look import as_batch
from glancefocus.network.macs import count_backbone

MakeBundle = Callable[..., Bundle]
UNITS: tuple[Unit, ...] = ("macs", "ms")


@pytest.fixture(scope="module")
def verdict(small_bundle: MakeBundle, tmp_path_factory: pytest.TempPathFactory) -> Verdict:
    """On 24 images of noise; the backbone is the focus encoder itself, the tuned one the same again."""
    folder = tmp_path_factory.mktemp("run")
    bundle = small_bundle(thresholds=(0.5, 0.5, 0.0))
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (24, 3, 64, 64), dtype=torch.uint8, generator=generator)
    split = MemorySplit(images, torch.arange(24) % 3, bundle.settings.view)
    for name in ("backbone", "rival-48"):
        safetensors.torch.save_file(bundle.net.focus_encoder.backbone.state_dict(), folder / f"{name}.safetensors")
    record = record_looks(bundle, split, folder / "looks", source="noise", name="val")
    weights = Weights(folder / "backbone.safetensors", {(48, 48): folder / "rival-48.safetensors"})
    return judge(bundle, record, split, weights, folder / "looks", measure_times=made_up_times)


def made_up_times(bundle: Bundle, sizes: Sequence[Size]) -> RivalTimes:
    """1 ms for each look, 4 ms for the backbone on the whole image, and less for smaller images."""
    return RivalTimes((1.0, 2.0, 3.0), {size: 4.0 * size[0] * size[1] / 64**2 for size in sizes}, "a device")


def test_all_rivals_are_there_with_accuracy_cost_and_time(verdict: Verdict) -> None:
    points = verdict.points
    kinds = [point.kind for point in points]
    assert kinds[0] == "backbone"
    assert kinds[-1] == "glancefocus"
    assert kinds.count("resized") == 4
    assert [p.name for p in points if p.kind == "tuned"] == [
        "backbone at 48 px (tuned)",
        "backbone at 32 px (the glance encoder)",
    ]
    for point in points:
        assert 0 <= point.accuracy_low <= point.accuracy <= point.accuracy_high <= 1
        assert point.mean_ms is not None
        assert point.mean_ms > 0
    untuned, tuned = ([p for p in points if p.kind == kind and p.px == ((48, 48),)] for kind in ("resized", "tuned"))
    assert untuned[0].accuracy == tuned[0].accuracy  # the weights are the same
    assert untuned[0].mean_macs == tuned[0].mean_macs
    assert verdict.outcome in ("worth it", "not worth it", "tie", "undecided")
    assert verdict.images == 24


def test_a_verdict_is_read_back_from_a_bundles_notes(verdict: Verdict) -> None:
    plain = verdict.to_plain()
    assert noted_verdict({"verdict": json.loads(json.dumps(plain))}) == verdict
    old = {
        **plain,
        "outcome": "cannot be told",
        "cascade_curve": [],
    }  # as bundles of version 0.1 have it, without absent times
    del old["points"][0]["mean_ms"], old["budgets"]
    read = noted_verdict({"verdict": old})
    assert read is not None
    assert read.outcome == "undecided"
    assert read.points[0].mean_ms is None
    assert read.budgets == ()
    assert noted_verdict({}) is None
    with pytest.raises(BadBundle, match="notes.verdict.outcome must be one of"):
        noted_verdict({"verdict": {**plain, "outcome": "splendid"}})


def test_it_is_printed_written_and_drawn(verdict: Verdict) -> None:
    table = verdict_table(verdict)
    assert table is not None
    assert table.row_count == len(verdict.points)
    assert verdict_lines(verdict)[-1] == verdict.sentence
    assert verdict.sentence in html.unescape("".join(verdict_section(verdict)))
    lines = verdict_csv_rows(verdict)
    assert {"kind", "name", "px", "accuracy", "mean_macs", "mean_ms"} <= lines[0].keys()
    assert {row.unit for row in verdict.budgets} == {"macs", "ms"}
    for unit in UNITS:
        assert as_png(rivals_figure(verdict, unit))[:4] == b"\x89PNG"
        assert len(budget_rows_words(verdict, unit)) == 10
        assert all(len(cells) == len(BUDGET_COLUMNS) for _, cells in budget_rows_words(verdict, unit))
    page = "".join(verdict_section(verdict))
    assert "Average budgets of multiply-adds" in page
    assert "Average budgets of milliseconds" in page


def test_budgets_lie_between_the_glance_and_the_whole_image(verdict: Verdict, small_bundle: MakeBundle) -> None:
    costs = small_bundle().costs
    rows = [row for row in verdict.budgets if row.unit == "macs"]
    assert rows[0].budget == pytest.approx(1.1 * costs.macs_after_look[0], rel=1e-12)
    assert rows[-1].budget == pytest.approx(0.8 * costs.backbone_macs, rel=1e-12)
    for row in rows:
        assert row.rival_cost <= max(row.budget, row.cost) * (1 + 1e-12)
        assert row.difference_low <= row.difference <= row.difference_high
        assert row.difference == pytest.approx(row.accuracy - row.rival_accuracy, abs=1e-12)


OWN_NORMS = {"own_norms": True, "whole_encoder": True, "classifier": "summed"}


@pytest.mark.parametrize(("shared", "more"), [(False, {}), (True, {}), (True, OWN_NORMS)])
def test_encoders_of_the_network_that_see_the_whole_image_are_rivals(
    small_bundle: MakeBundle, tmp_path: Path, shared: bool, more: dict[str, Any]
) -> None:
    bundle = small_bundle(focus=("32", "whole@48"), shared_encoder=shared, **more)
    if bundle.net.whole_encoder is not None:
        with torch.no_grad():
            for norm in bundle.net.whole_encoder.norms:
                norm.bias.uniform_(-1, 1, generator=torch.Generator().manual_seed(1))
    images = torch.randint(0, 256, (6, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(6) % 3
    split = MemorySplit(images, labels, bundle.settings.view)
    record = record_looks(bundle, split, tmp_path / "looks", source="noise", name="val")
    file = tmp_path / "backbone.safetensors"
    safetensors.torch.save_file(bundle.net.focus_encoder.backbone.state_dict(), file)
    given = judge(bundle, record, split, Weights(file, {}), tmp_path / "looks")
    own = {point.name: point for point in given.points if point.kind == "tuned"}
    glance, focus = (
        ("the shared encoder", "the shared encoder") if shared else ("the glance encoder", "the focus encoder")
    )
    assert list(own) == [f"backbone at 32 px ({glance})", f"backbone at 48 px ({focus})"]
    with torch.inference_mode():
        look = bundle.net.glance(as_batch(images, bundle.settings.view))
        look_at_all = bundle.net.focus(look, bundle.net.policy.aim(look, 1))
        answers = [bundle.net.own_answer(each).argmax(dim=1) for each in (look, look_at_all)]
    assert [point.accuracy for point in own.values()] == [
        pytest.approx(float((answer == labels).float().mean()), abs=1e-6) for answer in answers
    ]
    assert [point.mean_macs for point in own.values()] == list(
        count_backbone(bundle.settings, [(32, 32), (48, 48)]).values()
    )


def test_without_a_backbone_the_reason_for_no_verdict_is_given(small_bundle: MakeBundle, tmp_path: Path) -> None:
    bundle = small_bundle()
    images = torch.zeros(4, 3, 64, 64, dtype=torch.uint8)
    split = MemorySplit(images, torch.tensor([0, 1, 2, 0]), bundle.settings.view)
    record = record_looks(bundle, split, tmp_path / "looks", source="grey", name="val")
    given = judge(bundle, record, split, Weights(tmp_path / "backbone.safetensors", {}), tmp_path / "looks")
    assert given.outcome == "no rivals"
    assert str(tmp_path / "backbone.safetensors") in given.sentence
    assert verdict_table(given) is None
    assert "No verdict" in "".join(verdict_section(given))


def test_clips_are_compared_like_images(small_bundle: MakeBundle, tmp_path: Path) -> None:
    bundle = small_bundle(frames=2)
    clips = torch.randint(0, 256, (6, 2, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    split = MemorySplit(clips, torch.arange(6) % 3, bundle.settings.view)
    record = record_looks(bundle, split, tmp_path / "looks", source="noise", name="val")
    file = tmp_path / "backbone.safetensors"
    safetensors.torch.save_file(bundle.net.focus_encoder.backbone.state_dict(), file)
    given = judge(bundle, record, split, Weights(file, {}), tmp_path / "looks", measure_times=measure_rival_times)
    assert [point.px for point in given.points][:2] == [((64, 64),), ((56, 56),)]
    assert given.points[0].mean_macs == bundle.costs.backbone_macs  # of all frames
    assert given.points[-1].mean_ms is not None
    assert given.points[-1].mean_ms > 0


def test_rivals_are_timed_in_the_runtime_of_the_bundle(small_bundle: MakeBundle) -> None:
    bundle = small_bundle()
    sizes = [(64, 64), (32, 48)]
    assert measure_rival_times(bundle, sizes, rounds=1).device.endswith("batch 1, eager")
    bundle.use("onnx")
    times = measure_rival_times(bundle, sizes, rounds=1)
    assert times.device.endswith("batch 1, onnx")
    assert set(times.resized) == set(sizes)
    assert all(ms > 0 for ms in (*times.ours, *times.resized.values()))
    assert bundle.runtime == "onnx"


@pytest.mark.parametrize("chose", [True, False])
def test_the_verdict_speaks_of_the_same_answers_as_the_report(
    chose: bool, small_bundle: MakeBundle, tmp_path: Path
) -> None:
    bundle = small_bundle(focus=("32", "whole@48"), thresholds=((0.6, 0.4), (0.5, 0.3), (0.0, 0.0)))
    images = torch.randint(0, 256, (24, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    split = MemorySplit(images, torch.arange(24) % 3, bundle.settings.view)
    record = record_looks(bundle, split, tmp_path / "looks", source="noise", name="val")
    file = tmp_path / "backbone.safetensors"
    safetensors.torch.save_file(bundle.net.focus_encoder.backbone.state_dict(), file)
    verdict = judge(bundle, record, split, Weights(file, {}), tmp_path / "looks", chose=chose)
    chosen = assess(bundle, record, chose=chose, points=3).chosen
    assert verdict.points[-1].kind == "glancefocus"
    assert verdict.points[-1].accuracy == pytest.approx(chosen["accuracy"])
    assert verdict.points[-1].mean_macs == pytest.approx(chosen["mean_macs"])
