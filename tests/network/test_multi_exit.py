"""MSDNet and ensembles by depth: their multiply-adds are the published ones, and each exit answers from what came before it."""

import itertools

import pytest
import torch

from glancefocus.errors import BadSetting
from glancefocus.network.build import build_backbone
from glancefocus.network.macs import count_macs
from glancefocus.network.multi_exit import MSDNET_IMAGENET, DepthEnsemble, MSDNet, MSDNetSettings, count_exits

SMALL = MSDNetSettings(
    classes=3, exits=3, base=2, step=1, channels=8, growth=4, widths=(1, 2), bottleneck=(1, 2), stem="small"
)


def test_msdnet_costs_at_each_exit_what_is_published() -> None:
    # kalviny/MSDNet-PyTorch, issue 10: the network with 7 layers between exits. Pooling and activations are among theirs.
    published = [615.69e6, 1436.39e6, 2283.21e6, 2967.42e6, 3253.79e6]
    parameters = [8.76e6, 20.15e6, 31.73e6, 41.86e6, 62.31e6]
    with torch.device("meta"):
        net = MSDNet(MSDNET_IMAGENET["msdnet-7"])
    for ours, theirs in zip(count_exits(net, 224, 224), published, strict=True):
        assert ours == pytest.approx(theirs, rel=0.02)
    parts = zip(net.blocks, net.classifiers, strict=True)
    learnt = [sum(p.numel() for part in both for p in part.parameters()) for both in parts]
    for mine, theirs in zip(itertools.accumulate(learnt), parameters, strict=True):
        assert mine == pytest.approx(theirs, rel=0.001)


def test_an_exit_answers_from_the_layers_before_it() -> None:
    torch.manual_seed(0)
    net = MSDNet(SMALL).eval()
    images = torch.randn(2, 3, 32, 32)
    before = net(images)
    assert [tuple(logits.shape) for logits in before] == [(2, 3)] * 3
    with torch.no_grad():
        for parameter in net.blocks[1].parameters():
            parameter.zero_()
        after = net(images)
    assert torch.equal(before[0], after[0])
    assert not torch.equal(before[1], after[1])


def test_layers_between_exits_may_grow() -> None:
    assert MSDNetSettings(exits=5, base=1, step=1, growing=True).layers_per_exit == [1, 2, 3, 4, 5]
    assert MSDNetSettings().layers_per_exit == [4, 4, 4, 4, 4]


def test_the_finest_scales_are_left_behind_on_the_way() -> None:
    net = MSDNet(MSDNetSettings(exits=4, base=1, step=1, channels=8, growth=4, widths=(1, 2), bottleneck=(1, 2)))
    maps = [torch.randn(1, 3, 64, 64)]
    given, counts = maps[0], []
    for block in net.blocks:
        given = block(given)
        counts.append(len(given))
    assert counts == [2, 2, 1, 1]


def test_an_ensemble_answers_with_the_mean_so_far_and_costs_the_sum() -> None:
    torch.manual_seed(0)
    net = DepthEnsemble(["test_resnet", "test_efficientnet"], 3).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        one, two = (logits.softmax(dim=1) for logits in net.own_answers(images))
        answers = net(images)
    torch.testing.assert_close(answers[0].softmax(dim=1), one)
    torch.testing.assert_close(answers[1].softmax(dim=1), (one + two) / 2)
    spent = count_exits(net, 64, 64)
    with torch.device("meta"):
        alone = build_backbone("test_efficientnet", 3).eval()
        assert spent[1] - spent[0] == count_macs(lambda: alone(torch.empty(1, 3, 64, 64)))


def test_settings_that_cannot_be_built_get_their_sentence() -> None:
    with pytest.raises(BadSetting, match="one number for each scale"):
        MSDNetSettings(widths=(1, 2), bottleneck=(1, 2, 4))
    with pytest.raises(BadSetting, match="growth is divided between two scales"):
        MSDNetSettings(growth=1)
    with pytest.raises(BadSetting, match="at least one backbone"):
        DepthEnsemble([], 3)
