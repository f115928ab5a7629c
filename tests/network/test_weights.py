"""Weights from files go where they belong, by name or by order, or are refused with what does not fit."""

import contextlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
from torch import Tensor, nn

import glancefocus as gf
from glancefocus.errors import BadCheckpoint
from glancefocus.network.build import load_exactly
from glancefocus.network.weights import load_backbone_weights, open_safely, tensors_in


def backbone(classes: int = 3, seed: int = 0) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return timm.create_model("test_resnet", num_classes=classes)


def saved(content: Any, path: Path) -> Path:
    torch.save(content, path)
    return path


def same(one: dict[str, Tensor], two: dict[str, Tensor], but: str = "nothing") -> bool:
    return all(torch.equal(one[name], two[name]) for name in one if not name.startswith(but))


@pytest.mark.parametrize("wrap", [None, "state_dict", "model", "model_state_dict"])
def test_weights_are_found_by_name_alone_or_inside_a_checkpoint(wrap: str | None, tmp_path: Path) -> None:
    source, target = backbone(seed=1), backbone(seed=2)
    state = source.state_dict()
    load_backbone_weights(target, saved(state if wrap is None else {wrap: state, "epoch": 4}, tmp_path / "w.pth"))
    assert same(state, target.state_dict())


def test_weights_of_data_parallel_training_are_found(tmp_path: Path) -> None:
    source, target = backbone(seed=1), backbone(seed=2)
    state = {f"module.{name}": tensor for name, tensor in source.state_dict().items()}
    load_backbone_weights(target, saved(state, tmp_path / "w.pth"))
    assert same(source.state_dict(), target.state_dict())


def test_weights_under_other_names_are_found_by_their_order(tmp_path: Path) -> None:
    source, target = backbone(seed=1), backbone(seed=2)
    state = OrderedDict((f"layer{i}", tensor) for i, tensor in enumerate(source.state_dict().values()))
    # Counters of batches are no part of the order: such files often lack them.
    names = list(source.state_dict())
    state = OrderedDict((n, t) for (n, t), ours in zip(state.items(), names, strict=True) if "num_batches" not in ours)
    load_backbone_weights(target, saved(state, tmp_path / "w.pth"))
    assert same({n: t for n, t in source.state_dict().items() if "num_batches" not in n}, target.state_dict())


@pytest.mark.parametrize("renamed", [False, True])
def test_for_another_number_of_classes_the_head_begins_with_zeros(renamed: bool, tmp_path: Path) -> None:
    source, target = backbone(classes=10, seed=1), backbone(classes=3, seed=2)
    state = {n: t for n, t in source.state_dict().items() if "num_batches" not in n}
    file = {f"x{i}": t for i, t in enumerate(state.values())} if renamed else state
    load_backbone_weights(target, saved(file, tmp_path / "w.pth"))
    assert target.fc.weight.count_nonzero() == target.fc.bias.count_nonzero() == 0
    assert same(state, target.state_dict(), but="fc.")


def test_weights_come_from_safetensors_too(tmp_path: Path) -> None:
    source, target = backbone(seed=1), backbone(seed=2)
    safetensors.torch.save_file(source.state_dict(), tmp_path / "w.safetensors")
    load_backbone_weights(target, tmp_path / "w.safetensors")
    assert same(source.state_dict(), target.state_dict())


def test_create_loads_both_encoders(tmp_path: Path) -> None:
    source = backbone(classes=3, seed=1)
    path = saved(source.state_dict(), tmp_path / "w.pth")
    net = gf.create(backbone="test_resnet", classes=3, weights=path)
    assert same(source.state_dict(), net.glance_encoder.backbone.state_dict())
    assert same(source.state_dict(), net.focus_encoder.backbone.state_dict())


def test_weights_of_another_backbone_are_refused(tmp_path: Path) -> None:
    other = timm.create_model("test_efficientnet", num_classes=3).state_dict()
    with pytest.raises(
        BadCheckpoint, match="holds other tensors than the backbone: .* Give weights of the same backbone"
    ):
        load_backbone_weights(backbone(), saved(other, tmp_path / "w.pth"))


