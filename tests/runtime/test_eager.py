"""Torch modules prepared for inference: batch norms folded, answers the same."""

from collections.abc import Callable

import pytest
import timm
import torch
from torch import Tensor, nn

from glancefocus.network.model import GlanceFocus
from glancefocus.network.parts import take_apart
from glancefocus.runtime.backends import EagerRunner, as_tuple, count_batch_norms, fold_batch_norms


def with_own_statistics(module: nn.Module) -> nn.Module:
    """A network whose batch norms all do something: timm begins with scales of zero, means of zero, deviations of one."""
    generator = torch.Generator().manual_seed(0)
    for norm in (m for m in module.modules() if isinstance(m, nn.BatchNorm2d)):
        for tensor, low, high in ((norm.weight, 0.5, 1.5), (norm.bias, -0.5, 0.5)):
            tensor.data.uniform_(low, high, generator=generator)
        norm.running_mean.uniform_(-0.2, 0.2, generator=generator)  # type: ignore[union-attr]
        norm.running_var.uniform_(0.5, 1.5, generator=generator)  # type: ignore[union-attr]
    return module.eval()


@pytest.mark.parametrize("name", ["test_resnet", "mobilenetv3_small_050", "test_efficientnet", "regnetx_002"])
def test_every_batch_norm_after_a_convolution_is_folded(name: str) -> None:
    backbone = with_own_statistics(timm.create_model(name, num_classes=5))
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    before = count_batch_norms(backbone)
    with torch.inference_mode():
        whole = backbone(images)
    assert fold_batch_norms(backbone, (images[:1],)) == before > 5
    assert count_batch_norms(backbone) == 0
    with torch.inference_mode():
        torch.testing.assert_close(backbone(images), whole, rtol=1e-4, atol=1e-4)


class TwoReaders(nn.Module):
    """The second batch norm sees what somebody else sees too; the third has no convolution before it."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3, 3, 1) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(3) for _ in range(3))

    def forward(self, images: Tensor) -> Tensor:
        folded = self.norms[0](self.convs[0](images))
        read_twice = self.convs[1](folded)
        return self.norms[2]((self.norms[1](read_twice) + read_twice).relu())


def test_a_batch_norm_that_cannot_be_folded_is_left_as_it_is() -> None:
    module = with_own_statistics(TwoReaders())
    images = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        whole = module(images)
        assert fold_batch_norms(module, (images,)) == 1
        assert [type(norm) for norm in module.norms] == [nn.Identity, nn.BatchNorm2d, nn.BatchNorm2d]
        torch.testing.assert_close(module(images), whole, rtol=1e-5, atol=1e-5)


def test_the_network_itself_stays_as_it_is(small_net: Callable[..., GlanceFocus]) -> None:
    net = small_net(shared_encoder=True)
    names, norms = set(net.state_dict()), count_batch_norms(net)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    runner = EagerRunner(take_apart(net))
    assert set(net.state_dict()) == names
    assert count_batch_norms(net) == norms > 0
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    assert sum(count_batch_norms(module) for module in runner.modules.values()) == 0
    glance, focus = runner.modules["glance"], runner.modules["focus"]
    assert glance.net.glance_encoder is focus.encoder  # what was shared still is


def test_one_output_is_a_tuple_too() -> None:
    tensor = torch.zeros(1)
    assert as_tuple(tensor) == (tensor,)
