"""A large picture in a file, read part by part: only what is asked for is decoded, at the size that is asked for.

A file is opened as a *pyramid*: the same picture in several sizes, its levels. A part of the picture is read from the smallest
level that has enough pixels for it, so its cost does not depend on the size of the file. The kinds of pyramids are in
`jpeg_levels.py`, `vips_levels.py` and `deep_zoom.py`; `large.py` chooses one.
"""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from PIL import Image

from glancefocus.errors import BadImage
from glancefocus.region import Box

Size = tuple[int, int]
"""Width and height in pixels."""
FloatBox = tuple[float, float, float, float]
"""Left, top, right, bottom in pixels, which may lie between pixels."""

OVERSAMPLING = 2.0
"""A part is read with at least this many pixels for each one that is asked for, then resized. With fewer, the answers would be
further from those of the whole picture in memory."""
_ROUNDING = 1e-6  # a box that is this close to whole pixels is meant to lie on them
_WAYS = Image.Transpose
# A transposition exchanges the axes or not, then turns the new axes round or not.
_SIDEWAYS = (_WAYS.TRANSPOSE, _WAYS.ROTATE_90, _WAYS.ROTATE_270, _WAYS.TRANSVERSE)
_FLIP_X = (_WAYS.FLIP_LEFT_RIGHT, _WAYS.ROTATE_180, _WAYS.ROTATE_270, _WAYS.TRANSVERSE)
_FLIP_Y = (_WAYS.FLIP_TOP_BOTTOM, _WAYS.ROTATE_180, _WAYS.ROTATE_90, _WAYS.TRANSVERSE)


class Pyramid(Protocol):
    """A picture in several sizes, of which parts can be read. Several threads may read at once.

    name   the picture's name in errors
    sizes  (width, height) of every level as it is stored, the largest first; their proportions are the same, but for rounding
    turn   the transposition that turns what is stored upright; None: it is upright
    """

    @property
    def name(self) -> str: ...

    @property
    def sizes(self) -> tuple[Size, ...]: ...

    @property
    def turn(self) -> Image.Transpose | None: ...

    @property
    def held_bytes(self) -> int:
        """Most memory that it may keep between two reads."""
        ...

    def read(self, level: int, box: Box) -> Image.Image:
        """A part of a level in RGB, as it is stored (not turned). Raises BadImage."""
        ...


