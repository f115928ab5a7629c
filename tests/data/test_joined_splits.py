"""Several splits as one: images come in the order that is asked for, wherever they lie."""

import torch

from glancefocus.data.labelled import JoinedSplit
from glancefocus.data.splits import MemorySplit
from glancefocus.settings import ViewSettings

PLAIN = ViewSettings(fit="whole", height_px=8, width_px=8, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


def split_of(*values: int) -> MemorySplit:
    images = torch.stack([torch.full((3, 8, 8), value, dtype=torch.uint8) for value in values])
    return MemorySplit(images, torch.tensor(values), PLAIN)


def test_batches_across_the_parts_come_in_the_order_that_is_asked_for() -> None:
    joined = JoinedSplit([split_of(10, 11), split_of(20), split_of(30, 31, 32)])
    assert len(joined) == 6
    assert joined.labels.tolist() == [10, 11, 20, 30, 31, 32]
    assert joined.fixed
    for order, expected in (([5, 0, 3, 2, 1], [32, 10, 30, 20, 11]), ([2], [20]), ([1, 1, 4], [11, 11, 31])):
        ((images, labels),) = joined.batches([order])
        assert labels.tolist() == expected
        assert (images[:, 0, 0, 0] * 255).round().tolist() == expected
    assert [labels.tolist() for _, labels in joined.batches([[0, 1], [2, 3]])] == [[10, 11], [20, 30]]
