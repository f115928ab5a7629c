"""Goes once through the files of a data set before they are used: finds those that cannot be read, and hashes the others."""

import os
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from glancefocus.data.clips import frame_names
from glancefocus.data.lists import is_there
from glancefocus.data.media import Medium
from glancefocus.data.splits import Row
from glancefocus.errors import BadData, BadImage
from glancefocus.files import fingerprint, open_file
from glancefocus.progress import Progress

_END_BYTES = 8 << 20
DIGEST_DIGITS = 32
"""Of the 64 hexadecimal digits of SHA-256; 128 bits tell any number of files apart."""


class Content(NamedTuple):
    """What a file holds: its bytes, and the first digits of the hash of its content."""

    size: int
    digest: str


def content_size(path: Path) -> int:
    """Bytes of a file, or of all frames in a folder of frames; found without reading them."""
    try:
        if not path.is_dir():
            return path.stat().st_size
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
    size = os.path.getsize(file)
    if size <= 2 * _END_BYTES:
        return fingerprint(file)
    with open_file(file) as stream:
        first = stream.read(_END_BYTES)
        stream.seek(-_END_BYTES, os.SEEK_END)
        return fingerprint(f"{size}\n", first, stream.read(_END_BYTES))


@dataclass
class Checked:
    """Rows whose files can be used.

    contents  of each of these rows; None where it was not asked for
    bad       what is wrong with the files that are left out
    odd       what is odd about files that are used, such as clips with fewer frames than are looked at
    """

    rows: list[Row] = field(default_factory=list)
    contents: list[Content | None] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)


def check_files(
    rows: Sequence[Row],
    medium: Medium,
    *,
    read: bool,
    hashed: Callable[[int], bool] | None,
    max_bad_files: int,
    progress: Progress | None = None,
) -> Checked:
    """Read and hash files, several at a time. Up to max_bad_files that cannot be read are left out; one more is refused.

    read    decode each file as training will; False: only that it is there is found out
    hashed  whether a file of this size is hashed; None: none is
    """

    def look_at(row: Row) -> tuple[Content | None, tuple[str, ...], str | None]:
        try:
            odd = medium.check(row[1]) if read else ()
            wanted = hashed is not None and hashed(content_size(row[1]))
            return content_of(row[1]) if wanted else None, odd, None
        except BadImage as error:
            return None, (), str(error)

    checked = Checked()
    what = "checking files" if read else "hashing files"
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        for number, (row, (content, odd, wrong)) in enumerate(zip(rows, pool.map(look_at, rows), strict=True), start=1):
            if wrong is None:
                checked.rows.append(row)
                checked.contents.append(content)
                checked.odd += odd
            else:
                checked.bad.append(wrong)
            if progress is not None:
                progress(what, number, len(rows))
    if not checked.rows:
        raise BadData(f"none of the {len(rows)} files can be read. The first says: {checked.bad[0]}")
    if len(checked.bad) > max_bad_files:
        shown = " ".join(checked.bad[:3])
        raise BadData(
            f"{len(checked.bad)} of {len(rows)} files cannot be read, more than the {max_bad_files} that may be skipped "
            f"(--max-bad-files). The first: {shown}"
        )
    return checked


def without_missing(rows: list[Row], listed_in: Path, max_bad_files: int) -> tuple[list[Row], list[str]]:
    """The rows of a list whose files are there, and a sentence for each of the others; too many of these are refused."""
    there: list[Row] = []
    missing: list[Row] = []
    for row in rows:
        (there if is_there(row[1].parent, row[1].name) else missing).append(row)
    if len(missing) > max_bad_files or not there:
        names = ", ".join(str(file) for _, file, _ in missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise BadData(
            f"{len(missing)} of the {len(rows)} files that {listed_in} lists are not there: {names}. "
            f"Paths are relative to the folder of the CSV, {listed_in.parent.resolve()}."
        )
    return there, [f"there is no file {file}, which {listed_in} lists." for _, file, _ in missing]


USUAL_SHARE = Fraction(1, 5)
LEAST_IMAGES = 150
"""Figures on fewer images say little, so small sets hold out more than the usual share, up to a third."""
TOO_FEW = 10
"""A class with fewer images is split as far as possible, and said."""


def hold_out(rows: list[Row], val_share: float | None, seed: int) -> list[Row]:
    """The same rows with some of each class moved from train to val; which ones, the seed decides.

    val_share  of each class; None: a fifth of all, but at least 150 images where these are at most a third of all, else a third
    Each class keeps an image for training; with two or more, at least one is held out.
    """
    if val_share is not None and not 0 < val_share < 1:
        raise BadData(f"val_share is a share between 0 and 1, but got {val_share}.")
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


def small_classes(rows: Sequence[Row], classes: Sequence[str], noun: str) -> list[str]:
    """Sentences on classes that have too few images to learn from and to be measured on."""
    images = Counter((split, label) for split, _, label in rows)
    empty = [name for label, name in enumerate(classes) if images["train", label] == 0]
    counts = {name: images["train", label] + images["val", label] for label, name in enumerate(classes)}
    few = [f"{name!r} ({counts[name]})" for name in classes if counts[name] < TOO_FEW and name not in empty]
    sentences = []
    if empty:
        names = _some([repr(name) for name in empty])
        sentences.append(f"no training {noun} of {_classes(len(empty))} {names}: nothing can be learnt about it.")
    if few:
        sentences.append(
            f"fewer than {TOO_FEW} {noun} of {_classes(len(few))} {_some(few)}: little can be learnt from so few, and the accuracy "
            f"of a few held-out ones says next to nothing. Add {noun}."
        )
    return sentences


def without_copies(
    rows: list[Row],
    contents: Mapping[Path, Content | None],
    noun: str,
    trained_before: AbstractSet[str] = frozenset(),
) -> tuple[list[Row], list[str]]:
    """The rows without held-out images whose content is that of a training image, and a sentence about them.

    trained_before  hashes of images that trained the network in an earlier run
    Where nothing of a split would be left they stay, and the sentence says so.
    """
    trained = trained_before | {_digest(contents.get(file)) for split, file, _ in rows if split == "train"} - {None}
    sentences = []
    for name in ("val", "test"):
        own = [row for row in rows if row[0] == name]
        copies = {file for _, file, _ in own if _digest(contents.get(file)) in trained}
        if copies and len(copies) == len({file for _, file, _ in own}):
            sentences.append(
                f"all {len(own)} {noun} of {name} are copies of training {noun}: figures on them say nothing about new {noun}."
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


def _classes(count: int) -> str:
    return "the class" if count == 1 else f"{count} classes,"


def _some(words: list[str]) -> str:
    return ", ".join(words[:5]) + (", ..." if len(words) > 5 else "")


def _by_number(images: Counter[int]) -> dict[int, int]:
    """How many images of each class to hold out: shares that are as equal as whole numbers allow, by the largest remainders."""
    total = sum(images.values())
    wanted = max(round(USUAL_SHARE * total), min(LEAST_IMAGES, total // 3))
    exact = {label: Fraction(wanted * count, total) for label, count in images.items()}
    counts = {label: int(share) for label, share in exact.items()}
    by_remainder = sorted(images, key=lambda label: (counts[label] - exact[label], label))
    for label in by_remainder[: wanted - sum(counts.values())]:
        counts[label] += 1
    return counts
