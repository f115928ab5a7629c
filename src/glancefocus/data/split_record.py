"""Which files of a data set are in which split: some are held out, and a record of all recognises them later by their content.

The record has split, label, size and content hash of every file, as compressed lines of JSON: a table about the data, then one list
per file. It may come with a bundle from an untrusted source, so reading it checks every value and is bounded in memory.
"""

import functools
import gzip
import io
import json
import os
import random
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from glancefocus.data.clips import frame_names
from glancefocus.data.folders import open_picture, shard_of, size_of
from glancefocus.data.splits import Row
from glancefocus.errors import BadData, BadImage
from glancefocus.files import fingerprint
from glancefocus.machine import open_file

FILE = "split.jsonl.gz"
FORMAT = 1
CHOOSING = "choosing"
"""The split of files that are not in the training data, but were used to choose the thresholds (`gf budget`)."""
SPLITS = ("train", "val", "test", CHOOSING)
MAX_PACKED_BYTES = 256 * 2**20  # about seven million files
_MAX_ABOUT_BYTES, _MAX_LINE_BYTES = 16 * 2**20, 2**16
_LEAST_BYTES_A_FILE, _FEW_FILES = 12, 100_000


_END_BYTES = 8 << 20
DIGEST_DIGITS = 32
"""Of the 64 hexadecimal digits of SHA-256; 128 bits are enough for any number of files."""


class Content(NamedTuple):
    """Size of a file in bytes, and the first digits of the hash of its content."""

    size: int
    digest: str


def content_size(path: Path) -> int:
    """Bytes of a file, or of all frames in a folder of frames, without reading them."""
    try:
        if not path.is_dir():
            return size_of(path)
        return sum((path / name).stat().st_size for name in frame_names(path))
    except OSError as error:
        raise BadImage(f"{path} cannot be read: {error.strerror or error}. Check the path and the disk.") from None


def content_of(path: Path) -> Content:
    """Size and hash of a file; the hash of a folder of frames is made of the sizes and hashes of its frames."""
    size = content_size(path)
    try:
        if path.is_dir():
            frames = [path / name for name in frame_names(path)]
            digest = fingerprint(*(f"{os.path.getsize(frame)} {_file_digest(frame)}\n" for frame in frames))
        else:
            digest = _file_digest(path)
    except OSError as error:
        raise BadImage(f"{path} cannot be read: {error.strerror or error}. Check the path and the disk.") from None
    return Content(size, digest[:DIGEST_DIGITS])


def _file_digest(file: Path) -> str:
    """The fingerprint of a file of up to 16 MiB; of a larger one, that of its size and its first and last 8 MiB.

    So each file takes a bounded time. A change in the middle of a large file is not noticed.
    """
    size = size_of(file)
    if shard_of(file) is not None:
        with open_picture(file) as stream:
            return fingerprint(stream.read())
    if size <= 2 * _END_BYTES:
        return fingerprint(file)
    with open_file(file) as stream:
        first = stream.read(_END_BYTES)
        stream.seek(-_END_BYTES, os.SEEK_END)
        return fingerprint(f"{size}\n", first, stream.read(_END_BYTES))


class RecordedFile(NamedTuple):
    """One file: its split, its path relative to the data folder (or to that of the CSV), its label, its content."""

    split: str
    name: str
    label: int
    content: Content


@dataclass(frozen=True)
class About:
    """The first line of a record.

    source     the data set as it was given; resolved: its absolute path
    val_share  that was requested; None: chosen by the number of images
    chosen_by  the splits whose images were used to choose the bundle's thresholds
    files      number of files
    """

    format: int
    source: str
    resolved: str
    val_share: float | None
    seed: int
    classes: list[str]
    chosen_by: list[str]
    files: int


class _Known(NamedTuple):
    """What a file is compared with."""

    sizes: frozenset[int]
    split_of: dict[str, str]


