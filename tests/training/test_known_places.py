"""Where the next look must be aimed so that it holds a known place, and how far an aim is off."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from glancefocus.data.scene_splits import drawn_scenes
from glancefocus.data.wide_signs import WideSignsSettings
from glancefocus.look import Aim, ImageBatch
from glancefocus.network.model import GlanceFocus
from glancefocus.network.steps import next_view
from glancefocus.settings import ViewSettings
from glancefocus.training.known_places import KnownAims, goals, places_in, region_loss
from glancefocus.training.teacher import Places, aims_at

MakeNet = Callable[..., GlanceFocus]
STEPS = ("0.25@32", "0.0625@32", "32")


@pytest.fixture
def zooming(small_net: MakeNet) -> GlanceFocus:
    return small_net(zoom=True, focus=STEPS, looks=4, view={"height_px": 640, "width_px": 640}).eval()


def test_each_step_goes_to_the_largest_view_that_is_clearly_smaller(zooming: GlanceFocus) -> None:
    """Views of 32 px: squares of a quarter, a sixteenth, and 32 px. Those of fewer pixels than 32 would show nothing new."""
    for side, expected in ((160, [0, 2, 2]), (640, [0, 1, 2]), (2048, [0, 1, 2]), (256, [0, 2, 2])):
        look, taken = zooming.glance(ImageBatch(torch.zeros(2, 3, side, side))), []
        for _ in range(3):
            view = next_view(zooming.candidates, look)
            assert isinstance(view, int)
            taken.append(view)
            look = zooming.focus(look, Aim(torch.full((2, 2), 0.5), view))
        assert taken == expected, side


def test_images_of_different_sizes_take_different_steps(zooming: GlanceFocus) -> None:
    look = zooming.glance([torch.zeros(3, 160, 160), torch.zeros(3, 640, 640)])
    look = zooming.focus(look, Aim(torch.full((2, 2), 0.5), 0))
    chosen = next_view(zooming.candidates, look)
    assert isinstance(chosen, torch.Tensor)
    assert chosen.tolist() == [2, 1]


def test_goals_have_the_place_in_the_middle_of_the_next_region(zooming: GlanceFocus) -> None:
    images = ImageBatch(torch.zeros(3, 3, 640, 640))
    places = Places(torch.tensor([[300.0, 500.0], [10.0, 630.0], [400.0, 90.0]]), torch.ones(3))
    look = zooming.glance(images)
    for view in (0, 1, 2):
        goal = goals(zooming, look, view, places)
        assert goal.reached.tolist() == [1, 1, 1]
        look = zooming.focus(look, Aim(goal.aim, view))
        top, left, height, width = zooming.region_of(look).T
        middle = torch.stack([top + height / 2, left + width / 2], dim=1)
        wanted = places.centre.double().clamp(height[0] / 2, 640 - height[0] / 2)
        assert (middle - wanted).abs().max() <= 1


def test_a_place_outside_the_last_region_is_out_of_reach(zooming: GlanceFocus) -> None:
    look = zooming.glance(ImageBatch(torch.zeros(2, 3, 640, 640)))
    look = zooming.focus(look, Aim(torch.zeros(2, 2), 0))  # the square of 160 px at the top left
    goal = goals(zooming, look, 1, Places(torch.tensor([[100.0, 100.0], [100.0, 300.0]]), torch.ones(2)))
    assert goal.reached.tolist() == [1, 0]
    assert goal.aim[1, 1] == 1, "as near as possible"


def test_a_network_that_does_not_zoom_aims_in_the_whole_image(small_net: MakeNet) -> None:
    net = small_net(focus=("32",), looks=3, view={"height_px": 640, "width_px": 640}).eval()
    places = Places(torch.tensor([[300.0, 500.0], [10.0, 630.0]]), torch.ones(2))
    look = net.glance(ImageBatch(torch.zeros(2, 3, 640, 640)))
    for _ in range(2):
        goal = goals(net, look, 0, places)
        assert torch.allclose(goal.aim, aims_at(places.centre, (640, 640), 32))
        look = net.focus(look, Aim(torch.rand(2, 2), 0))


def test_the_loss_is_the_logarithm_of_the_distance_in_quarters_of_the_next_region(zooming: GlanceFocus) -> None:
    """Squares of 160 px move by 480 px; a quarter of them is 40 px."""
    first = zooming.glance(ImageBatch(torch.zeros(2, 3, 640, 640)))
    places = Places(torch.tensor([[320.0, 320.0], [0.0, 0.0]]), torch.tensor([1.0, 0.0]))
    second = zooming.focus(first, Aim(torch.full((2, 2), 0.5), 0))
    means = torch.tensor([[[0.5, 0.5 + 80 / 480], [0.9, 0.9]]], requires_grad=True)
    loss = region_loss(zooming, means, [first, second], places)
    assert loss.item() == pytest.approx(float(torch.tensor(5.0).log()), abs=1e-5)
    loss.backward()  # type: ignore[no-untyped-call]
    assert means.grad is not None
    assert means.grad[0, 1].abs().max() == 0, "the second image has no object"


def test_scenes_are_looked_at_where_their_sign_is(zooming: GlanceFocus) -> None:
    sizes = [WideSignsSettings(height=512, width=512), WideSignsSettings(height=2048, width=2304)]
    split = drawn_scenes("val", 12, sizes, ViewSettings(), seed=0)
    scene, labels = next(split.batches([list(range(12))]))
    places = places_in(scene)
    assert places is not None
    assert places.weight.tolist() == (labels > 0).float().tolist()
    aims = KnownAims(zooming, places, {}, torch.Generator().manual_seed(0), deviation=0.0, random_share=0.0)
    look = zooming.glance(scene)
    for _ in range(3):
        look = zooming.focus(look, aims.aim(look))
    assert split.boxes is not None
    top, left, height, width = zooming.region_of(look).T
    box, there = split.boxes.T, labels > 0
    whole = (top <= box[0]) & (left <= box[1]) & (box[2] <= top + height) & (box[3] <= left + width)
    assert bool(whole[there].all())
    kept = replace(scene).keep(torch.tensor([3, 1]))
    assert torch.equal(kept.centres.nan_to_num(), scene.centres[[3, 1]].nan_to_num())
