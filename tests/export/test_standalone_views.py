"""Pictures without torch: the same pixels, glances and boxes as with it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from glancefocus.data.clips import frame_indexes
from glancefocus.data.images import as_rgb as as_rgb_of_ours
from glancefocus.data.images import view_picture
from glancefocus.export import predict
from glancefocus.look import as_batch
from glancefocus.region import Region, shrink
from glancefocus.settings import View, ViewSettings, as_pixels
from glancefocus.values import to_plain


def noise(height: int, width: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def candidate(name: str) -> predict.Candidate:
    view = View.parse(name)
    return {"name": name, "px": view.px, "extent": view.extent, "share": 0.5, "graph": "focus"}


def about(view: ViewSettings, **more: Any) -> dict[str, Any]:
    return {"view": to_plain(view), "frames": 1, "looks": 3, "candidates": [candidate("16")], **more}


@pytest.mark.parametrize("resize", ["antialias", "bilinear", "bicubic"])
@pytest.mark.parametrize(("height", "width", "px"), [(64, 64, 32), (57, 91, 24), (20, 30, 48)])
def test_a_glance_is_the_same_as_by_torch(resize: Any, height: int, width: int, px: int) -> None:
    image = np.asarray(noise(height, width))
    ours = shrink(torch.from_numpy(image.copy()).permute(2, 0, 1)[None].float(), px, resize)[0].permute(1, 2, 0)
    np.testing.assert_allclose(predict.shrink(image, px, resize), ours.numpy(), atol=2e-3)  # of 255


@pytest.mark.parametrize("name", ["16", "0.5@24", "24px@16", "12px@16", "1.0@16", "whole@24"])
@pytest.mark.parametrize(("height", "width"), [(64, 64), (57, 91), (24, 24)])
def test_a_look_sees_the_same_as_by_torch(name: str, height: int, width: int) -> None:
    image, where = np.asarray(noise(height, width)), np.array([0.3, 0.8], dtype=np.float32)
    manifest = about(ViewSettings(fit="whole"), candidates=[candidate(name)], score="confidence")
    looker = predict.Looker(manifest, lambda graph, *inputs: [])
    nothing = np.zeros(1, dtype=np.float32)
    scene = predict.scene_of([noise(height, width)], manifest)
    row = predict.Row(scene, "16", nothing, nothing, nothing, nothing, 0, where)
    view = View.parse(name)
    region = Region(view) if view.is_whole else Region(view, torch.from_numpy(where)[None])
    settings = ViewSettings(fit="whole")
    ours = as_batch(torch.from_numpy(image.copy()).permute(2, 0, 1)[None], settings).view(region)[0].numpy()
    seen = looker._seen(row, candidate(name))
    if name == "16":
        assert np.array_equal(seen, ours)
    np.testing.assert_allclose(seen, ours, atol=5e-5)  # of about 4


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("fit", ["crop", "stretch", "whole"])
@pytest.mark.parametrize(("height", "width"), [(40, 60), (90, 33), (48, 32), (20, 900), (10, 12), (1, 700), (1, 1)])
def test_a_view_has_the_same_pixels_and_boxes(fit: Any, interpolation: Any, height: int, width: int) -> None:
    view = ViewSettings(fit=fit, height_px=48, width_px=32, interpolation=interpolation)
    picture = noise(height, width)
    image, placement = view_picture(picture, as_pixels(view), 16)
    seen = predict.scene_of([picture], about(view))
    assert np.array_equal(seen.frames[0], (image * 255).round().byte().permute(1, 2, 0).numpy())
    assert seen.to_box(3, 5, 16, 16) == list(placement.box_in_picture(3, 5, 16, 16))
    assert seen.notes == ([placement.note] if placement.note else [])


def test_a_file_is_turned_upright_and_its_transparency_is_white(tmp_path: Path) -> None:
    turned, exif = noise(24, 40), Image.Exif()
    exif[0x0112] = 6
    turned.save(tmp_path / "turned.png", exif=exif)
    clear = noise(24, 24).convert("RGBA")
    clear.putalpha(Image.fromarray(np.full((24, 24), 99, dtype=np.uint8)))
    clear.save(tmp_path / "clear.png")
    Image.fromarray(np.arange(576, dtype=np.uint16).reshape(24, 24) * 113).save(tmp_path / "deep.png")
    for name in ("turned.png", "clear.png", "deep.png"):
        seen = predict.read_scene(tmp_path / name, about(ViewSettings(fit="whole")))
        with Image.open(tmp_path / name) as picture:
            assert np.array_equal(seen.frames[0], np.asarray(as_rgb_of_ours(picture)))


@pytest.mark.parametrize("count", [3, 4, 11])
def test_frames_of_a_folder_are_evenly_spaced_in_their_order(tmp_path: Path, count: int) -> None:
    clip = tmp_path / "clip"
    clip.mkdir()
    for number in range(count):
        Image.new("RGB", (16, 16), (number, 0, 0)).save(clip / f"frame{number}.png")  # frame10 comes after frame9
    seen = predict.read_scene(clip, about(ViewSettings(fit="whole"), frames=4))
    assert [int(frame[0, 0, 0]) for frame in seen.frames] == frame_indexes(count, 4)
    assert list(predict.find_pictures([str(tmp_path)], 4)) == [clip]


def test_an_image_smaller_than_a_patch_is_upscaled() -> None:
    seen = predict.scene_of([noise(12, 30)], about(ViewSettings(fit="whole")))
    assert seen.frames[0].shape == (16, 40, 3)
    assert seen.notes == ["upscaled from 30x12 px"]
    assert seen.to_box(0, 24, 16, 16) == [18, 0, 30, 12]
