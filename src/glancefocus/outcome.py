"""What came of looking: the answer of every image, how many looks it took, where they went, and what they cost."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from glancefocus.costs import Costs
from glancefocus.look import Look


@dataclass(frozen=True)
class Outcome:
    """One row an image; T is the largest number of looks.

    answer      (N,) index of the class
    confidence  (N,) softmax probability of that class
    looks       (N,) how many looks it took, the glance included
    sure        (N,) it stopped because it was sure; otherwise it was out of looks
    logits      (N, classes) at the last look taken
    where       (N, T - 1, 2) as (y, x) in [0, 1]; NaN where there was no look
    patch_px    (N, T - 1) side of each patch; 0 where there was no look
    answer_after, confidence_after  (N, T) after each look; -1 and NaN where there was none
    aims_first  the policy had aimed before an image could leave, and that was paid for
    """

    answer: Tensor
    confidence: Tensor
    looks: Tensor
    sure: Tensor
    logits: Tensor
    where: Tensor
    patch_px: Tensor
    answer_after: Tensor
    confidence_after: Tensor
    classes: tuple[str, ...] | None = None
    costs: Costs | None = None
    aims_first: bool = False

    def __len__(self) -> int:
        return int(self.answer.shape[0])

    @property
    def out_of_looks(self) -> Tensor:
        return ~self.sure

    @property
    def label(self) -> list[str]:
        """The name of each answer; its number where the classes have no names."""
        return [self.name(index) for index in self.answer.tolist()]

    @property
    def cost_macs(self) -> Tensor:
        """(N,) multiply-adds that each image really cost."""
        if self.costs is None:
            raise ValueError("this outcome was recorded without a table of costs")
        return self.costs.spent(self.looks, self.patch_px, self.aims_first)

    def name(self, index: int) -> str:
        return str(index) if self.classes is None else self.classes[index]

    def top(self, row: int, k: int) -> list[tuple[str, float]]:
        """The k likeliest classes of one image with their probabilities."""
        probabilities, indexes = self.logits[row].float().softmax(dim=0).topk(min(k, self.logits.shape[1]))
        return [(self.name(i), p) for i, p in zip(indexes.tolist(), probabilities.tolist(), strict=True)]

    @staticmethod
    def join(parts: Sequence["Outcome"]) -> "Outcome":
        """One outcome of several batches, in their order."""
        tensors: dict[str, Any] = {
            name: torch.cat([getattr(part, name) for part in parts])
            for name, value in vars(parts[0]).items()
            if isinstance(value, Tensor)
        }
        return replace(parts[0], **tensors)


class OutcomeRecorder:
    """Fills an outcome while the loop runs."""

    def __init__(self, looks: int) -> None:
        self.max_looks = looks
        self._table: dict[str, Any] = {}

    def record(self, look: Look, leaving: Tensor, sure: Tensor) -> None:
        """Write down this look of every row in it, and the answer of those that leave."""
        if not self._table:
            self._table = self._empty(look)
        table, column = self._table, look.number - 1
        logits = look.logits.detach()
        confidence, answer = logits.float().softmax(dim=1).max(dim=1)
        table["answer_after"][look.rows, column] = answer
        table["confidence_after"][look.rows, column] = confidence
        if look.aim is not None:
            table["where"][look.rows, column - 1] = look.aim.where.detach().float()
            table["patch_px"][look.rows, column - 1] = torch.as_tensor(look.px, device=logits.device)
        rows = look.rows[leaving]
        table["answer"][rows] = answer[leaving]
        table["confidence"][rows] = confidence[leaving]
        table["logits"][rows] = logits[leaving]
        table["sure"][rows] = sure[leaving]
        table["looks"][rows] = look.number

    def finish(self, **more: Any) -> Outcome:
        return Outcome(**self._table, **more)

    def _empty(self, look: Look) -> dict[str, Tensor]:
        count, device = look.count, look.logits.device
        focus_looks = self.max_looks - 1

        def whole(*shape: int, fill: int = 0) -> Tensor:
            return torch.full(shape, fill, dtype=torch.int64, device=device)

        def real(*shape: int, fill: float = 0.0) -> Tensor:
            return torch.full(shape, fill, dtype=torch.float32, device=device)

        return {
            "answer": whole(count),
            "confidence": real(count),
            "looks": whole(count),
            "sure": torch.zeros(count, dtype=torch.bool, device=device),
            "logits": torch.zeros_like(look.logits, requires_grad=False),
            "where": real(count, focus_looks, 2, fill=torch.nan),
            "patch_px": whole(count, focus_looks),
            "answer_after": whole(count, self.max_looks, fill=-1),
            "confidence_after": real(count, self.max_looks, fill=torch.nan),
        }
