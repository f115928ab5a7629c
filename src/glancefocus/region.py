"""A region: what one look sees of an image. And the pixel work of it: cutting, resizing, normalising.

A look sees a square of the image, at a resolution. Three numbers say which: `where` it lies, the `extent` that it covers, and `px`,
the side of what the encoder gets. The paper's glance covers the whole image; its patches cover px x px pixels, without resizing.
"""

import functools
import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from glancefocus.errors import BadCheckpoint, ImageTooSmall
from glancefocus.settings import GlanceResize, View, ViewSettings

Rows = NDArray[np.int64]
Weights = NDArray[np.float32]

# Largest number of float values that are resized in one call on a CPU. The C library gives larger buffers back to the system after
# each call, and getting them again takes longer than the resizing.
FLOATS_PER_CALL = 1 << 22


Box = tuple[int, int, int, int]
"""Left, top, right, bottom in pixels; right and bottom are exclusive."""


@dataclass(frozen=True)
class Region:
    """One region of each image of a batch: the same view of all images, each at its own place.

    view   extent and resolution
    where  (B, 2) in [0, 1] as (y, x): 0 puts the square against the top or left edge, 1 against the bottom or right, so it never
           leaves the image; None where the view covers the whole image
    """

    view: View
    where: Tensor | None = None

    def __post_init__(self) -> None:
        assert (self.where is None) == (self.view.extent is None), "only a view of the whole image has no place"

    def repeat_interleave(self, times: int) -> "Region":
        """The region of each image several times in a row: for frames of a clip, which share their place."""
        return self if self.where is None else Region(self.view, self.where.repeat_interleave(times, dim=0))

    def rows(self, rows: slice) -> "Region":
        """The regions of some images of the batch."""
        return self if self.where is None else Region(self.view, self.where[rows])

    def split(self, counts: list[int]) -> list["Region"]:
        """One region for each of several batches that follow one another."""
        if self.where is None:
            return [self] * len(counts)
        return [Region(self.view, where) for where in torch.split(self.where, counts)]


@dataclass(frozen=True)
class Placement:
    """Where an image lies in the picture that it was made from: picture = (image + offset) / scale, in pixels.

    note  what is unusual about the picture, such as "upscaled from 20x9 px"; empty: nothing
    """

    scale_y: float = 1.0
    scale_x: float = 1.0
    offset_y: float = 0.0
    offset_x: float = 0.0
    note: str = ""

    def box_in_picture(self, top: float, left: float, height: int, width: int) -> Box:
        """The box of a region in pixels of the picture; the arguments are in pixels of the image."""
        left_px, top_px, right_px, bottom_px = self.exact_box(top, left, height, width)
        return round(left_px), round(top_px), round(right_px), round(bottom_px)

    def exact_box(self, top: float, left: float, height: int, width: int) -> tuple[float, float, float, float]:
        """The same, not rounded: it may lie between pixels."""
        return (
            (left + self.offset_x) / self.scale_x,
            (top + self.offset_y) / self.scale_y,
            (left + width + self.offset_x) / self.scale_x,
            (top + height + self.offset_y) / self.scale_y,
        )


def shrink(images: Tensor, px: int, resize: GlanceResize = "antialias") -> Tensor:
    """The whole of each image at px x px.

    images  (B, 3, H, W)
    resize  antialias: bilinear over the whole footprint of each new pixel. bicubic, bilinear: corners aligned, no antialiasing, as
            the paper's released models were trained.
    """
    return resized(images, (px, px), resize)


def resized(images: Tensor, size: tuple[int, int], resize: GlanceResize) -> Tensor:
    """The whole of each image (B, C, H, W) at this (height, width), see shrink."""
    if resize == "antialias":
        return antialiased(images, size)
    return F.interpolate(images, size=size, mode=resize, align_corners=True)


def top_left(where: Tensor, height_px: int, width_px: int, px: int) -> Tensor:
    """The first row and column of each patch, (B, 2) int64: floor(where x (image - patch)), the product in float32.

    where  (B, 2) in [0, 1] as (y, x): 0 puts the patch against the top or left edge, 1 against the bottom or right, so a patch
           never leaves the image.
    """
    _check_fits(height_px, width_px, px)
    room = _room(height_px - px, width_px - px, where.device)
    return (where.float().clamp(0, 1) * room).floor().long()


