"""Reads files for `gf predict`: pictures, or for a network of clips videos and folders of frames."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from glancefocus.bundle import Bundle
from glancefocus.data.clip_views import check_frames
from glancefocus.data.clips import find_clips, frame_indexes, read_clip
from glancefocus.data.pictures import MAX_PIXELS, find_pictures, read_picture
from glancefocus.data.video_files import MAX_FRAME_PIXELS, Limits
from glancefocus.data.views import Placement, normalise_small, view_pixels

FRAMES_DRAWN = 4
"""Of a clip so many frames are drawn, as in the paper's figure."""
_LONGEST_DRAWN_PX = 960  # of one frame: the frames of a batch of large clips would not fit into memory


@dataclass(frozen=True)
class Seen:
    """One file that could be read.

    pictures   to draw on, only where that is wanted: one, or some frames of a clip
    image      what is looked at, normalised: (3, H, W), or (F, 3, H, W)
    notes      what is odd about it
    drawn_scale  side of those pictures over that of the file's own
    """

    file: str
    pictures: Sequence[Image.Image]
    image: Tensor
    placement: Placement
    notes: tuple[str, ...] = ()
    drawn_scale: float = 1.0


def find_files(file: str, frames: int) -> list[Path]:
    """The file, or everything to look at in a folder."""
    return find_pictures([file]) if frames == 1 else find_clips([file])


def see(bundle: Bundle, name: str, max_pixels: int | None, drawing: bool) -> Seen:
    """Read a file, or standard input for -, as the bundle's network looks at it."""
    source = sys.stdin.buffer.read() if name == "-" else name
    if bundle.settings.frames > 1:
        return _see_clip(bundle, name, source, max_pixels, drawing)
    picture = read_picture(source, max_pixels=max_pixels or MAX_PIXELS)
    image, placement = bundle.view(picture)
    return Seen(name, [picture] if drawing else [], image, placement, (placement.note,) if placement.note else ())


def _see_clip(bundle: Bundle, name: str, source: str | bytes, max_pixels: int | None, drawing: bool) -> Seen:
    settings = bundle.settings
    placements: list[Placement] = []
    scales: list[float] = []

    def keep(picture: Image.Image) -> tuple[Tensor, Image.Image | None]:
        pixels, placement = view_pixels(picture, settings.view, bundle.least_px)
        image = normalise_small(pixels, settings.view)
        if not placements:
            check_frames(image, settings.frames, name)
        placements.append(placement)
        scales.append(min(1.0, _LONGEST_DRAWN_PX / max(picture.size)))
        return image, _scaled(picture, scales[0]) if drawing else None

    limits = Limits(pixels=max_pixels or MAX_FRAME_PIXELS)
    clip = read_clip(source, settings.frames, keep, limits=limits)
    shown = [clip.frames[number][1] for number in frame_indexes(settings.frames, FRAMES_DRAWN)]
    pictures = [picture for picture in shown if picture is not None]
    image = torch.stack([image for image, _ in clip.frames])
    notes = (*clip.notes, placements[0].note) if placements[0].note else clip.notes
    return Seen(name, pictures, image, placements[0], notes, scales[0])


def _scaled(picture: Image.Image, scale: float) -> Image.Image:
    return picture if scale == 1 else picture.resize((round(picture.width * scale), round(picture.height * scale)))
