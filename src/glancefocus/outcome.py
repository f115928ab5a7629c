"""What came of looking: the answer of every image, how many looks it took, where they went, and what they cost."""

import math
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
    """Fills outcomes while the loop runs. Every glance adds its rows; what is finished at the front can be taken away."""

    def __init__(self, looks: int) -> None:
        self.max_looks = looks
        self._glances = 0
        self._taken = 0
        self._table: dict[str, Tensor] = {}

    def record(self, look: Look, leaving: Tensor, sure: Tensor) -> None:
        """Write down this look of every row in it, and the answer of those that leave."""
        if look.number == 1:
            self._add_rows(look)
        table, count = self._table, look.count
        # Rows are in order as long as they are those of one glance.
        everybody = self._glances == 1 and count == table["looks"].shape[0]
        rows: Any = slice(None) if everybody else look.rows - self._taken if self._taken else look.rows
        notes = _notes(look)
        table["seen"][rows, look.number - 1, : notes.shape[1]] = notes
        leaving_count = int(leaving.count_nonzero())
        if leaving_count == 0:
            return
        logits = look.logits.detach()
        if leaving_count < count:
            rows, logits, sure = look.rows[leaving] - self._taken, logits[leaving], sure[leaving]
        table["logits"][rows] = logits
        table["sure"][rows] = sure
        table["looks"][rows] = look.number

    def finish(self, **more: Any) -> Outcome:
        """The outcome of every row that was not taken yet."""
        return self.take(self._table["looks"].shape[0], **more)

    def finished(self, count: int) -> bool:
        """Whether the first so many rows have left."""
        return bool((self._table["looks"][:count] > 0).all())

    def take(self, count: int, **more: Any) -> Outcome:
        """The outcome of the first so many rows, which are then forgotten."""
        front = {name: column[:count] for name, column in self._table.items()}
        self._table = {name: column[count:] for name, column in self._table.items()}
        self._taken += count
        seen, looks = front["seen"], front["looks"]
        answer_after, confidence_after = seen[:, :, 0].long(), seen[:, :, 1]
        last = (looks - 1)[:, None]
        return Outcome(
            answer=answer_after.gather(1, last)[:, 0],
            confidence=confidence_after.gather(1, last)[:, 0],
            looks=looks,
            sure=front["sure"],
            logits=front["logits"],
            where=seen[:, 1:, 2:4],
            patch_px=seen[:, 1:, 4].long(),
            answer_after=answer_after,
            confidence_after=confidence_after,
            **more,
        )

    def _add_rows(self, look: Look) -> None:
        self._glances += 1
        count, device = look.count, look.logits.device
        fresh = {
            "seen": torch.tensor(_NO_LOOK, device=device).repeat(count, self.max_looks, 1),
            "logits": torch.zeros_like(look.logits, requires_grad=False),
            "sure": torch.zeros(count, dtype=torch.bool, device=device),
            "looks": torch.zeros(count, dtype=torch.int64, device=device),
        }
        old = self._table
        self._table = {name: torch.cat([old[name], column]) for name, column in fresh.items()} if old else fresh


# Of each look of each row one line of floats, so that a look is written down in one go: answer, confidence, y, x, patch_px.
_NO_LOOK = (-1.0, math.nan, math.nan, math.nan, 0.0)


def _notes(look: Look) -> Tensor:
    """(B, 5) what is written down about a look, (B, 2) about a glance; classes and sizes are small enough to be exact."""
    confidence, answer = look.best
    seen = torch.stack([answer.float(), confidence.detach()], dim=1)
    if look.aim is None:
        return seen
    px = look.px[:, None].float() if isinstance(look.px, Tensor) else seen.new_full((look.count, 1), look.px)
    return torch.cat([seen, look.aim.where.detach().float(), px], dim=1)
