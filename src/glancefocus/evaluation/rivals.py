"""The rivals of glancefocus, the same backbone on resized images: their sizes and answers, and how a bundle compares with them.

The network's own encoders are rivals too: each was trained on small views of the whole image and has its own head.
"""

import copy
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.splits import Split, scene_batches
from glancefocus.evaluation.assess import look_table, own_exits, random_rows
from glancefocus.evaluation.cascades import Member, verdict_of
from glancefocus.evaluation.every_look import seen_at_once
from glancefocus.evaluation.latency import RivalTimes
from glancefocus.evaluation.records import data_fingerprint
from glancefocus.evaluation.verdict import Size, Verdict, no_verdict
from glancefocus.exits.record import LookRecord, RecordAbout, writing_record
from glancefocus.files import fingerprint
from glancefocus.look import as_batch
from glancefocus.network.macs import count_backbone
from glancefocus.network.modules import Encoder
from glancefocus.network.weights import load_backbone_weights
from glancefocus.outcome import Costs
from glancefocus.progress import Progress
from glancefocus.region import resized
from glancefocus.settings import GlanceResize, NetworkSettings

SHARES = (1, 6 / 7, 5 / 7, 4 / 7, 3 / 7)
"""Sides of the rivals relative to the whole image; for 224 px these are 224, 192, 160, 128 and 96 px."""
SMALLER_SHARES = (2 / 7, 1 / 7)
"""Added if even the smallest of SHARES costs more than a glance."""
ABOUT_A_GLANCE = 0.9
"""Sizes that cost less than this share of a glance are not tuned."""
STEPS_PX = (32, 16, 8)
LEAST_PX = 16


def rival_sizes(image_hw: Size, token_px: int = 1, shares: Sequence[float] = SHARES) -> list[Size]:
    """Image sizes with about these shares of the side, largest first, with the same aspect; the first is the whole image.

    The shorter side is a multiple of 32 px, which suits convolutions; of 16 or 8 px if there would be too few different sizes.
    The longer side follows from it, in steps of at most 8 px, or of a transformer's patches.
    token_px  side of a transformer's patches, of which both sides are multiples; 1 for other backbones
    """
    steps = [step for step in STEPS_PX if step % token_px == 0] or [token_px]
    shorter, longer = min(image_hw), max(image_hw)
    found: list[Size] = []
    for step in steps:
        found = [image_hw]
        for share in shares:
            side = max(step, round(share * shorter / step) * step)
            fine = min(step, max(token_px, STEPS_PX[-1]))
            other = side if shorter == longer else max(side, round(side * longer / shorter / fine) * fine)
            if share < 1 and side >= LEAST_PX and side * other < found[-1][0] * found[-1][1]:
                found.append((side, other) if image_hw[0] <= image_hw[1] else (other, side))
        if len(found) == len(shares):
            break
    return found


def sizes_with_costs(settings: NetworkSettings, image_hw: Size, token_px: int, glance_macs: float) -> dict[Size, int]:
    """{size: multiply-adds} of the rivals, largest first; sizes that the backbone does not accept are left out."""
    counted = count_backbone(settings, rival_sizes(image_hw, token_px))
    smallest = min((macs for macs in counted.values() if macs is not None), default=0)
    if smallest > glance_macs:
        counted = count_backbone(settings, rival_sizes(image_hw, token_px, (*SHARES, *SMALLER_SHARES)))
    known = {size: macs for size, macs in counted.items() if macs is not None}
    return dict(sorted(known.items(), key=lambda item: -item[1]))


def patch_side(encoder: Encoder) -> int:
    """The side of a transformer's patches in px; 1 for other backbones."""
    embed = getattr(encoder.backbone, "patch_embed", None)
    px = getattr(embed, "patch_size", 1)
    return int(max(px) if isinstance(px, (tuple, list)) else px)


