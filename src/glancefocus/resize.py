"""Antialiased resizing on the CPU by products with rows and columns: the numbers of torch's own, in a third of its time."""

import functools
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_PLAIN: Any = {"dtype": torch.float32, "device": "cpu"}  # whatever somebody made torch's defaults

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
    """New columns from begin to end are so many old ones, beginning with the first, times a matrix."""

    begin: int
    end: int
    first: int
    matrix: Tensor


@functools.lru_cache(maxsize=64)
def _taps(side: int, px: int) -> tuple[Tensor, Tensor]:
    """Which pixels each new pixel is made of, and with which weights, (px, most) both.

    Weights are a triangle over the footprint of a new pixel, cut off at the image's edge, and 0 beyond.
    """
    with torch.inference_mode(False):  # so that they may be used outside of it, too
        # float32 all along, and in this order, as torch: so that the numbers are the same.
        scale = torch.tensor(side / px, **_PLAIN)
        reach = scale.clamp_min(1)
        centre = scale * (torch.arange(px, **_PLAIN) + 0.5)
        first = (centre - reach + 0.5).floor().clamp_min(0).long()
        last = (centre + reach + 0.5).floor().clamp_max(side).long()
        rows = first[:, None] + torch.arange(int((last - first).max()), device="cpu")
        weights = 1 - ((rows - centre[:, None] + 0.5) * (1 / reach)).abs()
        weights = weights.clamp_min(0) * (rows < last[:, None])
        return rows.clamp_max(side - 1), weights / weights.sum(dim=1, keepdim=True)


@functools.lru_cache(maxsize=16)
def _bags(images: int, height: int, high: int) -> _Bags:
    rows, weights = _taps(height, high)
    with torch.inference_mode(False):
        taken = weights > 0
        begins = taken.sum(dim=1).cumsum(0).roll(1)
        begins[0] = 0
        numbers, own = torch.arange(images, device="cpu")[:, None], rows[taken]
        return _Bags(
            (own + numbers * height).flatten(), (begins + numbers * len(own)).flatten(), weights[taken].repeat(images)
        )


@functools.lru_cache(maxsize=64)
def _stripes(width: int, wide: int) -> tuple[_Stripe, ...]:
    columns, weights = _taps(width, wide)
    with torch.inference_mode(False):
        whole = torch.zeros(wide, width, **_PLAIN).scatter_add_(1, columns, weights)
        stripes = []
        for begin in range(0, wide, STRIPE_PX):
            own = whole[begin : begin + STRIPE_PX]
            used = own.sum(dim=0).nonzero()[:, 0]
            first, last = int(used[0]), int(used[-1])
            matrix = own[:, first : last + 1].T.contiguous()
            stripes.append(_Stripe(begin, begin + own.shape[0], first, matrix))
        return tuple(stripes)
