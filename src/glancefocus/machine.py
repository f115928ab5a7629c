"""The machine that the program runs on: files and JSON that are read within limits, free memory, threads, the cache folder.

Files from outside are opened here only, so that a pipe, a device or an endless file cannot block the program.

A fork copies the memory of a process, but only one of its threads. The thread pools of torch, ONNX Runtime and OpenVINO are then
gone, and work that waits for them waits for ever; `check_threads` refuses it. With one thread there is no pool, and everything
works after a fork.

torch and psutil are imported where they are used: help pages must be instant.
"""

import ctypes
import errno
import functools
import importlib
import json
import math
import os
import platform
import stat
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from glancefocus.errors import BadImage, BadSetting, ForkedThreads
from glancefocus.values import is_writable_text, shown

if TYPE_CHECKING:
    import torch

_BLOCK_BYTES = 1 << 20
_NONBLOCK: int = getattr(os, "O_NONBLOCK", 0)  # Windows has no such flag


def open_file(file: str | Path) -> BinaryIO:
    """Open a regular file, or a link to one, for reading; pipes, devices and folders are refused without waiting for them.

    Raises OSError, whose strerror says what kind of file it is instead.
    """
    # Checked before opening, because opening some devices has effects, and again afterwards: the file may have been replaced.
    _refuse_other_kinds(os.stat(file).st_mode, file)
    descriptor = os.open(file, os.O_RDONLY | _NONBLOCK | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
    try:
        _refuse_other_kinds(os.fstat(descriptor).st_mode, file)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_file(file: Path, most_bytes: int) -> bytes:
    """The content of a regular file of at most `most_bytes`. Raises OSError, whose strerror says what is wrong."""
    with open_file(file) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > most_bytes:
            raise OSError(errno.EFBIG, _too_large(most_bytes), str(file))
        return read_stream(stream, most_bytes)


def read_stream(stream: BinaryIO, most_bytes: int) -> bytes:
    """Everything in a stream. Raises OSError if it does not end within `most_bytes`."""
    blocks, size = [], 0
    while block := stream.read(_BLOCK_BYTES):
        blocks.append(block)
        size += len(block)
        if size > most_bytes:
            raise OSError(errno.EFBIG, _too_large(most_bytes))
    return b"".join(blocks)


MOST_VALUES, DEEPEST = 4_000_000, 32
"""Limits for a JSON file: how many values it may hold, and how deeply lists and tables may be nested."""
_LONGEST_NUMBER = 40


def read_json(file: Path, most_bytes: int) -> Any:
    """The content of a JSON file. Raises BadSetting if it is not valid JSON, OSError if it cannot be read."""
    return parse_json(read_file(file, most_bytes))


def parse_json(content: bytes) -> Any:
    """Parse JSON strictly and within limits: UTF-8, every name once, no NaN or infinity, no number that overflows."""
    if sum(map(content.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise BadSetting(f"it has more than {MOST_VALUES:,} values.")
    try:
        plain = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_table,
            parse_int=_whole,
            parse_float=_float,
            parse_constant=_refuse_constant,
        )
    except UnicodeDecodeError as error:
        raise BadSetting(f"it is not text in UTF-8 (byte {error.start}).") from None
    except RecursionError:
        raise BadSetting("its lists and tables are nested too deeply.") from None
    except ValueError as error:
        raise BadSetting(f"it is not JSON: {error}.") from None
    _check_inside(plain)
    return plain


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        last = {name: index for index, (name, _) in enumerate(pairs)}
        twice = next(name for index, (name, _) in enumerate(pairs) if last[name] != index)
        raise BadSetting(f"it has the name {shown(twice)} twice in one table.")
    return table


def _whole(digits: str) -> int:
    if len(digits) > _LONGEST_NUMBER:
        raise BadSetting(f"it has a whole number of {len(digits):,} digits.")
    return int(digits)


def _float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise BadSetting(f"it has a number that is too large ({digits[:_LONGEST_NUMBER]}).")
    return number


def _refuse_constant(name: str) -> Any:
    raise BadSetting(f"it has {name} where a number should be.")


def _check_inside(plain: Any) -> None:
    """Refuse values nested too deeply, and text with half a character (a surrogate); written without recursion."""
    level: list[Any] = [plain]
    for _ in range(DEEPEST):
        following: list[Any] = []
        for value in level:
            if isinstance(value, str) and not is_writable_text(value):
                raise BadSetting(f"it has a text that is not Unicode ({shown(value)}).")
            if isinstance(value, dict):
                following += [*value.keys(), *value.values()]
            elif isinstance(value, list):
                following += value
        if not following:
            return
        level = following
    raise BadSetting(f"its lists and tables are nested more than {DEEPEST} deep.")


def _too_large(most_bytes: int) -> str:
    return f"it has more than {most_bytes:,} bytes"


def _refuse_other_kinds(mode: int, file: str | Path) -> None:
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(file))
    kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
    what = kinds.get(stat.S_IFMT(mode), "something else")
    raise OSError(errno.EINVAL, f"it is {what}, not a regular file", str(file))


def cache_path() -> Path:
    """The path of the program's cache folder, which need not exist: $GLANCEFOCUS_CACHE, or else ~/.cache/glancefocus.

    Raises RuntimeError if there is no home folder.
    """
    chosen = os.environ.get("GLANCEFOCUS_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "glancefocus"


def usable_cores() -> int:
    """Number of CPU cores that this process may use; fewer than the machine has under taskset, or in a container with a CPU set."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX of malloc.h
UNCHECKED_BYTES = 64 << 20
"""A smaller need for memory is not checked."""
MOST_BATCH_BYTES = 512 << 20
"""Limit for the images of one batch; they are copied once when they are stacked into one tensor."""


def keep_freed_memory(top_pad_bytes: int = 64 << 20) -> bool:
    """Configure malloc to keep freed memory in this process; True if that was possible.

    glibc returns large blocks to the kernel as soon as they are freed, and the kernel clears every page again at the next
    allocation. For training on a CPU that can be close to half of the time.
    """
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
    import psutil

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

    import psutil

    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most != resource.RLIM_INFINITY:
        used: int = psutil.Process().memory_info().vms
        yield most - used


class Pooled(Protocol):
    """What computes with a pool of threads of its own."""

    threads: int
    lost_threads: bool

    def held(self) -> list[Any]:
        """The objects that own the threads."""
        ...


class _Torch:
    """The threads that torch has computed with: in this process, and in those that it was forked from."""

    here = 1
    lost = 1


_pooled: "weakref.WeakSet[Pooled]" = weakref.WeakSet()


def check_threads(wanted: int | None = None) -> None:
    """Refuse where torch would wait for threads that are gone; call it before torch computes.

    wanted  threads that are to be used; None: as many as torch is set to use
    """
    import torch

    _register()
    threads = torch.get_num_threads() if wanted is None else wanted
    if threads > 1 and _Torch.lost > 1:
        raise ForkedThreads(_Torch.lost)
    _Torch.here = max(_Torch.here, threads)


def watch(pooled: Pooled) -> None:
    """Set `lost_threads` of this object in forked processes, where it has more than one thread."""
    _register()
    _pooled.add(pooled)


def _after_fork() -> None:
    _Torch.lost, _Torch.here = max(_Torch.lost, _Torch.here), 1
    for pooled in list(_pooled):
        pooled.lost_threads = pooled.threads > 1
        for owner in pooled.held():
            # Its destructor would wait for the threads, too, so it is never freed in this process. OpenVINO has one more thread
            # than it computes with.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))


@functools.cache
def _register() -> None:
    if hasattr(os, "register_at_fork"):  # not on Windows, where there is no fork
        os.register_at_fork(after_in_child=_after_fork)


def usable_device(name: str | None) -> "torch.device":
    """The device of this name, such as cpu or cuda:1; None: the first GPU, or the CPU if there is none."""
    import torch

    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise BadSetting(f"--device {name} cannot be used here: {reason}. Use cpu, or cuda on a GPU.") from None
    return device


def device_name(device: "torch.device") -> str:
    """What people call it: the GPU's name, or the processor's."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else _processor_name()


@functools.lru_cache(maxsize=1)
def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine() or "CPU"


# Keeps the library object alive: when it is garbage collected, the operators are removed.
_declared: list[Any] = []


def ensure_torchvision() -> None:
    """Import torchvision; if missing operators prevent that, declare them first.

    A torchvision that was built for CUDA fails with a CPU torch, because two of its compiled operators are missing. Neither is
    needed here, so they are declared without an implementation. With a matching torchvision this does nothing.
    """
    if "torchvision" in sys.modules:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        for name in [n for n in sys.modules if n == "torchvision" or n.startswith("torchvision.")]:
            del sys.modules[name]
        import torch

        library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)
        importlib.import_module("torchvision")