def rival_name(size: Size) -> str:
    """The name of a backbone tuned at a size, in a run's folder: rival-160, rival-480x640."""
    return f"rival-{size[0]}" if size[0] == size[1] else f"rival-{size[0]}x{size[1]}"


def size_in(name: str) -> Size | None:
    """The size in a name made by rival_name; None for any other name."""
    found = re.fullmatch(r"rival-(\d{1,5})(?:x(\d{1,5}))?", name)
    return None if found is None else (int(found[1]), int(found[2] or found[1]))


def tuned_files(run: Path) -> dict[Size, Path]:
    """{size: file of weights} of the backbones in a run that were tuned at smaller sizes."""
    found = {size_in(file.stem): file for file in sorted(run.glob("rival-*.safetensors"))}
    return {size: file for size, file in found.items() if size is not None}


def sizes_to_tune(sizes: Mapping[Size, int], costs: Costs) -> list[Size]:
    """All sizes below the whole image that cost about as much as the glance, or more; largest first."""
    least = ABOUT_A_GLANCE * costs.macs_after_look[0]
    return [size for size in list(sizes)[1:] if sizes[size] >= least]


def rivals_to_tune(settings: NetworkSettings, image_hw: Size, token_px: int, costs: Costs) -> dict[Size, int]:
    """{size: multiply-adds} of the backbones to tune, smallest first, since they take least time.

    The network's own views of the whole image are left out: they are trained in the same way already.
    """
    sizes = sizes_with_costs(settings, image_hw, token_px, costs.macs_after_look[0])
    own = {(view.px, view.px) for view in (settings.glance_view, *settings.candidates) if view.is_whole}
    return {size: sizes[size] for size in reversed(sizes_to_tune(sizes, costs)) if size not in own}


def image_size(split: Split, settings: NetworkSettings) -> Size:
    """(height, width) of the images of a split, which all have the same size."""
    images, _ = next(iter(scene_batches(split, settings.view, [[0]])))
    return int(images.shape[-2]), int(images.shape[-1])


@dataclass(frozen=True)
class RivalAnswers:
    """The answers of a backbone at several image sizes, smallest first.

    correct, confidence  (N, sizes)
    labels               (N,)
    """

    sizes: list[Size]
    correct: NDArray[np.bool_]
    confidence: NDArray[np.float32]
    labels: NDArray[np.int64]


def answer_resized(
    settings: NetworkSettings,
    encoder: Encoder,
    split: Split,
    rows: NDArray[np.int64],
    sizes: Sequence[Size],
    folder: Path,
    *,
    name: str,
    resize: GlanceResize = "antialias",
    workers: int = 0,
    progress: Progress | None = None,
) -> RivalAnswers:
    """The answers of the encoder's own head for these rows of a split at every size, stored in the folder for the next time.

    Stored answers are reused if the encoder's weights have not changed.
    name  of the split
    """
    ordered = sorted(sizes, key=lambda size: size[0] * size[1])
    about = RecordAbout(
        network=_fingerprint(settings, encoder, ordered, resize, rows),
        data=data_fingerprint(split),
        source="rivals",
        split=name,
        images=len(rows),
        looks=len(ordered),
        views=("whole",),
    )
    place = folder / f"rivals-{name}-{about.network[:8]}-{about.data[:8]}"
    if not place.exists():
        _record(place, about, settings, encoder, split, rows, ordered, resize, workers, progress)
    record = LookRecord.load(place)
    record.check_made_for(about.network, about.data)
    correct = np.asarray(record.answer) == np.asarray(record.label)[:, None]
    return RivalAnswers(ordered, correct, np.array(record.confidence), np.asarray(record.label).astype(np.int64))


