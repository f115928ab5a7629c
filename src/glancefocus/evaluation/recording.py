"""One pass over a split that writes its look record: every look at every image, for every sequence of patch sizes."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from glancefocus.bundle import Bundle
from glancefocus.data.joined_splits import JoinedSplit
from glancefocus.data.splits import Split, in_order, scene_batches
from glancefocus.early_exit.look_record import LookRecord, RecordAbout, writing_record
from glancefocus.early_exit.rule import ExitRule
from glancefocus.early_exit.score import Entropy, Value
from glancefocus.escaping import one_line
from glancefocus.look import Look
from glancefocus.network.glance_focus import GlanceFocus
from glancefocus.runtimes.network import PartsNetwork
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
            looks = list(tree_of_looks(bundle.looking, images.to(bundle.device), rule))
            writer.add(labels.numpy(), **_columns(looks))
            if progress is not None:
                progress(writer.done, len(split))
    return LookRecord.load(place)


def tree_of_looks(net: GlanceFocus | PartsNetwork, images: Tensor, rule: ExitRule) -> Iterator[tuple[Look, Tensor]]:
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
    """Of which images and labels a split is made: names, sizes and times of files, or a sample of the pixels held in memory."""
    digest = hashlib.sha256(split.labels.numpy().tobytes())
    if isinstance(split, JoinedSplit):
        digest.update("".join(map(data_fingerprint, split.parts)).encode())
        return digest.hexdigest()
    files = getattr(split, "files", None)
    if files is not None:
        for file in files:
            told = Path(file).stat()  # of many kinds of picture all have one size, so the time counts, too
            digest.update(
                f"{Path(file).resolve()}|{told.st_size}|{told.st_mtime_ns}\n".encode("utf-8", "surrogateescape")
            )
    else:
        images = getattr(split, "images")  # noqa: B009
        sample = images[:: max(1, len(split) // 64)].contiguous().numpy()
        digest.update(f"{tuple(images.shape)}".encode() + sample.tobytes())
    return digest.hexdigest()
