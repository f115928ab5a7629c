"""Candidate views of any extent: their names, what is refused, what a look at them sees, where it was, and what it costs."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import glancefocus as gf
from glancefocus.bundle.bundle import Bundle
from glancefocus.errors import BadSetting
from glancefocus.evaluation.boxes import looks_taken
from glancefocus.export.predict import thresholds_for
from glancefocus.look import Aim, Look, as_batch
from glancefocus.network.build import build
from glancefocus.network.macs import count_costs, count_macs
from glancefocus.network.model import GlanceFocus
from glancefocus.network.modules import GLANCE_WEIGHT, SummedClassifier
from glancefocus.region import Placement, bilinear_crop, crop
from glancefocus.settings import GLANCE, NetworkSettings, View, native, whole
from glancefocus.training.settings import TrainSettings
from glancefocus.values import from_plain, to_plain

Net = Callable[..., GlanceFocus]
MIXED = ("32", "0.5@32", "whole@64")  # in images of 96x128 px the half of the shorter side is 48 px
SEES = {"height_px": 96, "width_px": 128, "fit": "whole"}


@pytest.mark.parametrize(
    ("text", "view", "name"),
    [
        ("96", native(96), "96"),
        ("096", native(96), "96"),
        (" 96 ", native(96), "96"),
        ("96px@96", native(96), "96"),
        ("200px@96", View(96, 200), "200px@96"),
        ("0.5@112", View(112, 0.5), "0.5@112"),
        (".5@112", View(112, 0.5), "0.5@112"),
        ("0.50@112", View(112, 0.5), "0.5@112"),
        ("1@112", View(112, 1.0), "1@112"),
        ("1.0@112", View(112, 1.0), "1@112"),
        ("0.000001@112", View(112, 0.000001), "0.000001@112"),
        ("whole@160", whole(160), "whole@160"),
    ],
)
def test_a_view_is_parsed_and_its_name_gives_it_again(text: str, view: View, name: str) -> None:
    assert View.parse(text) == view
    assert view.name == name
    assert View.parse(name) == view


@pytest.mark.parametrize(
    "text", ["", "x", "-96", "96px", "whole", "whole@", "@96", "half@96", "0.5@", "50%@96", "2@96", "0.5px@96", "1e2"]
)
def test_what_is_not_the_name_of_a_view_is_refused(text: str) -> None:
    with pytest.raises(BadSetting, match=r"focus names views such as 96 .*, but got '"):
        View.parse(text)


@pytest.mark.parametrize("value", [96, None, 0.5, ["96"]])
def test_a_view_that_is_not_a_text_is_refused(value: Any) -> None:
    with pytest.raises(BadSetting, match="focus names views such as 96"):
        View.parse(value)


@pytest.mark.parametrize(
    ("focus", "sentence"),
    [
        (("half",), "focus names views such as 96 .* but got 'half'"),
        (("4",), "the side of the view '4' must be a whole number from 8 to 16,384, but got 4"),
        (("0.0@96",), "the share of the view '0.0@96' must be a number above 0 and at most 1, but got 0.0"),
        (("1.5@96",), "the share of the view '1.5@96' must be a number above 0 and at most 1, but got 1.5"),
        (("4px@96",), "the extent of the view '4px@96' must be a whole number from 8 to 16,384, but got 4"),
        ((), "focus must name one or several different views, but got none"),
        (("96", "96"), "one or several different views, but got 96 96"),
        (("96", "96px@96"), "one or several different views, but got 96 96"),
        (("0.5@96", ".50@96"), "one or several different views, but got 0.5@96 0.5@96"),
        (("128", "96"), "focus names the smallest view first, but got 128 96"),
        (("whole@160", "0.5@112"), "focus names the smallest view first, but got whole@160 0.5@112"),
        (("225",), r"the view 225 is larger than the image \(224 px\). Use a smaller view or larger images"),
        (("96", "300px@112"), r"the view 300px@112 is larger than the image \(224 px\)"),
        (("whole@256",), r"the view whole@256 is larger than the image \(224 px\)"),
        (("whole@96",), "the view whole@96 shows no more than the glance, which is whole@96. Use a larger one"),
        (("whole@64", "96"), "the view whole@64 shows no more than the glance, which is whole@96"),
        (tuple(str(px) for px in range(32, 49)), "focus names at most 16 views, but got 17"),
        (tuple(str(px) for px in range(32, 48)), "with 16 candidate views and 7 looks there are more than 100,000 seq"),
    ],
)
def test_views_that_cannot_work_are_refused(focus: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(BadSetting, match=sentence):
        NetworkSettings("resnet50", focus=focus, looks=7)


def test_settings_with_views_go_through_json_and_back() -> None:
    settings = NetworkSettings("resnet50", focus=("096", "0.50@112", "whole@160"))
    assert settings.focus == ("96", "0.5@112", "whole@160")
    assert settings.candidates == (native(96), View(112, 0.5), whole(160))
    assert from_plain(NetworkSettings, json.loads(json.dumps(to_plain(settings)))) == settings
    fine = NetworkSettings("resnet50", focus=("0.000001@96",))
    assert from_plain(NetworkSettings, json.loads(json.dumps(to_plain(fine)))) == fine


def test_settings_from_before_there_were_views_are_read() -> None:
    old = json.loads('{"backbone": "resnet50", "glance_px": 96, "patch_px": [96, 128], "looks": 3}')
    assert from_plain(NetworkSettings, old).focus == ("96", "128")
    run = json.loads('{"data": {"source": "signs"}, "network": {"backbone": "resnet50", "patch_px": [64], "looks": 2}}')
    assert from_plain(TrainSettings, run).network.focus == ("64",)
    with pytest.raises(BadSetting, match="focus and patch_px both name the views of the focus looks"):
        from_plain(NetworkSettings, {**old, "focus": ["96"]})


def test_a_bundle_from_before_there_were_views_loads(small_bundle: Callable[..., Bundle], tmp_path: Path) -> None:
    folder = small_bundle(focus=["32", "48"], policy={"place": False}).save(tmp_path / "bundle")
    file = folder / "bundle.json"
    plain = json.loads(file.read_text())
    assert plain["network"].pop("focus") == ["32", "48"]
    del plain["network"]["policy"]["place"]
    plain["network"]["patch_px"] = [32, 48]
    file.write_text(json.dumps(plain))
    bundle = gf.load(folder, device="cpu")
    assert bundle.settings.focus == ("32", "48")
    assert not bundle.settings.policy.place
    assert bundle.predict(torch.zeros(3, 64, 64)).patch_px.tolist() == [[48, 48]]


def mixed_net(small_net: Net, **changes: Any) -> GlanceFocus:
    return small_net(focus=list(MIXED), view=SEES, **changes)


def pictures(count: int, height: int = 96, width: int = 128) -> torch.Tensor:
    return torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(0))


def places(count: int) -> torch.Tensor:
    return torch.rand(count, 2, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("classifier", ["recurrent", "cascaded", "summed"])
@pytest.mark.parametrize("place", [False, True])
def test_a_batch_of_mixed_views_equals_its_rows_one_by_one(small_net: Net, classifier: str, place: bool) -> None:
    policy = {"units": 16, "conv_channels": 4, "place": place}
    net = mixed_net(small_net, classifier=classifier, policy=policy)
    images, where, candidate = pictures(5), places(5), torch.tensor([0, 2, 1, 0, 2])
    with torch.inference_mode():
        first = net.glance(as_batch(images, net.settings.view))
        memory = net.policy.aim(first).memory
        look = net.focus(first, Aim(where, candidate, memory))
        then = net.policy.aim(look)
        assert memory is not None
        for row in range(5):
            own = net.glance(as_batch(images[row : row + 1], net.settings.view))
            alone = net.focus(own, Aim(where[row : row + 1], int(candidate[row]), memory[row : row + 1]))
            torch.testing.assert_close(look.logits[row : row + 1], alone.logits, rtol=0, atol=1e-5)
            torch.testing.assert_close(then.where[row : row + 1], net.policy.aim(alone).where, rtol=0, atol=1e-5)


def test_a_look_at_the_whole_image_ignores_its_place(small_net: Net) -> None:
    net, images = mixed_net(small_net), pictures(2)
    with torch.inference_mode():
        first = net.glance(as_batch(images, net.settings.view))
        logits = [net.focus(first, Aim(torch.full((2, 2), value), 2)).logits for value in (0.0, 1.0)]
        others = [net.focus(first, Aim(torch.full((2, 2), value), 1)).logits for value in (0.0, 1.0)]
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(others[0], others[1])


def test_a_zoomed_out_look_is_a_crop_that_is_resized(small_net: Net) -> None:
    net, images, where = mixed_net(small_net), pictures(3), places(3)
    scene = as_batch(images, net.settings.view)
    square = crop(scene.whole, where, 48)
    assert square.shape == (3, 3, 48, 48)
    resize = {"size": (32, 32), "mode": "bilinear", "align_corners": False, "antialias": True}
    torch.testing.assert_close(scene.view(net._region(1, where)), F.interpolate(square, **resize), rtol=0, atol=1e-5)
    whole_image = F.interpolate(scene.whole, **{**resize, "size": (64, 64)})
    torch.testing.assert_close(scene.view(net._region(2, where)), whole_image, rtol=0, atol=1e-5)


def test_boxes_of_all_kinds_of_views_are_in_pixels_of_the_picture(small_net: Net) -> None:
    net = mixed_net(small_net, looks=4)
    images = pictures(1)
    with torch.inference_mode():
        outcome = Bundle(net, ("a", "b", "c"), count_costs(net.settings)).predict(images[0], looks=4)
    outcome = replace(
        outcome,
        candidate=torch.tensor([[0, 1, 2]]),
        where=torch.tensor([[[0.0, 1.0], [1.0, 0.5], [0.3, 0.3]]]),
        placements=(Placement(scale_y=0.5, scale_x=0.5),),
    )
    # In the image of 96x128 px: 32 px at the upper right; 48 px at the bottom, from column 40; everything. The picture is twice it.
    assert outcome.boxes == [[(192, 0, 256, 64), (80, 96, 176, 192), (0, 0, 256, 192)]]
    assert outcome.patch_px.tolist() == [[32, 32, 64]]
    captions = [look.caption.partition(":")[0] for look in looks_taken(outcome, 0, outcome.boxes[0], None)]
    assert captions == ["1 glance", "2 focus", "3 focus (0.5@32)", "4 focus (whole image, 64 px)"]


def test_a_view_costs_what_the_encoder_costs_at_its_side(small_net: Net) -> None:
    net = small_net(focus=["32", "0.5@32", "200px@48", "whole@64"], view={"height_px": 224, "width_px": 224})
    costs = count_costs(net.settings)
    with torch.device("meta"):
        encoder = build(net.settings).focus_encoder
        at = {px: count_macs(lambda px=px: encoder(torch.empty(1, 3, px, px))) for px in (32, 48, 64)}
    assert costs.focus_encoder_macs == {"32": at[32], "0.5@32": at[32], "200px@48": at[48], "whole@64": at[64]}
    assert at[64] == pytest.approx(4 * at[32], rel=0.01)  # convolutions: four times the pixels


def test_the_summed_classifier_weighs_answers_by_their_view() -> None:
    classifier = SummedClassifier(2)
    assert classifier.weight.tolist() == pytest.approx([1.0, 1.0, GLANCE_WEIGHT])
    with torch.no_grad():
        classifier.weight.copy_(torch.tensor([2.0, 3.0, 0.5]))  # two candidates, then the glance
        memory = classifier.remember(torch.tensor([[4.0, -2.0]]), None, GLANCE)
        assert memory.tolist() == [[2.0, -1.0]]
        memory = classifier.remember(torch.tensor([[1.0, 1.0]]), memory, 1)
        assert memory.tolist() == [[5.0, 2.0]]
        memory = classifier.remember(torch.tensor([[0.0, 1.0]]), memory, 0)
    assert classifier.answer(memory, 3).tolist() == [[5.0, 4.0]]


def test_a_new_summed_network_answers_with_the_weighted_sum_of_its_own_heads(small_net: Net) -> None:
    net, images, where = mixed_net(small_net, classifier="summed"), pictures(2), places(2)
    with torch.inference_mode():
        looks = [net.glance(as_batch(images, net.settings.view))]
        for candidate in (0, 2):
            looks.append(net.focus(looks[-1], Aim(where, candidate)))
        weights = torch.tensor([GLANCE_WEIGHT, 1.0, 1.0])[:, None, None]
        total = (weights * torch.stack([net.own_answer(look) for look in looks])).cumsum(dim=0)
    for look, logits in zip(looks, total, strict=True):
        torch.testing.assert_close(look.logits, logits, rtol=0, atol=1e-5)


def aims_after(net: GlanceFocus, first: Look, wheres: list[list[float]], candidate: int) -> list[list[float]]:
    """Where the policy aims after looks with the same map and memory at these places."""
    aims = []
    for where in wheres:
        aim = Aim(torch.tensor([where]), candidate, first.policy_memory)
        side = net.policy.side_of(candidate)
        look = replace(first, map=torch.ones(1, first.map.shape[1], side, side), candidate=candidate, aim=aim)
        with torch.inference_mode():
            aims.append(net.policy.aim(look).where[0].tolist())
    return aims


def test_only_a_policy_with_place_knows_where_it_looked(small_net: Net) -> None:
    for place in (False, True):
        net = mixed_net(small_net, policy={"units": 16, "conv_channels": 4, "place": place})
        first = net.glance(as_batch(pictures(1), net.settings.view))
        here, there = aims_after(net, first, [[0.0, 0.0], [1.0, 1.0]], 0)
        assert (here != there) == place
        # A look at the whole image has no place.
        here, there = aims_after(net, first, [[0.0, 0.0], [1.0, 1.0]], 2)
        assert here == there


def test_the_place_of_a_look_is_where_it_was_and_how_much_it_covered(small_net: Net) -> None:
    net = mixed_net(small_net, policy={"units": 16, "conv_channels": 4, "place": True})
    first = net.glance(as_batch(pictures(3), net.settings.view))
    where = torch.tensor([[0.25, 0.75]] * 3)
    after = replace(first, candidate=torch.tensor([0, 1, 2]), aim=Aim(where, torch.tensor([0, 1, 2])))
    glance, looks = net.policy.place_of(first), net.policy.place_of(after)
    assert glance is not None
    assert looks is not None
    assert glance.tolist() == [[0.5, 0.5, 1.0]] * 3
    expected = torch.tensor([[0.25, 0.75, 32 / 96], [0.25, 0.75, 0.5], [0.5, 0.5, 1.0]])
    torch.testing.assert_close(looks, expected, rtol=0, atol=1e-6)


def test_place_takes_three_inputs_more_of_the_gru(small_net: Net) -> None:
    without, with_place = (
        small_net(policy={"units": 16, "conv_channels": 4, "place": place}).policy for place in (False, True)
    )
    count = [sum(p.numel() for p in policy.parameters()) for policy in (without, with_place)]
    assert count[1] - count[0] == 3 * 3 * 16  # three gates of 16 units


@pytest.mark.parametrize("size", [(40, 50), (20, 300), (64, 64), (500, 333)])
def test_views_of_the_whole_and_of_shares_work_on_pictures_of_any_size(
    small_bundle: Callable[..., Bundle], size: tuple[int, int]
) -> None:
    bundle = small_bundle(focus=["0.5@32", "1@48", "whole@64"], view={"fit": "whole"}, looks=4)
    height, width = size
    outcome = bundle.predict(torch.rand(3, height, width), thresholds=[[-1, -1, 1]] * 3 + [[0, 0, 0]])
    assert outcome.looks.tolist() == [4]
    assert outcome.boxes == [[(0, 0, width, height)] * 3]
    assert outcome.notes in ((), ((),))  # nothing had to be upscaled
    halves = bundle.predict(torch.rand(3, height, width), thresholds=[[1, -1, -1]] * 3 + [[0, 0, 0]])
    for left, top, right, bottom in halves.boxes[0]:
        assert right - left == bottom - top == round(0.5 * min(size))
        assert left >= 0
        assert top >= 0
        assert right <= width
        assert bottom <= height


def test_a_picture_smaller_than_a_native_extent_is_upscaled_and_noted(small_bundle: Callable[..., Bundle]) -> None:
    bundle = small_bundle(focus=["60px@32", "whole@64"], view={"fit": "whole"})
    outcome = bundle.predict(torch.rand(3, 30, 40))
    assert outcome.notes == (("upscaled from 40x30 px",),)
    assert outcome.image_px is not None
    assert outcome.image_px.tolist() == [[60, 80]]
    ((left, top, right, bottom), whole_picture) = outcome.boxes[
        0
    ]  # a square of 60 px in an image of twice the size, then all
    assert (right - left, bottom - top) == (30, 30)
    assert whole_picture == (0, 0, 40, 30)


@pytest.mark.parametrize(("extent_px", "px"), [(8, 8), (12, 12), (20, 20)])
def test_a_bilinear_crop_between_no_pixels_is_a_crop(extent_px: int, px: int) -> None:
    images = torch.randn(3, 3, 20, 28, generator=torch.Generator().manual_seed(0))
    room = torch.tensor([20 - extent_px, 28 - extent_px])
    start = torch.tensor([[0, 0], [1, 3], [2, 8]]).minimum(room)
    where = start / room.clamp_min(1)
    torch.testing.assert_close(
        bilinear_crop(images, where, extent_px, px), crop(images, where + 1e-6, px), atol=1e-4, rtol=0
    )


def test_a_bilinear_crop_that_shrinks_the_whole_square_is_that_of_antialiased_pixels() -> None:
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    seen = bilinear_crop(images, torch.zeros(2, 2), 32, 16)
    torch.testing.assert_close(
        seen, F.interpolate(images, (16, 16), mode="bilinear", antialias=True), atol=1e-5, rtol=0
    )


def test_gradients_of_a_bilinear_crop_say_where_it_gets_brighter() -> None:
    """A ramp from dark to bright: the mean of a patch of 8 px grows by 1 for each px, so by 24 along the room of 24 px."""
    images = torch.arange(32.0).expand(1, 3, 32, 32)
    where = torch.tensor([[0.5, 0.4]], requires_grad=True)
    bilinear_crop(images, where, 8, 8).mean().backward()
    assert where.grad is not None
    assert where.grad.tolist() == [[pytest.approx(0.0, abs=1e-4), pytest.approx(24.0, abs=1e-3)]]


@pytest.mark.parametrize(
    ("focus", "looks", "candidates"),
    [
        (["32", "whole@64"], 2, [1]),  # two looks: the glance, and the whole image
        (["32", "whole@64"], 3, [0, 1]),  # the whole image is not looked at twice
        (["32", "whole@64"], 4, [0, 0, 1]),
        (["32", "0.5@32", "whole@64"], 3, [1, 2]),
        (["32", "0.5@32", "whole@64"], 4, [0, 1, 2]),
        (["32", "48"], 3, [1, 1]),  # the paper's networks: the largest patch
        (["whole@64"], 3, [0, 0]),
    ],
)
def test_a_fixed_number_of_looks_has_views_that_grow_up_to_the_whole_image(
    focus: list[str], looks: int, candidates: list[int], small_net: Net
) -> None:
    net = small_net(focus=focus, looks=4, view=SEES)
    bundle = Bundle(net, tuple("abc"), count_costs(net.settings))
    outcome = bundle.predict(torch.zeros(2, 3, 96, 128), looks=looks)
    assert outcome.looks.tolist() == [looks, looks]
    assert outcome.candidate[:, : looks - 1].tolist() == [candidates, candidates]
    assert not bool(outcome.sure.any())
    manifest: Any = {"candidates": [{"extent": view.extent} for view in net.candidates], "looks": 4}
    exported = thresholds_for(manifest, looks=looks)
    rows = [row.index(math.inf) if isinstance(row, list) else 0 for row in exported]
    assert rows[:-1] == candidates