def _record(
    place: Path,
    about: RecordAbout,
    settings: NetworkSettings,
    encoder: Encoder,
    split: Split,
    rows: NDArray[np.int64],
    sizes: Sequence[Size],
    resize: GlanceResize,
    workers: int,
    progress: Progress | None,
) -> None:
    """One pass over the images; every batch is resized to every size."""
    device = next(encoder.parameters()).device
    at_once = seen_at_once(settings)
    order = [rows[start : start + at_once].tolist() for start in range(0, len(rows), at_once)]
    was_training = encoder.training
    encoder.eval()
    with writing_record(place, about) as writer, torch.inference_mode():
        for images, labels in scene_batches(split, settings.view, order, None, workers):
            whole = as_batch(images.to(device), settings.view).whole
            answers = [own_answers(encoder, whole, size, resize) for size in sizes]
            columns = {
                "confidence": [each.max(dim=1).values for each in answers],
                "entropy": [_certainty(each) for each in answers],
                "value": [torch.ones(each.shape[0]) for each in answers],
                "answer": [each.argmax(dim=1) for each in answers],
            }
            writer.add(labels.numpy(), **{n: torch.stack(c, dim=1).cpu().numpy() for n, c in columns.items()})
            if progress is not None:
                progress("backbone on resized images", writer.done, len(rows))
    encoder.train(was_training)


def own_answers(encoder: Encoder, whole: Tensor, size: Size, resize: GlanceResize = "antialias") -> Tensor:
    """(B, classes) probabilities of the encoder's own head for images (B, 3, H, W), or frames of clips, resized to this size."""
    seen = whole if tuple(whole.shape[-2:]) == size else resized(whole, size, resize)
    seen = seen.contiguous(memory_format=torch.channels_last)
    return encoder.own_head(encoder(seen).vector).float().softmax(dim=1)


def _certainty(probabilities: Tensor) -> Tensor:
    """(B,) 1 if one class has all the probability, 0 if all classes have the same."""
    entropy = torch.special.entr(probabilities).sum(dim=1)
    certainty: Tensor = (1 - entropy / math.log(max(2, probabilities.shape[1]))).clamp(0, 1)
    return certainty


def _fingerprint(
    settings: NetworkSettings, encoder: Encoder, sizes: Sequence[Size], resize: GlanceResize, rows: NDArray[np.int64]
) -> str:
    weights = [value for named in encoder.state_dict().items() for value in named]
    return fingerprint([settings.to_hash(), list(sizes), resize], *weights, rows.astype("<i8"))


MOST_IMAGES = 2000


@dataclass(frozen=True)
class Weights:
    """The weights of the rivals: the run's plain backbone, and backbones that were tuned at smaller image sizes."""

    backbone: Path
    tuned: Mapping[Size, Path]


def judge(
    bundle: Bundle,
    record: LookRecord,
    split: Split,
    weights: Weights,
    folder: Path,
    *,
    workers: int = 0,
    progress: Progress | None = None,
    measure_times: Callable[[Bundle, Sequence[Size]], RivalTimes] | None = None,
    chose: bool = False,
    seed: int = 0,
) -> Verdict:
    """The verdict on a bundle with its own thresholds.

    record         the looks at the split's images
    folder         where the rivals' answers are stored
    measure_times  also measures milliseconds, see latency.measure_rival_times; None: multiply-adds only
    chose          the bundle's thresholds were chosen on these images, see assess.own_exits
    """
    if len(split) < 2:
        return no_verdict(f"there is {len(split)} image to compare on. Give more held-out images.")
    if not weights.backbone.is_file():
        return no_verdict(
            f"there is no plain backbone at {weights.backbone} to compare with. A run with the stage `backbone` stores it there."
        )
    rows = random_rows(len(split), MOST_IMAGES, seed)
    whole_table = look_table(bundle, record)
    exits = own_exits(bundle, whole_table, chose=chose, seed=seed)[rows]
    table = whole_table.rows(rows)
    sizes = sizes_with_costs(
        bundle.settings, image_size(split, bundle.settings), patch_side(bundle.net.focus_encoder), table.macs[0]
    )
    if not sizes:
        return no_verdict("the backbone accepts only one image size.")
    times = None if measure_times is None else measure_times(bundle, list(sizes | own_sizes(bundle)))
    table = replace(table, ms=None if times is None else np.asarray(times.ours), unit="macs")
    members, labels = members_on(
        bundle,
        split,
        rows,
        weights,
        sizes,
        folder,
        name=record.about.split,
        times=times,
        workers=workers,
        progress=progress,
    )
    device, data = None if times is None else times.device, f"{record.about.source}, {record.about.split}"
    return verdict_of(table, exits, members, labels, device, data, seed)


