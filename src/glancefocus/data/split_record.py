"""How the data of a run were split: every file with its split, label, size and content hash, so that it is known again.

Stored as compressed lines of JSON: a table about the data, then one list for each file. It may come from anywhere with a bundle, so
reading it checks every value and is bounded in memory.
"""

import functools
import gzip
import io
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from glancefocus.data.checking import DIGEST_DIGITS, Content
from glancefocus.data.splits import Row
from glancefocus.errors import BadData

FILE = "split.jsonl.gz"
FORMAT = 1
CHOOSING = "choosing"
"""The split of files that are in no split of the training data, but chose the thresholds afterwards (`gf budget`)."""
SPLITS = ("train", "val", "test", CHOOSING)
MAX_PACKED_BYTES = 256 * 2**20  # about seven million files
_MAX_ABOUT_BYTES, _MAX_LINE_BYTES = 16 * 2**20, 2**16
_LEAST_BYTES_A_FILE, _FEW_FILES = 12, 100_000


class RecordedFile(NamedTuple):
    """One file: its split, its name relative to the data's folder (or that of the CSV), its label, what it holds."""

    split: str
    name: str
    label: int
    content: Content


class _Known(NamedTuple):
    """What an image is compared with."""

    sizes: frozenset[int]
    split_of: dict[str, str]


@dataclass(frozen=True)
class SplitRecord:
    """The split of a run's data, packed; what is in it is unpacked and checked when it is asked for.

    packed  the content of its file
    where   that file, for sentences
    """

    packed: bytes = field(repr=False)
    where: str = field(default=FILE, compare=False)

    @staticmethod
    def of(
        source: str,
        classes: Sequence[str],
        files: Iterable[RecordedFile],
        *,
        val_share: float | None,
        seed: int,
        chosen_by: Sequence[str] = ("val",),
    ) -> "SplitRecord":
        """The record of these files.

        val_share  that was asked for; None: by the number of images
        chosen_by  the splits whose images chose the bundle's thresholds
        """
        files = list(files)
        about = {
            "format": FORMAT,
            "source": source,
            "resolved": os.path.realpath(source),
            "val_share": val_share,
            "seed": seed,
            "classes": list(classes),
            "chosen_by": list(chosen_by),
            "files": len(files),
        }
        content = io.BytesIO()
        with gzip.GzipFile(fileobj=content, mode="wb", mtime=0) as stream:
            # Names that are not UTF-8 survive as escapes of single bytes.
            stream.write(json.dumps(about).encode() + b"\n")
            for file in files:
                line = [file.split, file.name, file.label, file.content.size, file.content.digest]
                stream.write(json.dumps(line).encode() + b"\n")
        return SplitRecord(content.getvalue())

    @functools.cached_property
    def about(self) -> dict[str, Any]:
        """Everything but the files: source, resolved, val_share, seed, classes, chosen_by, files (their number)."""
        with self._refusing(), self._opened() as stream:
            return _checked_about(_json_line(stream, _MAX_ABOUT_BYTES), len(self.packed))

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.about["classes"])

    @property
    def chosen_by(self) -> tuple[str, ...]:
        return tuple(self.about["chosen_by"])

    def files(self) -> Iterator[RecordedFile]:
        """Every file, one after the other."""
        with self._refusing(), self._opened() as stream:
            about = _checked_about(_json_line(stream, _MAX_ABOUT_BYTES), len(self.packed))
            for _ in range(about["files"]):
                yield _checked_file(_json_line(stream, _MAX_LINE_BYTES), len(about["classes"]))

    @functools.cached_property
    def _known(self) -> _Known:
        # Where the same content is in several splits, the last of these counts: an image that trained is a training image.
        order = {name: number for number, name in enumerate(("test", CHOOSING, "val", "train"))}
        sizes: set[int] = set()
        split_of: dict[str, str] = {}
        for file in self.files():
            sizes.add(file.content.size)
            before = split_of.get(file.content.digest)
            if before is None or order[file.split] > order[before]:
                split_of[file.content.digest] = file.split
        return _Known(frozenset(sizes), split_of)

    def may_know(self, size: int) -> bool:
        """Whether there is a file of this size, so that hashing another one is worth while."""
        return size in self._known.sizes

    def split_of(self, content: Content | None) -> str | None:
        """The split of the file with this content, under whatever name; None: it was not there."""
        return None if content is None else self._known.split_of.get(content.digest)

    @property
    def knows_training(self) -> bool:
        """Whether it says which files trained the network, and not only which ones chose its thresholds."""
        return "train" in self._known.split_of.values()

    def with_choosing(self, chosen_by: Sequence[str], others: Iterable[RecordedFile] = ()) -> "SplitRecord":
        """The same with other images that chose the thresholds: those of a split, or `others`, which are of none."""
        kept = [file for file in self.files() if file.split != CHOOSING]
        added = [file._replace(split=CHOOSING) for file in others]
        about = self.about
        new = SplitRecord.of(
            about["source"],
            about["classes"],
            [*kept, *added],
            val_share=about["val_share"],
            seed=about["seed"],
            chosen_by=chosen_by,
        )
        return replace(new, where=self.where)

    def _opened(self) -> gzip.GzipFile:
        if len(self.packed) > MAX_PACKED_BYTES:
            raise BadData(f"{self.where} is larger than {MAX_PACKED_BYTES // 2**20} MiB; no record of files is.")
        return gzip.GzipFile(fileobj=io.BytesIO(self.packed))

    def _refusing(self) -> "_Refusing":
        return _Refusing(self.where)


