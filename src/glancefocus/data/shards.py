"""Pictures inside of tar files: shards in the layout of webdataset, read in place, without unpacking them.

A member is named like a file in a folder: shards/train-0000.tar/000123.jpg. published.py finds them, with their labels.
"""

import functools
import io
import os
import tarfile
from pathlib import Path
from typing import BinaryIO, NamedTuple

from glancefocus.errors import BadData
from glancefocus.machine import open_file


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
