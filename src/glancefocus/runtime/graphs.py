"""Finds the ONNX graphs of a network: in a folder that was exported, or in the cache, where they are written when first needed.

Beside each graph of the cache lies its SHA-256. A graph that does not have it, or another one, is written again and never run.
"""

import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import glancefocus
from glancefocus.errors import BadSetting, MissingExtra
from glancefocus.files import Cache, cache_folder, fingerprint, lock, read_file, replace_files, write_text
from glancefocus.network.parts import Part
from glancefocus.runtime.int8 import REWRITING_VERSION, write_light

_TRACED_BATCH = 2  # a batch of one would be taken for a constant


def write_onnx(part: Part, file: Path, *, px: int | None = None, batch: int | None = None) -> None:
    """Write one part with its weights. Weights above 1.5 GB, which no ONNX file holds, are written beside it as `<file>.data`.

    px     the only size of images that the graph takes; None: every size that the part knows
    batch  the only batch size that it takes; None: any
    """
    if px is not None and px not in part.px:
        raise BadSetting(f"the part {part.name!r} takes images of {list(part.px)} px, but px is {px}.")
    if batch is not None and batch < 1:
        raise BadSetting(f"a graph is for a batch of at least 1, but got {batch}.")
    example = part.example(_TRACED_BATCH if batch is None else batch, px)
    program = _traced(part, example, _free_axes(part, example, px, batch))
    _check_free(part, program, batch)
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()  # source locations, which take more space than the graph itself
    _save(program, file)


def _free_axes(
    part: Part, example: tuple[Tensor, ...], px: int | None, batch: int | None
) -> tuple[dict[int, Any], ...]:
    axes: list[dict[int, Any]] = [{} if batch is not None else {0: "batch"} for _ in example]
    if px is None and len(part.px) > 1:
        rank = example[0].dim()
        axes[0] |= {rank - 2: "height", rank - 1: "width"}
    return tuple(axes)


