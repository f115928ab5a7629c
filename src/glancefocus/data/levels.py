"""The kinds of pyramids: large pictures in files, in several sizes, of which parts can be read. See Pyramid.

- A JPEG: its decoder can give 1/2, 1/4 and 1/8 of the size, in a fraction of the time and memory.
- TIFF, read by libvips (the extra `large`): OME-TIFF, SVS, cloud-optimised TIFF and our own tiles.
- DeepZoom: a small description (.dzi) beside a folder of tiles, which are ordinary small pictures.

libvips is used only where it is needed, and with named loaders: otherwise it would try all of its loaders on a
file. A process that was forked after libvips was used would hang in it; processes are started with spawn in this project.
"""

import functools
import os
import re
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from glancefocus.data.file_scene import FilePicture, Size, Stamp
from glancefocus.data.images import TURNS, flattened, read_picture
from glancefocus.errors import BadImage, MissingExtra
from glancefocus.machine import read_file
from glancefocus.region import Box

HELD_PIXELS = 1 << 26
"""A level with more pixels is not decoded whole."""
_SHRINKS = (1, 2, 4, 8)
_PILLOW_BYTES = 4  # memory of one RGB pixel in Pillow
MOST_PAGES = 64
"""Pages of a TIFF in which levels are looked for."""
MOST_TILE_PIXELS = 1 << 24
"""A file with larger tiles is not read part by part: a small part of it would take too much memory."""
_SMALLEST_LEVEL_PX = 512
_SAME_SHAPE = 0.02  # levels are rounded to whole pixels, and some programs to whole tiles
_DEEP = {"ushort": 8}
"""{format of libvips: bits that are dropped}. As for small pictures, the upper 8 bits are kept."""
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
_MOST_BYTES = 1 << 16
_MOST_SIDE_PX = 1 << 24
_MOST_TILE_PX = 4096
_WORD = re.compile(r"[A-Za-z0-9]{1,8}")


