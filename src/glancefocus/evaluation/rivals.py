"""The rivals of glancefocus: the same backbone on the same images, resized to several sizes."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glancefocus.costs import Costs
from glancefocus.data.splits import Split, scene_batches
from glancefocus.evaluation.every_look import seen_at_once
from glancefocus.evaluation.records import data_fingerprint
from glancefocus.exits.record import LookRecord, RecordAbout, writing_record
from glancefocus.exits.table import LookTable
from glancefocus.files import fingerprint
from glancefocus.network.encoder import Encoder
from glancefocus.network.macs import count_backbone
from glancefocus.progress import Progress
from glancefocus.region import resized
from glancefocus.scene import as_batch
from glancefocus.settings import NetworkSettings, to_plain

Size = tuple[int, int]
"""(height, width) in px."""

SHARES = (1, 6 / 7, 5 / 7, 4 / 7, 3 / 7)
"""Sides of the rivals relative to the whole image; for 224 px these are 224, 192, 160, 128 and 96 px."""
SMALLER_SHARES = (2 / 7, 1 / 7)
"""Added if even the smallest of SHARES costs more than a glance."""
STEPS_PX = (32, 16, 8)
LEAST_PX = 16


def rival_sizes(image_hw: Size, patch_px: int = 1, shares: Sequence[float] = SHARES) -> list[Size]:
    """Image sizes with about these shares of the side, largest first, with the same aspect; the first is the whole image.

    The shorter side is a multiple of 32 px, which suits convolutions; of 16 or 8 px if there would be too few different sizes.
    The longer side follows from it, in steps of at most 8 px, or of a transformer's patches.
    patch_px  side of a transformer's patches, of which both sides are multiples; 1 for other backbones
    """
    steps = [step for step in STEPS_PX if step % patch_px == 0] or [patch_px]
    shorter, longer = min(image_hw), max(image_hw)
    found: list[Size] = []
    for step in steps:
        found = [image_hw]
        for share in shares:
            side = max(step, round(share * shorter / step) * step)
            fine = min(step, max(patch_px, STEPS_PX[-1]))
            other = side if shorter == longer else max(side, round(side * longer / shorter / fine) * fine)
            if share < 1 and side >= LEAST_PX and side * other < found[-1][0] * found[-1][1]:
                found.append((side, other) if image_hw[0] <= image_hw[1] else (other, side))
        if len(found) == len(shares):
            break
    return found


def sizes_with_costs(settings: NetworkSettings, image_hw: Size, patch_px: int, glance_macs: float) -> dict[Size, int]:
    """{size: multiply-adds} of the rivals, largest first; sizes that the backbone does not accept are left out."""
    counted = count_backbone(settings, rival_sizes(image_hw, patch_px))
    smallest = min((macs for macs in counted.values() if macs is not None), default=0)
    if smallest > glance_macs:
        counted = count_backbone(settings, rival_sizes(image_hw, patch_px, (*SHARES, *SMALLER_SHARES)))
    known = {size: macs for size, macs in counted.items() if macs is not None}
    return dict(sorted(known.items(), key=lambda item: -item[1]))


def patch_side(encoder: Encoder) -> int:
    """The side of a transformer's patches in px; 1 for other backbones."""
    embed = getattr(encoder.backbone, "patch_embed", None)
    px = getattr(embed, "patch_size", 1)
    return int(max(px) if isinstance(px, (tuple, list)) else px)


def size_words(size: Size) -> str:
    """160 px, or 480x640 px."""
    return f"{size[0]} px" if size[0] == size[1] else f"{size[0]}x{size[1]} px"


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
    """The two sizes below the whole image with costs nearest to the middle between one glance and all looks."""
    wanted = (costs.macs_after_look[0] + costs.macs_after_look[-1]) / 2
    smaller = list(sizes)[1:]
    return sorted(sorted(smaller, key=lambda size: abs(sizes[size] - wanted))[:2], reverse=True)


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
    weights: Path,
    split: Split,
    rows: NDArray[np.int64],
    sizes: Sequence[Size],
    folder: Path,
    *,
    name: str,
    workers: int = 0,
    progress: Progress | None = None,
) -> RivalAnswers:
    """The answers of the encoder's own head for these rows of a split at every size, stored in the folder for the next time.

    weights  the file that the encoder's weights come from; stored answers are reused if it has not changed
    name     of the split
    """
    ordered = sorted(sizes, key=lambda size: size[0] * size[1])
    about = RecordAbout(
        network=_fingerprint(settings, weights, ordered, rows),
        data=data_fingerprint(split),
        source="rivals",
        split=name,
        images=len(rows),
        looks=len(ordered),
        patch_px=(1,),
    )
    place = folder / f"rivals-{name}-{about.network[:8]}-{about.data[:8]}"
    if not place.exists():
        _record(place, about, settings, encoder, split, rows, ordered, workers, progress)
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
            answers = [own_answers(encoder, whole, size) for size in sizes]
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


def own_answers(encoder: Encoder, whole: Tensor, size: Size) -> Tensor:
    """(B, classes) probabilities of the encoder's own head for images (B, 3, H, W), or frames of clips, resized to this size."""
    seen = whole if tuple(whole.shape[-2:]) == size else resized(whole, size, "antialias")
    seen = seen.contiguous(memory_format=torch.channels_last)
    return encoder.own_head(encoder(seen).vector).float().softmax(dim=1)


def cascade_table(
    answers: Sequence[tuple[NDArray[np.bool_], NDArray[np.float32]]],
    macs: Sequence[float],
    ms: Sequence[float] | None,
) -> LookTable:
    """The look table of a cascade, smallest size first: an image that reaches a size has paid for all sizes up to it.

    answers  (correct, confidence) of each size
    """
    return LookTable(
        np.stack([confidence for _, confidence in answers], axis=1).astype(np.float32),
        np.stack([correct for correct, _ in answers], axis=1),
        np.cumsum(np.asarray(macs, dtype=np.float64)),
        ms=None if ms is None else np.cumsum(np.asarray(ms, dtype=np.float64)),
    )


def _certainty(probabilities: Tensor) -> Tensor:
    """(B,) 1 if one class has all the probability, 0 if all classes have the same."""
    entropy = torch.special.entr(probabilities).sum(dim=1)
    certainty: Tensor = (1 - entropy / math.log(max(2, probabilities.shape[1]))).clamp(0, 1)
    return certainty


def _fingerprint(settings: NetworkSettings, weights: Path, sizes: Sequence[Size], rows: NDArray[np.int64]) -> str:
    return fingerprint([to_plain(settings), fingerprint(weights), list(sizes)], rows.astype("<i8"))
