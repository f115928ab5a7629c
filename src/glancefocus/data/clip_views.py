"""How a clip becomes the frames that a network looks at: all through one view, and when training all cut alike."""

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from glancefocus.data.clips import Clip, read_clip
from glancefocus.data.images import as_tensor
from glancefocus.data.splits import AugmentSettings, Batch, FileSplit, as_pixels, mix, shifted
from glancefocus.data.video import Limits
from glancefocus.data.views import Picture, view_picture, view_tensor
from glancefocus.errors import BadImage
from glancefocus.free_memory import check_memory
from glancefocus.region import Placement, normalise
from glancefocus.settings import ViewSettings

SCALES = (1.0, 0.875, 0.75, 0.66)
"""Sides of the crops that TSM trains with, as shares of the largest one."""

# Where a crop may lie, in quarters of the room that it leaves: corners, edges and middle, and four places between.
_PLACES = tuple((y, x) for y in range(5) for x in range(5) if (y % 2 == 0) == (x % 2 == 0))
_PIL = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def view_clip(
    source: str | Path | bytes,
    frames: int,
    view: ViewSettings,
    *,
    limits: Limits | None = None,
    name: str | None = None,
    least_px: int = 1,
) -> tuple[Tensor, Placement, Clip[Tensor]]:
    """The normalised frames (F, 3, H, W) of a clip, where they lie in its pictures, and what is to be said about it."""
    placements: list[Placement] = []

    def keep(picture: Image.Image) -> Tensor:
        image, placement = view_picture(picture, view, least_px)
        if not placements:
            check_frames(image, frames, name or ("a clip" if isinstance(source, bytes) else str(source)))
        placements.append(placement)
        return image

    clip = read_clip(source, frames, keep, limits=limits, name=name)
    return torch.stack(clip.frames), placements[0], clip


def check_frames(first: Tensor, frames: int, name: str) -> None:
    """Refuse a clip whose frames would not fit into memory; they are copied once to become one tensor."""
    check_memory(2 * frames * first.numel() * first.element_size(), f"{name} ({frames} frames)")


def view_any_clip(clip: Picture, frames: int, view: ViewSettings, least_px: int = 1) -> tuple[Tensor, Placement]:
    """The same for a clip in any form that people have; arrays are (F, H, W, 3) of uint8, tensors (F, 3, H, W)."""
    if isinstance(clip, np.ndarray):
        if clip.ndim != 4 or clip.shape[3] != 3 or clip.dtype != np.uint8:
            raise BadImage(
                f"a clip as an array must be uint8 (frames, height, width, 3), but got {clip.dtype} {clip.shape}."
            )
        clip = torch.from_numpy(clip).permute(0, 3, 1, 2)
    if isinstance(clip, Tensor):
        return view_clip_tensor(clip, frames, view, least_px)
    if isinstance(clip, Image.Image):
        raise BadImage(
            f"this network looks at clips of {frames} frames, not at a single picture. Give a video, or a tensor."
        )
    image, placement, _ = view_clip(clip, frames, view, least_px=least_px)
    return image, placement


def view_clip_tensor(clip: Tensor, frames: int, view: ViewSettings, least_px: int = 1) -> tuple[Tensor, Placement]:
    """The same for a clip that is a tensor (F, 3, H, W): uint8, or floats in [0, 1]."""
    if clip.dim() != 4 or clip.shape[0] != frames or clip.shape[1] != 3:
        raise BadImage(f"a clip must have the shape ({frames}, 3, height, width), but got {tuple(clip.shape)}.")
    viewed = [view_tensor(image, view, least_px) for image in clip]
    return torch.stack([image for image, _ in viewed]), viewed[0][1]


def augmented_clip(source: Path, frames: int, view: ViewSettings, augment: AugmentSettings, seed: int) -> Tensor:
    """Normalised frames (F, 3, H, W) from random places in time, all cut, mirrored and shifted alike, as TSM trains."""

    def keep(picture: Image.Image) -> Tensor:
        draw = random.Random(seed)  # anew for each frame: the same choice for all of them
        mirrored = augment.flip and draw.random() < 0.5
        if augment.crop < 1 and view.fit != "whole":
            box = multi_scale_crop(picture.height, picture.width, view, draw)
            resized = picture.resize((view.width_px, view.height_px), _PIL[view.interpolation], box=box)
            image = normalise(as_tensor(resized), view)
        else:
            image, _ = view_picture(picture, view)
        return shifted(image.flip(-1) if mirrored else image, seed, augment.shift_px)

    return torch.stack(read_clip(source, frames, keep, seed=seed).frames)


def multi_scale_crop(height: int, width: int, view: ViewSettings, draw: random.Random) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) of a part of a frame: TSM's multi-scale crop.

    Height and width are shares of the largest crop of the view's shape, a step apart at most; 13 places, of which one is drawn.
    """
    scale = min(height / view.height_px, width / view.width_px)
    largest_h, largest_w = view.height_px * scale, view.width_px * scale
    sides = [
        (_snapped(largest_h * SCALES[i], view.height_px), _snapped(largest_w * SCALES[j], view.width_px))
        for i in range(len(SCALES))
        for j in range(len(SCALES))
        if abs(i - j) <= 1
    ]
    crop_h, crop_w = draw.choice(sides)
    quarters_y, quarters_x = draw.choice(_PLACES)
    top, left = quarters_y * ((height - crop_h) // 4), quarters_x * ((width - crop_w) // 4)
    return left, top, left + crop_w, top + crop_h


def _snapped(side: float, wanted_px: int) -> int:
    """A side that nearly fits is made to fit, so that nothing is resized by a pixel or two."""
    return wanted_px if abs(int(side + 1e-6) - wanted_px) < 3 and wanted_px <= side else max(1, int(side + 1e-6))


@dataclass
class ClipFileSplit(FileSplit):
    """Clips in video files or in folders of frames; their batches are (B, frames, 3, H, W)."""

    frames: int = 8

    @property
    def fixed(self) -> bool:
        return False  # frames are drawn from random places in time

    def _reader(self) -> "Dataset[Batch | str]":
        return _Clips(self.files, self.labels, self.view, self.augment, self.frames)

    def _viewed(self, index: int) -> Tensor:
        clip, _, _ = view_clip(self.files[index], self.frames, as_pixels(self.view))
        return (clip * 255).round().to(torch.uint8)


class _Clips(Dataset[Batch | str]):
    """One clip of a split, for the loader's workers; or what is wrong with it."""

    def __init__(
        self, files: list[Path], labels: Tensor, view: ViewSettings, augment: AugmentSettings, frames: int
    ) -> None:
        self.files = files
        self.labels = labels
        self.view = view
        self.augment = augment
        self.frames = frames

    def __getitem__(self, asked: tuple[int, int | None]) -> Batch | str:
        index, seed = asked
        file = self.files[index]
        try:
            if seed is None:
                clip, _, _ = view_clip(file, self.frames, self.view)
            else:
                clip = augmented_clip(file, self.frames, self.view, self.augment, mix(seed, index))
        except BadImage as error:
            return f"{error} Remove the clip, or let the check of the files skip it (--check-files)."
        return clip, self.labels[index]
