"""How a picture becomes the image that a network looks at, and how boxes find their way back onto the picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from glancefocus.data.pictures import as_rgb, as_tensor, read_picture
from glancefocus.errors import BadImage, ImageTooSmall
from glancefocus.scene import normalise
from glancefocus.settings import ViewSettings

Picture = str | Path | bytes | Image.Image | Tensor | np.ndarray[Any, Any]
"""A file, the bytes of one, or pixels."""

MIN_SIDE_PX = 8
_RIBBON_ASPECT = 16  # a picture this many times as long as the view, or longer, is a ribbon
_PIL = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@dataclass(frozen=True)
class Placement:
    """Where the image that was looked at lies in its picture: picture = (image + offset) / scale, in pixels."""

    scale_y: float = 1.0
    scale_x: float = 1.0
    offset_y: float = 0.0
    offset_x: float = 0.0

    def box_in_picture(self, top: float, left: float, px: int) -> tuple[int, int, int, int]:
        """(left, top, right, bottom) in the picture's pixels of a patch of the image."""
        return (
            round((left + self.offset_x) / self.scale_x),
            round((top + self.offset_y) / self.scale_y),
            round((left + px + self.offset_x) / self.scale_x),
            round((top + px + self.offset_y) / self.scale_y),
        )


def view_picture(picture: Image.Image, view: ViewSettings) -> tuple[Tensor, Placement]:
    """The normalised image (3, H, W) of an RGB picture, and where it lies in it."""
    width, height = picture.size
    _refuse_specks(height, width)
    cut_top, cut_left, height, width = _middle(height, width, view)
    if (width, height) != picture.size:
        picture = picture.crop((cut_left, cut_top, cut_left + width, cut_top + height))
    new_h, new_w = _resized(height, width, view)
    if (new_h, new_w) != (height, width):
        picture = picture.resize((new_w, new_h), _PIL[view.interpolation])
    top, left, crop_h, crop_w = _cropped(new_h, new_w, view)
    if (crop_h, crop_w) != (new_h, new_w):
        picture = picture.crop((left, top, left + crop_w, top + crop_h))
    scale_y, scale_x = new_h / height, new_w / width
    return normalise(as_tensor(picture), view), Placement(
        scale_y, scale_x, top + cut_top * scale_y, left + cut_left * scale_x
    )


def view_tensor(image: Tensor, view: ViewSettings) -> tuple[Tensor, Placement]:
    """The same for an image that is a tensor (3, H, W): uint8, or floats in [0, 1]. One of the right size is not resized."""
    if image.dim() != 3 or image.shape[0] != 3:
        raise BadImage(f"an image must have the shape (3, height, width), but got {tuple(image.shape)}.")
    height, width = image.shape[1:]
    _refuse_specks(height, width)
    if image.dtype != torch.uint8 and (not image.is_floating_point() or not bool(image.isfinite().all())):
        raise BadImage(f"an image must be uint8 or finite floats in [0, 1], but got {image.dtype}.")
    if image.is_floating_point() and (float(image.min()) < -1e-3 or float(image.max()) > 1 + 1e-3):
        raise BadImage(
            f"an image of floats must lie in [0, 1], but this one goes from {float(image.min()):.3g} to "
            f"{float(image.max()):.3g}. Divide it by 255, or give uint8; normalising is done for you."
        )
    if view.fit == "whole" or (height, width) == (view.height_px, view.width_px):
        return normalise(image, view), Placement()
    cut_top, cut_left, height, width = _middle(height, width, view)
    image = image[:, cut_top : cut_top + height, cut_left : cut_left + width]
    new_h, new_w = _resized(height, width, view)
    floats = image.float() / 255 if image.dtype == torch.uint8 else image.float()
    resized = F.interpolate(floats[None], size=(new_h, new_w), mode=view.interpolation, antialias=True)[0].clamp(0, 1)
    top, left, crop_h, crop_w = _cropped(new_h, new_w, view)
    cropped = resized[:, top : top + crop_h, left : left + crop_w]
    scale_y, scale_x = new_h / height, new_w / width
    return normalise(cropped, view), Placement(scale_y, scale_x, top + cut_top * scale_y, left + cut_left * scale_x)


def view_any(picture: Picture, view: ViewSettings) -> tuple[Tensor, Placement]:
    """The same for a picture in any form that people have."""
    if isinstance(picture, np.ndarray):
        if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
            raise BadImage(f"an array must be uint8 (height, width, 3), but got {picture.dtype} {picture.shape}.")
        picture = Image.fromarray(picture)
    if isinstance(picture, Tensor):
        return view_tensor(picture, view)
    return view_picture(as_rgb(picture) if isinstance(picture, Image.Image) else read_picture(picture), view)


def several(pictures: Picture | Sequence[Picture], frames: int = 1) -> list[Picture]:
    """Pictures, or clips of so many frames, as a list: one alone, a sequence of them, or a tensor with one more dimension."""
    if isinstance(pictures, Tensor) and pictures.dim() == (4 if frames == 1 else 5):
        return list(pictures)
    if isinstance(pictures, (str, Path, bytes, Image.Image, Tensor, np.ndarray)):
        return [pictures]
    return list(pictures)


def _refuse_specks(height: int, width: int) -> None:
    if min(height, width) < MIN_SIDE_PX:
        raise ImageTooSmall(
            f"an image of {height}x{width} px shows nothing to recognise. Give one of at least {MIN_SIDE_PX}x{MIN_SIDE_PX} px."
        )


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


def _resized(height: int, width: int, view: ViewSettings) -> tuple[int, int]:
    if view.fit == "whole":
        return height, width
    if view.fit == "stretch":
        return view.height_px, view.width_px
    # As torchvision's Resize: the short side exactly, the long side rounded down.
    target_h, target_w = int(view.height_px / view.crop_pct), int(view.width_px / view.crop_pct)
    if target_h / height >= target_w / width:
        return target_h, max(target_w, int(target_h * width / height))
    return max(target_h, int(target_w * height / width)), target_w


def _cropped(height: int, width: int, view: ViewSettings) -> tuple[int, int, int, int]:
    if view.fit != "crop":
        return 0, 0, height, width
    top, left = round((height - view.height_px) / 2), round((width - view.width_px) / 2)
    return top, left, view.height_px, view.width_px