class _Refusing:
    """Says which file is damaged, and how."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, (OSError, EOFError, ValueError, zlib.error, RecursionError)):
            raise BadData(
                f"{self.where}, which says what a network was trained on, is damaged: {error}. Copy its bundle again."
            ) from None


def recorded_files(rows: Sequence[Row], contents: Sequence[Content], source: Path) -> list[RecordedFile]:
    """What a record says of the rows of a data set; names are relative to the folder, or to that of the CSV."""
    folder = source if source.is_dir() else source.parent
    return [
        RecordedFile(split, _relative(file, folder), label, content)
        for (split, file, label), content in zip(rows, contents, strict=True)
    ]


def _relative(file: Path, folder: Path) -> str:
    """As it is where it lies elsewhere."""
    try:
        return file.relative_to(folder).as_posix()
    except ValueError:
        return file.as_posix()


def _json_line(stream: gzip.GzipFile, most: int) -> Any:
    line = stream.readline(most)
    if not line.endswith(b"\n"):
        raise ValueError("it ends too early" if len(line) < most else f"a line has more than {most} bytes")
    return json.loads(line)


def _checked_about(about: Any, packed_bytes: int) -> dict[str, Any]:
    kinds: dict[str, Any] = {
        "format": int,
        "source": str,
        "resolved": str,
        "val_share": (int, float, type(None)),
        "seed": int,
        "classes": list,
        "chosen_by": list,
        "files": int,
    }
    if not isinstance(about, dict):
        raise ValueError("it does not begin with a table")
    for name, kind in kinds.items():
        if not isinstance(about.get(name), kind) or isinstance(about.get(name), bool):
            raise ValueError(f"`{name}` is missing or of the wrong kind")
    if about["format"] != FORMAT:
        raise ValueError(f"it has the format {about['format']}, and this version reads {FORMAT}")
    if not all(isinstance(name, str) for name in about["classes"]):
        raise ValueError("`classes` must be a list of names")
    if not all(name in SPLITS for name in about["chosen_by"]):
        raise ValueError(f"`chosen_by` must be a list of splits ({', '.join(SPLITS)})")
    # Hashes cannot be compressed, so a small file that claims to hold many files is made to fill the memory.
    if not 0 <= about["files"] <= max(_FEW_FILES, packed_bytes // _LEAST_BYTES_A_FILE):
        raise ValueError(f"`files` cannot be {about['files']} in {packed_bytes} bytes")
    return about


def _checked_file(line: Any, classes: int) -> RecordedFile:
    if not isinstance(line, list) or len(line) != 5:
        raise ValueError("a file must be a list of split, name, label, size and hash")
    split, name, label, size, digest = line
    if split not in SPLITS:
        raise ValueError(f"a split must be one of {', '.join(SPLITS)}, but there is {split!r}")
    if not isinstance(name, str):
        raise ValueError("the name of a file must be text")
    if type(label) is not int or not 0 <= label < classes:
        raise ValueError(f"the label of {name!r} must be a whole number from 0 to {classes - 1}")
    if type(size) is not int or not 0 <= size < 2**63:
        raise ValueError(f"the size of {name!r} must be a whole number of bytes")
    if not isinstance(digest, str) or len(digest) != DIGEST_DIGITS or set(digest) - set("0123456789abcdef"):
        raise ValueError(f"the hash of {name!r} must be {DIGEST_DIGITS} hexadecimal digits")
    return RecordedFile(split, name, label, Content(size, digest))
