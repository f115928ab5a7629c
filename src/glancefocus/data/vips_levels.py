"""Pyramids in TIFF files, read by libvips (the extra `large`): the levels of OME-TIFF, SVS, cloud-optimised TIFF and our own tiles.

libvips is used only where it is needed, and with loaders that are named: by itself it would open a file with whatever program it
knows. A process that was forked after libvips was used would hang in it; processes are started with spawn in this project.
"""

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from glancefocus.data.file_picture import Size, Stamp
from glancefocus.data.images import TURNS, flattened
from glancefocus.errors import BadImage, MissingExtra
from glancefocus.region import Box

MOST_PAGES = 64
"""Pages of a TIFF in which levels are looked for."""
MOST_TILE_PIXELS = 1 << 24
"""A file with larger tiles is not read part by part: a small part of it would take too much memory."""
_SMALLEST_LEVEL_PX = 512
_SAME_SHAPE = 0.02  # levels are rounded to whole pixels, and some programs to whole tiles
_DEEP = {"ushort": 8}
"""{format of libvips: bits that are dropped}. As for small pictures, the upper 8 bits are kept."""
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}


@functools.cache
def vips() -> Any:
    """The module pyvips, which keeps no results of earlier operations: files may change. Raises MissingExtra."""
    try:
        import pyvips
    except (ImportError, OSError):  # OSError: without the library itself
        raise MissingExtra("pyvips", "large") from None
    pyvips.cache_set_max(0)
    return pyvips


def has_vips() -> bool:
    """Whether the extra is installed."""
    try:
        vips()
    except MissingExtra:
        return False
    return True


class VipsLevels:
    """The levels of a TIFF. See Pyramid.

    images  one for each level, the largest first; a level below the smallest of the file is made of it when it is read
    """

    def __init__(self, source: str | Path | bytes, name: str, images: list[Any]) -> None:
        self.name = name
        self.turn = TURNS.get(orientation_of(images[0]))
        self._images = images
        self._source = source  # libvips reads from these bytes: they must stay in memory
        self._stamp = Stamp.of(source)
        self.sizes = tuple(_with_smaller([(image.width, image.height) for image in images]))

    @property
    def is_pyramid(self) -> bool:
        """Whether the file holds several levels."""
        return len(self._images) > 1

    @property
    def held_bytes(self) -> int:
        """A row of tiles of each level, which libvips may keep, and bytes that it reads from."""
        tiles = sum(int(image.width) * 3 * _tile_height(image) for image in self._images)
        return tiles + (len(self._source) if isinstance(self._source, bytes) else 0)

    def read(self, level: int, box: Box) -> Image.Image:
        """A part of a level in RGB, as it is stored."""
        self._stamp.check(self.name)
        left, top, right, bottom = box
        own = min(level, len(self._images) - 1)
        image, shrink = self._images[own], 1 << (level - own)
        try:
            if shrink == 1:
                pixels = vips().Region.new(image).fetch(left, top, right - left, bottom - top)
            else:
                pixels = self._shrunk(image, shrink, box)
        except vips().Error as error:
            self._stamp.check(self.name)
            raise BadImage(
                f"{self.name} is damaged or cut off: a part of it cannot be read ({reason(error)}). Save or download it again."
            ) from None
        shape = (bottom - top, right - left, image.bands)
        return as_picture(np.frombuffer(pixels, _TYPES[image.format]).reshape(shape), image)

    def _shrunk(self, image: Any, shrink: int, box: Box) -> Any:
        """The same for a level that is not in the file: the mean of the pixels of the smallest one that is."""
        left, top, right, bottom = (edge * shrink for edge in box)
        right, bottom = min(right, image.width), min(bottom, image.height)
        smaller = image.crop(left, top, right - left, bottom - top).shrink(shrink, shrink, ceil=True)
        return smaller.cast(image.format).write_to_memory()


_TYPES = {"uchar": np.uint8, "ushort": np.uint16}


