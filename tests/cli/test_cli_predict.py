"""`gf predict` on folders and cameras: answers as they come, in the form asked for, and a summary at the end."""

import csv
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from glancefocus.bundle import predicting
from glancefocus.bundle.bundle import Bundle
from glancefocus.cli.predict_output import Summary
from glancefocus.data import frame_streams
from glancefocus.export.predict import FIELDS, FRAME_FIELDS

Run = Callable[..., tuple[int, str, str]]
MakeVideo = Callable[..., Path]


@pytest.fixture
def gf(gf_in_full: Run) -> Run:
    return gf_in_full


@pytest.fixture(scope="module")
def bundle_folder(small_bundle: Callable[..., Bundle], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_bundle(view={"fit": "whole"}).save(tmp_path_factory.mktemp("predict") / "bundle")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Five pictures, of which the fourth cannot be read and the fifth is smaller than a patch."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number, size in enumerate([(64, 64), (90, 64), (64, 70), None, (20, 24)]):
        file = folder / f"{number}.png"
        if size is None:
            file.write_bytes(b"not a picture")
        else:
            pixels = np.random.default_rng(number).integers(0, 256, (*size, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(file)
    return folder


def test_a_summary_adds_up_the_answers() -> None:
    summary = Summary(backbone_macs=1_000_000)
    for looks, macs, sure, notes in ((1, 100_000, True, []), (3, 500_000, False, ["upscaled from 2x2 px"])):
        summary.add({"looks": looks, "cost_macs": macs, "sure": sure, "notes": notes})
    summary.add({"error": "cannot be read"})
    summary.started = time.perf_counter() - 4
    assert summary.words() == (
        "2 pictures in 4.0 s (0.5 a second), on average 2.00 looks and 0.3M multiply-adds, 30 % of the backbone's; "
        "1 stopped above their threshold; 1 upscaled to hold a patch; 1 could not be read."
    )
    one = Summary(backbone_macs=1_000_000)
    one.add({"looks": 1, "cost_macs": 100_000, "sure": True, "notes": []})
    assert one.words().startswith("1 picture in ")


def test_a_folder_ends_with_a_summary_on_standard_error(gf: Run, bundle_folder: Path, pictures: Path) -> None:
    code, out, err = gf("predict", bundle_folder, pictures)
    assert code == 2
    assert "upscaled from 24x20 px" in " ".join(out.split())
    assert err.splitlines()[0].startswith(f"gf: {pictures / '3.png'} is not an image")
    assert err.splitlines()[-1].startswith("gf: 4 pictures in ")
    assert err.rstrip().endswith("0 stopped above their threshold; 1 upscaled to hold a patch; 1 could not be read.")
    assert gf("predict", bundle_folder, pictures / "0.png")[2] == ""  # a single picture needs none


@pytest.mark.parametrize("way", ["option", "suffix"])
@pytest.mark.parametrize("form", ["json", "jsonl", "csv"])
def test_answers_are_written_to_a_file_in_the_form_asked_for(
    form: str, way: str, gf: Run, bundle_folder: Path, pictures: Path, tmp_path: Path
) -> None:
    file = tmp_path / ("answers.txt" if way == "option" else f"answers.{form}")
    file.write_text("something older")
    code, out, _ = gf("predict", bundle_folder, pictures, "-o", file, *([f"--{form}"] if way == "option" else []))
    assert (code, out) == (2, "")
    text = file.read_text()
    if form == "csv":
        rows: list[dict[str, Any]] = list(csv.DictReader(io.StringIO(text)))
    else:
        rows = json.loads(text) if form == "json" else [json.loads(line) for line in text.splitlines()]
    assert [Path(row["file"]).name for row in rows] == [f"{number}.png" for number in range(5)]
    assert [bool(row.get("error")) for row in rows] == [False, False, False, True, False]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_lines_are_written_before_the_next_batch_is_read(
    gf: Run, bundle_folder: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, lines = tmp_path / "answers.jsonl", []
    view = Bundle.view

    def noted(self: Bundle, *arguments: Any, **options: Any) -> Any:
        lines.append(len(file.read_text().splitlines()))
        return view(self, *arguments, **options)

    monkeypatch.setattr(Bundle, "view", noted)
    gf("predict", bundle_folder, pictures, "-o", file, "--batch-size", 1, "--no-merge-batches")
    assert lines == [0, 1, 2, 3, 3]  # the fourth cannot be read, which is written with the fifth
    assert len(file.read_text().splitlines()) == 5


@pytest.mark.parametrize("form", ["json", "jsonl", "csv"])
def test_an_interrupted_file_holds_what_was_answered(
    form: str, gf: Run, bundle_folder: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = Bundle.view

    def interrupted(self: Bundle, name: str, **options: Any) -> Any:
        if name.endswith("2.png"):
            raise KeyboardInterrupt
        return view(self, name, **options)

    monkeypatch.setattr(Bundle, "view", interrupted)
    file = tmp_path / f"answers.{form}"
    code, _, err = gf("predict", bundle_folder, pictures, "-o", file, "--batch-size", 1, "--no-merge-batches")
    assert code == 130
    assert "gf: 2 pictures in " in err
    assert err.endswith("gf: interrupted.\n")
    text = file.read_text()
    assert len(json.loads(text)) == 2 if form == "json" else len(text.splitlines()) == (3 if form == "csv" else 2)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--json", "--csv"), "gf: answers are written in one format: leave --json or --csv out."),
        (("-o", "answers.txt"), "gf: the format of answers.txt is unknown. Add --jsonl, --csv or --json"),
        (("-o", "/nowhere/a.csv"), "gf: /nowhere/a.csv cannot be written: No such file or directory."),
        (("-o", "/nowhere/a.json"), "gf: /nowhere/a.json cannot be written: No such file or directory."),
        (("-o", "/dev/full", "--jsonl"), "gf: /dev/full cannot be written: No space left on device."),
        (("--camera", "0"), "gf: name the pictures or folders to look at, or a --camera, and not both."),
        (("--max-frames", "3"), "gf: --max-frames is for --camera only."),
    ],
)
def test_what_cannot_be_written_gets_a_sentence(
    words: tuple[str, ...], sentence: str, gf: Run, bundle_folder: Path, pictures: Path
) -> None:
    code, out, err = gf("predict", bundle_folder, pictures / "0.png", *words)
    assert (code, out) == (2, "")
    assert err.startswith(sentence)


def test_nothing_to_look_at_is_reported(gf: Run, bundle_folder: Path) -> None:
    code, _, err = gf("predict", bundle_folder)
    assert code == 2
    assert "name the pictures or folders to look at, or a --camera" in err


def test_long_folders_are_shown_in_several_tables(
    gf: Run, bundle_folder: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glancefocus.cli.predict_output.ROWS_PER_TABLE", 3)
    _, out, _ = gf("predict", bundle_folder, pictures)
    assert out.count("multiply-adds") == 2
    assert sum(f"{number}.png" in out for number in range(5)) == 4


def test_names_with_colons_are_not_pictures_of_words(gf: Run, bundle_folder: Path, pictures: Path) -> None:
    (pictures / "0.png").rename(pictures / ":cat:.png")
    assert ":cat:.png" in "".join(gf("predict", bundle_folder, pictures / ":cat:.png")[1].split())


def test_large_pictures_are_pooled_in_stretches_that_fit(
    gf: Run, bundle_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stretches: list[list[int]] = []
    look = predicting.look_at_stream

    def noted(net: Any, scenes: Any, *more: Any, **options: Any) -> Any:
        stretches.append([])

        def counted() -> Any:
            for scene in scenes:
                stretches[-1].append(scene.count)
                yield scene

        return look(net, counted(), *more, **options)

    for number in range(12):
        Image.new("RGB", (64, 64), (number, 0, 0)).save(tmp_path / f"{number:02}.png")
    monkeypatch.setattr(predicting, "look_at_stream", noted)
    monkeypatch.setattr("glancefocus.machine.MOST_BATCH_BYTES", 64 * 64 * 3 * 4 * 2)
    words = ("--batch-size", 4, "--merge-batches", "--thresholds", "0.35,0.35", "--jsonl")
    code, out, _ = gf("predict", bundle_folder, tmp_path, *words)
    assert code == 0
    assert stretches == [[2, 2, 2, 2], [2, 2]]  # two pictures fit into a batch, and four batches are held
    assert [Path(json.loads(line)["file"]).stem for line in out.splitlines()] == [f"{n:02}" for n in range(12)]


def test_frames_of_a_video_are_answered_one_by_one(
    gf: Run, bundle_folder: Path, make_video: MakeVideo, tmp_path: Path
) -> None:
    video = make_video(tmp_path / "clip.mp4", frames=6)
    code, out, err = gf("predict", bundle_folder, "--camera", video, "--jsonl")
    assert code == 0
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["frame"] for line in lines] == list(range(6))
    assert all(tuple(line) == (*FIELDS, *FRAME_FIELDS) for line in lines)
    assert err.startswith("gf: 6 frames in ")
    code, out, err = gf("predict", bundle_folder, "--camera", video, "--max-frames", 2, "--draw", tmp_path / "drawn")
    assert [line.split()[:4] for line in out.splitlines()] == [["0.00", "s", "frame", "0"], ["0.10", "s", "frame", "1"]]
    assert "3 looks, out of looks" in out
    assert err.startswith("gf: 2 frames in ")
    assert sorted(path.name for path in (tmp_path / "drawn").iterdir()) == ["00000-clip.png", "00001-clip.png"]


def test_a_camera_is_answered_until_it_ends(gf: Run, bundle_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = ("lavfi", "testsrc=size=64x48:rate=25:duration=1:decimals={}")
    monkeypatch.setitem(frame_streams.CAMERAS, sys.platform, fake)
    code, out, err = gf("predict", bundle_folder, "--camera", 0, "--csv")
    assert code == 0
    rows = list(csv.DictReader(io.StringIO(out)))
    assert rows[-1]["frame"] == "24"
    assert f"gf: {len(rows)} frame" in err
    assert f"; {25 - len(rows)} dropped because newer ones had arrived" in err or len(rows) == 25


def test_a_camera_that_is_not_there_gets_a_sentence(gf: Run, bundle_folder: Path) -> None:
    code, out, err = gf("predict", bundle_folder, "--camera", 9)
    assert (code, out) == (2, "")
    assert err.startswith("gf: there is no camera 9 ")


def test_a_network_of_clips_has_no_camera(gf: Run, small_bundle: Callable[..., Bundle], tmp_path: Path) -> None:
    bundle = small_bundle(frames=4, classifier="cascaded").save(tmp_path / "bundle")
    code, _, err = gf("predict", bundle, "--camera", 0)
    assert code == 2
    assert err.startswith("gf: this network looks at clips of 4 frames, but --camera answers single frames.")


ENDLESS = """
import sys
from glancefocus.data import frame_streams
frame_streams.CAMERAS[sys.platform] = ("lavfi", "testsrc=size=64x48:rate=25:decimals={}")
from glancefocus.cli.main import main
main(sys.argv[1:])
"""


def test_ctrl_c_ends_a_camera_cleanly_with_the_summary(bundle_folder: Path) -> None:
    words = [sys.executable, "-u", "-c", ENDLESS, "predict", str(bundle_folder), "--camera", "0", "--jsonl"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert json.loads(running.stdout.readline())["label"]
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert running.returncode == 0
    assert all(json.loads(line)["label"] for line in out.splitlines())
    assert re.match(r"gf: [\d,]+ frames? in ", err)  # one, if the signal comes at once


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals on Windows")
def test_a_bar_on_the_terminal_leaves_the_lines_in_the_pipe(bundle_folder: Path, tmp_path: Path) -> None:
    for number in range(6):
        Image.new("RGB", (64, 64), (40 * number, 0, 0)).save(tmp_path / f"{number}.png")
    ours, theirs = pty.openpty()
    words = ["predict", str(bundle_folder), str(tmp_path), "--jsonl", "--batch-size", "1"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    shown = bytearray()

    def read() -> None:
        try:
            while piece := os.read(ours, 4096):
                shown.extend(piece)
        except OSError:  # the terminal was closed
            pass

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    done = subprocess.run(
        [sys.executable, "-m", "glancefocus.cli.main", *words],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        env=environment,
        check=True,
    )
    os.close(theirs)
    reader.join(timeout=10)
    assert [Path(json.loads(line)["file"]).name for line in done.stdout.splitlines()] == [f"{n}.png" for n in range(6)]
    assert b"looking" in shown
    assert b"gf: 6 pictures in " in shown
