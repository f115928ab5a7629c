"""Finds the image files in folders: visible files with the suffix of an image, in a fixed order."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from glancefocus.errors import BadImage

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
