"""Pictures: read as a viewer shows them (upright, in RGB, transparency on white), and turned into what a network gets.

Colour profiles are not applied: networks are trained on plain decoded values, and the paper's results were measured on them. A
picture is converted to RGB once, where it is read; functions that take a Pillow image expect RGB.
"""

import io
import os
import struct
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple

import numpy as np
import torch
from PIL import ExifTags, Image, ImageFile
from torch import Tensor

from glancefocus.data.folders import DEEP_ZOOM, open_picture
from glancefocus.data.grey import from_deep
from glancefocus.errors import BadImage, ImageTooSmall
from glancefocus.machine import check_memory, open_file, read_stream
from glancefocus.region import Placement, normalise
from glancefocus.settings import ViewSettings

MAX_BYTES = 2 << 30
"""Limit for a picture or a clip on standard input, whose size is not known in advance."""
_STREAMED_BYTES = 6  # for one pixel of a progressive JPEG at most, whatever the size at which it is decoded
_DECODING_BYTES = 12  # for one pixel at most: as stored in the file, in RGB (Pillow takes 4), and turned upright
PIXELS_PER_BAND = 1 << 22
SMALL_BYTES = 1 << 16  # a photograph with fewer bytes has few pixels
MAX_PIXELS = 178_956_970  # Pillow's own limit: half a gigabyte when decoded to RGB

# Tried in this order; TGA has no magic bytes and comes last. Formats that start another program (EPS), or that need a
# third-party plug-in (HDF5, WMF, ...), are left out, because a picture may come from an untrusted source.
FORMATS = (
    *("JPEG", "PNG", "GIF", "WEBP", "AVIF", "TIFF", "BMP", "JPEG2000", "PPM", "QOI", "ICO", "PSD", "PCX", "SGI"),
    "TGA",
)
# EXIF orientation -> the transposition that turns the picture upright; 1 is upright.
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def is_small(source: str | Path | bytes) -> bool:
    """Whether a file has so few bytes that its picture is decoded whole, whatever its header says."""
    if isinstance(source, bytes):
        return len(source) < SMALL_BYTES
    try:
        return os.path.splitext(source)[1].lower() != DEEP_ZOOM and os.stat(source).st_size < SMALL_BYTES
    except (OSError, ValueError):  # read_picture says what is wrong
        return True


def read_picture(
    source: str | Path | bytes | BinaryIO,
    *,
    max_pixels: int = MAX_PIXELS,
    name: str | None = None,
    at_least_px: int | None = None,
    upright: bool = True,
) -> Image.Image:
    """The picture in a file, decoded, upright, in RGB, see as_rgb; the first frame of an animation.

    source       a path, the bytes of a file, or an open binary stream (read from its current position to its end)
    max_pixels   a picture with more pixels is refused before it is decoded
    name         the picture's name in errors; otherwise its path, or "the image on standard input"
    at_least_px  allow decoding a JPEG at 1/2, 1/4 or 1/8 of its size, as long as its shorter side keeps this many pixels, which is
                 several times faster for large photographs. None: always at full size
    upright      False: as it is stored, EXIF rotation is not applied
    """
    name = name if name is not None else name_of(source)
    try:
        with opened(source) as stream:
            return _decode(stream, max_pixels, name, at_least_px, upright)
    except BadImage:
        raise
    except FileNotFoundError as error:
        raise BadImage(f"there is no file {name}. Check the path.") from error
    except IsADirectoryError as error:
        raise BadImage(f"{name} is a folder, not an image. Name a file inside it.") from error
    except PermissionError as error:
        raise BadImage(f"no permission to read {name}. Change its permissions.") from error
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte in it
        reason = getattr(error, "strerror", None) or error
        raise BadImage(f"{name} cannot be read: {reason}. Check the path and the disk.") from error


def as_rgb(picture: Image.Image) -> Image.Image:
    """A new RGB picture as a viewer shows it: EXIF rotation applied, transparency on white.

    The upper 8 of 16 bits are kept. Floats within 0 to 1 are black to white; floats outside, and whole numbers beyond 16 bits,
    are stretched so that the smallest is black and the largest white; NaN is black. The new picture has no EXIF, so that it is
    not rotated a second time.
    """
    picture.load()  # first: the EXIF of a PNG may follow the pixels, and loading a TIFF already turns it upright
    turn = TURNS.get(orientation_of(picture))
    rgb = flattened(picture)
    rgb.info.clear()
    return rgb if turn is None else rgb.transpose(turn)