def members_on(
    bundle: Bundle,
    split: Split,
    rows: NDArray[np.int64],
    weights: Weights,
    sizes: Mapping[Size, int],
    folder: Path,
    *,
    name: str,
    times: RivalTimes | None = None,
    workers: int = 0,
    progress: Progress | None = None,
) -> tuple[list[Member], NDArray[np.int64]]:
    """Every rival's answers to these rows of a split, the backbone on the whole image first, and the labels.

    sizes   {size: multiply-adds}, see sizes_with_costs
    folder  where the answers are stored, under the split's name
    """
    own = own_sizes(bundle)
    members, labels = [], np.zeros(0, dtype=np.int64)
    for source in _sources(bundle, weights, sizes, own):
        answers = answer_resized(
            bundle.settings,
            source.encoder,
            split,
            rows,
            source.sizes,
            folder,
            name=name,
            resize=source.resize,
            workers=workers,
            progress=progress,
        )
        members += source.members(answers, {**sizes, **own}, times)
        labels = answers.labels
    return members, labels


def own_sizes(bundle: Bundle) -> dict[Size, int]:
    """{size: multiply-adds} of the views of the whole image that the network itself has, the glance first."""
    settings = bundle.settings
    # The plain backbone is a rival already.
    seen = () if settings.looks == 1 or settings.keeps_backbone else settings.candidates
    views = [view for view in (settings.glance_view, *seen) if view.is_whole]
    counted = count_backbone(settings, [(view.px, view.px) for view in views])
    return {size: macs for size, macs in counted.items() if macs is not None}


class Source(NamedTuple):
    """One encoder with its own head, which answers at some image sizes.

    words  which encoder it is, see Member.encoder
    """

    kind: Literal["resized", "tuned"]
    words: str
    encoder: Encoder
    sizes: list[Size]
    resize: GlanceResize = "antialias"

    def members(self, answers: RivalAnswers, macs: Mapping[Size, int], times: RivalTimes | None) -> list[Member]:
        """One for each size, largest first."""
        return [
            Member(
                self.kind,
                size,
                answers.correct[:, index],
                answers.confidence[:, index],
                float(macs[size]),
                None if times is None else times.resized[size],
                self.words,
            )
            for index, size in reversed(list(enumerate(answers.sizes)))
        ]


def _sources(bundle: Bundle, weights: Weights, sizes: Mapping[Size, int], own: Mapping[Size, int]) -> Iterator[Source]:
    """The plain backbone at every size of rivals, those that were tuned at one size, and the network's own encoders.

    The same copy of an encoder is loaded with other weights for each of the first two: use a source before taking the next.
    """
    net, settings = bundle.net, bundle.settings
    loaded = copy.deepcopy(net.focus_encoder)
    load_backbone_weights(loaded.backbone, weights.backbone)
    yield Source("resized", "", loaded, list(sizes))
    for size, file in weights.tuned.items():
        if size in sizes:
            load_backbone_weights(loaded.backbone, file)
            yield Source("tuned", "tuned", loaded, [size])
    glance, *others = own
    shared = settings.shared_encoder
    words = "the shared encoder" if shared else "the glance encoder"
    yield Source("tuned", words, net.glance_encoder, [glance], settings.glance_resize)
    if others:
        encoder = net.focus_encoder if net.whole_encoder is None else net.whole_encoder
        words = "the focus encoder" if net.whole_encoder is None else "the encoder of whole images"
        yield Source("tuned", "the shared encoder" if shared else words, encoder, others)
