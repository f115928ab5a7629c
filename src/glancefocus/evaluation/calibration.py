"""How far confidences can be trusted: temperatures that calibrate them, reliability and the calibration error."""

from collections.abc import Sequence
from typing import TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor

from glancefocus.data.splits import Split, in_order, scene_batches
from glancefocus.exits.rule import every_look
from glancefocus.look import Look
from glancefocus.loop import run_looks
from glancefocus.network.model import GlanceFocus
from glancefocus.scene import as_batch

# One temperature per look is fitted; more images would hardly change it, but keep more logits in memory.
MOST_IMAGES = 4096


class LogitsOfLooks:
    """A recorder for the loop that keeps the logits of every look."""

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
    """(T,) the temperature of each look that minimises the cross-entropy, on these rows; with patches of the largest size.

    device  the network's device; None: the CPU
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


class Bin(TypedDict):
    """Answers with similar confidence: their mean confidence, the share that is right, and their number."""

    confidence: float
    accuracy: float
    count: float


def reliability(confidence: Tensor, correct: Tensor, bins: int = 10) -> tuple[list[Bin], float]:
    """The reliability diagram: bins of equal width over the confidence, and the expected calibration error in [0, 1]."""
    which = (confidence * bins).long().clamp(0, bins - 1)
    found: list[Bin] = []
    error = 0.0
    for number in range(bins):
        inside = which == number
        count = int(inside.sum())
        mean = float(confidence[inside].mean()) if count else (number + 0.5) / bins
        share = float(correct[inside].float().mean()) if count else 0.0
        found.append({"confidence": mean, "accuracy": share, "count": float(count)})
        error += count / len(confidence) * abs(mean - share)
    return found, error
