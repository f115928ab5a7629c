"""Tiles of pictures that cannot be read part by part: made once, as a pyramid in a TIFF, in the cache or in a chosen file.

A PNG, a JPEG of hundreds of megapixels or a TIFF without tiles has to be decoded from its beginning for every part of it. libvips
does that once, row by row, in little memory. Tiles in the cache have a limit; the least recently used are removed first, but
none that a process still reads.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glancefocus.data.file_scene import Stamp
from glancefocus.data.levels import VipsLevels, reason, tiff_levels, vips
from glancefocus.errors import BadImage, BadSetting
from glancefocus.files import cache_folder, fingerprint, hold, is_held, lock, remove_unfinished, replace_files
from glancefocus.machine import cache_path, in_words
from glancefocus.progress import Progress

LIMIT_VARIABLE = "GLANCEFOCUS_TILES_GB"
_LIMIT_GB = 20.0
_TILES_VERSION = 2  # increase it when tiles would be made differently
_LEFT_FREE_BYTES = 256 << 20
_MOST_GROWTH = 1.4  # of a pyramid over its largest level, with a little for tables
_LOADERS = {
    "JPEG": "jpegload",
    "PNG": "pngload",
    "TIFF": "tiffload",
    "WEBP": "webpload",
    "PPM": "ppmload",
    "JPEG2000": "jp2kload",
    "AVIF": "heifload",
}
"""{format of Pillow: loader of libvips}"""


@dataclass(frozen=True)
class Tiler:
    """Opens the tiles of one picture, and makes them first if there are none.

    format_name  as Pillow calls it
    """

    source: str | Path | bytes
    name: str
    format_name: str
    progress: Progress | None = None

    def open(self) -> VipsLevels:
        """The tiles in the cache, made now if there are none. Raises BadImage or BadSetting, and then leaves nothing behind."""
        found = kept_tiles(self.source, self.name)
        if found is not None:
            return found
        try:
            self._make_in_cache()
        except OSError as error:
            raise _cannot_keep(self.name, error) from error
        found = kept_tiles(self.source, self.name)
        if found is None:
            raise BadImage(f"the tiles of {self.name} cannot be read again. Set GLANCEFOCUS_CACHE to another disk.")
        return found

    def write(self, file: Path, most_bytes: int | None = None) -> None:
        """Make the tiles in this file, completely or not at all.

        most_bytes  larger tiles are refused, if possible before they are made
        """
        before = Stamp.of(self.source)
        image = self._opened()
        self._refuse_beyond(most_bytes, image.width * image.height * image.bands)
        wanted = round(image.width * image.height * image.bands * _MOST_GROWTH)
        free = shutil.disk_usage(file.parent).free
        if wanted + _LEFT_FREE_BYTES > free:
            raise BadSetting(
                f"the tiles of {self.name} may take {in_words(wanted)}, but {file.parent} has {in_words(free)} left. Make room "
                "there, or choose another disk (GLANCEFOCUS_CACHE, or `gf tile --output`)."
            )
        with replace_files(file) as aside:
            self._save(image, aside / file.name)
            before.check(self.name)
            self._refuse_beyond(most_bytes, (aside / file.name).stat().st_size)

    def _make_in_cache(self) -> None:
        folder, limit = _folder(), limit_bytes()
        file = file_of(self.source)
        with lock(file.with_suffix(".lock"), wait=True):  # if several processes need the same tiles, one makes them
            if file.exists():
                return
            remove_unfinished(folder, file.name)
            self.write(file, limit)
        forget_oldest(folder, limit, keep=file)

    def _refuse_beyond(self, limit: int | None, size: int) -> None:
        if limit is not None and size > limit:
            raise BadSetting(
                f"the tiles of {self.name} take {in_words(size)}, more than the limit of {in_words(limit)} for all tiles. "
                f"Raise {LIMIT_VARIABLE}, or make them elsewhere with `gf tile --output`."
            )

    def _opened(self) -> Any:
        """The picture as libvips sees it, row by row, with 8 bits and without transparency."""
        loader = _LOADERS[self.format_name]
        # Damaged parts of a TIFF are only warnings to libvips; of other formats, warnings are harmless.
        options = {"access": "sequential", "fail_on": "warning" if loader == "tiffload" else "truncated"}
        try:
            if isinstance(self.source, bytes):
                image = getattr(vips().Image, f"{loader}_buffer")(self.source, **options)
            else:
                image = getattr(vips().Image, loader)(os.fspath(self.source), **options)
        except vips().Error as error:
            raise _damaged(self.name, error) from None
        if image.format not in ("uchar", "ushort"):
            raise BadImage(
                f"{self.name} has pixels of the kind {image.format}, of which no tiles are made. Convert it to 8 or 16 bits."
            )
        if image.hasalpha():
            image = _on_white(image)
        return image.cast("uchar", shift=True) if image.format == "ushort" else image

    def _save(self, image: Any, file: Path) -> None:
        with _reported(image, self.progress, f"making tiles of {Path(self.name).name}"):
            try:
                image.tiffsave(
                    str(file),
                    tile=True,
                    tile_width=256,
                    tile_height=256,
                    pyramid=True,
                    bigtiff=True,
                    compression="none",
                    region_shrink="mean",
                )
            except vips().Error as error:
                if shutil.disk_usage(file.parent).free < _LEFT_FREE_BYTES:
                    raise BadSetting(
                        f"the disk is full: the tiles of {self.name} cannot be written to {file.parent.parent}. Make room there, "
                        "or choose another disk (GLANCEFOCUS_CACHE, or `gf tile --output`)."
                    ) from None
                raise _damaged(self.name, error) from None


def _on_white(image: Any) -> Any:
    """A picture of 8 or 16 bits without its transparency, rounded to the nearest value as Pillow does; libvips rounds down."""
    colours, alpha, white = image[: image.bands - 1], image[image.bands - 1], 255 if image.format == "uchar" else 65535
    return (
        (white + (colours - white) * alpha / white).rint().cast(image.format).copy(interpretation=image.interpretation)
    )


def can_tile(format_name: str | None) -> bool:
    """Whether libvips can read pictures of this format, as Pillow calls it."""
    loader = _LOADERS.get(format_name or "")
    return loader is not None and bool(vips().type_find("VipsOperation", loader))


def kept_tiles(source: str | Path | bytes, name: str) -> VipsLevels | None:
    """The tiles of this picture in the cache; None if there are none, or they were damaged since (then they are removed)."""
    try:
        file = file_of(source)
        if not file.is_file():
            return None
        os.utime(file, ns=(time.time_ns(), file.stat().st_mtime_ns))  # used now, but not changed
        levels = tiff_levels(file, name)
        if levels is not None:
            hold(file, levels)
        return levels
    except (OSError, RuntimeError):  # RuntimeError: there is no home folder
        return None
    except BadImage:
        with contextlib.suppress(OSError):
            file.unlink()
        return None


def limit_bytes() -> int:
    """Largest size of all tiles in the cache."""
    text = os.environ.get(LIMIT_VARIABLE, "")
    try:
        gigabytes = float(text) if text else _LIMIT_GB
    except ValueError:
        gigabytes = -1.0
    if not 0 <= gigabytes <= 1e6:
        raise BadSetting(f"{LIMIT_VARIABLE} must be a number of gigabytes, but it is {text[:40]!r}.")
    return round(gigabytes * 1e9)


def forget_oldest(folder: Path, limit: int, keep: Path) -> None:
    """Remove the least recently used tiles until the others take no more than the limit; those that are still read stay."""
    files = sorted(folder.glob("*.tif"), key=lambda file: file.stat().st_atime)
    taken = sum(file.stat().st_size for file in files)
    for file in files:
        if taken <= limit:
            return
        if file != keep and not is_held(file):
            taken -= file.stat().st_size
            file.unlink(missing_ok=True)


def _folder() -> Path:
    folder = cache_folder() / "tiles"
    folder.mkdir(exist_ok=True)
    return folder


def file_of(source: str | Path | bytes) -> Path:
    """Where the tiles of this picture are kept: by the name, size and time of the file, or by the content of bytes."""
    if isinstance(source, bytes):
        key = fingerprint(_TILES_VERSION, source)
    else:
        stamp = Stamp.of(source)
        key = fingerprint([_TILES_VERSION, os.path.realpath(source), stamp.size_bytes, stamp.changed_ns])
    return cache_path() / "tiles" / f"{key[:32]}.tif"


def _cannot_keep(name: str, error: OSError) -> BadSetting:
    place = error.filename or cache_path()
    return BadSetting(
        f"the tiles of {name} cannot be kept in {place} ({error.strerror or error}). Make room there, or set GLANCEFOCUS_CACHE to "
        "a folder that can be written."
    )


def _damaged(name: str, error: Exception) -> BadImage:
    return BadImage(f"{name} is damaged or cut off ({reason(error)}). Save or download it again.")


@contextlib.contextmanager
def _reported(image: Any, progress: Progress | None, what: str) -> Iterator[None]:
    """Report the progress of libvips while it computes an image. An error in the callback, such as Ctrl-C, ends the work."""
    problems: list[BaseException] = []

    def report(_: Any, state: Any) -> None:
        try:
            if progress is not None and not problems:
                progress(what, int(state.percent), 100)
        except BaseException as error:  # it must not reach libvips
            problems.append(error)
            image.set_kill(True)

    image.set_progress(True)
    image.signal_connect("eval", report)
    try:
        yield
        if progress is not None:
            progress(what, 100, 100)
    finally:
        image.set_progress(False)
        if problems:
            raise problems[0]