def tiff_levels(source: str | Path | bytes, name: str) -> VipsLevels | None:
    """The levels of a TIFF; None if it has to be decoded whole: without tiles, with huge ones, or with pixels of another kind."""
    try:
        first = open_tiff(source)
        if not _is_readable(first):
            return None
        levels = [first, *_smaller_levels(source, first)]
    except vips().Error as error:
        raise BadImage(f"{name} is damaged or cut off ({reason(error)}). Save or download it again.") from None
    return VipsLevels(source, name, levels)


def open_tiff(source: str | Path | bytes, **options: Any) -> Any:
    """The image of libvips of one page of a TIFF; nothing is decoded yet."""
    options = {"fail_on": "warning", **options}  # damaged tiles are only warnings to libvips
    if isinstance(source, bytes):
        return vips().Image.tiffload_buffer(source, **options)
    return vips().Image.tiffload(os.fspath(source), **options)


def _smaller_levels(source: str | Path | bytes, first: Any) -> Iterator[Any]:
    """The pages and sub-images that show the same picture in smaller sizes, largest first."""
    pages, inner = _number(first, "n-pages", 1), _number(first, "n-subifds", 0)
    ways = [{"page": page} for page in range(1, min(pages, MOST_PAGES))]
    ways += [{"subifd": number} for number in range(min(inner, MOST_PAGES))]
    found = []
    for way in ways:
        try:
            image = open_tiff(source, **way)
        except vips().Error:  # a page of another kind, such as a label or a mask
            continue
        alike = (image.bands, image.format, image.interpretation) == (first.bands, first.format, first.interpretation)
        if alike and _is_readable(image) and _is_smaller((image.width, image.height), (first.width, first.height)):
            found.append(image)
    found.sort(key=lambda image: -image.width)
    last = first.width
    for image in found:
        if image.width < last:  # the pages of a stack of slices all have the same size
            yield image
            last = image.width


def _is_smaller(size: Size, whole: Size) -> bool:
    width, height = size[0] / whole[0], size[1] / whole[1]
    return width < 0.75 and abs(width - height) <= _SAME_SHAPE * max(width, height) + 1 / min(whole)


def _is_readable(image: Any) -> bool:
    """Whether parts of it can be read by themselves, and turned into RGB without knowing the rest."""
    small_tiles = _number(image, "tile-width", image.width) * _tile_height(image) <= MOST_TILE_PIXELS
    return small_tiles and image.format in _TYPES and _mode(image) is not None


def _tile_height(image: Any) -> int:
    """Rows of pixels that are decoded together; all of them for a file without tiles."""
    return _number(image, "tile-height", image.height)


def _mode(image: Any) -> str | None:
    """The mode that Pillow has for such pixels; None: there is none, or it has to see the whole picture first."""
    if image.interpretation == "cmyk":
        return "CMYK" if image.bands == 4 else None
    known = image.interpretation in ("b-w", "srgb", "rgb", "grey16", "rgb16", "multiband")
    return _MODES.get(image.bands) if known else None


def as_picture(pixels: np.ndarray[Any, Any], image: Any) -> Image.Image:
    """Pixels of an image of libvips as an RGB picture, converted as those of small pictures are."""
    mode = _mode(image)
    assert mode is not None
    if image.format in _DEEP:
        pixels = (pixels >> _DEEP[image.format]).astype(np.uint8)
    height, width, _ = pixels.shape
    return flattened(Image.frombuffer(mode, (width, height), np.ascontiguousarray(pixels), "raw", mode, 0, 1))


def orientation_of(image: Any) -> int:
    """The EXIF orientation of an image of libvips; 1: upright."""
    return _number(image, "orientation", 1)


def _number(image: Any, field: str, otherwise: int) -> int:
    return int(image.get(field)) if image.get_typeof(field) else otherwise


def _with_smaller(sizes: list[Size]) -> Iterator[Size]:
    """These sizes, then halves of the last one, until one is small."""
    yield from sizes
    width, height = sizes[-1]
    shrink = 2
    while max(width, height) / shrink >= _SMALLEST_LEVEL_PX:
        yield -(-width // shrink), -(-height // shrink)
        shrink *= 2


def reason(error: Exception) -> str:
    """What libvips says is wrong, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else type(error).__name__
