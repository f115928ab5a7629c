"""A JPEG as a pyramid: the decoder itself can give 1/2, 1/4 and 1/8 of the size, in a fraction of the time and memory.

A level is decoded whole when it is first needed, and kept while the picture is looked at. A level that is too large for
that is read from tiles on disk, which are made once (`tiles.py`).
"""

import threading
from pathlib import Path

from PIL import Image

from glancefocus.data.file_picture import FilePicture, Size, Stamp
from glancefocus.data.images import read_picture
from glancefocus.data.tiles import Tiler
from glancefocus.region import Box

HELD_PIXELS = 1 << 26
"""A level with more pixels is not decoded whole."""
_SHRINKS = (1, 2, 4, 8)
_PILLOW_BYTES = 4  # memory of one RGB pixel in Pillow


class JpegLevels:
    """The levels of a JPEG. See Pyramid.

    size        width and height of the picture as it is stored
    max_pixels  limit for the picture, see read_picture
    tiler       makes the tiles of a level that is too large to be held; None: it is decoded whole, whatever its size
    """

    def __init__(
        self,
        source: str | Path | bytes,
        name: str,
        size: Size,
        turn: Image.Transpose | None,
        max_pixels: int,
        tiler: Tiler | None,
    ) -> None:
        self.source = source
        self.name = name
        self.turn = turn
        self.max_pixels = max_pixels
        self.tiler = tiler
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
        return self.tiler is None or size[0] * size[1] <= HELD_PIXELS

    def _decoded(self, level: int) -> Image.Image:
        self._stamp.check(self.name)
        at_least_px = min(self.sizes[0]) // _SHRINKS[level]
        picture = read_picture(
            self.source, max_pixels=self.max_pixels, name=self.name, at_least_px=max(1, at_least_px), upright=False
        )
        self._stamp.check(self.name)
        return picture if picture.size == self.sizes[level] else picture.resize(self.sizes[level])

    def _from_tiles(self, level: int, box: Box) -> Image.Image:
        assert self.tiler is not None
        with self._lock:
            if self._tiles is None:
                tiles = self.tiler.open()
                tiles.turn = None  # what is read here is turned later, like the other levels
                self._tiles = FilePicture(tiles)
        self._stamp.check(self.name)
        shrink = _SHRINKS[level]
        width, height = self.sizes[0]
        left, top, right, bottom = (edge * shrink for edge in box)
        in_picture = left, top, min(right, width), min(bottom, height)
        return self._tiles.cut(in_picture, (box[2] - box[0], box[3] - box[1]))
