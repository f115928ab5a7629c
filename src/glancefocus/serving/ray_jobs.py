"""Answers for many files on many machines, with Ray Data: streaming, restartable, written as Parquet."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import ray
import ray.data

from glancefocus.bundle.bundle import load
from glancefocus.data.folders import find_pictures
from glancefocus.errors import BadImage, BadSetting
from glancefocus.values import Answer

if TYPE_CHECKING:
    from ray.data import Dataset

NAMES = ("file", "path", "name", "id", "__key__")
"""Columns of a Parquet file that may name a picture, the first that there is."""
CONTENTS = ("bytes", "image", "jpg", "jpeg", "png", "webp")
"""Columns of a Parquet file, or endings in a WebDataset, that may hold a picture."""
FILES_IN_BLOCK = 100
"""Pictures of a folder that are written as one file; what a block has answered is lost if its machine fails."""
_numbers = pa.list_(pa.float64())
SCHEMA = pa.schema(
    [
        ("file", pa.string()),
        ("label", pa.string()),
        ("confidence", pa.float64()),
        ("looks", pa.int32()),
        ("sure", pa.bool_()),
        ("threshold", pa.float64()),
        ("where", pa.list_(_numbers)),
        ("boxes", pa.list_(_numbers)),
        ("patch_px", pa.list_(pa.int32())),
        ("views", pa.list_(pa.string())),
        ("cost_macs", pa.int64()),
        ("top", pa.list_(pa.struct([("label", pa.string()), ("confidence", pa.float64())]))),
        ("notes", pa.list_(pa.string())),
        ("error", pa.string()),
    ]
)
"""Columns of the answers: the fields of `gf predict --json`, and `error`, which is null for pictures that were answered."""


@dataclass(frozen=True)
class Job:
    """What every worker needs.

    bundle    a folder or hub name that every machine can read
    stopping  when to stop, as Bundle.predict takes it
    options   of glancefocus.load, such as runtime
    """

    bundle: str
    stopping: dict[str, Any]
    topk: int
    options: dict[str, Any]


class Worker:
    """An actor that has loaded the bundle, and answers batches of rows."""

    def __init__(self, job: Job, done: frozenset[str]) -> None:
        self.job = job
        self.done = done
        self.bundle = load(job.bundle, **{"threads": 1, **job.options})

    def __call__(self, batch: pa.Table) -> pa.Table:
        rows = [row for row in map(_named, batch.to_pylist()) if row[0] not in self.done]
        return pa.Table.from_pylist(list(self._answers(rows)), schema=SCHEMA)

    def _answers(self, rows: Sequence[tuple[str, bytes | str]]) -> Iterator[Answer]:
        viewed, errors = [], {}
        for number, (name, source) in enumerate(rows):
            try:
                viewed.append(self.bundle.view(source))
            except BadImage as error:
                errors[number] = str(error) if name in str(error) else f"{name}: {error}"
        found: Iterator[tuple[Answer, str]] = iter(())
        if viewed:
            (outcome,) = self.bundle.predict_stream(viewed, batch_size=len(viewed), merge=False, **self.job.stopping)
            problems = outcome.problems or [""] * len(viewed)
            found = zip(outcome.answers(self.job.topk), problems, strict=True)
        for number, (name, _) in enumerate(rows):
            if number in errors:
                yield {"file": name, "error": errors[number]}
                continue
            answer, problem = next(found)
            yield {"file": name, "error": problem} if problem else {**answer, "file": name, "error": None}


def _named(row: dict[str, Any]) -> tuple[str, bytes | str]:
    """(name, content or path) of a row."""
    name = next((str(row[each]) for each in NAMES if row.get(each) is not None), None)
    content = next((row[each] for each in CONTENTS if row.get(each) is not None), None)
    if isinstance(content, dict):  # as Hugging Face stores images
        content = content.get("bytes")
    if name is None:
        raise BadSetting(f"every row needs a name, but there is none of the columns {', '.join(NAMES)}. Add one.")
    return name, content if isinstance(content, bytes) else str(row.get("path") or name)


def predict_files(
    bundle: str | Path,
    source: str | Path,
    output: str | Path,
    *,
    topk: int = 1,
    batch_size: int = 32,
    workers: int | None = None,
    options: dict[str, Any] | None = None,
    **stopping: Any,
) -> dict[str, int]:
    """Answer every picture of a source, and write the answers as Parquet files into the folder `output`.

    bundle   a folder or hub name that every machine can read
    source   a folder of pictures; a Parquet file or a folder of these; a .tar of a WebDataset or a folder of these
    output   answers that it holds already are kept, and their pictures are skipped: start again what was interrupted
    workers  processes, each with one CPU core; None: as many as the cluster has cores
    options  of glancefocus.load, such as runtime
    returns  {"answered": ..., "failed": ..., "skipped": ...}: how many pictures were answered, could not be read, and had an
             answer before
    """
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    name = str(Path(bundle).resolve()) if Path(bundle).is_dir() else str(bundle)
    job = Job(name, stopping, topk, options or {})
    load(name, **job.options).exit_rule(**stopping)  # a mistake is refused here, once, and not by every worker
    before = finished(output)
    if not ray.is_initialized():
        ray.init(log_to_driver=False)  # the cluster that RAY_ADDRESS names, otherwise this machine
    ray.data.DataContext.get_current().enable_progress_bars = False
    most = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
    rows = _rows(Path(source), before.keys())
    if rows is not None:
        answers = rows.map_batches(
            Worker,
            fn_constructor_args=(job, frozenset(before)),
            batch_size=batch_size,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=most),
            num_cpus=1,
        )
        answers.write_parquet(str(output.resolve()))
    after = finished(output)
    fresh = [failed for file, failed in after.items() if file not in before]
    return {"answered": fresh.count(False), "failed": fresh.count(True), "skipped": len(before)}


def finished(output: Path) -> dict[str, bool]:
    """{file: whether it could not be read} of the answers in a folder. Files that were not written to their end are removed."""
    found: dict[str, bool] = {}
    for part in sorted(output.glob("*.parquet")):
        try:
            columns = pq.read_schema(part).names
        except pa.ArrowInvalid:
            part.unlink()
            continue
        if not {"file", "error"} <= set(columns):
            raise BadSetting(
                f"{part} does not have the columns of answers. Choose a folder without other Parquet files."
            )
        table = pq.read_table(part, columns=["file", "error"])
        errors = table.column("error").is_valid().to_pylist()
        found.update(zip(table.column("file").to_pylist(), errors, strict=True))
    return found


def _rows(source: Path, done: Any) -> "Dataset | None":
    """The pictures of a source; None: none is left to answer."""
    kinds = {".parquet": ray.data.read_parquet, ".tar": partial(ray.data.read_webdataset, decoder=None)}
    if not source.exists():
        raise BadSetting(f"there is no file or folder {source}. Check the path.")
    for ending, read in kinds.items():
        files = [source] if source.is_file() else sorted(source.glob(f"*{ending}"))
        if files and files[0].suffix == ending:
            return read([str(file.resolve()) for file in files])
    if source.is_file():
        raise BadSetting(f"{source} is neither a folder nor a .parquet or .tar file. Name one of these.")
    pictures = [file for file in find_pictures([str(source)]) if str(file) not in done]
    items = [{"file": str(file), "path": str(Path(file).resolve())} for file in pictures]
    return ray.data.from_items(items, override_num_blocks=math.ceil(len(items) / FILES_IN_BLOCK)) if items else None
