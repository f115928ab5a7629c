"""Splits whose batches are scenes: regions of large files are read on demand, glances once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from glancefocus.data.augmentation import AugmentSettings
from glancefocus.data.images import pixels_of, read_picture
from glancefocus.data.large import is_large
from glancefocus.data.lists import Pictures
from glancefocus.data.scene_splits import FileScenes, KeptViews, drawn_scenes, joined_images
from glancefocus.data.splits import FileSplit, first_images
from glancefocus.data.wide_signs import WideSignsSettings
from glancefocus.errors import BadData, BadSetting
from glancefocus.look import ImageBatch, as_batch, in_parts, size_of_first
from glancefocus.region import Region
from glancefocus.settings import View, ViewSettings, native, whole

pyvips = pytest.importorskip("pyvips")
VIEW = ViewSettings("whole", 32, 32)
PLAIN, MIRRORED = AugmentSettings(crop=1.0, flip=False), AugmentSettings(crop=1.0, flip=True)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two pyramids that are large here, and a small picture."""
    monkeypatch.setattr("glancefocus.data.large.LARGE_PIXELS", 10_000)
    rng = np.random.default_rng(0)
    for number, size in enumerate(((400, 300), (320, 300))):
        coarse = Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8))
        pixels = np.asarray(coarse.resize(size, Image.Resampling.BICUBIC))
        options: dict[str, Any] = {"tile": True, "tile_width": 64, "tile_height": 64, "pyramid": True}
        pyvips.Image.new_from_array(pixels).tiffsave(str(tmp_path / f"{number}.tif"), **options)
    Image.new("RGB", (90, 80), (9, 99, 9)).save(tmp_path / "2.png")
    return sorted(tmp_path.iterdir(), key=lambda file: file.name)


def split_of(files: list[Path], augment: AugmentSettings = PLAIN) -> FileScenes:
    split = Pictures().split(files, torch.arange(len(files)), VIEW, augment)
    assert isinstance(split, FileScenes)
    return split


def test_pictures_are_seen_through_regions_if_one_of_them_is_large(files: list[Path]) -> None:
    assert [is_large(file) for file in files] == [True, True, False]
    assert type(Pictures().split(files[2:], torch.zeros(1), VIEW, PLAIN)) is FileSplit
    assert type(Pictures().split(files, torch.zeros(3), ViewSettings("crop", 32, 32), PLAIN)) is FileSplit
    scene, labels = next(split_of(files).batches([[2, 0, 1]]))
    assert labels.tolist() == [2, 0, 1]
    assert scene.sizes == [(80, 90), (300, 400), (300, 320)]
    assert size_of_first(scene) == (80, 90)


def test_regions_are_those_of_the_pictures_in_memory(files: list[Path]) -> None:
    scene, _ = next(split_of(files).batches([[0, 1]]))
    for row in (0, 1):
        held = ImageBatch(pixels_of(read_picture(files[row]))[None], normalise_by=VIEW)
        for view, error in ((native(32), 0.0), (whole(32), 0.03), (View(32, 0.5), 0.03)):
            where = None if view.is_whole else torch.tensor([[0.3, 0.8]])
            alone = scene.keep(torch.tensor([row])).view(Region(view, where))
            assert (alone - held.view(Region(view, where))).abs().mean() <= error


def test_a_mirrored_scene_is_the_mirror_image(files: list[Path]) -> None:
    split = split_of(files, MIRRORED)
    assert not split.fixed
    plain, _ = next(split.batches([[0, 1, 2]]))
    # With this seed some of the pictures are mirrored, and some are not.
    mirrored, _ = next(split.batches([[0, 1, 2]], seed=3))
    glances = [scene.view(Region(whole(32))) for scene in (plain, mirrored)]
    turned = [not torch.equal(*(glance[row] for glance in glances)) for row in range(2)]
    assert True in turned
    row = turned.index(True)
    assert torch.equal(glances[0][row].flip(-1), glances[1][row])
    # 0 and 1 are the edges: there no rounding moves a region by a pixel
    left = plain.keep(torch.tensor([row])).view(Region(native(32), torch.tensor([[0.0, 0.0]])))
    right = mirrored.keep(torch.tensor([row])).view(Region(native(32), torch.tensor([[0.0, 1.0]])))
    assert torch.equal(left.flip(-1), right)


