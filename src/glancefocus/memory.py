"""Keeps memory that was freed, for processes that allocate the same large tensors over and over.

glibc hands large blocks back to the kernel as soon as they are freed, and the kernel clears every page of them anew at the next
step. For training on a CPU that can be close to half of the time. Elsewhere (other C libraries, other systems) this does nothing.
"""

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # names of malloc.h


def keep_freed_memory(top_pad_bytes: int = 64 << 20) -> bool:
    """Ask the allocator not to return freed memory to the system; True where that was possible."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return all(
        bool(mallopt(name, value)) for name, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1), (_TOP_PAD, top_pad_bytes))
    )
