"""The files that a run needs to continue: its checkpoint, and the record of its data.

A checkpoint is written to a temporary file, flushed and renamed, so a run that is killed at any moment leaves a complete one. It is
read field by field, so a damaged or foreign one is refused with the name of the wrong field.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import safetensors.torch
import torch
from torch import Tensor

from glancefocus.data.split_record import FILE, MAX_PACKED_BYTES, RecordedFile, SplitRecord
from glancefocus.errors import BadCheckpoint, BadData, BadRun
from glancefocus.evaluation.rivals import size_in
from glancefocus.files import write_file
from glancefocus.network.weights import open_safely
from glancefocus.training.settings import STAGES

FORMAT = 1


Numbers: TypeAlias = dict[str, float | list[float]]
"""Numbers of an update or an epoch by name, such as loss; a list has one entry per look."""
TorchState: TypeAlias = dict[str, Any]
"""What state_dict() of an optimiser, a scaler or a stage returns; torch has no narrower type for it."""


class BadField(ValueError):
    """A field of a checkpoint has a wrong value; the sentence names it."""


@dataclass(frozen=True)
class KnownEvidence:
    """Where the backbone finds its evidence in each training image, see initialise.Places. Several stages use it.

    seen_by  hash of the backbone's weights and of the labels that it was computed for
    centre   (N, 2) float32
    weight   (N,) float32
    """

    seen_by: str
    centre: Tensor
    weight: Tensor

    @classmethod
    def from_plain(cls, plain: Any) -> "KnownEvidence":
        check_names("evidence", plain, ("seen_by", "centre", "weight"))
        check_kind("evidence.seen_by", plain["seen_by"], str, "a text")
        check_kind("evidence.centre", plain["centre"], Tensor, "a tensor")
        count = plain["centre"].shape[0] if plain["centre"].dim() > 0 else 0
        check_tensor("evidence.centre", plain["centre"], (count, 2), torch.float32)
        check_tensor("evidence.weight", plain["weight"], (count,), torch.float32)
        return cls(plain["seen_by"], plain["centre"], plain["weight"])


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run: everything that it needs to continue.

    plan            the names of the stages, in the order in which they run
    stage           index of the stage that is running; len(plan): all are done
    epoch, step     the next ones to run
    net             the weights
    optimizer       of the stage; None: it has not begun
    stage_state     of the stage, see Stage.state
    scaler          of the fp16 loss scale
    sums            sums of the epoch's numbers over the steps so far
    journal_length  bytes of metrics.jsonl
    """

    plan: list[str]
    stage: int
    epoch: int
    step: int
    net: dict[str, Tensor]
    evidence: KnownEvidence | None
    optimizer: TorchState | None
    stage_state: TorchState
    scaler: TorchState | None
    sums: Numbers
    journal_length: int

    def __post_init__(self) -> None:
        check_kind("plan", self.plan, list, "a list of stages")
        for name in self.plan:
            if not isinstance(name, str) or (name not in STAGES and size_in(name) is None):
                raise BadField(f"plan names {name!r}, which is not a stage")
        for name in ("stage", "epoch", "step", "journal_length"):
            check_count(name, getattr(self, name))
        if self.stage > len(self.plan):
            raise BadField(f"stage is {self.stage}, but there are {len(self.plan)} stages")
        for name in ("net", "stage_state", "sums"):
            check_table(name, getattr(self, name))
        for name in ("optimizer", "scaler"):
            if getattr(self, name) is not None:
                check_table(name, getattr(self, name))
        for name, sums in self.sums.items():
            for number in sums if isinstance(sums, list) else [sums]:
                check_number(f"sums.{name}", number)


def save_checkpoint(file: Path, content: Checkpoint) -> None:
    """Replace the checkpoint by a newer one; if that fails, the old one stays."""
    plain = {"format": FORMAT, **vars(content)}
    plain["evidence"] = None if content.evidence is None else vars(content.evidence)
    write_run_file(file, lambda stream: torch.save(plain, stream))


def load_checkpoint(file: Path) -> Checkpoint | None:
    """The checkpoint; None if there is none yet."""
    if not file.exists():
        return None
    try:
        content = open_safely(file)
    except BadCheckpoint as error:
        raise BadRun(f"{error} Delete it to start this run again.") from None
    if not isinstance(content, dict) or type(content.get("format")) is not int or content["format"] != FORMAT:
        raise BadRun(f"{file} is not a checkpoint of this version. Start in another folder.")
    # Older runs have no evidence and no scaler. Fields that are not used any more are ignored.
    content = {"evidence": None, "scaler": None, **content}
    try:
        for field in fields(Checkpoint):
            if field.name not in content:
                raise BadField(f"{field.name} is missing")
        if content["evidence"] is not None:
            content["evidence"] = KnownEvidence.from_plain(content["evidence"])
        return Checkpoint(**{field.name: content[field.name] for field in fields(Checkpoint)})
    except BadField as error:
        raise damaged(file, error) from None


