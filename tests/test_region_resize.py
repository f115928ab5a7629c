"""Our own antialiased resizing gives torch's numbers, of images of any size and order of memory."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from glancefocus import region as resize
from glancefocus.region import antialiased

SIZES = [
    ((2, 3, 224, 224), (96, 96)),
    ((1, 3, 480, 640), (96, 96)),
    ((3, 3, 50, 70), (96, 96)),  # larger than the image
    ((1, 3, 96, 96), (96, 96)),
    ((2, 3, 97, 101), (96, 40)),
    ((1, 3, 900, 1300), (32, 48)),
    ((2, 3, 7, 9), (48, 48)),
    ((1, 3, 1, 5), (8, 8)),
    ((2, 1, 30, 31), (7, 5)),
]


def by_torch(images: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(images, size=size, mode="bilinear", align_corners=False, antialias=True)


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=["planes", "channels last"])
@pytest.mark.parametrize(("shape", "size"), SIZES)
def test_the_numbers_are_those_of_torch(
    shape: tuple[int, ...], size: tuple[int, int], order: torch.memory_format
) -> None:
    images = torch.randn(shape, generator=torch.Generator().manual_seed(0)).contiguous(memory_format=order)
    small = antialiased(images, size)
    torch.testing.assert_close(small, by_torch(images, size), rtol=0, atol=2e-6)
    assert small.is_contiguous(memory_format=order)


def test_slices_of_images_are_resized_too() -> None:
    images = torch.randn(3, 4, 60, 50, generator=torch.Generator().manual_seed(0))[:, :3, 5:45, ::2]
    torch.testing.assert_close(antialiased(images, (16, 12)), by_torch(images, (16, 12)), rtol=0, atol=2e-6)


def test_autocast_rounds_nothing() -> None:
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        small = antialiased(images, (24, 24))
    assert small.dtype == torch.float32
    torch.testing.assert_close(small, by_torch(images, (24, 24)), rtol=0, atol=2e-6)


def test_what_inference_prepared_serves_training_too() -> None:
    for cached in (resize._taps, resize._bags, resize._stripes):
        cached.cache_clear()
    with torch.inference_mode():
        antialiased(torch.randn(1, 3, 40, 40), (16, 16))
    prepared = [*resize._bags(3, 40, 16), resize._stripes(40, 16)[0].matrix]
    assert not any(tensor.is_inference() for tensor in prepared)


def test_torchs_defaults_change_nothing() -> None:
    images = torch.randn(1, 3, 41, 43, dtype=torch.float32)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            small = antialiased(images, (16, 16))
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(small, by_torch(images, (16, 16)), rtol=0, atol=2e-6)


def test_gradients_and_other_numbers_are_left_to_torch() -> None:
    images = torch.randn(1, 3, 40, 40, requires_grad=True)
    antialiased(images, (16, 16)).sum().backward()
    assert images.grad is not None
    pixels = torch.randint(0, 256, (1, 3, 40, 40), dtype=torch.uint8)
    for other in (pixels, images.detach().double(), torch.zeros(0, 3, 40, 40)):
        assert torch.equal(antialiased(other, (16, 16)), by_torch(other, (16, 16)))
