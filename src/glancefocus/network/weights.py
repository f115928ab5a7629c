"""Weights from files, opened safely and matched to a network by name, or by order where only the names differ.

Files of torch.save are read here without torch.load: tensors and plain values only, in memory proportional to the size of the file.
torch.load(weights_only=True) runs no foreign code either, but a few bytes can make it take gigabytes (`bytearray(10**10)`, deflated
archives, storages that grow, sparse tensors) or run without end (tuples of tuples as keys). Here an archive may only hold stored,
not compressed, parts, and a pickle may only make what plain_pickles.py lists.
"""

import io
import math
import os
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import safetensors.torch
import torch
from torch import Tensor, nn

from glancefocus.errors import BadCheckpoint
from glancefocus.escaping import is_writable_text, one_line
from glancefocus.files import open_file, read_file
from glancefocus.free_memory import available_bytes
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


def without_tsm_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors under the backbone's own names; tensors of anything else stay as they are."""
    if not any(name.startswith("base_model.") for name in tensors):
        return dict(tensors)
    foreign = next((name for name in tensors if ".nl." in name), None)
    if foreign is not None:
        raise BadCheckpoint(
            f"this is TSM with non-local blocks (it has {foreign}), which are not built here. "
            "Give one of TSM's checkpoints without `_nl`."
        )
    return {_own_name(name): tensor for name, tensor in tensors.items()}


def _own_name(name: str) -> str:
    own = name.removeprefix("base_model.")
    if own.startswith("new_fc."):
        return own.replace("new_fc.", "fc.", 1)
    return own.replace(".net.", ".", 1)


MOST_HEADER_BYTES = 16 << 20
"""Largest header of a .safetensors file: names, shapes and places of its tensors. A thousand tensors take 0.1 MB."""
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def open_safely(path: str | Path) -> Any:
    """What a .safetensors or a torch checkpoint holds. Nothing in the file is ever executed, and memory follows the file's size."""
    path = find_checkpoint(path)
    try:
        with open_file(path) as stream:
            size, free = os.fstat(stream.fileno()).st_size, available_bytes()
            if size == 0:
                raise BadCheckpoint(f"the checkpoint {path} is empty. Fetch or write it again.")
            if size > free:
                raise BadCheckpoint(
                    f"the checkpoint {path} has {size / 1e9:,.1f} GB, but {free / 1e9:,.1f} GB of memory are free."
                )
        return read_safetensors(path) if path.suffix == ".safetensors" else read_torch_file(path)
    except BadCheckpoint:
        raise
    except FileNotFoundError:
        raise BadCheckpoint(f"there is no checkpoint at {path}.") from None
    except IsADirectoryError:
        raise BadCheckpoint(f"{path} is a folder, not a checkpoint. Name the file in it.") from None
    except OSError as error:
        raise BadCheckpoint(f"the checkpoint {path} cannot be read: {error.strerror or error}.") from None
    except ForeignContent as error:
        raise BadCheckpoint(
            f"the checkpoint {path} holds more than tensors and plain values ({one_line(str(error), 100)}), and opening it "
            "could run foreign code; it was not opened. Save it again with tensors only."
        ) from None
    except DamagedFile as error:
        raise BadCheckpoint(f"{path} is not a torch checkpoint, or it is damaged: {error}.") from None
    except Exception:  # a damaged file makes the readers fail in every way: assertions, struct.error, KeyError, ...
        raise BadCheckpoint(f"{path} is not a torch checkpoint, or it is damaged.") from None


