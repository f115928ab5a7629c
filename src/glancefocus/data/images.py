"""Reads image files so that they look as a person would see them in a viewer: upright, in RGB, transparency on white.

Colour profiles are not applied: networks are trained, and the paper's figures were measured, on plain decoded values.
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
"""Of a picture or a clip on standard input, which has no size that could be asked for."""
_DECODING_BYTES = 12  # for one pixel at most: as stored in the file, in RGB (Pillow takes 4), and turned upright
PIXELS_PER_BAND = 1 << 22
MAX_PIXELS = 178_956_970  # where Pillow refuses too: half a gigabyte when decoded to RGB

# Tried in this order; TGA has no magic bytes and comes last. Formats that start another program (EPS), or that only a
# plug-in of somebody else can decode (HDF5, WMF, ...), are left out: a picture may come from a stranger.
FORMATS = (
    *("JPEG", "PNG", "GIF", "WEBP", "AVIF", "TIFF", "BMP", "JPEG2000", "PPM", "QOI", "ICO", "PSD", "PCX", "SGI"),
    "TGA",
)

# What a folder is searched for.
SUFFIXES = frozenset(
    (
        *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".gif", ".webp", ".avif", ".tif", ".tiff", ".bmp"),
        *(
            ".jp2",
            ".j2k",
            ".jpx",
            ".ppm",
            ".pgm",
            ".pbm",
            ".pnm",
            ".pfm",
            ".qoi",
            ".ico",
            ".psd",
            ".pcx",
            ".sgi",
            ".tga",
        ),
    )
)

# EXIF orientation -> what brings the picture upright; 1 is upright already.
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
    """The picture in a file, fully decoded, upright, in RGB; see as_rgb. Of an animation, the first frame.

    source      a path, the bytes of a file, or an open binary stream (read from where it stands to its end)
    max_pixels  a picture with more pixels is refused before it is decoded
    name        what to call the picture in errors; otherwise its path, or "the image on standard input"
    at_least_px  a JPEG may be decoded at 1/2, 1/4 or 1/8 of its size, as long as its shorter side keeps this many pixels; that
                is several times faster for large photographs. None: always at full size
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
        raise BadImage(f"{name} may not be read by this user. Change its permissions.") from error
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte in it
        reason = getattr(error, "strerror", None) or error
        raise BadImage(f"{name} cannot be read: {reason}. Check the path and the disk.") from error


