"""Clips go through one view, and when training all frames are cut alike, as TSM does."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from glancefocus.data.augmentation import AugmentSettings
from glancefocus.data.clips import ClipFileSplit, augmented_clip, multi_scale_crop, view_clip, view_clip_array
from glancefocus.data.images import view_picture
from glancefocus.data.splits import in_order, scene_batches
from glancefocus.errors import BadData, BadImage
from glancefocus.settings import ViewSettings

VIEW = ViewSettings(height_px=224, width_px=224)
SMALL = ViewSettings(height_px=32, width_px=32)


def frame_folder(folder: Path, frames: int = 4, size: tuple[int, int] = (80, 60)) -> Path:
    folder.mkdir(parents=True)
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    for number in range(frames):
        Image.fromarray(noise).save(folder / f"{number:03d}.png")
    return folder


def test_each_frame_is_viewed_as_a_picture_is(tmp_path: Path) -> None:
    folder = frame_folder(tmp_path / "clip")
    clip, placement, _ = view_clip(folder, 4, SMALL)
    image, alone = view_picture(Image.open(folder / "000.png").convert("RGB"), SMALL)
    assert clip.shape == (4, 3, 32, 32)
    assert placement == alone
    assert all(torch.equal(frame, image) for frame in clip)


def test_evaluation_resizes_to_256_and_cuts_224_out_of_the_middle(tmp_path: Path) -> None:
    # 512x256 is resized to 512x256 (the short side is 256 already), then columns 144 to 368 are cut out.
    folder = frame_folder(tmp_path / "clip", frames=1, size=(512, 256))
    _, placement, _ = view_clip(folder, 1, VIEW)
    assert (placement.scale_y, placement.scale_x, placement.offset_y, placement.offset_x) == (1.0, 1.0, 16, 144)
    # 320x240 becomes 341x256, of which rows 16 to 240 and columns 58 to 282 are left.
    clip, placement, _ = view_clip(frame_folder(tmp_path / "small", frames=1, size=(320, 240)), 1, VIEW)
    assert clip.shape == (1, 3, 224, 224)
    assert (placement.scale_y, placement.scale_x) == (256 / 240, 341 / 320)
    assert (placement.offset_y, placement.offset_x) == (16, 58)


def test_arrays_and_tensors_are_clips() -> None:
    array = np.random.default_rng(0).integers(0, 256, (4, 40, 50, 3), dtype=np.uint8)
    tensor = torch.from_numpy(array).permute(0, 3, 1, 2)
    one, two = view_clip_array(array, 4, SMALL)[0], view_clip_array(tensor, 4, SMALL)[0]
    assert one.shape == (4, 3, 32, 32)
    assert torch.equal(one, two)
    with pytest.raises(BadImage, match=r"a clip must have the shape \(8, 3, height, width\), but got \(4, 3, 40, 50\)"):
        view_clip_array(tensor, 8, SMALL)
    with pytest.raises(BadImage, match="takes clips of 4 frames, not a single picture"):
        view_clip_array(Image.new("RGB", (40, 40)), 4, SMALL)


def test_crops_are_those_of_tsm() -> None:
    # A frame of 340x256: the largest square has 256 px; shares of it 1, 7/8, 3/4 and 0.66 are 256, 224, 192 and 168 px.
    boxes = [multi_scale_crop(256, 340, VIEW, random.Random(seed)) for seed in range(2000)]
    sides = {(bottom - top, right - left) for left, top, right, bottom in boxes}
    assert sides == {
        *((256, 256), (256, 224), (224, 256), (224, 224), (224, 192)),
        *((192, 224), (192, 192), (192, 168), (168, 192), (168, 168)),
    }
    # Of 224x224 in 340x256 the room is 116 and 32 px, quarters of 29 and 8: nine even places and four odd ones.
    places = {(left, top) for left, top, right, bottom in boxes if (right - left, bottom - top) == (224, 224)}
    even = {(x, y) for x in (0, 58, 116) for y in (0, 16, 32)}
    assert places == even | {(x, y) for x in (29, 87) for y in (8, 24)}


def test_all_frames_of_a_clip_are_cut_mirrored_and_shifted_alike(tmp_path: Path) -> None:
    folder = frame_folder(tmp_path / "clip", frames=9)
    unmoved = 0
    for seed in range(6):
        clip = augmented_clip(folder, 3, SMALL, AugmentSettings(flip=True, shift_px=4), seed)
        assert torch.equal(clip[0], clip[1])
        assert torch.equal(clip[0], clip[2])
        unmoved += torch.equal(clip, augmented_clip(folder, 3, SMALL, AugmentSettings(flip=True), seed))
    assert unmoved < 3  # one in 81 is


def test_a_seed_repeats_a_clip_and_another_changes_it(tmp_path: Path) -> None:
    folder = frame_folder(tmp_path / "clip")
    one, again, other = (augmented_clip(folder, 2, SMALL, AugmentSettings(), seed) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_without_flips_nothing_is_mirrored(tmp_path: Path) -> None:
    folder = tmp_path / "clip"
    folder.mkdir()
    slope = np.tile(np.linspace(0, 255, 80, dtype=np.uint8)[None, :, None], (60, 1, 3))
    Image.fromarray(slope).save(folder / "0.png")
    for seed in range(20):
        clip = augmented_clip(folder, 1, SMALL, AugmentSettings(flip=False), seed)
        assert float(clip[0, 0, 16, 0]) < float(clip[0, 0, 16, -1])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_split_of_clips_gives_batches_of_them(workers: int, make_video: Callable[..., Path], tmp_path: Path) -> None:
    files = [make_video(tmp_path / "a.mp4"), frame_folder(tmp_path / "b")]
    split = ClipFileSplit(files, torch.tensor([0, 1]), SMALL, AugmentSettings(), frames=4)
    (clips, labels), *none = scene_batches(split, SMALL, in_order(2, 8), None, workers)
    assert not none
    assert clips.shape == (2, 4, 3, 32, 32)
    assert labels.tolist() == [0, 1]
    assert torch.equal(clips[1], view_clip(files[1], 4, SMALL)[0])


def test_a_split_of_clips_can_be_held_in_memory(tmp_path: Path) -> None:
    files = [frame_folder(tmp_path / name) for name in ("a", "b")]
    split = ClipFileSplit(files, torch.tensor([0, 1]), SMALL, AugmentSettings(flip=False), frames=4)
    held = split.in_memory()
    assert held.images.shape == (2, 4, 3, 32, 32)
    for read, kept in zip(split.batches([[0, 1]]), held.batches([[0, 1]]), strict=True):
        torch.testing.assert_close(read[0], kept[0], rtol=0, atol=0.02)  # half a step of brightness


def test_a_clip_that_breaks_later_is_reported(tmp_path: Path) -> None:
    split = ClipFileSplit([tmp_path / "gone.mp4"], torch.tensor([0]), SMALL, AugmentSettings(), frames=4)
    with pytest.raises(BadData, match=r"there is no file .*gone.mp4.*Remove the clip, or let the check of the files"):
        list(split.batches([[0]]))
