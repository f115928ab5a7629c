"""A look record: the scores and the answer of every image of a data set after every look, on disk, a few bytes each.

It is a folder of plain arrays, one file each, which are memory-mapped: writing and opening it takes the same memory for any number
of images. It is written to another name and then renamed, so that it is complete or absent. It holds fingerprints of its network
and its data.
"""

import errno
import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
from numpy.typing import NDArray

from glancefocus.errors import BadData, BadSetting, UnknownName
from glancefocus.exits.table import LookTable, level_sizes, path_nodes
from glancefocus.files import replace_folder
from glancefocus.loop import SCORES
from glancefocus.machine import open_file, read_json
from glancefocus.values import MOST_CANDIDATES, MOST_LOOKS, Fields, one_line, text_of, whole_of

FORMAT = 2
ABOUT_FILE = "about.json"
MOST_COLUMNS = 100_000
STORED_SCORES = ("confidence", "entropy", "value")
_MOST_ABOUT_BYTES = 1 << 20
_NO_RESERVING = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)  # errors of file systems that cannot reserve room


@dataclass(frozen=True)
class RecordAbout:
    """Which network and which data a record was made from.

    network, data  fingerprints
    source, split  names of the data
    images, looks  numbers of them
    views          names of the candidate views; several make a tree of looks, see LookTable. One name: a column is a look
    """

    network: str
    data: str
    source: str
    split: str
    images: int
    looks: int
    views: tuple[str, ...]

    @property
    def nodes(self) -> int:
        return int(level_sizes(self.looks, len(self.views)).sum())


@dataclass(frozen=True)
class LookRecord:
    """(N, nodes) arrays: confidence, entropy and value as scores in [0, 1], answer as a class; label (N,)."""

    about: RecordAbout
    confidence: NDArray[np.float32]
    entropy: NDArray[np.float32]
    value: NDArray[np.float32]
    answer: NDArray[np.uint16]
    label: NDArray[np.uint16]

    def table(
        self,
        macs: tuple[int, ...],
        *,
        score: str = "confidence",
        ms: tuple[float, ...] | None = None,
        seed: int = 0,
    ) -> LookTable:
        """The look table for one score.

        macs, ms  cost of stopping at each node
        seed      of the random score
        """
        if score not in SCORES:
            raise UnknownName("exit score", score, SCORES, f"Known are {', '.join(SCORES)}.")
        if score == "random":
            scores = np.random.default_rng(seed).random(self.confidence.shape, dtype=np.float32)
        else:
            scores = np.asarray(getattr(self, score), dtype=np.float32)
            if not np.isfinite(scores).all():
                raise BadData(
                    f"the look record of {self.about.source} is damaged: {score} holds numbers that are not finite."
                )
        return LookTable(
            np.asfortranarray(scores),
            np.asfortranarray(self.answer == self.label[:, None]),
            np.asarray(macs, dtype=np.float64),
            sizes=len(self.about.views),
            ms=None if ms is None else np.asarray(ms, dtype=np.float64),
        )

    def along(self, path: Sequence[int], name: str) -> "LookRecord":
        """The record of one sequence of candidate views (their numbers), which gets this name."""
        nodes = path_nodes(path, len(self.about.views))
        columns = {each: np.asarray(getattr(self, each))[:, nodes] for each in (*STORED_SCORES, "answer")}
        return replace(self, about=replace(self.about, views=(name,)), **columns)

    def check_made_for(self, network: str, data: str | None = None) -> None:
        """Refuse a record of another network, or of other data."""
        if self.about.network != network:
            raise BadData(
                "this look record was made with another network than the bundle's. Leave it out: it is made again from the data."
            )
        if data is not None and self.about.data != data:
            raise BadData(
                f"this look record is of other data ({self.about.source}, {self.about.split}). "
                "Leave it out: it is made again from the data."
            )

    @staticmethod
    def load(folder: Path) -> "LookRecord":
        """Open a record; arrays are read when they are used."""
        try:
            about = _read_about(folder / ABOUT_FILE)
            arrays = {name: _mapped(folder / f"{name}.npy") for name in _layout(about)}
        except BadSetting as error:
            raise BadData(f"{folder} is not a look record, or it is damaged: {error} Remove it.") from None
        except Exception as error:  # numpy raises many kinds of errors for damaged files
            reason = getattr(error, "strerror", None) or one_line(str(error), 200)
            raise BadData(f"{folder} is not a look record, or it is damaged ({reason}). Remove it.") from None
        for name, (shape, kind) in _layout(about).items():
            if arrays[name].shape != shape or arrays[name].dtype != kind:
                raise BadData(f"{folder / name}.npy does not fit the record's other files. Remove the folder.")
        return LookRecord(about, **arrays)


