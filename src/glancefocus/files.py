"""Files and folders that are whole or not there, reading within limits, fingerprints of content, locks, and the cache folder.

Every other module that writes, hashes or locks a file does it through this one, and so does every one that reads a foreign file.
"""

import contextlib
import ctypes
import errno
import hashlib
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of fcntl.h and stdio.h on Linux
_BLOCK_BYTES = 1 << 20
_NONBLOCK: int = getattr(os, "O_NONBLOCK", 0)  # Windows has none
_END_BYTES = 8 << 20


def write_file(file: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Write a file aside, flush it to the disk and rename it into place; what was there stays until then.

    The file aside has a new name that cannot be guessed, and is never opened through a link. Its permissions follow the umask.
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
        os.replace(aside, file)  # replaces a link itself, not what it points to
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        raise


def write_text(file: Path, text: str) -> None:
    """The same for text in UTF-8."""
    write_file(file, lambda stream: stream.write(text.encode("utf-8")))


@contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """A new folder that takes the place of `folder` once the block is done; when it fails, what was there stays.

    On Linux old and new are exchanged in one step, so that there is a whole folder at its path at every moment.
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
def folder_aside(file: Path) -> Iterator[Path]:
    """A new folder beside a file, for what other libraries write; it goes away with everything in it when the block ends."""
    aside = _name_aside(file)
    aside.mkdir()
    try:
        yield aside
    finally:
        _remove(aside)


def remove_unfinished(folder: Path, name: str) -> None:
    """Remove what a killed process had begun to write beside `name`."""
    for aside in folder.glob(f".{_escaped(name)}.*.aside"):
        _remove(aside)


def open_file(file: str | Path) -> BinaryIO:
    """A regular file, or a link to one, opened for reading; a pipe, a device or a folder is never waited for or read from.

    Raises OSError, whose strerror says what the file is instead.
    """
    # Looked at first, as opening alone has effects on some devices; and again once it is open, as it may have been exchanged.
    _refuse_other_kinds(os.stat(file).st_mode, file)
    descriptor = os.open(file, os.O_RDONLY | _NONBLOCK | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
    try:
        _refuse_other_kinds(os.fstat(descriptor).st_mode, file)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_file(file: Path, most_bytes: int) -> bytes:
    """The content of a regular file of at most so many bytes. Raises OSError, whose strerror says what is wrong."""
    with open_file(file) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > most_bytes:
            raise OSError(errno.EFBIG, _too_large(most_bytes), str(file))
        return read_stream(stream, most_bytes)


def read_stream(stream: BinaryIO, most_bytes: int) -> bytes:
    """Everything in a stream; one that does not end within so many bytes is an OSError."""
    blocks, size = [], 0
    while block := stream.read(_BLOCK_BYTES):
        blocks.append(block)
        size += len(block)
        if size > most_bytes:
            raise OSError(errno.EFBIG, _too_large(most_bytes))
    return b"".join(blocks)


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


def fingerprint(file: Path) -> str:
    """SHA-256 of a file's content, as hexadecimal digits."""
    digest = hashlib.sha256()
    with open_file(file) as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def content_fingerprint(file: Path) -> str:
    """The fingerprint of a file of up to 16 MiB; of a larger one, SHA-256 of its size and its first and last 8 MiB.

    Tells files of a data set apart in a bounded time each; a change in the middle of a large file is not noticed.
    """
    size = os.path.getsize(file)
    if size <= 2 * _END_BYTES:
        return fingerprint(file)
    digest = hashlib.sha256(f"{size}\n".encode())
    with open(file, "rb") as stream:
        digest.update(stream.read(_END_BYTES))
        stream.seek(-_END_BYTES, os.SEEK_END)
        digest.update(stream.read(_END_BYTES))
    return digest.hexdigest()


def cache_path() -> Path:
    """Where data made by the program is kept: $GLANCEFOCUS_CACHE, or else ~/.cache/glancefocus. It need not exist.

    Raises RuntimeError where there is no home folder.
    """
    chosen = os.environ.get("GLANCEFOCUS_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "glancefocus"


def cache_folder() -> Path:
    """The folder at cache_path, private to the user. Raises OSError where it cannot be made."""
    folder = cache_path()
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
    elif os.stat(folder).st_mode & 0o077 and os.stat(folder).st_uid == os.getuid():
        folder.chmod(0o700)
    return folder


class Locked(Exception):
    """Another process holds the lock; `holder` is its process number, or None where the file does not say."""

    def __init__(self, file: Path, holder: int | None) -> None:
        super().__init__(f"{file} is locked by process {holder}")
        self.holder = holder


@contextmanager
def lock(file: Path, *, wait: bool) -> Iterator[None]:
    """Hold a lock file while the block runs; the lock ends with the process, however that ends.

    wait  for another holder; otherwise raises Locked
    Raises OSError where the file cannot be opened, or is a link.
    """
    if sys.platform == "win32":  # no flock there
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
            said = os.pread(descriptor, 32, 0).strip()
            raise Locked(file, int(said) if said.isdigit() else None) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _name_aside(path: Path) -> Path:
    return path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.aside")


def _escaped(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name[:100])


def _remove(path: Path) -> None:
    """A file, a link, or a folder with everything in it; links in it are not followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two files or folders in one step; False where the system cannot."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    return bool(renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0)
