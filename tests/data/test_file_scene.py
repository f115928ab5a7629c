"""Large pictures as scenes: every view sees the same region as of the picture in memory."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from glancefocus.data.file_scene import FileImage, FileScene, view_file
from glancefocus.data.images import read_picture, view_pixels
from glancefocus.data.large import open_large
from glancefocus.look import as_scene
from glancefocus.region import Region
from glancefocus.settings import View, ViewSettings, as_pixels, whole

pytest.importorskip("pyvips")
WHOLE = ViewSettings("whole")
VIEWS = [whole(40), View.parse("32"), View.parse("0.5@40"), View.parse("100px@30"), whole(60)]


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GLANCEFOCUS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("glancefocus.data.large.LARGE_PIXELS", 10_000)
    monkeypatch.setattr("glancefocus.data.file_scene.LARGE_PIXELS", 10_000)
    monkeypatch.setattr("glancefocus.data.large.HELD_PIXELS", 40_000)


def picture_of(seed: int, size: tuple[int, int]) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (9, 11, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def files(folder: Path) -> list[Path]:
    """Pictures of different sizes and formats."""
    made = []
    for seed, (suffix, size) in enumerate(
        [("jpg", (301, 203)), ("png", (260, 250)), ("tif", (190, 320)), ("jpg", (150, 400))]
    ):
        made.append(folder / f"{seed}.{suffix}")
        picture_of(seed, size).save(made[-1], **({"quality": 95} if suffix == "jpg" else {}))
    return made


def image_of(file: Path, view: ViewSettings = WHOLE) -> FileImage:
    picture = open_large(file)
    assert picture is not None
    image, _ = view_file(picture, view, 32, whole(40))
    assert isinstance(image, FileImage)
    return image


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_every_view_sees_the_same_region_as_in_memory(view: View, tmp_path: Path) -> None:
    made = files(tmp_path)
    scene = FileScene(tuple(map(image_of, made)), WHOLE)
    in_memory = as_scene([view_pixels(read_picture(file), WHOLE, 32)[0] for file in made], WHOLE)
    where = None if view.is_whole else torch.tensor([[0.0, 0.0], [0.3, 0.7], [1.0, 1.0], [0.51, 0.13]])
    seen, expected = scene.view(Region(view, where)), in_memory.view(Region(view, where))
    assert seen.shape == expected.shape == (4, 3, view.px, view.px)
    native = view.name == "32"
    # Pixels as they are stored are the same; resized ones are from smaller levels. Values are in deviations of about 60 of 255.
    torch.testing.assert_close(seen, expected, rtol=0, atol=1e-6 if native else 0.12)
    assert float((seen - expected).abs().mean()) < 0.015


@pytest.mark.parametrize("fit", ["crop", "stretch"])
@pytest.mark.parametrize("side", [64, 160])
def test_pictures_that_are_resized_are_read_at_the_size_that_is_needed(fit: str, side: int, tmp_path: Path) -> None:
    """At 64 px the image is small and held in memory, at 160 px it stays in the file."""
    view = ViewSettings(fit, side, side)  # type: ignore[arg-type]
    for file in files(tmp_path):
        picture = open_large(file)
        assert picture is not None
        image, placement = view_file(picture, view, 32, whole(40))
        assert isinstance(image, torch.Tensor if side == 64 else FileImage)
        pixels, expected_placement = view_pixels(read_picture(file), view, 32)
        assert placement == expected_placement
        exact = as_scene(pixels, as_pixels(view))
        seen = FileScene((image,), as_pixels(view))
        for region in (Region(whole(40)), Region(View.parse("32"), torch.tensor([[0.2, 0.8]]))):
            difference = (seen.view(region) - exact.view(region)).abs()
            assert float(difference.mean()) < 0.006
            assert float(difference.max()) < 0.06


def test_views_without_antialiasing_are_sampled_as_in_memory(tmp_path: Path) -> None:
    file = files(tmp_path)[1]
    for resize in ("bilinear", "bicubic"):
        region = Region(View(120, None, resize))  # type: ignore[arg-type]
        expected = as_scene(view_pixels(read_picture(file), WHOLE)[0], WHOLE).view(region)
        seen = FileScene((image_of(file),), WHOLE).view(region)
        torch.testing.assert_close(seen, expected, rtol=0, atol=1e-4)


def test_rows_that_stay_are_read_and_the_others_are_not(tmp_path: Path) -> None:
    images = tuple(map(image_of, files(tmp_path)))
    scene = FileScene(images, WHOLE).keep(torch.tensor([2, 0]))
    assert scene.images == (images[2], images[0])
    assert scene.count == 2


def test_a_scene_may_hold_images_in_memory_too(tmp_path: Path) -> None:
    file = files(tmp_path)[0]
    in_memory = view_pixels(picture_of(7, (64, 50)), WHOLE)[0]
    scene = FileScene((in_memory, image_of(file)), WHOLE)
    region = Region(View.parse("32"), torch.tensor([[0.5, 0.5], [0.2, 0.9]]))
    torch.testing.assert_close(scene.view(region)[:1], as_scene(in_memory, WHOLE).view(region.rows(slice(0, 1))))
    assert scene.view(region).shape == (2, 3, 32, 32)


def test_a_part_that_cannot_be_read_is_noted_and_black(tmp_path: Path) -> None:
    file = files(tmp_path)[0]
    image = image_of(file)
    other = image_of(files(tmp_path)[1])
    file.unlink()
    region = Region(View.parse("32"), torch.tensor([[0.5, 0.5], [0.5, 0.5]]))
    seen = FileScene((image, other), as_pixels(WHOLE)).view(region)
    assert float(seen[0].abs().max()) == 0
    assert float(seen[1].abs().max()) > 0
    assert image.problems == [
        f"{file} was changed or removed while it was being read. Wait until it is complete, and try again."
    ]
    assert other.problems == []


def test_a_picture_that_is_thinner_than_a_patch_is_upscaled_in_memory(tmp_path: Path) -> None:
    picture_of(0, (1500, 12)).save(tmp_path / "a.jpg")
    picture = open_large(tmp_path / "a.jpg")
    assert picture is not None
    image, placement = view_file(picture, WHOLE, 32, whole(40))
    assert isinstance(image, torch.Tensor)
    assert image.shape[-2:] == view_pixels(read_picture(tmp_path / "a.jpg"), WHOLE, 32)[0].shape[-2:]
    assert placement.note == "upscaled from 1500x12 px"
