"""Coarse to fine: aims are relative to the region of the last look, and places are those in the whole image."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.file_scene import FileImage, FilePicture, FileScene
from glancefocus.data.wide_signs import WideScene, WideSignsSettings
from glancefocus.errors import BadSetting
from glancefocus.evaluation.records import tree_of_looks
from glancefocus.export.deliver import export_bundle
from glancefocus.look import Aim, ImageBatch, Look, MixedImages, sizes_of
from glancefocus.loop import ExitRule, every_look, look_until_sure
from glancefocus.network.model import GlanceFocus
from glancefocus.network.zooming import random_aims
from glancefocus.region import Placement, Region, top_left, zoomed
from glancefocus.settings import GLANCE, ViewSettings
from glancefocus.stream import join_scenes, look_at_stream

MakeNet = Callable[..., GlanceFocus]
STEPS = ("0.25@32", "0.0625@32", "32")


def corner(where: Tensor, size: int, extent: int) -> list[int]:
    return [int(edge) for edge in top_left(where.float(), size, size, extent)[0].tolist()]


@pytest.mark.parametrize(
    ("where", "extent", "expected"),
    [
        ((0.0, 0.0), 100, [200, 400]),  # a smaller square, against the top left of the region
        ((1.0, 1.0), 100, [400, 600]),  # against its bottom right
        ((0.5, 0.25), 100, [300, 450]),
        ((0.5, 0.5), 300, [200, 400]),  # of the same size: it stays
        ((1.0, 0.5), 300, [500, 400]),  # moved by its side
        ((0.0, 0.0), 300, [0, 100]),  # moved up, as far as the image goes
        ((0.0, 0.0), 600, [200, 400]),  # a larger square, with the region in its top left corner
        ((1.0, 1.0), 600, [0, 100]),  # with the region in its bottom right corner, as far as the image goes
    ],
)
def test_an_aim_is_relative_to_the_region_of_the_last_look(
    where: tuple[float, float], extent: int, expected: list[int]
) -> None:
    """The last look saw a square of 300 px at (200, 400) in an image of 1000 px."""
    place = zoomed(
        torch.tensor([where], dtype=torch.float64),
        torch.tensor([[200.0, 400.0, 300.0, 300.0]], dtype=torch.float64),
        torch.tensor([float(extent)], dtype=torch.float64),
        torch.tensor([[1000.0, 1000.0]], dtype=torch.float64),
    )
    assert corner(place, 1000, extent) == expected


@pytest.mark.parametrize("side", [33, 1000, 16_384, 32_768])
def test_every_pixel_is_found_again(side: int) -> None:
    """A place in [0, 1] leads back to the same pixel, in float32 and in the largest scene."""
    extent, count = 32, 500
    generator = torch.Generator().manual_seed(0)
    begin = torch.randint(0, side - extent + 1, (count, 2), generator=generator).double()
    seen = torch.cat([begin, torch.full((count, 2), float(extent), dtype=torch.float64)], dim=1)
    sizes = torch.full((count, 2), float(side), dtype=torch.float64)
    place = zoomed(torch.full((count, 2), 0.5).double(), seen, sizes[:, 0] * 0 + extent, sizes)
    assert torch.equal(top_left(place.float(), side, side, extent).double(), begin)


def test_a_square_as_large_as_the_image_has_one_place() -> None:
    sizes = torch.tensor([[64.0, 100.0]])
    place = zoomed(torch.tensor([[0.9, 0.0]]), torch.tensor([[0.0, 0.0, 64.0, 100.0]]), torch.tensor([64.0]), sizes)
    assert place.tolist()[0][0] == 0
    assert top_left(place, 64, 100, 64).tolist() == [[0, 0]]


def test_scenes_know_the_sizes_of_their_images() -> None:
    batch = ImageBatch(torch.zeros(3, 3, 20, 30)).keep(torch.tensor([2, 0]))
    mixed = MixedImages((torch.zeros(3, 5, 6), torch.zeros(3, 7, 8)))
    assert sizes_of(batch).tolist() == [[20, 30], [20, 30]]
    assert sizes_of(join_scenes([batch, mixed])).tolist() == [[20, 30], [20, 30], [5, 6], [7, 8]]
    with pytest.raises(BadSetting, match="zoom=true looks at scenes that have the attribute `sizes`"):
        sizes_of(object())  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["learnt", "random"])
def test_predictions_have_the_views_that_training_has(kind: str, small_bundle: Callable[..., Bundle]) -> None:
    """In an image of 160 px a sixteenth is 10 px, fewer than the 32 px that the encoder gets: that view is skipped."""
    view = {"fit": "whole", "height_px": 640, "width_px": 640}
    bundle = small_bundle(zoom=True, focus=STEPS, looks=4, view=view, policy={"kind": kind})
    images = [torch.rand(3, 160, 160), torch.rand(3, 640, 640)]
    expected = [[0, 2, 2], [0, 1, 2]]
    outcome = bundle.predict(images, looks=4)
    assert outcome.candidate.tolist() == expected
    assert [len({box[2] - box[0] for box in boxes}) for boxes in outcome.boxes] == [2, 3]
    assert outcome.cost_macs.tolist() == [bundle.costs.macs_of(views) for views in expected]

    scene, generator = MixedImages(tuple(images)), torch.Generator().manual_seed(0)
    trained = look_until_sure(
        bundle.net, scene, every_look(4), random_aims(bundle.net, generator, candidates=(0, 1, 2))
    )
    assert trained.candidate.tolist() == expected
    with torch.inference_mode():
        recorded = [look.candidate for look, _ in tree_of_looks(bundle.net, images[0][None], every_look(4))]
    assert recorded == [GLANCE, *expected[0]]


def test_images_that_take_other_steps_are_pooled(small_bundle: Callable[..., Bundle]) -> None:
    """Two batches whose looks have different views, also of the same number, give what each image gives alone."""
    bundle = small_bundle(zoom=True, focus=STEPS, looks=4, view={"fit": "whole", "height_px": 640, "width_px": 640})
    images = [torch.rand(3, side, side) for side in (160, 160, 640, 640, 160)]
    pooled = bundle.predict(images, thresholds=[2, 2, 2], batch_size=2, merge=True)
    alone = [bundle.predict(image, thresholds=[2, 2, 2]) for image in images]
    assert pooled.candidate.tolist() == [one.candidate[0].tolist() for one in alone]
    torch.testing.assert_close(pooled.logits, torch.cat([one.logits for one in alone]), rtol=0, atol=1e-4)


class InTurn:
    """Takes the candidates one after the other, aimed at fixed places."""

    def __init__(self, where: Tensor) -> None:
        self.where = where

    def aim(self, look: Look) -> Aim:
        return Aim(where=self.where.expand(look.count, 2), candidate=look.number - 1)


def test_each_look_lies_inside_the_last_one_and_boxes_are_those_of_the_whole_image(small_net: MakeNet) -> None:
    """Images of 640 px: squares of 160, 40 and 32 px, each in the middle of the last one."""
    net = small_net(zoom=True, focus=STEPS, looks=4, view={"height_px": 640, "width_px": 640}).eval()
    images = torch.randn(2, 3, 640, 640)
    outcome = look_until_sure(net, ImageBatch(images), every_look(4), InTurn(torch.tensor([0.5, 0.5])))
    bundle_fields = {"image_px": torch.tensor([[640, 640]] * 2), "views": net.candidates}

    boxes = replace(outcome, placements=(Placement(),) * 2, **bundle_fields).boxes
    assert boxes[0] == [(240, 240, 400, 400), (300, 300, 340, 340), (304, 304, 336, 336)]
    # The same with other aims: at the right edge in the middle, then in the corner of that, then of that.
    outcome = look_until_sure(net, ImageBatch(images), every_look(4), InTurn(torch.tensor([0.0, 1.0])))
    boxes = replace(outcome, placements=(Placement(),) * 2, **bundle_fields).boxes
    assert boxes[1][:2] == [(480, 0, 640, 160), (600, 0, 640, 40)]


def test_rows_with_different_views_and_pooled_batches_look_at_the_same_places(small_net: MakeNet) -> None:
    net = small_net(zoom=True, focus=STEPS, looks=4, view={"height_px": 640, "width_px": 640}, seed=1).eval()
    images = torch.randn(5, 3, 640, 640, generator=torch.Generator().manual_seed(0))

    class ByRow:
        def aim(self, look: Look) -> Aim:
            candidate = (look.rows + look.number) % 3
            return Aim(where=torch.stack([look.rows / 5, 1 - look.rows / 5], dim=1).float(), candidate=candidate)

    with torch.inference_mode():
        together = look_until_sure(net, ImageBatch(images), every_look(4), ByRow())
        rule = ExitRule([2, 2, 2, 0])
        pooled = list(
            look_at_stream(net, [ImageBatch(images[:2]), ImageBatch(images[2:])], rule, policy=ByRow(), full_batch=5)
        )
    where = torch.cat([outcome.where for outcome in pooled])
    torch.testing.assert_close(where, together.where, rtol=0, atol=0)
    torch.testing.assert_close(torch.cat([outcome.logits for outcome in pooled]), together.logits, rtol=0, atol=1e-4)


def test_zooming_begins_with_the_whole_image(small_net: MakeNet) -> None:
    with pytest.raises(BadSetting, match="zoom=true begins with the whole image, but first_view is 'centre'"):
        small_net(zoom=True, first_view="centre")


def test_a_learnt_policy_zooms_and_the_paper_s_networks_do_not(small_bundle: Callable[..., Bundle]) -> None:
    plain = small_bundle()
    assert plain.settings.zoom is False
    look = plain.net.focus(plain.net.glance(torch.zeros(1, 3, 64, 64)), Aim(torch.tensor([[0.3, 0.4]]), 0))
    assert look.place is None
    torch.testing.assert_close(look.where, torch.tensor([[0.3, 0.4]]))
    zooming = small_bundle(zoom=True, focus=STEPS, looks=4, view={"fit": "whole", "height_px": 640, "width_px": 640})
    outcome = zooming.predict(torch.rand(2, 3, 640, 640), thresholds=[2, 2, 2])
    assert outcome.candidate.tolist() == [[0, 1, 2], [0, 1, 2]]  # the views one after the other
    with pytest.raises(BadSetting, match="needs one threshold for each look"):
        zooming.predict(torch.rand(2, 3, 640, 640), thresholds=[[2, -1, -1], [-1, 2, -1], [-1, -1, 2]])
    for boxes in outcome.boxes:
        for outer, inner in itertools.pairwise(boxes):
            assert outer[0] <= inner[0]
            assert outer[1] <= inner[1]
            assert outer[2] >= inner[2]
            assert outer[3] >= inner[3]


def test_a_bundle_keeps_the_setting_and_cannot_be_exported(small_bundle: Callable[..., Bundle], tmp_path: Path) -> None:
    bundle = small_bundle(zoom=True)
    assert Bundle.load(bundle.save(tmp_path / "bundle")).settings.zoom is True
    with pytest.raises(BadSetting, match="networks with zoom=true cannot be exported"):
        export_bundle(bundle, tmp_path / "export")


class FollowsAmber:
    """Aims at the middle of what is amber in the region of the last look: what a policy has to learn from its map."""

    def __init__(self, net: GlanceFocus) -> None:
        self.net = net

    def aim(self, look: Look) -> Aim:
        view = self.net.settings.glance_view if look.candidate == GLANCE else self.net.candidates[int(look.candidate)]
        pixels = look.scene.view(Region(view, None if view.is_whole else look.where))
        red, green, blue = pixels.unbind(dim=1)
        amber = ((red > green + 0.1) & (green > blue + 0.28)).float()
        # The ring of the last step is a broad line here. It is left out where there is a finer one.
        core = 1 - F.max_pool2d(1 - amber[:, None], 9, 1, 4)
        broad = F.max_pool2d(core, 15, 1, 7)[:, 0]
        fine = amber * (1 - broad)
        amber = torch.where(fine.sum(dim=(1, 2), keepdim=True) > 30, fine, amber)
        side = view.px
        ramp = (torch.arange(side) + 0.5) / side
        mass = amber.sum(dim=(1, 2)).clamp_min(1e-9)
        middle = torch.stack(
            [(amber.sum(dim=2) * ramp).sum(dim=1) / mass, (amber.sum(dim=1) * ramp).sum(dim=1) / mass], dim=1
        )
        # The middle of a square of a quarter of the side lies between 1/8 and 7/8 of the region.
        return Aim(where=((middle - 0.125) / 0.75).clamp(0, 1), candidate=look.number - 1)


@pytest.mark.parametrize(("side", "looks"), [(1024, 2), (4096, 3), (16_384, 4), (32_768, 5)])
def test_a_sign_in_a_gigapixel_is_found_with_as_many_looks_as_the_logarithm_of_the_side(
    side: int, looks: int, small_net: MakeNet
) -> None:
    """Each look sees a quarter of the last one's side, the last one 256 px as they are (128 of 512 px in the largest)."""
    shares = [0.25**step for step in range(1, looks)]
    focus = tuple(f"{share:.6f}@256" for share in shares)
    view = {"height_px": side, "width_px": side, "mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    settings = {"glance_px": 256, "focus": focus, "looks": looks}
    net = small_net(zoom=True, **settings, view={**view, "height_px": 16_384, "width_px": 16_384}).eval()
    found = 0
    for seed in range(4):
        drawn = WideScene(WideSignsSettings(height=side, width=side, radius_min_px=18, radius_max_px=20), 1, seed)
        assert drawn.box is not None
        scene = FileScene(
            (FileImage(FilePicture(drawn), (side, side)),), ViewSettings("whole", mean=(0, 0, 0), std=(1, 1, 1))
        )
        with torch.inference_mode():
            outcome = look_until_sure(net, scene, every_look(looks), FollowsAmber(net))
        extent = net.candidates[-1].extent_px(side, side)
        top, left = corner(outcome.where[0, -1:], side, extent)
        box = drawn.box
        found += top <= box[0] and left <= box[1] and box[2] <= top + extent and box[3] <= left + extent
    assert found >= 3
