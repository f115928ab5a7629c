"""TSM's released checkpoints go into the ResNet that they are of."""

from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor

import glancefocus as gf
from glancefocus.errors import BadCheckpoint
from glancefocus.network.weights import load_backbone_weights


def as_released(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A ResNet's tensors under the names of the released files: TSM_something_RGB_resnet50_shift8_blockres_avg_segment8_e45.pth."""
    released = {}
    for name, tensor in state.items():
        if name.startswith("fc."):
            released[f"module.new_{name}"] = tensor
        elif name.startswith("layer") and ".conv1." in name:
            released[f"module.base_model.{name.replace('.conv1.', '.conv1.net.')}"] = tensor
        else:
            released[f"module.base_model.{name}"] = tensor
    return released


def resnet50(classes: int) -> torch.nn.Module:
    return timm.create_model("resnet50", num_classes=classes)  # type: ignore[no-any-return]


def test_a_released_checkpoint_becomes_both_encoders(tmp_path: Path) -> None:
    source = resnet50(174)
    released = as_released(source.state_dict())
    assert "module.base_model.layer1.0.conv1.net.weight" in released
    assert "module.new_fc.weight" in released
    torch.save({"epoch": 45, "arch": "resnet50", "state_dict": released, "best_prec1": 45.6}, tmp_path / "tsm.pth")
    net = gf.create("gf-tsm-resnet50-96-8f", classes=174, weights=tmp_path / "tsm.pth")
    for encoder in (net.glance_encoder, net.focus_encoder):
        own = encoder.backbone.state_dict()
        assert all(torch.equal(own[name], tensor) for name, tensor in source.state_dict().items())


def test_for_another_number_of_classes_the_head_begins_with_zeros(tmp_path: Path) -> None:
    source, target = resnet50(174), resnet50(5)
    torch.save({"state_dict": as_released(source.state_dict())}, tmp_path / "tsm.pth")
    load_backbone_weights(target, tmp_path / "tsm.pth")
    assert target.state_dict()["fc.weight"].count_nonzero() == 0
    assert torch.equal(target.state_dict()["layer4.2.conv1.weight"], source.state_dict()["layer4.2.conv1.weight"])


def test_a_checkpoint_with_non_local_blocks_is_refused(tmp_path: Path) -> None:
    released = as_released(resnet50(5).state_dict())
    released["module.base_model.layer2.0.nl.g.weight"] = torch.zeros(1)
    torch.save({"state_dict": released}, tmp_path / "tsm.pth")
    with pytest.raises(BadCheckpoint, match="non-local blocks .*, which are not built here"):
        load_backbone_weights(resnet50(5), tmp_path / "tsm.pth")
