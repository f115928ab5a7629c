"""Checks the files of a data set before they are used: finds unreadable ones, hashes the others, and holds some of them out."""

import os
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Protocol

from torch import Tensor

from glancefocus.data.clips import ClipFileSplit, clips_inside, holds_frames, read_clip
from glancefocus.data.images import SUFFIXES, read_picture, walk_visible
from glancefocus.data.split_record import Content, content_of, content_size
from glancefocus.data.splits import FileSplit, Row
from glancefocus.data.views import AugmentSettings
from glancefocus.errors import BadData, BadImage
from glancefocus.progress import Progress
from glancefocus.settings import ViewSettings


class Medium(Protocol):
    """What a data set consists of, pictures or clips: how they are found in a folder, checked, and made into a split."""

    noun: str

    def find(self, folder: Path) -> list[Path]:
        """All files in the folder of one class, sorted."""
        ...

    def check(self, file: Path) -> tuple[str, ...]:
        """Read a file as training does; raises BadImage if it cannot be used, returns remarks on it."""
        ...

    def split(self, files: list[Path], labels: Tensor, view: ViewSettings, augment: AugmentSettings) -> FileSplit: ...


class Pictures:
    """Image files."""

    noun = "images"

    def find(self, folder: Path) -> list[Path]:
        found = (Path(where, name) for where, names in walk_visible(folder) for name in names)
        pictures = (file for file in found if file.suffix.lower() in SUFFIXES and not file.name.startswith("."))
        return sorted(file for file in pictures if file.is_file())

    def check(self, file: Path) -> tuple[str, ...]:
        read_picture(file)
        return ()

    def split(self, files: list[Path], labels: Tensor, view: ViewSettings, augment: AugmentSettings) -> FileSplit:
        return FileSplit(files, labels, view, augment)


@dataclass(frozen=True)
class Clips:
    """Video files, and folders with the frames of a clip."""

    frames: int
    noun = "clips"

    def find(self, folder: Path) -> list[Path]:
        if holds_frames(folder):
            raise BadData(
                f"the class folder {folder} contains pictures instead of clips. "
                "Put the frames of each clip into a separate folder, or train a network for images (without --frames)."
            )
        return clips_inside(folder)

    def check(self, file: Path) -> tuple[str, ...]:
        return read_clip(file, self.frames, lambda picture: None).notes

    def split(self, files: list[Path], labels: Tensor, view: ViewSettings, augment: AugmentSettings) -> FileSplit:
        return ClipFileSplit(files, labels, view, augment, frames=self.frames)


def medium_of(frames: int) -> Medium:
    """Pictures for a network of one frame, clips for others."""
    return Pictures() if frames == 1 else Clips(frames)


@dataclass
class Checked:
    """Rows whose files can be used.

    contents  size and hash of each of these rows' files; None if it was not requested
    bad       sentences on the files that are left out
    odd       remarks on files that are used, such as clips with fewer frames than the network needs
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
    """Read and hash files, several at a time. Up to max_bad_files unreadable files are left out; more are refused.

    read    decode each file as training does; False: check only that it exists
    hashed  whether to hash a file of this size; None: hash none
    """

    def check(row: Row) -> tuple[Content | None, tuple[str, ...], str | None]:
        try:
            odd = medium.check(row[1]) if read else ()
            wanted = hashed is not None and hashed(content_size(row[1]))
            return content_of(row[1]) if wanted else None, odd, None
        except BadImage as error:
            return None, (), str(error)

    checked = Checked()
    what = "checking files" if read else "hashing files"
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        for number, (row, (content, odd, wrong)) in enumerate(zip(rows, pool.map(check, rows), strict=True), start=1):
            if wrong is None:
                checked.rows.append(row)
                checked.contents.append(content)
                checked.odd += odd
            else:
                checked.bad.append(wrong)
            if progress is not None:
                progress(what, number, len(rows))
    if not checked.rows:
        raise BadData(f"none of the {len(rows)} files can be read. The first error: {checked.bad[0]}")
    if len(checked.bad) > max_bad_files:
        shown = " ".join(checked.bad[:3])
        raise BadData(
            f"{len(checked.bad)} of {len(rows)} files cannot be read; at most {max_bad_files} may be skipped (--max-bad-files). "
            f"The first: {shown}"
        )
    return checked


USUAL_SHARE = Fraction(1, 5)
LEAST_IMAGES = 150
"""Results on fewer images are unreliable, so small sets hold out more than the usual share, up to a third."""
TOO_FEW = 10
"""A class with fewer images is reported; it is split as far as possible."""


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


def small_classes(rows: Sequence[Row], classes: Sequence[str], noun: str) -> list[str]:
    """Sentences on classes that have too few images for training and for measuring."""
    images = Counter((split, label) for split, _, label in rows)
    empty = [name for label, name in enumerate(classes) if images["train", label] == 0]
    counts = {name: images["train", label] + images["val", label] for label, name in enumerate(classes)}
    few = [f"{name!r} ({counts[name]})" for name in classes if counts[name] < TOO_FEW and name not in empty]
    sentences = []
    if empty:
        names = _some([repr(name) for name in empty])
        sentences.append(f"no training {noun} of {_classes(len(empty))} {names}: the network cannot learn it.")
    if few:
        sentences.append(
            f"fewer than {TOO_FEW} {noun} of {_classes(len(few))} {_some(few)}: too few to learn from, and the accuracy on the few "
            f"that are held out is unreliable. Add {noun}."
        )
    return sentences


def without_copies(
    rows: list[Row],
    contents: Mapping[Path, Content | None],
    noun: str,
    trained_before: AbstractSet[str] = frozenset(),
) -> tuple[list[Row], list[str]]:
    """The rows without held-out copies of training images, and sentences about them.

    trained_before  hashes of images that trained the network in an earlier run
    If nothing of a split would be left, the copies stay, and the sentence says so.
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


def _classes(count: int) -> str:
    return "the class" if count == 1 else f"{count} classes,"


def _some(words: list[str]) -> str:
    return ", ".join(words[:5]) + (", ..." if len(words) > 5 else "")


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
