"""Reads image files as a viewer shows them: upright, in RGB, transparency on white.

Colour profiles are not applied: networks are trained on plain decoded values, and the paper's results were measured on them.
"""

import io
import os
import struct
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageFile
from torch import Tensor

from glancefocus.errors import BadImage
from glancefocus.files import open_file, read_stream
from glancefocus.free_memory import check_memory

MAX_BYTES = 2 << 30
"""Limit for a picture or a clip on standard input, whose size is not known in advance."""
_DECODING_BYTES = 12  # for one pixel at most: as stored in the file, in RGB (Pillow takes 4), and turned upright
PIXELS_PER_BAND = 1 << 22
MAX_PIXELS = 178_956_970  # Pillow's own limit: half a gigabyte when decoded to RGB

# Tried in this order; TGA has no magic bytes and comes last. Formats that start another program (EPS), or that need a
# third-party plug-in (HDF5, WMF, ...), are left out, because a picture may come from an untrusted source.
FORMATS = (
    *("JPEG", "PNG", "GIF", "WEBP", "AVIF", "TIFF", "BMP", "JPEG2000", "PPM", "QOI", "ICO", "PSD", "PCX", "SGI"),
    "TGA",
)

SUFFIXES = frozenset(
    (
        *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".gif", ".webp", ".avif", ".tif", ".tiff", ".bmp"),
        *(".jp2", ".j2k", ".jpx", ".ppm", ".pgm", ".pbm", ".pnm", ".pfm", ".qoi", ".ico", ".psd", ".pcx", ".sgi"),
        ".tga",
    )
)
"""Files in a folder that count as pictures."""

# EXIF orientation -> the transposition that turns the picture upright; 1 is upright.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def read_picture(
    source: str | Path | bytes | BinaryIO,
    *,
    max_pixels: int = MAX_PIXELS,
    name: str | None = None,
    at_least_px: int | None = None,
) -> Image.Image:
    """The picture in a file, decoded, upright, in RGB, see as_rgb; the first frame of an animation.

    source       a path, the bytes of a file, or an open binary stream (read from its current position to its end)
    max_pixels   a picture with more pixels is refused before it is decoded
    name         the picture's name in errors; otherwise its path, or "the image on standard input"
    at_least_px  allow decoding a JPEG at 1/2, 1/4 or 1/8 of its size, as long as its shorter side keeps this many pixels, which is
                 several times faster for large photographs. None: always at full size
    """
    name = name if name is not None else _name_of(source)
    try:
        with _opened(source) as stream:
            return _decode(stream, max_pixels, name, at_least_px)
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