def find_pictures(paths: Iterable[str | Path]) -> list[Path]:
    """Every image file: files as they are given, folders searched through, sorted within each folder given.

    Inside a folder only files with the suffix of an image count, hidden files and folders do not, and links to folders
    are followed once. A file that is named need not even exist: reading it will say so.
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
    """A new RGB picture as a person would see it: EXIF rotation applied, transparency laid on white.

    Of 16 bits the upper 8 are kept. Floats within 0 to 1 are taken as black to white; floats beyond, and whole numbers
    beyond 16 bits, are stretched so that the smallest is black and the largest white, NaN is black. The new picture has
    no EXIF, so that nothing turns it a second time.
    """
    picture.load()  # first: a PNG may carry its EXIF behind the pixels, and a TIFF is turned upright by loading it
    turn = _TURNS.get(_orientation(picture))
    rgb = _flat(picture)
    rgb.info.clear()
    return rgb if turn is None else rgb.transpose(turn)


def as_tensor(picture: Image.Image) -> Tensor:
    """The picture as uint8 (3, H, W), RGB, contiguous, in memory of its own."""
    return pixels_of(as_rgb(picture))


def pixels_of(picture: Image.Image) -> Tensor:
    """The same of a picture that is RGB and upright already."""
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
    path = getattr(source, "name", None)  # of an open file; "<stdin>" or a number is no path
    return path if isinstance(path, str) and not path.startswith("<") else "the image on standard input"


@contextmanager
def _opened(source: str | Path | bytes | BinaryIO) -> Iterator[IO[bytes]]:
    """A stream that can seek; a file is closed afterwards."""
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
            picture = _open_first_that_fits(stream, prefix)
            if picture is not None:
                with picture:
                    _check_size(picture, max_pixels, name)
                    if at_least_px is not None:
                        picture.draft(None, (at_least_px, at_least_px))  # only JPEG can; others ignore it
                    picture.load()
                    _check_size(picture, max_pixels, name)  # an icon knows its size only now
                    return as_rgb(picture)
    except BadImage:
        raise
    except Image.DecompressionBombError as error:  # of a picture inside the file, or before its size is known
        raise BadImage(
            f"{name} has more pixels than the limit of {max_pixels:,}. If you trust it, raise max_pixels."
        ) from error
    except MemoryError as error:
        raise BadImage(f"{name} does not fit into memory. Make it smaller.") from error
    except Exception as error:
        reason = str(error).strip().rstrip(".") or type(error).__name__
        raise BadImage(f"{name} is damaged or cut off ({reason}). Save or download it again.") from error
    raise BadImage(f"{name} is not an image that can be read. Convert it to JPEG, PNG, WebP or TIFF.")


def _open_first_that_fits(stream: IO[bytes], prefix: bytes) -> ImageFile.ImageFile | None:
    """What Image.open does, for our formats and without its check of the size, which would not say what to do.

    Raises what the plug-in raised where the magic bytes promise a format that the rest does not keep.
    """
    Image.init()
    broken_promise: Exception | None = None
    for format_name in FORMATS:
        if format_name not in Image.OPEN:
            continue  # this Pillow was built without it
        factory, accepts = Image.OPEN[format_name]
        fits = accepts is None or accepts(prefix)
        if not fits or isinstance(
            fits, str
        ):  # a sentence: the plug-in knows the format, but this Pillow cannot decode it
            continue
        stream.seek(0)
        try:
            return factory(stream, "")
        except (SyntaxError, IndexError, TypeError, struct.error) as error:  # how a plug-in says "not of my format"
            if accepts is not None:
                broken_promise = error
    if broken_promise is not None:
        raise broken_promise
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
_put_back = ExitStack()


@contextmanager
def _pillow_allows(max_pixels: int) -> Iterator[None]:
    """While we read, Pillow's limit is ours, and its warnings (a tag of EXIF that is broken, ...) are not shown.

    Both are global, and several threads may read at once: the first to come changes them, the last to go restores them.
    """
    with _lock:
        if not _limits_in_use:
            _put_back.callback(setattr, Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)
            _put_back.enter_context(warnings.catch_warnings())
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
                _put_back.close()


def _orientation(picture: Image.Image) -> int:
    try:
        return int(picture.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # broken EXIF on a whole picture: viewers show it as it is stored, and so do we
        return 1


def _flat(picture: Image.Image) -> Image.Image:
    """A new RGB picture of a picture of any mode."""
    if picture.mode in ("I", "F") or picture.mode.startswith("I;16"):
        return _from_deep(picture)
    if picture.mode == "La":  # grey premultiplied by alpha goes to RGB only by way of LA
        picture = picture.convert("LA")
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    flat = Image.new("RGB", picture.size)
    for box in bands(picture.size):
        over = picture.crop(box).convert("RGBA")
        flat.paste(Image.alpha_composite(Image.new("RGBA", over.size, "white"), over).convert("RGB"), box)
    return flat


def _from_deep(picture: Image.Image) -> Image.Image:
    """RGB of a grey picture with more than 8 bits; Pillow's own conversion would clip it at 255."""
    values = np.asarray(picture)
    tags = getattr(picture, "tag_v2", {})  # of a TIFF
    if values.dtype.kind == "u" and tags.get(ExifTags.Base.BitsPerSample) == (12,):
        grey = (values >> 4).astype(np.uint8)
    elif values.dtype.kind == "f":
        grey = _stretched(values, 0.0, 1.0)
    elif values.min() < 0 or values.max() > 0xFFFF:
        grey = _stretched(values, None, None)
    else:
        grey = (values >> 8).astype(np.uint8)  # as Pillow does with 16 bits per colour
    if (
        tags.get(ExifTags.Base.PhotometricInterpretation) == 0
    ):  # white is zero; Pillow turns only 8 bits and fewer around
        grey = 255 - grey
    transparent = picture.info.get("transparency")
    if isinstance(transparent, int):
        grey[values == transparent] = 255
    return Image.fromarray(grey).convert("RGB")


def _stretched(values: NDArray[np.generic], low: float | None, high: float | None) -> NDArray[np.uint8]:
    """Values from low to high as 0 to 255; without that range, or with values outside it, smallest to largest."""
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
    """(folder, its files) for a folder and every one in it that is not hidden; links are followed, once."""
    seen: set[str] = set()
    for where, folders, files in os.walk(folder, followlinks=True, onerror=_refuse_folder):
        real = os.path.realpath(where)
        if real in seen:  # a link back to a folder above would never end
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(inner for inner in folders if not inner.startswith("."))
        yield where, files


def _refuse_folder(error: OSError) -> None:
    raise BadImage(f"the folder {error.filename} cannot be read: {error.strerror}. Check its permissions.") from error
