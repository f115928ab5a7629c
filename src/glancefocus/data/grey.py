"""Grey pictures with more than 8 bits, or of floats, as RGB."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image


def from_deep(picture: Image.Image, bands: Sequence[slice]) -> Image.Image:
    """RGB from a grey picture with more than 8 bits; Pillow's own conversion would clip it at 255.

    bands  rows of pixels that are converted together, so that little memory is needed beside the picture
    """
    values = np.asarray(picture)
    tags = getattr(picture, "tag_v2", {})  # of a TIFF
    if values.dtype.kind == "u" and tags.get(ExifTags.Base.BitsPerSample) == (12,):
        grey = (values >> 4).astype(np.uint8)
    elif values.dtype.kind == "f":
        grey = _stretched(values, bands, 0.0, 1.0)
    elif values.min() < 0 or values.max() > 0xFFFF:
        grey = _stretched(values, bands, None, None)
    else:
        grey = (values >> 8).astype(np.uint8)  # like Pillow for 16 bits per colour
    # White is zero; Pillow inverts only pictures of 8 bits and fewer.
    if tags.get(ExifTags.Base.PhotometricInterpretation) == 0:
        grey = 255 - grey
    transparent = picture.info.get("transparency")
    if isinstance(transparent, int):
        grey[values == transparent] = 255
    return Image.fromarray(grey).convert("RGB")


def _stretched(
    values: NDArray[np.generic], bands: Sequence[slice], low: float | None, high: float | None
) -> NDArray[np.uint8]:
    """Values from low to high mapped to 0 to 255; from smallest to largest if no range is given or values are outside it."""
    ranges = [_finite_range(values[some]) for some in bands]
    smallest, largest = min(one for one, _ in ranges), max(one for _, one in ranges)
    if smallest > largest:  # nothing is finite
        smallest = largest = 0.0
    if low is None or high is None or smallest < low or largest > high:
        low, high = smallest, largest
    grey = np.empty(values.shape, np.uint8)
    for some in bands:
        with np.errstate(invalid="ignore"):
            share = (values[some].astype(np.float64) - low) / ((high - low) or 1.0)
        grey[some] = (np.nan_to_num(share, nan=0.0, posinf=1.0, neginf=0.0).clip(0, 1) * 255).round()
    return grey


def _finite_range(values: NDArray[np.generic]) -> tuple[float, float]:
    """The smallest and the largest finite value; infinity and minus infinity where there is none."""
    exact = values.astype(np.float64)
    finite = exact[np.isfinite(exact)]
    return (float(finite.min()), float(finite.max())) if finite.size else (np.inf, -np.inf)
