"""From a picture to the image that a network gets, with augmentation for training, and from boxes in the image back to the picture.

All functions that take a Pillow image expect it in RGB and upright, as images.read_picture and video.frame_picture return it: a
picture is converted once, where it is read.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from glancefocus.data.images import pixels_of
from glancefocus.errors import BadImage, BadSetting, ImageTooSmall
from glancefocus.free_memory import check_memory
from glancefocus.region import Placement, normalise
from glancefocus.settings import ViewSettings, check_fields
from glancefocus.torchvision_whole import ensure_torchvision
from glancefocus.values import PositiveShare, Shift

Picture = str | Path | bytes | Image.Image | Tensor | np.ndarray[Any, Any]
"""A file, the bytes of one, or pixels."""

LARGE_PIXELS = 1 << 22
"""An image with more pixels stays uint8, a quarter of the memory; only the parts that are looked at are normalised."""
_IMAGE_BYTES = 12  # for one pixel: 3 in the image, 4 in the picture, and some while the picture is resized
_FLOAT_BYTES = 32  # for one pixel of a tensor: floats, twice while they are normalised
_RIBBON_ASPECT = 16  # a picture at least this many times as long as it is wide, compared with the view, is a ribbon
RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def view_picture(picture: Image.Image, view: ViewSettings, least_px: int = 1) -> tuple[Tensor, Placement]:
    """The normalised image (3, H, W) of an RGB picture, and its position in the picture; see view_pixels."""
    pixels, placement = view_pixels(picture, view, least_px)
    return normalise(pixels, view), placement


def view_pixels(picture: Image.Image, view: ViewSettings, least_px: int = 1) -> tuple[Tensor, Placement]:
    """The image (3, H, W) of an RGB picture as uint8, not normalised, and its position in the picture.

    least_px  the side of the largest patch that will be cut out: a smaller picture is upscaled until the patch fits
    """
    width, height = picture.size
    note = _upscaling(height, width, least_px)
    cut_top, cut_left, height, width = _middle(height, width, view)
    new_h, new_w = _resized(height, width, view, least_px)
    check_memory(_IMAGE_BYTES * new_h * new_w, f"an image of {new_w}x{new_h} px")
    if (width, height) != picture.size:
        picture = picture.crop((cut_left, cut_top, cut_left + width, cut_top + height))
    if (new_h, new_w) != (height, width):
        picture = picture.resize((new_w, new_h), RESAMPLING[view.interpolation])
    top, left, crop_h, crop_w = _cropped(new_h, new_w, view)
    if (crop_h, crop_w) != (new_h, new_w):
        picture = picture.crop((left, top, left + crop_w, top + crop_h))
    scale_y, scale_x = new_h / height, new_w / width
    placement = Placement(scale_y, scale_x, top + cut_top * scale_y, left + cut_left * scale_x, note)
    return pixels_of(picture), placement


def normalise_small(pixels: Tensor, view: ViewSettings) -> Tensor:
    """Pixels (3, H, W) normalised; a large image stays uint8, and its scene normalises the parts that are looked at."""
    return pixels if pixels.shape[-1] * pixels.shape[-2] > LARGE_PIXELS else normalise(pixels, view)


def view_tensor(image: Tensor, view: ViewSettings, least_px: int = 1) -> tuple[Tensor, Placement]:
    """The normalised image of a tensor (3, H, W), uint8 or floats in [0, 1]; a tensor of the right size is not resized."""
    if image.dim() != 3 or image.shape[0] != 3:
        raise BadImage(f"an image must have the shape (3, height, width), but got {tuple(image.shape)}.")
    height, width = image.shape[1:]
    note = _upscaling(height, width, least_px)
    if image.dtype != torch.uint8 and (not image.is_floating_point() or not bool(image.isfinite().all())):
        raise BadImage(f"an image must be uint8 or finite floats in [0, 1], but got {image.dtype}.")
    if image.is_floating_point() and (float(image.min()) < -1e-3 or float(image.max()) > 1 + 1e-3):
        raise BadImage(
            f"an image of floats must be within [0, 1], but this one ranges from {float(image.min()):.3g} to "
            f"{float(image.max()):.3g}. Divide it by 255, or give uint8; normalising is done for you."
        )
    as_it_is = (height, width) if view.fit == "whole" else (view.height_px, view.width_px)
    if (height, width) == as_it_is and min(height, width) >= least_px:
        return normalise(image, view), Placement()
    cut_top, cut_left, height, width = _middle(height, width, view)
    image = image[:, cut_top : cut_top + height, cut_left : cut_left + width]
    new_h, new_w = _resized(height, width, view, least_px)
    check_memory(_FLOAT_BYTES * new_h * new_w, f"an image of {new_w}x{new_h} px")
    floats = image.float() / 255 if image.dtype == torch.uint8 else image.float()
    resized = F.interpolate(floats[None], size=(new_h, new_w), mode=view.interpolation, antialias=True)[0].clamp(0, 1)
    top, left, crop_h, crop_w = _cropped(new_h, new_w, view)
    cropped = resized[:, top : top + crop_h, left : left + crop_w]
    scale_y, scale_x = new_h / height, new_w / width
    return normalise(cropped, view), Placement(
        scale_y, scale_x, top + cut_top * scale_y, left + cut_left * scale_x, note
    )


def view_array(
    picture: Tensor | np.ndarray[Any, Any], view: ViewSettings, least_px: int = 1
) -> tuple[Tensor, Placement]:
    """The image of pixels that are a tensor, see view_tensor, or an array (H, W, 3) of uint8.

    An array is resized by Pillow, like a file; if it is large, the image is not normalised, see normalise_small.
    """
    if isinstance(picture, Tensor):
        return view_tensor(picture, view, least_px)
    if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
        raise BadImage(f"an array must be uint8 (height, width, 3), but got {picture.dtype} {picture.shape}.")
    _upscaling(picture.shape[0], picture.shape[1], least_px)  # refuses an array without pixels, which Pillow accepts
    pixels, placement = view_pixels(Image.fromarray(picture), view, least_px)
    return normalise_small(pixels, view), placement


def _upscaling(height: int, width: int, least_px: int) -> str:
    """The remark on a picture that is smaller than the patch; empty for others. Refuses a picture without pixels."""
    if min(height, width) < 1:
        raise ImageTooSmall(f"an image of {height}x{width} px has no pixels. Give one of at least 1x1 px.")
    return f"upscaled from {width}x{height} px" if min(height, width) < least_px else ""


def _middle(height: int, width: int, view: ViewSettings) -> tuple[int, int, int, int]:
    """(top, left, height, width) of the part that is resized: all of a usual picture, the middle of a very long one.

    Resizing a whole picture of 8x1,000,000 px until its short side fits would take gigabytes, and only its middle is used.
    """
    if view.fit != "crop":
        return 0, 0, height, width
    aspect = max(view.height_px / view.width_px, view.width_px / view.height_px)
    longest = int(_RIBBON_ASPECT * aspect * min(height, width))
    kept_h, kept_w = min(height, longest), min(width, longest)
    return (height - kept_h) // 2, (width - kept_w) // 2, kept_h, kept_w


def _resized(height: int, width: int, view: ViewSettings, least_px: int) -> tuple[int, int]:
    """(height, width) that the part is resized to."""
    if view.fit == "whole":
        return _upscaled(height, width, least_px)
    if view.fit == "stretch":
        return view.height_px, view.width_px
    # As torchvision's Resize: the short side exactly, the long side rounded down.
    target_h, target_w = int(view.height_px / view.crop_pct), int(view.width_px / view.crop_pct)
    if target_h / height >= target_w / width:
        return target_h, max(target_w, int(target_h * width / height))
    return max(target_h, int(target_w * height / width)), target_w


def _upscaled(height: int, width: int, least_px: int) -> tuple[int, int]:
    """The size at which the shorter side holds a patch; a picture that is large enough keeps its own size.

    Both sides grow by the same factor, except that the longer side of a very long picture grows less or not at all: upscaling a
    picture of 1x100,000 px would take gigabytes.
    """
    scale = least_px / min(height, width)
    if scale <= 1:
        return height, width
    most = _RIBBON_ASPECT * least_px
    new_h, new_w = (max(least_px, side, min(round(side * scale), most)) for side in (height, width))
    return new_h, new_w


def _cropped(height: int, width: int, view: ViewSettings) -> tuple[int, int, int, int]:
    if view.fit != "crop":
        return 0, 0, height, width
    top, left = round((height - view.height_px) / 2), round((width - view.width_px) / 2)
    return top, left, view.height_px, view.width_px


def as_pixels(view: ViewSettings) -> ViewSettings:
    """The same view without normalisation: colours stay in [0, 1]."""
    return replace(view, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


@dataclass(frozen=True)
class AugmentSettings:
    """Random changes of training images that keep the label; for digits and road signs turn them off.

    crop      train on a random part of at least this share of the area, resized to the view's size; 1 turns it off. Clips are
              cropped as in TSM, to 1, 7/8, 3/4 or 0.66 of the side, the same part in all frames, whatever the share
    flip      mirror left and right with probability 0.5
    shift_px  move by up to this many pixels vertically and horizontally, repeating the edge; the object may be cut off
    """

    crop: PositiveShare = 0.08
    flip: bool = True
    shift_px: Shift = 0

    def __post_init__(self) -> None:
        check_fields(self)


def augmented(picture: Image.Image, view: ViewSettings, augment: AugmentSettings, seed: int) -> Tensor:
    """The normalised image (3, H, W) of a picture, randomly changed as the settings allow, and otherwise as in evaluation."""
    ensure_torchvision()
    from torchvision.transforms import v2

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if augment.crop < 1 and view.fit != "whole":
            crop = v2.RandomResizedCrop((view.height_px, view.width_px), scale=(augment.crop, 1.0), antialias=True)
            image: Tensor = normalise(crop(pixels_of(picture)), view)
        else:
            image, _ = view_picture(picture, view)
        if augment.flip:
            image = v2.RandomHorizontalFlip()(image)
    return shifted(image, seed, augment.shift_px)


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
