"""An encoder of its own for views of the whole image: the plain backbone inside the network."""

import pytest
import torch

import glancefocus as gf
from glancefocus.errors import BadSetting
from glancefocus.network.model import GlanceFocus
from glancefocus.network.parts import take_apart
from glancefocus.network.policy import CentreCornerPolicy
from glancefocus.settings import ViewSettings

VIEW = ViewSettings(fit="whole", height_px=64, width_px=64)


def net_of(**changes: object) -> GlanceFocus:
    options = {"classifier": "summed", "whole_encoder": True, "focus": ["0.5@32", "whole@64"], **changes}
    return gf.create(backbone="test_resnet", classes=3, seed=0, view=VIEW, glance_px=32, looks=3, **options)


def test_each_view_is_seen_by_its_encoder() -> None:
    net = net_of()
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        glance = net.glance(images)
        whole = net.focus(glance, CentreCornerPolicy(1).aim(glance))
        part = net.focus(glance, CentreCornerPolicy(0).aim(glance))
        assert net.whole_encoder is not None
        alone = net.whole_encoder.own_head(net.whole_encoder(images).vector)
        own, other = net.own_answer(whole), net.own_answer(part)
    torch.testing.assert_close(whole.logits, glance.memory + alone, rtol=0, atol=1e-4)
    torch.testing.assert_close(own, alone, rtol=0, atol=1e-4)
    assert not torch.allclose(other, alone)
    assert net.encoder_of(0) is net.focus_encoder


def test_only_smaller_whole_images_leave_their_encoder_something_to_learn() -> None:
    full, smaller = net_of(), net_of(focus=["0.5@32", "0.5@48", "whole@48"])
    assert {encoder: list(views) for encoder, views in full.learning_views().items()} == {full.focus_encoder: [0]}
    assert {encoder: list(views) for encoder, views in smaller.learning_views().items()} == {
        smaller.focus_encoder: [0, 1],
        smaller.whole_encoder: [2],
    }


def test_rows_with_different_views_are_answered_by_their_own_encoders() -> None:
    net = net_of()
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        glance = net.glance(images)
        mixed = net.focus(glance, net.policy.aim(glance, torch.tensor([1, 0])))
        own = net.own_answer(mixed)
        one = net.own_answer(net.focus(glance, net.policy.aim(glance, 1)))
    torch.testing.assert_close(own[:1], one[:1], rtol=0, atol=1e-4)


def test_the_graph_of_a_view_has_the_weights_of_its_encoder() -> None:
    net = net_of().eval()
    part = next(part for part in take_apart(net) if part.name == "focus_whole@64")
    images, memory = torch.randn(2, 3, 64, 64), torch.zeros(2, 3)
    with torch.inference_mode():
        logits = part.module(images, memory)[0]
        assert net.whole_encoder is not None
        expected = net.whole_encoder.own_head(net.whole_encoder(images).vector)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"classifier": "recurrent"}, "needs classifier='summed'"),
        ({"focus": ["32"]}, "needs a view of the whole image"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadSetting, match=sentence):
        net_of(**changes)
