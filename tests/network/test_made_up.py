"""Made-up weights: nothing computes with zeros, nothing overflows."""

import torch
from torch import nn

import glancefocus as gf
from glancefocus.network.weights import make_up_weights


def test_batch_norms_have_weights_and_statistics_of_their_own() -> None:
    net = gf.create(
        backbone="resnet18",
        classes=4,
        glance_px=32,
        patch_px=32,
        looks=2,
        seed=0,
        view={"height_px": 64, "width_px": 64},
    )
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    assert any(bool((norm.weight == 0).all()) for norm in norms)  # as timm makes them
    made = make_up_weights(net, torch.Generator().manual_seed(0))
    assert made is net
    assert not net.training
    for norm in norms:
        assert float(norm.weight.detach().min()) >= 0.5
        assert float(norm.weight.detach().max()) <= 1.5
        assert not bool((norm.running_var == 1).all())
        assert norm.momentum == 0.1
    look = net.glance(torch.randn(3, 3, 64, 64))
    look = net.focus(look, net.policy.aim(look))
    assert bool(look.logits.isfinite().all())
    assert float(look.logits.detach().std(dim=0).max()) > 1e-4  # images are told apart


def test_a_seed_makes_the_same_weights() -> None:
    nets = [
        make_up_weights(gf.create("gf-mini-48", classes=4, seed=0), torch.Generator().manual_seed(1)) for _ in range(2)
    ]
    for one, other in zip(*(net.state_dict().values() for net in nets), strict=True):
        assert torch.equal(one, other)
