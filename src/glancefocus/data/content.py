"""The content of a picture, video or folder of frames as a size and a hash, by which it is recognised under any name."""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from glancefocus.data.clips import frame_names
from glancefocus.errors import BadImage
from glancefocus.files import content_fingerprint

DIGEST_DIGITS = 32
"""Of the 64 hexadecimal digits of SHA-256; 128 bits tell any number of files apart."""


class Content(NamedTuple):
    """What a file holds: its bytes, and the first digits of the hash of its content."""

    size: int
    digest: str


def content_size(path: Path) -> int:
    """Bytes of a file, or of all frames in a folder of frames; found without reading them."""
    try:
        if not path.is_dir():
            return path.stat().st_size
        return sum((path / name).stat().st_size for name in frame_names(path))
    except OSError as error:
        raise BadImage(f"{path} cannot be read: {error.strerror or error}. Check the path and the disk.") from None


def content_of(path: Path) -> Content:
    """Size and hash of a file, see files.content_fingerprint; of a folder of frames over the sizes and hashes of its frames."""
    size = content_size(path)
    try:
        if not path.is_dir():
            return Content(size, content_fingerprint(path)[:DIGEST_DIGITS])
        digest = hashlib.sha256()
        for name in frame_names(path):
            frame = path / name
            digest.update(f"{os.path.getsize(frame)} {content_fingerprint(frame)}\n".encode())
    except OSError as error:
        raise BadImage(f"{path} cannot be read: {error.strerror or error}. Check the path and the disk.") from None
    return Content(size, digest.hexdigest()[:DIGEST_DIGITS])
