"""Which training images are held out for validation, where a data set names none."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from fractions import Fraction
from pathlib import Path

from glancefocus.data.content import Content
from glancefocus.data.splits import Row
from glancefocus.errors import BadData

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
