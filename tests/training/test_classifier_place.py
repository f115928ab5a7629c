"""A classifier that knows the place of each look learns what no other can: a world in which only the place tells the class."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import glancefocus as gf
from glancefocus.bundle.bundle import Bundle
from glancefocus.errors import BadSetting
from glancefocus.look import Aim, ImageBatch, Look
from glancefocus.network.macs import count_costs
from glancefocus.network.model import GlanceFocus
from glancefocus.network.modules import Encoding, LearntPolicy, RecurrentClassifier
from glancefocus.network.policy import RandomPolicy
from glancefocus.settings import NetworkSettings, PolicySettings, ViewSettings
from glancefocus.training.episode import play
from glancefocus.training.stage_recognise import recognition_loss

IMAGE_PX, SQUARE_PX, PATCH_PX = 32, 4, 16
VIEW = ViewSettings(fit="whole", height_px=IMAGE_PX, width_px=IMAGE_PX)


def squares(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Black images with one white square, in the left third (class 0) or in the right third (class 1)."""
    images, labels = torch.zeros(count, 3, IMAGE_PX, IMAGE_PX), torch.randint(0, 2, (count,), generator=generator)
    top = torch.randint(0, IMAGE_PX - SQUARE_PX + 1, (count,), generator=generator)
    left = torch.randint(0, 7, (count,), generator=generator) + 22 * labels
    for row in range(count):
        images[row, :, top[row] : top[row] + SQUARE_PX, left[row] : left[row] + SQUARE_PX] = 1
    return images, labels


class SeesWholeSquares(nn.Module):
    """Says whether the whole square lies in a patch, not where: all that a glance or a patch shows besides is lost."""

    vector_features = 1

    def forward(self, images: Tensor) -> Encoding:
        seen = ((images[:, :1] > 0.9).sum(dim=(2, 3)) == SQUARE_PX**2).float()
        return Encoding(seen[:, :, None, None], seen)


def accuracy_where_seen(*, place: bool) -> float:
    """Of a classifier after 120 updates, for new images whose square was in one of four random patches."""
    settings = NetworkSettings(
        "none", 2, 8, (str(PATCH_PX),), 5, classifier_place=place, policy=PolicySettings(units=4), view=VIEW
    )
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        classifier = RecurrentClassifier(4 if place else 1, 2, 16)
        policy = LearntPolicy(settings.policy, 1, 1, (1,), (1, 0))
    encoder: Any = SeesWholeSquares()
    net = GlanceFocus(settings, encoder, encoder, classifier, policy)
    optimizer = torch.optim.Adam(classifier.parameters(), lr=0.02)
    for _ in range(120):
        images, labels = squares(64, generator)
        looks = play(net, ImageBatch(images), 5, RandomPolicy([0], generator))
        optimizer.zero_grad()
        recognition_loss(net, looks, labels, 0.0).backward()
        optimizer.step()
    images, labels = squares(400, generator)
    with torch.no_grad():
        looks = play(net, ImageBatch(images), 5, RandomPolicy([0], generator))
    seen = torch.stack([look.features[:, 0] for look in looks[1:]]).any(dim=0)
    assert seen.sum() > 100
    return float((looks[-1].logits.argmax(dim=1) == labels)[seen].float().mean())


def test_only_a_classifier_with_place_learns_where_it_saw_something() -> None:
    assert accuracy_where_seen(place=True) > 0.95
    assert accuracy_where_seen(place=False) < 0.65  # a guess: which patch it was says nothing


def test_it_gets_what_each_look_covered(small_net: Callable[..., GlanceFocus]) -> None:
    net = small_net(focus=("32", "0.75@48", "whole@64"), classifier_place=True)
    given: list[Tensor] = []
    net.classifier.gru.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    images = torch.randn(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    where = torch.tensor([[0.25, 0.5], [1.0, 0.0], [0.1, 0.2]])
    with torch.inference_mode():
        look = net.glance(images)
        net.focus(look, Aim(where, 0))
        net.focus(look, Aim(where, torch.tensor([1, 2, 0])))  # rows with different views
    features = net.glance_encoder.vector_features
    assert given[0].shape == (3, features + 3)
    assert given[0][:, features:].tolist() == [[0.5, 0.5, 1.0]] * 3
    expected = torch.tensor([[0.25, 0.5, 0.5], [1.0, 0.0, 0.5], [0.1, 0.2, 0.5]])  # 32 of 64 px
    assert torch.equal(given[1][:, features:], expected)
    each = torch.cat(given[2:])[:, features:]  # view by view
    assert torch.equal(each, torch.tensor([[0.1, 0.2, 0.5], [0.25, 0.5, 0.75], [0.5, 0.5, 1.0]]))


@pytest.mark.parametrize("first_view", ["centre", "random"])
def test_it_gets_the_place_of_a_first_look_that_is_a_patch(
    small_net: Callable[..., GlanceFocus], first_view: str
) -> None:
    net = small_net(first_view=first_view, classifier_place=True)
    given: list[Tensor] = []
    net.classifier.gru.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    where = torch.tensor([[0.25, 0.5], [1.0, 0.0]])
    with torch.inference_mode():
        look = net.glance(images, where if first_view == "random" else None)
        again = net.remember_again(look)
        kept = net.first_look(look.scene, Encoding(look.map, look.features))
    places = where.tolist() if first_view == "random" else [[0.5, 0.5]] * 2
    features = net.glance_encoder.vector_features
    assert given[0][:, features:].tolist() == [[*place, 0.5] for place in places]  # 32 of 64 px
    assert torch.equal(again, look.memory)
    assert kept.aim is not None
    assert torch.equal(given[2][:, features : features + 2], kept.aim.where)


def test_its_cost_is_three_inputs_of_the_three_gates_more(small_net: Callable[..., GlanceFocus]) -> None:
    plain, placed = (count_costs(small_net(classifier_place=place).settings) for place in (False, True))
    more = [two - one for one, two in zip(plain.classifier_macs, placed.classifier_macs, strict=True)]
    assert more == [3 * 3 * 16] * 3  # 16 units


def test_bundles_keep_it_and_older_ones_do_not_have_it(small_bundle: Callable[..., Bundle], tmp_path: Any) -> None:
    bundle = small_bundle(classifier_place=True)
    loaded = gf.load(bundle.save(tmp_path / "bundle"), device="cpu")
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    answers = [each.predict(images, looks=3).logits for each in (loaded, bundle)]
    torch.testing.assert_close(*answers, rtol=0, atol=1e-6)  # the layout in memory may differ
    assert loaded.settings.classifier_place
    assert not small_bundle().settings.classifier_place


@pytest.mark.parametrize(
    "changes",
    [
        {"classifier": "summed"},
        {"classifier": "cascaded", "first_answer": "own_head"},
        {"focus": ("whole@48", "whole@64")},
    ],
)
def test_it_is_refused_where_it_makes_no_sense(small_net: Callable[..., GlanceFocus], changes: dict[str, Any]) -> None:
    with pytest.raises(BadSetting, match=r"needs classifier='recurrent' and a view of a part .* Leave it out"):
        small_net(classifier_place=True, **changes)


def test_half_precision_takes_it(small_net: Callable[..., GlanceFocus]) -> None:
    net = small_net(classifier_place=True)
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        look: Look = net.glance(images)
        after = net.focus(look, net.policy.aim(look))
    assert bool(after.logits.isfinite().all())
