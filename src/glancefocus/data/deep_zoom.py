"""DeepZoom pictures: a small description (.dzi) beside a folder of tiles, which are ordinary small pictures."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from PIL import Image

from glancefocus.data.file_picture import Size, Stamp
from glancefocus.data.images import read_picture
from glancefocus.errors import BadImage
from glancefocus.machine import read_file
from glancefocus.region import Box

_MOST_BYTES = 1 << 16
_MOST_SIDE_PX = 1 << 24
_MOST_TILE_PX = 4096
_WORD = re.compile(r"[A-Za-z0-9]{1,8}")


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
        self._tile_px, self._overlap = (
            _number(words, "TileSize", 1, _MOST_TILE_PX, name),
            _number(words, "Overlap", 0, 256, name),
        )
        width = _number(words, "Width", 1, _MOST_SIDE_PX, name)
        height = _number(words, "Height", 1, _MOST_SIDE_PX, name)
        self._format = words.get("Format", "")
        if not _WORD.fullmatch(self._format):
            raise BadImage(f"{name} does not say in which format its tiles are. Save it again.")
        self._top = (max(width, height) - 1).bit_length()  # its largest level, which counts halvings down to 1 px
        shrinks = [1 << step for step in range(self._top + 1)]
        self.sizes: tuple[Size, ...] = tuple((-(-width // shrink), -(-height // shrink)) for shrink in shrinks)
        self._folder = file.with_name(f"{file.stem}_files")

    def read(self, level: int, box: Box) -> Image.Image:
        """A part of a level in RGB, put together from its tiles."""
        self._stamp.check(self.name)
        left, top, right, bottom = box
        part = Image.new("RGB", (right - left, bottom - top))
        for row in range(top // self._tile_px, (bottom - 1) // self._tile_px + 1):
            for column in range(left // self._tile_px, (right - 1) // self._tile_px + 1):
                x, y = column * self._tile_px, row * self._tile_px
                tile = self._tile(level, column, row)
                inner = (self._overlap if column else 0), (self._overlap if row else 0)
                part.paste(tile.crop((*inner, *tile.size)), (x - left, y - top))
        return part

    def _tile(self, level: int, column: int, row: int) -> Image.Image:
        file = self._folder / str(self._top - level) / f"{column}_{row}.{self._format}"
        try:
            tile = read_picture(file, max_pixels=(_MOST_TILE_PX + 512) ** 2)
        except BadImage as error:
            raise BadImage(f"a tile of {self.name} cannot be read: {error}") from None
        width, height = self.sizes[level]
        expected = (
            self._side(column, width),
            self._side(row, height),
        )
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


def _number(words: dict[str, str], field: str, least: int, most: int, name: str) -> int:
    text = words.get(field, "")
    if not text.isascii() or not text.isdigit() or not least <= int(text[:12]) <= most:
        raise BadImage(f"{field} of {name} must be a whole number from {least} to {most:,}, but it is {text[:20]!r}.")
    return int(text)
