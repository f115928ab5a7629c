"""A picture becomes the image that the paper's evaluation would see, and boxes find their way back onto it."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from glancefocus.data.arrays import view_array, view_tensor
from glancefocus.data.images import view_picture
from glancefocus.errors import BadImage, ImageTooSmall
from glancefocus.machine import ensure_torchvision
from glancefocus.region import Placement, normalise
from glancefocus.settings import ViewSettings

PLAIN = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}  # normalising changes nothing


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Noise with large shapes in it, so that resizing matters."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (5, 7, 3), dtype=np.uint8)).resize((width, height))
    fine = random.integers(-30, 30, (height, width, 3))
    return Image.fromarray((np.asarray(coarse, np.int64) + fine).clip(0, 255).astype(np.uint8))


def torchvision_view(source: Image.Image, px: int, resized_px: int, interpolation: str) -> Tensor:
    ensure_torchvision()
    from torchvision.transforms import v2

    steps = [
        v2.Resize(resized_px, interpolation=v2.InterpolationMode(interpolation)),
        v2.CenterCrop(px),
        v2.PILToTensor(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ]
    result: Tensor = v2.Compose(steps)(source)
    return result


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (256, 256), (300, 257), (100, 131), (224, 224), (640, 70)])
@pytest.mark.parametrize(
    ("px", "crop_pct", "resized_px", "interpolation"),
    [(224, 0.875, 256, "bilinear"), (260, 0.875, 297, "bicubic"), (300, 0.904, 331, "bicubic")],
)
def test_the_crop_is_torchvisions_resize_and_centre_crop(
    size: tuple[int, int], px: int, crop_pct: float, resized_px: int, interpolation: Any
) -> None:
    source = picture(*size)
    image, _ = view_picture(source, ViewSettings("crop", px, px, crop_pct, interpolation))
    expected = torchvision_view(source, px, resized_px, interpolation)
    torch.testing.assert_close(image, expected, rtol=0, atol=1e-6)


def test_stretch_shows_the_whole_picture_at_the_views_size() -> None:
    source = picture(90, 60)
    image, placement = view_picture(source, ViewSettings("stretch", 30, 50, **PLAIN))  # type: ignore[arg-type]
    expected = np.asarray(source.resize((50, 30), Image.Resampling.BILINEAR), np.float32) / 255
    torch.testing.assert_close(image, torch.from_numpy(expected).permute(2, 0, 1), rtol=0, atol=1e-6)
    assert placement == Placement(0.5, 50 / 90, 0, 0)


def test_whole_leaves_every_pixel_where_it_is() -> None:
    source = picture(91, 63)
    image, placement = view_picture(source, ViewSettings("whole", **PLAIN))  # type: ignore[arg-type]
    assert torch.equal((image * 255).round().byte(), torch.from_numpy(np.array(source)).permute(2, 0, 1))
    assert placement == Placement()


def test_a_view_that_is_not_square_is_filled_from_the_middle() -> None:
    image, placement = view_picture(picture(400, 100), ViewSettings("crop", 50, 100, 1.0, **PLAIN))  # type: ignore[arg-type]
    assert image.shape == (3, 50, 100)
    # 400x100 becomes 200x50; the middle 100 columns start at 50.
    assert placement == Placement(0.5, 0.5, 0, 50)


def test_normalising_takes_mean_and_deviation_out() -> None:
    view = ViewSettings(mean=(0.5, 0.0, 1.0), std=(0.5, 1.0, 2.0))
    white = torch.full((3, 1, 1), 255, dtype=torch.uint8)
    assert normalise(white, view).flatten().tolist() == [1.0, 1.0, 0.0]
    assert normalise(torch.zeros(3, 1, 1), view).flatten().tolist() == [-1.0, 0.0, -0.5]
    assert normalise(torch.zeros(3, 1, 1, dtype=torch.float64), view).dtype == torch.float32


def test_a_tensor_of_the_views_size_is_not_resized() -> None:
    pixels = torch.randint(0, 256, (3, 40, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    image, placement = view_tensor(pixels, ViewSettings("crop", 40, 40))
    assert torch.equal(image, normalise(pixels, ViewSettings()))
    assert placement == Placement()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_a_tensor_is_viewed_almost_as_the_same_picture(dtype: torch.dtype, interpolation: Any) -> None:
    source = picture(120, 90)
    view = ViewSettings("crop", 48, 48, interpolation=interpolation, **PLAIN)  # type: ignore[arg-type]
    pixels = torch.from_numpy(np.array(source)).permute(2, 0, 1)
    image, placement = view_tensor(pixels if dtype == torch.uint8 else pixels.to(dtype) / 255, view)
    expected, expected_placement = view_picture(source, view)
    # Pillow rounds to whole grey values, and clips, after each of its two passes.
    torch.testing.assert_close(image, expected, rtol=0, atol=2 / 255)
    assert placement == expected_placement
    assert image.dtype == torch.float32


def test_a_box_of_the_image_is_found_again_in_the_picture() -> None:
    source = picture(400, 200)
    _, placement = view_picture(source, ViewSettings("crop", 80, 80, 0.8))
    # 400x200 becomes 200x100, of which the middle 80x80 starts at row 10, column 60: twice that in the picture.
    assert placement.box_in_picture(0, 0, 80, 80) == (120, 20, 280, 180)
    assert placement.box_in_picture(5, 10, 20, 20) == (140, 30, 180, 70)


def test_a_box_of_a_stretched_image_is_stretched_back() -> None:
    placement = view_picture(picture(400, 100), ViewSettings("stretch", 50, 50))[1]
    assert placement.box_in_picture(10, 10, 20, 20) == (80, 20, 240, 60)


@pytest.mark.parametrize("size", [(0, 50), (50, 0)])
def test_a_picture_without_pixels_is_refused(size: tuple[int, int]) -> None:
    width, height = size
    sentence = rf"an image of {height}x{width} px has no pixels. Give one of at least 1x1 px"
    with pytest.raises(ImageTooSmall, match=sentence):
        view_picture(Image.new("RGB", size), ViewSettings())
    for dtype in (torch.uint8, torch.float32):
        with pytest.raises(ImageTooSmall, match=sentence):
            view_tensor(torch.zeros(3, height, width, dtype=dtype), ViewSettings())
    with pytest.raises(ImageTooSmall, match=sentence):
        view_array(np.zeros((height, width, 3), np.uint8), ViewSettings())


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((40, 30), (128, 96)),  # both sides grow by 3.2
        ((96, 500), (96, 500)),  # large enough
        ((1, 1), (96, 96)),
        ((10, 100), (96, 960)),
        ((4, 200), (96, 1536)),  # a ribbon: its longer side grows to 16 patches only
        ((2000, 3), (2000, 96)),  # or stays, where it is longer already
    ],
)
def test_a_picture_seen_whole_is_upscaled_until_a_patch_fits(size: tuple[int, int], expected: tuple[int, int]) -> None:
    view = ViewSettings("whole", **PLAIN)  # type: ignore[arg-type]
    source = picture(*size)
    image, placement = view_picture(source, view, least_px=96)
    same, same_placement = view_tensor(torch.from_numpy(np.array(source)).permute(2, 0, 1), view, least_px=96)
    width, height = expected
    assert image.shape == same.shape == (3, height, width)
    assert placement == same_placement
    assert placement.note == ("" if size == expected else f"upscaled from {size[0]}x{size[1]} px")
    torch.testing.assert_close(image, same, rtol=0, atol=0.02)
    # Boxes are in the picture's own pixels: all of the image is all of the picture.
    left, top, right, bottom = placement.box_in_picture(0, 0, min(width, height), min(width, height))
    assert (left, top) == (0, 0)
    assert min(right, bottom) <= min(size)
    assert placement.box_in_picture(height - 96, width - 96, 96, 96)[2:] == size


def test_a_picture_that_is_cropped_is_upscaled_with_a_note_where_it_is_smaller_than_a_patch() -> None:
    for size, note in (((40, 30), "upscaled from 40x30 px"), ((60, 50), "")):
        image, placement = view_picture(picture(*size), ViewSettings("crop", 64, 64), least_px=48)
        assert image.shape == (3, 64, 64)
        assert placement.note == note
    assert view_tensor(torch.zeros(3, 64, 64), ViewSettings("crop", 64, 64), 48)[1] == Placement()


def test_a_large_picture_seen_whole_stays_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glancefocus.data.images.LARGE_PIXELS", 6000)
    view = ViewSettings("whole", **PLAIN)  # type: ignore[arg-type]
    small, large = picture(60, 100), picture(61, 100)
    assert view_array(np.asarray(small), view)[0].dtype == torch.float32
    pixels, placement = view_array(np.asarray(large), view)
    assert pixels.dtype == torch.uint8
    assert torch.equal(normalise(pixels, view), view_picture(large, view)[0])
    assert placement == Placement()


def test_a_picture_that_would_take_too_much_memory_is_refused_before_it_is_resized(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("glancefocus.machine.available_bytes", lambda: 200_000_000)
    # 96 x 1,000,000 px of 12 bytes.
    with pytest.raises(BadImage, match=r"1000000x96 px needs about 1.2 GB of memory, but 200 MB are available. Make"):
        view_picture(Image.new("RGB", (1_000_000, 1)), ViewSettings("whole"), least_px=96)


@pytest.mark.parametrize(
    ("image", "sentence"),
    [
        (torch.zeros(1, 20, 20), r"must have the shape \(3, height, width\), but got \(1, 20, 20\)"),
        (torch.zeros(20, 20), r"must have the shape \(3, height, width\), but got \(20, 20\)"),
        (torch.zeros(3, 20, 20, dtype=torch.int64), "must be uint8 or finite floats in .*, but got torch.int64"),
        (torch.full((3, 20, 20), torch.nan), "must be uint8 or finite floats"),
        (torch.full((3, 20, 20), 255.0), r"ranges from 255 to 255. Divide it by 255"),
        (torch.full((3, 20, 20), -1.5), r"must be within \[0, 1\], but this one ranges from -1.5 to -1.5"),
    ],
)
def test_a_tensor_that_is_no_picture_is_refused(image: Tensor, sentence: str) -> None:
    with pytest.raises(BadImage, match=sentence):
        view_tensor(image, ViewSettings())


def test_a_ribbon_is_viewed_without_resizing_all_of_it() -> None:
    # Resized whole until its short side is 256 px, this would be 256 x 12,800,000 px: ten gigabytes.
    ribbon = Image.new("RGB", (400_000, 8))
    ribbon.paste((255, 0, 0), (199_996, 0, 200_004, 8))
    view = ViewSettings("crop", 224, 224, **PLAIN)  # type: ignore[arg-type]
    image, placement = view_picture(ribbon, view)
    assert image.shape == (3, 224, 224)
    assert image[0, 112, 112] == 1.0
    # 224 of 256 px are 7 of the 8 rows, and 7 columns around the middle.
    assert placement.box_in_picture(0, 0, 224, 224) == (199_996, 0, 200_004, 8)
    upright, placement = view_tensor(torch.zeros(3, 400_000, 8), view)
    assert upright.shape == (3, 224, 224)
    assert placement.box_in_picture(0, 0, 224, 224) == (0, 199_996, 8, 200_004)


def test_a_ribbon_gives_the_same_crop_as_resizing_all_of_it() -> None:
    source = picture(4000, 40)
    image, _ = view_picture(source, ViewSettings("crop", 224, 224))
    torch.testing.assert_close(image, torchvision_view(source, 224, 256, "bilinear"), rtol=0, atol=0.02)
