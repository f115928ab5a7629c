"""Training images, augmented as in training, for choosing thresholds on them (released code of the paper)."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from glancefocus.data.augmentation import AugmentSettings, mix
from glancefocus.data.splits import Batch, FileSplit, Split


class TrainingViews:
    """A number of training images, each augmented at random. Images repeat, with other augmentations, if there are fewer.

    split    the training images
    count    how many are seen: each image once before any is seen again
    augment  of training; images of built-in data sets have their own
    """

    def __init__(self, split: Split, count: int, augment: AugmentSettings, seed: int = 0) -> None:
        self.split: Split = replace(split, augment=augment) if isinstance(split, FileSplit) else split
        self.augment = augment
        self.seed = seed
        passes = -(-count // len(split))
        orders = [
            torch.randperm(len(split), generator=torch.Generator().manual_seed(mix(seed, number)))
            for number in range(passes)
        ]
        self.rows = torch.cat(orders)[:count]
        self.labels: Tensor = split.labels[self.rows]
        self.boxes: Tensor | None = None

    @property
    def fixed(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, order: Sequence[Sequence[int]], seed: int | None = None, workers: int = 0) -> Iterator[Batch]:
        """See Split.batches; the same images every time, whatever the seed."""
        for indexes in order:
            found: dict[int, tuple[Tensor, Tensor]] = {}
            for number in sorted({index // len(self.split) for index in indexes}):
                own = [index for index in indexes if index // len(self.split) == number]
                rows = self.rows[own].tolist()
                ((images, labels),) = self.split.batches([rows], mix(self.seed, number), workers)
                found |= {index: (images[i], labels[i]) for i, index in enumerate(own)}
            yield (
                torch.stack([found[index][0] for index in indexes]),
                torch.stack([found[index][1] for index in indexes]),
            )