def _traced(part: Part, example: tuple[Tensor, ...], free: tuple[dict[int, Any], ...]) -> Any:
    """torch's ONNX program of a part."""
    _need("onnx")
    _need("onnxscript")
    part.module.eval()
    device = next((p.device for p in part.module.parameters()), torch.device("cpu"))
    with _quietly(), torch.no_grad():
        try:
            return torch.onnx.export(
                part.module,
                tuple(tensor.to(device) for tensor in example),
                input_names=part.inputs,
                output_names=part.outputs,
                dynamic_shapes=free,
                dynamo=True,
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            raise BadSetting(
                f"the part {part.name!r} of this network cannot be written as a graph: {_cause(error)} "
                "Use the runtime 'eager', or another backbone."
            ) from error


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the exporter's internal messages, and its warning that inputs share the axis "batch", as they must."""
    log = logging.getLogger("onnxscript")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _cause(error: BaseException) -> str:
    """The first line of what went wrong inside."""
    inner: BaseException = error
    while inner.__cause__ is not None:
        inner = inner.__cause__
    return str(inner).strip().partition("\n")[0]


def _check_free(part: Part, program: Any, batch: int | None) -> None:
    """Refuse an axis that the code fixes: the exporter silently makes it a constant."""
    for value in [*program.model.graph.inputs, *program.model.graph.outputs]:
        if batch is None and isinstance(value.shape[0], int):
            raise BadSetting(
                f"the part {part.name!r} works only with a batch of {value.shape[0]} as a graph ({value.name} is fixed). "
                "Export it for one batch size."
            )


def _save(program: Any, file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replace_files(file) as aside:
            program.save(aside / file.name)
    except OSError as error:
        raise BadSetting(f"the graph {file} cannot be written: {error.strerror or error}.") from error


def _need(package: str) -> None:
    try:
        __import__(package)
    except ModuleNotFoundError:
        raise MissingExtra(package, "export") from None


MOST_KEPT_BYTES = 4 << 30


def graphs_in(folder: Path, parts: Sequence[Part]) -> dict[str, Path]:
    """{part: file} of a folder that was exported, float or int8: `glance.onnx`, `aim_96.onnx`, ..."""
    files = {part.name: folder / f"{part.name}.onnx" for part in parts}
    missing = [file.name for file in files.values() if not file.is_file()]
    if missing:
        raise BadSetting(
            f"{folder} has no graph {' and no '.join(missing)}, which this network needs. "
            "Export this bundle to it again, or leave the folder out."
        )
    return files


@contextmanager
def graphs_of(
    parts: Sequence[Part], cache: Cache = "default", *, light_weights: bool = False
) -> Iterator[dict[str, Path]]:
    """{part: file} for these weights, written where they are not in the cache yet; without a cache, until the block ends."""
    if cache is None:
        with tempfile.TemporaryDirectory(prefix="glancefocus-graphs-") as aside:
            yield _written(parts, Path(aside), light_weights)
        return
    try:
        folder = cache_folder(cache) / "graphs"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BadSetting(
            f"graphs cannot be kept in the cache folder: {error.strerror or error} ({error.filename or cache}). "
            "Set GLANCEFOCUS_CACHE to a folder that can be written."
        ) from None
    with _one_writer(folder):
        files = _written(parts, folder, light_weights)
    yield files


@contextmanager
def _one_writer(folder: Path) -> Iterator[None]:
    """One of several processes that want the same graphs writes them; a read-only cache is not written to."""
    with ExitStack() as held:
        with suppress(OSError):
            held.enter_context(lock(folder / ".lock", wait=True))
        yield


def _written(parts: Sequence[Part], folder: Path, light_weights: bool) -> dict[str, Path]:
    files, fresh = {}, False
    for part in parts:
        file = folder / f"{part.name}-{part_fingerprint(part)}.onnx"
        if not _is_whole(file):
            write_onnx(part, file)
            _note_hash(file)
            fresh = True
        if light_weights:
            light = file.with_suffix(f".light{REWRITING_VERSION}.onnx")
            if not _is_whole(light):
                write_light(part, file, light)
                _note_hash(light)
                fresh = True
            file = light
        files[part.name] = file
        with suppress(OSError):  # a cache that can only be read
            for used in (file, _hash_file(file)):
                os.utime(used)  # now
    if fresh:
        _forget_the_oldest(folder, keep=set(files.values()))
    return files


def _is_whole(file: Path) -> bool:
    """Whether a graph is there, and is byte for byte what was written."""
    try:
        return read_file(_hash_file(file), 1024) == _hash_of(file).encode()
    except OSError:
        return False


def _note_hash(file: Path) -> None:
    with suppress(OSError):  # a full disk: the graph is written again next time
        write_text(_hash_file(file), _hash_of(file))


def _hash_file(file: Path) -> Path:
    return file.with_name(f"{file.name}.sha256")


def _hash_of(file: Path) -> str:
    """Hash of a graph, and of the weights beside it where the graph is large."""
    weights = file.with_name(f"{file.name}.data")
    return " ".join(fingerprint(each) for each in ([file, weights] if weights.exists() else [file]))


def _forget_the_oldest(folder: Path, keep: set[Path]) -> None:
    """Remove the graphs that were not used for the longest time, until the others take no more than MOST_KEPT_BYTES."""
    taken, others = 0, []
    names = tuple(file.name for file in keep)
    for file in folder.glob("[!.]*.onnx*"):
        with suppress(FileNotFoundError):  # another process may do the same
            stat = file.stat()
            if file.name.startswith(names):
                taken += stat.st_size
            else:
                others.append((stat.st_mtime, stat.st_size, file))
    for _, size, file in sorted(others, reverse=True):
        taken += size
        if taken > MOST_KEPT_BYTES:
            file.unlink(missing_ok=True)


def part_fingerprint(part: Part) -> str:
    """Hash of a part's weights and modules, and of the versions that write its graph: if one of them differs, the file differs."""
    about = [part.name, part.inputs, part.outputs, part.shapes, part.px, str(part.module)]
    weights = [value for named in part.module.state_dict().items() for value in named]
    return fingerprint([*about, glancefocus.__version__, torch.__version__], *weights)[:20]
