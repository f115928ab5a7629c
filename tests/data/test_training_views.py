"""Training images as training sees them: each once before any is seen again, with another augmentation each time."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from glancefocus.data.augmentation import AugmentSettings
from glancefocus.data.labelled import TrainingViews
from glancefocus.data.splits import FileSplit, MemorySplit
from glancefocus.settings import ViewSettings

VIEW = ViewSettings(height_px=16, width_px=16)


def files_of(folder: Path, count: int) -> FileSplit:
    files = []
    for number in range(count):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        files.append(folder / f"{number}.png")
        Image.fromarray(pixels).save(files[-1])
    return FileSplit(files, torch.arange(count), VIEW, AugmentSettings(crop=1.0, flip=False))


def test_images_repeat_with_other_augmentations(tmp_path: Path) -> None:
    views = TrainingViews(files_of(tmp_path, 3), 7, AugmentSettings())
    assert len(views) == 7
    assert views.fixed
    labels = views.labels.tolist()
    assert sorted(labels[:3]) == sorted(labels[3:6]) == [0, 1, 2]
    ((images, given),) = views.batches([range(7)])
    assert given.tolist() == labels
    first, second = labels.index(0), 3 + labels[3:6].index(0)
    assert not torch.equal(images[first], images[second])
    # The same again, in any batches and whatever the seed.
    again = torch.cat([images for images, _ in views.batches([[0, 4], [1], [2, 3, 5, 6]], seed=9)])
    assert torch.equal(again, images[[0, 4, 1, 2, 3, 5, 6]])


def test_fewer_images_than_there_are_is_a_part_of_them() -> None:
    split = MemorySplit(torch.zeros(50, 3, 8, 8, dtype=torch.uint8), torch.arange(50), VIEW)
    views = TrainingViews(split, 20, AugmentSettings())
    assert len(set(views.labels.tolist())) == 20
    assert views.labels.tolist() != list(range(20))
