"""Pictures that are held in memory are the files' own, shrunk, and cropped anew in every epoch."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from glancefocus.data.augmentation import AugmentSettings, augmented
from glancefocus.data.images import read_picture
from glancefocus.data.sources import DataSettings, open_data
from glancefocus.data.splits import FileSplit, HeldPictures, MemorySplit, held_bytes, held_side_px, hold
from glancefocus.errors import BadImage
from glancefocus.machine import ensure_torchvision
from glancefocus.region import normalise
from glancefocus.settings import ViewSettings

ensure_torchvision()
from torchvision.transforms import v2  # noqa: E402

VIEW = ViewSettings(height_px=32, width_px=32, crop_pct=1.0)
AUGMENT = AugmentSettings(crop=0.25, flip=True)


def gradient(file: Path, width: int, height: int, **options: object) -> Path:
    """A picture that gets brighter from left to right and redder from top to bottom."""
    across = np.linspace(0, 255, width, dtype=np.uint8)[None].repeat(height, 0)
    down = np.linspace(0, 255, height, dtype=np.uint8)[:, None].repeat(width, 1)
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.stack([down, across, across], axis=2)).save(file, **options)
    return file


@pytest.fixture
def split(tmp_path: Path) -> FileSplit:
    files = [gradient(tmp_path / f"{i}.png", 200 + 40 * i, 160) for i in range(3)]
    return FileSplit(files, torch.tensor([0, 1, 0]), VIEW, AUGMENT)


def test_the_side_is_such_that_the_smallest_crop_fills_the_view() -> None:
    assert held_side_px(ViewSettings(), AugmentSettings(crop=0.5)) == 363  # 224 / 0.875 / sqrt(0.5), rounded up
    assert held_side_px(VIEW, AugmentSettings(crop=0.01)) == 64  # at most twice the view
    assert held_bytes(10, VIEW, AUGMENT) == 10 * 64 * 85 * 3


def test_pictures_are_shrunk_and_keep_their_shape(split: FileSplit) -> None:
    shapes = [one.shape for one in hold(split).pixels]
    assert shapes == [(64, 80, 3), (64, 96, 3), (64, 112, 3)]


def test_what_is_held_looks_like_the_file(split: FileSplit) -> None:
    held, read = (next(iter(one.batches([[0, 1, 2]])))[0] for one in (hold(split), split))
    assert float((held - read).abs().max()) < 0.1  # of a normalised range of about 4: resized twice


def test_each_epoch_has_its_own_crops_and_a_seed_repeats_them(split: FileSplit) -> None:
    held = hold(split)
    one, again, other = (next(iter(held.batches([[0, 2]], seed)))[0] for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    alone = next(iter(held.batches([[2]], 1)))[0]
    assert torch.equal(alone[0], one[1])  # whatever else is in the batch


def test_held_pixels_are_cropped_and_mirrored_as_torchvision_does_it(split: FileSplit) -> None:
    picture = read_picture(split.files[0])
    pixels = np.array(picture)
    crop = v2.RandomResizedCrop((32, 32), scale=(0.25, 1.0), antialias=True)
    mirrored = v2.Compose([crop, v2.RandomHorizontalFlip()])
    for seed in range(4):
        torch.manual_seed(seed)
        expected = normalise(mirrored(torch.from_numpy(pixels).permute(2, 0, 1)), VIEW)
        assert torch.equal(augmented(pixels, VIEW, AUGMENT, seed), expected)
        assert torch.equal(augmented(picture, VIEW, AUGMENT, seed), expected)


def test_crops_are_resized_as_the_settings_say(split: FileSplit) -> None:
    pixels = np.array(read_picture(split.files[0]))[::8, ::8]  # 20x25 px: crops are upscaled, where the two differ
    source, found = torch.from_numpy(pixels.copy()).permute(2, 0, 1), {}
    for how in ("bilinear", "bicubic"):
        settings = AugmentSettings(crop=0.25, flip=False, crop_resize=how)
        crop = v2.RandomResizedCrop(
            (32, 32), scale=(0.25, 1.0), antialias=True, interpolation=v2.InterpolationMode(how)
        )
        torch.manual_seed(5)
        found[how] = augmented(pixels, VIEW, settings, 5)
        assert torch.equal(found[how], normalise(crop(source), VIEW))
    assert not torch.equal(found["bilinear"], found["bicubic"])


def test_a_bad_file_is_named(split: FileSplit) -> None:
    split.files[1].write_bytes(b"no picture")
    with pytest.raises(BadImage, match=r"1\.png"):
        hold(split)


@pytest.mark.parametrize(("hold_mib", "kinds"), [(1024, (HeldPictures, MemorySplit)), (0, (FileSplit, FileSplit))])
def test_a_small_data_set_is_held_and_a_large_one_is_read(
    tmp_path: Path, hold_mib: int, kinds: tuple[type, type]
) -> None:
    for label in ("a", "b"):
        for i in range(4):
            gradient(tmp_path / label / f"{i}.png", 60, 50)
    data = open_data(DataSettings(str(tmp_path), hold_mib=hold_mib, augment=AUGMENT), VIEW)
    assert (type(data.train), type(data.val)) == kinds


def test_a_large_jpeg_is_decoded_at_a_fraction_of_its_size(tmp_path: Path) -> None:
    file = gradient(tmp_path / "large.jpg", 1600, 1200, quality=95)
    assert read_picture(file).size == (1600, 1200)
    small = read_picture(file, at_least_px=120)
    assert small.size == (200, 150)
    assert abs(small.getpixel((100, 75))[1] - 127) <= 3  # type: ignore[index]
    assert read_picture(gradient(tmp_path / "a.png", 1600, 1200), at_least_px=120).size == (1600, 1200)
