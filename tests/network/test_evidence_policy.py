"""Aims at the glance's own evidence: the strongest place first, then the strongest of what is left."""

from dataclasses import replace

import torch

import glancefocus as gf
from glancefocus.look import Look
from glancefocus.loop import every_look, look_until_sure
from glancefocus.network.model import GlanceFocus
from glancefocus.network.policy import EvidencePolicy
from glancefocus.settings import ViewSettings

SIDE_PX = 160


def net_and_look(focus: str = "32") -> tuple[GlanceFocus, Look]:
    view = ViewSettings(fit="whole", height_px=SIDE_PX, width_px=SIDE_PX)
    net = gf.create(backbone="test_resnet", classes=3, seed=0, view=view, glance_px=128, focus=focus, looks=3)
    with torch.inference_mode():
        return net, net.glance(torch.randn(1, 3, SIDE_PX, SIDE_PX, generator=torch.Generator().manual_seed(0)))


def with_evidence(net: GlanceFocus, look: Look, places: dict[tuple[int, int], float]) -> Look:
    """The look with a map in which these cells speak for its answer, by so much."""
    weight = net.glance_encoder.backbone.get_classifier().weight
    direction = weight[look.best[1][0]] - weight.mean(dim=0)
    map_ = torch.zeros_like(look.map)
    for (row, column), strength in places.items():
        map_[0, :, row, column] = strength * direction
    return replace(look, map=map_)


def test_the_strongest_place_comes_first_and_the_next_one_after_it() -> None:
    net, look = net_and_look()
    side = look.map.shape[-1]
    assert side == 4
    look = with_evidence(net, look, {(0, 3): 2.0, (3, 1): 1.0})
    policy = EvidencePolicy(net)
    with torch.inference_mode():
        first = policy.aim(look)
        second = policy.aim(replace(look, policy_memory=first.memory, number=2))
    # Patches of 32 px cover a fifth: the centre of cell (0, 3) is at (1/8, 7/8), so the patch starts at (1/8 - 1/10, 7/8 - 1/10).
    torch.testing.assert_close(first.where, torch.tensor([[0.025 / 0.8, 0.775 / 0.8]]))
    torch.testing.assert_close(second.where, torch.tensor([[0.775 / 0.8, 0.275 / 0.8]]))


def test_a_square_that_covers_several_cells_suppresses_all_of_them() -> None:
    net, look = net_and_look("0.75@64")
    look = with_evidence(net, look, {(1, 1): 3.0, (1, 2): 2.0})
    with torch.inference_mode():
        left = EvidencePolicy(net).aim(look).memory
    assert left is not None
    assert float(left.sum()) == 0.0


def test_it_goes_through_the_loop_without_training() -> None:
    net, look = net_and_look()
    with torch.inference_mode():
        outcome = look_until_sure(net, look.scene, every_look(3), EvidencePolicy(net))
    assert outcome.looks.tolist() == [3]
    assert bool(((outcome.where >= 0) & (outcome.where <= 1)).all())
