"""What came of looking: the answer of every image, how many looks it took, where they went, and what they cost."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glancefocus.costs import Costs
from glancefocus.look import Look


@dataclass(frozen=True)
class Outcome:
    """One row an image; T is the largest number of looks.

    answer      (N,) index of the class
    confidence  (N,) softmax probability of that class
    looks       (N,) how many looks it took, the glance included
    sure        (N,) it stopped because its score was above its threshold, see thresholds; otherwise it was out of looks, or of
                time. That says nothing of how large the score is: a threshold may be below one half.
    logits      (N, classes) at the last look taken
    where       (N, T - 1, 2) as (y, x) in [0, 1]; NaN where there was no look
    patch_px    (N, T - 1) side of each patch; 0 where there was no look
    answer_after, confidence_after  (N, T) after each look; -1 and NaN where there was none
    aims_first  the policy had aimed before an image could leave, and that was paid for
    thresholds  what the score had to be above to stop after each look; None where that is not known
    score       what was compared with them: confidence, entropy, ...
    notes       what is odd about each image, such as that it was upscaled; empty: nothing is odd about any
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
    thresholds: tuple[float, ...] | None = None
    score: str = "confidence"
    notes: tuple[tuple[str, ...], ...] = ()

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

    def threshold(self, row: int) -> float | None:
        """What the score of an image was above when it stopped; None where it was out of looks, or the threshold is not known."""
        if self.thresholds is None or not bool(self.sure[row]):
            return None
        return self.thresholds[int(self.looks[row]) - 1]

    def stopped(self, row: int) -> str:
        """Why an image stopped, for people: "above threshold 0.42", "out of looks" or "out of time"."""
        if not bool(self.sure[row]):
            most = self.where.shape[1] + 1
            return "out of looks" if int(self.looks[row]) == most else "out of time"
        threshold = self.threshold(row)
        if threshold is None:
            return "above its threshold"
        what = "above threshold" if self.score == "confidence" else f"{self.score} above"
        return f"{what} {threshold:.2f}" if abs(threshold) < math.inf else f"{what} {threshold}"

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
        notes: tuple[tuple[str, ...], ...] = ()
        if any(part.notes for part in parts):
            notes = tuple(itertools.chain.from_iterable(part.notes or ((),) * len(part) for part in parts))
        return replace(parts[0], **tensors, notes=notes)


class OutcomeRecorder:
    """Fills outcomes while the loop runs. Every glance adds its rows; what is finished at the front can be taken away.

    During the loop looks are only remembered. They are written down together when somebody asks, into arrays of numpy on the CPU:
    between two looks at a single image every step would cost several times as much, because a look leaves nothing in the caches.
    """

    def __init__(self, looks: int) -> None:
        self.max_looks = looks
        self._notes: list[tuple[Look, Tensor, Tensor]] = []
        self._glances = 0
        self._taken = 0
        self._table: dict[str, NDArray[Any]] = {}
        self._device = torch.device("cpu")

    def record(self, look: Look, leaving: Tensor, sure: Tensor) -> None:
        """Remember this look of every row in it, and who leaves."""
        self._notes.append((look, leaving, sure))

    def finish(self, **more: Any) -> Outcome:
        """The outcome of every row that was not taken yet."""
        self._write_down()
        return self.take(len(self._table["looks"]), **more)

    def finished(self, count: int) -> bool:
        """Whether the first so many rows have left."""
        self._write_down()
        return bool((self._table["looks"][:count] > 0).all())

    def take(self, count: int, **more: Any) -> Outcome:
        """The outcome of the first so many rows, which are then forgotten."""
        self._write_down()
        front = {name: column[:count] for name, column in self._table.items()}
        self._table = {name: column[count:] for name, column in self._table.items()}
        self._taken += count
        each, last = np.arange(len(front["looks"])), front["looks"] - 1
        noted = {
            "answer": front["answer"][each, last],
            "confidence": front["confidence"][each, last],
            "answer_after": front["answer"],
            "confidence_after": front["confidence"],
            **{name: front[name] for name in ("looks", "sure", "logits", "where", "patch_px")},
        }
        tensors: dict[str, Any] = {name: torch.from_numpy(a).to(self._device) for name, a in noted.items()}
        return Outcome(**tensors, **more)

    def _write_down(self) -> None:
        notes, self._notes = self._notes, []
        for note in notes:
            self._write(*note)

    def _write(self, look: Look, leaving: Tensor, sure: Tensor) -> None:
        logits = _array(look.logits)
        if look.number == 1:
            self._device = look.logits.device
            self._add_rows(logits)
        table, index = self._table, look.number - 1
        # Rows are in order as long as they are those of one glance.
        everybody = self._glances == 1 and len(logits) == len(table["looks"])
        rows: Any = slice(None) if everybody else _array(look.rows) - self._taken
        confidence, answer = look.best
        table["answer"][rows, index] = _array(answer)
        table["confidence"][rows, index] = _array(confidence)
        if look.aim is not None:
            table["where"][rows, index - 1] = _array(look.aim.where)
            table["patch_px"][rows, index - 1] = _array(look.px) if isinstance(look.px, Tensor) else look.px
        left, was_sure = _array(leaving), _array(sure)
        if not left.any():
            return
        if not left.all():
            rows, logits, was_sure = _array(look.rows)[left] - self._taken, logits[left], was_sure[left]
        table["logits"][rows] = logits
        table["sure"][rows] = was_sure
        table["looks"][rows] = look.number

    def _add_rows(self, logits: NDArray[Any]) -> None:
        self._glances += 1
        count, most = len(logits), self.max_looks
        fresh = {
            "answer": np.full((count, most), -1),
            "confidence": np.full((count, most), np.nan, np.float32),
            "where": np.full((count, most - 1, 2), np.nan, np.float32),
            "patch_px": np.zeros((count, most - 1), np.int64),
            "logits": np.zeros_like(logits),
            "sure": np.zeros(count, np.bool_),
            "looks": np.zeros(count, np.int64),
        }
        old = self._table
        self._table = {name: np.concatenate([old[name], column]) for name, column in fresh.items()} if old else fresh


def _array(tensor: Tensor) -> NDArray[Any]:
    """A tensor as an array, wherever it is; numpy has no bfloat16."""
    array: NDArray[Any] = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy(force=True)
    return array