def _read_about(file: Path) -> RecordAbout:
    """The description of a record; impossible fields are refused by name."""
    fields = Fields(read_json(file, _MOST_ABOUT_BYTES), "about")
    written_as = fields.whole("format", 0, 10**6)
    if written_as not in (1, FORMAT):
        raise BadSetting("it has another format.")
    # The first format, of 0.1.0, has the sizes of native patches instead of the names of views.
    named = "patch_px" if written_as == 1 else "views"
    fields.refuse_others({"format", named, *RecordAbout.__dataclass_fields__} - ({"views"} - {named}))
    about = RecordAbout(
        network=fields.text("network", 200),
        data=fields.text("data", 200),
        source=fields.text("source", 10_000),
        split=fields.text("split", 200),
        images=fields.whole("images", 1, 10**9),
        looks=fields.whole("looks", 1, MOST_LOOKS),
        views=tuple(fields.listed(named, MOST_CANDIDATES, _view_name)),
    )
    sizes = len(about.views)
    if sizes == 0 or (sizes > 1 and (about.looks - 1) * math.log(sizes) > math.log(MOST_COLUMNS)):
        raise BadSetting(f"about.views and about.looks make more than {MOST_COLUMNS:,} sequences of views, or none.")
    return about


def view_label(name: str) -> str:
    """The name of a candidate view for people: 96 px for a native patch, other names as they are."""
    return f"{name} px" if name.isdecimal() else name


def view_words(names: Sequence[str]) -> str:
    """Names of candidate views in a sentence: patches of 32, 48 px; views 32, whole@96 if they are not all native patches."""
    listed = ", ".join(names)
    if all(name.isdecimal() for name in names):
        return f"patches of {listed} px"
    return f"views {listed}" if len(names) > 1 else f"the view {listed}"


def views_noun(names: Sequence[str]) -> str:
    """What these candidate views are called together: patch sizes, or views if they are not all native patches."""
    return "patch sizes" if all(name.isdecimal() for name in names) else "views"


def short_noun(names: Sequence[str]) -> str:
    """The same in one word, for tables and legends."""
    return views_noun(names).removeprefix("patch ")


def _view_name(value: Any, name: str) -> str:
    if isinstance(value, int):
        return str(whole_of(value, name, 1, 10**6))
    return text_of(value, name, 40)


def _mapped(file: Path) -> NDArray[Any]:
    open_file(file).close()  # refuses pipes and devices, for which numpy would wait
    array: NDArray[Any] = np.load(file, mmap_mode="r", allow_pickle=False)
    return array


def _layout(about: RecordAbout) -> dict[str, tuple[tuple[int, ...], Any]]:
    whole = (about.images, about.nodes)
    return {
        **{name: (whole, np.dtype("<f4")) for name in STORED_SCORES},
        "answer": (whole, np.dtype("<u2")),
        "label": ((about.images,), np.dtype("<u2")),
    }


class RecordWriter:
    """Writes the looks of one batch after another.

    Room for all of them is reserved first, so that a full disk is noticed before the first look. Files are not memory-mapped for
    writing, because a full disk would then kill the process.
    """

    def __init__(self, folder: Path, about: RecordAbout) -> None:
        self.about = about
        self.folder = folder
        self.done = 0
        self.kinds = {name: kind for name, (_, kind) in _layout(about).items()}
        self.streams: dict[str, BinaryIO] = {}
        try:
            for name, (shape, kind) in _layout(about).items():
                self.streams[name] = stream = (folder / f"{name}.npy").open("xb")
                header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(stream, header)
                _reserve(stream, stream.tell() + int(np.prod(shape)) * kind.itemsize)
        except OSError as error:
            self.fail(error)

    def add(self, label: NDArray[Any], **columns: NDArray[Any]) -> None:
        """Rows (B, nodes) of every array, in the order of the data."""
        if not all(np.isfinite(columns[name]).all() for name in STORED_SCORES):
            raise BadData("the network's scores are not numbers; its weights are broken.")
        try:
            for name, values in {"label": label, **columns}.items():
                self.streams[name].write(np.ascontiguousarray(values, dtype=self.kinds[name]).tobytes())
        except OSError as error:
            self.fail(error)
        self.done += len(label)

    def finish(self) -> None:
        """Flush everything to the disk, and write the description."""
        try:
            for stream in self.streams.values():
                stream.flush()
                os.fsync(stream.fileno())
            text = json.dumps({"format": FORMAT, **asdict(self.about)})
            (self.folder / ABOUT_FILE).write_text(text, encoding="utf-8")
        except OSError as error:
            self.fail(error)

    def close(self) -> None:
        for stream in self.streams.values():
            with suppress(OSError):  # the error has been reported already
                stream.close()

    def fail(self, error: OSError) -> NoReturn:
        self.close()
        raise BadData(
            f"the look record cannot be written to {self.folder.parent}: {error.strerror or error}. "
            "Make room on the disk and run the same command again."
        ) from None


def _reserve(stream: BinaryIO, size: int) -> None:
    """Reserve room for a whole file, where the system can."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(stream.fileno(), 0, size)
        except OSError as error:
            if error.errno not in _NO_RESERVING:
                raise


@contextmanager
def writing_record(folder: Path, about: RecordAbout) -> Iterator[RecordWriter]:
    """A writer; its record is put in place when the block ends without an error, and removed otherwise."""
    with ExitStack() as stack:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            aside = stack.enter_context(replace_folder(folder))
        except OSError as error:
            raise BadData(
                f"the look record cannot be written to {folder.parent}: {error.strerror or error}. "
                "Copy the bundle to a folder that can be written."
            ) from None
        writer = RecordWriter(aside, about)
        stack.callback(writer.close)
        yield writer
        if writer.done != about.images:
            raise BadData(f"{writer.done} of {about.images} images were looked at; the look record was not kept.")
        writer.finish()
