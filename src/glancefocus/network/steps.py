"""Coarse to fine: which part of an image a look saw, and which view the next look of a zooming network has.

Each focus look has the largest view that is clearly smaller than the region of the last look, down to pixels as they are; there it
stays, beside the last one. So the number of steps follows from the size of each image, in training and in prediction alike.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from glancefocus.look import Look, sizes_of
from glancefocus.settings import GLANCE, View

CLEARLY_SMALLER = 0.75
"""A step goes to a view with at most this share of the last region's side."""


def next_view(views: Sequence[View], look: Look) -> int | Tensor:
    """The candidate of the next look: one for all rows where it is the same, else (B,).

    views  the candidates
    """
    sizes = sizes_of(look.scene)
    side = region_of(views, look)[:, 2:].amin(dim=1, keepdim=True)
    extents = torch.stack([extents_px(views, each, sizes) for each in range(len(views))], dim=1)
    px = torch.tensor([view.px for view in views], dtype=extents.dtype)
    # A view of fewer pixels than the encoder gets shows nothing new, unless there is no other.
    shown = extents >= px
    shown |= ~shown.any(dim=1, keepdim=True)
    smaller = shown & (extents <= CLEARLY_SMALLER * side)
    order = torch.arange(len(px), dtype=extents.dtype) / len(px)  # of equal ones the last, which has the most pixels
    largest = torch.where(smaller, extents + order, -torch.inf).argmax(dim=1)
    finest = torch.where(shown, extents - order, torch.inf).argmin(dim=1)
    chosen = torch.where(smaller.any(dim=1), largest, finest)
    first = int(chosen[0])
    return first if bool((chosen == first).all()) else chosen.to(look.logits.device)


def region_of(views: Sequence[View], look: Look) -> Tensor:
    """(B, 4) float64 top, left, height and width of what a look saw, in pixels of each image."""
    sizes = sizes_of(look.scene)
    seen = torch.cat([torch.zeros_like(sizes), sizes], dim=1)
    last, where = extents_px(views, look.candidate, sizes), look.where
    if where is None:
        return seen
    free = (sizes - last[:, None]).clamp_min(0)
    begin = (where.to(sizes) * free).floor()
    square = torch.cat([begin, last[:, None].expand(-1, 2)], dim=1)
    return torch.where(last[:, None] > 0, square, seen)


def extents_px(views: Sequence[View], candidate: int | Tensor, sizes: Tensor) -> Tensor:
    """(B,) side of the squares that looks at candidates cover in images of these sizes; 0: the whole image."""
    numbers = [candidate] * len(sizes) if isinstance(candidate, int) else candidate.tolist()
    chosen = [None if number == GLANCE else views[number] for number in numbers]
    sides = [
        0 if view is None or view.is_whole else view.extent_px(int(height), int(width))
        for view, (height, width) in zip(chosen, sizes.tolist(), strict=True)
    ]
    return torch.tensor(sides, dtype=sizes.dtype)
