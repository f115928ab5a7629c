"""Draws the scenes of the built-in world `gestures`, which are short clips.

Each clip shows discs with a small moving mark. The class is the movement of the mark in the amber disc.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from glancefocus.errors import BadSetting
from glancefocus.values import Range, check_fields

CLASSES: tuple[str, ...] = ("none", "left", "right", "up", "down", "circle", "still")

DRAWING_VERSION = 4
"""Increase it whenever a clip would look different from before: cached clips of another version are not used."""

Box = tuple[float, float, float, float]
_Colour = tuple[int, int, int]

_AMBER: _Colour = (238, 178, 24)
_OTHERS: tuple[_Colour, ...] = ((48, 110, 220), (40, 160, 80), (150, 70, 190), (30, 170, 190), (205, 60, 60))
_FACE = 128.0  # grey of the discs
_SQUARES, _SQUARE_PX = 3, 2.0  # of the chequered mark, along one side
_MARK_REACH_PX = _SQUARES * _SQUARE_PX / 2
_RING_PX = 2.0
_MARGIN_PX = 2.0
_FINER = 4  # discs and marks are drawn at 4 times the resolution and averaged, so that they move smoothly
_Frames = Annotated[int, Range(3, 256)]
_Side = Annotated[int, Range(64, 1024)]
_Radius = Annotated[float, Range(8, 256)]  # a mark cannot move in a smaller disc
_Distractors = Annotated[int, Range(1, 12)]


@dataclass(frozen=True)
class GesturesSettings:
    """Size of the clips and of the discs in them. A disc's size in pixels does not depend on the clip's."""

    frames: _Frames = 8
    height: _Side = 128
    width: _Side = 128
    radius_min_px: _Radius = 13.0
    radius_max_px: _Radius = 15.0
    distractors_max: _Distractors = 4

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.radius_min_px <= self.radius_max_px <= min(self.height, self.width) / 4:
            raise BadSetting(
                f"discs with a radius from {self.radius_min_px} to {self.radius_max_px} px cannot be drawn in a clip of "
                f"{self.height}x{self.width} px. Choose radius_max_px no less than radius_min_px, and at most a quarter "
                "of the shorter side."
            )


@dataclass(frozen=True)
class _Disc:
    """A disc with the path of its mark: (F, 2) as (y, x) in px from the centre of the disc."""

    y: float
    x: float
    radius_px: float
    colour: _Colour
    path: NDArray[np.float64]


def draw_clip(
    settings: GesturesSettings, label: int, seed: int | np.random.SeedSequence
) -> tuple[NDArray[np.uint8], Box | None]:
    """One clip, and the box of its amber disc.

    label   index into CLASSES
    seed    decides everything else: the same settings, label and seed give the same pixels
    returns (F, H, W, 3) in [0, 255], and the disc's (top, left, bottom, right) in px, the same in all frames; None for `none`
    """
    if not 0 <= label < len(CLASSES):
        raise BadSetting(f"there is no class {label}. Choose a label from 0 to {len(CLASSES) - 1}.")
    rng = np.random.default_rng(seed)
    ground = _draw_ground(settings, rng)
    discs = _place_discs(settings, label, rng)
    clip = np.repeat(ground[None].astype(np.float32), settings.frames, axis=0)
    for disc in discs:
        _paste_disc(clip, disc)
    gains = rng.uniform(0.85, 1.1) * rng.uniform(0.97, 1.03, 3)
    noise = rng.standard_normal(clip.shape, dtype=np.float32)
    clip = clip * gains.astype(np.float32) + np.float32(rng.uniform(1.0, 4.0)) * noise
    pixels = clip.clip(0, 255).round().astype(np.uint8)
    if CLASSES[label] == "none":
        return pixels, None
    target, reach = discs[0], discs[0].radius_px
    return pixels, (target.y - reach, target.x - reach, target.y + reach, target.x + reach)


def motion(label: int, frames: int, reach_px: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """(F, 2) position of a mark in each frame, as (y, x) in px from the centre of the disc, at most reach_px from it."""
    name = CLASSES[label]
    if name == "still":
        away, angle = reach_px * math.sqrt(rng.uniform()), rng.uniform(0, 2 * math.pi)
        return np.tile([away * math.sin(angle), away * math.cos(angle)], (frames, 1))
    if name == "circle":
        turn = rng.choice((-1, 1)) * 2 * math.pi * np.arange(frames) / frames
        angles = rng.uniform(0, 2 * math.pi) + turn
        away = reach_px * rng.uniform(0.4, 1.0)
        return away * np.stack([np.sin(angles), np.cos(angles)], axis=1)
    across = reach_px * rng.uniform(-0.4, 0.4)
    half_way = math.sqrt(reach_px**2 - across**2) * rng.uniform(0.25, 1.0)
    along = np.linspace(-half_way, half_way, frames) * (1 if name in ("right", "down") else -1)
    aside = np.full(frames, across)
    return np.stack([aside, along] if name in ("left", "right") else [along, aside], axis=1)


def _place_discs(settings: GesturesSettings, label: int, rng: np.random.Generator) -> list[_Disc]:
    """The amber disc first, unless the class is `none`; then others, with random movements. Discs do not touch one another."""
    amber = CLASSES[label] != "none"
    discs: list[_Disc] = []
    for number in range(1 + int(rng.integers(1, settings.distractors_max + 1))):
        for _ in range(30):  # a small clip may be full: then it has one distractor less
            radius_px = rng.uniform(settings.radius_min_px, settings.radius_max_px)
            edge_px = radius_px + _MARGIN_PX
            y, x = rng.uniform(edge_px, settings.height - edge_px), rng.uniform(edge_px, settings.width - edge_px)
            if all(math.hypot(y - d.y, x - d.x) > radius_px + d.radius_px + _MARGIN_PX for d in discs):
                counts = amber and number == 0
                own = label if counts else int(rng.integers(1, len(CLASSES)))
                colour = _AMBER if counts else _OTHERS[rng.integers(len(_OTHERS))]
                reach_px = radius_px - _RING_PX - 1.15 * _MARK_REACH_PX
                discs.append(_Disc(y, x, radius_px, colour, motion(own, settings.frames, reach_px, rng)))
                break
    return discs


def _draw_ground(settings: GesturesSettings, rng: np.random.Generator) -> NDArray[np.float64]:
    """(H, W, 3) a texture of patches of several sizes, the same in all frames."""
    height, width = settings.height, settings.width
    ground = np.full((height, width, 3), 1.0) * rng.uniform(80, 150, 3)
    for cells, spread in ((4, 22.0), (12, 14.0), (32, 8.0)):
        rows, columns = np.arange(height) * cells // height, np.arange(width) * cells // width
        coarse = rng.normal(0.0, spread, (cells, cells, 1)) + rng.normal(0.0, spread / 3, (cells, cells, 3))
        ground += coarse[rows][:, columns]
    return ground.clip(20, 220)


def _paste_disc(clip: NDArray[np.float32], disc: _Disc) -> None:
    """Draw a disc and its mark into all frames (F, H, W, 3)."""
    reach = math.ceil(disc.radius_px) + 2
    top, left = int(disc.y) - reach, int(disc.x) - reach
    side = 2 * reach + 1
    # Centres of the fine pixels, from the centre of the disc.
    fine = (np.arange(side * _FINER) + 0.5) / _FINER
    y, x = fine + top - disc.y, fine + left - disc.x
    away = np.hypot(y[:, None], x[None])
    rows, columns = slice(max(0, top), top + side), slice(max(0, left), left + side)
    part = clip[:, rows, columns]
    high, wide = part.shape[1:3]
    own = (slice(rows.start - top, rows.start - top + high), slice(columns.start - left, columns.start - left + wide))
    ring = _averaged(_averaged(away <= disc.radius_px).T).T[own][..., None]
    middle = _averaged(_averaged(away <= disc.radius_px - _RING_PX).T).T[own][..., None]
    marks = np.stack([_chequer(y - mark_y, x - mark_x)[own] for mark_y, mark_x in disc.path])
    part[:] = part * (1 - ring) + (ring - middle) * np.array(disc.colour, dtype=float) + middle * _FACE
    part += marks[..., None]


def _chequer(y: NDArray[np.float64], x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Light and dark squares whose values sum to 0, so that a blurred mark is invisible: five dark (-80), four light (100).

    y, x  centres of the fine pixels along each side, from the centre of the mark. A square is dark where the stripes along y and
          along x have the same sign, and light elsewhere: a sum of products, so that each side can be averaged separately.
    """
    (there_y, stripes_y), (there_x, stripes_x) = _stripes(y), _stripes(x)
    squares: NDArray[np.float64] = 10.0 * np.outer(there_y, there_x) - 90.0 * np.outer(stripes_y, stripes_x)
    return squares


def _stripes(along: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Along one side: the share of each pixel that the mark covers, and the same with the signs of its stripes, + - +."""
    stripe = np.floor((along + _MARK_REACH_PX) / _SQUARE_PX)
    there = (stripe >= 0) & (stripe < _SQUARES)
    return _averaged(there), _averaged(np.where(stripe % 2 == 0, 1.0, -1.0) * there)


def _averaged(fine: NDArray[Any]) -> NDArray[np.float64]:
    """The mean of each run of fine pixels along the first axis."""
    mean: NDArray[np.float64] = fine.reshape(-1, _FINER, *fine.shape[1:]).mean(axis=1)
    return mean
