"""The look table: score and correctness of every image after every look. All that thresholds and curves are made of."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glancefocus.errors import BadData


@dataclass(frozen=True)
class LookTable:
    """One row an image, one column a look.

    score    (N, T) float32, the larger the surer; an image leaves where it is above the threshold
    correct  (N, T) bool
    macs     (T,) multiply-adds of leaving after each look
    """

    score: NDArray[np.float32]
    correct: NDArray[np.bool_]
    macs: NDArray[np.float64]

    def __post_init__(self) -> None:
        if self.score.shape != self.correct.shape or self.score.shape[1] != self.macs.shape[0]:
            raise BadData(
                f"a look table needs one score, one answer and one cost a look, but got {self.score.shape}, "
                f"{self.correct.shape} and {self.macs.shape}."
            )
        if np.isnan(self.score).any():
            raise BadData("the look table has scores that are not numbers; the network's answers are broken.")

    @property
    def looks(self) -> int:
        return int(self.score.shape[1])

    @property
    def accuracy_after_look(self) -> list[float]:
        return [float(share) for share in self.correct.mean(axis=0)]

    @staticmethod
    def of(answer_after: Tensor, confidence_after: Tensor, labels: Tensor, macs: tuple[int, ...]) -> "LookTable":
        """Out of an outcome for which every look was taken."""
        correct = answer_after.cpu() == labels.cpu()[:, None]
        return LookTable(
            confidence_after.cpu().to(torch.float32).numpy(), correct.numpy(), np.asarray(macs, dtype=np.float64)
        )

    def exits(self, thresholds: NDArray[np.float32]) -> NDArray[np.int64]:
        """(N,) the look, counted from 0, after which each image leaves; the last one lets everybody go."""
        leaves = self.score > thresholds[None, :]
        leaves[:, -1] = True
        return np.asarray(leaves.argmax(axis=1), dtype=np.int64)

    def point(self, thresholds: NDArray[np.float32]) -> dict[str, object]:
        """What these thresholds cost and achieve on this table."""
        looks = self.exits(thresholds)
        rows = np.arange(len(looks))
        return {
            "mean_macs": float(self.macs[looks].mean()),
            "accuracy": float(self.correct[rows, looks].mean()),
            "thresholds": [float(t) for t in thresholds],
            "exits_per_look": np.bincount(looks, minlength=self.looks).tolist(),
        }
