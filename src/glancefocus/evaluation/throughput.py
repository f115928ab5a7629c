"""Images per second over a whole split, as in the paper's table of throughput: the time of reading images is left out."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from glancefocus.data.splits import Split, in_order, scene_batches
from glancefocus.look import Scene, as_batch
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
    seconds, right = {"glancefocus": 0.0, "backbone": 0.0}, {"glancefocus": 0, "backbone": 0}
    exits, spent, done = torch.zeros(costs.looks, dtype=torch.int64), 0.0, 0

    def timed(name: str, compute: Callable[[], Tensor], labels: Tensor) -> None:
        _finish(where)
        began = time.perf_counter()
        answer = compute()
        _finish(where)
        seconds[name] += time.perf_counter() - began
        right[name] += int((answer.cpu() == labels).sum())

    with torch.inference_mode():
        for number, (images, labels) in enumerate(
            scene_batches(split, view, in_order(len(split), batch), None, workers)
        ):
            scene = as_batch(images.to(where), view)
            whole = scene.whole
            if number == 0:
                look_until_sure(net, scene, rule)
                backbone(whole)
            outcomes: list[Outcome] = []

            def look(scene: Scene = scene, outcomes: list[Outcome] = outcomes) -> Tensor:
                outcomes.append(look_until_sure(net, scene, rule))
                return outcomes[-1].answer

            def answer(whole: Tensor = whole) -> Tensor:
                return backbone(whole).argmax(dim=1)

            ways: dict[str, Callable[[], Tensor]] = {"glancefocus": look, "backbone": answer}
            for name in ways if number % 2 == 0 else reversed(list(ways)):
                timed(name, ways[name], labels)
            looks = outcomes[0].looks.cpu()
            exits += torch.bincount(looks, minlength=costs.looks + 1)[1:]
            spent += float(costs.spent(looks, outcomes[0].candidate, outcomes[0].aims_first).sum())
            done += len(labels)
            if progress is not None:
                progress(done, len(split))
    return Throughput(
        images=done,
        batch=batch,
        device=device,
        glancefocus_per_second=done / seconds["glancefocus"],
        backbone_per_second=done / seconds["backbone"],
        accuracy=right["glancefocus"] / done,
        backbone_accuracy=right["backbone"] / done,
        mac_ratio=costs.backbone_macs * done / spent,
        exits=exits.tolist(),
    )


def _finish(device: torch.device) -> None:
    """Wait until a GPU has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
