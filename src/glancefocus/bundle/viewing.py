"""Pictures and clips as a network looks at them: read, resized, with their place in the file; large ones are read ahead."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from glancefocus.data.arrays import view_array
from glancefocus.data.clips import check_frames, frame_indexes, read_clip, view_clip_array
from glancefocus.data.file_picture import FilePicture
from glancefocus.data.file_scene import FileImage, view_file
from glancefocus.data.images import MAX_PIXELS, Picture, as_rgb, is_small, normalise_small, read_picture, view_pixels
from glancefocus.data.large import is_read_by_parts, open_large
from glancefocus.data.video import MAX_FRAME_PIXELS, Limits
from glancefocus.errors import BadImage
from glancefocus.machine import check_threads, is_out_of_memory
from glancefocus.network.places import SAMPLE_PX
from glancefocus.progress import Progress
from glancefocus.region import Placement
from glancefocus.settings import NetworkSettings

FRAMES_DRAWN = 4
"""Number of frames of a clip that are kept to draw on, as in the paper's figure."""
_LONGEST_DRAWN_PX = (
    960  # longest side of a picture to draw on: full-size frames of a batch of clips would not fit into memory
)
_PILLOW_BYTES = 4  # memory of one RGB pixel in Pillow


IN_PLACE = Placement()
"""The image is the whole picture, in its own size."""


@dataclass(frozen=True)
class Viewed:
    """A picture or clip that was read and resized for the network.

    image          (3, H, W), or (frames, 3, H, W) for a clip; normalised, or still uint8 if it is large; a FileImage if it stays in
                   its file
    placement      where the image lies in the picture
    notes          what is unusual about the file, such as "upscaled from 20x9 px"
    pictures       the picture, or some frames of the clip, to draw on; empty unless they were asked for
    picture_scale  size of these pictures divided by the size of the original
    file           the picture, if it can be read part by part, to draw the looks from; None unless pictures were asked for
    """

    image: Tensor | FileImage
    placement: Placement = IN_PLACE
    notes: tuple[str, ...] = ()
    pictures: tuple[Image.Image, ...] = ()
    picture_scale: float = 1.0
    file: FilePicture | None = None

    @property
    def held_bytes(self) -> int:
        """Memory that the image and the pictures take."""
        return self.image.nbytes + sum(_PILLOW_BYTES * one.width * one.height for one in self.pictures)


def listed(pictures: Picture | Viewed | Sequence[Picture | Viewed], frames: int) -> list[Picture | Viewed]:
    """One picture, several of them, or a tensor with one more dimension in front, as a list."""
    if isinstance(pictures, Tensor) and pictures.dim() == (4 if frames == 1 else 5):
        return list(pictures)
    if isinstance(pictures, (str, Path, bytes, Image.Image, Tensor, np.ndarray, Viewed)):
        return [pictures]
    return list(pictures)


def least_px(settings: NetworkSettings) -> int:
    """Side of the largest square that a view cuts out by pixels; smaller pictures are upscaled until it fits."""
    views = [settings.glance_view, *(settings.candidates if settings.looks > 1 else ())]
    extents = [view.extent for view in views if isinstance(view.extent, int)]
    draws_places = "random" in (settings.first_view, settings.policy.kind)
    return max([*extents, SAMPLE_PX if draws_places else 1])


@dataclass(frozen=True)
class Reading:
    """How pictures are read; see Bundle.view."""

    max_pixels: int | None = None
    keep_pictures: bool = False
    progress: Progress | None = None


def view(source: Picture, settings: NetworkSettings, reading: Reading) -> Viewed:
    """Read a picture or clip; see Bundle.view."""
    check_threads()
    name = str(source) if isinstance(source, (str, Path)) else "the picture" if settings.frames == 1 else "the clip"
    try:
        if settings.frames == 1:
            return _view_picture(source, settings, reading)
        if isinstance(source, (str, Path, bytes)):
            return _view_clip(source, name, settings, reading)
        image, placement = view_clip_array(source, settings.frames, settings.view, least_px(settings))
        return Viewed(image, placement, _noted(placement))
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise BadImage(f"{name} does not fit into memory. Make it smaller, or free memory.") from None


def arrived(view: Callable[[Picture], Viewed], picture: Picture | Viewed | None) -> Viewed | None:
    """A picture of a stream, read unless it was read before; None means that no picture has arrived."""
    return picture if picture is None or isinstance(picture, Viewed) else view(picture)


