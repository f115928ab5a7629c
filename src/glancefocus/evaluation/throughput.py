"""Images per second over a whole split, as in the paper's table of throughput: the time of reading images is left out."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from glancefocus.data.splits import Split, in_order, scene_batches
from glancefocus.look import ClipBatch, ImageBatch, as_batch
from glancefocus.loop import ExitRule, look_until_sure
from glancefocus.network.model import GlanceFocus
from glancefocus.outcome import Costs, Outcome


@dataclass(frozen=True)
class Throughput:
    """Images per second of glancefocus and of its backbone, on every image of a split once.

    exits      images that stopped after each look
    mac_ratio  how many times fewer multiply-adds than the backbone
    """

    images: int
    batch: int
    device: str
    glancefocus_per_second: float
    backbone_per_second: float
    accuracy: float
    backbone_accuracy: float
    mac_ratio: float
    exits: list[int]

    @property
    def time_ratio(self) -> float:
        """How many times less time than the backbone."""
        return self.glancefocus_per_second / self.backbone_per_second

    def to_plain(self) -> dict[str, Any]:
        return {**asdict(self), "time_ratio": self.time_ratio}


def whole_split(
    net: GlanceFocus,
    backbone: Callable[[Tensor], Tensor],
    rule: ExitRule,
    costs: Costs,
    split: Split,
    *,
    batch: int = 128,
    device: str = "",
    workers: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Throughput:
    """Both on each batch in turns; the first batch is computed once more before, to warm up.

    backbone  whole images to logits
    """
    view, where = net.settings.view, next(net.parameters()).device
    ours, theirs = _Total(), _Total()
    exits, spent, done = torch.zeros(costs.looks, dtype=torch.int64), 0.0, 0
    with torch.inference_mode():
        for number, (images, labels) in enumerate(
            scene_batches(split, view, in_order(len(split), batch), None, workers)
        ):
            scene = as_batch(images.to(where), view)
            if number == 0:
                look_until_sure(net, scene, rule)
                backbone(scene.whole)
            outcome = _in_turns(net, backbone, rule, scene, labels, (ours, theirs), backbone_first=number % 2 == 1)
            looks = outcome.looks.cpu()
            exits += torch.bincount(looks, minlength=costs.looks + 1)[1:]
            spent += float(costs.spent(looks, outcome.candidate, outcome.aims_first).sum())
            done += len(labels)
            if progress is not None:
                progress(done, len(split))
    return Throughput(
        images=done,
        batch=batch,
        device=device,
        glancefocus_per_second=done / ours.seconds,
        backbone_per_second=done / theirs.seconds,
        accuracy=ours.right / done,
        backbone_accuracy=theirs.right / done,
        mac_ratio=costs.backbone_macs * done / spent,
        exits=exits.tolist(),
    )


@dataclass
class _Total:
    """Seconds and right answers of one of the two, over all batches so far."""

    seconds: float = 0.0
    right: int = 0

    def add(self, compute: Callable[[], Tensor], labels: Tensor, device: torch.device) -> None:
        """Time one batch, and compare its answers with the labels."""
        _finish(device)
        began = time.perf_counter()
        answer = compute()
        _finish(device)
        self.seconds += time.perf_counter() - began
        self.right += int((answer.cpu() == labels).sum())


def _in_turns(
    net: GlanceFocus,
    backbone: Callable[[Tensor], Tensor],
    rule: ExitRule,
    scene: ImageBatch | ClipBatch,
    labels: Tensor,
    totals: tuple[_Total, _Total],
    *,
    backbone_first: bool,
) -> Outcome:
    """Both on one batch, one after the other; returns the outcome of the looks.

    totals  of glancefocus and of the backbone
    """
    whole = scene.whole
    outcomes: list[Outcome] = []

    def look() -> Tensor:
        outcomes.append(look_until_sure(net, scene, rule))
        return outcomes[0].answer

    def answer() -> Tensor:
        return backbone(whole).argmax(dim=1)

    ways = list(zip(totals, (look, answer), strict=True))
    for total, compute in reversed(ways) if backbone_first else ways:
        total.add(compute, labels, whole.device)
    return outcomes[0]


def _finish(device: torch.device) -> None:
    """Wait until a GPU has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
