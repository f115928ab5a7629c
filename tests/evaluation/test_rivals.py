"""The backbone on resized images: which sizes, what they cost, what it answers."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.splits import MemorySplit
from glancefocus.evaluation.assess import random_rows
from glancefocus.evaluation.cascades import Member, cascade_table
from glancefocus.evaluation.rivals import (
    answer_resized,
    patch_side,
    rival_name,
    rival_sizes,
    size_in,
    sizes_to_tune,
    sizes_with_costs,
    tuned_files,
)
from glancefocus.look import as_batch
from glancefocus.network.macs import count_backbone, count_costs
from glancefocus.network.model import GlanceFocus
from glancefocus.network.modules import Encoding
from glancefocus.outcome import Costs
from glancefocus.region import resized

MakeNet = Callable[..., GlanceFocus]
MakeBundle = Callable[..., Bundle]


@pytest.mark.parametrize(
    ("image", "patch_px", "sizes"),
    [
        ((224, 224), 1, [(224, 224), (192, 192), (160, 160), (128, 128), (96, 96)]),
        ((960, 1280), 1, [(960, 1280), (832, 1112), (672, 896), (544, 728), (416, 552)]),
        ((1280, 960), 1, [(1280, 960), (1112, 832), (896, 672), (728, 544), (552, 416)]),
        ((96, 96), 1, [(96, 96), (80, 80), (72, 72), (56, 56), (40, 40)]),
        ((224, 224), 14, [(224, 224), (196, 196), (154, 154), (126, 126), (98, 98)]),
    ],
)
def test_sizes_are_five_sevenths_and_so_on_of_the_side_with_the_aspect_kept(
    image: tuple[int, int], patch_px: int, sizes: list[tuple[int, int]]
) -> None:
    assert rival_sizes(image, patch_px) == sizes


def test_the_whole_image_costs_what_the_table_of_costs_says_and_a_smaller_one_less(small_net: MakeNet) -> None:
    net = small_net(view={"height_px": 64, "width_px": 128})
    costs = count_costs(net.settings)
    counted = count_backbone(net.settings, [(64, 128), (32, 64)])
    assert counted[64, 128] == costs.backbone_macs
    head = 3 * net.focus_encoder.vector_features
    assert counted[32, 64] == (costs.backbone_macs - head) / 4 + head  # a quarter of the pixels


def test_smaller_sizes_are_added_until_one_costs_no_more_than_a_glance(small_net: MakeNet) -> None:
    net = small_net(glance_px=32, view={"height_px": 224, "width_px": 224})
    costs = count_costs(net.settings)
    sizes = sizes_with_costs(net.settings, (224, 224), 1, costs.macs_after_look[0])
    assert list(sizes) == [(224, 224), (192, 192), (160, 160), (128, 128), (96, 96), (64, 64), (32, 32)]
    assert sizes[32, 32] <= costs.macs_after_look[0] < sizes[64, 64]
    assert list(sizes_with_costs(net.settings, (224, 224), 1, 1e12)) == list(sizes)[:5]


def test_a_transformer_gets_multiples_of_its_patches_and_no_size_that_it_does_not_take(small_net: MakeNet) -> None:
    net = small_net(backbone="test_vit", view={"height_px": 64, "width_px": 64})
    assert patch_side(net.focus_encoder) == 16
    assert count_backbone(net.settings, [(64, 64), (40, 40)])[40, 40] is None
    sizes = sizes_with_costs(net.settings, (64, 64), 16, 0)
    assert {side % 16 for size in sizes for side in size} == {0}
    assert len(sizes) >= 3


def costs_of(first: int, last: int) -> Costs:
    return Costs(first, first, {96: last - first}, 0, (0, 0), 400)


def test_all_sizes_that_cost_about_as_much_as_the_glance_or_more_are_tuned() -> None:
    sizes = {(224, 224): 400, (192, 192): 290, (160, 160): 200, (128, 128): 130, (96, 96): 70}
    assert sizes_to_tune(sizes, costs_of(75, 210)) == [(192, 192), (160, 160), (128, 128), (96, 96)]  # 70 is about 75
    assert sizes_to_tune(sizes, costs_of(100, 210)) == [(192, 192), (160, 160), (128, 128)]
    assert sizes_to_tune(sizes, costs_of(500, 600)) == []  # never the whole image


@pytest.mark.parametrize(("size", "name"), [((160, 160), "rival-160"), ((480, 640), "rival-480x640")])
def test_a_size_is_found_again_in_the_name_of_its_file(size: tuple[int, int], name: str, tmp_path: Path) -> None:
    assert rival_name(size) == name
    assert size_in(name) == size
    for file in (f"{name}.safetensors", "rival-.safetensors", "rival-x.safetensors", "backbone.safetensors"):
        (tmp_path / file).touch()
    assert tuned_files(tmp_path) == {size: tmp_path / f"{name}.safetensors"}


@pytest.mark.parametrize("frames", [1, 2])
def test_answers_are_those_of_the_backbones_own_head_on_resized_images(
    small_net: MakeNet, tmp_path: Path, frames: int
) -> None:
    net = small_net(frames=frames, view={"height_px": 48, "width_px": 64})
    generator = torch.Generator().manual_seed(0)
    shape = (20, 3, 48, 64) if frames == 1 else (20, frames, 3, 48, 64)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    split = MemorySplit(images, torch.arange(20) % 3, net.settings.view)
    rows = random_rows(20, 12)
    assert len(set(rows.tolist())) == 12
    asked = (split, rows, [(48, 64), (32, 40)], tmp_path / "looks")
    found = answer_resized(net.settings, net.focus_encoder, *asked, name="val")
    assert found.sizes == [(32, 40), (48, 64)]
    assert found.labels.tolist() == (rows % 3).tolist()
    with torch.inference_mode():
        whole = as_batch(images[torch.from_numpy(rows)], net.settings.view).whole
        vector = net.focus_encoder(resized(whole, (32, 40), "antialias")).vector
        expected = net.focus_encoder.own_head(vector).softmax(dim=1)
    torch.testing.assert_close(torch.from_numpy(found.confidence[:, 0]), expected.max(dim=1).values, atol=1e-6, rtol=0)
    assert found.correct[:, 0].tolist() == (expected.argmax(dim=1).numpy() == rows % 3).tolist()

    def compute(images: torch.Tensor) -> Encoding:
        raise AssertionError("the answers were to be found in the folder")

    net.focus_encoder.forward = compute  # type: ignore[method-assign]
    again = answer_resized(net.settings, net.focus_encoder, *asked, name="val")
    assert again.correct.tolist() == found.correct.tolist()
    net.focus_encoder.load_state_dict({n: t + 1 for n, t in net.focus_encoder.state_dict().items()})
    with pytest.raises(AssertionError, match="in the folder"):  # other weights give other answers
        answer_resized(net.settings, net.focus_encoder, *asked, name="val")


def test_a_cascade_pays_for_every_size_that_it_has_run() -> None:
    right, sure = np.array([True, False, True]), np.array([0.9, 0.2, 0.3], dtype=np.float32)
    small = Member("resized", (96, 96), right, sure, macs=10.0, ms=1.0)
    right, sure = np.array([True, True, False]), np.array([0.9, 0.9, 0.9], dtype=np.float32)
    large = Member("resized", (224, 224), right, sure, macs=100.0, ms=4.0)
    table = cascade_table([small, large])
    point = table.point(np.array([0.5, 0.0], dtype=np.float32))
    assert point["exits_per_look"] == [1, 2]
    assert point["mean_macs"] == pytest.approx((10 + 110 + 110) / 3)
    assert point["mean_ms"] == pytest.approx((1 + 5 + 5) / 3)
    assert point["accuracy"] == pytest.approx(2 / 3)
