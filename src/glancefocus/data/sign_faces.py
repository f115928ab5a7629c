"""The faces of signs: speed limits, and distractors that look similar from a distance.

A face is drawn at several times its size and then reduced, so that its digits are readable at a radius of 9 px.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFont

Colour = tuple[int, int, int]
Points = tuple[tuple[float, float], ...]

_SUPERSAMPLE = 4

_RED, _BLUE, _GREEN, _YELLOW = (206, 22, 34), (22, 82, 188), (18, 128, 70), (244, 196, 30)
_WHITE, _GREY, _BLACK = (244, 244, 240), (128, 130, 134), (16, 16, 18)


@dataclass(frozen=True)
class Face:
    """The appearance of a sign: a rim, a field inside it, and on the field a text or one of the symbols bar, arrow, slash."""

    shape: str
    rim: Colour
    field: Colour
    ink: Colour = _BLACK
    text: str = ""
    symbol: str = ""


class Sign(NamedTuple):
    """A face and its place: centre and radius in px."""

    face: Face
    y: float
    x: float
    radius_px: float


_RED_RINGS_WITHOUT_DIGITS = (
    Face("disc", _RED, _WHITE),
    Face("disc", _RED, _RED, _WHITE, symbol="bar"),
    Face("disc", _RED, _WHITE, symbol="arrow"),
    Face("disc", _RED, _WHITE, _RED, symbol="slash"),
    Face("disc", _RED, _BLUE, _RED, symbol="slash"),
)
_DIGITS_WITHOUT_RED_RING = (
    Face("disc", _BLUE, _WHITE),
    Face("disc", _BLACK, _WHITE),
    Face("disc", _GREEN, _WHITE),
    Face("disc", _YELLOW, _WHITE),
    Face("disc", _GREY, _WHITE, _GREY, symbol="slash"),
    Face("disc", _BLUE, _BLUE, _WHITE),
    Face("square", _BLACK, _WHITE),
    Face("square", _WHITE, _BLUE, _WHITE),
)
_OTHER_SHAPES = (
    Face("triangle", _RED, _WHITE, text="!"),
    Face("triangle", _RED, _YELLOW, symbol="arrow"),
    Face("yield", _RED, _WHITE),
    Face("octagon", _RED, _RED, _WHITE, text="STOP"),
    Face("square", _BLUE, _BLUE, _WHITE, text="P"),
    Face("square", _RED, _WHITE, symbol="arrow"),
    Face("diamond", _WHITE, _YELLOW),
    Face("disc", _BLUE, _BLUE, _WHITE, symbol="arrow"),
)
_DISTRACTOR_NUMBERS = ("30", "50", "80", "100", "20", "40", "60", "70")


def _regular(corners: int, start: float, reach: float) -> Points:
    """A regular polygon: the angle of its first corner in degrees, the distance of its corners from the centre."""
    angles = [math.radians(start + 360 * corner / corners) for corner in range(corners)]
    return tuple((reach * math.cos(angle), reach * math.sin(angle)) for angle in angles)


# As (x, y) in radii from the centre, y downwards.
_OUTLINES = {
    "disc": _regular(64, 0.0, 1.0),
    "triangle": _regular(3, -90.0, 1.15),
    "yield": _regular(3, 90.0, 1.15),
    "square": _regular(4, 45.0, 1.15),
    "diamond": _regular(4, 0.0, 1.1),
    "octagon": _regular(8, 22.5, 1.04),
}
_SYMBOLS: dict[str, Points] = {
    "bar": ((-0.64, -0.2), (0.64, -0.2), (0.64, 0.2), (-0.64, 0.2)),
    "slash": ((-0.66, -0.52), (-0.52, -0.66), (0.66, 0.52), (0.52, 0.66)),
    "arrow": ((0, -0.62), (0.45, 0), (0.14, 0), (0.14, 0.6), (-0.14, 0.6), (-0.14, 0), (-0.45, 0)),
}
_RIM = 0.2
_WIDTH_OF_TEXT = {1: 0.55, 2: 1.2, 3: 1.4, 4: 2.1}
"""Width over height of a text, by its number of characters."""
_REACH_OF_TEXT = {"disc": 0.77, "octagon": 0.78, "square": 0.72, "triangle": 0.42}
"""Distance from the centre to the corners of a text, in radii."""


def speed_limit(text: str) -> Face:
    """The face that the network must find and read: black digits on white in a red ring."""
    return Face("disc", _RED, _WHITE, text=text)


def choose_distractor(rng: np.random.Generator) -> Face:
    """A red ring without digits, digits without a red ring, or another shape."""
    kind = rng.random()
    if kind < 0.1:
        return _RED_RINGS_WITHOUT_DIGITS[rng.integers(len(_RED_RINGS_WITHOUT_DIGITS))]
    if kind < 0.5:
        face = _DIGITS_WITHOUT_RED_RING[rng.integers(len(_DIGITS_WITHOUT_RED_RING))]
        return replace(face, text=_DISTRACTOR_NUMBERS[rng.integers(len(_DISTRACTOR_NUMBERS))])
    return _OTHER_SHAPES[rng.integers(len(_OTHER_SHAPES))]


@lru_cache(maxsize=64)
def _letters(text: str, stroke_px: int) -> Image.Image:
    """The text as a mask, cropped to its ink. The result is cached: never draw into it."""
    font = ImageFont.load_default(size=64)
    left, top, right, bottom = font.getbbox(text, stroke_width=stroke_px)
    mask = Image.new("L", (math.ceil(right - left), math.ceil(bottom - top)))
    ImageDraw.Draw(mask).text((-left, -top), text, fill=255, font=font, stroke_width=stroke_px)
    return mask.crop(mask.getbbox())


def paste_face(picture: Image.Image, sign: Sign, rng: np.random.Generator) -> None:
    """Draw the face of a sign at several times its size, reduce it, add stains, and paste it at its exact position.

    Size, weight and position of the text vary, and so does the light on the face, so that the digits cannot be guessed from the
    brightness of the sign in a glance: they have to be read.
    """
    face, radius = sign.face, sign.radius_px * _SUPERSAMPLE
    side_px = math.ceil(2.4 * sign.radius_px) + 3
    left_px, top_px = round(sign.x - side_px / 2), round(sign.y - side_px / 2)
    x, y = (sign.x - left_px) * _SUPERSAMPLE, (sign.y - top_px) * _SUPERSAMPLE
    turn = math.radians(rng.uniform(-8, 8))
    canvas = Image.new("RGBA", (side_px * _SUPERSAMPLE, side_px * _SUPERSAMPLE))
    draw = ImageDraw.Draw(canvas)

    def fill(points: Points, scale: float, colour: Colour) -> None:
        right, down = scale * radius * math.cos(turn), scale * radius * math.sin(turn)
        draw.polygon([(x + right * u - down * v, y + down * u + right * v) for u, v in points], fill=colour)

    outline = _OUTLINES[face.shape]
    fill(outline, 1.0, face.rim)
    fill(outline, 1 - _RIM if face.shape == "disc" else 1 - 1.3 * _RIM, face.field)
    if face.text:
        wide = _WIDTH_OF_TEXT[len(face.text)] * rng.uniform(0.9, 1.1)
        high = 2 * radius * _REACH_OF_TEXT[face.shape] * rng.uniform(0.9, 1.1) / math.hypot(1, wide)
        stroke_px = int(rng.integers(1, 4)) + (
            len(face.text) == 3
        )  # three digits are narrower: thicker strokes make them as dark as two
        letters = _letters(face.text, stroke_px)
        mask = letters.resize((round(high * wide), round(high)), Image.Resampling.BILINEAR)
        mask = mask.rotate(-math.degrees(turn), Image.Resampling.BILINEAR, expand=True)
        right, down = (0.1 * radius * rng.uniform(-1, 1, 2)).tolist()
        canvas.paste(face.ink, (round(x + right - mask.width / 2), round(y + down - mask.height / 2)), mask)
    if face.symbol:
        fill(_SYMBOLS[face.symbol], 0.55 if face.shape == "triangle" else 1.0, face.ink)
    canvas = canvas.reduce(_SUPERSAMPLE)
    picture.paste(_weather(canvas, rng), (left_px, top_px), canvas)


def _weather(face: Image.Image, rng: np.random.Generator) -> Image.Image:
    """The face with stains and shadows about as wide as a digit."""
    stains = Image.fromarray((255 * rng.uniform(0.8, 1.0, (8, 8))).astype(np.uint8))
    light = stains.resize(face.size, Image.Resampling.BICUBIC)
    return ImageChops.multiply(face.convert("RGB"), Image.merge("RGB", (light, light, light)))
