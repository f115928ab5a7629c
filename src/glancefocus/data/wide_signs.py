"""The world `signs` in any size, drawn on demand: only the regions that are looked at are drawn, at the scale that a look needs.

A scene is laid out once as a list of shapes, by the same program that draws the small scenes. A region of it is drawn from the
shapes that touch it. A scene is a pyramid like that of a file, so `FilePicture`, `FileImage` and `FileScene` work with it.

The signs keep their size in pixels, so in a wide scene a glance cannot see them. A trail leads to each of them: rings around it,
each a quarter of the size of the last one, amber around the speed limit and of other colours around other signs. So a sign can be
found by zooming, and the number of looks grows with the logarithm of the scene's side.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from glancefocus.data.file_scene import Size
from glancefocus.data.sign_faces import Colour, Sign, paste_face
from glancefocus.data.signs import (
    Box,
    Side,
    SignsSettings,
    backdrop_rows,
    draw_landscape,
    draw_pole,
    gains_and_noise,
    lay_ground,
    noise_levels,
    place_signs,
)
from glancefocus.region import Box as PixelBox

_SMALLEST_LEVEL_PX = 256
_TRAIL_STEP = 4  # each ring has a quarter of the size of the last one
_RING = 0.09  # its radius, as a share of the side of the region in which it is looked for
_RING_LINE = 0.015  # the width of its line, in the same unit
_AMBER: Colour = (255, 176, 0)
_OTHER_RINGS: tuple[Colour, ...] = ((70, 130, 220), (235, 235, 240), (150, 90, 190), (40, 60, 50))
_READABLE_RADIUS_PX = 3.0  # smaller faces are drawn as discs
_NOISE_TILE_PX = 128


@dataclass(frozen=True)
class WideSignsSettings(SignsSettings):
    """As SignsSettings, with sides of up to 32,768 px. Without a trail nothing leads to a sign."""

    height: Side = 4096
    width: Side = 4096
    trail: bool = True


class _Shape(NamedTuple):
    """One step of drawing: the name of the method of ImageDraw, its points in px of the scene, its colour and its line's width."""

    method: str
    points: tuple[float, ...]
    fill: Any
    width: float

    def reaches(self, left: float, top: float, right: float, bottom: float) -> bool:
        """Whether it may touch a box."""
        xs, ys, line = self.points[::2], self.points[1::2], self.width / 2 + 1
        return max(xs) + line >= left and min(xs) - line <= right and max(ys) + line >= top and min(ys) - line <= bottom


class _Layout:
    """Takes the place of an ImageDraw: notes what would be drawn."""

    def __init__(self) -> None:
        self.shapes: list[_Shape] = []

    def _note(self, method: str, points: Any, fill: Any, width: float = 0) -> None:
        self.shapes.append(_Shape(method, tuple(np.asarray(points, float).ravel().tolist()), fill, width))

    def ellipse(self, points: Any, fill: Any = None, outline: Any = None, width: float = 0) -> None:
        if fill is None:
            self._note("ring", points, outline, width)
        else:
            self._note("ellipse", points, fill)

    def polygon(self, points: Any, fill: Any) -> None:
        self._note("polygon", points, fill)

    def rectangle(self, points: Any, fill: Any) -> None:
        self._note("rectangle", points, fill)

    def line(self, points: Any, fill: Any, width: float = 1) -> None:
        self._note("line", points, fill, width)


