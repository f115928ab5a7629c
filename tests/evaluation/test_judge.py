"""The whole verdict: a bundle, its rivals on the same images, thresholds chosen on other images."""

import html
import json
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import safetensors.torch
import torch

from glancefocus.bench.latency import measure_rival_times
from glancefocus.bundle.bundle import Bundle
from glancefocus.data.splits import MemorySplit
from glancefocus.errors import BadBundle
from glancefocus.evaluation.figures import as_png, rivals_figure
from glancefocus.evaluation.judge import Member, Weights, cascades_within, judge
from glancefocus.evaluation.records import record_looks
from glancefocus.evaluation.report import verdict_section
from glancefocus.evaluation.tables import verdict_csv_rows, verdict_lines, verdict_table
from glancefocus.evaluation.verdict import Verdict, noted_verdict

MakeBundle = Callable[..., Bundle]


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
    return judge(bundle, record, split, weights, folder / "looks", measure_times=measure_rival_times)


def test_all_rivals_are_there_with_accuracy_cost_and_time(verdict: Verdict) -> None:
    points = verdict.points
    kinds = [point.kind for point in points]
    assert kinds[0] == "backbone"
    assert kinds[-1] == "glancefocus"
    assert kinds.count("resized") == 4
    assert kinds.count("tuned") == 1
    for point in points:
        assert 0 <= point.accuracy_low <= point.accuracy <= point.accuracy_high <= 1
        assert point.mean_ms is not None
        assert point.mean_ms > 0
    untuned, tuned = ([p for p in points if p.kind == kind and p.px == ((48, 48),)] for kind in ("resized", "tuned"))
    assert untuned[0].accuracy == tuned[0].accuracy  # the weights are the same
    assert untuned[0].mean_macs == tuned[0].mean_macs
    assert verdict.outcome in ("worth it", "not worth it", "undecided")
    assert verdict.images == 24


def test_a_verdict_is_read_back_from_a_bundles_notes(verdict: Verdict) -> None:
    plain = verdict.to_plain()
    assert noted_verdict({"verdict": json.loads(json.dumps(plain))}) == verdict
    old = {**plain, "outcome": "cannot be told"}  # as bundles of version 0.1 have it, without absent times
    del old["points"][0]["mean_ms"]
    read = noted_verdict({"verdict": old})
    assert read is not None
    assert read.outcome == "undecided"
    assert read.points[0].mean_ms is None
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
    assert as_png(rivals_figure(verdict))[:4] == b"\x89PNG"


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


def member(side: int, right: float, sure: float, macs: float, kind: Literal["resized", "tuned"] = "resized") -> Member:
    """A backbone that is right on this share of 100 images, and sure of exactly those that it is right on, but for some."""
    correct = np.arange(100) < 100 * right
    confidence = np.where(np.arange(100) < 100 * sure, 0.9, 0.1).astype(np.float32)
    return Member(kind, (side, side), correct, confidence + 0.001 * np.arange(100, dtype=np.float32), macs, None)


def test_a_cascade_finds_the_images_that_need_the_larger_size() -> None:
    # 96 px: right and sure on 80 of 100; 224 px: right on all. 20 images go on: 10 + 20 % of 100 = 30.
    members = [member(224, 1.0, 1.0, 100.0), member(96, 0.8, 0.8, 10.0)]
    ((answers, steps),) = cascades_within(members, 31.0, 5, 0)
    assert [m.size for m in steps] == [(96, 96), (224, 224)]
    assert answers.accuracy >= 0.97  # thresholds are chosen on four fifths of the images
    assert answers.mean_macs == pytest.approx(30.0, abs=1.5)
    assert answers.name == "cascade of the backbone at 96 px and 224 px"
    assert cascades_within(members, 9.0, 5, 0) == []  # not even the first size fits


def test_tuned_sizes_take_part_in_cascades() -> None:
    members = [
        member(224, 1.0, 1.0, 100.0),
        member(96, 0.4, 0.4, 10.0),
        member(96, 0.9, 0.9, 10.0, "tuned"),
    ]
    found = {answers.name: answers.accuracy for answers, _ in cascades_within(members, 21.0, 5, 0)}
    tuned = found["cascade of the backbone at 96 px (tuned) and 224 px"]
    assert tuned > found["cascade of the backbone at 96 px and 224 px"] + 0.2
