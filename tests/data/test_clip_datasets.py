"""Clips are found in class folders, in a CSV, and in the layouts that data sets are published in."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from glancefocus.data.labelled import open_labelled
from glancefocus.data.sources import DataSettings, classes_of, open_data
from glancefocus.errors import BadData
from glancefocus.settings import ViewSettings

VIEW = ViewSettings(height_px=32, width_px=32)
MakeVideo = Callable[..., Path]


def frames_at(folder: Path, count: int = 4, first: int = 1) -> Path:
    folder.mkdir(parents=True)
    for number in range(first, first + count):
        Image.new("RGB", (40, 30), (20 * number,) * 3).save(folder / f"{number:05d}.jpg")
    return folder


def test_videos_and_folders_of_frames_lie_in_class_folders(make_video: MakeVideo, tmp_path: Path) -> None:
    for name in ("wave", "nod"):
        (tmp_path / name).mkdir()
        make_video(tmp_path / name / "one.mp4", frames=6)
        frames_at(tmp_path / name / "two", first=0)
        frames_at(tmp_path / name / "deeper" / "three")
    data = open_data(DataSettings(str(tmp_path), val_share=0.34), VIEW, frames=4)
    assert data.classes == ("nod", "wave")
    assert (len(data.train), len(data.val)) == (4, 2)
    assert (data.bad_files, data.odd_files) == ([], [])
    clips, _ = next(iter(data.train.batches([[0, 1, 2, 3]])))
    assert clips.shape == (4, 4, 3, 32, 32)


def test_broken_clips_are_listed_and_unusual_ones_are_reported(make_video: MakeVideo, tmp_path: Path) -> None:
    for name in ("wave", "nod"):
        (tmp_path / name).mkdir()
        for number in range(2):
            make_video(tmp_path / name / f"{number}.mp4", frames=6)
    (tmp_path / "nod" / "broken.mp4").write_bytes(b"nothing")
    make_video(tmp_path / "nod" / "short.mp4", frames=2)
    data = open_data(DataSettings(str(tmp_path)), VIEW, frames=4)
    assert len(data.train) + len(data.val) == 5
    assert [f"{tmp_path / 'nod' / 'broken.mp4'} is not a video" in bad for bad in data.bad_files] == [True]
    assert ["short.mp4 has 2 frames, fewer than the 4" in odd for odd in data.odd_files] == [True]


def test_a_csv_names_clips_and_their_splits(tmp_path: Path) -> None:
    lines = ["clip,label,split"]
    for number, (label, split) in enumerate([("a", "train"), ("b", "train"), ("a", "val"), ("b", "test")]):
        frames_at(tmp_path / "clips" / str(number))
        lines.append(f"clips/{number},{label},{split}")
    (tmp_path / "list.csv").write_text("\n".join(lines))
    data = open_data(DataSettings(str(tmp_path / "list.csv")), VIEW, frames=4)
    assert (len(data.train), len(data.val), len(data.test or ())) == (2, 1, 1)


def test_class_folders_of_pictures_are_not_clips_and_the_other_way_round(tmp_path: Path) -> None:
    for name in ("a", "b"):
        frames_at(tmp_path / "pictures" / name)
        (tmp_path / "videos" / name).mkdir(parents=True)
        (tmp_path / "videos" / name / "clip.mp4").write_bytes(b"x")
    with pytest.raises(
        BadData, match=r"contains pictures instead of clips\. Put the frames of each clip into a separate folder"
    ):
        classes_of(str(tmp_path / "pictures"), frames=8)
    with pytest.raises(BadData, match=r"contain no images\. They contain clips: set the number of --frames"):
        classes_of(str(tmp_path / "videos"))


def something_v1(folder: Path, name: str = "something-something-v1") -> Path:
    folder.mkdir()
    for number in (7, 11, 12):
        frames_at(folder / f"20bn-{name}" / str(number))
    (folder / f"{name}-labels.csv").write_text("Holding something\nApproaching something with your camera\n")
    (folder / f"{name}-train.csv").write_text("7;Holding something\n11;Approaching something with your camera\n")
    (folder / f"{name}-validation.csv").write_text("12;Holding something\n")
    (folder / f"{name}-test.csv").write_text("13\n")
    return folder


@pytest.mark.parametrize("name", ["something-something-v1", "jester-v1"])
def test_something_v1_and_jester_are_read_as_published(name: str, tmp_path: Path) -> None:
    folder = something_v1(tmp_path / "set", name)
    data = open_data(DataSettings(str(folder)), VIEW, frames=4)
    # Sorted, as TSM numbers them.
    assert data.classes == ("Approaching something with your camera", "Holding something")
    assert data.train.labels.tolist() == [1, 0]
    assert data.val.labels.tolist() == [1]
    assert [file.name for file in data.train.files] == ["7", "11"]  # type: ignore[attr-defined]
    assert set(open_labelled(DataSettings(str(folder)), VIEW, data.classes, frames=4).splits) == {"train", "val"}


@pytest.mark.parametrize("place", [".", "labels"])
def test_something_v2_is_read_as_published(place: str, make_video: MakeVideo, tmp_path: Path) -> None:
    prefix = "something-something-v2-" if place == "." else ""
    (tmp_path / "20bn-something-something-v2").mkdir()
    for number in (1, 2, 3):
        make_video(tmp_path / "20bn-something-something-v2" / f"{number}.webm", codec="libvpx-vp9", frames=5)
    (tmp_path / place).mkdir(exist_ok=True)
    lists = tmp_path / place / prefix
    entry = {"1": "Putting [something] on [something]", "2": "Holding [something]", "3": "Holding [something]"}
    plain = [
        {"id": i, "label": "putting a cup on a table", "template": t, "placeholders": []} for i, t in entry.items()
    ]
    for word, content in {
        "labels": {"Putting something on something": "0", "Holding something": "1"},
        "train": plain[:2],
        "validation": plain[2:],
    }.items():
        Path(f"{lists}/{word}.json" if not prefix else f"{lists}{word}.json").write_text(json.dumps(content))
    data = open_data(DataSettings(str(tmp_path)), VIEW, frames=4)
    assert data.classes == ("Putting something on something", "Holding something")
    assert (data.train.labels.tolist(), data.val.labels.tolist()) == ([0, 1], [1])


def test_a_published_set_with_something_missing_is_refused(tmp_path: Path) -> None:
    folder = something_v1(tmp_path / "set")
    listed = folder / "something-something-v1-train.csv"
    listed.write_text(listed.read_text() + "99;Holding something\n")
    with pytest.raises(BadData, match=r"1 of 4 clips of the lists are not in .*, such as 99\. Unpack all parts"):
        open_data(DataSettings(str(folder)), VIEW, frames=4)
    listed.write_text("7;Juggling something\n")
    with pytest.raises(
        BadData, match="has the label 'Juggling something', which is not in something-something-v1-labels.csv"
    ):
        open_data(DataSettings(str(folder)), VIEW, frames=4)
    listed.unlink()
    with pytest.raises(BadData, match=r"but not something-something-v1-train\.csv\. Download all lists"):
        open_data(DataSettings(str(folder)), VIEW, frames=4)


def test_worlds_are_of_images_or_of_clips() -> None:
    with pytest.raises(BadData, match="gestures consists of clips, but the network takes images"):
        open_data(DataSettings("gestures"), VIEW)
    with pytest.raises(BadData, match="signs consists of images, but the network takes clips"):
        open_data(DataSettings("signs"), VIEW, frames=8)
    with pytest.raises(BadData, match=r"gestures have 8 frames, but the network takes 4\. Draw them with --set"):
        open_data(DataSettings("gestures"), VIEW, frames=4)
    assert classes_of("gestures", 8)[0] == "none"
