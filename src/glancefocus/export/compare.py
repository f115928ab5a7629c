"""Compares an exported network with the one that it was made from: the same pictures, answer by answer and look by look.

The pictures come from a data set or a folder, or are synthetic; int8 exports are calibrated on them too.
"""

import math
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.clips import find_clips, read_clip
from glancefocus.data.folders import find_pictures
from glancefocus.data.images import read_picture, view_picture
from glancefocus.data.labelled import WHOLE, open_labelled, world_settings
from glancefocus.data.sources import settings_in_notes
from glancefocus.data.splits import MemorySplit, Split
from glancefocus.data.worlds import WORLDS
from glancefocus.errors import BadData, BadExport, BadImage
from glancefocus.export.contents import Agreement, quiet
from glancefocus.export.predict import Array, Looker, Manifest, Row, RunGraph, scene_of, softmax
from glancefocus.outcome import Outcome
from glancefocus.progress import Progress
from glancefocus.region import top_left
from glancefocus.settings import NetworkSettings

MADE_UP = 32
"""Number of synthetic pictures, where no others are given."""


@dataclass(frozen=True)
class Sample:
    """Some pictures, read when they are needed.

    sources  files, or pixels (3, H, W) uint8; for clips files or folders, or pixels (F, 3, H, W)
    words    a description of them
    labels   their classes; None: unknown
    """

    sources: Sequence[Path | Tensor]
    words: str
    frames: int = 1
    labels: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self.sources)

    def batches(self, size: int = 32) -> Iterator[list[list[Image.Image]]]:
        """Pictures in RGB, each as a list of frames; a picture has one frame."""
        for start in range(0, len(self), size):
            yield [self._frames(source) for source in self.sources[start : start + size]]

    def at_most(self, count: int) -> "Sample":
        """At most this many of them, evenly spaced, because data sets are often sorted by class."""
        rows = np.linspace(0, len(self) - 1, min(count, len(self))).round().astype(int).tolist()
        labels = None if self.labels is None else tuple(self.labels[row] for row in rows)
        return Sample([self.sources[row] for row in rows], self.words, self.frames, labels)

    def _frames(self, source: Path | Tensor) -> list[Image.Image]:
        if isinstance(source, Tensor):
            return [_picture(frame) for frame in (source if source.dim() == 4 else source[None])]
        if self.frames == 1:
            return [read_picture(source)]
        return read_clip(source, self.frames, lambda picture: picture).frames


def open_sample(bundle: Bundle, source: str) -> Sample:
    """The held-out images of a data set; or every picture in a folder, without classes."""
    frames, path = bundle.settings.frames, Path(source)
    try:
        splits = open_splits(bundle, source)
    except (BadData, BadImage):
        if source in WORLDS or not path.is_dir():
            raise
        return Sample(find_pictures([path]) if frames == 1 else find_clips([path]), source, frames)
    name = next(name for name in ("test", "val", WHOLE, "train") if name in splits)
    return _sample(splits[name], range(len(splits[name])), f"{source}, {name}", frames)


def calibration_samples(bundle: Bundle, source: str) -> tuple[Sample, Sample]:
    """Labelled images to calibrate with, and others to measure on: two splits, or the halves of the only one."""
    splits, frames = open_splits(bundle, source), bundle.settings.frames
    first = next(name for name in ("train", "val", WHOLE, "test") if name in splits)
    second = next((name for name in ("test", "val") if name in splits and name != first), None)
    if second is not None:
        one, two = splits[first], splits[second]
        return (
            _sample(one, range(len(one)), f"{source}, {first}", frames),
            _sample(two, range(len(two)), f"{source}, {second}", frames),
        )
    split = splits[first]
    if len(split) < 4:
        raise BadData(
            f"int8 needs images to calibrate with and others to measure on, but {source} has {len(split)}. Give at least 4, "
            "better some hundred."
        )
    even, odd = range(0, len(split), 2), range(1, len(split), 2)
    return _sample(split, even, f"one half of {source}", frames), _sample(split, odd, f"other half of {source}", frames)