def test_weights_of_another_width_are_refused_and_nothing_changes(tmp_path: Path) -> None:
    target = backbone(seed=2)
    before = {name: tensor.clone() for name, tensor in target.state_dict().items()}
    state = {**backbone(seed=1).state_dict(), "conv1.weight": torch.zeros(5, 3, 3, 3)}
    wrong = next(n for n, t in state.items() if n.startswith("conv1") and t.dim() == 4)
    state[wrong] = torch.zeros(5, 3, 3, 3)
    with pytest.raises(BadCheckpoint, match=r"does not fit the backbone: .*"):
        load_backbone_weights(target, saved(state, tmp_path / "w.pth"))
    assert same(before, target.state_dict())


@pytest.mark.parametrize("content", [{}, {"epoch": 3}, [1, 2], {"state_dict": {}}])
def test_a_file_without_tensors_is_refused(content: Any, tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match="holds no tensors"):
        load_backbone_weights(backbone(), saved(content, tmp_path / "w.pth"))


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match="there is no checkpoint at"):
        gf.create(backbone="test_resnet", classes=3, weights=tmp_path / "none.pth")


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_damaged_file_is_said_to_be_damaged(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"w{suffix}"
    if suffix == ".pth":
        torch.save(backbone().state_dict(), path)
    else:
        safetensors.torch.save_file(backbone().state_dict(), path)
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(BadCheckpoint, match="is not a torch checkpoint, or it is damaged"):
        open_safely(path)


def test_bytes_changed_anywhere_in_an_old_file_never_give_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    torch.save({"a": torch.zeros(8), "b": [1, 2.5, "c"]}, path, _use_new_zipfile_serialization=False)
    whole = path.read_bytes()
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        damaged = bytearray(whole)
        for place in torch.randint(len(whole), (3,), generator=generator).tolist():
            damaged[place] = int(torch.randint(256, (1,), generator=generator))
        path.write_bytes(damaged)
        with contextlib.suppress(BadCheckpoint):  # many changes harm nothing
            open_safely(path)


def test_load_exactly_names_what_is_missing_unknown_and_misshapen() -> None:
    layer = nn.Linear(3, 2)
    with pytest.raises(
        BadCheckpoint, match=r"file does not fit the layer: of its tensors 1 missing \(such as bias\)\."
    ):
        load_exactly(layer, {"weight": torch.zeros(2, 3)}, "layer", "file")
    wrong = {"weight": torch.zeros(3, 2), "bias": torch.zeros(2), "scale": torch.zeros(1)}
    sentence = r"1 unknown \(such as scale\), 1 of another shape \(weight is \(3, 2\) instead of \(2, 3\)\)\."
    with pytest.raises(BadCheckpoint, match=sentence):
        load_exactly(layer, wrong, "layer", "file")


def test_counters_of_batches_may_be_missing() -> None:
    norm = nn.BatchNorm1d(2)
    norm.num_batches_tracked.fill_(9)
    state = {name: tensor + 1 for name, tensor in norm.state_dict().items() if name != "num_batches_tracked"}
    load_exactly(norm, state, "norm", "file")
    assert norm.num_batches_tracked == 9
    assert norm.running_mean.tolist() == [1, 1]


def test_counters_of_batches_are_not_complex_numbers() -> None:
    norm = nn.BatchNorm2d(3)
    content = {**norm.state_dict(), "num_batches_tracked": torch.tensor(1, dtype=torch.complex64)}
    with pytest.raises(BadCheckpoint, match="num_batches_tracked is made of complex64, not of int64"):
        load_exactly(norm, content, "norm", "a.pth")


def test_tensors_in_leaves_out_whatever_is_no_tensor() -> None:
    assert list(tensors_in({"module.a": torch.zeros(1), "b": 3, "c": torch.zeros(2)})) == ["a", "c"]
    assert tensors_in([1, 2]) == {}
