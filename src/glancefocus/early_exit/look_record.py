"""A look record: what every image of a data set scored and answered after every look, on disk, a few bytes each.

A folder of plain arrays, one file each, that are mapped and not read: writing and opening it takes the same memory for any number
of images. It is written aside and renamed, so it is whole or not there. It knows which network and which data it is of.
"""

import json
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glancefocus.costs import MOST_LOOKS, MOST_SIZES
from glancefocus.early_exit.look_table import LookTable, level_sizes
from glancefocus.early_exit.score import SCORES
from glancefocus.errors import BadData, BadSetting, UnknownName
from glancefocus.escaping import one_line
from glancefocus.files import open_file
from glancefocus.typed import Fields, read_json, whole_of

FORMAT = 1
ABOUT_FILE = "about.json"
MOST_COLUMNS = 100_000
_MOST_ABOUT_BYTES = 1 << 20
STORED_SCORES = ("confidence", "entropy", "value")


@dataclass(frozen=True)
class RecordAbout:
    """What a record is of.

    network, data  fingerprints: what was looked with, and at
    source, split  in words
    images, looks  how many
    patch_px       sizes of patches; several make a tree of looks, see LookTable
    """

    network: str
    data: str
    source: str
    split: str
    images: int
    looks: int
    patch_px: tuple[int, ...]

    @property
    def nodes(self) -> int:
        return int(level_sizes(self.looks, len(self.patch_px)).sum())


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

        macs, ms  of leaving at each node
        seed      of the random score
        """
        if score not in SCORES:
            raise UnknownName("exit score", score, SCORES, f"Known are {', '.join(SCORES)}.")
        if score == "random":
            scores = np.random.default_rng(seed).random(self.confidence.shape, dtype=np.float32)
        else:
            scores = np.asarray(getattr(self, score), dtype=np.float32)
            if not bool(np.isfinite(scores).all()):
                raise BadData(f"the look record's {score} has values that are not numbers. Remove the record.")
        return LookTable(
            np.asfortranarray(scores),
            np.asfortranarray(self.answer == self.label[:, None]),
            np.asarray(macs, dtype=np.float64),
            sizes=len(self.about.patch_px),
            ms=None if ms is None else np.asarray(ms, dtype=np.float64),
        )

    def check_made_for(self, network: str, data: str | None = None) -> None:
        """Refuse a record of another network, or of other data."""
        if self.about.network != network:
            raise BadData(
                "this look record was made with another network than the bundle's. Leave it out: it is made anew from the data."
            )
        if data is not None and self.about.data != data:
            raise BadData(
                f"this look record is of other data ({self.about.source}, {self.about.split}). "
                "Leave it out: it is made anew from the data."
            )

    @staticmethod
    def load(folder: Path) -> "LookRecord":
        """Open a record; nothing is read before it is needed."""
        try:
            about = _read_about(folder / ABOUT_FILE)
            arrays = {name: _mapped(folder / f"{name}.npy") for name in _layout(about)}
        except BadSetting as error:
            raise BadData(f"{folder} is not a look record, or it is damaged: {error} Remove it.") from None
        except Exception as error:  # damaged bytes make numpy fail in many ways
            reason = getattr(error, "strerror", None) or one_line(str(error), 200)
            raise BadData(f"{folder} is not a look record, or it is damaged ({reason}). Remove it.") from None
        for name, (shape, kind) in _layout(about).items():
            if arrays[name].shape != shape or arrays[name].dtype != kind:
                raise BadData(f"{folder / name}.npy does not fit the record's other files. Remove the folder.")
        return LookRecord(about, **arrays)


def _read_about(file: Path) -> RecordAbout:
    """What the record is of; a field that cannot be meant is refused by its name."""
    fields = Fields(read_json(file, _MOST_ABOUT_BYTES), "about")
    if fields.whole("format", 0, 10**6) != FORMAT:
        raise BadSetting("it has another format.")
    fields.refuse_others({"format", *RecordAbout.__dataclass_fields__})
    about = RecordAbout(
        network=fields.text("network", 200),
        data=fields.text("data", 200),
        source=fields.text("source", 10_000),
        split=fields.text("split", 200),
        images=fields.whole("images", 1, 10**9),
        looks=fields.whole("looks", 1, MOST_LOOKS),
        patch_px=tuple(fields.listed("patch_px", MOST_SIZES, lambda value, name: whole_of(value, name, 1, 10**6))),
    )
    sizes = len(about.patch_px)
    if sizes == 0 or (sizes > 1 and (about.looks - 1) * math.log(sizes) > math.log(MOST_COLUMNS)):
        raise BadSetting(
            f"about.patch_px and about.looks make more than {MOST_COLUMNS:,} sequences of patches, or none."
        )
    return about


def _mapped(file: Path) -> NDArray[Any]:
    open_file(file).close()  # refuses pipes and devices, which numpy would wait for
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
    """Takes the looks of one batch after another."""

    def __init__(self, folder: Path, about: RecordAbout) -> None:
        self.about = about
        self.done = 0
        self.arrays = {
            name: np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=kind, shape=shape)
            for name, (shape, kind) in _layout(about).items()
        }

    def add(self, label: NDArray[Any], **columns: NDArray[Any]) -> None:
        """Rows (B, nodes) of every array, in the order of the data."""
        if not all(np.isfinite(columns[name]).all() for name in STORED_SCORES):
            raise BadData("the network's scores are not numbers; its weights are broken.")
        end = self.done + len(label)
        for name, values in {"label": label, **columns}.items():
            self.arrays[name][self.done : end] = values
        self.done = end


@contextmanager
def writing_record(folder: Path, about: RecordAbout) -> Iterator[RecordWriter]:
    """A writer whose record is put in place, whole, when the block ends well; otherwise nothing is left of it."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise BadData(f"the look record cannot be written to {folder.parent}: {error.strerror or error}.") from None
    try:
        writer = RecordWriter(aside, about)
        yield writer
        if writer.done != about.images:
            raise BadData(f"{writer.done} of {about.images} images were looked at; the look record was not kept.")
        for array in writer.arrays.values():
            array.flush()
        (aside / ABOUT_FILE).write_text(json.dumps({"format": FORMAT, **asdict(about)}), encoding="utf-8")
        aside.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
