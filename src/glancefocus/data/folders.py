"""Finds and opens picture files: visible ones in folders, and those inside of tar files (shards in the layout of webdataset).

A member of a tar file is named like a file in a folder, shards/train-0000.tar/000123.jpg, and read in place, without unpacking.
published.py finds shards with their labels.
"""

import functools
import io
import os
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from glancefocus.errors import BadData, BadImage
from glancefocus.machine import open_file

SUFFIXES = frozenset(
    (
        *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".gif", ".webp", ".avif", ".tif", ".tiff", ".bmp"),
        *(".jp2", ".j2k", ".jpx", ".ppm", ".pgm", ".pbm", ".pnm", ".pfm", ".qoi", ".ico", ".psd", ".pcx", ".sgi"),
        *(".tga", ".svs"),
    )
)
"""Files in a folder that count as pictures."""
DEEP_ZOOM = ".dzi"
"""Suffix of DeepZoom pictures, which can be predicted only: their tiles are in a folder beside them."""


def find_pictures(paths: Iterable[str | Path]) -> list[Path]:
    """All image files: files as given, and the content of folders, sorted within each folder.

    Inside a folder only visible files with the suffix of an image count, and links to folders are followed once. A file that
    does not exist is kept: reading it reports the error.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(_pictures_inside(path))
        if not inside:
            raise BadImage(
                f"there are no images in the folder {path}. Name a folder with files such as .jpg, .png or .webp."
            )
        found.extend(inside)
    return found


def _pictures_inside(folder: Path) -> Iterator[Path]:
    for where, files in walk_visible(folder):
        for file in files:
            if not file.startswith(".") and Path(file).suffix.lower() in (*SUFFIXES, DEEP_ZOOM):
                yield Path(where, file)


def walk_visible(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """(folder, its files) for a folder and all visible folders in it; links are followed once."""
    seen: set[str] = set()
    for where, folders, files in os.walk(folder, followlinks=True, onerror=_refuse_folder):
        real = os.path.realpath(where)
        if real in seen:  # a link to a parent folder would never end
            folders.clear()
            continue
        seen.add(real)
        tiles = {
            f"{Path(file).stem}_files" for file in files if file.lower().endswith(DEEP_ZOOM)
        }  # of DeepZoom pictures
        folders[:] = sorted(inner for inner in folders if not inner.startswith(".") and inner not in tiles)
        yield where, files


def _refuse_folder(error: OSError) -> None:
    raise BadImage(f"the folder {error.filename} cannot be read: {error.strerror}. Check its permissions.") from error


class Member(NamedTuple):
    """Where a member lies in its tar file."""

    offset: int
    size: int


def shard_of(file: Path) -> Path | None:
    """The tar file that a path leads into; None for a file of its own."""
    if ".tar" not in str(file):
        return None
    return next((place for place in file.parents if place.suffix == ".tar" and place.is_file()), None)


@functools.lru_cache(maxsize=4096)
def members_of(shard: Path, changed_at: int) -> dict[str, Member]:
    """{name: place} of the files in a tar file; changed_at: so that a file that was written again is read again."""
    try:
        with open_file(shard) as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            return {one.name: Member(one.offset_data, one.size) for one in archive if one.isreg()}
    except (OSError, tarfile.TarError) as error:
        raise BadData(f"{shard} cannot be read as a tar file: {error}. Download it again.") from None


def _member(shard: Path, file: Path) -> Member:
    members = members_of(shard, shard.stat().st_mtime_ns)
    name = file.relative_to(shard).as_posix()
    if name not in members:
        raise FileNotFoundError(2, f"there is no {name} in {shard}", str(file))
    return members[name]


def open_picture(file: str | Path) -> BinaryIO:
    """Open a file, or a member of a tar file, for reading."""
    shard = shard_of(Path(file))
    if shard is None:
        return open_file(file)
    place = _member(shard, Path(file))
    with open_file(shard) as stream:
        stream.seek(place.offset)
        return io.BytesIO(stream.read(place.size))


def size_of(file: Path) -> int:
    """Bytes of a file, or of a member of a tar file."""
    shard = shard_of(file)
    return os.stat(file).st_size if shard is None else _member(shard, file).size


def changed_at(file: Path) -> int:
    """When a file, or the tar file of a member, was written, in nanoseconds."""
    return os.stat(shard_of(file) or file).st_mtime_ns
