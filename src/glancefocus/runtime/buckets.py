"""Batches of a few sizes only, for runtimes that want fixed shapes: filled up to the next power of two, and cut back."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def bucket_of(batch: int) -> int:
    """The smallest power of two that holds a batch: 1, 2, 4, 8, ..."""
    return 1 << (batch - 1).bit_length()


def fill_up(tensor: Tensor, rows: int) -> Tensor:
    """The tensor with zeros behind it until it has so many rows; the same tensor where it has them already."""
    missing = rows - tensor.shape[0]
    return tensor if missing == 0 else torch.cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])])


def in_buckets(run: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]) -> list[Tensor]:
    """What `run` gives for these inputs, whose batch it sees filled up to its bucket."""
    batch = inputs[0].shape[0]
    bucket = bucket_of(batch)
    return [output[:batch] for output in run(*(fill_up(tensor, bucket) for tensor in inputs))]
