"""How much memory this process can still get, and how to make it keep what it freed.

glibc hands large blocks back to the kernel as soon as they are freed, and the kernel clears every page of them anew at the next
step. For training on a CPU that can be close to half of the time. Other C libraries and other systems are left as they are.
"""

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

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


def available_bytes() -> int:
    """Memory that this process can still get without swapping: what the machine has available, or less where a container
    (cgroup) or `ulimit -v` allows less."""
    free: int = psutil.virtual_memory().available
    return max(0, min(free, *_allowed_by_cgroups(), *_allowed_by_ulimit()))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out: Python's own, torch's on a CPU, or that of a GPU."""
    said = str(error)
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "can't allocate memory" in said
        or "not enough memory" in said
    )


def _allowed_by_cgroups(root: Path = Path("/")) -> Iterator[int]:
    """What is left of the limit of every cgroup that this process is in, its parents included."""
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
        # Inside a container the path may be the host's, of which only the mount itself can be seen.
        own = Path(inside.lstrip("/"))
        for folder in (root / mount / part for part in (own, *own.parents)):
            try:
                most, used = (int((folder / name).read_text()) for name in (limit, usage))
                stat = dict(line.split(maxsplit=1) for line in (folder / "memory.stat").read_text().splitlines())
            except (OSError, ValueError):  # no such folder; or the limit is the word "max"
                continue
            yield most - used + int(stat.get(reclaimable, 0))  # caches of files are given back when they are in the way


def _allowed_by_ulimit() -> Iterator[int]:
    """What is left of the limit on the size of this process."""
    if sys.platform == "win32":
        return
    import resource

    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most != resource.RLIM_INFINITY:
        used: int = psutil.Process().memory_info().vms
        yield most - used
