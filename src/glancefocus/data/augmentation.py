"""Random changes of training images that keep the label: cropping, mirroring, shifting."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from glancefocus.data.images import pixels_of, view_picture
from glancefocus.errors import BadSetting
from glancefocus.machine import ensure_torchvision
from glancefocus.region import normalise
from glancefocus.settings import Interpolation, ViewSettings
from glancefocus.values import PositiveShare, Repeats, Share, Shift, check_fields


@dataclass(frozen=True)
class AugmentSettings:
    """Random changes of training images that keep the label; for digits and road signs turn them off.

    crop      train on a random part of at least this share of the area, resized to the view's size; 1 turns it off. Clips are
              cropped as in TSM, to 1, 7/8, 3/4 or 0.66 of the side, the same part in all frames, whatever the share
    flip      mirror left and right with probability 0.5
    shift_px  move by up to this many pixels vertically and horizontally, repeating the edge; the object may be cut off
    shift_share  share of the images that are moved
    light     share of the images whose light changes: colours in [0, 1] times 0.8 to 1.2, plus -0.1 to 0.1 (pictures in files)
    repeat    number of different versions of each image in stages that learn from the backbone, whose answers to them are then
              computed once; 0: new versions in every epoch
    crop_resize  how random parts of images are resized; clips are resized as in evaluation
    """

    crop: PositiveShare = 0.08
    flip: bool = True
    shift_px: Shift = 0
    shift_share: Share = 1.0
    light: Share = 0.0
    repeat: Repeats = 0
    crop_resize: Interpolation = "bilinear"

    def __post_init__(self) -> None:
        check_fields(self)


def augmented(
    picture: Image.Image | NDArray[np.uint8], view: ViewSettings, augment: AugmentSettings, seed: int
) -> Tensor:
    """The normalised image (3, H, W) of a picture, randomly changed as the settings allow, and otherwise as in evaluation.

    picture  an RGB picture, or its pixels (H, W, 3), of which only the part that is seen is copied
    """
    ensure_torchvision()
    from torchvision.transforms import v2

    size = (view.height_px, view.width_px)
    cropped = augment.crop < 1 and view.fit != "whole"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if cropped:
            pixels = (
                pixels_of(picture) if isinstance(picture, Image.Image) else torch.from_numpy(picture).permute(2, 0, 1)
            )
            part = v2.RandomResizedCrop(size, scale=(augment.crop, 1.0)).make_params([pixels])
        flip = augment.flip and bool(torch.rand(1) < 0.5)
        light = torch.rand(3).tolist() if augment.light > 0 else None
    if cropped:
        how = v2.InterpolationMode(augment.crop_resize)
        resized = v2.functional.resized_crop(pixels, **part, size=list(size), interpolation=how, antialias=True)
        image = normalise(resized, view)
    else:
        image, _ = view_picture(picture if isinstance(picture, Image.Image) else Image.fromarray(picture), view)
    if light is not None and light[0] < augment.light:
        image = relit(image, view, 0.8 + 0.4 * light[1], -0.1 + 0.2 * light[2])
    moves = augment.shift_share == 1 or mix(seed, _SHIFTED) / 2**63 < augment.shift_share
    return shifted(image.flip(-1) if flip else image, seed, augment.shift_px if moves else 0)


_SHIFTED = 0x5348


def relit(image: Tensor, view: ViewSettings, times: float, plus: float) -> Tensor:
    """A normalised image (3, H, W) whose colours in [0, 1] are multiplied and added to; they may leave [0, 1]."""
    mean, std = (torch.tensor(colours)[:, None, None] for colours in (view.mean, view.std))
    return ((image * std + mean) * times + plus - mean) / std


def shifted(image: Tensor, seed: int, most_px: int) -> Tensor:
    """An image (..., H, W) moved at random by up to most_px along both axes; the edge is repeated to fill the gap."""
    if most_px == 0:
        return image
    if 2 * most_px > min(image.shape[-2:]):
        raise BadSetting(
            f"shift_px is {most_px}, which could move all of an image of {image.shape[-2]}x{image.shape[-1]} px out of sight. "
            "Choose at most half of the shorter side."
        )
    for axis in (-2, -1):
        by, side = shift_of(seed, axis, most_px), image.shape[axis]
        edge = image.narrow(axis, 0 if by > 0 else side - 1, 1)
        beyond = edge.repeat_interleave(abs(by), dim=axis)
        kept = image.narrow(axis, max(0, -by), side - abs(by))
        image = torch.cat([beyond, kept] if by > 0 else [kept, beyond], dim=axis)
    return image


def shift_of(seed: int, axis: int, most_px: int) -> int:
    """How many px an image is moved along this axis (-2 or -1)."""
    return mix(seed, axis) % (2 * most_px + 1) - most_px


def mix(*numbers: int) -> int:
    """One seed from several numbers; neighbouring numbers give unrelated seeds."""
    mixed = 0x9E3779B97F4A7C15
    for number in numbers:
        mixed = (mixed ^ (number & 0xFFFFFFFFFFFFFFFF)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 31
    return mixed & 0x7FFFFFFFFFFFFFFF