class WideScene:
    """One scene of any size. See Pyramid; it is drawn by `read`.

    label  index into signs.CLASSES
    box    (top, left, bottom, right) of the speed limit in px; None for the class `none`
    """

    turn = None
    held_bytes = 0

    def __init__(self, settings: WideSignsSettings, label: int, seed: int) -> None:
        self.name = f"scene {seed} of signs"
        self.label = label
        self._seed = seed
        rng = np.random.default_rng(seed)
        ground = lay_ground(settings, rng)
        self._signs = place_signs(settings, label, rng)
        self._backdrop = backdrop_rows(ground, rng)
        layout = _Layout()
        draw = cast(ImageDraw.ImageDraw, layout)
        draw_landscape(draw, ground, rng)
        if settings.trail:
            for number, sign in enumerate(self._signs):
                _draw_trail(layout, sign, settings, number == 0 and label > 0, rng)
        for sign in self._signs:
            draw_pole(draw, sign, ground, rng)
        self._shapes = layout.shapes
        self._gains, self._noise = gains_and_noise(rng)
        self.sizes = tuple(_halves(settings.width, settings.height))
        limit = self._signs[0] if label > 0 else None
        self.box: Box | None = limit and (
            limit.y - limit.radius_px,
            limit.x - limit.radius_px,
            limit.y + limit.radius_px,
            limit.x + limit.radius_px,
        )

    def read(self, level: int, box: PixelBox) -> Image.Image:
        """A region of a level. The same pixels, whichever regions were drawn before."""
        scale = 1 / (1 << level)
        finer = 1 if level == 0 else 2  # smaller levels are drawn at twice their size, so that their edges are smooth
        picture = self._drawn(box, scale, finer)
        if finer > 1:
            picture = picture.reduce(finer)
        picture = picture.filter(ImageFilter.BoxBlur(0.4))
        left, top, right, bottom = box
        for number, sign in reversed(list(enumerate(self._signs))):
            here = Sign(sign.face, sign.y * scale - top, sign.x * scale - left, sign.radius_px * scale)
            reach = 1.3 * here.radius_px + 2
            if -reach < here.x < right - left + reach and -reach < here.y < bottom - top + reach:
                self._paste(picture, here, number)
        return self._exposed(picture, box, level)

    def _drawn(self, box: PixelBox, scale: float, finer: int) -> Image.Image:
        """The region without signs, `finer` times as large."""
        left, top, right, bottom = box
        width, height = (right - left) * finer, (bottom - top) * finer
        rows = ((np.arange(height) + 0.5) / finer + top) / scale
        column = self._backdrop(rows)
        picture = Image.fromarray(column[:, None]).resize((width, height), Image.Resampling.NEAREST)
        draw = ImageDraw.Draw(picture)
        zoom = scale * finer
        in_scene = (left / scale, top / scale, right / scale, bottom / scale)
        for shape in self._shapes:
            if not shape.reaches(*in_scene):
                continue
            xs = [x * zoom - left * finer for x in shape.points[::2]]
            ys = [y * zoom - top * finer for y in shape.points[1::2]]
            points = list(zip(xs, ys, strict=True))
            line = max(1, round(shape.width * zoom))
            if shape.method == "line":
                draw.line(points, fill=shape.fill, width=line)
            elif shape.method == "ring":
                draw.ellipse(points, outline=shape.fill, width=line)
            elif shape.method == "polygon":
                draw.polygon(points, fill=shape.fill)
            else:
                corners = (*points[0], max(xs[1], xs[0]), max(ys[1], ys[0]))
                getattr(draw, shape.method)(corners, fill=shape.fill)
        return picture

    def _paste(self, picture: Image.Image, sign: Sign, number: int) -> None:
        if sign.radius_px >= _READABLE_RADIUS_PX:
            paste_face(picture, sign, np.random.default_rng((self._seed, number)))
        elif sign.radius_px >= 0.5:
            draw = ImageDraw.Draw(picture)
            for radius, colour in ((sign.radius_px, sign.face.rim), (0.75 * sign.radius_px, sign.face.field)):
                draw.ellipse((sign.x - radius, sign.y - radius, sign.x + radius, sign.y + radius), fill=colour)

    def _exposed(self, picture: Image.Image, box: PixelBox, level: int) -> Image.Image:
        """Brightness, tint and noise, as in the small scenes; noise of smaller levels is weaker, as a mean of pixels is."""
        bright = picture.point(self._gains)
        strength = self._noise / (1 << level)
        if strength < 0.5:
            return bright
        noise = self._noise_of(box, level).point(noise_levels(strength))
        return ImageChops.add(bright, Image.merge("RGB", (noise, noise, noise)), offset=-128)

    def _noise_of(self, box: PixelBox, level: int) -> Image.Image:
        """Random bytes of a region, drawn tile by tile, so that they do not depend on the region."""
        left, top, right, bottom = box
        found = Image.new("L", (right - left, bottom - top))
        side = _NOISE_TILE_PX
        for row in range(top // side, (bottom - 1) // side + 1):
            for column in range(left // side, (right - 1) // side + 1):
                rng = np.random.default_rng((self._seed, level, row, column))
                tile = Image.frombytes("L", (side, side), rng.bytes(side * side))
                found.paste(tile, (column * side - left, row * side - top))
        return found


def _draw_trail(
    layout: _Layout, sign: Sign, settings: WideSignsSettings, is_limit: bool, rng: np.random.Generator
) -> None:
    """Rings around a sign, from as large as a glance at the scene can see to a few times the size of the sign."""
    colour = _AMBER if is_limit else _OTHER_RINGS[int(rng.integers(len(_OTHER_RINGS)))]
    side = float(min(settings.height, settings.width))
    while _RING * side > 2 * sign.radius_px:
        radius, away, angle = _RING * side, 0.25 * _RING * side * rng.random(), rng.uniform(0, 2 * math.pi)
        y, x = sign.y + away * math.sin(angle), sign.x + away * math.cos(angle)
        layout.ellipse((x - radius, y - radius, x + radius, y + radius), outline=colour, width=_RING_LINE * side)
        side /= _TRAIL_STEP


def _halves(width: int, height: int) -> list[Size]:
    """The sizes of all levels."""
    sizes = [(width, height)]
    shrink = 2
    while max(width, height) / shrink >= _SMALLEST_LEVEL_PX:
        sizes.append((-(-width // shrink), -(-height // shrink)))
        shrink *= 2
    return sizes