def read_safetensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file. Raises OSError, DamagedFile, or what safetensors raises."""
    with open_file(file) as stream:
        header_bytes = int.from_bytes(stream.read(8), "little")
    if header_bytes > MOST_HEADER_BYTES:
        raise DamagedFile(f"its header would have {header_bytes:,} bytes")
    if is_writable_text(str(file)):
        tensors: dict[str, Tensor] = safetensors.torch.load_file(file)
    else:  # which load_file cannot open
        tensors = safetensors.torch.load(read_file(file, available_bytes()))
    return tensors


def find_checkpoint(path: str | Path) -> Path:
    """The file, where there is one that is not empty."""
    path = Path(path)
    if path.is_dir():
        raise BadCheckpoint(f"{path} is a folder, not a checkpoint. Name the file in it.")
    if not path.exists():
        raise BadCheckpoint(f"there is no checkpoint at {path}.")
    if path.is_file() and path.stat().st_size == 0:
        raise BadCheckpoint(f"the checkpoint {path} is empty. Fetch or write it again.")
    return path


def tensors_in(table: Any) -> dict[str, Tensor]:
    """The tensors of a state dict, without the `module.` that data-parallel training puts before each name."""
    if not isinstance(table, Mapping):
        return {}
    return {str(name).removeprefix("module."): value for name, value in table.items() if isinstance(value, Tensor)}


def load_exactly(module: nn.Module, tensors: Mapping[str, Tensor], part: str, source: str) -> None:
    """Load a state dict that must match name by name and shape by shape; the error lists what does not."""
    wanted = module.state_dict()
    # Files from before torch 0.4.1 do not count batches; nothing depends on that count.
    missing = [n for n in wanted if n not in tensors and not n.endswith("num_batches_tracked")]
    foreign = [n for n in tensors if n not in wanted]
    shapes = [
        f"{n} is {tuple(tensors[n].shape)} instead of {tuple(wanted[n].shape)}"
        for n in wanted
        if n in tensors and tensors[n].shape != wanted[n].shape
    ]
    problems = [f"{len(missing)} missing (such as {missing[0]})"] if missing else []
    problems += [f"{len(foreign)} unknown (such as {foreign[0]})"] if foreign else []
    problems += [f"{len(shapes)} of another shape ({shapes[0]})"] if shapes else []
    if problems:
        raise BadCheckpoint(f"{source} does not fit the {part}: of its tensors {', '.join(problems)}.")
    for name, tensor in tensors.items():
        refuse_values(name, tensor, wanted[name], source)
    module.load_state_dict({n: tensors.get(n, v) for n, v in wanted.items()})


def refuse_values(name: str, tensor: Tensor, wanted: Tensor, source: str) -> None:
    """Refuse a tensor of another kind of number than is wanted, or with NaN or infinity in it."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise BadCheckpoint(
            f"{source}: the tensor {name} is sparse, quantised or without values. Save it as plain numbers."
        )
    if name.endswith(
        "num_batches_tracked"
    ):  # a count that nothing depends on; older files have it in other kinds of numbers
        if tensor.is_complex():
            raise BadCheckpoint(f"{source}: the tensor {name} is made of {_kind(tensor)}, not of {_kind(wanted)}.")
        return
    if wanted.is_floating_point() and tensor.dtype not in FLOATS:
        raise BadCheckpoint(
            f"{source}: the tensor {name} is made of {_kind(tensor)}, not of floating-point numbers. "
            "Convert it, or save it again before it is quantised."
        )
    if not wanted.is_floating_point() and tensor.dtype != wanted.dtype:
        raise BadCheckpoint(f"{source}: the tensor {name} is made of {_kind(tensor)}, not of {_kind(wanted)}.")
    if tensor.is_floating_point() and not bool(tensor.to(wanted.dtype).isfinite().all()):
        raise BadCheckpoint(
            f"{source}: the tensor {name} holds NaN or infinity. Training diverged, or the file is damaged: use an earlier one."
        )


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def load_backbone_weights(backbone: nn.Module, path: str | Path) -> None:
    """Weights of a backbone out of a file; its last layer begins with zeros where the number of classes differs.

    Names must be timm's or, for a ResNet, those of TSM's released checkpoints. A file with the same tensors in the same order under
    other names is accepted too.
    """
    content = open_safely(path)
    for nested in ("state_dict", "model", "model_state_dict"):
        if isinstance(content, Mapping) and isinstance(content.get(nested), Mapping):
            content = content[nested]
    tensors = without_tsm_names(tensors_in(content))
    wanted = backbone.state_dict()
    if not tensors:
        raise BadCheckpoint(f"{path} holds no tensors. Give a state dict of the backbone.")
    if len(set(tensors) & set(wanted)) < 0.5 * len(wanted):
        tensors = _by_order(tensors, wanted, path)
    head = _head_names(backbone)
    fitting = {n: t for n, t in tensors.items() if n not in head or t.shape == wanted[n].shape}
    new = {n: torch.zeros_like(t) for n, t in wanted.items() if n in head and n not in fitting}
    load_exactly(backbone, {**fitting, **new}, "backbone", str(path))


def forget_answers(backbone: nn.Module) -> None:
    """Set the last layer to zeros, for classes that are new to a pretrained backbone.

    A random last layer with few classes answers at random with high confidence (timm draws from a range of 1 / sqrt(classes)), and
    the first updates then ruin the layers below.
    """
    head = _head_names(backbone)
    with torch.no_grad():
        for name, parameter in backbone.named_parameters():
            if name in head:
                parameter.zero_()


def _by_order(tensors: dict[str, Tensor], wanted: Mapping[str, Tensor], path: str | Path) -> dict[str, Tensor]:
    counted = [n for n in wanted if not n.endswith("num_batches_tracked")]
    found = [t for n, t in tensors.items() if not n.endswith("num_batches_tracked")]
    same_rank = len(found) == len(counted) and all(
        t.dim() == wanted[n].dim() for n, t in zip(counted, found, strict=True)
    )
    if not same_rank:
        raise BadCheckpoint(
            f"{path} holds other tensors than the backbone: {len(found)} tensors, {len(counted)} wanted, and the names differ "
            f"(the file's first is {next(iter(tensors))}, ours is {counted[0]}). Give weights of the same backbone."
        )
    return dict(zip(counted, found, strict=True))


def _head_names(backbone: Any) -> set[str]:
    heads = backbone.get_classifier()
    heads = heads if isinstance(heads, tuple) else (heads,)
    own = {id(p) for h in heads for p in h.parameters()}
    return {n for n, p in backbone.named_parameters() if id(p) in own}