def test_glances_are_read_once(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from glancefocus.data.file_scene import FilePicture

    read: list[tuple[int, int]] = []
    part = FilePicture.part

    def counted(self: FilePicture, box: Any, size: tuple[int, int]) -> Any:
        read.append(size)
        return part(self, box, size)

    monkeypatch.setattr(FilePicture, "part", counted)
    split = split_of(files)
    first = [scene.view(Region(whole(32))) for scene, _ in split.batches([[0], [1]])]
    assert len(read) == 2
    again = [scene.view(Region(whole(32))) for scene, _ in split.batches([[0], [1]])]
    assert len(read) == 2
    assert torch.equal(torch.cat(first), torch.cat(again))
    few = first_images(split, 1)
    assert isinstance(few, FileScenes)
    assert len(few) == 1


def test_kept_views_have_a_limit() -> None:
    kept = KeptViews(limit_bytes=100)
    kept.keep(0, {whole(4): torch.zeros(60, dtype=torch.uint8)})
    kept.keep(1, {whole(4): torch.zeros(60, dtype=torch.uint8)})
    assert list(kept.of(0)) == [whole(4)]
    assert kept.of(1) == {}


def test_a_damaged_region_ends_training_with_a_sentence(files: list[Path]) -> None:
    batches = split_of(files).batches([[0], [1]])
    scene, _ = next(batches)
    scene.images[0].problems.append("0.tif is damaged.")
    with pytest.raises(BadData, match="0.tif is damaged. Remove the file"):
        next(batches)
    files[0].unlink()
    with pytest.raises(BadData, match="there is no file .*0.tif. Check the path. Remove the file"):
        next(split_of(files[1:] + files[:1]).batches([[2]]))


def test_what_large_files_cannot_do_is_refused(files: list[Path]) -> None:
    with pytest.raises(BadSetting, match="are only mirrored"):
        split_of(files, AugmentSettings(flip=False, light=0.5))
    with pytest.raises(BadSetting, match="Leave out --in-memory"):
        split_of(files).in_memory()


def test_scenes_can_be_joined_and_divided(files: list[Path]) -> None:
    scene, _ = next(split_of(files).batches([[0, 1, 2]]))
    parts = in_parts(scene, 2)
    assert [part.count for part in parts] == [2, 1]
    assert joined_images(parts).sizes == scene.sizes
    assert as_batch(scene, VIEW) is scene
    images = torch.zeros(3, 3, 8, 8)
    assert [len(part) for part in in_parts(images, 2)] == [2, 1]
    assert joined_images([images, scene]).count == 6


def test_scenes_of_several_sizes_take_turns_and_have_every_class() -> None:
    sizes = [WideSignsSettings(height=512, width=512), WideSignsSettings(height=1024, width=1024)]
    split = drawn_scenes("test", 20, sizes, VIEW, seed=0)
    scene, labels = next(split.batches([list(range(20))]))
    assert scene.sizes[:3] == [(512, 512), (1024, 1024), (512, 512)]
    for turn in (0, 1):
        assert torch.bincount(labels[turn::2]).tolist() == [2] * 5
    assert split.boxes is not None
    assert torch.allclose((split.boxes[:, :2] + split.boxes[:, 2:]) / 2, scene.centres, equal_nan=True, atol=0.01)
    other = drawn_scenes("val", 20, sizes, VIEW, seed=0)
    assert other.boxes is not None
    assert not torch.equal(other.boxes.nan_to_num(), split.boxes.nan_to_num())
