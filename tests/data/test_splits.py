"""Splits give the same batches in every process; augmentation depends on the index of the image and the seed only."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from glancefocus.data.augmentation import AugmentSettings, mix
from glancefocus.data.splits import FileSplit, MemorySplit, followed, in_order, shuffled
from glancefocus.errors import BadData, BadSetting
from glancefocus.settings import ViewSettings

SMALL = ViewSettings(fit="crop", height_px=16, width_px=24)


def files(folder: Path, count: int = 6, sizes: tuple[tuple[int, int], ...] = ((40, 50),)) -> list[Path]:
    paths = []
    for number in range(count):
        height, width = sizes[number % len(sizes)]
        array = np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8)
        paths.append(folder / f"{number}.png")
        Image.fromarray(array).save(paths[-1])
    return paths


def split_of(paths: list[Path], view: ViewSettings = SMALL, crop: float = 0.08, flip: bool = True) -> FileSplit:
    return FileSplit(paths, torch.arange(len(paths)) % 2, view, AugmentSettings(crop, flip))


def test_augmentation_follows_the_seed_and_the_images_number_only(tmp_path: Path) -> None:
    split = split_of(files(tmp_path))
    together = next(iter(split.batches([[0, 1, 2, 3, 4, 5]], seed=7)))[0]
    torch.manual_seed(99)
    backwards = torch.cat([images for images, _ in split.batches([[5, 4], [3], [2, 1, 0]], seed=7)]).flip(0)
    assert torch.equal(together, backwards)
    assert not torch.equal(together, next(iter(split.batches([[0, 1, 2, 3, 4, 5]], seed=8)))[0])
    assert tuple(together.shape) == (6, 3, 16, 24)


def test_workers_change_nothing(tmp_path: Path) -> None:
    split = split_of(files(tmp_path))
    here, there = (list(split.batches([[0, 1, 2], [5, 4, 3]], seed=7, workers=workers)) for workers in (0, 1))
    for (images, labels), (images_there, labels_there) in zip(here, there, strict=True):
        assert torch.equal(images, images_there)
        assert torch.equal(labels, labels_there)
    assert [labels.tolist() for _, labels in here] == [[0, 1, 0], [1, 0, 1]]


def test_augmenting_draws_nothing_from_the_generator_of_the_process(tmp_path: Path) -> None:
    split = split_of(files(tmp_path, 1))
    drawn = []
    for seed in (None, 3):
        torch.manual_seed(0)
        list(split.batches([[0]], seed=seed))
        drawn.append(torch.rand(1))
    assert torch.equal(*drawn)


def test_without_crop_and_flip_training_sees_what_evaluation_sees(tmp_path: Path) -> None:
    split = split_of(files(tmp_path), crop=1, flip=False)
    plain, augmented = (next(iter(split.batches([range(6)], seed=seed)))[0] for seed in (None, 7))
    assert torch.equal(plain, augmented)


def test_with_flips_only_an_image_is_as_it_is_or_mirrored(tmp_path: Path) -> None:
    split = split_of(files(tmp_path), crop=1)
    plain, flipped = (next(iter(split.batches([range(6)], seed=seed)))[0] for seed in (None, 2))
    mirrored = [torch.equal(one.flip(-1), other) for one, other in zip(plain, flipped, strict=True)]
    same = [torch.equal(one, other) for one, other in zip(plain, flipped, strict=True)]
    assert [a != b for a, b in zip(mirrored, same, strict=True)] == [True] * 6
    assert any(mirrored)
    assert any(same)


def test_images_in_memory_are_those_of_the_files(tmp_path: Path) -> None:
    split = split_of(files(tmp_path))
    reported: list[tuple[int, int]] = []
    held = split.in_memory(lambda done, total: reported.append((done, total)))
    assert held.images.dtype == torch.uint8
    order = [[0, 3], [5, 1]]
    for (images, labels), (images_held, labels_held) in zip(split.batches(order), held.batches(order), strict=True):
        torch.testing.assert_close(images, images_held, rtol=0, atol=1e-5)
        assert torch.equal(labels, labels_held)
        assert images_held.is_contiguous(memory_format=torch.channels_last)
    assert reported == [(number, 6) for number in range(1, 7)]


def test_flips_in_memory_follow_the_image_and_not_its_place(tmp_path: Path) -> None:
    # A resumed epoch starts in the middle of its order, and processes take every second image of a batch.
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (400, 3, 8, 8), dtype=torch.uint8, generator=generator)
    split = MemorySplit(images, torch.zeros(400, dtype=torch.long), ViewSettings(fit="whole"), flip=True)
    order = [list(range(200)), list(range(200, 400))]
    first, second = (batch for batch, _ in split.batches(order, seed=5))
    assert torch.equal(next(iter(split.batches(order[1:], seed=5)))[0], second)
    assert torch.equal(next(iter(split.batches([order[0][1::2]], seed=5)))[0], first[1::2])
    plain = next(iter(split.batches([order[0]])))[0]
    flipped = [torch.equal(one, other.flip(-1)) for one, other in zip(first, plain, strict=True)]
    assert 70 < sum(flipped) < 130  # half of 200
    assert next(iter(split.batches([order[0]], seed=6)))[0].ne(first).any()


@pytest.mark.parametrize("shape", [(3, 9, 12), (2, 3, 9, 12)], ids=["images", "clips"])
def test_a_shift_is_a_crop_out_of_the_image_with_its_edge_repeated(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (60, *shape), dtype=torch.uint8, generator=generator)
    split = MemorySplit(images, torch.zeros(60, dtype=torch.long), ViewSettings(fit="whole"), shift_px=2)
    moved = next(split.pixel_batches([range(60)], seed=3))[0]
    found = set()
    for image, one in zip(images, moved, strict=True):
        padded = np.pad(image.numpy(), [(0, 0)] * (len(shape) - 2) + [(2, 2), (2, 2)], mode="edge")
        places = [(y, x) for y in range(5) for x in range(5)]
        found.update(
            place for place in places if np.array_equal(padded[..., place[0] :, place[1] :][..., :9, :12], one)
        )
    assert {y for y, _ in found} == {x for _, x in found} == {0, 1, 2, 3, 4}
    assert len(found) > 12  # both axes for themselves
    assert torch.equal(next(split.pixel_batches([range(60)]))[0], images)
    assert torch.equal(next(split.pixel_batches([[7, 50]], seed=3))[0], moved[[7, 50]])
    assert not torch.equal(next(split.pixel_batches([range(60)], seed=4))[0], moved)


def test_files_are_shifted_as_images_in_memory_are(tmp_path: Path) -> None:
    paths = files(tmp_path)
    split = FileSplit(paths, torch.arange(6) % 2, SMALL, AugmentSettings(crop=1, flip=False, shift_px=3))
    read, held = (next(iter(one.batches([range(6)], seed=7)))[0] for one in (split, split.in_memory()))
    torch.testing.assert_close(read, held, rtol=0, atol=1e-5)
    assert not torch.equal(read, next(iter(split.batches([range(6)])))[0])


@pytest.mark.parametrize("wrong", [{"crop": 0.0}, {"crop": 1.5}, {"shift_px": -1}, {"shift_px": 1.5}])
def test_augmentation_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadSetting, match=f"{next(iter(wrong))} must be a .* but got"):
        AugmentSettings(**wrong)


def test_a_shift_that_would_leave_nothing_is_refused() -> None:
    split = MemorySplit(
        torch.zeros(1, 3, 8, 40), torch.zeros(1, dtype=torch.long), ViewSettings(fit="whole"), shift_px=5
    )
    with pytest.raises(BadSetting, match=r"shift_px is 5, .* image of 8x40 px .* at most half"):
        next(split.pixel_batches([[0]], seed=1))


def test_different_sizes_are_refused_with_what_to_do(tmp_path: Path) -> None:
    split = split_of(files(tmp_path, sizes=((40, 50), (30, 60))), view=ViewSettings(fit="whole"))
    sentence = (
        r"images of one size, but got \(30, 60\) and \(40, 50\) px. Crop or stretch them .* --fit crop or --fit stretch"
    )
    with pytest.raises(BadData, match=sentence):
        list(split.batches([[0, 1]]))
    with pytest.raises(BadData, match=sentence):
        split.in_memory()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_breaks_later_is_one_sentence_also_out_of_a_worker(workers: int, tmp_path: Path) -> None:
    paths = files(tmp_path)
    paths[1].write_bytes(b"no picture")
    with pytest.raises(BadData) as error:
        list(split_of(paths).batches([[0, 1]], seed=1, workers=workers))
    assert "1.png" in str(error.value)
    assert "Remove the file" in str(error.value)
    assert "Traceback" not in str(error.value)


STILL_READING = """
import sys
from pathlib import Path