def open_splits(bundle: Bundle, source: str) -> dict[str, Split]:
    """The splits of a data set; a built-in world with the settings that it had in training."""
    settings = bundle.settings
    data = world_settings(source, settings_in_notes(bundle.notes), settings.view, settings.frames)
    opened = open_labelled(data, settings.view, bundle.classes, frames=settings.frames, record=bundle.split)
    return opened.splits


def made_up(settings: NetworkSettings, count: int = MADE_UP, seed: int = 0) -> Sample:
    """Pictures of coloured clouds and noise; larger than the view, so that resizing is compared as well."""
    draw, view = np.random.default_rng(seed), settings.view
    height, width = view.height_px, view.width_px
    if view.fit != "whole":
        height, width = height + height // 4, width + width // 3
    pictures = []
    for _ in range(count):
        frames = [_clouds(draw, height, width) for _ in range(settings.frames)]
        pictures.append(torch.stack(frames) if settings.frames > 1 else frames[0])
    return Sample(pictures, "made-up pictures", settings.frames)


def _clouds(draw: np.random.Generator, height: int, width: int) -> Tensor:
    cells = int(draw.integers(2, 12))
    coarse = Image.fromarray(draw.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
    pixels = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int64)
    noisy = (pixels + draw.integers(-24, 25, (height, width, 3))).clip(0, 255).astype(np.uint8)
    return torch.from_numpy(noisy).permute(2, 0, 1)


def _sample(split: Split, rows: Sequence[int], words: str, frames: int) -> Sample:
    held: Any = split.images if isinstance(split, MemorySplit) else getattr(split, "files")  # noqa: B009
    return Sample([held[row] for row in rows], words, frames, tuple(int(split.labels[row]) for row in rows))


def _picture(pixels: Tensor) -> Image.Image:
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


COVERAGES: dict[str, tuple[str, ...] | None] = {"everything": None, "convolutions": ("Conv",)}
"""What is quantised: every operation that can be; or convolutions only, so that classifier and policy keep full precision."""

Feeds = dict[str, list[tuple[Array, ...]]]
"""{graph: the inputs of each of its runs}."""


class _Recorded:
    """Runs graphs and keeps their inputs."""

    def __init__(self, graphs: RunGraph) -> None:
        self.graphs = graphs
        self.feeds: Feeds = {}

    def __call__(self, graph: str, *inputs: Array) -> list[Array]:
        self.feeds.setdefault(graph, []).append(inputs)
        return self.graphs(graph, *inputs)


class _Reader:
    """Passes recorded inputs to the calibration of ONNX Runtime, one run after the other."""

    def __init__(self, names: list[str], feeds: list[tuple[Array, ...]]) -> None:
        self.feeds = iter([dict(zip(names, feed, strict=True)) for feed in feeds])

    def get_next(self) -> dict[str, Array] | None:
        return next(self.feeds, None)


def record_feeds(looker: Looker, sample: Sample, ways: dict[str, Any]) -> Feeds:
    """The inputs of every graph while these pictures are looked at: glances, and views where the policy aims."""
    recorded = _Recorded(looker.graphs)
    recording = Looker(looker.manifest, recorded)
    for thresholds in ways.values():
        for pictures in sample.batches():
            recording.look([scene_of(frames, looker.manifest) for frames in pictures], thresholds)
    return recorded.feeds