def zoomed(where: Tensor, seen: Tensor, extent_px: Tensor, sizes: Tensor) -> Tensor:
    """(B, 2) the place in the whole image of a square that was aimed relative to the region of the last look.

    A smaller square lies inside that region: 0 puts it against the region's top or left edge, 1 against its bottom or right. A
    larger one lies around it: 0 puts it so that the region is in its top or left corner, 1 in the opposite one. A square of about
    the same size is moved: 0 by its own side up or left, 0.5 not at all, 1 down or right. None of them leaves the image.

    where      (B, 2) in [0, 1] as (y, x), relative to the region
    seen       (B, 4) top, left, height and width of that region in pixels
    extent_px  (B,) side of the square in pixels
    sizes      (B, 2) height and width of the images in pixels
    returns    (B, 2) as top_left takes it
    """
    first, step = reach_px(seen, extent_px)
    free = (sizes - extent_px[:, None]).clamp_min(0)
    begin = torch.minimum((seen[:, :2] + first + where * step).round().clamp_min(0), free)
    # Half a pixel more, so that top_left, which rounds down, finds the same pixel again.
    return torch.where(free > 0, (begin + 0.5) / free.clamp_min(1), 0).clamp(0, 1)


def reach_px(seen: Tensor, extent_px: Tensor) -> tuple[Tensor, Tensor]:
    """(B, 2) pixels from the top left of the last look's region to that of a square that is aimed at 0; and (B, 2) how much
    further it is for an aim of 1. Arguments as in zoomed."""
    extent, room = extent_px[:, None], seen[:, 2:] - extent_px[:, None]
    beside = room.abs() < extent / 4
    return torch.where(beside, -extent, 0), torch.where(beside, 2 * extent, room)


def _check_fits(height_px: int, width_px: int, px: int) -> None:
    if px > height_px or px > width_px:
        raise ImageTooSmall(
            f"a patch of {px} px cannot be cut out of an image of {height_px}x{width_px} px. "
            "Use larger images, or a network with smaller patches."
        )


def _corners(where: Tensor, height_px: int, width_px: int, px: int) -> list[tuple[int, int]]:
    """The same as `top_left`, bit for bit, in plain Python: several times faster than torch for a few places."""
    _check_fits(height_px, width_px, px)
    high, wide = height_px - px, width_px - px
    try:
        return [(_floor(y, high), _floor(x, wide)) for y, x in where.float().tolist()]
    except ValueError:
        raise BadCheckpoint(
            "the network aims at NaN: its weights are too large, or broken. Train or import it again."
        ) from None


def _floor(share: float, room: int) -> int:
    """floor(share x room) with the product rounded to float32, as torch does."""
    product: float = _FLOAT32.unpack(_FLOAT32.pack(min(max(share, 0.0), 1.0) * room))[0]
    return int(product)


_FLOAT32 = struct.Struct("f")


@functools.lru_cache(maxsize=64)
def _room(height_px: int, width_px: int, device: torch.device) -> Tensor:
    """(2,) as a tensor; cached, because making a tensor takes longer than using it."""
    with torch.inference_mode(False):  # a tensor made in inference mode could not be used outside of it
        return torch.tensor([height_px, width_px], dtype=torch.float32, device=device)


def crop(images: Tensor, where: Tensor, px: int, rows: Tensor | None = None) -> Tensor:
    """Cut one square patch out of each image, at full resolution, without touching the rest of it.

    images  (N, 3, H, W)
    where   (B, 2), see top_left
    rows    (B,) the image of each patch; None: image i for patch i
    returns (B, 3, px, px)
    """
    height_px, width_px = images.shape[-2:]
    if images.device.type == "cpu" and not torch.compiler.is_compiling():
        # Copying slices is many times faster there than picking pixel by pixel.
        numbers = range(where.shape[0]) if rows is None else rows.tolist()
        corners = _corners(where, height_px, width_px, px)
        if len(corners) == 1 and images.dtype in (torch.float32, torch.uint8) and not images.requires_grad:
            (n,), ((top, left),) = numbers, corners
            # numpy has less overhead for a single slice. "K" keeps the channels-last layout.
            return torch.from_numpy(images.numpy()[n : n + 1, :, top : top + px, left : left + px].copy("K"))
        places = zip(numbers, corners, strict=True)
        return torch.cat([images[n : n + 1, :, top : top + px, left : left + px] for n, (top, left) in places])
    start = top_left(where.to(images.device), height_px, width_px, px)
    offsets = torch.arange(px, device=images.device)
    y = (start[:, 0:1] + offsets)[:, :, None]
    x = (start[:, 1:2] + offsets)[:, None, :]
    if rows is None:
        rows = torch.arange(where.shape[0], device=images.device)
    return images[rows[:, None, None], :, y, x].permute(0, 3, 1, 2)


