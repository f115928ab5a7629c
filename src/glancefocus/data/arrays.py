"""Pixels that are in memory already, as tensors or arrays, turned into what a network gets."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from glancefocus.data.images import fitted, normalise_small, view_pixels
from glancefocus.errors import BadImage
from glancefocus.machine import check_memory
from glancefocus.region import Placement, normalise
from glancefocus.settings import ViewSettings

_FLOAT_BYTES = 32  # for one pixel of a tensor: floats, twice while they are normalised


def view_tensor(image: Tensor, view: ViewSettings, least_px: int = 1) -> tuple[Tensor, Placement]:
    """The normalised image of a tensor (3, H, W), uint8 or floats in [0, 1]; a tensor of the right size is not resized."""
    if image.dim() != 3 or image.shape[0] != 3:
        raise BadImage(f"an image must have the shape (3, height, width), but got {tuple(image.shape)}.")
    height, width = image.shape[1:]
    fit = fitted(height, width, view, least_px)
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
    (cut_top, cut_left, height, width), (new_h, new_w) = fit.cut, fit.resized
    image = image[:, cut_top : cut_top + height, cut_left : cut_left + width]
    check_memory(_FLOAT_BYTES * new_h * new_w, f"an image of {new_w}x{new_h} px")
    floats = image.float() / 255 if image.dtype == torch.uint8 else image.float()
    resized = F.interpolate(floats[None], size=(new_h, new_w), mode=view.interpolation, antialias=True)[0].clamp(0, 1)
    top, left, crop_h, crop_w = fit.crop
    return normalise(resized[:, top : top + crop_h, left : left + crop_w], view), fit.placement


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
    fitted(picture.shape[0], picture.shape[1], view, least_px)  # refuses an array without pixels, which Pillow accepts
    pixels, placement = view_pixels(Image.fromarray(picture), view, least_px)
    return normalise_small(pixels, view), placement