def damaged(file: Path, error: BadField) -> BadRun:
    """The error for a checkpoint with a wrong field."""
    return BadRun(f"{file} is damaged: {error}. Delete it to start this run again.")


def write_run_file(file: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Write a file of a run atomically; a failure raises BadRun with the reason."""
    try:
        write_file(file, write)
    except (OSError, RuntimeError) as error:  # torch raises RuntimeError for a full disk
        remedy = "Remove the folder" if isinstance(error, IsADirectoryError) else "Make room on the disk"
        raise BadRun(
            f"{file} could not be written ({getattr(error, 'strerror', None) or error}). The previous file is unchanged. "
            f"{remedy} and run the same command again."
        ) from error


def save_weights(file: Path, module: torch.nn.Module) -> None:
    """The weights of a module as a safetensors file."""
    state = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in module.state_dict().items()}
    content = safetensors.torch.save(state)
    write_run_file(file, lambda stream: stream.write(content))


def check_kind(name: str, value: Any, kind: type, words: str) -> None:
    """Refuse a value of another kind; True and False do not count as numbers."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise BadField(f"{name} must be {words}, but is {_shown(value)}")


def check_table(name: str, value: Any) -> None:
    check_kind(name, value, dict, "a table")
    for key in value:
        if not isinstance(key, (str, int)):
            raise BadField(f"{name} has the key {_shown(key)}, which is not a name")


def check_names(name: str, found: Any, wanted: Iterable[str]) -> None:
    """Refuse a table with other keys than the wanted ones."""
    check_table(name, found)
    for key in wanted:
        if key not in found:
            raise BadField(f"{name}.{key} is missing")
    for key in found:
        if key not in wanted:
            raise BadField(f"{name}.{key} is unknown")


def check_count(name: str, value: Any) -> None:
    check_kind(name, value, int, "a whole number")
    if value < 0:
        raise BadField(f"{name} must not be negative, but is {value}")


def check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise BadField(f"{name} must be a finite number, but is {_shown(value)}")


def check_tensor(name: str, value: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Refuse anything but a dense tensor of this shape and type with finite numbers."""
    check_kind(name, value, Tensor, "a tensor")
    if value.layout != torch.strided or value.is_quantized or value.is_meta or value.is_nested:
        raise BadField(f"{name} must be a dense tensor: sparse, quantised and meta tensors are not read")
    if tuple(value.shape) != shape or value.dtype != dtype:
        raise BadField(
            f"{name} must be of shape {list(shape)} and type {dtype}, but is {list(value.shape)} and {value.dtype}"
        )
    if value.untyped_storage().nbytes() < value.numel() * value.element_size():
        raise BadField(f"{name} holds fewer numbers than its shape requires")
    if not bool(torch.isfinite(value).all()):
        raise BadField(f"{name} holds numbers that are not finite")


def check_tensors(name: str, found: Any, wanted: Mapping[str, Tensor]) -> None:
    """Refuse a table of tensors with other names, shapes or types than the wanted ones."""
    check_names(name, found, wanted)
    for key, tensor in found.items():
        check_tensor(f"{name}.{key}", tensor, tuple(wanted[key].shape), wanted[key].dtype)


def check_optimizer(name: str, found: Any, optimizer: Any) -> None:
    """Refuse the state of another optimiser, or of an optimiser of other weights."""
    check_table(name, found)
    wanted = optimizer.state_dict()
    for key in ("state", "param_groups"):
        if key not in found:
            raise BadField(f"{name}.{key} is missing")
    groups = found["param_groups"]
    check_kind(f"{name}.param_groups", groups, list, "a list")
    if len(groups) != len(wanted["param_groups"]):
        raise BadField(f"{name}.param_groups has {len(groups)} groups, but {len(wanted['param_groups'])} are needed")
    for number, (group, own) in enumerate(zip(groups, wanted["param_groups"], strict=True)):
        where = f"{name}.param_groups[{number}]"
        check_table(where, group)
        if group.keys() != own.keys() or group["params"] != own["params"]:
            raise BadField(f"{where} is not that of this stage")
        for key, value in group.items():
            _check_setting(f"{where}.{key}", value)
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    check_table(f"{name}.state", found["state"])
    for index, state in found["state"].items():
        check_table(f"{name}.state.{index}", state)
        if not isinstance(index, int) or not 0 <= index < len(weights):
            raise BadField(f"{name}.state.{index} is of an unknown weight")
        for key, value in state.items():
            if isinstance(value, Tensor):
                shape = () if value.dim() == 0 else tuple(weights[index].shape)
                check_tensor(f"{name}.state.{index}.{key}", value, shape, torch.float32)
            elif value is not None:
                check_number(f"{name}.state.{index}.{key}", value)


def _check_setting(name: str, value: Any) -> None:
    """A setting of an optimiser: a number, true or false, or a list of these."""
    if isinstance(value, (list, tuple)):
        for part in value:
            _check_setting(name, part)
    elif value is not None and not isinstance(value, bool):
        check_number(name, value)


def _shown(value: Any) -> str:
    """A value for a sentence, shortened if it is long."""
    if isinstance(value, (int, float, str, bool, type(None))):
        text = repr(value)
        return text if len(text) <= 40 else f"{text[:37]}..."
    return f"of type {type(value).__name__}"


_NAMES_SHOWN = 3


def keep_data(folder: Path, record: SplitRecord | None, *, begun: bool) -> None:
    """Write the record of the data into the run's folder; refuse with the difference if the run was trained on other data.

    record  None: a built-in world, which is described by the settings
    begun   whether the run has a checkpoint; until then the data may still change
    """
    if record is None:
        return
    found = _found(folder)
    if found is not None and found == record:
        return
    if found is not None and begun:
        different = list(data_differences(found, record))
        if different:
            raise BadRun(
                f"the data of the run in {folder} has changed: {'; '.join(different)}. "
                "Restore the data to continue this run, or train in another folder (--output)."
            )
    write_file(folder / FILE, lambda stream: stream.write(record.packed))


def classes_of_run(folder: Path) -> tuple[str, ...]:
    """The classes of the data that the run in a folder was started with; empty if they are unknown."""
    found = _found(folder)
    return () if found is None else found.classes


def data_differences(found: SplitRecord, now: SplitRecord) -> Iterator[str]:
    """The differences between the data of a run and the data now, in words: classes, then files by name."""
    yield from class_differences(found.classes, now.classes)
    before, after = ({file.name: file for file in record.files()} for record in (found, now))
    both = [name for name in after if name in before]
    labels_move = found.classes != now.classes

    def label(record: SplitRecord, file: RecordedFile) -> str:
        return record.classes[file.label]

    yield from _listed("changed", [name for name in both if before[name].content != after[name].content])
    if not labels_move:
        moved = [name for name in both if label(found, before[name]) != label(now, after[name])]
        yield from _listed("got another label", moved)
    new, gone = [name for name in after if name not in before], [name for name in before if name not in after]
    contents_gone = {before[name].content for name in gone}
    renamed = [name for name in new if after[name].content in contents_gone]
    contents_renamed = {after[name].content for name in renamed}
    yield from _listed("have another name", renamed)
    yield from _listed("are new", [name for name in new if after[name].content not in contents_gone])
    yield from _listed("are gone", [name for name in gone if before[name].content not in contents_renamed])
    if before.keys() == after.keys():
        moved = [name for name in both if before[name].split != after[name].split]
        yield from _listed("went to another split", moved)


def class_differences(found: tuple[str, ...], now: tuple[str, ...]) -> Iterator[str]:
    """Which classes were added, removed or moved to another place; nothing if the previous ones are unknown."""
    if not found:
        return
    gone, new = [n for n in found if n not in now], [n for n in now if n not in found]
    if gone and len(gone) == len(new) and len(found) == len(now):
        pairs = [f"{one!r} is now {two!r}" for one, two in zip(gone, new, strict=True)]
        yield f"the class {', '.join(pairs[:_NAMES_SHOWN])}{', ...' if len(pairs) > _NAMES_SHOWN else ''}"
        return
    if new:
        yield f"the class {_some([repr(name) for name in new])} is new"
    if gone:
        yield f"the class {_some([repr(name) for name in gone])} is gone"
    if not gone and not new and found != now:
        place = next(number for number, (one, two) in enumerate(zip(found, now, strict=True)) if one != two)
        yield f"the classes have another order: class {place} was {found[place]!r} and is {now[place]!r}"


def _listed(what: str, names: list[str]) -> Iterator[str]:
    if names:
        yield f"{len(names)} {'file' if len(names) == 1 else 'files'} {_verb(what, len(names))} ({_some(names)})"


def _verb(what: str, count: int) -> str:
    return what.replace("are ", "is ").replace("have ", "has ") if count == 1 else what


def _some(names: list[str]) -> str:
    return ", ".join(names[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")


def _found(folder: Path) -> SplitRecord | None:
    """The record of the data in the folder; None if there is none that can be read."""
    file = folder / FILE
    if not file.is_file() or file.stat().st_size > MAX_PACKED_BYTES:
        return None
    record = SplitRecord(file.read_bytes(), str(file))
    try:
        for _ in record.files():
            pass
    except BadData as error:
        raise BadRun(f"{error} Or remove the file; the data of this run is then no longer compared.") from None
    return record