@dataclass(frozen=True)
class SplitRecord:
    """The split of a run's data; its content is unpacked and checked when it is used.

    packed  the content of the record's file
    where   that file, for error messages
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
        """The record of these files; see About."""
        files = list(files)
        resolved = os.path.realpath(source)
        about = About(FORMAT, source, resolved, val_share, seed, list(classes), list(chosen_by), len(files))
        content = io.BytesIO()
        with gzip.GzipFile(fileobj=content, mode="wb", mtime=0) as stream:
            # JSON's escapes keep names that are not UTF-8.
            stream.write(json.dumps(asdict(about)).encode() + b"\n")
            for file in files:
                line = [file.split, file.name, file.label, file.content.size, file.content.digest]
                stream.write(json.dumps(line).encode() + b"\n")
        return SplitRecord(content.getvalue())

    @functools.cached_property
    def about(self) -> About:
        """Everything but the files."""
        with self._damage_reported(), self._opened() as stream:
            return _checked_about(_json_line(stream, _MAX_ABOUT_BYTES), len(self.packed))

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.about.classes)

    @property
    def chosen_by(self) -> tuple[str, ...]:
        return tuple(self.about.chosen_by)

    def files(self) -> Iterator[RecordedFile]:
        """Every file, one after the other."""
        with self._damage_reported(), self._opened() as stream:
            about = _checked_about(_json_line(stream, _MAX_ABOUT_BYTES), len(self.packed))
            for _ in range(about.files):
                yield _checked_file(_json_line(stream, _MAX_LINE_BYTES), len(about.classes))

    @functools.cached_property
    def _known(self) -> _Known:
        # The same content may be in several splits; the last in this order counts, so that a training image is always recognised.
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
        """Whether the record has a file of this size; only then is hashing another file of this size useful."""
        return size in self._known.sizes

    def split_of(self, content: Content | None) -> str | None:
        """The split of the file with this content, under any name; None: not in the record."""
        return None if content is None else self._known.split_of.get(content.digest)

    @property
    def knows_training(self) -> bool:
        """Whether it lists the training files, and not only those that were used to choose the thresholds."""
        return "train" in self._known.split_of.values()

    def with_choosing(self, chosen_by: Sequence[str], others: Iterable[RecordedFile] = ()) -> "SplitRecord":
        """The same record with other images for choosing the thresholds: those of a split, or `others`, which are in no split."""
        kept = [file for file in self.files() if file.split != CHOOSING]
        added = [file._replace(split=CHOOSING) for file in others]
        about = self.about
        new = SplitRecord.of(
            about.source,
            about.classes,
            [*kept, *added],
            val_share=about.val_share,
            seed=about.seed,
            chosen_by=chosen_by,
        )
        return replace(new, where=self.where)

    def _opened(self) -> gzip.GzipFile:
        if len(self.packed) > MAX_PACKED_BYTES:
            raise BadData(
                f"{self.where} is larger than {MAX_PACKED_BYTES // 2**20} MiB, the limit for a record of files."
            )
        return gzip.GzipFile(fileobj=io.BytesIO(self.packed))

    @contextmanager
    def _damage_reported(self) -> Iterator[None]:
        """Turn the errors of unpacking and checking into a sentence with the name of the file."""
        try:
            yield
        except (OSError, EOFError, ValueError, zlib.error, RecursionError) as error:
            raise BadData(
                f"{self.where}, the record of the training data, is damaged: {error}. Copy its bundle again."
            ) from None


def recorded_files(rows: Sequence[Row], contents: Sequence[Content], source: Path) -> list[RecordedFile]:
    """The rows of a data set as they are recorded; names are relative to the folder, or to that of the CSV."""
    folder = source if source.is_dir() else source.parent
    return [
        RecordedFile(split, _relative(file, folder), label, content)
        for (split, file, label), content in zip(rows, contents, strict=True)
    ]


def _relative(file: Path, folder: Path) -> str:
    """The relative path; the path as it is if the file is outside the folder."""
    try:
        return file.relative_to(folder).as_posix()
    except ValueError:
        return file.as_posix()


def _json_line(stream: gzip.GzipFile, most: int) -> Any:
    line = stream.readline(most)
    if not line.endswith(b"\n"):
        raise ValueError("it ends too early" if len(line) < most else f"a line has more than {most} bytes")
    return json.loads(line)


def _checked_about(about: Any, packed_bytes: int) -> About:
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
    fields: dict[str, Any] = {name: about.get(name) for name in kinds}
    checked = About(**fields)
    if checked.format != FORMAT:
        raise ValueError(f"it has the format {checked.format}, and this version reads {FORMAT}")
    if not all(isinstance(name, str) for name in checked.classes):
        raise ValueError("`classes` must be a list of names")
    if not all(name in SPLITS for name in checked.chosen_by):
        raise ValueError(f"`chosen_by` must be a list of splits ({', '.join(SPLITS)})")
    # Hashes cannot be compressed, so a small record that claims to list many files is made to fill the memory.
    if not 0 <= checked.files <= max(_FEW_FILES, packed_bytes // _LEAST_BYTES_A_FILE):
        raise ValueError(f"`files` cannot be {checked.files} in {packed_bytes} bytes")
    return checked


def _checked_file(line: Any, classes: int) -> RecordedFile:
    if not isinstance(line, list) or len(line) != 5:
        raise ValueError("a file must be a list of split, name, label, size and hash")
    split, name, label, size, digest = line
    if split not in SPLITS:
        raise ValueError(f"a split must be one of {', '.join(SPLITS)}, but got {split!r}")
    if not isinstance(name, str):
        raise ValueError("the name of a file must be text")
    if type(label) is not int or not 0 <= label < classes:
        raise ValueError(f"the label of {name!r} must be a whole number from 0 to {classes - 1}")
    if type(size) is not int or not 0 <= size < 2**63:
        raise ValueError(f"the size of {name!r} must be a whole number of bytes")
    if not isinstance(digest, str) or len(digest) != DIGEST_DIGITS or set(digest) - set("0123456789abcdef"):
        raise ValueError(f"the hash of {name!r} must be {DIGEST_DIGITS} hexadecimal digits")
    return RecordedFile(split, name, label, Content(size, digest))


USUAL_SHARE = Fraction(1, 5)
LEAST_IMAGES = 150
"""Results on fewer images are unreliable, so small sets hold out more than the usual share, up to a third."""


def hold_out(rows: list[Row], val_share: float | None, seed: int) -> list[Row]:
    """The same rows with some of each class moved from train to val, chosen by the seed.

    val_share  of each class; None: a fifth, or more if that is fewer than 150 images, up to a third
    Each class keeps at least one image for training; at least one is held out of a class with two or more.
    """
    if val_share is not None and not 0 < val_share < 1:
        raise BadData(f"val_share must be above 0 and below 1, but got {val_share}.")
    images = Counter(label for split, _, label in rows if split == "train")
    counts = _by_number(images) if val_share is None else {n: round(val_share * c) for n, c in images.items()}
    by_label: dict[int, list[int]] = {label: [] for label in images}
    for place, (split, _, label) in enumerate(rows):
        if split == "train":
            by_label[label].append(place)
    held: set[int] = set()
    for label, own in by_label.items():
        random.Random(seed * 1_000_003 + label).shuffle(own)
        held.update(own[: min(max(1, counts[label]), len(own) - 1)])
    return [("val" if place in held else split, file, label) for place, (split, file, label) in enumerate(rows)]


def without_copies(
    rows: list[Row],
    contents: Mapping[Path, Content | None],
    noun: str,
    trained_before: AbstractSet[str] = frozenset(),
) -> tuple[list[Row], list[str]]:
    """The rows without held-out copies of training images, and sentences about them.

    trained_before  hashes of images that trained the network in an earlier run
    If nothing of a split would be left, the copies stay, and a sentence reports it.
    """
    trained = trained_before | {_digest(contents.get(file)) for split, file, _ in rows if split == "train"} - {None}
    sentences = []
    for name in ("val", "test"):
        own = [row for row in rows if row[0] == name]
        copies = {file for _, file, _ in own if _digest(contents.get(file)) in trained}
        if copies and len(copies) == len({file for _, file, _ in own}):
            sentences.append(
                f"all {len(own)} {noun} of {name} are copies of training {noun}: results on them say nothing about new {noun}."
            )
        elif copies:
            sentences.append(
                f"{len(copies)} of {len(own)} {noun} of {name} are copies of training {noun} and are left out, "
                f"such as {min(copies)}."
            )
            rows = [row for row in rows if row[0] != name or row[1] not in copies]
    return rows, sentences


def _digest(content: Content | None) -> str | None:
    return None if content is None else content.digest


def _by_number(images: Counter[int]) -> dict[int, int]:
    """How many images of each class to hold out: shares as equal as whole numbers allow (largest remainders)."""
    total = sum(images.values())
    wanted = max(round(USUAL_SHARE * total), min(LEAST_IMAGES, total // 3))
    exact = {label: Fraction(wanted * count, total) for label, count in images.items()}
    counts = {label: int(share) for label, share in exact.items()}
    by_remainder = sorted(images, key=lambda label: (counts[label] - exact[label], label))
    for label in by_remainder[: wanted - sum(counts.values())]:
        counts[label] += 1
    return counts
