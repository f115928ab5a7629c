"""Bounds what pictures take of the memory: estimated before they are decoded, one by one and in batches."""

from collections.abc import Iterator

from torch import Tensor

from glancefocus.errors import BadImage
from glancefocus.free_memory import available_bytes

DECODING_BYTES = 12
"""Memory that reading one pixel takes at most: as the file stores it, in RGB, and turned upright; Pillow's RGB takes 4."""
SMALL_BYTES = 64 << 20
"""What needs less than this is not checked."""
MOST_BATCH_BYTES = 512 << 20
"""Images looked at together take at most this much; to put them into one tensor they are copied once."""
PIXELS_PER_BAND = 1 << 22


def check_memory(needed_bytes: int, name: str) -> None:
    """Refuse a picture that would not fit into the memory that is available, see memory.available_bytes."""
    if needed_bytes <= SMALL_BYTES:
        return
    available = available_bytes()
    if needed_bytes > available:
        raise BadImage(
            f"{name} needs about {in_words(needed_bytes)} of memory, but {in_words(available)} are available. "
            "Make the picture smaller, or free memory."
        )


def batch_bytes() -> int:
    """How much memory the images of one batch may take."""
    return min(MOST_BATCH_BYTES, available_bytes() // 4)


def bytes_of(image: Tensor) -> int:
    """What an image takes."""
    return image.numel() * image.element_size()


def bands(size: tuple[int, int], *, whole_rows: bool = False) -> Iterator[tuple[int, int, int, int]]:
    """(left, top, right, bottom) of parts that together make a picture of this (width, height), each of some millions of pixels.

    What is computed part by part takes little memory beside the picture; most pictures are one part.
    """
    width, height = size
    wide = width if whole_rows else min(width, PIXELS_PER_BAND)
    high = max(1, PIXELS_PER_BAND // max(1, wide))
    for top in range(0, height, high):
        for left in range(0, width, max(1, wide)):
            yield left, top, min(left + wide, width), min(top + high, height)


def in_words(size: int) -> str:
    """A number of bytes for people."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
