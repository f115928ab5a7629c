"""The command on clips: train, evaluate, budget and predict take them like images."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.clips import read_clip

Run = Callable[..., tuple[int, str, str]]
MakeVideo = Callable[..., Path]


@pytest.fixture
def gf(gf_in_full: Run) -> Run:
    return gf_in_full


@pytest.fixture(scope="module")
def bundle_folder(small_bundle: Callable[..., Bundle], tmp_path_factory: pytest.TempPathFactory) -> Path:
    bundle = small_bundle(frames=4, classifier="cascaded", thresholds=(0.35, 0.35, 0.0), view={"fit": "crop"})
    return bundle.save(tmp_path_factory.mktemp("cli") / "bundle")


def frames_of(video: Path, folder: Path) -> Path:
    """Every frame of a video as a picture."""
    folder.mkdir(parents=True)
    for number, picture in enumerate(read_clip(video, 6, lambda p: p).frames):
        picture.save(folder / f"{number:05d}.png")
    return folder


def answers(gf: Run, *words: object) -> tuple[int, list[dict[str, Any]], str]:
    code, out, err = gf("predict", *words, "--json")
    return code, json.loads(out), err


def test_a_clip_and_the_folder_of_its_frames_get_the_same_answer(
    gf: Run, bundle_folder: Path, make_video: MakeVideo, tmp_path: Path
) -> None:
    video = make_video(tmp_path / "clip.mp4", frames=6)
    folder = frames_of(video, tmp_path / "frames")
    code, (one, two), err = answers(gf, bundle_folder, video, folder)
    assert code == 0
    assert err.startswith("gf: 2 clips in ")
    assert {**one, "file": ""} == {**two, "file": ""}


def test_of_fifty_clips_five_of_them_broken_forty_five_are_answered(
    gf: Run, bundle_folder: Path, make_video: MakeVideo, tmp_path: Path
) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    kinds = [("mp4", "libx264"), ("webm", "libvpx-vp9"), ("avi", "mpeg4"), ("mkv", "libx264")]
    for number in range(37):
        suffix, codec = kinds[number % 4]
        make_video(folder / f"{number:02d}.{suffix}", codec=codec, frames=5, size=(64 + 2 * (number % 3), 48))
    for number in range(37, 45):
        frames_of(folder / "00.mp4", folder / f"{number:02d}")
    broken = {"a.mp4": b"", "b.webm": b"text", "c.avi": bytes(5000), "d.mkv": (folder / "03.mkv").read_bytes()[:100]}
    for name, content in broken.items():
        (folder / name).write_bytes(content)
    (folder / "e").mkdir()
    (folder / "e" / "1.png").write_bytes(b"no picture")
    code, found, err = answers(gf, bundle_folder, folder, "--batch-size", 8)
    assert code == 2
    assert len(found) == 50
    assert [Path(a["file"]).name for a in found if "error" in a] == [*broken, "e"]
    assert len([a for a in found if a.get("label") in ("cat", "dog", "eel")]) == 45
    assert err.count("gf: ") == 6  # and the summary
    assert "gf: 45 clips in " in err


def test_fewer_frames_than_the_network_looks_at_are_reported(
    gf: Run, bundle_folder: Path, make_video: MakeVideo, tmp_path: Path
) -> None:
    short = make_video(tmp_path / "short.mp4", frames=2)
    code, (answer,), err = answers(gf, bundle_folder, short)
    assert code == 0
    assert answer["notes"] == [f"{short} has 2 frames, fewer than the 4 that the network needs; the last is repeated."]
    assert err == f"gf: note: {answer['notes'][0]}\n"


def test_draw_writes_a_strip_of_four_frames(
    gf: Run, bundle_folder: Path, make_video: MakeVideo, tmp_path: Path
) -> None:
    video = make_video(tmp_path / "clip.mp4", frames=8, size=(64, 48))
    code, _, _ = gf("predict", bundle_folder, video, "--draw", tmp_path / "drawn", "--looks", 3)
    assert code == 0
    (file,) = (tmp_path / "drawn").iterdir()
    strip = Image.open(file).convert("RGB")
    # Frames of 64x48 are enlarged seven times, to 448x336; between four of them lie three gaps of 7 px.
    assert file.name == "00000-clip.png"
    assert strip.width == 4 * 448 + 3 * 7
    assert strip.height > 336
    # Frames 1, 3, 5 and 7 of a clip that gets brighter by 8 each; the lower left corner is beside all boxes but the glance's.
    greys = [float(np.asarray(strip)[320:325, 455 * column + 10 : 455 * column + 20].mean()) for column in range(4)]
    assert greys == sorted(greys)
    assert greys[3] - greys[0] > 30


def test_a_clip_comes_in_on_standard_input(
    gf: Run, bundle_folder: Path, make_video: MakeVideo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io
    import sys

    content = make_video(tmp_path / "clip.mp4", frames=6).read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    code, (answer,), _ = answers(gf, bundle_folder, "-")
    assert code == 0
    assert answer["file"] == "-"


def test_evaluate_and_budget_take_clips(gf: Run, bundle_folder: Path, make_video: MakeVideo, tmp_path: Path) -> None:
    data = tmp_path / "data"
    for name in ("cat", "dog", "eel"):
        (data / name).mkdir(parents=True)
        for number in range(3):
            make_video(data / name / f"{number}.mp4", frames=5 + number)
    code, out, _ = gf("evaluate", bundle_folder, data, "--no-latency", "--json")
    assert code == 0
    assert json.loads(out)
    code, out, _ = gf("budget", bundle_folder, data, "--macs", 1e12, "--json", "--no-store")
    assert code == 0
    assert json.loads(out)["every_look_fits"] is True


def test_models_lists_the_networks_of_clips_beside_what_is_published() -> None:
    from glancefocus.network.presets import PRESETS, count_preset

    row = count_preset(PRESETS["gf-tsm-resnet50-96-8f"])
    assert (row["frames"], row["published_backbone_macs"]) == (8, 33e9)
    assert row["backbone_macs"] == pytest.approx(32.7e9, rel=0.002)
    assert row["encoder_macs"] == pytest.approx(8 * 750.7e6, rel=1e-4)
    names = [name for name in PRESETS if "tsm" in name]
    assert names == [
        *("gf-tsm-resnet50-96-8f", "gf-tsm-resnet50-96-12f", "gf-tsm-resnet50-96-16f"),
        *("gf-tsm-resnet50-80-jester", "gf-tsm-resnet50-96-jester", "gf-tsm-resnet50-128-jester"),
        "gf-tsm-mini-40",
    ]