def bilinear_crop(images: Tensor, where: Tensor, extent_px: int, px: int) -> Tensor:
    """The square of each image at `where`, which may lie between pixels, at px x px: gradients reach `where` (AdaFocus V2).

    images  (B, 3, H, W) floats
    where   (B, 2), see top_left
    """
    height_px, width_px = images.shape[-2:]
    _check_fits(height_px, width_px, extent_px)
    if px < extent_px:  # bilinear sampling sees four pixels only, so a square that gets smaller is shrunk first
        size = (round(height_px * px / extent_px), round(width_px * px / extent_px))
        images = antialiased(images, size)
    # In shares of the image: where the squares begin, and the centres of their pixels from there.
    sides = torch.tensor([height_px, width_px], dtype=torch.float32, device=where.device)
    begin = where.float() * (sides - extent_px) / sides
    steps = (torch.arange(px, device=where.device) + 0.5) / px * extent_px
    y = begin[:, 0, None] + steps / height_px
    x = begin[:, 1, None] + steps / width_px
    grid = torch.stack([x[:, None, :].expand(-1, px, -1), y[:, :, None].expand(-1, -1, px)], dim=3)
    return F.grid_sample(images, 2 * grid - 1, mode="bilinear", padding_mode="border", align_corners=False)


def normalise(images: Tensor, view: ViewSettings) -> Tensor:
    """(..., 3, H, W) uint8 or [0, 1] -> floats with the view's mean and deviation taken out."""
    floats = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    mean = torch.tensor(view.mean, device=images.device)[:, None, None]
    std = torch.tensor(view.std, device=images.device)[:, None, None]
    return (floats - mean) / std


def shrink_pixels(images: Tensor, px: int, resize: GlanceResize, view: ViewSettings) -> Tensor:
    """The whole of each image (B, 3, H, W) uint8 at px x px, normalised, without holding a large image as floats."""
    # Resizing mixes pixels with weights that sum to 1, so it may come before normalising.
    if images.device.type != "cpu":
        shrunk = shrink(images.float(), px, resize)
    else:
        per_call = FLOATS_PER_CALL // max(1, images[:1].numel())
        # A single image that is too large is resized one channel after the other.
        channels = 1 if per_call == 0 else images.shape[1]
        parts = (torch.split(some, channels, dim=1) for some in torch.split(images, max(1, per_call)))
        shrunk = torch.cat([torch.cat([shrink(p.float(), px, resize) for p in some], dim=1) for some in parts])
    return normalise(shrunk / 255, view).contiguous(memory_format=torch.channels_last)


STRIPE_PX = 32  # wide enough for products to be fast, narrow enough for few of their factors to be 0


def antialiased(images: Tensor, size: tuple[int, int]) -> Tensor:
    """The whole of each image (B, C, H, W) at this (height, width): bilinear, over the whole footprint of each new pixel."""
    plain = images.device.type == "cpu" and images.dtype == torch.float32 and not images.requires_grad
    if not plain or images.numel() == 0 or torch.compiler.is_compiling():
        return F.interpolate(images, size=size, mode="bilinear", align_corners=False, antialias=True)
    if torch.is_autocast_enabled("cpu"):
        with torch.autocast("cpu", enabled=False):
            return _by_products(images, size)
    return _by_products(images, size)


