"""Patches come from exactly where they were aimed, and glances are resized as the paper's models expect."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from glancefocus.errors import BadSetting, ImageTooSmall
from glancefocus.look import ClipBatch, ImageBatch, MixedImages, as_batch, as_scene, frames_of
from glancefocus.region import Region, _corners, crop, shrink, top_left
from glancefocus.settings import View, ViewSettings, native, whole


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def sliced(images: Tensor, where: Tensor, px: int) -> Tensor:
    """The same as crop, one image at a time, in the plainest words."""
    height, width = images.shape[-2:]
    patches = []
    for image, (y, x) in zip(images, where.tolist(), strict=True):
        top, left = int(y * (height - px)), int(x * (width - px))
        patches.append(image[:, top : top + px, left : left + px])
    return torch.stack(patches)


@pytest.mark.parametrize(("height", "width", "px"), [(20, 20, 7), (31, 12, 12), (9, 40, 1), (224, 224, 96)])
def test_a_crop_is_what_slicing_gives(height: int, width: int, px: int) -> None:
    images = noise(6, 3, height, width)
    where = noise(6, 2, seed=1)
    where[0], where[1], where[2] = torch.tensor([0.0, 0.0]), torch.tensor([1.0, 1.0]), torch.tensor([0.0, 1.0])
    assert torch.equal(crop(images, where, px), sliced(images, where, px))


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.bfloat16])
def test_one_patch_is_cut_as_many_are(dtype: torch.dtype) -> None:
    images = (255 * noise(3, 3, 20, 30)).to(dtype)
    where = noise(3, 2, seed=1)
    many = crop(images, where, 7)
    for row in range(3):
        one = crop(images, where[row : row + 1], 7, torch.tensor([row]))
        assert one.dtype == dtype
        assert torch.equal(one[0], many[row])
    last = images.contiguous(memory_format=torch.channels_last)
    one = crop(last, where[:1], 7, torch.tensor([2]))
    assert one.is_contiguous(memory_format=torch.channels_last)
    one += 1
    assert torch.equal(crop(last, where, 7), many)  # a patch shares no memory with its image


def test_zero_is_the_upper_left_corner_and_one_the_lower_right() -> None:
    image = torch.arange(3 * 4 * 6.0).reshape(1, 3, 4, 6)
    assert crop(image, torch.tensor([[0.0, 0.0]]), 2)[0, 0].tolist() == [[0, 1], [6, 7]]
    assert crop(image, torch.tensor([[1.0, 1.0]]), 2)[0, 0].tolist() == [[16, 17], [22, 23]]
    assert crop(image, torch.tensor([[0.0, 1.0]]), 2)[0, 0].tolist() == [[4, 5], [10, 11]]


def test_a_patch_as_large_as_the_image_is_the_image_wherever_it_is_aimed() -> None:
    images = noise(3, 3, 10, 10)
    assert torch.equal(crop(images, noise(3, 2, seed=1), 10), images)


def test_the_first_pixel_is_rounded_down() -> None:
    # An image of 12x23 px leaves a patch of 4 px room for 8 rows and 19 columns.
    where = torch.tensor([[0.5, 0.5], [0.124, 0.99], [0.126, 1.0], [0.0, 0.0]])
    assert top_left(where, 12, 23, 4).tolist() == [[4, 9], [0, 18], [1, 19], [0, 0]]


def test_a_few_aims_start_where_many_would() -> None:
    """0.29 x 100 is 28.999998 as a product of float32 aims in float64, and 29 rounded to float32 as torch has it."""
    aims = torch.cat(
        [torch.tensor([[0.29, 0.58], [-0.5, 1.5]]), torch.rand(500, 2, generator=torch.Generator().manual_seed(0))]
    )
    for px, height, width in ((20, 120, 220), (96, 480, 600)):
        for where in (aims, aims.double(), aims.half(), aims.bfloat16()):
            found = torch.tensor(_corners(where, height, width, px))
            assert torch.equal(found, top_left(where, height, width, px))
    assert _corners(aims[:1], 120, 120, 20)[0][0] == 29


def test_a_place_beyond_the_image_is_brought_back_to_its_edge() -> None:
    assert top_left(torch.tensor([[-0.5, 1.5]]), 12, 23, 4).tolist() == [[0, 19]]


def test_a_patch_larger_than_the_image_is_refused_with_both_sizes() -> None:
    with pytest.raises(ImageTooSmall, match=r"a patch of 9 px cannot be cut out of an image of 8x20 px\. Use larger"):
        crop(noise(1, 3, 8, 20), torch.zeros(1, 2), 9)


def test_crop_takes_patches_of_the_named_rows() -> None:
    images, where, rows = noise(5, 3, 12, 12), noise(3, 2, seed=1), torch.tensor([4, 0, 4])
    assert torch.equal(crop(images, where, 5, rows), sliced(images[rows], where, 5))


def test_crop_gives_gradients_to_the_pixels_of_the_patch_only() -> None:
    images = noise(1, 3, 6, 6).requires_grad_()
    crop(images, torch.zeros(1, 2), 2).sum().backward()
    assert images.grad is not None
    assert images.grad[0, 0].sum() == 4
    assert images.grad[0, 0, :2, :2].tolist() == [[1, 1], [1, 1]]


def test_dropping_rows_copies_no_pixels() -> None:
    scene = ImageBatch(noise(5, 3, 12, 12))
    kept = scene.keep(torch.tensor([1, 3, 4])).keep(torch.tensor([0, 2]))
    assert kept.count == 2
    assert kept.images.data_ptr() == scene.images.data_ptr()
    where = noise(2, 2, seed=1)
    assert torch.equal(kept.view(Region(native(5), where)), sliced(scene.images[[1, 4]], where, 5))
    assert torch.equal(kept.view(Region(whole(6))), scene.view(Region(whole(6)))[[1, 4]])


def test_dropping_rows_of_mixed_images_copies_no_pixels() -> None:
    scene = MixedImages((noise(3, 8, 9), noise(3, 12, 7), noise(3, 9, 9)))
    kept = scene.keep(torch.tensor([2, 0]))
    assert kept.images[0] is scene.images[2]
    assert kept.images[1] is scene.images[0]


@pytest.mark.parametrize("resize", ["antialias", "bicubic", "bilinear"])
def test_mixed_images_of_one_size_equal_a_batch(resize: str) -> None:
    images, where = noise(4, 3, 15, 11), noise(4, 2, seed=1)
    mixed, batch = MixedImages(tuple(images)), ImageBatch(images)
    assert mixed.count == batch.count == 4
    torch.testing.assert_close(
        mixed.view(Region(whole(7, resize))), batch.view(Region(whole(7, resize))), rtol=0, atol=1e-6
    )  # type: ignore[arg-type]
    assert torch.equal(mixed.view(Region(native(5), where)), batch.view(Region(native(5), where)))


def test_mixed_images_are_each_seen_in_their_own_size() -> None:
    images = [noise(3, 20, 10), noise(3, 8, 30, seed=2)]
    scene = as_scene(images)
    patches = scene.view(Region(native(6), torch.tensor([[1.0, 0.0], [0.0, 1.0]])))
    assert torch.equal(patches[0], images[0][:, 14:20, 0:6])
    assert torch.equal(patches[1], images[1][:, 0:6, 24:30])
    assert scene.view(Region(whole(5))).shape == (2, 3, 5, 5)


def test_mixed_images_must_each_have_three_channels() -> None:
    with pytest.raises(BadSetting, match=r"the shape \(3, height, width\), .* but got \(1, 9, 9\)"):
        as_scene([noise(3, 8, 8), noise(1, 9, 9)])


@pytest.mark.parametrize("mode", ["bicubic", "bilinear"])
def test_the_papers_glance_has_aligned_corners_and_no_antialiasing(mode: str) -> None:
    images = noise(2, 3, 29, 41)
    glance = shrink(images, 8, mode)  # type: ignore[arg-type]
    assert torch.equal(glance, F.interpolate(images, (8, 8), mode=mode, align_corners=True))
    # Aligned corners: the corner pixels of the glance are those of the image.
    torch.testing.assert_close(glance[:, :, 0, 0], images[:, :, 0, 0], rtol=0, atol=1e-5)
    torch.testing.assert_close(glance[:, :, -1, -1], images[:, :, -1, -1], rtol=0, atol=1e-5)


def test_the_new_glance_is_antialiased() -> None:
    # A board of single black and white pixels averages to grey; without antialiasing it would not.
    y, x = torch.meshgrid(torch.arange(64), torch.arange(64), indexing="ij")
    board = ((y + x) % 2).float().expand(1, 3, 64, 64)
    by_torch = F.interpolate(board, (8, 8), mode="bilinear", antialias=True)
    torch.testing.assert_close(shrink(board, 8), by_torch, rtol=0, atol=1e-6)
    torch.testing.assert_close(shrink(board, 8), torch.full((1, 3, 8, 8), 0.5), rtol=0, atol=0.01)


def test_a_tensor_of_one_image_or_of_a_batch_becomes_a_scene() -> None:
    assert as_scene(noise(3, 8, 8)).count == 1
    assert as_scene(noise(4, 3, 8, 8)).count == 4


def test_a_list_becomes_a_batch_where_sizes_agree_and_mixed_images_otherwise() -> None:
    assert isinstance(as_scene([noise(3, 8, 8), noise(3, 8, 8)]), ImageBatch)
    assert isinstance(as_scene((noise(3, 8, 8), noise(3, 8, 9))), MixedImages)


def test_a_scene_stays_as_it_is() -> None:
    scene = MixedImages((noise(3, 8, 8),))
    assert as_scene(scene) is scene


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(BadSetting, match="the list of images is empty"):
        as_scene([])


@pytest.mark.parametrize("shape", [(4, 1, 8, 8), (8, 8), (1, 2, 4, 3, 8, 8)])
def test_what_is_not_a_batch_of_images_is_refused_with_its_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadSetting, match=r"\(batch, 3, height, width\), but got"):
        as_scene(noise(*shape))


def test_a_clip_is_cut_at_the_same_place_in_every_frame() -> None:
    clips, where = noise(2, 3, 3, 20, 24), torch.tensor([[0.0, 0.5], [1.0, 0.25]])
    patches = ClipBatch(clips).view(Region(native(8), where))
    assert patches.shape == (6, 3, 8, 8)
    # The first clip is cut at row 0 and column 8 of its 16 px of room, the second at row 12 and column 4.
    assert torch.equal(patches[:3], clips[0, :, :, 0:8, 8:16])
    assert torch.equal(patches[3:], clips[1, :, :, 12:20, 4:12])


def test_a_glance_at_clips_is_one_at_their_frames() -> None:
    clips = noise(2, 3, 3, 20, 24)
    assert torch.equal(ClipBatch(clips).view(Region(whole(8))), shrink(clips.reshape(6, 3, 20, 24), 8))
    assert torch.equal(ClipBatch(clips).whole, clips.reshape(6, 3, 20, 24))


def test_clips_that_are_kept_are_not_copied_and_keep_their_place() -> None:
    clips, where = noise(3, 2, 3, 12, 12), noise(3, 2, seed=1)
    batch = ClipBatch(clips)
    kept = batch.keep(torch.tensor([0, 2])).keep(torch.tensor([1]))
    assert (batch.count, kept.count, kept.frames) == (3, 1, 2)
    assert kept.clips.data_ptr() == clips.data_ptr()
    assert torch.equal(kept.view(Region(native(5), where[2:])), batch.view(Region(native(5), where))[4:])
    assert torch.equal(kept.view(Region(whole(6))), batch.view(Region(whole(6)))[4:])


def test_pixels_of_clips_are_normalised_where_they_are_looked_at() -> None:
    view = ViewSettings(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    clips = torch.full((1, 2, 3, 16, 16), 255, dtype=torch.uint8)
    scene = as_batch(clips, view)
    assert isinstance(scene, ClipBatch)
    for seen in (scene.view(Region(whole(8))), scene.view(Region(native(8), torch.zeros(1, 2))), scene.whole):
        torch.testing.assert_close(seen, torch.full_like(seen, 2.0), rtol=0, atol=1e-5)  # (1 - 0.5) / 0.25


def test_clips_of_different_sizes_are_looked_at_together() -> None:
    one, two = noise(2, 3, 16, 16), noise(2, 3, 24, 12, seed=1)
    scene = as_scene([one, two])
    assert isinstance(scene, MixedImages)
    assert (scene.count, scene.frames) == (2, 2)
    where = noise(2, 2, seed=2)
    assert torch.equal(
        scene.keep(torch.tensor([1])).view(Region(native(8), where[1:])),
        ClipBatch(two[None]).view(Region(native(8), where[1:])),
    )
    assert torch.equal(scene.view(Region(whole(8))), torch.cat([shrink(one, 8), shrink(two, 8)]))


def test_a_scene_says_how_many_frames_its_clips_have() -> None:
    assert frames_of(as_scene(noise(2, 3, 16, 16))) == 1
    assert frames_of(as_scene(noise(2, 5, 3, 16, 16))) == 5


def test_clips_of_another_shape_are_refused() -> None:
    with pytest.raises(
        BadSetting, match=r"clips must be a tensor of shape \(batch, frames, 3, height, width\), but got"
    ):
        ClipBatch(noise(2, 3, 16, 16))
    with pytest.raises(
        BadSetting, match=r"the same number of frames, but got shapes \(2, 3, 16, 16\) and \(3, 3, 16, 16\)"
    ):
        MixedImages((noise(2, 3, 16, 16), noise(3, 3, 16, 16)))


def test_a_view_of_any_extent_is_its_square_resized() -> None:
    scene = ImageBatch(noise(2, 3, 40, 60))
    where = torch.tensor([[0.5, 0.25], [1.0, 0.0]])
    half = scene.view(Region(View(px=10, extent=0.5), where))  # of the shorter side: 20 px
    assert torch.equal(half, shrink(crop(scene.images, where, 20), 10))
    assert torch.equal(scene.view(Region(View(px=10, extent=20), where)), half)
    assert torch.equal(scene.view(Region(View(px=20, extent=20), where)), crop(scene.images, where, 20))
