"""The built-in world `signs`: the same scenes from the same seed, signs that a patch can read and a glance cannot."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from glancefocus.data import signs as signs_module
from glancefocus.data.sign_faces import Sign, choose_distractor, paste_face, speed_limit
from glancefocus.data.signs import CLASSES, SignsSettings, draw_scene, place_signs
from glancefocus.data.worlds import Scenes, draw_split
from glancefocus.errors import BadSetting, UnknownName
from glancefocus.files import cache_folder

SMALL = SignsSettings(height=96, width=112)


def same(one: Scenes, other: Scenes) -> bool:
    return (
        torch.equal(one.images, other.images)
        and torch.equal(one.labels, other.labels)
        and torch.equal(one.boxes.nan_to_num(-1), other.boxes.nan_to_num(-1))
    )


def redness(scene: np.ndarray) -> np.ndarray:
    """(H, W) How far red stands above green and blue."""
    pixels = scene.astype(int)
    return pixels[..., 0] - pixels[..., 1:].max(axis=-1)


def test_a_seed_repeats_its_scene():
    first, first_box = draw_scene(SMALL, 2, 7)
    again, again_box = draw_scene(SMALL, 2, 7)
    other, _ = draw_scene(SMALL, 2, 8)
    assert np.array_equal(first, again)
    assert first_box == again_box
    assert not np.array_equal(first, other)


def test_scenes_are_bytes_of_the_size_that_was_asked_for():
    scene, _ = draw_scene(SMALL, 1, 0)
    assert scene.shape == (96, 112, 3)
    assert scene.dtype == np.uint8
    made = draw_split("val", 3, SMALL, 0, cache=None)
    assert made.images.shape == (3, 3, 96, 112)
    assert (made.images.dtype, made.labels.dtype, made.boxes.dtype) == (torch.uint8, torch.int64, torch.float32)
    assert CLASSES == ("none", "30", "50", "80", "100")
    assert len(made) == 3


def test_train_val_and_test_share_no_scene():
    scenes = [draw_split(split, 10, SMALL, 0, cache=None).images for split in ("train", "val", "test")]
    distinct = {image.numpy().tobytes() for images in scenes for image in images}
    assert len(distinct) == 30


def test_another_seed_gives_other_scenes():
    assert not same(draw_split("train", 5, SMALL, 0, cache=None), draw_split("train", 5, SMALL, 1, cache=None))


def test_making_ten_gives_the_first_ten_of_twenty():
    ten, twenty = (draw_split("train", count, SMALL, 3, cache=None) for count in (10, 20))
    assert same(ten, Scenes(twenty.images[:10], twenty.labels[:10], twenty.boxes[:10]))


def test_two_processes_draw_what_one_draws():
    one, two = (draw_split("train", 7, SMALL, 3, cache=None, workers=workers) for workers in (1, 2))
    assert same(one, two)


def test_every_five_scenes_hold_every_class_once():
    labels = draw_split("train", 20, SMALL, 0, cache=None).labels
    for group in labels.split(5):
        assert sorted(group.tolist()) == [0, 1, 2, 3, 4]
    assert labels[:5].tolist() != labels[5:10].tolist() or labels[5:10].tolist() != labels[10:15].tolist()


def test_only_the_class_none_has_no_box():
    made = draw_split("train", 20, SMALL, 0, cache=None)
    assert torch.equal(made.boxes.isnan().all(dim=1), made.labels == 0)
    assert torch.equal(made.boxes.isnan().any(dim=1), made.labels == 0)
    assert draw_scene(SMALL, 0, 0)[1] is None


@pytest.mark.parametrize("seed", range(8))
def test_the_box_is_the_red_ring_to_within_two_pixels(seed: int):
    settings = SignsSettings(distractors_max=0)
    scene, box = draw_scene(settings, 1 + seed % 4, seed)
    top, left, bottom, right = box
    assert 0 <= top < bottom <= settings.height
    assert 0 <= left < right <= settings.width
    assert 20 <= bottom - top <= 28
    assert bottom - top == pytest.approx(right - left)

    # red pixels near the sign, so that the roof of a house does not count
    first_row, first_column = max(0, int(top) - 4), max(0, int(left) - 4)
    around = redness(scene)[first_row : math.ceil(bottom) + 4, first_column : math.ceil(right) + 4] > 70
    rows, columns = np.nonzero(around)
    distance = np.hypot(
        rows + first_row + 0.5 - (top + bottom) / 2, columns + first_column + 0.5 - (left + right) / 2
    ) / ((bottom - top) / 2)
    ring = distance < 1.15
    assert abs(rows[ring].min() + first_row - top) <= 2
    assert abs(rows[ring].max() + first_row + 1 - bottom) <= 2
    assert abs(columns[ring].min() + first_column - left) <= 2
    assert abs(columns[ring].max() + first_column + 1 - right) <= 2
    assert distance.min() > 0.65  # the disc inside the ring is not red


def test_signs_appear_all_over_the_scene():
    settings = SignsSettings()
    places = []
    for seed in range(400):
        limit = place_signs(settings, 1, np.random.default_rng(seed))[0]
        places.append((limit.y, limit.x))
    y, x = np.array(places).T
    # the centres keep a radius of 9 to 13 px and 2 px from the edges: from about 13 to 147
    for coordinate in (y, x):
        quarters = np.histogram(coordinate, bins=4, range=(11, 149))[0]
        assert quarters.min() >= 60
        assert coordinate.min() >= 11
        assert coordinate.max() <= 149


def test_no_sign_touches_another():
    settings = SignsSettings(height=96, width=96, distractors_max=4)
    counts = set()
    for seed in range(200):
        placed = place_signs(settings, 4, np.random.default_rng(seed))
        counts.add(len(placed))
        assert placed[0].face == speed_limit("100")
        for index, one in enumerate(placed):
            for other in placed[index + 1 :]:
                assert math.hypot(one.y - other.y, one.x - other.x) > one.radius_px + other.radius_px + 2
    assert counts == {1, 2, 3, 4, 5}


def test_no_distractor_is_a_speed_limit():
    rng = np.random.default_rng(0)
    faces = [choose_distractor(rng) for _ in range(1000)]
    limit = speed_limit("30")
    red_rings = [face for face in faces if (face.shape, face.rim) == (limit.shape, limit.rim)]
    numbered = [face for face in faces if face.text.isdigit()]
    assert len(red_rings) > 50
    assert len(numbered) > 200
    assert not any(face.text for face in red_rings)


def face_at(text: str, seed: int) -> Image.Image:
    """A speed limit with a radius of 9 px in the middle of 40x40 grey pixels."""
    picture = Image.new("RGB", (40, 40), (128, 128, 128))
    paste_face(picture, Sign(speed_limit(text), 20.0, 20.0, 9.0), np.random.default_rng(seed))
    return picture


def share_read(side_px: int) -> float:
    """Share of signs of radius 9 px whose nearest example is of their own class, when 40 px are seen as side_px.

    Of many examples of each class, because digits vary in size, weight and place.
    """

    def seen(text: str, seeds: range) -> np.ndarray:
        return np.stack(
            [
                np.asarray(
                    face_at(text, seed).convert("L").resize((side_px, side_px), Image.Resampling.BILINEAR), float
                )
                for seed in seeds
            ]
        )

    def normal(discs: np.ndarray) -> np.ndarray:
        flat = discs.reshape(len(discs), -1)
        return (flat - flat.mean(1, keepdims=True)) / flat.std(1, keepdims=True)

    known = [normal(seen(text, range(250))) for text in CLASSES[1:]]
    right = []
    for label, text in enumerate(CLASSES[1:]):
        for sign in normal(seen(text, range(1000, 1040))):
            nearest = [((examples - sign) ** 2).sum(1).min() for examples in known]
            right.append(int(np.argmin(nearest)) == label)
    return float(np.mean(right))


def test_digits_are_read_at_full_resolution_and_much_worse_at_the_glance_even_by_one_who_knows_where_they_are():
    assert share_read(side_px=40) > 0.95
    assert share_read(side_px=12) < 0.85  # 48 px for a scene of 160; a network that must find them reads far less


def test_the_red_ring_is_seen_at_the_glance():
    settings = SignsSettings(distractors_max=0)
    for seed in range(10):
        scene, box = draw_scene(settings, 3, seed)
        glance = np.asarray(Image.fromarray(scene).resize((48, 48), Image.Resampling.BILINEAR))
        top, left, bottom, right = (0.3 * edge for edge in box)
        inside = redness(glance)[int(top) : math.ceil(bottom), int(left) : math.ceil(right)]
        assert (inside > 25).sum() >= 6


@pytest.mark.parametrize(("height", "width"), [(96, 96), (97, 211), (480, 640), (960, 1280)])
def test_any_size_can_be_drawn(height: int, width: int):
    scene, box = draw_scene(SignsSettings(height=height, width=width), 4, 0)
    assert scene.shape == (height, width, 3)
    assert 20 <= box[2] - box[0] <= 28  # the sign's size does not follow the scene's


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"height": 95}, "height must be a whole number from 96 to 32,768, but got 95"),
        ({"width": 40_000}, "width must be a whole number from 96 to 32,768, but got 40000"),
        ({"width": 160.0}, "width must be a whole number from 96 to 32,768, but got 160.0"),
        ({"radius_min_px": 3.0}, "radius_min_px must be a number from 6 to 1,024, but got 3.0"),
        ({"radius_min_px": 15.0}, "radius_max_px .14.0. is below radius_min_px .15.0."),
        ({"radius_max_px": math.nan}, "radius_max_px must be a number from 6 to 1,024, but got nan"),
        ({"radius_max_px": 41.0}, "is too large for a scene of 160x160 px. Choose radius_max_px of at most 40"),
        ({"distractors_max": -1}, "distractors_max must be a whole number from 0 to 16, but got -1"),
    ],
)
def test_settings_that_cannot_work_say_why(change: dict[str, float], sentence: str):
    with pytest.raises(BadSetting, match=sentence):
        dataclasses.replace(SignsSettings(), **change)


def test_a_request_that_cannot_work_says_why():
    with pytest.raises(UnknownName, match="Did you mean 'train'"):
        draw_split("trian", 5, SMALL, 0, cache=None)
    with pytest.raises(BadSetting, match=r"count of signs is 0\. Choose a whole number of at least 1"):
        draw_split("train", 0, SMALL, 0, cache=None)
    with pytest.raises(BadSetting, match="seed of signs is -1"):
        draw_split("train", 5, SMALL, -1, cache=None)
    with pytest.raises(BadSetting, match="workers of signs is 0"):
        draw_split("train", 5, SMALL, 0, cache=None, workers=0)
    with pytest.raises(BadSetting, match=r"there is no class 5\. Choose a label from 0 to 4"):
        draw_scene(SMALL, 5, 0)


def forbid_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a scene was drawn that is in the cache")

    monkeypatch.setattr(signs_module, "draw_scene", refuse)


def test_the_second_call_draws_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    drawn = draw_split("train", 6, SMALL, 0, cache=tmp_path)
    assert same(drawn, draw_split("train", 6, SMALL, 0, cache=None))
    forbid_drawing(monkeypatch)
    assert same(drawn, draw_split("train", 6, SMALL, 0, cache=tmp_path))
    with pytest.raises(AssertionError, match="a scene was drawn"):
        draw_split("val", 6, SMALL, 0, cache=tmp_path)


def test_other_scenes_are_not_taken_from_the_cache(tmp_path: Path):
    draw_split("train", 5, SMALL, 0, cache=tmp_path)
    fewer = dataclasses.replace(SMALL, distractors_max=0)
    for split, count, settings, seed in (("val", 5, SMALL, 0), ("train", 6, SMALL, 0), ("train", 5, fewer, 0)):
        expected = draw_split(split, count, settings, seed, cache=None)
        assert same(expected, draw_split(split, count, settings, seed, cache=tmp_path))
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 4


def test_writing_to_the_images_does_not_change_the_cache(tmp_path: Path):
    draw_split("train", 5, SMALL, 0, cache=tmp_path).images.zero_()
    assert same(draw_split("train", 5, SMALL, 0, cache=tmp_path), draw_split("train", 5, SMALL, 0, cache=None))


@pytest.mark.parametrize("name", ["images.npy", "labels.npy", "boxes.npy", "about.json"])
@pytest.mark.parametrize("damage", ["cut", "emptied", "deleted", "changed"])
def test_a_damaged_cache_is_made_again(tmp_path: Path, name: str, damage: str):
    draw_split("train", 5, SMALL, 0, cache=tmp_path)
    (path,) = tmp_path.glob(f"*/{name}")
    content = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(content[:-3])
    elif damage == "emptied":
        path.write_bytes(b"")
    elif damage == "deleted":
        path.unlink()
    else:
        content[-9:] = bytes(255 - byte for byte in content[-9:])
        path.write_bytes(content)
    assert same(draw_split("train", 5, SMALL, 0, cache=tmp_path), draw_split("train", 5, SMALL, 0, cache=None))
    assert len(json.loads((path.parent / "about.json").read_text())["checksums"]) == 3


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path):
    draw_split("train", 5, SMALL, 0, cache=tmp_path)
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    left = folder.rename(folder.with_name(f".{folder.name}.0123456789abcdef.aside"))
    (left / "images.npy").write_bytes(b"half")
    assert same(draw_split("train", 5, SMALL, 0, cache=tmp_path), draw_split("train", 5, SMALL, 0, cache=None))
    assert not left.exists()


def test_a_stop_half_way_leaves_no_scenes_behind(tmp_path: Path):
    def stop(done: int, total: int) -> None:
        assert total == 5
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        draw_split("train", 5, SMALL, 0, cache=tmp_path, progress=stop)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_progress_counts_every_scene():
    seen = []
    draw_split("train", 3, SMALL, 0, cache=None, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_a_cache_folder_that_cannot_be_written_says_what_to_do(tmp_path: Path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(BadSetting, match=r"cannot be kept in .*file .*set GLANCEFOCUS_CACHE to a folder"):
        draw_split("train", 5, SMALL, 0, cache=tmp_path / "file")


def test_the_default_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GLANCEFOCUS_CACHE", str(tmp_path / "kept"))
    assert cache_folder() == tmp_path / "kept"
    draw_split("train", 5, SMALL, 0)
    assert list((tmp_path / "kept").glob("signs-train-*/images.npy"))
    monkeypatch.delenv("GLANCEFOCUS_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "glancefocus"
