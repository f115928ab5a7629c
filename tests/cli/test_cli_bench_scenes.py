"""`gf bench` on pictures of which only regions are read: glancefocus is measured alone, and reading counts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.scene_splits import OpenedAnew, drawn_scenes, reads_regions
from glancefocus.data.signs import CLASSES
from glancefocus.data.sources import DataSettings
from glancefocus.data.wide_signs import WideSignsSettings
from glancefocus.evaluation.latency import SHARES
from glancefocus.network.macs import count_costs
from glancefocus.region import Region
from glancefocus.settings import ViewSettings, whole
from glancefocus.values import from_plain, to_plain

Run = Callable[..., Any]
SIDE = 1024
VIEW = {"fit": "whole", "height_px": SIDE, "width_px": SIDE}
QUICK = ("--runtime", "eager", "--batch", 10, "--threads", 1, "--rounds", 1)
NO_BACKBONE = ("backbone_ms", "backbone_ms_low", "mac_ratio", "time_ratio", "quotient", "backbone_per_second")


@pytest.fixture
def drawn(small_net: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A zooming bundle with six test scenes of 1,024 px, which are drawn region by region here."""
    monkeypatch.setattr("glancefocus.data.worlds.LARGE_PIXELS", SIDE * SIDE - 1)
    monkeypatch.setattr("glancefocus.data.images.LARGE_PIXELS", SIDE * SIDE - 1)
    plain = {
        "source": "signs",
        "workers": 0,
        "scenes": [5, 5, 6],
        "signs": {"height": SIDE, "width": SIDE},
        "augment": {"shift_px": 0},
    }
    net = small_net(classes=len(CLASSES), focus=("0.25@32", "32"), zoom=True, view=VIEW)
    notes = {"data": "signs", "data_settings": to_plain(from_plain(DataSettings, plain))}
    bundle = Bundle(net, tuple(CLASSES), count_costs(net.settings), thresholds=(2.0, 2.0, 0.0), notes=notes)
    return bundle.save(tmp_path / "bundle")


def test_drawn_scenes_are_measured_without_a_backbone(drawn: Path, gf: Run) -> None:
    (row,) = gf("bench", drawn, "signs", *QUICK, "--json")
    assert [row[name] for name in NO_BACKBONE] == [None] * len(NO_BACKBONE)
    assert row["glancefocus_ms"] > 0
    assert row["exits"] == [0, 0, 20], "no confidence is above the thresholds"
    assert 0 <= row["accuracy"] <= 1
    assert tuple(row["shares"]) == SHARES
    assert row["shares"]["crop"] > 0
    printed = gf("bench", drawn, "signs", *QUICK)
    assert "milliseconds per image" in printed
    assert "against its plain backbone" not in printed
    assert "There is no comparison with a backbone" in printed
    assert "--" in printed


def test_what_needs_whole_pictures_is_refused(drawn: Path, gf: Run, tmp_path: Path) -> None:
    needless = gf("bench", drawn, "signs", *QUICK, "--backbone", tmp_path / "b.safetensors", code=2)
    assert "Leave --backbone out: glancefocus is then measured alone" in needless
    whole = gf("bench", drawn, "signs", "--whole-split", code=2)
    assert "only regions are read, and a backbone would have to see them whole. Leave --whole-split out." in whole
    noise = gf("bench", drawn, *QUICK, "--exits", "1,0,0", code=2)
    assert "noise of that size would be held in memory whole. Name the data" in noise


def test_all_splits_of_drawn_scenes_are_measured_together(drawn: Path, gf: Run) -> None:
    (row,) = gf("bench", drawn, "signs", "--split", "all", *QUICK, "--json")
    assert sum(row["exits"]) == 20
    assert row["backbone_ms"] is None


def test_large_files_are_measured_whatever_their_sizes(
    small_bundle: Callable[..., Bundle], gf: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("glancefocus.data.large.LARGE_PIXELS", 10_000)
    rng = np.random.default_rng(0)
    for number in range(4):
        file = tmp_path / "data" / ("cat", "dog")[number % 2] / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (300, 400 + 10 * number, 3), dtype=np.uint8)).save(file)
    small_bundle(view={"fit": "whole"}, thresholds=(0.0, 0.0, 0.0)).save(tmp_path / "bundle")
    (row,) = gf("bench", tmp_path / "bundle", tmp_path / "data", *QUICK, "--json")
    assert row["exits"] == [20, 0, 0]
    assert row["backbone_ms"] is None


def test_pictures_are_opened_anew_for_every_scene() -> None:
    split = drawn_scenes("val", 4, [WideSignsSettings(height=SIDE, width=SIDE)], from_plain(ViewSettings, VIEW), seed=0)
    glance = Region(whole(32))
    assert reads_regions(split)
    images = OpenedAnew(split, (2, 0, 1), torch.device("cpu")).part(1, 3)
    assert len(images) == 2
    first = images.scene()
    first.view(glance)
    assert [len(image.glances) for image in first.images] == [1, 1]  # type: ignore[union-attr]
    second = images.scene()
    assert [image.glances for image in second.images] == [{}, {}]  # type: ignore[union-attr]
    assert torch.equal(second.view(glance), first.view(glance))