def _view_picture(source: Picture, settings: NetworkSettings, reading: Reading) -> Viewed:
    if isinstance(source, (str, Path, bytes)):
        if not is_small(source):
            large = open_large(source, max_pixels=reading.max_pixels, progress=reading.progress)
            if large is not None:
                return _view_large(large, settings, reading.keep_pictures)
        picture = read_picture(source, max_pixels=reading.max_pixels or MAX_PIXELS)
    elif isinstance(source, Image.Image):
        picture = as_rgb(source)
    else:
        image, placement = view_array(source, settings.view, least_px(settings))
        return Viewed(image, placement, _noted(placement))
    pixels, placement = view_pixels(picture, settings.view, least_px(settings))
    image = normalise_small(pixels, settings.view)
    return Viewed(image, placement, _noted(placement), (picture,) if reading.keep_pictures else ())


def _view_large(picture: FilePicture, settings: NetworkSettings, keep_picture: bool) -> Viewed:
    """The image of a picture of which only parts are read."""
    image, placement = view_file(picture, settings.view, least_px(settings), settings.glance_view)
    image = normalise_small(image, settings.view) if isinstance(image, Tensor) else image
    if not keep_picture:
        return Viewed(image, placement, _noted(placement))
    overview, scale = picture.overview(_LONGEST_DRAWN_PX)
    return Viewed(image, placement, _noted(placement), (overview,), scale, picture)


class ReadAhead:
    """Views the pictures of a list, in order. Threads open the large files among the next few, and read their glances, meanwhile.

    Only files that are read part by part are opened ahead, because these take little memory.

    view  Bundle.view, with its options
    """

    def __init__(self, sources: Sequence[Picture | Viewed], view: Callable[[Picture], Viewed]) -> None:
        self.sources = sources
        self.view = view
        self._ahead = 2 * (os.cpu_count() or 1) if len(sources) > 1 else 0
        self._pool: ThreadPoolExecutor | None = None
        self._started = 0
        self._reading: dict[int, Future[Viewed]] = {}

    def __iter__(self) -> Iterator[Viewed]:
        """All of them; the first that cannot be read raises BadImage."""
        with self:
            for number in range(len(self.sources)):
                yield self.take(number)

    def take(self, number: int) -> Viewed:
        """One of them; they are taken in order. Raises BadImage."""
        for each in range(max(number, self._started), min(number + self._ahead, len(self.sources))):
            source = self.sources[each]
            if not isinstance(source, Viewed) and is_read_by_parts(source):
                self._pool = self._pool or ThreadPoolExecutor(max(1, self._ahead // 2))
                self._reading[each] = self._pool.submit(self.view, source)
        self._started = max(self._started, number + self._ahead)
        reading, source = self._reading.pop(number, None), self.sources[number]
        if reading is not None:
            return reading.result()
        return source if isinstance(source, Viewed) else self.view(source)

    def __enter__(self) -> "ReadAhead":
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


def _view_clip(source: str | Path | bytes, name: str, settings: NetworkSettings, reading: Reading) -> Viewed:
    placements: list[Placement] = []
    scale = 1.0

    def keep(picture: Image.Image) -> tuple[Tensor, Image.Image | None]:
        nonlocal scale
        pixels, placement = view_pixels(picture, settings.view, least_px(settings))
        image = normalise_small(pixels, settings.view)
        if not placements:
            check_frames(image, settings.frames, name)
            scale = min(1.0, _LONGEST_DRAWN_PX / max(picture.size))
        placements.append(placement)
        return image, _scaled(picture, scale) if reading.keep_pictures else None

    clip = read_clip(source, settings.frames, keep, limits=Limits(pixels=reading.max_pixels or MAX_FRAME_PIXELS))
    drawn = [clip.frames[number][1] for number in frame_indexes(settings.frames, FRAMES_DRAWN)]
    return Viewed(
        torch.stack([image for image, _ in clip.frames]),
        placements[0],
        (*clip.notes, *_noted(placements[0])),
        tuple(picture for picture in drawn if picture is not None),
        scale,
    )


def _noted(placement: Placement) -> tuple[str, ...]:
    return (placement.note,) if placement.note else ()


def _scaled(picture: Image.Image, scale: float) -> Image.Image:
    return picture if scale == 1 else picture.resize((round(picture.width * scale), round(picture.height * scale)))
