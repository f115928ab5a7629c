"""Every runtime computes each view with its own batch norms where encoders share the other weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from glancefocus.network.model import GlanceFocus
from glancefocus.network.parts import take_apart
from glancefocus.runtime.backends import ready_modules
from glancefocus.runtime.choose import made_up_images, open_runtime


@pytest.fixture
def net(small_net: Callable[..., GlanceFocus]) -> GlanceFocus:
    """Three encoders whose norms differ."""
    views: dict[str, Any] = {"focus": ("0.5@32", "whole@64"), "classifier": "summed", "whole_encoder": True}
    net = small_net(**views, shared_encoder=True, own_norms=True)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for norm in (each for each in net.modules() if isinstance(each, torch.nn.BatchNorm2d)):
            for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
                assert tensor is not None
                tensor.copy_(0.5 + torch.rand(tensor.shape, generator=generator))
    return net


@pytest.mark.parametrize("runtime", ["plain", "eager", "onnx", "openvino"])
def test_every_runtime_uses_the_norms_of_the_view(net: GlanceFocus, graph_cache: Path, runtime: str) -> None:
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    images = made_up_images(net.settings, 3, torch.device("cpu"))
    other = open_runtime(net, runtime, cache=graph_cache)
    with torch.inference_mode():
        glances = net.glance(images), other.glance(images)
        torch.testing.assert_close(glances[1].logits, glances[0].logits, rtol=1e-4, atol=1e-4)
        for candidate in (0, 1):
            aim = net.policy.aim(glances[0], candidate)
            expected, found = net.focus(glances[0], aim), other.focus(glances[1], aim)
            torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-4)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_norms_are_folded_into_convolutions_of_their_own(net: GlanceFocus) -> None:
    modules = ready_modules(take_apart(net))
    focus, whole = (modules[name].encoder.backbone.conv1[0].weight for name in ("focus_0.5@32", "focus_whole@64"))
    assert not torch.allclose(focus, whole, atol=1e-3)
