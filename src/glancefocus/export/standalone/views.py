"""Pictures as a network sees them: what data/views.py and scene.py do, in numpy and Pillow."""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

Array = np.ndarray[Any, Any]
SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".ppm"}
RIBBON_ASPECT = 16


@dataclass(frozen=True)
class Seen:
    """The image that is looked at, or the frames of a clip.

    frames  (H, W, 3) uint8 each
    to_box  (top, left, px) of a patch -> [left, top, right, bottom] in the picture's own pixels
    notes   what is odd about it
    """

    frames: list[Array]
    to_box: Callable[[int, int, int], list[int]]
    notes: list[str]


def find(names: Sequence[str], frames: int) -> Iterator[Path]:
    """Files as they are given, folders searched through for pictures; of clips the folders that hold their frames."""
    for path in map(Path, names):
        inside = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES) if path.is_dir() else []
        if frames > 1:
            yield from dict.fromkeys(file.parent for file in inside) if inside else [path]
        else:
            yield from inside or [path]


def read(path: Path, about: dict[str, Any]) -> Seen:
    """A file as the network looks at it; of a clip evenly spaced frames of its folder."""
    frames, files = about["frames"], [path]
    if frames > 1:
        own = sorted((file for file in path.iterdir() if file.suffix.lower() in SUFFIXES), key=_in_order)
        if not own:
            raise ValueError("the folder holds no frames")
        last = len(own) - 1
        middles = [(2 * part + 1) * len(own) // (2 * frames) for part in range(frames)]
        files = [own[i] for i in (middles if len(own) >= frames else [min(i, last) for i in range(frames)])]
    pictures = []
    for file in files:
        with Image.open(file) as picture:
            picture.load()
            pictures.append(as_rgb(picture))
    return see(pictures, about)


def see(pictures: Sequence[Image.Image], about: dict[str, Any]) -> Seen:
    """The same of a picture, or of the frames of a clip, that is RGB already."""
    patch_px = max(about["patch_px"]) if about["looks"] > 1 else 1
    views = [_view(picture, about["view"], patch_px) for picture in pictures]
    width, height = pictures[0].size
    notes = [f"upscaled from {width}x{height} px"] if min(width, height) < patch_px else []
    return Seen([image for image, _ in views], views[0][1], notes)


def as_rgb(picture: Image.Image) -> Image.Image:
    """RGB, upright, transparency laid on white; of 16 bits the upper 8."""
    picture = ImageOps.exif_transpose(picture)
    if picture.mode.startswith("I"):
        return Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8)).convert("RGB")
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    over = picture.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", over.size, "white"), over).convert("RGB")


def shrink(image: Array, px: int, resize: str) -> Array:
    """The whole of an image at (px, px, 3), as floats; image (H, W, 3)."""
    down, across = (resize_weights(side, px, resize) for side in image.shape[:2])
    rows = down @ image.astype(np.float32).reshape(image.shape[0], -1)
    small: Array = across @ rows.reshape(px, image.shape[1], 3)
    return small


def resize_weights(side: int, px: int, resize: str) -> Array:
    """(px, side): how much of every old pixel of a line is in every new one.

    antialias: bilinear over the whole footprint of a new pixel. bilinear, bicubic: corners aligned, as the paper's own models.
    """
    if resize == "antialias":
        scale = side / px
        centres, old = (np.arange(px) + 0.5) * scale, np.arange(side) + 0.5
        weights = np.maximum(0, 1 - np.abs(old - centres[:, None]) / max(1.0, scale))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True), dtype=np.float32)
    places, weights = np.arange(px) * (side - 1) / (px - 1), np.zeros((px, side))
    for tap in range(-1, 3):
        old = np.floor(places) + tap
        away = np.abs(places - old)
        near, far = (1.25 * away - 2.25) * away**2 + 1, ((-0.75 * away + 3.75) * away - 6) * away + 3
        share = np.maximum(0, 1 - away) if resize == "bilinear" else np.where(away <= 1, near, far)
        np.add.at(weights, (np.arange(px), old.astype(int).clip(0, side - 1)), share)
    return weights.astype(np.float32)


def _upscaled(height: int, width: int, patch_px: int) -> tuple[int, int]:
    """The size at which a patch fits; of a ribbon the longer side grows to 16 patches, or not at all."""
    scale, most = patch_px / min(height, width), RIBBON_ASPECT * patch_px
    if scale <= 1:
        return height, width
    new_h, new_w = (max(patch_px, side, min(round(side * scale), most)) for side in (height, width))
    return new_h, new_w


def _view(
    picture: Image.Image, view: dict[str, Any], patch_px: int
) -> tuple[Array, Callable[[int, int, int], list[int]]]:
    width, height = picture.size
    view_h, view_w = view["height_px"], view["width_px"]
    cut_top = cut_left = top = left = 0
    new_h, new_w = _upscaled(height, width, patch_px)
    if view["fit"] == "stretch":
        new_h, new_w = view_h, view_w
    elif view["fit"] == "crop":
        # Of a ribbon only the middle is resized, for that is where the crop lies.
        longest = int(RIBBON_ASPECT * max(view_h / view_w, view_w / view_h) * min(height, width))
        kept_h, kept_w = min(height, longest), min(width, longest)
        cut_top, cut_left, height, width = (height - kept_h) // 2, (width - kept_w) // 2, kept_h, kept_w
        picture = picture.crop((cut_left, cut_top, cut_left + width, cut_top + height))
        short_h, short_w = int(view_h / view["crop_pct"]), int(view_w / view["crop_pct"])
        if short_h / height >= short_w / width:
            new_h, new_w = short_h, max(short_w, int(short_h * width / height))
        else:
            new_h, new_w = max(short_h, int(short_w * height / width)), short_w
        top, left = round((new_h - view_h) / 2), round((new_w - view_w) / 2)
    if (new_h, new_w) != (height, width):
        how = Image.Resampling.BICUBIC if view["interpolation"] == "bicubic" else Image.Resampling.BILINEAR
        picture = picture.resize((new_w, new_h), how)
    if view["fit"] == "crop":
        picture = picture.crop((left, top, left + view_w, top + view_h))
    scale_y, scale_x = new_h / height, new_w / width
    start_y, start_x = top + cut_top * scale_y, left + cut_left * scale_x

    def to_box(patch_top: int, patch_left: int, px: int) -> list[int]:
        first = (patch_left + start_x) / scale_x, (patch_top + start_y) / scale_y
        return [round(v) for v in (*first, (patch_left + px + start_x) / scale_x, (patch_top + px + start_y) / scale_y)]

    return np.asarray(picture), to_box


def _in_order(file: Path) -> tuple[list[tuple[int, str]], str]:
    """frame2 before frame10, in the digits of any script; names with the same numbers by their spelling."""
    parts = enumerate(re.split(r"(\d+)", unicodedata.normalize("NFKC", file.name).lower()))
    return [(int(part), "") if place % 2 else (-1, part) for place, part in parts], file.name
