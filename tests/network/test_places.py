"""Networks without a glance, and policies that are rules: where they look, what that costs, and that nothing is drawn twice."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from glancefocus.bundle.bundle import Bundle
from glancefocus.errors import BadSetting
from glancefocus.look import ClipBatch, ImageBatch, MixedImages
from glancefocus.loop import every_look, look_until_sure
from glancefocus.network.macs import count_costs
from glancefocus.network.model import GlanceFocus
from glancefocus.network.places import drawn_places
from glancefocus.network.policy import CentreCornerPolicy, EvidencePolicy, RandomFirstViews
from glancefocus.settings import NetworkSettings
from glancefocus.values import from_plain, to_plain

Make = Callable[..., GlanceFocus]
RULE = {"units": 16, "conv_channels": 4}


def noise(count: int, seed: int = 0, side: int = 64) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, side, side), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)


def scene_of(net: GlanceFocus, pixels: torch.Tensor) -> ImageBatch:
    return ImageBatch(pixels, normalise_by=net.settings.view)


def test_settings_without_these_fields_are_those_of_a_glance_with_a_learnt_policy() -> None:
    plain = to_plain(NetworkSettings("resnet18"))
    del plain["first_view"]
    del plain["policy"]["kind"]
    settings = from_plain(NetworkSettings, plain)
    assert (settings.first_view, settings.policy.kind) == ("glance", "learnt")
    assert settings == NetworkSettings("resnet18")


def test_a_first_view_at_the_centre_is_the_patch_in_the_middle(small_net: Make) -> None:
    net, pixels = small_net(first_view="centre"), noise(2)
    scene = scene_of(net, pixels)
    with torch.inference_mode():
        look = net.glance(scene)
        patch = scene_of(net, pixels[:, :, 16:48, 16:48]).whole  # 32 of 64 px
        expected = net.runner.glance(patch)
    torch.testing.assert_close(look.logits, expected.logits, rtol=0, atol=1e-6)  # the layout in memory may differ
    assert look.aim is not None
    assert look.aim.where.tolist() == [[0.5, 0.5]] * 2


def test_a_first_view_costs_what_a_glance_of_its_size_costs(small_net: Make) -> None:
    glance = count_costs(small_net().settings)
    assert count_costs(small_net(first_view="centre").settings) == glance
    assert count_costs(small_net(first_view="random").settings) == glance


def test_a_policy_that_is_a_rule_costs_nothing(small_net: Make) -> None:
    learnt = count_costs(small_net().settings)
    rule = count_costs(small_net(policy={**RULE, "kind": "random"}).settings)
    assert rule.policy_macs == 0
    aims = [learnt.macs_after_look[look] - rule.macs_after_look[look] for look in range(3)]
    assert aims == [0, learnt.policy_macs, 2 * learnt.policy_macs]


def test_drawn_places_follow_from_the_image_and_not_from_its_batch(small_net: Make) -> None:
    net = small_net(first_view="random", policy={**RULE, "kind": "random"})
    pixels, view = noise(200), net.settings.view
    places = drawn_places(ImageBatch(pixels, normalise_by=view), view, 2)
    alone = drawn_places(ImageBatch(pixels[7:8], normalise_by=view), view, 2)
    assert torch.equal(places[7:8], alone)
    mixed = MixedImages((pixels[7], noise(1, side=80)[0]), view)
    assert torch.equal(drawn_places(mixed, view, 2)[:1], alone)
    floats = (pixels[7:8].float() / 255 - torch.tensor(view.mean)[:, None, None]) / torch.tensor(view.std)[
        :, None, None
    ]
    assert torch.equal(drawn_places(ImageBatch(floats), view, 2), alone)
    clips = ClipBatch(torch.stack([pixels[7:9], pixels[1:3]]), normalise_by=view)  # of two frames each
    assert torch.equal(drawn_places(clips, view, 2), places[[7, 1]])
    # They look random: spread over the image, and other ones for other looks.
    assert (places.mean(dim=0) - 0.5).abs().max() < 0.1
    assert (places.std(dim=0) - 12**-0.5).abs().max() < 0.05
    assert (drawn_places(ImageBatch(pixels, normalise_by=view), view, 3) != places).all()


def test_a_network_with_drawn_places_gives_the_same_outcome_in_every_batch(small_net: Make) -> None:
    net, pixels = small_net(first_view="random", policy={**RULE, "kind": "random"}), noise(6)
    with torch.inference_mode():
        together = look_until_sure(net, scene_of(net, pixels), every_look(3))
        alone = look_until_sure(net, scene_of(net, pixels[4:5]), every_look(3))
    assert torch.equal(together.where[4], alone.where[0])
    assert together.first_where is not None
    assert alone.first_where is not None
    assert torch.equal(together.first_where[4], alone.first_where[0])
    assert len({tuple(place) for place in together.where[:, 0].tolist()}) == 6


def test_while_training_random_first_views_are_drawn_anew(small_net: Make) -> None:
    net, scene = small_net(first_view="random"), ImageBatch(torch.zeros(50, 3, 64, 64))
    generators = [torch.Generator().manual_seed(seed) for seed in (1, 2, 1)]
    states = [generator.get_state() for generator in generators]
    looks = [RandomFirstViews(net, generator).glance(scene) for generator in generators]
    one, other, again = (look.aim.where for look in looks if look.aim is not None)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert len({tuple(place) for place in one.tolist()}) == 50  # although the images are alike
    assert torch.equal(generators[0].get_state(), states[0])  # others draw from it as before


@pytest.mark.parametrize(
    ("first_view", "expected"),
    [("glance", [[0.5, 0.5], [0, 0], [0, 1], [1, 0]]), ("centre", [[0, 0], [0, 1], [1, 0], [1, 1]])],
)
def test_the_centre_is_seen_once_before_the_corners(small_net: Make, first_view: str, expected: list[Any]) -> None:
    net = small_net(first_view=first_view, looks=5, policy={**RULE, "kind": "centre_corner"})
    with torch.inference_mode():
        outcome = look_until_sure(net, scene_of(net, noise(1)), every_look(5))
        passed_in = look_until_sure(net, scene_of(net, noise(1)), every_look(5), CentreCornerPolicy.of(net.settings, 0))
    assert outcome.where[0].tolist() == expected
    assert torch.equal(passed_in.where, outcome.where)


def test_a_policy_with_place_gets_where_the_first_patch_was(small_net: Make) -> None:
    net = small_net(first_view="centre", policy={**RULE, "place": True})
    with torch.inference_mode():
        look = net.glance(scene_of(net, noise(1)))
        place = net.learnt_policy.place_of(look)
        glance = small_net(policy={**RULE, "place": True})
        whole = glance.learnt_policy.place_of(glance.glance(scene_of(glance, noise(1))))
    assert place is not None
    assert whole is not None
    assert place.tolist() == [[0.5, 0.5, 0.5]]  # 32 of 64 px
    assert whole.tolist() == [[0.5, 0.5, 1.0]]


def test_a_bundle_keeps_its_first_view_and_its_policy(small_bundle: Callable[..., Bundle], tmp_path: Any) -> None:
    import glancefocus as gf

    bundle = small_bundle(first_view="random", policy={**RULE, "kind": "random"}, view={"fit": "whole"})
    pictures = list(noise(3))
    expected = bundle.predict(pictures, looks=3)
    again = gf.load(bundle.save(tmp_path / "bundle")).predict(pictures, looks=3)
    torch.testing.assert_close(again.logits, expected.logits, rtol=0, atol=1e-6)
    assert again.boxes == expected.boxes
    left, top, right, bottom = again.first_box(0) or (0, 0, 0, 0)
    assert (right - left, bottom - top) == (32, 32)
    assert small_bundle().predict(pictures, looks=1).first_box(0) is None  # a glance


def test_a_policy_that_is_a_rule_has_no_value_to_stop_by(small_bundle: Callable[..., Bundle]) -> None:
    bundle = small_bundle(policy={**RULE, "kind": "random"})
    bundle.score = "value"
    with pytest.raises(BadSetting, match="'value' needs a learnt policy, and this one is a rule"):
        bundle.exit_rule(thresholds=[0.5, 0.5])


def test_a_small_picture_is_upscaled_until_the_first_patch_fits(small_bundle: Callable[..., Bundle]) -> None:
    bundle = small_bundle(first_view="centre", looks=1, view={"fit": "whole"})
    outcome = bundle.predict([noise(1, side=24)[0]])
    assert outcome.image_px is not None
    assert outcome.image_px.tolist() == [[32, 32]]
    assert outcome.notes == (("upscaled from 24x24 px",),)


def test_bad_first_views_get_their_sentence(small_net: Make) -> None:
    net = small_net()
    with pytest.raises(BadSetting, match="first look is a patch of glance_px=96, which is larger than the image"):
        replace(net.settings, first_view="centre", glance_px=96)
    with pytest.raises(BadSetting, match="first_view"):
        replace(net.settings, first_view="corner")  # type: ignore[arg-type]
    with pytest.raises(BadSetting, match="a patch of 32 px at the centre"):
        EvidencePolicy(small_net(first_view="centre"))
