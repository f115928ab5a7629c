"""How a picture becomes the image that a network looks at, and how boxes find their way back onto the picture."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from glancefocus.data.images import as_rgb, pixels_of, read_picture
from glancefocus.errors import BadImage, ImageTooSmall
from glancefocus.free_memory import check_memory
from glancefocus.region import Placement, normalise
from glancefocus.settings import ViewSettings

Picture = str | Path | bytes | Image.Image | Tensor | np.ndarray[Any, Any]
"""A file, the bytes of one, or pixels."""

LARGE_PIXELS = 1 << 22
"""An image with more pixels stays uint8, a quarter of the memory, and is normalised where it is looked at."""
_IMAGE_BYTES = 12  # of one pixel: 3 in the image, 4 in the picture, and some while the picture is resized
_FLOAT_BYTES = 32  # of one pixel of a tensor: floats, twice while they are normalised
_RIBBON_ASPECT = 16  # a picture this many times as long as the view, or longer, is a ribbon
_PIL = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def view_picture(picture: Image.Image, view: ViewSettings, least_px: int = 1) -> tuple[Tensor, Placement]:
    """The normalised image (3, H, W) of an RGB picture, and where it lies in it; see view_pixels."""
    pixels, placement = view_pixels(picture, view, least_px)
    return normalise(pixels, view), placement


def view_pixels(picture: Image.Image, view: ViewSettings, least_px: int = 1) -> tuple[Tensor, Placement]:
    """The same before it is normalised, uint8.

    least_px  the largest patch that will be cut out: a smaller picture is upscaled until one fits
    """
    width, height = picture.size
    note = _upscaling(height, width, least_px)
    cut_top, cut_left, height, width = _middle(height, width, view)
    new_h, new_w = _resized(height, width, view, least_px)
    check_memory(_IMAGE_BYTES * new_h * new_w, f"an image of {new_w}x{new_h} px")
    if (width, height) != picture.size:
        picture = picture.crop((cut_left, cut_top, cut_left + width, cut_top + height))
    if (new_h, new_w) != (height, width):
        picture = picture.resize((new_w, new_h), _PIL[view.interpolation])
    top, left, crop_h, crop_w = _cropped(new_h, new_w, view)
    if (crop_h, crop_w) != (new_h, new_w):
        picture = picture.crop((left, top, left + crop_w, top + crop_h))
    scale_y, scale_x = new_h / height, new_w / width
    placement = Placement(scale_y, scale_x, top + cut_top * scale_y, left + cut_left * scale_x, note)
    return pixels_of(picture), placement


def normalise_small(pixels: Tensor, view: ViewSettings) -> Tensor:
    """Pixels (3, H, W) normalised; those of a large image stay uint8, for its scene to normalise what is looked at."""
    return pixels if pixels.shape[-1] * pixels.shape[-2] > LARGE_PIXELS else normalise(pixels, view)


def view_tensor(image: Tensor, view: ViewSettings, least_px: int = 1) -> tuple[Tensor, Placement]:
    """The same for an image that is a tensor (3, H, W): uint8, or floats in [0, 1]. One of the right size is not resized."""
    if image.dim() != 3 or image.shape[0] != 3:
        raise BadImage(f"an image must have the shape (3, height, width), but got {tuple(image.shape)}.")
    height, width = image.shape[1:]
    note = _upscaling(height, width, least_px)
    if image.dtype != torch.uint8 and (not image.is_floating_point() or not bool(image.isfinite().all())):
        raise BadImage(f"an image must be uint8 or finite floats in [0, 1], but got {image.dtype}.")
    if image.is_floating_point() and (float(image.min()) < -1e-3 or float(image.max()) > 1 + 1e-3):
        raise BadImage(
            f"an image of floats must lie in [0, 1], but this one goes from {float(image.min()):.3g} to "
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


def view_any(picture: Picture, view: ViewSettings, least_px: int = 1) -> tuple[Tensor, Placement]:
    """The same for a picture in any form that people have; a large one is uint8, see normalise_small."""
    if isinstance(picture, np.ndarray):
        if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
            raise BadImage(f"an array must be uint8 (height, width, 3), but got {picture.dtype} {picture.shape}.")
        _upscaling(
            picture.shape[0], picture.shape[1], least_px
        )  # refuses an array without pixels, which Pillow would not
        picture = Image.fromarray(picture)
    if isinstance(picture, Tensor):
        return view_tensor(picture, view, least_px)
    picture = as_rgb(picture) if isinstance(picture, Image.Image) else read_picture(picture)
    pixels, placement = view_pixels(picture, view, least_px)
    return normalise_small(pixels, view), placement


def _upscaling(height: int, width: int, least_px: int) -> str:
    """The note for a picture that no patch fits into; empty for others. A picture without pixels is refused."""
    if min(height, width) < 1:
        raise ImageTooSmall(f"an image of {height}x{width} px has no pixels. Give one of at least 1x1 px.")
    return f"upscaled from {width}x{height} px" if min(height, width) < least_px else ""


def _middle(height: int, width: int, view: ViewSettings) -> tuple[int, int, int, int]:
    """(top, left, height, width) of what is resized at all: of a ribbon only the middle, for that is where the crop lies.

    Resizing the whole of a picture of 8x1,000,000 px until its short side fits would take gigabytes.
    """
    if view.fit != "crop":
        return 0, 0, height, width
    aspect = max(view.height_px / view.width_px, view.width_px / view.height_px)
    longest = int(_RIBBON_ASPECT * aspect * min(height, width))
    kept_h, kept_w = min(height, longest), min(width, longest)
    return (height - kept_h) // 2, (width - kept_w) // 2, kept_h, kept_w


def _resized(height: int, width: int, view: ViewSettings, least_px: int) -> tuple[int, int]:
    """(height, width) that the middle of a picture is brought to."""
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
    """The size at which the shorter side holds a patch; of a picture that is large enough, its own.

    Both sides grow alike. Only of a ribbon the longer side grows less, or stays: a picture of 1x100,000 px would take gigabytes.
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
