"""Files of torch are read as torch does, but for what no weights need: that is refused before it takes memory or time."""

import io
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from glancefocus.errors import BadCheckpoint
from glancefocus.network.build import load_exactly
from glancefocus.network.weights import MOST_PICKLE_BYTES, open_safely

BASE = torch.arange(20.0).reshape(4, 5)
PLAIN = {
    "whole": BASE,
    "part": BASE[1:, 2:],
    "turned": BASE.t(),
    "parameter": nn.Parameter(torch.ones(3)),
    "half": torch.full((2,), 0.5, dtype=torch.bfloat16),
    "count": torch.tensor(3),
    "empty": torch.zeros(0, 3),
    "truth": torch.tensor([True, False]),
    "layer": nn.BatchNorm1d(2).state_dict(),
    "number": np.float64(0.5),
    "array": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "list": [1, (2, 3.5, None, True), "é", b"a\xff", {1, 2}, 10**15],
    "table": OrderedDict(x=1),
    "size": torch.Size([1, 2]),
}


def same(one: Any, two: Any) -> bool:
    if isinstance(one, Tensor):
        return one.dtype == two.dtype and torch.equal(one.detach(), two)
    if isinstance(one, np.ndarray):
        return one.dtype == two.dtype and np.array_equal(one, two)
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(same, one, two))
    return bool(one == two)


@pytest.mark.parametrize("new_format", [True, False])
@pytest.mark.parametrize("protocol", [2, 4])
def test_what_torch_saves_is_read_as_it_was(new_format: bool, protocol: int, tmp_path: Path) -> None:
    file = tmp_path / "a.pth"
    torch.save(PLAIN, file, _use_new_zipfile_serialization=new_format, pickle_protocol=protocol)
    read = open_safely(file)
    assert {key for key in PLAIN if not same(PLAIN[key], read[key])} == set()
    assert read["part"].untyped_storage().data_ptr() == read["whole"].untyped_storage().data_ptr()


