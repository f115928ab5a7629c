"""Compares an exported network with the one that it was made from: the same pictures, answer by answer and look by look."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.views import view_picture
from glancefocus.errors import BadExport
from glancefocus.export.manifest import Agreement
from glancefocus.export.samples import Sample
from glancefocus.export.standalone.predict import Looker, Row, scene_of, softmax
from glancefocus.outcome import Outcome
from glancefocus.progress import Progress

CONFIDENCE_TOLERANCE = 1e-3
"""Largest difference between confidences of graphs that count as the same."""
_SCORE_TIE = 1e-4  # a score this near a threshold, or two classes this near each other: rounding decides
_PIXEL_TIE = 1e-3  # the same for a patch whose corner is this near the border between two pixels, in px

Thresholds = list[Any] | None


@dataclass
class Tally:
    """Counts of what is the same, see `manifest.Agreement`.

    differing  descriptions of the differences that rounding does not explain
    rights     (before, after) numbers of right answers, where labels are known
    """

    images: int = 0
    answers: int = 0
    looks: int = 0
    boxes: int = 0
    undecided: int = 0
    confidence_difference: float = 0.0
    differing: list[str] = field(default_factory=list)
    rights: tuple[int, int] | None = None
    exits_per_look: dict[int, int] = field(default_factory=dict)

    def to_plain(self) -> Agreement:
        plain: Agreement = {
            "images": self.images,
            "same_answers": self.answers,
            "same_looks": self.looks,
            "same_boxes": self.boxes,
            "undecided": self.undecided,
            "confidence_difference": self.confidence_difference,
            "exits_per_look": [self.exits_per_look.get(look, 0) for look in range(1, 1 + max(self.exits_per_look))],
        }
        if self.rights is not None:
            plain["accuracy_before"], plain["accuracy_after"] = (right / self.images for right in self.rights)
        return plain


def ways_of_looking(bundle: Bundle) -> dict[str, Thresholds]:
    """{description: thresholds}: the bundle's own, and every look with patches of each size, so that every graph is run."""
    looks, sizes = bundle.settings.looks, bundle.settings.patch_px
    ways: dict[str, Thresholds] = {}
    if bundle.thresholds is not None:
        ways["stopping above thresholds"] = [list(t) if isinstance(t, tuple) else t for t in bundle.thresholds]
    for px in sizes:
        row = [math.inf if size == px else -1.0 for size in sizes]
        words = "every look" if len(sizes) == 1 else f"every look, {px} px"
        ways[words] = [row if len(sizes) > 1 else math.inf] * looks
    return ways


def compare(
    bundle: Bundle, looker: Looker, sample: Sample, thresholds: Thresholds, progress: Progress | None = None
) -> Tally:
    """Look at every picture with both networks."""
    found = Tally(rights=None if sample.labels is None else (0, 0))
    rule = bundle.exit_rule(thresholds=thresholds)
    for pictures in sample.batches():
        outcome = bundle.predict_images([viewed(frames, bundle) for frames in pictures], rule)
        rows = looker.look([scene_of(frames, looker.manifest) for frames in pictures], thresholds)
        for index, row in enumerate(rows):
            _add(found, outcome, index, row, thresholds, sample)
        if progress is not None:
            progress("comparing", found.images, len(sample))
    return found


def refuse_differences(found: Tally, words: str) -> None:
    """Raise an error unless answers and looks are the same wherever rounding does not decide."""
    unexplained = len(found.differing)
    if unexplained:
        raise BadExport(
            f"the exported graphs do not answer as the network does on {unexplained} of {found.images} images ({words}). "
            f"The first: {found.differing[0]}. Nothing was written."
        )
    if not found.confidence_difference <= CONFIDENCE_TOLERANCE:
        raise BadExport(
            f"the confidences of the exported graphs differ by up to {found.confidence_difference:.2g} from those of the network "
            f"({words}), more than {CONFIDENCE_TOLERANCE:g}. Nothing was written."
        )


def _add(found: Tally, outcome: Outcome, index: int, row: Row, thresholds: Thresholds, sample: Sample) -> None:
    answer, looks = int(outcome.answer[index]), int(outcome.looks[index])
    own = int(row.logits.argmax())
    same_boxes = looks == row.looks and _boxes(outcome, index, row) == row.patches
    image = found.images
    found.images += 1
    found.exits_per_look[row.looks] = found.exits_per_look.get(row.looks, 0) + 1
    found.answers += own == answer
    found.looks += row.looks == looks
    found.boxes += same_boxes
    if found.rights is not None and sample.labels is not None:
        before, after = found.rights
        found.rights = before + (answer == sample.labels[image]), after + (own == sample.labels[image])
    if same_boxes:
        ours = outcome.confidence_after[index, :looks].tolist()
        gaps = [abs(a - float(softmax(b).max())) for a, b in zip(ours, row.answers, strict=True)]
        found.confidence_difference = max(found.confidence_difference, *gaps)
    if own == answer and row.looks == looks:
        return
    if rounding_decides(row, thresholds):
        found.undecided += 1
        return
    found.differing.append(
        f"image {image + 1} is class {answer} after {looks} looks, exported class {own} after {row.looks}"
    )


def rounding_decides(row: Row, thresholds: Thresholds) -> bool:
    """Whether a difference in the last digits could have changed the looks or the answer of this row."""
    height, width = row.scene.frames[0].shape[:2]
    rooms = [np.array([height - px, width - px]) for _, _, px in row.patches]
    return near_a_tie(row.scores, thresholds, zip(row.places, rooms, strict=True), row.logits)


def near_a_tie(
    scores: Sequence[float],
    thresholds: Thresholds,
    aims: Iterable[tuple[NDArray[Any], NDArray[Any]]],
    logits: NDArray[Any],
) -> bool:
    """The same for an image given by its parts.

    scores  after each look
    aims    (where, room) of each patch; room: how far its corner can move, in px
    logits  after the last look
    """
    for number, score in enumerate(scores, start=1):
        limits = [math.inf] if thresholds is None else np.atleast_1d(thresholds[number - 1]).tolist()
        if any(abs(score - limit) < _SCORE_TIE for limit in limits):
            return True
    for where, room in aims:
        corner = where * room
        if np.abs(corner - corner.round()).min() < _PIXEL_TIE:
            return True
    second, first = np.sort(softmax(logits))[-2:]
    return bool(first - second < _SCORE_TIE)


def _boxes(outcome: Outcome, index: int, row: Row) -> list[tuple[int, int, int]]:
    """(top, left, px) of every patch that the network looked at, in the image of the row."""
    height, width = row.scene.frames[0].shape[:2]
    boxes = []
    for look in range(int(outcome.looks[index]) - 1):
        px = int(outcome.patch_px[index, look])
        room = np.array([height - px, width - px], dtype=np.float32)
        top, left = np.floor(outcome.where[index, look].numpy().clip(0, 1) * room).astype(int).tolist()
        boxes.append((top, left, px))
    return boxes


def viewed(frames: list[Image.Image], bundle: Bundle) -> torch.Tensor:
    """A picture, or the frames of a clip, as the image that the network looks at."""
    views = [view_picture(frame, bundle.settings.view, bundle.least_px)[0] for frame in frames]
    return torch.stack(views) if bundle.settings.frames > 1 else views[0]