def find_pictures(paths: Iterable[str | Path]) -> list[Path]:
    """All image files: files as given, and the content of folders, sorted within each folder.

    Inside a folder only visible files with the suffix of an image count, and links to folders are followed once. A file that
    does not exist is kept: reading it reports the error.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(_pictures_inside(path))
        if not inside:
            raise BadImage(
                f"there are no images in the folder {path}. Name a folder with files such as .jpg, .png or .webp."
            )
        found.extend(inside)
    return found


def as_rgb(picture: Image.Image) -> Image.Image:
    """A new RGB picture as a viewer shows it: EXIF rotation applied, transparency on white.

    The upper 8 of 16 bits are kept. Floats within 0 to 1 are black to white; floats outside, and whole numbers beyond 16 bits,
    are stretched so that the smallest is black and the largest white; NaN is black. The new picture has no EXIF, so that it is
    not rotated a second time.
    """
    picture.load()  # first: the EXIF of a PNG may follow the pixels, and loading a TIFF already turns it upright
    turn = _TURNS.get(_orientation(picture))
    rgb = _flat(picture)
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


def _name_of(source: str | Path | bytes | BinaryIO) -> str:
    if isinstance(source, str | Path):
        return str(source) or "''"
    path = getattr(source, "name", None)  # of an open file; "<stdin>" or a number is not a path
    return path if isinstance(path, str) and not path.startswith("<") else "the image on standard input"


@contextmanager
def _opened(source: str | Path | bytes | BinaryIO) -> Iterator[IO[bytes]]:
    """A stream that can be rewound; a file is closed afterwards."""
    if isinstance(source, bytes):
        yield io.BytesIO(source)
    elif isinstance(source, str | Path):
        with open_file(source) as file:
            yield file
    else:
        yield io.BytesIO(read_stream(source, MAX_BYTES))


def _decode(stream: IO[bytes], max_pixels: int, name: str, at_least_px: int | None) -> Image.Image:
    prefix = stream.read(16)
    if not prefix:
        raise BadImage(f"{name} is empty. Save or download it again.")
    # Plug-ins raise almost anything on damaged or hostile bytes: SyntaxError, struct.error, OverflowError, zlib.error.
    try:
        with _pillow_allows(max_pixels):
            picture = _open_known_format(stream, prefix)
            if picture is not None:
                with picture:
                    _check_size(picture, max_pixels, name)
                    if at_least_px is not None:
                        picture.draft(None, (at_least_px, at_least_px))  # only JPEG can; others ignore it
                    picture.load()
                    _check_size(picture, max_pixels, name)  # the size of an icon is known only now
                    return as_rgb(picture)
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


def _open_known_format(stream: IO[bytes], prefix: bytes) -> ImageFile.ImageFile | None:
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
        if not fits or isinstance(
            fits, str
        ):  # a text means that this Pillow was built without a decoder for the format
            continue
        stream.seek(0)
        try:
            return factory(stream, "")
        except (
            SyntaxError,
            IndexError,
            TypeError,
            struct.error,
        ) as error:  # a plug-in raises these for files of other formats
            if accepts is not None:
                damaged = error
    if damaged is not None:
        raise damaged
    return None


def _check_size(picture: Image.Image, max_pixels: int, name: str) -> None:
    width, height = picture.size
    if width * height > max_pixels:
        raise BadImage(
            f"{name} has {width * height:,} pixels ({width}x{height}), more than the limit of {max_pixels:,}. "
            "If you trust it, raise max_pixels."
        )
    check_memory(_DECODING_BYTES * width * height, f"{name} ({width}x{height} px)")


_lock = threading.Lock()
_limits_in_use: list[int] = []
_restore = ExitStack()


@contextmanager
def _pillow_allows(max_pixels: int) -> Iterator[None]:
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


def _orientation(picture: Image.Image) -> int:
    try:
        return int(picture.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # broken EXIF: viewers show the picture as stored, and so do we
        return 1


def _flat(picture: Image.Image) -> Image.Image:
    """A new RGB picture from a picture of any mode."""
    if picture.mode in ("I", "F") or picture.mode.startswith("I;16"):
        return _from_deep(picture)
    if picture.mode == "La":  # Pillow converts premultiplied grey to RGB only through LA
        picture = picture.convert("LA")
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    flat = Image.new("RGB", picture.size)
    for box in bands(picture.size):
        over = picture.crop(box).convert("RGBA")
        flat.paste(Image.alpha_composite(Image.new("RGBA", over.size, "white"), over).convert("RGB"), box)
    return flat


def _from_deep(picture: Image.Image) -> Image.Image:
    """RGB from a grey picture with more than 8 bits; Pillow's own conversion would clip it at 255."""
    values = np.asarray(picture)
    tags = getattr(picture, "tag_v2", {})  # of a TIFF
    if values.dtype.kind == "u" and tags.get(ExifTags.Base.BitsPerSample) == (12,):
        grey = (values >> 4).astype(np.uint8)
    elif values.dtype.kind == "f":
        grey = _stretched(values, 0.0, 1.0)
    elif values.min() < 0 or values.max() > 0xFFFF:
        grey = _stretched(values, None, None)
    else:
        grey = (values >> 8).astype(np.uint8)  # like Pillow for 16 bits per colour
    # White is zero; Pillow inverts only pictures of 8 bits and fewer.
    if tags.get(ExifTags.Base.PhotometricInterpretation) == 0:
        grey = 255 - grey
    transparent = picture.info.get("transparency")
    if isinstance(transparent, int):
        grey[values == transparent] = 255
    return Image.fromarray(grey).convert("RGB")


def _stretched(values: NDArray[np.generic], low: float | None, high: float | None) -> NDArray[np.uint8]:
    """Values from low to high mapped to 0 to 255; from smallest to largest if no range is given or values are outside it."""
    rows = [slice(top, bottom) for _, top, _, bottom in bands((values.shape[1], values.shape[0]), whole_rows=True)]
    ranges = [_finite_range(values[some]) for some in rows]
    smallest, largest = min(one for one, _ in ranges), max(one for _, one in ranges)
    if smallest > largest:  # nothing is finite
        smallest = largest = 0.0
    if low is None or high is None or smallest < low or largest > high:
        low, high = smallest, largest
    grey = np.empty(values.shape, np.uint8)
    for some in rows:
        with np.errstate(invalid="ignore"):
            share = (values[some].astype(np.float64) - low) / ((high - low) or 1.0)
        grey[some] = (np.nan_to_num(share, nan=0.0, posinf=1.0, neginf=0.0).clip(0, 1) * 255).round()
    return grey


def _finite_range(values: NDArray[np.generic]) -> tuple[float, float]:
    """The smallest and the largest finite value; infinity and minus infinity where there is none."""
    exact = values.astype(np.float64)
    finite = exact[np.isfinite(exact)]
    return (float(finite.min()), float(finite.max())) if finite.size else (np.inf, -np.inf)


def _pictures_inside(folder: Path) -> Iterator[Path]:
    for where, files in walk_visible(folder):
        for file in files:
            if not file.startswith(".") and Path(file).suffix.lower() in SUFFIXES:
                yield Path(where, file)


def walk_visible(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """(folder, its files) for a folder and all visible folders in it; links are followed once."""
    seen: set[str] = set()
    for where, folders, files in os.walk(folder, followlinks=True, onerror=_refuse_folder):
        real = os.path.realpath(where)
        if real in seen:  # a link to a parent folder would never end
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(inner for inner in folders if not inner.startswith("."))
        yield where, files


def _refuse_folder(error: OSError) -> None:
    raise BadImage(f"the folder {error.filename} cannot be read: {error.strerror}. Check its permissions.") from error
