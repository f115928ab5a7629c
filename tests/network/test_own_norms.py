"""Encoders that share all weights but those of their batch norms."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import glancefocus as gf
from glancefocus.bundle.bundle import Bundle
from glancefocus.errors import BadBundle, BadSetting
from glancefocus.network.build import build, count_parameters
from glancefocus.network.macs import count_costs
from glancefocus.network.model import GlanceFocus
from glancefocus.network.modules import Encoder
from glancefocus.network.weights import load_encoders
from glancefocus.settings import GLANCE

SHARED = {"shared_encoder": True, "own_norms": True}
THREE = {**SHARED, "classifier": "summed", "whole_encoder": True, "focus": ("0.5@32", "whole@64")}
MakeNet = Callable[..., GlanceFocus]


def encoders_of(net: GlanceFocus) -> list[Encoder]:
    return [each for each in (net.glance_encoder, net.focus_encoder, net.whole_encoder) if each is not None]


def with_different_norms(net: GlanceFocus) -> GlanceFocus:
    """As after training: the norms of each encoder have other weights and statistics."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for encoder in encoders_of(net):
            for norm in encoder.norms:
                for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
                    tensor.copy_(0.5 + torch.rand(tensor.shape, generator=generator))
    return net


@pytest.mark.parametrize("changes", [SHARED, THREE, {**SHARED, "frames": 2, "shift_div": 4}])
def test_norms_are_separate_and_all_other_weights_are_the_same_tensors(
    small_net: MakeNet, changes: dict[str, Any]
) -> None:
    first, *others = encoders_of(small_net(**changes))
    norms = {
        f"{name}.{own}" for name, m in first.named_modules() if m in first.norms for own, _ in m.named_parameters()
    }
    assert norms
    for other in others:
        found = dict(other.named_parameters())
        for name, weight in first.named_parameters():
            assert (found[name] is weight) == (name not in norms), name
            assert torch.equal(found[name], weight)
        for one, two in zip(first.norms, other.norms, strict=True):
            assert one is not two
            assert one.running_mean is not two.running_mean


def test_parameters_are_counted_once(small_net: MakeNet) -> None:
    for changes in ({}, {"shared_encoder": True}, SHARED, THREE):
        net = small_net(**changes)
        assert count_parameters(net.settings) == sum(weight.numel() for weight in net.parameters())
    separate, shared = (count_parameters(small_net(**changes).settings) for changes in ({}, SHARED))
    encoder = sum(weight.numel() for weight in small_net().glance_encoder.parameters())
    norms = sum(weight.numel() for norm in small_net().glance_encoder.norms for weight in norm.parameters())
    assert separate - shared == encoder - norms
    assert count_costs(small_net(**SHARED).settings) == count_costs(small_net().settings)


def test_each_kind_of_view_is_normalised_by_its_own_norms(small_net: MakeNet) -> None:
    net = with_different_norms(small_net(**THREE, glance_px=32))
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        answers = [encoder.own_head(encoder(images).vector) for encoder in encoders_of(net)]
    assert not torch.allclose(answers[0], answers[1], atol=1e-3)
    assert not torch.allclose(answers[1], answers[2], atol=1e-3)
    assert net.encoder_of(0) is net.focus_encoder
    assert net.encoder_of(1) is net.whole_encoder


