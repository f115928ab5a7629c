"""Draws the scenes of the built-in world `signs`: roads with at most one speed limit."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from glancefocus.data.sign_faces import Colour, Sign, choose_distractor, paste_face, speed_limit
from glancefocus.errors import BadSetting
from glancefocus.values import Range, check_fields

CLASSES: tuple[str, ...] = ("none", "30", "50", "80", "100")

DRAWING_VERSION = 4
"""Increase it whenever a scene would look different from before: cached scenes of another version are not used."""

Box = tuple[float, float, float, float]

Side = Annotated[int, Range(96, 32_768)]
_Radius = Annotated[float, Range(6, 1024)]  # digits of smaller signs cannot be read
_Distractors = Annotated[int, Range(0, 16)]
_MARGIN_PX = 2.0


@dataclass(frozen=True)
class SignsSettings:
    """Size of the scenes and of the signs. The size of a sign in pixels does not depend on that of the scene."""

    height: Side = 160
    width: Side = 160
    radius_min_px: _Radius = 10.0
    radius_max_px: _Radius = 14.0
    distractors_max: _Distractors = 4

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.radius_min_px <= self.radius_max_px:
            raise BadSetting(
                f"radius_max_px ({self.radius_max_px}) is below radius_min_px ({self.radius_min_px}). "
                "Choose radius_max_px no less than radius_min_px."
            )
        largest_px = min(self.height, self.width) / 4
        if self.radius_max_px > largest_px:
            raise BadSetting(
                f"a sign with a radius of {self.radius_max_px} px is too large for a scene of {self.height}x{self.width} px. "
                f"Choose radius_max_px of at most {largest_px:g}, or a larger scene."
            )


def draw_scene(
    settings: SignsSettings, label: int, seed: int | np.random.SeedSequence
) -> tuple[NDArray[np.uint8], Box | None]:
    """One road scene, and the box of its speed-limit sign.

    label   index into CLASSES
    seed    decides everything else: the same settings, label and seed give the same pixels
    returns (H, W, 3) in [0, 255], and the sign's (top, left, bottom, right) in px, None for the class `none`
    """
    if not 0 <= label < len(CLASSES):
        raise BadSetting(f"there is no class {label}. Choose a label from 0 to {len(CLASSES) - 1}.")
    rng = np.random.default_rng(seed)
    ground = lay_ground(settings, rng)
    signs = place_signs(settings, label, rng)

    picture = _draw_backdrop(ground, rng)
    draw = ImageDraw.Draw(picture)
    draw_landscape(draw, ground, rng)
    for sign in signs:
        draw_pole(draw, sign, ground, rng)
    picture = picture.filter(ImageFilter.BoxBlur(0.4))  # softens hard edges of everything but the signs
    for sign in reversed(signs):  # the speed limit is first in the list, so it is drawn last and nothing covers it
        paste_face(picture, sign, rng)
    scene = _expose(picture, rng)

    if label == 0:
        return scene, None
    limit = signs[0]
    box = (limit.y - limit.radius_px, limit.x - limit.radius_px, limit.y + limit.radius_px, limit.x + limit.radius_px)
    return scene, box


def place_signs(settings: SignsSettings, label: int, rng: np.random.Generator) -> list[Sign]:
    """The speed limit first, if there is one; then distractors. Signs do not touch one another."""
    wanted = int(rng.integers(settings.distractors_max + 1))
    faces = [choose_distractor(rng) for _ in range(wanted)]
    if label > 0:
        faces.insert(0, speed_limit(CLASSES[label]))
    signs: list[Sign] = []
    for face in faces:
        for _ in range(20):  # a small scene may be full: then it has one distractor less
            radius_px = rng.uniform(settings.radius_min_px, settings.radius_max_px)
            # corners of other shapes reach further than a disc does, and none may leave the picture
            reach_px = radius_px * (1.0 if face.shape == "disc" else 1.15) + _MARGIN_PX
            y = rng.uniform(reach_px, settings.height - reach_px)
            x = rng.uniform(reach_px, settings.width - reach_px)
            sign = Sign(face, y, x, radius_px)
            if not any(_overlap(sign, other) for other in signs):
                signs.append(sign)
                break
    return signs


def _overlap(one: Sign, other: Sign) -> bool:
    apart_px = math.hypot(one.y - other.y, one.x - other.x)
    return apart_px < 1.2 * (one.radius_px + other.radius_px) + _MARGIN_PX


class _Ground(NamedTuple):
    """The layout of the landscape in px: the road narrows from the lower edge to its vanishing point on the horizon."""

    height: int
    width: int
    horizon: float
    vanishing_x: float
    road_x: float
    road_half: float

    def road(self, depth: float) -> tuple[float, float, float]:
        """Row, centre column and half width of the road at a depth from 0 (horizon) to 1 (lower edge)."""
        y = self.horizon + depth * (self.height - self.horizon)
        return y, self.vanishing_x + depth * (self.road_x - self.vanishing_x), depth * self.road_half


def lay_ground(settings: SignsSettings, rng: np.random.Generator) -> _Ground:
    return _Ground(
        height=settings.height,
        width=settings.width,
        horizon=settings.height * rng.uniform(0.32, 0.55),
        vanishing_x=settings.width * rng.uniform(0.25, 0.75),
        road_x=settings.width * rng.uniform(0.25, 0.75),
        road_half=settings.width * rng.uniform(0.28, 0.5),
    )


def _vary(colour: Colour, rng: np.random.Generator, spread: int = 18) -> Colour:
    """The colour slightly lighter or darker, with a slightly different tint."""
    light, *tints = rng.uniform(-1, 1, 4).tolist()
    red, green, blue = (round(part + spread * (light + tint / 3)) for part, tint in zip(colour, tints, strict=True))
    return (min(max(red, 0), 255), min(max(green, 0), 255), min(max(blue, 0), 255))


def _draw_backdrop(ground: _Ground, rng: np.random.Generator) -> Image.Image:
    """Sky and grass, each a gradient from top to bottom."""
    column = backdrop_rows(ground, rng)(np.arange(ground.height, dtype=np.float32))
    return Image.fromarray(column[:, None]).resize((ground.width, ground.height), Image.Resampling.NEAREST)


def backdrop_rows(
    ground: _Ground, rng: np.random.Generator
) -> Callable[[NDArray[np.floating[Any]]], NDArray[np.uint8]]:
    """The colours (N, 3) of sky and grass, as a function of the rows (N,) in px."""
    skies = (((88, 140, 210), (190, 214, 236)), ((150, 160, 172), (206, 208, 208)), ((112, 130, 186), (240, 206, 176)))
    top, low = skies[rng.integers(len(skies))]
    knots = (0.0, ground.horizon, ground.horizon + 1.0, float(ground.height))
    colours = np.array([_vary(top, rng), _vary(low, rng), _vary((126, 150, 96), rng), _vary((84, 122, 58), rng)])

    def colours_of(rows: NDArray[np.floating[Any]]) -> NDArray[np.uint8]:
        return np.stack([np.interp(rows, knots, colours[:, channel]) for channel in range(3)], axis=1).astype(np.uint8)

    return colours_of


def draw_landscape(draw: ImageDraw.ImageDraw, ground: _Ground, rng: np.random.Generator) -> None:
    """Clouds, hills, road, tufts of grass, then houses, trees and bare poles from far to near."""
    high, wide = ground.height, ground.width
    for _ in range(rng.integers(4)):
        x, y, size = rng.uniform(0, wide), rng.uniform(0, 0.7 * ground.horizon), high * rng.uniform(0.02, 0.05)
        colour = _vary((232, 234, 238), rng, 8)
        for step in (-1.5, 0.0, 1.4):
            puff = size * rng.uniform(0.7, 1.2)
            middle = x + step * size
            draw.ellipse((middle - 1.6 * puff, y - puff, middle + 1.6 * puff, y + puff), fill=colour)
    _draw_hills(draw, ground, rng)
    _draw_road(draw, ground, rng)
    blade = max(1, high // 320)
    greens = [_vary((74, 112, 50), rng) for _ in range(5)]
    for tuft, (depth, across) in enumerate(rng.uniform(0.03, 1, (50, 2)).tolist()):
        y, middle, half = ground.road(depth)
        x = across * wide
        if abs(x - middle) > half + 2:
            length = high * 0.03 * depth
            draw.line((x, y, x + 0.4 * length, y - length), fill=greens[tuft % 5], width=blade)
    for depth in sorted(rng.uniform(0.02, 0.6, rng.integers(7, 16)).tolist()):
        y, middle, half = ground.road(depth)
        size = high * (0.07 + 0.42 * depth) * rng.uniform(0.8, 1.25)
        away = half + 0.6 * size + rng.uniform(0, 0.55) * wide
        x = middle + (away if rng.random() < 0.5 else -away)
        kind = rng.random()
        if kind < 0.3:
            _draw_house(draw, x, y, size, rng)
        elif kind < 0.85:
            _draw_tree(draw, x, y, size, rng)
        else:
            _draw_lamp(draw, x, y, 1.3 * size, rng)


def _draw_hills(draw: ImageDraw.ImageDraw, ground: _Ground, rng: np.random.Generator) -> None:
    xs = np.linspace(0, ground.width, 9)
    tops = ground.horizon - ground.height * rng.uniform(0, 0.09, 9)
    outline = list(zip(xs.tolist(), tops.tolist(), strict=True))
    draw.polygon([(0, ground.horizon), *outline, (ground.width, ground.horizon)], fill=_vary((104, 130, 120), rng))


def _draw_road(draw: ImageDraw.ImageDraw, ground: _Ground, rng: np.random.Generator) -> None:
    def stripe(near: float, far: float, side: float, thick: float, colour: Colour) -> None:
        """A part of the road from one depth to another; side is -1 at its left edge and 1 at its right."""
        corners = []
        for depth, edges in ((near, (-1, 1)), (far, (1, -1))):
            y, middle, half = ground.road(depth)
            corners += [(middle + half * (side + thick * edge), y) for edge in edges]
        draw.polygon(corners, fill=colour)

    paint = _vary((222, 222, 214), rng, 10)
    stripe(1.0, 0.0, 0.0, 1.08, _vary((140, 128, 104), rng))
    stripe(1.0, 0.0, 0.0, 1.0, _vary((92, 92, 96), rng))
    for side in (-0.92, 0.92):
        stripe(1.0, 0.0, side, 0.025, paint)
    near = rng.uniform(0.85, 1.0)
    while near > 0.04:
        stripe(near, near * 0.82, 0.0, 0.03, paint)
        near *= 0.66


def _draw_house(draw: ImageDraw.ImageDraw, x: float, y: float, size: float, rng: np.random.Generator) -> None:
    walls = ((214, 200, 176), (190, 120, 92), (226, 222, 214), (176, 184, 196))
    half, wall = 0.6 * size, 0.62 * size
    draw.rectangle((x - half, y - wall, x + half, y), fill=_vary(walls[rng.integers(len(walls))], rng))
    roofs = ((150, 62, 48), (92, 74, 66), (96, 100, 110))
    eaves = 1.12 * half
    roof = [(x - eaves, y - wall), (x, y - wall - 0.45 * size), (x + eaves, y - wall)]
    draw.polygon(roof, fill=_vary(roofs[rng.integers(len(roofs))], rng))
    glass = _vary((96, 116, 140), rng)
    pane = 0.11 * size
    for across in (-0.55, 0.55):
        middle = x + across * half
        draw.rectangle((middle - pane, y - 0.5 * size, middle + pane, y - 0.28 * size), fill=glass)
    draw.rectangle((x - 0.8 * pane, y - 0.36 * size, x + 0.8 * pane, y), fill=_vary((100, 70, 54), rng))


def _draw_tree(draw: ImageDraw.ImageDraw, x: float, y: float, size: float, rng: np.random.Generator) -> None:
    trunk = 0.06 * size
    draw.rectangle((x - trunk, y - 0.5 * size, x + trunk, y), fill=_vary((92, 70, 50), rng))
    leaves = _vary((58, 102, 48), rng, 24)
    if rng.random() < 0.4:
        for level in range(3):
            foot, half = y - size * (0.22 + 0.26 * level), size * (0.34 - 0.08 * level)
            draw.polygon([(x - half, foot), (x, foot - 0.45 * size), (x + half, foot)], fill=leaves)
        return
    for _ in range(5):
        puff = size * rng.uniform(0.16, 0.26)
        middle, centre = x + size * rng.uniform(-0.2, 0.2), y - size * rng.uniform(0.55, 0.9)
        draw.ellipse((middle - puff, centre - puff, middle + puff, centre + puff), fill=_vary(leaves, rng, 10))


def _draw_lamp(draw: ImageDraw.ImageDraw, x: float, y: float, size: float, rng: np.random.Generator) -> None:
    steel, thick = _vary((112, 114, 118), rng), max(1, round(0.03 * size))
    draw.line((x, y, x, y - size), fill=steel, width=thick)
    draw.line((x, y - size, x + rng.choice((-0.25, 0.25)) * size, y - size), fill=steel, width=thick)


def draw_pole(draw: ImageDraw.ImageDraw, sign: Sign, ground: _Ground, rng: np.random.Generator) -> None:
    """From the sign's centre down to the ground, out of the picture where the sign hangs low."""
    standing, _, _ = ground.road(rng.uniform(0.05, 0.3))
    foot = max(standing, sign.y + sign.radius_px * rng.uniform(2.5, 5))
    steel = _vary((118, 120, 124), rng)
    draw.line((sign.x, sign.y, sign.x, foot), fill=steel, width=max(2, round(0.2 * sign.radius_px)))


