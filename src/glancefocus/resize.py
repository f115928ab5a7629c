"""Antialiased resizing on the CPU by products with rows and columns: the numbers of torch's own, in a third of its time."""

import functools
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

Rows = NDArray[np.int64]
Weights = NDArray[np.float32]

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
