"""Several splits as one, none of them copied."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from glancefocus.data.splits import Batch, Split


class JoinedSplit:
    """The images of several splits, one after the other, to measure on; training does not use it."""

    def __init__(self, parts: Sequence[Split]) -> None:
        self.parts = list(parts)
        self.labels: Tensor = torch.cat([part.labels for part in parts]) if parts else torch.empty(0, dtype=torch.int64)
        self.boxes: Tensor | None = None
        self._ends = list(accumulate(len(part) for part in parts))

    @property
    def fixed(self) -> bool:
        return all(part.fixed for part in self.parts)

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, order: Sequence[Sequence[int]], seed: int | None = None, workers: int = 0) -> Iterator[Batch]:
        for indexes in order:
            found = list(self._of_parts(indexes, seed, workers))
            images, labels = torch.cat([images for images, _ in found]), torch.cat([labels for _, labels in found])
            part_by_part = torch.tensor(sorted(range(len(indexes)), key=lambda place: self._part(indexes[place])))
            asked = part_by_part.argsort()
            yield images[asked], labels[asked]

    def _part(self, index: int) -> int:
        return bisect_right(self._ends, index)

    def _of_parts(self, indexes: Sequence[int], seed: int | None, workers: int) -> Iterator[Batch]:
        """The images of a batch, those of each part together."""
        for number, part in enumerate(self.parts):
            start = self._ends[number] - len(part)
            own = [index - start for index in indexes if self._part(index) == number]
            if own:
                yield from part.batches([own], seed, workers)
