"""Policies aim inside the image, alike for a row alone and in a batch, and repeat with a seed."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from glancefocus.look import Look
from glancefocus.network.macs import count_costs, count_macs
from glancefocus.network.model import GlanceFocus
from glancefocus.network.modules import LearntPolicy
from glancefocus.network.policy import CentreCornerPolicy, RandomCandidates, RandomPolicy, draw_candidate
from glancefocus.network.presets import network_settings
from glancefocus.settings import PolicySettings


def test_the_conv_head_is_conv_relu_linear_relu() -> None:
    policy = LearntPolicy(PolicySettings("conv", conv_channels=5, conv_kernel=3, units=6), 7, 3, (3,), (0, 0))
    map_ = torch.randn(2, 7, 3, 3)
    by_hand = nn.Sequential(policy.conv, nn.ReLU(), nn.Flatten(), policy.linears[0], nn.ReLU())
    torch.testing.assert_close(policy.perceive(map_, 0), by_hand(map_), rtol=0, atol=1e-6)
    assert tuple(policy.conv.weight.shape) == (5, 7, 3, 3)
    assert "conv.bias" not in policy.state_dict()
    assert tuple(policy.linears[0].weight.shape) == (6, 5 * 9)


def test_the_linear_head_is_two_linear_layers_on_the_flattened_map() -> None:
    policy = LearntPolicy(PolicySettings("linear", linear_units=11, units=6), 7, 3, (3,), (0, 0))
    map_ = torch.randn(2, 7, 3, 3)
    hidden = policy.linears[0](map_.flatten(1)).relu()
    torch.testing.assert_close(policy.perceive(map_, 0), policy.linears[2](hidden).relu(), rtol=0, atol=1e-6)
    assert tuple(policy.linears[0].weight.shape) == (11, 63)


def test_the_policys_memory_is_a_gru_over_the_looks(look_with: Callable[..., Look]) -> None:
    policy = LearntPolicy(PolicySettings(units=6, conv_channels=2), 4, 1, (1,), (0, 0))
    gru = nn.GRU(6, 6)
    gru.load_state_dict({f"{name}_l0": tensor for name, tensor in policy.gru.state_dict().items()})
    maps = torch.randn(4, 3, 4, 1, 1)
    expected, _ = gru(torch.stack([policy.perceive(map_, 0) for map_ in maps]))
    memory = None
    for step, map_ in enumerate(maps):
        aim = policy.aim(replace(look_with([0.5] * 3), map=map_, policy_memory=memory))
        memory = aim.memory
        torch.testing.assert_close(memory, expected[step], rtol=0, atol=1e-6)
        torch.testing.assert_close(aim.where, policy.actor(expected[step]).sigmoid(), rtol=0, atol=1e-6)
        assert aim.value is not None
        torch.testing.assert_close(aim.value, policy.critic(expected[step])[:, 0], rtol=0, atol=1e-6)


# The paper's table of architectures of pi for ResNet-50 at 96 px: settings, and millions of multiply-adds a look as the paper and
# as docs/faithfulness.md round them.
ARCHITECTURES: dict[str, tuple[dict[str, Any], float, float]] = {
    "fully connected, 1024 units": ({"head": "linear", "units": 1024}, 46.1, 46.14),
    "fully connected, 512 units": ({"head": "linear", "units": 512}, 40.4, 40.37),
    "fully connected, 256 units": ({"head": "linear", "units": 256}, 38.7, 38.67),
    "3x3 conv to 32, 256 units": ({"head": "conv", "conv_kernel": 3, "conv_channels": 32, "units": 256}, 5.8, 5.78),
    "1x1 conv to 64, 256 units": ({"head": "conv", "conv_channels": 64, "units": 256}, 1.7, 1.72),
    "1x1 conv to 32, 256 units": ({"head": "conv", "conv_channels": 32, "units": 256}, 1.1, 1.06),
    "1x1 conv to 16, 256 units": ({"head": "conv", "conv_channels": 16, "units": 256}, 0.7, 0.73),
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_architecture_of_the_paper_costs_what_its_table_says(architecture: str) -> None:
    settings, paper, ours = ARCHITECTURES[architecture]
    policy_settings = network_settings("gf-resnet50-96", policy=settings).policy
    with torch.device("meta"):
        policy = LearntPolicy(policy_settings, 2048, 3, (3,), (0, 0))
        map_ = torch.empty(1, 2048, 3, 3)

        def aim() -> None:
            memory = policy.remember(policy.perceive(map_, 0), 0, None, None)
            policy.mean(memory)
            policy.value(memory)

        macs = count_macs(aim)
    assert (round(macs / 1e6, 1), round(macs / 1e6, 2)) == (paper, ours)


def test_the_policys_cost_by_closed_form() -> None:
    # 1x1 conv of 2048 channels to 32 on a 3x3 map, linear 288 to 256, GRU 256 to 256 (three gates, both sides), actor and critic.
    expected = 2048 * 32 * 9 + 288 * 256 + 2 * 3 * 256 * 256 + 256 * 3
    assert (
        count_costs(network_settings("gf-resnet50-96", policy={"head": "conv", "units": 256})).policy_macs == expected
    )


def test_the_random_policy_repeats_with_a_seed(look_with: Callable[..., Look]) -> None:
    look = look_with([0.5] * 1000)
    one, two = (RandomPolicy([0], torch.Generator().manual_seed(7)) for _ in range(2))
    first = one.aim(look).where
    assert torch.equal(first, two.aim(look).where)
    assert not torch.equal(first, one.aim(look).where)  # it goes on, it does not start again
    assert first.shape == (1000, 2)
    assert 0 <= float(first.min()) < 0.02
    assert 0.98 < float(first.max()) <= 1
    assert one.aim(look).candidate == 0


def test_the_centre_comes_first_then_the_corners_then_round_again(look_with: Callable[..., Look]) -> None:
    policy = CentreCornerPolicy()
    places = [tuple(policy.aim(look_with([0.5, 0.5], number=n)).where[1].tolist()) for n in range(1, 7)]
    assert places == [(0.5, 0.5), (0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0), (0.5, 0.5)]


@pytest.mark.parametrize("head", ["conv", "linear"])
def test_rows_of_different_patch_sizes_in_one_batch_are_what_each_row_is_alone(
    head: str, small_net: Callable[..., GlanceFocus]
) -> None:
    policy = {"head": head, "units": 16, "conv_channels": 4, "conv_kernel": 3, "linear_units": 24}
    net = small_net(patch_px=(32, 48, 64), looks=4, policy=policy, view={"height_px": 80, "width_px": 72})
    images = torch.randn(5, 3, 80, 72, generator=torch.Generator().manual_seed(0))
    candidates = [torch.tensor([1, 0, 2, 0, 1]), torch.tensor([0, 0, 1, 2, 2]), torch.tensor([0, 1, 0, 1, 0])]

    def looks_at(rows: list[int]) -> list[Look]:
        look = net.glance(images[rows])
        looks = []
        for candidate in candidates:
            look = net.focus(look, net.policy.aim(look, candidate[rows]))
            looks.append(look)
        return looks

    with torch.no_grad():
        together = looks_at([0, 1, 2, 3, 4])
        for row in range(5):
            for batch, alone in zip(together, looks_at([row]), strict=True):
                torch.testing.assert_close(batch.logits[row], alone.logits[0], rtol=0, atol=1e-5)
                torch.testing.assert_close(batch.vector[row], alone.vector[0], rtol=0, atol=1e-5)
                assert batch.aim is not None
                assert alone.aim is not None
                torch.testing.assert_close(batch.aim.where[row], alone.aim.where[0], rtol=0, atol=1e-5)
                assert torch.as_tensor(batch.candidate)[row] == torch.as_tensor(alone.candidate)[0]
        # Dropping the rows with the largest patches leaves maps that are padded more than they need; nothing else may change.
        last = together[-2]
        kept = last.keep(torch.tensor([True, True, False, False, False]))
        aim, kept_aim = net.policy.aim(last, 0), net.policy.aim(kept, 0)
        torch.testing.assert_close(kept_aim.where, aim.where[:2], rtol=0, atol=1e-6)


def test_a_batch_of_one_patch_size_may_be_given_as_a_number(small_net: Callable[..., GlanceFocus]) -> None:
    net = small_net(patch_px=(32, 48), looks=3)
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        glance = net.glance(images)
        number = net.focus(glance, net.policy.aim(glance, 1))
        tensor = net.focus(glance, net.policy.aim(glance, torch.tensor([1, 1])))
        torch.testing.assert_close(number.logits, tensor.logits, rtol=0, atol=1e-6)
        torch.testing.assert_close(net.policy.aim(number).where, net.policy.aim(tensor).where, rtol=0, atol=1e-6)


def test_a_multi_scale_policy_aims_with_the_largest_patches_by_default(small_net: Callable[..., GlanceFocus]) -> None:
    net = small_net(patch_px=(32, 48), looks=2)
    with torch.no_grad():
        assert net.policy.aim(net.glance(torch.zeros(1, 3, 64, 64))).candidate == 1


def test_the_size_of_the_next_patch_changes_the_aim_of_a_multi_scale_policy(
    small_net: Callable[..., GlanceFocus],
) -> None:
    net = small_net(patch_px=(32, 48), looks=2)
    with torch.no_grad():
        glance = net.glance(torch.zeros(1, 3, 64, 64))
        assert not torch.equal(net.policy.aim(glance, 0).where, net.policy.aim(glance, 1).where)


def test_of_one_size_nothing_is_drawn(look_with: Callable[..., Look]) -> None:
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    assert draw_candidate([5], look_with([0.5] * 4), generator) == 5
    assert draw_candidate([5], look_with([0.5] * 4), generator, each_row=True) == 5
    assert torch.equal(generator.get_state(), before)


def test_of_several_sizes_one_is_drawn_for_the_whole_batch(look_with: Callable[..., Look]) -> None:
    sizes, look = (32, 48, 64), look_with([0.5] * 4)
    one, two = (torch.Generator().manual_seed(0) for _ in range(2))
    drawn = [draw_candidate(sizes, look, one) for _ in range(600)]
    assert drawn == [draw_candidate(sizes, look, two) for _ in range(600)]
    assert all(isinstance(px, int) for px in drawn)
    for px in sizes:
        assert 150 < drawn.count(px) < 250  # a third of them, give or take four deviations


def test_or_one_for_each_row(look_with: Callable[..., Look]) -> None:
    look = look_with([0.5] * 600)
    one, two = (draw_candidate((32, 48, 64), look, torch.Generator().manual_seed(0), each_row=True) for _ in range(2))
    assert isinstance(one, torch.Tensor)
    assert isinstance(two, torch.Tensor)
    assert torch.equal(one, two)
    assert one.shape == (600,)
    assert set(one.tolist()) == {32, 48, 64}
    for px in (32, 48, 64):
        assert 150 < int((one == px).sum()) < 250


def test_the_random_policy_draws_a_size_where_there_are_several(look_with: Callable[..., Look]) -> None:
    look = look_with([0.5] * 50)
    one, two = (RandomPolicy((0, 1), torch.Generator().manual_seed(1)) for _ in range(2))
    aims = [one.aim(look) for _ in range(20)]
    assert {aim.candidate for aim in aims} == {0, 1}
    for aim in aims:
        again = two.aim(look)
        assert aim.candidate == again.candidate
        assert torch.equal(aim.where, again.where)
    rows = RandomPolicy((0, 1), torch.Generator().manual_seed(1), each_row=True).aim(look).candidate
    assert isinstance(rows, torch.Tensor)
    assert set(rows.tolist()) == {0, 1}


@pytest.mark.parametrize("each_row", [False, True])
def test_random_sizes_are_aimed_at_where_the_learnt_policy_aims_with_them(
    each_row: bool, small_net: Callable[..., GlanceFocus]
) -> None:
    net = small_net(patch_px=(32, 48), looks=2)
    with torch.no_grad():
        glance = net.glance(torch.randn(6, 3, 64, 64, generator=torch.Generator().manual_seed(0)))
        aim = RandomCandidates(net.policy, torch.Generator().manual_seed(2), each_row=each_row).aim(glance)
        drawn = draw_candidate((0, 1), glance, torch.Generator().manual_seed(2), each_row)
        assert torch.equal(torch.as_tensor(aim.candidate), torch.as_tensor(drawn))
        assert torch.equal(aim.where, net.policy.aim(glance, drawn).where)


def test_with_one_size_random_sizes_are_the_learnt_policy_itself(small_net: Callable[..., GlanceFocus]) -> None:
    net = small_net(looks=2)
    with torch.no_grad():
        glance = net.glance(torch.zeros(2, 3, 64, 64))
        aim = RandomCandidates(net.policy).aim(glance)
        assert aim.candidate == 0
        assert torch.equal(aim.where, net.policy.aim(glance).where)