@pytest.mark.parametrize("changes", [SHARED, THREE])
def test_a_bundle_stores_shared_weights_once_and_loads_exactly(
    small_net: MakeNet, tmp_path: Path, changes: dict[str, Any]
) -> None:
    net = with_different_norms(small_net(**changes))
    folder = Bundle(net, ("a", "b", "c"), count_costs(net.settings)).save(tmp_path / "bundle")
    stored = safetensors.torch.load_file(folder / "model.safetensors")
    later = {name for name in stored if name.startswith(("focus_encoder.", "whole_encoder."))}
    assert len(later) == 5 * sum(
        len(encoder.norms) for encoder in encoders_of(net)[1:]
    )  # two weights, three statistics
    loaded = Bundle.load(folder)
    assert loaded.net.state_dict().keys() == net.state_dict().keys()
    for name, tensor in net.state_dict().items():
        assert torch.equal(loaded.net.state_dict()[name], tensor), name
    assert loaded.net.repeated_tensors() == net.repeated_tensors()
    assert len(net.repeated_tensors()) > 0
    again = loaded.save(tmp_path / "again")
    assert (again / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_a_bundle_without_a_shared_weight_or_a_norm_is_refused(small_net: MakeNet, tmp_path: Path) -> None:
    net = small_net(**SHARED)
    folder = Bundle(net, ("a", "b", "c"), count_costs(net.settings)).save(tmp_path / "bundle")
    file = folder / "model.safetensors"
    stored = safetensors.torch.load_file(file)
    for missing in ("glance_encoder.backbone.conv1.0.weight", "focus_encoder.backbone.bn1.running_mean"):
        assert missing in stored
        safetensors.torch.save_file({name: each for name, each in stored.items() if name != missing}, file)
        with pytest.raises(BadBundle, match="does not fit the network: of its tensors .* missing"):
            Bundle.load(folder)
    # A hostile file that has a shared weight twice cannot make it two weights.
    twice = {**stored, "focus_encoder.backbone.conv1.0.weight": torch.zeros(1)}
    safetensors.torch.save_file(twice, file)
    loaded = Bundle.load(folder).net
    assert torch.equal(loaded.focus_encoder.backbone.conv1[0].weight, net.glance_encoder.backbone.conv1[0].weight)


def test_fingerprints_of_networks_without_the_new_settings_stay(small_net: MakeNet) -> None:
    plain, shared = (small_net(**changes).settings.to_hash() for changes in ({"shared_encoder": True}, SHARED))
    assert "own_norms" not in plain
    assert not {"classifier_place", "first_view", "zoom"} & set(plain)
    assert "kind" not in plain["policy"]
    assert shared == {**plain, "own_norms": True}
    other = small_net(
        first_view="centre", classifier_place=True, policy={"units": 16, "kind": "random"}
    ).settings.to_hash()
    assert (other["first_view"], other["classifier_place"], other["policy"]["kind"]) == ("centre", True, "random")


def test_copies_share_among_themselves_only(small_net: MakeNet) -> None:
    net = small_net(**THREE)
    whole = copy.deepcopy(net)
    assert whole.repeated_tensors() == net.repeated_tensors()
    one = copy.deepcopy(net.focus_encoder)  # as a teacher or a rival
    own = {id(weight) for weight in net.parameters()}
    assert not any(id(weight) in own for weight in (*whole.parameters(), *one.parameters()))
    moved = net.to(torch.float64).to(torch.float32)
    assert moved.repeated_tensors() == whole.repeated_tensors()


def test_weights_of_a_backbone_are_loaded_into_all_encoders(small_net: MakeNet, tmp_path: Path) -> None:
    net, other = (with_different_norms(small_net(**THREE, seed=seed)) for seed in (0, 1))
    file = tmp_path / "backbone.safetensors"
    safetensors.torch.save_file(other.focus_encoder.backbone.state_dict(), file)
    load_encoders(net, file)
    for encoder in encoders_of(net):
        for name, tensor in other.focus_encoder.backbone.state_dict().items():
            assert torch.equal(encoder.backbone.state_dict()[name], tensor), name


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"own_norms": True}, "own_norms=true needs shared_encoder=true"),
        (
            {**SHARED, "backbone": "test_vit"},
            "own_norms=true needs batch norms, but 'test_vit' has none. Leave it out.",
        ),
        ({**THREE, "own_norms": False}, "with shared_encoder=true also own_norms=true"),
        ({**THREE, "classifier": "recurrent"}, "needs classifier='summed'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(small_net: MakeNet, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadSetting, match=sentence):
        small_net(**changes)


def test_gf_create_makes_them(tmp_path: Path) -> None:
    net = gf.create(backbone="test_resnet", classes=2, glance_px=64, patch_px=64, looks=2, **SHARED)
    assert net.glance_encoder is not net.focus_encoder
    with torch.device("meta"):
        assert build(net.settings).glance_encoder.norms[0].weight.is_meta
    assert net.settings.code_of(GLANCE) == "64"
