"""Reads files of torch.save: tensors and plain values only, in memory proportional to the size of the file.

torch.load(weights_only=True) runs no foreign code either, but a few bytes make it take gigabytes (`bytearray(10**10)`, deflated
archives, storages that grow, sparse tensors) or run without end (tuples of tuples as keys). Here an archive may only hold what is
stored as it is, and a pickle may only make what plain_pickles.py lists.
"""

import io
import math
import struct
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from glancefocus.files import open_file
from glancefocus.network.plain_pickles import DamagedFile, ForeignContent, PlainReader

MOST_PICKLE_BYTES = 8 << 20
"""Without the tensors' values. A thousand tensors take 0.1 MB."""
_BLOCK_BYTES = 16 << 20
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # of files from before torch 1.6


def read_torch_file(file: Path) -> Any:
    """What was saved.

    Raises ForeignContent, DamagedFile, OSError, or, where bytes are damaged, anything that the readers of their formats raise.
    """
    with open_file(file) as stream:
        if stream.read(4) == b"PK\x03\x04":
            return _read_archive(stream)
        stream.seek(0)
        return _read_old(stream)


def _read_archive(stream: BinaryIO) -> Any:
    size = stream.seek(0, io.SEEK_END)
    capped: Any = _Capped(stream, MOST_PICKLE_BYTES)  # zipfile reads the table of contents at once, however large it is
    with zipfile.ZipFile(capped) as archive:
        capped.most = size
        members = {member.filename: member for member in archive.infolist()}
        if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
            raise ForeignContent("compressed parts, which torch.save does not write")
        if sum(member.file_size for member in archive.infolist()) > size:
            raise DamagedFile("its parts are larger than the file")
        (pickled,) = [name for name in members if name.endswith("/data.pkl") and name.count("/") == 1]
        folder = pickled.removesuffix("data.pkl")
        if members[pickled].file_size > MOST_PICKLE_BYTES:
            raise DamagedFile("its description of the tensors is too long")
        if f"{folder}byteorder" in members and archive.read(f"{folder}byteorder") != b"little":
            raise ForeignContent("numbers in the byte order of another processor")
        kept: dict[str, Tensor] = {}

        def storage(key: str, kind: torch.dtype, count: int) -> Tensor:
            if key not in kept:
                member = members[f"{folder}data/{key}"]
                with archive.open(member) as part:
                    kept[key] = _filled(torch.empty(member.file_size, dtype=torch.uint8), part)
            if kept[key].numel() != count * kind.itemsize:
                raise DamagedFile(f"the values of tensor {key} are not as many as it says")
            return kept[key].view(kind)

        return PlainReader(io.BytesIO(archive.read(pickled)), storage).load()


def _read_old(stream: BinaryIO) -> Any:
    """The format before torch 1.6: some pickles, then the values one after the other."""
    size = stream.seek(0, io.SEEK_END)
    stream.seek(0)
    pickles: Any = _Capped(stream, MOST_PICKLE_BYTES, MOST_PICKLE_BYTES)
    kept: dict[str, Tensor] = {}
    left = size

    def storage(key: str, kind: torch.dtype, count: int) -> Tensor:
        nonlocal left
        if key not in kept:
            left -= count * kind.itemsize
            if left < 0:
                raise DamagedFile("its tensors are larger than the file")
            kept[key] = torch.empty(count, dtype=kind)
        if kept[key].dtype != kind or kept[key].numel() != count:
            raise DamagedFile(f"tensor {key} has two different kinds of numbers")
        return kept[key]

    def read() -> Any:
        return PlainReader(pickles, storage).load()

    if read() != _MAGIC or read() != _PROTOCOL:
        raise DamagedFile("it does not begin as files of torch do")
    if read().get("little_endian") is not True:
        raise ForeignContent("numbers in the byte order of another processor")
    content, keys = read(), read()
    if not isinstance(keys, list) or len(keys) != len(kept):
        raise DamagedFile("its list of tensors is not complete")
    for key in keys:
        (count,) = struct.unpack("<q", stream.read(8))
        if kept[key].numel() != count:
            raise DamagedFile(f"the values of tensor {key} are not as many as it says")
        _filled(kept[key].view(torch.uint8) if count else kept[key], stream)
    return content


def _filled(target: Tensor, source: Any) -> Tensor:
    """The tensor of bytes with what is read from the source, block by block."""
    content: Any = target.numpy()
    room = memoryview(content) if target.numel() else memoryview(b"")
    done = 0
    while done < len(room):
        block = source.read(min(_BLOCK_BYTES, len(room) - done))
        if not block:
            raise DamagedFile("it is cut off")
        room[done : done + len(block)] = block
        done += len(block)
    return target


class _Capped:
    """A stream of which no read may ask for more than `most` bytes; nor all reads together for more than `in_all`."""

    def __init__(self, stream: BinaryIO, most: int, in_all: float = math.inf) -> None:
        self.stream, self.most, self.left = stream, most, in_all
        self.seek, self.tell, self.seekable = stream.seek, stream.tell, stream.seekable

    def read(self, count: int = -1) -> bytes:
        if count > self.most or count > self.left:
            raise DamagedFile("its description of the tensors is too long")
        content = self.stream.read(count if count >= 0 else self.most)
        self.left -= len(content)
        return content

    def readline(self) -> bytes:
        line = self.stream.readline(4096)
        self.left -= len(line)
        return line

    def close(self) -> None:
        pass
