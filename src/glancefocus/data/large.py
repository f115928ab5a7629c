"""Opens large pictures for reading part by part, where their format allows it."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from PIL import Image

from glancefocus.data.file_scene import FilePicture, Pyramid, Size
from glancefocus.data.folders import DEEP_ZOOM
from glancefocus.data.images import (
    LARGE_PIXELS,
    MAX_PIXELS,
    TURNS,
    is_small,
    name_of,
    open_known_format,
    opened,
    orientation_of,
    pillow_allows,
    read_picture,
    refuse_pixels,
)
from glancefocus.data.levels import HELD_PIXELS, DeepZoomLevels, JpegLevels, has_vips, tiff_levels, vips
from glancefocus.data.tiles import Tiler, can_tile, file_of, kept_tiles
from glancefocus.errors import BadImage, BadSetting, MissingExtra
from glancefocus.progress import Progress

MAX_PYRAMID_PIXELS = 1 << 34
"""Limit for pictures of which only parts are ever decoded, where a user sets none."""
_WHOLE_RANGE = ("I", "F")  # modes whose smallest and largest value decide what is black and white
_TILE_WIDTH = 322  # tag of a TIFF
_LEAST_BYTES = 1 << 18  # smaller files are never so large that training would not decode them

Source = TypeVar("Source")
Seen = TypeVar("Seen")


class Header(NamedTuple):
    """The header of a file.

    format_name  as Pillow calls it
    size         width and height; of a JPEG as it is stored
    mode         of Pillow
    turn         the transposition that turns a JPEG upright; None: it is upright
    tiled        a TIFF with tiles
    """

    format_name: str
    size: Size
    mode: str
    turn: Image.Transpose | None
    tiled: bool

    @property
    def pixels(self) -> int:
        return self.size[0] * self.size[1]


def open_large(
    source: str | Path | bytes, *, max_pixels: int | None = None, progress: Progress | None = None
) -> FilePicture | None:
    """The picture, to be read part by part; None: it is small, or of a format that is decoded whole (read_picture does that).

    max_pixels  a picture with more pixels is refused before anything of it is decoded. None: the usual limit of pictures that are
                decoded whole; a much higher one for pyramids
    progress    reports the making of tiles, for a picture that has none and is too large to be decoded whole
    Raises BadImage.
    """
    name = name_of(source)
    try:
        pyramid = _pyramid(source, name, max_pixels, progress)
    except (OSError, ValueError):  # no such file, no permission: read_picture says so
        return None
    return None if pyramid is None else FilePicture(pyramid)


def read_header(source: str | Path | bytes) -> Header | None:
    """What kind of picture this is; None if that is unknown. Nothing is decoded. Raises OSError."""
    with opened(source) as stream:
        prefix = stream.read(16)
        try:
            with pillow_allows(MAX_PYRAMID_PIXELS):
                picture = open_known_format(stream, prefix) if prefix else None
                if picture is None or picture.format is None:
                    return None
                with picture:
                    tags = getattr(picture, "tag_v2", {})
                    turn = TURNS.get(orientation_of(picture)) if picture.format == "JPEG" else None
                    return Header(picture.format, picture.size, picture.mode, turn, _TILE_WIDTH in tags)
        except Exception:  # plug-ins raise almost anything on damaged bytes; read_picture says what is wrong
            return None


def is_read_by_parts(source: object) -> bool:
    """Whether opening this picture is fast and takes little memory, whatever its size. A guess from the beginning of the file."""
    if not isinstance(source, (str, Path)):
        return False
    try:
        header = None if Path(source).suffix.lower() == DEEP_ZOOM else read_header(source)
    except (OSError, ValueError):
        return False
    if header is None or header.pixels <= LARGE_PIXELS:
        return False
    return (header.format_name == "JPEG" and header.pixels <= MAX_PIXELS) or (header.tiled and has_vips())


class ReadAhead(Generic[Source, Seen]):
    """Views the pictures of a list, in order. Threads open the large files among the next few, and read their glances, meanwhile.

    Only files that are read part by part are opened ahead, because these take little memory. In a `with` block it is the function
    that views one of the pictures, see take.
    """

    def __init__(self, sources: Sequence[Source], view: Callable[[Source], Seen]) -> None:
        self.sources = sources
        self.view = view
        self._ahead = 2 * (os.cpu_count() or 1)
        self._pool: ThreadPoolExecutor | None = None
        self._started = 0
        self._reading: dict[int, Future[Seen]] = {}

    def take(self, number: int) -> Seen:
        """One of them; they are taken in order. Raises BadImage."""
        for each in range(max(number, self._started), min(number + self._ahead, len(self.sources))):
            if is_read_by_parts(self.sources[each]):
                self._pool = self._pool or ThreadPoolExecutor(max(1, self._ahead // 2))
                self._reading[each] = self._pool.submit(self.view, self.sources[each])
        self._started = max(self._started, number + self._ahead)
        reading = self._reading.pop(number, None)
        return self.view(self.sources[number]) if reading is None else reading.result()

    def __enter__(self) -> Callable[[int], Seen]:
        return self.take

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


def is_large(file: Path) -> bool:
    """Whether a picture is so large that only the parts of it that are looked at are read, where it keeps its size."""
    try:
        if file.suffix.lower() == DEEP_ZOOM:
            return True
        header = None if is_small(file) else read_header(file)
    except (OSError, ValueError):  # read_picture says what is wrong
        return False
    return header is not None and header.pixels > LARGE_PIXELS


def is_huge(file: Path) -> bool:
    """Whether a picture is too large for training to decode it whole."""
    try:
        header = read_header(file) if os.stat(file).st_size >= _LEAST_BYTES else None
    except (OSError, ValueError):  # read_picture says what is wrong
        return False
    return header is not None and header.pixels > HELD_PIXELS


def read_shrunk(file: Path, shorter_px: int) -> Image.Image:
    """The picture in a file for training, in RGB, upright: as read_picture gives it, or smaller if it is huge.

    Of a huge picture only as much is decoded as a shorter side of twice this many pixels needs.
    """
    picture = open_large(file) if is_huge(file) else None
    if picture is None:
        return read_picture(file)
    return picture.overview(2 * shorter_px * max(picture.size) // min(picture.size))[0]


def make_tiles(
    source: str | Path, place: Path | None = None, *, max_pixels: int, progress: Progress | None = None
) -> Path | None:
    """Make tiles of a picture, and return their file; None: the picture is a pyramid already, and needs none.

    place  the file to write; None: in the cache, unless they are there
    Raises BadImage, BadSetting or MissingExtra, and then leaves nothing behind.
    """
    vips()
    name = name_of(source)
    if place is not None and not place.absolute().parent.is_dir():
        raise BadSetting(
            f"the folder {place.parent} for the tiles does not exist. Make it first, or choose another place."
        )
    if place is not None and place.is_dir():
        raise BadSetting(f"{place} is a folder. Name a file in it for the tiles, such as {place / 'tiles.tif'}.")
    if Path(source).suffix.lower() == DEEP_ZOOM:
        return None
    try:
        header = read_header(source)
    except (OSError, ValueError):
        header = None
    if header is None:
        read_picture(source, max_pixels=max_pixels)  # says what is wrong
    if header is None or not can_tile(header.format_name) or header.mode in _WHOLE_RANGE:
        raise BadImage(
            f"{name} is in a format of which no tiles are made. Convert it to PNG, JPEG or TIFF of 8 or 16 bits."
        )
    refuse_pixels(header.size, max_pixels, name)
    levels = tiff_levels(source, name) if header.format_name == "TIFF" else None
    if place is None and levels is not None and levels.is_pyramid:
        return None
    tiler = Tiler(source, name, header.format_name, progress)
    if place is not None:
        tiler.write(place)
        return place
    tiler.open()
    return file_of(source)


def _pyramid(
    source: str | Path | bytes, name: str, max_pixels: int | None, progress: Progress | None
) -> Pyramid | None:
    if not isinstance(source, bytes) and Path(source).suffix.lower() == DEEP_ZOOM:
        zoomed = DeepZoomLevels(Path(source), name)
        refuse_pixels(zoomed.sizes[0], max_pixels or MAX_PYRAMID_PIXELS, name)
        return zoomed
    header = read_header(source)
    if header is None or header.pixels <= LARGE_PIXELS:
        return None
    refuse_pixels(header.size, max_pixels or MAX_PYRAMID_PIXELS, name)
    found = _levels_of_file(source, name, header) if has_vips() else None
    if found is not None:
        return found
    if header.tiled and not has_vips() and header.pixels > (max_pixels or MAX_PIXELS):
        raise BadImage(
            f"{name} has {header.pixels:,} pixels and can only be read part by part: {MissingExtra('pyvips', 'large')}"
        )
    refuse_pixels(header.size, max_pixels or MAX_PIXELS, name)
    tiles = has_vips() and can_tile(header.format_name) and header.mode not in _WHOLE_RANGE
    tiler = Tiler(source, name, header.format_name, progress) if tiles else None
    if header.format_name == "JPEG":
        return JpegLevels(
            source, name, header.size, header.turn, max_pixels or MAX_PIXELS, None if tiler is None else tiler.open
        )
    return tiler.open() if tiler is not None and header.pixels > HELD_PIXELS else None


def _levels_of_file(source: str | Path | bytes, name: str, header: Header) -> Pyramid | None:
    """The levels in the file itself, or in tiles that were made of it before."""
    if header.format_name == "TIFF":
        levels = tiff_levels(source, name)
        if levels is not None and (levels.is_pyramid or header.pixels <= HELD_PIXELS):
            return levels
    return kept_tiles(source, name)
