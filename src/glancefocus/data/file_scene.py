"""A large picture in a file as a scene: each look reads its own region from the file, at the resolution that it needs.

A file is opened as a *pyramid*: the same picture in several sizes, its levels. A part of the picture is read from the smallest
level that has enough pixels for it, so its cost does not depend on the size of the file. The kinds of pyramids are in
`levels.py`; `large.py` chooses one.
"""

import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from glancefocus.data.images import LARGE_PIXELS, MAX_PIXELS, RESAMPLING, fitted, pixels_of
from glancefocus.errors import BadImage
from glancefocus.look import SeparateImages, as_scene
from glancefocus.machine import check_memory
from glancefocus.region import Box, Placement, Region, normalise, resized, top_left
from glancefocus.settings import Interpolation, View, ViewSettings

Size = tuple[int, int]
"""Width and height in pixels."""
FloatBox = tuple[float, float, float, float]
"""Left, top, right, bottom in pixels, which may lie between pixels."""

OVERSAMPLING = 2.0
"""A part is read with at least this many pixels for each requested pixel, then resized. With fewer, the answers would be
further from those of the whole picture in memory."""
_PART_BYTES = 8  # for one pixel of a part: as it is read (up to 4), and in Pillow (4)
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
        """The same before it is resized: from the level that fits the size, with the place of the box in it. Raises BadImage.

        Where the levels are far apart, or the picture is very long, the part may be much larger than what is asked for.
        """
        level = self._level(max(size[0] / (box[2] - box[0]), size[1] / (box[3] - box[1])))
        (whole_width, whole_height), (width, height) = self.pyramid.sizes[0], self.pyramid.sizes[level]
        scale_x, scale_y = _scale(width, whole_width), _scale(height, whole_height)
        left, top, right, bottom = self._stored(box)
        first_x, last_x = _whole_pixels(left * scale_x, right * scale_x, width)
        first_y, last_y = _whole_pixels(top * scale_y, bottom * scale_y, height)
        self._refuse_part(last_x - first_x, last_y - first_y)
        read = self.pyramid.read(level, (first_x, first_y, last_x, last_y))
        left, right = left * scale_x - first_x, right * scale_x - first_x
        top, bottom = top * scale_y - first_y, bottom * scale_y - first_y
        part = _reaching(read, right, bottom)
        inner = (
            _inside(left, part.width),
            _inside(top, part.height),
            _inside(right, part.width),
            _inside(bottom, part.height),
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

    def _refuse_part(self, width: int, height: int) -> None:
        """Refuse a part that is too large: a small file can claim to be a pyramid whose smaller levels are missing."""
        if width * height > MAX_PIXELS:
            raise BadImage(
                f"a look at {self.name} needs {width * height:,} of its pixels at once ({width}x{height}), more than the limit of "
                f"{MAX_PIXELS:,}: it is too long, or has too few levels. Cut it into shorter pictures, or make a pyramid of it "
                "with `gf tile --output`."
            )
        check_memory(_PART_BYTES * width * height, f"a part of {self.name} ({width}x{height} px)")

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


def _reaching(part: Image.Image, right: float, bottom: float) -> Image.Image:
    """A part that reaches these places. A level that was rounded down lacks less than a pixel there: the last ones are repeated.

    Without them the whole picture would be stretched over the level, and be seen up to a pixel of the level beside its place.
    """
    width, height = part.size
    wide = max(width, math.ceil(right - _ROUNDING * max(1, width)))
    high = max(height, math.ceil(bottom - _ROUNDING * max(1, height)))
    if (wide, high) == part.size:
        return part
    larger = Image.new(part.mode, (wide, high))
    larger.paste(part)
    for x in range(width, wide):
        larger.paste(part.crop((width - 1, 0, width, height)), (x, 0))
    for y in range(height, high):
        larger.paste(larger.crop((0, height - 1, wide, height)), (0, y))
    return larger


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


@dataclass(frozen=True)
class FileImage:
    """The image of a large picture that a network looks at. Its pixels stay in the file.

    size_px        height and width of the image
    placement      where it lies in the picture
    interpolation  by which the picture would be resized to the image
    device         of the pixels that a look gets
    glances        pixels of views of the whole image that were read before, not mirrored
    mirrored       left and right are exchanged: an augmentation in training
    problems       what was wrong with parts that could not be read; these parts are black
    """

    picture: FilePicture
    size_px: tuple[int, int]
    placement: Placement = Placement()  # noqa: RUF009, it is frozen
    interpolation: Interpolation = "bilinear"
    device: torch.device = torch.device("cpu")  # noqa: RUF009
    glances: dict[View, Tensor] = field(default_factory=dict, repr=False)
    mirrored: bool = False
    problems: list[str] = field(default_factory=list)

    @property
    def shape(self) -> torch.Size:
        """As of a tensor (3, height, width)."""
        return torch.Size((3, *self.size_px))

    @property
    def nbytes(self) -> int:
        """Most memory that the picture may come to take."""
        return self.picture.held_bytes

    def to(self, device: torch.device) -> "FileImage":
        """The same image for a network on another device."""
        return self if device == self.device else replace(self, device=device)

    def read_ahead(self, view: View) -> None:
        """Read a view of the whole image now. Raises BadImage."""
        self.pixels(view, None)

    def pixels(self, view: View, where: Tensor | None) -> Tensor:
        """What a look sees, (3, px, px), as uint8 or as floats in [0, 1]; where (2,). Raises BadImage."""
        if where is None and view not in self.glances:
            self.glances[view] = self._region(view, None)
        if self.mirrored and where is not None:
            where = torch.stack([where[0], 1 - where[1]])
        found = self.glances[view] if where is None else self._region(view, where)
        return found.flip(-1) if self.mirrored else found

    def _region(self, view: View, where: Tensor | None) -> Tensor:
        size = (view.px, view.px)
        box, covered_px = self._box(view, where)
        if where is not None and covered_px == size:
            return pixels_of(self.picture.cut(box, size, RESAMPLING[self.interpolation]))
        part, inner = self.picture.part(box, size)
        if view.resize == "antialias":
            return _resized_exactly(part, inner, size)
        left, top, right, bottom = map(round, inner)
        covered = pixels_of(part.crop((left, top, max(right, left + 1), max(bottom, top + 1))))
        return resized(covered[None].float() / 255, size, view.resize)[0]

    def _box(self, view: View, where: Tensor | None) -> tuple[FloatBox, tuple[int, int]]:
        """The region in pixels of the picture, and its height and width in pixels of the image."""
        top, left, (height, width) = 0, 0, self.size_px
        if where is not None:
            extent_px = view.extent_px(height, width)
            top, left = top_left(where[None].cpu(), height, width, extent_px)[0].tolist()
            height = width = extent_px
        return self.placement.exact_box(top, left, height, width), (height, width)


_KEPT_SHRINK = 4  # a part that is more than twice this many times as large as what is seen is averaged first


def _resized_exactly(part: Image.Image, box: FloatBox, size: tuple[int, int]) -> Tensor:
    """A box of an RGB picture at this size, (3, height, width) in [0, 1]: as floats, because images in memory are resized so.

    Rounding to 8 bits would change the pixels as much as reading from a smaller level does.
    """
    times = int(min((box[2] - box[0]) / size[0], (box[3] - box[1]) / size[1])) // _KEPT_SHRINK
    if times > 1:
        shrink = 1 << (times.bit_length() - 1)
        left, top, right, bottom = box
        part = part.reduce(shrink)
        box = (left / shrink, top / shrink, min(right / shrink, part.width), min(bottom / shrink, part.height))
    bands = [band.convert("F").resize(size, Image.Resampling.BILINEAR, box=box) for band in part.split()]
    return torch.from_numpy(np.stack([np.asarray(band) for band in bands])) / 255


@dataclass(frozen=True)
class FileScene(SeparateImages):
    """Images of which some are in files, each (3, H, W); those of several images are read by several threads.

    normalise_by  mean and deviation for pixels from files, and for tensors that are uint8
    centres       (B, 2) the known place of the object in each image, as (y, x) in px, for training; NaN where there is none. None:
                  unknown
    """

    images: tuple[Tensor | FileImage, ...]
    normalise_by: ViewSettings
    centres: Tensor | None = None

    def to(self, device: torch.device) -> "FileScene":
        """The same scene for a network on another device."""
        centres = None if self.centres is None else self.centres.to(device)
        return FileScene(tuple(image.to(device) for image in self.images), self.normalise_by, centres)

    def view(self, region: Region) -> Tensor:
        places = [None] * self.count if region.where is None else list(region.where)
        readers = min(self.count, os.cpu_count() or 1)
        if readers == 1:
            seen = [_read(image, region.view, where) for image, where in zip(self.images, places, strict=True)]
        else:
            with ThreadPoolExecutor(readers) as pool:
                seen = list(pool.map(_read, self.images, [region.view] * self.count, places))
        rows = [
            self._of_tensor(image, region.rows(slice(row, row + 1)))
            if isinstance(image, Tensor)
            else normalise(pixels.to(image.device), self.normalise_by)[None]
            for row, (image, pixels) in enumerate(zip(self.images, seen, strict=True))
        ]
        return torch.cat(rows).contiguous(memory_format=torch.channels_last)

    def keep(self, rows: Tensor) -> "FileScene":
        centres = None if self.centres is None else self.centres[rows.to(self.centres.device)]
        return FileScene(tuple(self.images[row] for row in rows.tolist()), self.normalise_by, centres)

    def _of_tensor(self, image: Tensor, region: Region) -> Tensor:
        return as_scene(image[None], self.normalise_by).view(region)


def _read(image: Tensor | FileImage, view: View, where: Tensor | None) -> Tensor:
    """The pixels of one look from a file; nothing for an image in memory. A part that cannot be read is noted, and black."""
    if isinstance(image, Tensor):
        return image
    try:
        return image.pixels(view, where)
    except BadImage as error:
        image.problems.append(str(error))
        return torch.zeros(3, view.px, view.px, dtype=torch.uint8)


def view_file(
    picture: FilePicture, view: ViewSettings, least_px: int, glance: View
) -> tuple[Tensor | FileImage, Placement]:
    """The image of a large picture: a tensor of uint8 if it is small, otherwise a FileImage; and its position in the picture.

    least_px  see images.view_pixels
    glance    view of the whole image that is read now, so that damage is found before the looks begin
    """
    width, height = picture.size
    fit = fitted(height, width, view, least_px)
    _, _, image_height, image_width = fit.crop
    if fit.placement.note or image_height * image_width <= LARGE_PIXELS:
        box = fit.placement.exact_box(0, 0, image_height, image_width)
        small = picture.cut(box, (image_width, image_height), RESAMPLING[view.interpolation])
        return pixels_of(small), fit.placement
    image = FileImage(picture, (image_height, image_width), fit.placement, view.interpolation)
    image.read_ahead(glance)
    return image, fit.placement
