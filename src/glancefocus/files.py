"""Atomic writes, locks, fingerprints of content, and the cache folder, for the whole project.

A file or folder written here is complete or absent: it is written under a temporary name (ending in .aside) and then renamed.
Files are read through machine.py.
"""

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import secrets
import shutil
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal

from glancefocus.machine import cache_path, open_file

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of fcntl.h and stdio.h on Linux
_BLOCK_BYTES = 1 << 20


def write_file(file: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Write a file under a temporary name, flush it to the disk and rename it; an older file stays in place until then.

    The temporary name cannot be guessed and is never opened through a link. Permissions follow the umask.
    Raises OSError (or what `write` raises), and then leaves nothing behind.
    """
    aside = _name_aside(file)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(aside, flags, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(aside, file)  # replaces a link itself, not its target
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        raise


def write_text(file: Path, text: str) -> None:
    """Write a text in UTF-8, see write_file."""
    write_file(file, lambda stream: stream.write(text.encode("utf-8")))


@contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder that takes the place of `folder` when the block ends; if the block fails, the old folder stays.

    On Linux the old and the new folder are exchanged in one step, so that a complete folder is at the path at every moment.
    """
    folder = Path(os.path.abspath(folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = _name_aside(folder)
    aside.mkdir()
    try:
        yield aside
        if not os.path.lexists(folder):
            aside.rename(folder)
            return
        if not _exchange(aside, folder):
            old = _name_aside(folder)
            folder.rename(old)
            try:
                aside.rename(folder)
            except BaseException:
                old.rename(folder)
                raise
            aside = old
        _remove(aside)  # the old one
    except BaseException:
        _remove(aside)
        raise


@contextmanager
def replace_files(file: Path) -> Iterator[Path]:
    """Yield a new folder for a library that writes `file` and perhaps others beside it; they are moved when the block ends.

    `file` itself is moved last, because it names the others. If the block fails, nothing is moved.
    """
    aside = _name_aside(file)
    aside.mkdir()
    try:
        yield aside
        for written in sorted(aside.iterdir(), key=lambda path: path.name == file.name):
            os.replace(written, file.with_name(written.name))
    finally:
        _remove(aside)


def remove_unfinished(folder: Path, name: str) -> None:
    """Remove the temporary files and folders that a killed process left while it was writing `name`."""
    for aside in folder.glob(f".{_escaped(name)}.*.aside"):
        _remove(aside)


def fingerprint(*parts: Any) -> str:
    """SHA-256 of all parts, one after the other, as hexadecimal digits.

    A Path stands for the content of its file, a text for its UTF-8 bytes, bytes, arrays and tensors for their own bytes, and
    anything else (numbers, lists, tables) for its JSON with sorted names.
    """
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            with open_file(part) as stream:
                while block := stream.read(_BLOCK_BYTES):
                    digest.update(block)
        else:
            digest.update(_bytes_of(part))
    return digest.hexdigest()


def _bytes_of(part: Any) -> bytes:
    if isinstance(part, bytes):
        return part
    if isinstance(part, str):
        return part.encode("utf-8", "surrogateescape")  # a file name need not be UTF-8
    if hasattr(part, "detach"):  # a tensor, of any type: numpy does not have all of torch's types
        import torch

        part = part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    if hasattr(part, "tobytes"):
        content: bytes = part.tobytes()
        return content
    return json.dumps(part, sort_keys=True).encode()


Cache = Path | Literal["default"] | None
"""Where something may be kept: a folder, the program's cache folder, or (None) nowhere."""


def cache_folder(cache: Path | Literal["default"] = "default") -> Path:
    """The folder to keep things in, created if needed; the program's own is private to the user. Raises OSError."""
    if cache != "default":
        cache.mkdir(parents=True, exist_ok=True)
        return cache
    folder = cache_path()
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
    elif os.stat(folder).st_mode & 0o077 and os.stat(folder).st_uid == os.getuid():
        folder.chmod(0o700)
    return folder


class Locked(Exception):
    """Another process holds the lock; `holder` is its process id, or None if the lock file does not contain one."""

    def __init__(self, file: Path, holder: int | None) -> None:
        super().__init__(f"{file} is locked by process {holder}")
        self.holder = holder


@contextmanager
def lock(file: Path, *, wait: bool) -> Iterator[None]:
    """Hold a lock file while the block runs; the system releases the lock if the process is killed.

    wait  True: wait until another process releases it; False: raise Locked
    Raises OSError if the file cannot be opened or is a link.
    """
    if sys.platform == "win32":  # has no flock
        yield
        return
    import fcntl

    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            holder = os.pread(descriptor, 32, 0).strip()
            raise Locked(file, int(holder) if holder.isdigit() else None) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def hold(file: Path, owner: object) -> None:
    """Mark a file as in use, in all processes, for as long as the owner exists. Raises OSError."""
    if sys.platform == "win32":  # has no flock; open files cannot be removed there
        return
    import fcntl

    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    weakref.finalize(owner, os.close, descriptor)
    fcntl.flock(descriptor, fcntl.LOCK_SH)


def is_held(file: Path) -> bool:
    """Whether a process holds the file, see hold."""
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # it was removed meanwhile, or is not a file of ours
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _name_aside(path: Path) -> Path:
    return path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.aside")


def _escaped(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name[:100])


def _remove(path: Path) -> None:
    """Remove a file, a link, or a folder with its content; links inside are not followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two files or folders in one step; False if the system cannot."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    return bool(renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0)
