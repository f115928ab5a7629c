"""How much memory this process can still get, and how to stay within it: refusing large pictures, limiting batches, malloc.

glibc returns large blocks to the kernel as soon as they are freed, and the kernel clears every page again at the next allocation.
For training on a CPU that can be close to half of the time, so `keep_freed_memory` turns it off.
"""

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import psutil

from glancefocus.errors import BadImage

if TYPE_CHECKING:
    from torch import Tensor

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX of malloc.h
UNCHECKED_BYTES = 64 << 20
"""A smaller need for memory is not checked."""
MOST_BATCH_BYTES = 512 << 20
"""Limit for the images of one batch; they are copied once when they are stacked into one tensor."""

Item = TypeVar("Item")


def keep_freed_memory(top_pad_bytes: int = 64 << 20) -> bool:
    """Configure malloc to keep freed memory in this process; True if that was possible."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return all(
        bool(mallopt(name, value)) for name, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1), (_TOP_PAD, top_pad_bytes))
    )


def available_bytes() -> int:
    """Memory that this process can still get without swapping: what the machine has available, or less if a container
    (cgroup) or `ulimit -v` allows less."""
    free: int = psutil.virtual_memory().available
    return max(0, min(free, *_allowed_by_cgroups(), *_allowed_by_ulimit()))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out: Python's own, torch's on a CPU, or that of a GPU."""
    message = str(error)
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "can't allocate memory" in message
        or "not enough memory" in message
    )


def check_memory(needed_bytes: int, name: str) -> None:
    """Refuse a picture that would not fit into the available memory."""
    if needed_bytes <= UNCHECKED_BYTES:
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


def bytes_of(image: "Tensor") -> int:
    """The memory that an image takes."""
    return image.nbytes


def in_words(size: int) -> str:
    """A number of bytes for people: "1.6 GB"."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _allowed_by_cgroups(root: Path = Path("/")) -> Iterator[int]:
    """What is left of the limit of every cgroup that this process is in, parents included."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, inside = line.split(":", 2)
        if controllers == "":
            mount, limit, usage, reclaimable = "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            mount, limit, usage = "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            reclaimable = "total_inactive_file"
        else:
            continue
        # Inside a container the path may be the host's, of which only the mount itself is visible.
        own = Path(inside.lstrip("/"))
        for folder in (root / mount / part for part in (own, *own.parents)):
            try:
                most, used = (int((folder / name).read_text()) for name in (limit, usage))
                stat = dict(line.split(maxsplit=1) for line in (folder / "memory.stat").read_text().splitlines())
            except (OSError, ValueError):  # no such folder; or the limit is the word "max"
                continue
            yield most - used + int(stat.get(reclaimable, 0))  # file caches are freed when memory is needed


def _allowed_by_ulimit() -> Iterator[int]:
    """What is left of the limit on the size of this process."""
    if sys.platform == "win32":
        return
    import resource

    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most != resource.RLIM_INFINITY:
        used: int = psutil.Process().memory_info().vms
        yield most - used