def quantise(manifest: Manifest, folder: Path, feeds: Feeds, coverage: str, into: Path) -> None:
    """Write every ONNX graph of a folder into another folder, in int8."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    operations = COVERAGES[coverage]
    for graph in manifest["graphs"]:
        names = [given["name"] for given in graph["inputs"]]
        with tempfile.TemporaryDirectory(dir=into) as aside, quiet():
            prepared = Path(aside) / "prepared.onnx"
            quant_pre_process(folder / graph["file"], prepared, skip_symbolic_shape=True)
            quantize_static(
                prepared,
                into / graph["file"],
                _Reader(names, feeds[graph["name"]]),
                quant_format=QuantFormat.QDQ,
                op_types_to_quantize=None if operations is None else list(operations),
                per_channel=True,
                # Weights of 7 bits: processors without VNNI add two products of 8 bits in 16 bits, which would overflow.
                reduce_range=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
            )


def accuracy(looker: Looker, sample: Sample, thresholds: Any) -> float:
    """Share of right answers."""
    assert sample.labels is not None
    answers: list[int] = []
    for pictures in sample.batches():
        rows = looker.look([scene_of(frames, looker.manifest) for frames in pictures], thresholds)
        answers += [int(row.logits.argmax()) for row in rows]
    return float((np.array(answers) == np.array(sample.labels)).mean())


CONFIDENCE_TOLERANCE = 1e-3
"""Largest difference between confidences of graphs that count as the same."""
_SCORE_TIE = 1e-4  # a score this near a threshold, or two classes this near each other: rounding decides
_PIXEL_TIE = 1e-3  # the same for a region whose corner is this near the border between two pixels, in px

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
    """{description: thresholds}: the bundle's own, and every look with each candidate view, so that every graph is run."""
    looks, views = bundle.settings.looks, bundle.settings.candidates
    ways: dict[str, Thresholds] = {}
    if bundle.thresholds is not None:
        ways["stopping above thresholds"] = [list(t) if isinstance(t, tuple) else t for t in bundle.thresholds]
    for view in views:
        row = [math.inf if other == view else -1.0 for other in views]
        words = "every look" if len(views) == 1 else f"every look, {view.name}"
        ways[words] = [row if len(views) > 1 else math.inf] * looks
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
    same_boxes = looks == row.looks and _seen(outcome, index, row) == _seen_by(row)
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
    rooms = [np.array([height - high, width - wide]) for _, _, high, wide in row.regions]
    return near_a_tie(row.scores, thresholds, zip(row.places, rooms, strict=True), row.logits)


def near_a_tie(
    scores: Sequence[float],
    thresholds: Thresholds,
    aims: Iterable[tuple[NDArray[Any], NDArray[Any]]],
    logits: NDArray[Any],
) -> bool:
    """The same for an image given by its parts.

    scores  after each look
    aims    (where, room) of each look; room: how far the corner of its region can move, in px; 0 for the whole image
    logits  after the last look
    """
    for number, score in enumerate(scores, start=1):
        limits = [math.inf] if thresholds is None else np.atleast_1d(thresholds[number - 1]).tolist()
        if any(abs(score - limit) < _SCORE_TIE for limit in limits):
            return True
    for where, room in aims:
        corner = (where * room)[room > 0]
        if (np.abs(corner - corner.round()) < _PIXEL_TIE).any():
            return True
    second, first = np.sort(softmax(logits))[-2:]
    return bool(first - second < _SCORE_TIE)


Seen = list[tuple[str, tuple[int, int, int, int]]]
"""Name and region (top, left, height, width) of every look after the glance."""


def _seen(outcome: Outcome, index: int, row: Row) -> Seen:
    """What the network looked at, in the image of the row."""
    height, width = row.scene.frames[0].shape[:2]
    seen: Seen = []
    for look in range(int(outcome.looks[index]) - 1):
        view, where = outcome.views[int(outcome.candidate[index, look])], outcome.where[index, look]
        if view.is_whole:
            seen.append((view.name, (0, 0, height, width)))
            continue
        px = view.extent_px(height, width)
        top, left = top_left(where[None], height, width, px)[0].tolist()
        seen.append((view.name, (top, left, px, px)))
    return seen


def _seen_by(row: Row) -> Seen:
    return [(view["name"], region) for view, region in zip(row.views, row.regions, strict=True)]


def viewed(frames: list[Image.Image], bundle: Bundle) -> torch.Tensor:
    """A picture, or the frames of a clip, as the image that the network looks at."""
    views = [view_picture(frame, bundle.settings.view, bundle.least_px)[0] for frame in frames]
    return torch.stack(views) if bundle.settings.frames > 1 else views[0]