def pixels_of(picture: Image.Image) -> Tensor:
    """The pixels of an RGB picture as uint8 (3, H, W), contiguous, in memory of their own."""
    pixels = torch.empty(3, picture.height, picture.width, dtype=torch.uint8)
    for left, top, right, bottom in bands(picture.size):
        band = np.asarray(picture.crop((left, top, right, bottom)))
        pixels[:, top:bottom, left:right] = torch.from_numpy(band.copy()).permute(2, 0, 1)
    return pixels


def bands(size: tuple[int, int], *, whole_rows: bool = False) -> Iterator[tuple[int, int, int, int]]:
    """(left, top, right, bottom) of parts of some million pixels that together make a picture of this (width, height).

    Work done part by part takes little memory beside the picture. Most pictures are one part.
    """
    width, height = size
    wide = width if whole_rows else min(width, PIXELS_PER_BAND)
    high = max(1, PIXELS_PER_BAND // max(1, wide))
    for top in range(0, height, high):
        for left in range(0, width, max(1, wide)):
            yield left, top, min(left + wide, width), min(top + high, height)


def name_of(source: str | Path | bytes | BinaryIO) -> str:
    """What a picture is called in errors."""
    if isinstance(source, str | Path):
        return str(source) or "''"
    path = getattr(source, "name", None)  # of an open file; "<stdin>" or a number is not a path
    return path if isinstance(path, str) and not path.startswith("<") else "the image on standard input"


@contextmanager
def opened(source: str | Path | bytes | BinaryIO) -> Iterator[IO[bytes]]:
    """A stream that can be rewound; a file is closed afterwards."""
    if isinstance(source, bytes):
        yield io.BytesIO(source)
    elif isinstance(source, str | Path):
        with open_picture(source) if ".tar" in str(source) else open_file(source) as file:
            yield file
    else:
        yield io.BytesIO(read_stream(source, MAX_BYTES))


def _decode(stream: IO[bytes], max_pixels: int, name: str, at_least_px: int | None, upright: bool) -> Image.Image:
    prefix = stream.read(16)
    if not prefix:
        raise BadImage(f"{name} is empty. Save or download it again.")
    # Plug-ins raise almost anything on damaged or hostile bytes: SyntaxError, struct.error, OverflowError, zlib.error.
    try:
        with pillow_allows(max_pixels):
            picture = open_known_format(stream, prefix)
            if picture is not None:
                with picture:
                    _check_size(picture, max_pixels, name, _STREAMED_BYTES if at_least_px else _DECODING_BYTES)
                    if at_least_px is not None:
                        picture.draft(None, (at_least_px, at_least_px))  # only JPEG can; others ignore it
                        _check_size(picture, max_pixels, name)
                    picture.load()
                    _check_size(picture, max_pixels, name)  # the size of an icon is known only now
                    return as_rgb(picture) if upright else flattened(picture)
    except BadImage:
        raise
    except Image.DecompressionBombError as error:  # a picture inside the file, or before the size is known
        raise BadImage(
            f"{name} has more pixels than the limit of {max_pixels:,}. If you trust it, raise max_pixels."
        ) from error
    except MemoryError as error:
        raise BadImage(f"{name} does not fit into memory. Make it smaller.") from error
    except Exception as error:
        reason = str(error).strip().rstrip(".") or type(error).__name__
        raise BadImage(f"{name} is damaged or cut off ({reason}). Save or download it again.") from error
    raise BadImage(f"{name} is not an image in a known format. Convert it to JPEG, PNG, WebP or TIFF.")


def open_known_format(stream: IO[bytes], prefix: bytes) -> ImageFile.ImageFile | None:
    """Image.open for our formats only, and without its check of the size; our own check says what to do.

    Raises the plug-in's error if the magic bytes match a format but the rest does not.
    """
    Image.init()
    damaged: Exception | None = None
    for format_name in FORMATS:
        if format_name not in Image.OPEN:
            continue  # this Pillow was built without it
        factory, accepts = Image.OPEN[format_name]
        fits = accepts is None or accepts(prefix)
        if not fits or isinstance(fits, str):  # a text: this Pillow was built without a decoder for the format
            continue
        stream.seek(0)
        try:
            return factory(stream, "")
        # A plug-in raises these for files of other formats.
        except (SyntaxError, IndexError, TypeError, struct.error) as error:
            if accepts is not None:
                damaged = error
    if damaged is not None:
        raise damaged
    return None


def _check_size(picture: Image.Image, max_pixels: int, name: str, pixel_bytes: int = _DECODING_BYTES) -> None:
    width, height = picture.size
    refuse_pixels(picture.size, max_pixels, name)
    if pixel_bytes == _DECODING_BYTES or picture.info.get("progressive"):  # other JPEGs are decoded row by row
        check_memory(pixel_bytes * width * height, f"{name} ({width}x{height} px)")


def refuse_pixels(size: tuple[int, int], max_pixels: int, name: str) -> None:
    """Refuse a picture of this (width, height) if it has more pixels than the limit."""
    width, height = size
    if width * height > max_pixels:
        raise BadImage(
            f"{name} has {width * height:,} pixels ({width}x{height}), more than the limit of {max_pixels:,}. "
            "If you trust it, raise max_pixels."
        )


_lock = threading.Lock()
_limits_in_use: list[int] = []
_restore = ExitStack()


@contextmanager
def pillow_allows(max_pixels: int) -> Iterator[None]:
    """Set Pillow's pixel limit to ours and hide its warnings (broken EXIF tags, ...) during the block.

    Both are global, and several threads may read at once: the first thread changes them, the last one restores them.
    """
    with _lock:
        if not _limits_in_use:
            _restore.callback(setattr, Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)
            _restore.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", module=r"PIL\.")
        _limits_in_use.append(max_pixels)
        Image.MAX_IMAGE_PIXELS = max(_limits_in_use)
    try:
        yield
    finally:
        with _lock:
            _limits_in_use.remove(max_pixels)
            if _limits_in_use:
                Image.MAX_IMAGE_PIXELS = max(_limits_in_use)
            else:
                _restore.close()


def orientation_of(picture: Image.Image) -> int:
    """The EXIF orientation, 1 to 8; 1: upright."""
    try:
        return int(picture.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # broken EXIF: viewers show the picture as stored, and so do we
        return 1


def flattened(picture: Image.Image) -> Image.Image:
    """A new RGB picture from a picture of any mode."""
    if picture.mode in ("I", "F") or picture.mode.startswith("I;16"):
        rows = bands(picture.size, whole_rows=True)
        return from_deep(picture, [slice(top, bottom) for _, top, _, bottom in rows])
    if picture.mode == "La":  # Pillow converts premultiplied grey to RGB only through LA
        picture = picture.convert("LA")
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    flat = Image.new("RGB", picture.size)
    for box in bands(picture.size):
        over = picture.crop(box).convert("RGBA")
        flat.paste(Image.alpha_composite(Image.new("RGBA", over.size, "white"), over).convert("RGB"), box)
    return flat


Picture = str | Path | bytes | Image.Image | Tensor | np.ndarray[Any, Any]
"""A file, the bytes of one, or pixels."""
LARGE_PIXELS = 1 << 22
"""An image with more pixels stays uint8, a quarter of the memory; only the parts that are looked at are normalised."""
_IMAGE_BYTES = 12  # for one pixel: 3 in the image, 4 in the picture, and some while the picture is resized
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
    fit = fitted(picture.height, picture.width, view, least_px)
    (cut_top, cut_left, height, width), (new_h, new_w) = fit.cut, fit.resized
    check_memory(_IMAGE_BYTES * new_h * new_w, f"an image of {new_w}x{new_h} px")
    if (width, height) != picture.size:
        picture = picture.crop((cut_left, cut_top, cut_left + width, cut_top + height))
    if (new_h, new_w) != (height, width):
        picture = picture.resize((new_w, new_h), RESAMPLING[view.interpolation])
    top, left, crop_h, crop_w = fit.crop
    if (crop_h, crop_w) != (new_h, new_w):
        picture = picture.crop((left, top, left + crop_w, top + crop_h))
    return pixels_of(picture), fit.placement


class Fit(NamedTuple):
    """How a picture becomes an image: `cut` (top, left, height, width) of it is `resized` to (height, width), of which `crop` is
    the image; and where that lies in the picture."""

    cut: tuple[int, int, int, int]
    resized: tuple[int, int]
    crop: tuple[int, int, int, int]
    placement: Placement


def fitted(height: int, width: int, view: ViewSettings, least_px: int = 1) -> Fit:
    """How a picture of this size becomes an image, see view_pixels. Refuses a picture without pixels."""
    note = _upscaling(height, width, least_px)
    cut = _middle(height, width, view)
    new_h, new_w = _resized(*cut[2:], view, least_px)
    crop = _cropped(new_h, new_w, view)
    scale_y, scale_x = new_h / cut[2], new_w / cut[3]
    place = Placement(scale_y, scale_x, crop[0] + cut[0] * scale_y, crop[1] + cut[1] * scale_x, note)
    return Fit(cut, (new_h, new_w), crop, place)


def normalise_small(pixels: Tensor, view: ViewSettings) -> Tensor:
    """Pixels (3, H, W) normalised; a large image stays uint8, and its scene normalises the parts that are looked at."""
    return pixels if pixels.shape[-1] * pixels.shape[-2] > LARGE_PIXELS else normalise(pixels, view)


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