def _by_products(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Rows lie one after the other in memory, with their channels or without: few of them make a new one. Then columns are few."""
    (count, channels, height, width), (high, wide) = images.shape, size
    if images.is_contiguous():
        low = _sums_of_rows(images.reshape(-1, width), count * channels, height, high)
        return _sums_of_columns(low, wide).view(count, channels, high, wide)
    rows = images.permute(0, 2, 3, 1).reshape(count * height, width * channels)
    low = _sums_of_rows(rows, count, height, high).view(count * high, width, channels).transpose(1, 2)
    small = _sums_of_columns(low.reshape(-1, width), wide).view(count, high, channels, wide)
    return small.permute(0, 2, 1, 3).contiguous(memory_format=torch.channels_last)


def _sums_of_rows(rows: Tensor, images: int, height: int, high: int) -> Tensor:
    """(images x high, N) out of rows (images x height, N): each a weighted sum of the few rows under it."""
    bags = _bags(images, height, high)
    return F.embedding_bag(bags.rows, rows, bags.begins, mode="sum", per_sample_weights=bags.weights)


def _sums_of_columns(rows: Tensor, wide: int) -> Tensor:
    """(N, wide) out of rows (N, width): products, stripe by stripe, for most of the weights are 0."""
    small = rows.new_empty(rows.shape[0], wide)
    for begin, end, first, matrix in _stripes(rows.shape[1], wide):
        torch.mm(rows[:, first : first + matrix.shape[0]], matrix, out=small[:, begin:end])
    return small


class _Bags(NamedTuple):
    """How sides of several images one after the other become others.

    rows, weights  of all new pixels one after the other; those of the n-th begin at begins[n]
    """

    rows: Tensor
    begins: Tensor
    weights: Tensor


class _Stripe(NamedTuple):
    """New columns begin:end are the old columns from `first` on, times a matrix."""

    begin: int
    end: int
    first: int
    matrix: Tensor


@functools.lru_cache(maxsize=128)
def _taps(side: int, px: int) -> tuple[Rows, Weights]:
    """Which pixels each new pixel is made of, and with which weights, (px, most) both.

    Weights are a triangle over the footprint of a new pixel, cut off at the image's edge, and 0 beyond.
    """
    # float32 all along, and in this order, as torch: so that the numbers are the same.
    scale, half, one = np.float32(side / px), np.float32(0.5), np.float32(1)
    reach = max(scale, one)
    centre = scale * (np.arange(px, dtype=np.float32) + half)
    first = np.maximum(np.floor(centre - reach + half), 0).astype(np.int64)
    last = np.minimum(np.floor(centre + reach + half), side).astype(np.int64)
    rows = first[:, None] + np.arange((last - first).max())
    weights = one - np.abs((rows.astype(np.float32) - centre[:, None] + half) * (one / reach))
    weights = np.maximum(weights, 0) * (rows < last[:, None])
    return np.minimum(rows, side - 1), weights / weights.sum(axis=1, keepdims=True)


@functools.lru_cache(maxsize=64)
def _bags(images: int, height: int, high: int) -> _Bags:
    rows, weights = _taps(height, high)
    taken = weights > 0
    own, counts = rows[taken], taken.sum(axis=1)
    begins, numbers = counts.cumsum() - counts, np.arange(images)[:, None]
    return _Bags(
        rows=_tensor((own + numbers * height).ravel()),
        begins=_tensor((begins + numbers * len(own)).ravel()),
        weights=_tensor(np.tile(weights[taken], images)),
    )


@functools.lru_cache(maxsize=128)
def _stripes(width: int, wide: int) -> tuple[_Stripe, ...]:
    columns, weights = _taps(width, wide)
    used = np.where(weights > 0, columns, -1)
    stripes = []
    for begin in range(0, wide, STRIPE_PX):
        own = slice(begin, begin + STRIPE_PX)
        first, last = int(columns[own].min()), int(used[own].max())
        matrix = np.zeros((last + 1 - first, min(wide, begin + STRIPE_PX) - begin), np.float32)
        number, tap = np.nonzero(weights[own] > 0)
        matrix[columns[own][number, tap] - first, number] = weights[own][number, tap]
        stripes.append(_Stripe(begin, begin + matrix.shape[1], first, _tensor(matrix)))
    return tuple(stripes)


def _tensor(numbers: NDArray[Any]) -> Tensor:
    with torch.inference_mode(False):  # so that it may be used outside of it, too
        return torch.from_numpy(numbers)