@lru_cache(maxsize=1)
def _normal_quantiles() -> NDArray[np.float64]:
    """(256,) table that maps uniformly distributed bytes to a normal distribution."""
    return np.array([NormalDist().inv_cdf((byte + 0.5) / 256) for byte in range(256)])


def _expose(picture: Image.Image, rng: np.random.Generator) -> NDArray[np.uint8]:
    """The picture as a camera would record it: brighter or darker, slightly tinted, with noise.

    Computed with byte tables, which takes a quarter of the time of floating point.
    """
    brighter, deviation = gains_and_noise(rng)
    level = noise_levels(deviation)
    noise = Image.frombytes("L", picture.size, rng.bytes(picture.width * picture.height)).point(level)
    noisy = ImageChops.add(picture.point(brighter), Image.merge("RGB", (noise, noise, noise)), offset=-128)
    return np.array(noisy)


def gains_and_noise(rng: np.random.Generator) -> tuple[list[int], float]:
    """The table of 3 x 256 values that makes a picture brighter or darker and slightly tinted; and how strong its noise is."""
    gains = rng.uniform(0.78, 1.12) * rng.uniform(0.96, 1.04, 3)
    brighter: list[int] = np.outer(gains, np.arange(256)).clip(0, 255).round().astype(int).ravel().tolist()
    return brighter, rng.uniform(1, 5)


def noise_levels(deviation: float) -> list[int]:
    """The table of 256 values that maps random bytes to noise around 128."""
    levels: list[int] = (128 + deviation * _normal_quantiles()).round().astype(int).tolist()
    return levels
