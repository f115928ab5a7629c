"""Torch modules made ready for answering: batch norms folded, heads light where that is asked for, answers the same."""

from collections.abc import Callable

import pytest
import timm
import torch
from torch import Tensor, nn

from glancefocus.errors import BadSetting
from glancefocus.network.model import GlanceFocus
from glancefocus.network.parts import take_apart
from glancefocus.runtime.buckets import bucket_of, fill_up, in_buckets
from glancefocus.runtime.light_heads import LightGRUCell, LightLinear, head_layers
from glancefocus.runtime.torch import EagerRunner, as_tuple, count_batch_norms, fold_batch_norms


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


def test_light_heads_round_weights_and_nothing_else(small_net: Callable[..., GlanceFocus]) -> None:
    """No weight moves by more than half a step of 1/127 of its row's largest, and bfloat16 keeps 8 bits: 2 % of the answer."""
    for changes in ({"classifier_units": 70}, {"classifier": "cascaded", "first_answer": "own_head"}):
        parts = take_apart(small_net(**changes))
        light, full = EagerRunner(parts, light_heads=True), EagerRunner(parts)
        for part in parts:
            assert head_layers(light.modules[part.name]) == {}
            for batch in (1, 9):
                inputs = part.example(batch, generator=torch.Generator().manual_seed(0))
                for name, one, other in zip(
                    part.outputs, light(part.name, *inputs), full(part.name, *inputs), strict=True
                ):
                    assert (one - other).abs().max() <= 0.02 * other.abs().max().clamp(min=1), (part.name, name)
        kinds = {type(m) for module in light.modules.values() for m in module.modules()}
        assert {LightGRUCell, LightLinear} <= kinds


def test_a_light_layer_answers_alike_for_one_row_and_for_many() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(7, 64, generator=generator), torch.randn(7, generator=generator)
    layer, rows = LightLinear(weight, bias), torch.randn(16, 64, generator=generator)
    apart = torch.cat([layer(row[None]) for row in rows])
    torch.testing.assert_close(apart, layer(rows), rtol=0.02, atol=0.1)  # sums of 64 products in bfloat16
    steps = weight.abs().amax(dim=1, keepdim=True) / 127
    assert ((layer.weight - weight).abs() <= 0.5 * steps + 0.005 * weight.abs()).all()  # the scale itself is bfloat16


@pytest.mark.parametrize(("batch", "bucket"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (65, 128)])
def test_batches_are_filled_up_to_a_power_of_two(batch: int, bucket: int) -> None:
    assert bucket_of(batch) == bucket
    seen = []

    def doubled(rows: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        seen.append((rows.shape[0], others.shape[0], float(rows[batch:].abs().sum())))
        return rows * 2, others * 2

    rows = torch.arange(batch * 2.0).reshape(batch, 2) + 1
    one, other = in_buckets(doubled, (rows, rows[:, 0]))
    assert seen == [(bucket, bucket, 0.0)]
    assert torch.equal(one, rows * 2)
    assert torch.equal(other, rows[:, 0] * 2)


def test_a_full_batch_is_not_copied() -> None:
    rows = torch.zeros(4, 2)
    assert fill_up(rows, 4) is rows


@pytest.mark.parametrize("wish", ["half", "cuda_graphs"])
def test_what_only_a_gpu_can_do_is_refused_on_a_cpu(small_net: Callable[..., GlanceFocus], wish: str) -> None:
    with pytest.raises(BadSetting, match=f"{wish} is for a GPU, but the network is on the cpu"):
        EagerRunner(take_apart(small_net()), **{wish: True})


def test_one_output_is_a_tuple_too() -> None:
    tensor = torch.zeros(1)
    assert as_tuple(tensor) == (tensor,)
