"""Training on pictures that are too large to be decoded: only as much of them is read as the network sees."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from glancefocus.data.augmentation import AugmentSettings
from glancefocus.data.images import read_picture, view_picture
from glancefocus.data.large import is_huge, read_shrunk
from glancefocus.data.sources import DataSettings, open_data
from glancefocus.data.splits import FileSplit, HeldPictures, MemorySplit
from glancefocus.settings import ViewSettings

pytest.importorskip("pyvips")
VIEW = ViewSettings("crop", 32, 32)


def test_a_huge_picture_is_read_at_twice_the_size_that_is_needed(large_pictures: Path) -> None:
    file = large_pictures / "a" / "0.tif"
    assert is_huge(file)
    small = read_shrunk(file, 40)
    assert small.size == (106, 80)  # 2 x 40 px, and 4/3 of that
    exact = read_picture(file).resize(small.size, Image.Resampling.BILINEAR)
    assert np.abs(np.asarray(small, np.int16) - np.asarray(exact, np.int16)).mean() < 1
    Image.new("RGB", (50, 40)).save(large_pictures / "small.png")
    assert not is_huge(large_pictures / "small.png")
    assert read_shrunk(large_pictures / "small.png", 40).size == (50, 40)
    assert not is_huge(large_pictures / "missing.png")


@pytest.mark.parametrize(
    ("changes", "kind"), [({"hold_mib": 0}, FileSplit), ({}, HeldPictures), ({"in_memory": True}, MemorySplit)]
)
def test_no_split_decodes_a_huge_picture_whole(
    changes: dict[str, object], kind: type, large_pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("a huge picture was decoded whole")

    expected = view_picture(read_picture(large_pictures / "a" / "0.tif"), VIEW)[0]
    for module in ("large", "splits"):
        monkeypatch.setattr(f"glancefocus.data.{module}.read_picture", refuse)
    augment = AugmentSettings(crop=0.5)
    settings = DataSettings(str(large_pictures), workers=0, augment=augment, **changes)  # type: ignore[arg-type]
    data = open_data(settings, VIEW)
    assert isinstance(data.train, kind)
    assert data.bad_files == []
    for split, seed in ((data.train, 1), (data.val, None)):
        images, labels = next(iter(split.batches([[0, 1]], seed)))
        assert images.shape == (2, 3, 32, 32)
        assert labels.shape == (2,)
    first = FileSplit([large_pictures / "a" / "0.tif"], torch.tensor([0]), VIEW, augment)
    seen, _ = next(iter(first.batches([[0]])))
    assert float((seen[0] - expected).abs().mean()) < 0.03