@dataclass(frozen=True)
class FilePicture:
    """A picture in a file, upright, read part by part."""

    pyramid: Pyramid

    @property
    def name(self) -> str:
        """The picture's name in errors."""
        return self.pyramid.name

    @property
    def size(self) -> Size:
        """Width and height of the picture."""
        width, height = self.pyramid.sizes[0]
        return (height, width) if self.pyramid.turn in _SIDEWAYS else (width, height)

    @property
    def held_bytes(self) -> int:
        """Most memory that it may keep between two reads."""
        return self.pyramid.held_bytes

    def cut(self, box: FloatBox, size: Size, resampling: Image.Resampling = Image.Resampling.BILINEAR) -> Image.Image:
        """The part of the picture in a box, in RGB, at this size. A box of whole pixels and of this size is not resized."""
        part, inner = self.part(box, size)
        return part.resize(size, resampling, box=inner)

    def part(self, box: FloatBox, size: Size) -> tuple[Image.Image, FloatBox]:
        """The same before it is resized: from the level that fits the size, with the place of the box in it."""
        level = self._level(max(size[0] / (box[2] - box[0]), size[1] / (box[3] - box[1])))
        (whole_width, whole_height), (width, height) = self.pyramid.sizes[0], self.pyramid.sizes[level]
        scale_x, scale_y = _scale(width, whole_width), _scale(height, whole_height)
        left, top, right, bottom = self._stored(box)
        first_x, last_x = _whole_pixels(left * scale_x, right * scale_x, width)
        first_y, last_y = _whole_pixels(top * scale_y, bottom * scale_y, height)
        part = self.pyramid.read(level, (first_x, first_y, last_x, last_y))
        inner = (
            _inside(left * scale_x - first_x, part.width),
            _inside(top * scale_y - first_y, part.height),
            _inside(right * scale_x - first_x, part.width),
            _inside(bottom * scale_y - first_y, part.height),
        )
        if self.pyramid.turn is None:
            return part, inner
        return part.transpose(self.pyramid.turn), self._upright(inner, part.size)

    def overview(self, longest_px: int) -> tuple[Image.Image, float]:
        """The whole picture, its longer side at most this long, and its scale."""
        width, height = self.size
        scale = min(1.0, longest_px / max(width, height))
        size = max(1, round(width * scale)), max(1, round(height * scale))
        return self.cut((0, 0, width, height), size), scale

    def _level(self, scale: float) -> int:
        """The smallest level that has enough pixels for parts at this scale."""
        whole, _ = self.pyramid.sizes[0]
        enough = [n for n, (width, _) in enumerate(self.pyramid.sizes) if width / whole >= OVERSAMPLING * scale]
        return max(enough, default=0)

    def _stored(self, box: FloatBox) -> FloatBox:
        """A box of the upright picture in pixels of the picture as it is stored."""
        left, top, right, bottom = box
        width, height = self.size
        if self.pyramid.turn in _FLIP_X:
            left, right = width - right, width - left
        if self.pyramid.turn in _FLIP_Y:
            top, bottom = height - bottom, height - top
        return (top, left, bottom, right) if self.pyramid.turn in _SIDEWAYS else (left, top, right, bottom)

    def _upright(self, box: FloatBox, size: Size) -> FloatBox:
        """The reverse, for a part of this size as it is stored."""
        left, top, right, bottom = box
        width, height = size
        if self.pyramid.turn in _SIDEWAYS:
            left, top, right, bottom, width, height = top, left, bottom, right, height, width
        if self.pyramid.turn in _FLIP_X:
            left, right = width - right, width - left
        if self.pyramid.turn in _FLIP_Y:
            top, bottom = height - bottom, height - top
        return left, top, right, bottom


def _scale(level_px: int, whole_px: int) -> float:
    """Pixels of a level for each pixel of the picture. Where a level was rounded to whole pixels, it is not level_px / whole_px."""
    shrink = round(whole_px / level_px)
    return 1 / shrink if abs(shrink * level_px - whole_px) < shrink else level_px / whole_px


def _whole_pixels(begin: float, end: float, side: int) -> tuple[int, int]:
    """The pixels that a stretch touches; at least one, and all of them inside the side."""
    first = min(max(math.floor(begin + _ROUNDING), 0), side - 1)
    return first, min(max(math.ceil(end - _ROUNDING), first + 1), side)


def _inside(place: float, side: int) -> float:
    """A place on a side, without errors of rounding."""
    nearest = round(place)
    return float(min(max(nearest if abs(place - nearest) < _ROUNDING * max(1, side) else place, 0), side))


@dataclass(frozen=True)
class Stamp:
    """Size and time of a file, by which a change of it is noticed.

    size_bytes, changed_ns  both 0 for bytes in memory, which cannot change
    """

    path: Path | None
    size_bytes: int = 0
    changed_ns: int = 0

    @staticmethod
    def of(source: str | Path | bytes) -> "Stamp":
        """The stamp of a file as it is now. Raises OSError."""
        if isinstance(source, bytes):
            return Stamp(None)
        stat = os.stat(source)
        return Stamp(Path(source), stat.st_size, stat.st_mtime_ns)

    def check(self, name: str) -> None:
        """Refuse a file that is not the one that was opened any more."""
        try:
            same = self.path is None or Stamp.of(self.path) == self
        except OSError:
            same = False
        if not same:
            raise BadImage(
                f"{name} was changed or removed while it was being read. Wait until it is complete, and try again."
            )