class JpegLevels:
    """The levels of a JPEG. A level is decoded whole when it is first needed, and kept while the picture is looked at.

    size        width and height of the picture as it is stored
    max_pixels  limit for the picture, see read_picture
    open_tiles  opens tiles on disk, made once (`tiles.py`), for a level that is too large to be held; None: it is decoded whole,
                whatever its size
    """

    def __init__(
        self,
        source: str | Path | bytes,
        name: str,
        size: Size,
        turn: Image.Transpose | None,
        max_pixels: int,
        open_tiles: "Callable[[], VipsLevels] | None",
    ) -> None:
        self.source = source
        self.name = name
        self.turn = turn
        self.max_pixels = max_pixels
        self.open_tiles = open_tiles
        width, height = size
        self.sizes = tuple((-(-width // shrink), -(-height // shrink)) for shrink in _SHRINKS)  # as libjpeg rounds: up
        self._stamp = Stamp.of(source)
        self._lock = threading.Lock()
        self._levels: dict[int, Image.Image] = {}
        self._tiles: FilePicture | None = None

    @property
    def held_bytes(self) -> int:
        """The largest level that is held."""
        return _PILLOW_BYTES * max(width * height for width, height in self.sizes if self._is_held((width, height)))

    def read(self, level: int, box: Box) -> Image.Image:
        """A part of a level in RGB."""
        if not self._is_held(self.sizes[level]):
            return self._from_tiles(level, box)
        with self._lock:
            if level not in self._levels:
                self._levels[level] = self._decoded(level)
            return self._levels[level].crop(box)

    def _is_held(self, size: Size) -> bool:
        return self.open_tiles is None or size[0] * size[1] <= HELD_PIXELS

    def _decoded(self, level: int) -> Image.Image:
        self._stamp.check(self.name)
        at_least_px = min(self.sizes[0]) // _SHRINKS[level]
        picture = read_picture(
            self.source, max_pixels=self.max_pixels, name=self.name, at_least_px=max(1, at_least_px), upright=False
        )
        self._stamp.check(self.name)
        return picture if picture.size == self.sizes[level] else picture.resize(self.sizes[level])

    def _from_tiles(self, level: int, box: Box) -> Image.Image:
        assert self.open_tiles is not None
        with self._lock:
            if self._tiles is None:
                tiles = self.open_tiles()
                tiles.turn = None  # what is read here is turned later, like the other levels
                self._tiles = FilePicture(tiles)
        self._stamp.check(self.name)
        shrink = _SHRINKS[level]
        width, height = self.sizes[0]
        left, top, right, bottom = (edge * shrink for edge in box)
        in_picture = left, top, min(right, width), min(bottom, height)
        return self._tiles.cut(in_picture, (box[2] - box[0], box[3] - box[1]))


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
        self._stamp.check(self.name)
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
    """The error message of libvips, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else type(error).__name__


class DeepZoomLevels:
    """The levels of a DeepZoom picture. See Pyramid.

    Its format counts levels from the smallest, which is 1x1 px; a tile overlaps its neighbours by a few pixels.
    """

    turn = None
    held_bytes = 0

    def __init__(self, file: Path, name: str) -> None:
        self.name = name
        self._stamp = Stamp.of(file)
        words = _described(file, name)
        self._tile_px = _attribute(words, "TileSize", 1, _MOST_TILE_PX, name)
        self._overlap = _attribute(words, "Overlap", 0, 256, name)
        width = _attribute(words, "Width", 1, _MOST_SIDE_PX, name)
        height = _attribute(words, "Height", 1, _MOST_SIDE_PX, name)
        self._format = words.get("Format", "")
        if not _WORD.fullmatch(self._format):
            raise BadImage(f"{name} does not contain the format of its tiles. Save it again.")
        self._top = (max(width, height) - 1).bit_length()  # its largest level, which counts halvings down to 1 px
        shrinks = [1 << step for step in range(self._top + 1)]
        self.sizes: tuple[Size, ...] = tuple((-(-width // shrink), -(-height // shrink)) for shrink in shrinks)
        self._folder = file.with_name(f"{file.stem}_files")

    def read(self, level: int, box: Box) -> Image.Image:
        """A part of a level in RGB, put together from its tiles."""
        left, top, right, bottom = box
        part = Image.new("RGB", (right - left, bottom - top))
        for row in range(top // self._tile_px, (bottom - 1) // self._tile_px + 1):
            for column in range(left // self._tile_px, (right - 1) // self._tile_px + 1):
                x, y = column * self._tile_px, row * self._tile_px
                tile = self._tile(level, column, row)
                inner = (self._overlap if column else 0), (self._overlap if row else 0)
                part.paste(tile.crop((*inner, *tile.size)), (x - left, y - top))
        self._stamp.check(self.name)
        return part

    def _tile(self, level: int, column: int, row: int) -> Image.Image:
        file = self._folder / str(self._top - level) / f"{column}_{row}.{self._format}"
        try:
            tile = read_picture(file, max_pixels=(_MOST_TILE_PX + 512) ** 2)
        except BadImage as error:
            raise BadImage(f"a tile of {self.name} cannot be read: {error}") from None
        width, height = self.sizes[level]
        expected = self._side(column, width), self._side(row, height)
        if tile.size != expected:
            raise BadImage(
                f"the tile {file} of {self.name} has {tile.width}x{tile.height} px instead of {expected[0]}x{expected[1]}. "
                "Make the tiles again."
            )
        return tile

    def _side(self, number: int, side: int) -> int:
        """Width or height of a tile, with what it overlaps."""
        begin = number * self._tile_px
        first = begin - (self._overlap if number else 0)
        return min(begin + self._tile_px + self._overlap, side) - first


def _described(file: Path, name: str) -> dict[str, str]:
    """The attributes of a .dzi file and of the size in it."""
    try:
        text = read_file(file, _MOST_BYTES).decode("utf-8-sig")
        if "<!DOCTYPE" in text or "<!ENTITY" in text:  # entities can expand to gigabytes
            raise ValueError("it has entities")
        root = ElementTree.fromstring(text)
    except (OSError, ValueError, ElementTree.ParseError) as error:
        raise BadImage(f"{name} is not a DeepZoom picture ({getattr(error, 'strerror', None) or error}).") from None
    sizes = [child.attrib for child in root if child.tag.rpartition("}")[2] == "Size"]
    if root.tag.rpartition("}")[2] != "Image" or not sizes:
        raise BadImage(f"{name} is not a DeepZoom picture: it has no size.")
    return {**root.attrib, **sizes[0]}


def _attribute(words: dict[str, str], field: str, least: int, most: int, name: str) -> int:
    text = words.get(field, "")
    if not text.isascii() or not text.isdigit() or not least <= int(text[:12]) <= most:
        raise BadImage(f"{field} of {name} must be a whole number from {least} to {most:,}, but it is {text[:20]!r}.")
    return int(text)
