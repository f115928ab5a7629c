"""One pass over a split that writes its look record: every look at every image, for every sequence of patch sizes."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.labelled import JoinedSplit
from glancefocus.data.splits import Split, in_order, scene_batches
from glancefocus.escaping import one_line
from glancefocus.exits.record import LookRecord, RecordAbout, writing_record
from glancefocus.exits.rule import ExitRule, every_look
from glancefocus.exits.score import Entropy, Value
from glancefocus.files import fingerprint
from glancefocus.look import Look
from glancefocus.loop import run_looks
from glancefocus.network.model import GlanceFocus
from glancefocus.scene import as_batch

Progress = Callable[[int, int], None]


def record_looks(
    bundle: Bundle,
    split: Split,
    folder: Path,
    *,
    source: str,
    name: str,
    batch_size: int = 64,
    workers: int = 0,
    progress: Progress | None = None,
) -> LookRecord:
    """The look record of a split, out of the folder where there is one of this network and these images, made anew otherwise.

    source, name  of the data and of its split, in words
    """
    about = RecordAbout(
        network=bundle.fingerprint,
        data=data_fingerprint(split),
        source=one_line(source, 1000),
        split=name,
        images=len(split),
        looks=bundle.settings.looks,
        patch_px=bundle.settings.patch_px,
    )
    place = folder / f"{name}-{about.network[:8]}-{about.data[:8]}"
    if place.exists():
        record = LookRecord.load(place)
        record.check_made_for(about.network, about.data)
        return record
    rule = bundle.calibration()
    with writing_record(place, about) as writer, torch.inference_mode():
        for images, labels in scene_batches(
            split, bundle.settings.view, in_order(len(split), batch_size), None, workers
        ):
            looks = list(tree_of_looks(bundle.net, images.to(bundle.device), rule))
            writer.add(labels.numpy(), **_columns(looks))
            if progress is not None:
                progress(writer.done, len(split))
    return LookRecord.load(place)


def tree_of_looks(net: GlanceFocus, images: Tensor, rule: ExitRule) -> Iterator[tuple[Look, Tensor]]:
    """Every look of every sequence of patch sizes, with what the critic then expects (B,); level by level, each computed once.

    With one size that is simply every look.
    """
    level = [rule.calibrated(net.glance(as_batch(images, net.settings.view)))]
    while level:
        following = []
        for look in level:
            last = look.number == net.settings.looks
            aims = [] if last else [net.policy.aim(look, px) for px in net.settings.patch_px]
            # The critic is asked about the largest patch, the one that is taken where there is only one size.
            value = Value().of(look, aims[-1]) if aims else torch.ones(look.count, device=look.logits.device)
            yield look, value
            following += [rule.calibrated(net.focus(look, aim)) for aim in aims]
        level = following


def _columns(looks: list[tuple[Look, Tensor]]) -> dict[str, "np.ndarray[tuple[int, ...], np.dtype[np.float32]]"]:
    columns = {
        "confidence": [look.confidence for look, _ in looks],
        "entropy": [Entropy().of(look, None) for look, _ in looks],
        "value": [value for _, value in looks],
        "answer": [look.logits.argmax(dim=1) for look, _ in looks],
    }
    return {name: torch.stack(values, dim=1).cpu().numpy() for name, values in columns.items()}


def data_fingerprint(split: Split) -> str:
    """Fingerprint of the images and labels of a split: names, sizes and times of files, or a sample of the pixels in memory."""
    if isinstance(split, JoinedSplit):
        return fingerprint(split.labels, *map(data_fingerprint, split.parts))
    files = getattr(split, "files", None)
    if files is not None:
        # The time counts because files of some formats, such as BMP, all have the same size.
        stats = ((Path(file).resolve(), Path(file).stat()) for file in files)
        return fingerprint(split.labels, *(f"{file}|{stat.st_size}|{stat.st_mtime_ns}\n" for file, stat in stats))
    images = getattr(split, "images")  # noqa: B009
    return fingerprint(split.labels, f"{tuple(images.shape)}", images[:: max(1, len(split) // 64)])


# Enough for one number a look; more would only hold more logits in memory.
MOST_IMAGES = 4096


class LogitsOfLooks:
    """Takes notes of the logits after every look."""

    def __init__(self, looks: int) -> None:
        self.logits: list[list[Tensor]] = [[] for _ in range(looks)]

    def record(self, look: Look, leaving: Tensor, sure: Tensor) -> None:
        self.logits[look.number - 1].append(look.logits.float().cpu())


def fit_temperatures(
    net: GlanceFocus,
    split: Split,
    *,
    rows: Sequence[int] | None = None,
    batch_size: int = 64,
    workers: int = 0,
    device: torch.device | None = None,
) -> tuple[float, ...]:
    """(T,) the temperature of each look that makes the true labels likeliest, on these rows; with patches of the largest size.

    device  that the network is on; None: the CPU
    """
    rows = range(len(split)) if rows is None else rows
    rows = rows[:: max(1, -(-len(rows) // MOST_IMAGES))]
    order = [[rows[i] for i in batch] for batch in in_order(len(rows), batch_size)]
    recorder, labels = LogitsOfLooks(net.settings.looks), []
    with torch.inference_mode():
        for images, truth in scene_batches(split, net.settings.view, order, None, workers):
            scene = as_batch(images if device is None else images.to(device), net.settings.view)
            run_looks(net, scene, every_look(net.settings.looks), net.policy, recorder)
            labels.append(truth)
    truth = torch.cat(labels)
    return tuple(best_temperature(torch.cat(parts), truth) for parts in recorder.logits)


def best_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature in [0.05, 20] with the least cross-entropy; logits (N, classes), labels (N,).

    The cross-entropy has one minimum in the inverse temperature, so a golden-section search finds it.
    """
    low, high = torch.log(torch.tensor(0.05)).item(), torch.log(torch.tensor(20.0)).item()
    golden = (5**0.5 - 1) / 2

    def loss(log_temperature: float) -> float:
        return float(F.cross_entropy(logits / torch.tensor(log_temperature).exp(), labels))

    while high - low > 1e-4:
        one, two = high - golden * (high - low), low + golden * (high - low)
        if loss(one) < loss(two):
            high = two
        else:
            low = one
    return float(torch.tensor((low + high) / 2).exp())


def reliability(confidence: Tensor, correct: Tensor, bins: int = 10) -> tuple[list[dict[str, float]], float]:
    """Bins of equal width over the confidence: their mean confidence, accuracy and count; and the expected calibration error."""
    which = (confidence * bins).long().clamp(0, bins - 1)
    found, error = [], 0.0
    for number in range(bins):
        inside = which == number
        count = int(inside.sum())
        mean = float(confidence[inside].mean()) if count else (number + 0.5) / bins
        share = float(correct[inside].float().mean()) if count else 0.0
        found.append({"confidence": mean, "accuracy": share, "count": float(count)})
        error += count / len(confidence) * abs(mean - share)
    return found, error
