"""New networks, and weights for them from files: opened safely, matched by name, or by order where only the names differ.

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

import torch
from torch import Tensor, nn

from glancefocus.errors import BadCheckpoint
from glancefocus.machine import available_bytes, open_file
from glancefocus.network.backbones import check_pretrained, head_names
from glancefocus.network.build import build, load_exactly, read_safetensors
from glancefocus.network.model import GlanceFocus
from glancefocus.network.plain_pickles import DamagedFile, ForeignContent, PlainReader
from glancefocus.network.presets import network_settings
from glancefocus.values import Seed, checked, one_line

MOST_PICKLE_BYTES = 8 << 20
"""Without the tensors' values. A thousand tensors take 0.1 MB."""
_BLOCK_BYTES = 16 << 20
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # of files from before torch 1.6


def create(
    preset: str | None = None,
    *,
    backbone: str | None = None,
    classes: int | None = None,
    weights: str | Path | None = None,
    seed: int | None = None,
    **changes: Any,
) -> GlanceFocus:
    """A new network, in evaluation mode.

    preset    a name of `gf models`; or
    backbone  any timm name
    weights   for both encoders: "pretrained" (the ones that timm names), or a file. None: not trained at all
    seed      makes the random weights repeatable
    changes   any field of NetworkSettings: glance_px=, patch_px=, looks=, classifier=, policy=dict(...), ...

        net = gf.create("gf-resnet50-96", classes=10)
        net = gf.create(backbone="convnext_atto", classes=10, glance_px=64, patch_px=64, looks=3)
    """
    settings = network_settings(preset, backbone=backbone, classes=classes, **changes)
    devices: list[int] = []  # the CPU's generator is forked always; weights are made there
    with torch.random.fork_rng(devices=devices, enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(checked(Seed, seed, "seed"))
        net = build(settings, pretrained=weights == "pretrained")
    if weights is not None and weights != "pretrained":
        load_encoders(net, weights)
    return net


def load_encoders(net: GlanceFocus, weights: str | Path) -> None:
    """Weights of a backbone out of a file, for both encoders."""
    encoders = {id(e): e for e in (net.glance_encoder, net.focus_encoder, net.whole_encoder) if e is not None}
    for encoder in encoders.values():
        load_backbone_weights(encoder.backbone, weights)


def check_weights(backbone: str, weights: str | None) -> None:
    """Refuse "pretrained" where nothing can be downloaded, and a file that is not there, before anything else is done."""
    if weights == "pretrained":
        check_pretrained(backbone)
    elif weights is not None:
        find_checkpoint(weights)


IMAGES = 4


def make_up_weights(net: GlanceFocus, generator: torch.Generator) -> GlanceFocus:
    """Give an untrained network's batch norms weights and statistics like those of a trained one.

    timm starts the last batch norm of each block at zero: whole blocks would compute with zeros, and exporters leave them out.
    """
    norms = [module for module in net.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        with torch.no_grad():
            norm.weight.copy_(0.5 + torch.rand(norm.weight.shape, generator=generator))
            norm.bias.copy_(0.1 * torch.randn(norm.bias.shape, generator=generator))
        norm.momentum = 1.0
    view = net.settings.view
    frames = () if net.settings.frames == 1 else (net.settings.frames,)
    images = torch.randn(IMAGES, *frames, 3, view.height_px, view.width_px, generator=generator)
    net.train()
    with torch.no_grad():
        look = net.glance(images)
        for candidate in range(len(net.settings.candidates)) if net.settings.looks > 1 else ():
            net.focus(look, net.policy.aim(look, candidate))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return net.eval()


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
    """A stream in which one read gets at most `most` bytes, and all reads together at most `in_all`."""

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
    head = head_names(backbone)
    fitting = {n: t for n, t in tensors.items() if n not in head or t.shape == wanted[n].shape}
    new = {n: torch.zeros_like(t) for n, t in wanted.items() if n in head and n not in fitting}
    load_exactly(backbone, {**fitting, **new}, "backbone", str(path))


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
