"""The world `signs` in any size: regions are drawn on demand, and fit together."""

import tracemalloc

import numpy as np
import pytest
import torch
from PIL import Image

from glancefocus.data.file_scene import FileImage, FilePicture, FileScene
from glancefocus.data.wide_signs import WideScene, WideSignsSettings
from glancefocus.errors import BadSetting
from glancefocus.region import Region
from glancefocus.settings import View, ViewSettings, whole


def scene_of(side: int = 1024, label: int = 2, seed: int = 3, **changes: object) -> WideScene:
    return WideScene(WideSignsSettings(height=side, width=side, **changes), label, seed)  # type: ignore[arg-type]


def array(picture: Image.Image) -> np.ndarray:
    return np.asarray(picture, np.int16)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_regions_fit_together(level: int) -> None:
    """The same pixels, whether they are drawn alone or as a part of a larger region; only edges are blurred differently."""
    scene = scene_of()
    width, height = scene.sizes[level]
    all_of_it = array(scene.read(level, (0, 0, width, height)))
    left, top = width // 3, height // 4
    part = array(scene.read(level, (left, top, left + 80, top + 90)))
    inside = np.abs(part - all_of_it[top : top + 90, left : left + 80])[2:-2, 2:-2]
    assert (inside > 8).mean() < 0.01


def test_levels_show_the_same_scene() -> None:
    scene = scene_of()
    whole_scene = scene.read(0, (0, 0, 1024, 1024))
    for level in (1, 2):
        width, height = scene.sizes[level]
        smaller = array(scene.read(level, (0, 0, width, height)))
        assert (
            np.abs(smaller - array(whole_scene.reduce(1 << level))).mean() < 3.5
        )  # most of it is noise, which is drawn anew for each level


def test_a_sign_is_drawn_where_its_box_is_in_a_scene_of_a_gigapixel() -> None:
    scene = scene_of(32_768, radius_min_px=18, radius_max_px=20)
    assert scene.box is not None
    top, left, bottom, right = (round(edge) for edge in scene.box)
    assert 36 <= right - left <= 40
    pixels = array(scene.read(0, (left, top, right, bottom)))
    red = (pixels[..., 0] > 120) & (pixels[..., 1] < 90) & (pixels[..., 2] < 100)
    assert red.mean() > 0.1  # the ring
    elsewhere = array(scene.read(0, (left + 200, top, right + 200, bottom)))
    assert not ((elsewhere[..., 0] > 120) & (elsewhere[..., 1] < 90) & (elsewhere[..., 2] < 100)).any()


def test_nothing_is_ever_drawn_whole() -> None:
    """A glance and a patch of a scene of a gigapixel take a few megabytes."""
    scene = FileImage(FilePicture(scene_of(32_768)), (32_768, 32_768))
    tracemalloc.start()
    try:
        scene.pixels(whole(224), None)
        scene.pixels(View.parse("224"), torch.tensor([0.3, 0.7]))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 30e6


def test_the_same_seed_gives_the_same_pixels_and_another_seed_does_not() -> None:
    box = (300, 500, 364, 564)
    assert scene_of().read(0, box).tobytes() == scene_of().read(0, box).tobytes()
    assert scene_of().read(0, box).tobytes() != scene_of(seed=4).read(0, box).tobytes()
    assert scene_of(label=0).box is None


@pytest.mark.parametrize("label", [0, 1])
def test_an_amber_trail_leads_to_a_speed_limit_only(label: int) -> None:
    """In each step of the zoom, the region around the sign shows a ring in amber, which the class `none` does not have."""
    side = 16_384
    scene = FilePicture(scene_of(side, label=label, seed=5))
    box = scene.pyramid.box  # type: ignore[attr-defined]
    y, x = (side / 2, side / 2) if box is None else ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
    extent = float(side)
    found = []
    while extent > 300:
        left, top = (min(max(centre - extent / 2, 0), side - extent) for centre in (x, y))
        pixels = array(scene.cut((left, top, left + extent, top + extent), (224, 224)))
        red, green, blue = (pixels[..., channel] for channel in range(3))
        found.append(bool(((red > green + 25) & (green > blue + 70)).mean() > 0.002))
        extent /= 4
    assert found == [label > 0] * 3


def test_scenes_are_looked_at_like_files() -> None:
    images = tuple(FileImage(FilePicture(scene_of(2048, seed=seed)), (2048, 2048)) for seed in range(3))
    scene = FileScene(images, ViewSettings("whole"))
    assert scene.view(Region(whole(64))).shape == (3, 3, 64, 64)
    where = torch.tensor([[0.1, 0.2], [0.5, 0.5], [1.0, 1.0]])
    assert scene.view(Region(View.parse("0.25@96"), where)).shape == (3, 3, 96, 96)


def test_a_scene_beyond_the_largest_size_is_refused() -> None:
    with pytest.raises(BadSetting, match="height must be a whole number from 96 to 32,768, but got 40000"):
        WideSignsSettings(height=40_000)
