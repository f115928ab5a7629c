"""Reads files for `gf predict`: pictures, or for a network of clips videos and folders of frames."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.clips import check_frames, find_clips, frame_indexes, read_clip
from glancefocus.data.images import MAX_BYTES, MAX_PIXELS, find_pictures, read_picture
from glancefocus.data.video import MAX_FRAME_PIXELS, Limits
from glancefocus.data.views import Placement, normalise_small, view_pixels
from glancefocus.errors import BadImage
from glancefocus.files import read_stream
from glancefocus.free_memory import is_out_of_memory

FRAMES_DRAWN = 4
"""Of a clip so many frames are drawn, as in the paper's figure."""
_LONGEST_DRAWN_PX = 960  # of one frame: the frames of a batch of large clips would not fit into memory


@dataclass(frozen=True)
class Seen:
    """One file that could be read.

    pictures   to draw on, only where that is wanted: one, or some frames of a clip
    image      what is looked at: (3, H, W), or (F, 3, H, W); normalised, or uint8 where it is large
    notes      what is odd about it
    remarks    those of them that are also said on standard error
    drawn_scale  side of those pictures over that of the file's own
    """

    file: str
    pictures: Sequence[Image.Image]
    image: Tensor
    placement: Placement
    notes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    drawn_scale: float = 1.0


def find_files(file: str, frames: int) -> list[Path]:
    """The file, or everything to look at in a folder."""
    return find_pictures([file]) if frames == 1 else find_clips([file])


def see(bundle: Bundle, name: str, max_pixels: int | None, drawing: bool) -> Seen:
    """Read a file, or standard input for -, as the bundle's network looks at it."""
    try:
        return _see(bundle, name, max_pixels, drawing)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise BadImage(f"{name} does not fit into memory. Make it smaller, or free memory.") from None


def _see(bundle: Bundle, name: str, max_pixels: int | None, drawing: bool) -> Seen:
    source = _standard_input() if name == "-" else name
    if bundle.settings.frames > 1:
        return _see_clip(bundle, name, source, max_pixels, drawing)
    return see_picture(bundle, name, read_picture(source, max_pixels=max_pixels or MAX_PIXELS), drawing)


def see_picture(bundle: Bundle, name: str, picture: Image.Image, drawing: bool) -> Seen:
    """A picture in RGB, as the bundle's network looks at it."""
    view = bundle.settings.view
    pixels, placement = view_pixels(picture, view, bundle.least_px)
    notes = (placement.note,) if placement.note else ()
    return Seen(name, [picture] if drawing else [], normalise_small(pixels, view), placement, notes)


def _standard_input() -> bytes:
    try:
        return read_stream(sys.stdin.buffer, MAX_BYTES)
    except OSError as error:
        raise BadImage(f"standard input cannot be read: {error.strerror or error}.") from None


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
    return Seen(name, pictures, image, placements[0], notes, clip.notes, scales[0])


def _scaled(picture: Image.Image, scale: float) -> Image.Image:
    return picture if scale == 1 else picture.resize((round(picture.width * scale), round(picture.height * scale)))
