"""Multiply-adds are counted on the real modules, and agree with the paper, with closed forms and with one whole run."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from glancefocus.network.build import count_parameters
from glancefocus.network.macs import count_costs, count_macs
from glancefocus.network.model import GlanceFocus
from glancefocus.network.presets import PRESETS, network_settings


def test_a_convolution_by_closed_form() -> None:
    conv = nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=2)
    # 10x14 px become 5x7; each of 16 outputs takes 4 inputs of 3x3.
    assert count_macs(lambda: conv(torch.zeros(2, 8, 10, 14))) == 2 * 16 * 5 * 7 * 4 * 9


def test_a_linear_layer_and_a_gru_cell_by_closed_form() -> None:
    assert count_macs(lambda: nn.Linear(30, 20)(torch.zeros(5, 30))) == 5 * 30 * 20
    assert count_macs(lambda: nn.GRUCell(30, 20)(torch.zeros(5, 30))) == 5 * 3 * 20 * (30 + 20)


def test_resnet50_costs_what_the_paper_says() -> None:
    costs = count_costs(network_settings("gf-resnet50-96"))
    assert round(costs.encoder_macs / 1e6, 1) == 750.7
    assert costs.backbone_macs / 1e9 == pytest.approx(4.11, rel=0.006)
    assert costs.encoder_with_head_macs - costs.encoder_macs == 2048 * 1000
    # The GRU classifier: 2048 features, 1024 units, 1000 classes.
    assert costs.classifier_macs == (3 * 1024 * (2048 + 1024) + 1024 * 1000,) * 5


def test_mobilenetv3_costs_what_the_paper_says() -> None:
    costs = count_costs(network_settings("gf-mobilenetv3-large-100-96"))
    assert round(costs.encoder_with_head_macs / 1e6, 1) == 43.1
    # The glance is answered by its own head, later looks by a layer on all vectors so far.
    assert costs.classifier_macs == (1280 * 1000, 2 * 1280 * 1000, 3 * 1280 * 1000)


@pytest.mark.parametrize(("name", "paper"), [("gf-densenet121-96", 2.85), ("gf-densenet169-96", 3.36)])
def test_densenets_cost_what_the_paper_says(name: str, paper: float) -> None:
    assert count_costs(network_settings(name)).backbone_macs / 1e9 == pytest.approx(paper, rel=0.006)


VARIANTS: dict[str, dict[str, Any]] = {
    "recurrent": {},
    "cascaded": {"classifier": "cascaded"},
    "own head": {"first_answer": "own_head_evaluating"},
    "linear policy": {"policy": {"head": "linear", "linear_units": 32, "units": 16}},
    "patches of several sizes": {"patch_px": (28, 32)},  # both give maps of 1x1
    "transformer": {"backbone": "test_vit"},
    "one look": {"looks": 1},
}


def count_runs(net: GlanceFocus) -> tuple[int, ...]:
    """Multiply-adds of a glance, of a glance and a focus, and so on, each counted in one go."""
    net, image = net.to("meta"), torch.zeros(1, 3, 64, 64, device="meta")

    def run(looks: int) -> None:
        with torch.no_grad():
            look = net.glance(image)
            for _ in range(looks - 1):
                look = net.focus(look, net.policy.aim(look))

    return tuple(count_macs(lambda n=n: run(n)) for n in range(1, net.settings.looks + 1))  # type: ignore[misc]


@pytest.mark.parametrize("variant", VARIANTS)
def test_macs_after_look_are_those_of_one_whole_run(variant: str, small_net: Callable[..., GlanceFocus]) -> None:
    net = small_net(**VARIANTS[variant])
    assert count_costs(net.settings).macs_after_look == count_runs(net)


def test_aiming_is_counted_on_the_map_of_the_look_before_it(small_net: Callable[..., GlanceFocus]) -> None:
    net = small_net(glance_px=48, patch_px=32)
    # The policy's convolution sees a map of 2x2 at the glance and of 1x1 after a focus: 3 x 96 x 4 multiply-adds fewer.
    costs = count_costs(net.settings)
    assert costs.macs_after_look == count_runs(net)
    assert costs.policy_macs - costs.focus_policy_macs["32"] == 3 * 96 * 4


def test_attention_is_counted(small_net: Callable[..., GlanceFocus]) -> None:
    net = small_net(backbone="test_vit").to("meta")
    blocks = net.glance_encoder.backbone.blocks
    attention = blocks[0].attn
    tokens, features = 4 + 1, 64
    # Queries by keys and weights by values: 2 x tokens x tokens x features; in and out projections: 4 x tokens x features^2.
    expected = 2 * tokens**2 * features + 4 * tokens * features**2
    assert count_macs(lambda: attention(torch.zeros(1, tokens, features, device="meta"))) == expected


def test_patches_of_each_size_are_counted(small_net: Callable[..., GlanceFocus]) -> None:
    net = small_net(patch_px=(32, 48), glance_px=40)
    costs = count_costs(net.settings)
    for name, macs in costs.focus_encoder_macs.items():
        assert macs == count_macs(lambda px=int(name): net.focus_encoder(torch.zeros(1, 3, px, px)))  # type: ignore[misc]
    assert list(costs.focus_encoder_macs) == ["32", "48"]
    assert costs.encoder_macs == count_macs(lambda: net.glance_encoder(torch.zeros(1, 3, 40, 40)))


def test_the_plain_backbone_is_counted_on_the_whole_image(small_net: Callable[..., GlanceFocus]) -> None:
    net = small_net(view={"height_px": 64, "width_px": 96})
    assert count_costs(net.settings).backbone_macs == count_macs(
        lambda: net.glance_encoder.backbone(torch.zeros(1, 3, 64, 96))
    )


@pytest.mark.parametrize("shared", [False, True])
def test_parameters_are_counted_once_each(shared: bool, small_net: Callable[..., GlanceFocus]) -> None:
    net = small_net(shared_encoder=shared)
    assert count_parameters(net.settings) == sum(p.numel() for p in net.parameters())


def test_the_preset_for_roads_costs_what_the_paper_says() -> None:
    assert count_costs(PRESETS["gf-resnet18-192-roads"].settings).backbone_macs == pytest.approx(44.7e9, rel=0.01)