def archive(pickled: bytes, compression: int = zipfile.ZIP_STORED, **members: bytes) -> bytes:
    """As torch.save writes one: a pickle, and the values of its tensors."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as made:
        made.writestr("archive/data.pkl", pickled)
        for name, content in members.items():
            made.writestr(f"archive/data/{name.removeprefix('v')}", content)
    return stream.getvalue()


def calling(module: str, name: str, *args: Any) -> bytes:
    """A pickle of a call."""
    return b"\x80\x02c" + f"{module}\n{name}\n".encode() + pickle.dumps(args, 2)[2:-1] + b"R."


def storage(key: str, count: int, kind: str = "FloatStorage") -> bytes:
    """What stands for the values of a tensor in a pickle, but for its beginning and end."""
    inside = b"(" + pickle.dumps("storage", 2)[2:-1] + f"ctorch\n{kind}\n".encode()
    return inside + b"".join(pickle.dumps(part, 2)[2:-1] for part in (key, "cpu", count)) + b"tQ"


def tensor(
    key: str, stored: int, size: tuple[int, ...], stride: tuple[int, ...], maker: str = "_rebuild_tensor_v2"
) -> bytes:
    args = b"".join(pickle.dumps(part, 2)[2:-1] for part in (0, size, stride, False))
    return (
        b"\x80\x02ctorch._utils\n"
        + maker.encode()
        + b"\n("
        + storage(key, stored)
        + args
        + b"ccollections\nOrderedDict\n)RtR."
    )


def doubled(times: int) -> bytes:
    """A tuple of two, each of which is a tuple of two, ... : 2 ** times of them, in a few bytes."""
    return b"\x80\x02)" + b"".join(b"q\x00h\x00\x86" for _ in range(times))


GIGABYTES = 40_000_000_000
BOMBS: dict[str, Callable[[], bytes]] = {
    "bytearray": lambda: archive(calling("__builtin__", "bytearray", GIGABYTES)),
    "numpy array": lambda: archive(calling("numpy.core.multiarray", "_reconstruct", (GIGABYTES,), b"b")),
    "tensor class": lambda: archive(calling("torch", "FloatTensor", GIGABYTES)),
    "deflated": lambda: archive(tensor("0", 10**7, (10**7,), (1,)), zipfile.ZIP_DEFLATED, v0=bytes(4 * 10**7)),
    "expanded": lambda: archive(tensor("0", 1, (10**5, 10**5), (0, 0)), v0=bytes(4)),
    "growing": lambda: archive(tensor("0", 1, (10**5, 10**5), (10**5, 1)), v0=bytes(4)),
    "more said than stored": lambda: archive(tensor("0", 10**10, (10**10,), (1,)), v0=bytes(4)),
    "sparse": lambda: archive(calling("torch._utils", "_rebuild_sparse_tensor", 1, 2)),
    "quantised": lambda: archive(calling("torch._utils", "_rebuild_qtensor", 1, 2)),
    "meta": lambda: archive(calling("torch._utils", "_rebuild_meta_tensor_no_storage", 1, (GIGABYTES,), (1,), False)),
    "endless key": lambda: archive(b"\x80\x02}" + doubled(64)[2:] + b"K\x01s."),
    "slow codec": lambda: archive(calling("_codecs", "encode", "ü" * 100_000, "punycode")),
    "far memory": lambda: archive(b"\x80\x02Nr\xff\xff\xff\xff."),
    "long pickle": lambda: archive(b"\x80\x02" + b"}" * MOST_PICKLE_BYTES + b"."),
    "old and large": lambda: b"".join(
        (
            *(pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})),
            *(tensor("0", 10**10, (10**10,), (1,)), pickle.dumps(["0"], 2), struct.pack("<q", 10**10)),
        )
    ),
    "two gigabytes of contents": lambda: (
        archive(b"\x80\x02N.")[:-22] + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, 2**31, 0, 0)
    ),
}

OPEN = """
import resource, sys
from glancefocus.errors import BadCheckpoint
from glancefocus.network.weights import open_safely
import torch
for file in sys.argv[1:]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        open_safely(file)
        said = "opened"
    except BadCheckpoint as error:
        said = error
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, said)
"""


def test_files_that_ask_for_more_than_they_hold_are_refused_within_their_own_size(tmp_path: Path) -> None:
    files = []
    for name, make in BOMBS.items():
        files.append(tmp_path / f"{name}.pth")
        files[-1].write_bytes(make())
    command = [sys.executable, "-c", OPEN, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    said = dict(zip(BOMBS, done.stdout.splitlines(), strict=True))
    # A place in memory that is far away, and the size of an array that is still empty, mean nothing here.
    assert {name for name, words in said.items() if words.endswith("opened")} == {"far memory", "numpy array"}
    assert {name: words for name, words in said.items() if int(words.split()[0]) > 400_000} == {}  # kB
    assert "sparse tensors" in said["sparse"]
    assert "quantised tensors" in said["quantised"]
    assert "tensors without values" in said["meta"]
    assert "compressed parts, which torch.save does not write" in said["deflated"]
    for name in ("expanded", "growing"):
        assert "a tensor of shape (100000, 100000) has more places than values" in said[name]


@pytest.mark.parametrize("kind", ["a pipe", "a device"])
def test_what_is_not_a_file_is_not_waited_for(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "weights.pth"
    if kind == "a pipe":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")
    with pytest.raises(BadCheckpoint, match=f"cannot be read: it is {kind}, not a regular file"):
        open_safely(file)


def test_a_safetensors_file_with_an_endless_header_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    file.write_bytes((2**40).to_bytes(8, "little") + b"{}")
    with pytest.raises(BadCheckpoint, match="its header would have 1,099,511,627,776 bytes"):
        open_safely(file)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (torch.full((2, 3), torch.nan), "the tensor weight holds NaN or infinity"),
        (torch.full((2, 3), torch.inf), "the tensor weight holds NaN or infinity"),
        (torch.full((2, 3), 1e300, dtype=torch.float64), "the tensor weight holds NaN or infinity"),  # in float32
        (torch.ones(2, 3, dtype=torch.int8), "weight is made of int8, not of floating-point numbers"),
        (torch.ones(2, 3, dtype=torch.bool), "weight is made of bool, not of floating-point numbers"),
        (torch.ones(2, 3, dtype=torch.complex64), "weight is made of complex64, not of floating-point numbers"),
        (torch.ones(2, 3).to_sparse(), "weight is sparse, quantised or without values"),
        (torch.ones(2, 3, device="meta"), "weight is sparse, quantised or without values"),
    ],
)
def test_weights_that_are_no_numbers_are_refused_by_name(wrong: Tensor, sentence: str) -> None:
    with pytest.raises(BadCheckpoint, match=f"^file: the tensor {sentence}|{sentence}"):
        load_exactly(nn.Linear(3, 2), {"weight": wrong, "bias": torch.zeros(2)}, "layer", "file")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_taken(dtype: torch.dtype) -> None:
    layer = nn.Linear(3, 2)
    load_exactly(layer, {"weight": torch.ones(2, 3, dtype=dtype), "bias": torch.zeros(2)}, "layer", "file")
    assert layer.weight.dtype == torch.float32
    assert layer.weight.tolist() == [[1.0] * 3] * 2


def test_whole_numbers_stay_whole() -> None:
    norm = nn.BatchNorm1d(2)
    norm.register_buffer("order", torch.tensor([1, 0]))
    state = {**norm.state_dict(), "order": torch.tensor([1.0, 0.0])}
    with pytest.raises(BadCheckpoint, match="the tensor order is made of float32, not of int64"):
        load_exactly(norm, state, "norm", "file")