import torch

from glancefocus.data.splits import FileSplit
from glancefocus.data.augmentation import AugmentSettings
from glancefocus.settings import ViewSettings

if __name__ == "__main__":
    files = sorted(Path(sys.argv[1]).glob("*.png"))
    split = FileSplit(files, torch.zeros(len(files), dtype=torch.int64), ViewSettings(height_px=16, width_px=16), AugmentSettings())
    batches = split.batches([[0], [1], [2]], workers=1)
    print(next(batches)[0].shape[0])  # the split, and the worker that it keeps, are alive when Python exits
"""


def test_a_program_ends_although_a_worker_is_still_running(tmp_path: Path) -> None:
    files(tmp_path)
    script = tmp_path / "script.py"
    script.write_text(STILL_READING)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=120, check=True
    )
    assert (done.stdout.strip(), done.stderr) == ("1", "")


def test_every_image_comes_once_in_order_also_in_a_last_short_batch() -> None:
    assert in_order(5, 2) == [[0, 1], [2, 3], [4]]
    assert in_order(0, 2) == []


def test_a_shuffled_order_holds_each_index_once_and_repeats_by_its_seed() -> None:
    order = shuffled(23, 5, seed=3)
    assert [len(batch) for batch in order] == [5, 5, 5, 5]  # the incomplete last one is left out
    indexes = [index for batch in order for index in batch]
    assert len(set(indexes)) == 20
    assert set(indexes) <= set(range(23))
    assert order == shuffled(23, 5, seed=3)
    assert order != shuffled(23, 5, seed=4)
    assert indexes != sorted(indexes)


def test_a_batch_larger_than_the_data_is_all_of_it() -> None:
    (batch,) = shuffled(3, 64, seed=0)
    assert sorted(batch) == [0, 1, 2]


def test_mixed_seeds_are_63_bits_and_neighbours_share_nothing() -> None:
    seeds = {mix(seed, stage, epoch) for seed in range(10) for stage in range(10) for epoch in range(10)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert mix(1, 2) != mix(2, 1)
    assert mix(0) != mix(0, 0)
    apart = [bin(mix(0, number) ^ mix(0, number + 1)).count("1") for number in range(500)]
    assert 26 < sum(apart) / 500 < 37  # about half of 63 bits


@pytest.mark.parametrize("augment", [{"shift_px": 4}, {"flip": True}, {"flip": True, "shift_px": 4}, {}])
def test_places_follow_their_images(augment: dict[str, Any]) -> None:
    images = torch.zeros(40, 3, 20, 30, dtype=torch.uint8)
    places = torch.stack([torch.randint(5, 15, (40,)), torch.randint(5, 25, (40,))], dim=1)
    images[torch.arange(40), :, places[:, 0], places[:, 1]] = 255
    split = MemorySplit(images, torch.zeros(40, dtype=torch.long), ViewSettings(fit="whole"), **augment)
    rows = torch.randperm(40)[:25]
    augmented, _ = next(split.pixel_batches([rows.tolist()], seed=7))
    marked = torch.stack([image[0].nonzero()[0] for image in augmented])
    found = followed(split, places[rows] + 0.5, rows, 7)  # the middle of that pixel
    assert found is not None
    torch.testing.assert_close(found, marked + 0.5)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_split_can_be_read_in_the_middle_of_reading_it(workers: int, tmp_path: Path) -> None:
    split = split_of(files(tmp_path), crop=1.0, flip=False)
    order = [[0, 1], [2, 3], [4, 5]]
    plain = [images for images, _ in split.batches(order)]
    got = []
    for number, (images, _) in enumerate(split.batches(order, workers=workers)):
        got.append(images)
        if number == 0:
            within = [images for images, _ in split.batches(order[::-1], workers=workers)]
            assert torch.equal(torch.cat(within), torch.cat(plain[::-1]))
    assert torch.equal(torch.cat(got), torch.cat(plain))


def test_points_cannot_be_followed_through_random_crops(tmp_path: Path) -> None:
    split = FileSplit([tmp_path / "a.png"], torch.zeros(1), SMALL, AugmentSettings(crop=0.5, flip=False))
    assert followed(split, torch.zeros(1, 2), torch.zeros(1, dtype=torch.long), 1) is None
