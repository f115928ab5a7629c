"""The paper's released checkpoints, in our network: names of models, keys of state dicts, thresholds.

Facts about the files are in docs/faithfulness.md. They have four state dicts (glance encoder, focus encoder, classifier, policy);
the released ones also hold the name of their model and thresholds, those of the training script do not.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from glancefocus.errors import BadCheckpoint, BadSetting, UnknownName
from glancefocus.network.build import build, load_exactly
from glancefocus.network.model import GlanceFocus
from glancefocus.network.presets import PRESETS
from glancefocus.network.weights import open_safely, tensors_in
from glancefocus.settings import NetworkSettings, native
from glancefocus.values import Fields, from_plain, list_of, number_of, shown, to_plain

PARTS = ("model_prime_state_dict", "model_state_dict", "fc", "policy")

# The checkpoint's name of a backbone -> a preset with that backbone, from which everything but size, looks and the way of
# glancing is taken: the released networks were trained on glances without antialiasing, new ones get them with it.
MODELS = {
    "resnet50": "gf-resnet50-96",
    "densenet121": "gf-densenet121-96",
    "densenet169": "gf-densenet169-96",
    "densenet201": "gf-densenet201-96",
    "regnety_600m": "gf-regnety-600m-96",
    "regnety_800m": "gf-regnety-800m-96",
    "regnety_1.6g": "gf-regnety-1.6g-96",
    "mobilenetv3_large_100": "gf-mobilenetv3-large-100-96",
    "mobilenetv3_large_125": "gf-mobilenetv3-large-125-128",
    "efficientnet_b2": "gf-efficientnet-b2-128",
    "efficientnet_b3": "gf-efficientnet-b3-144",
}


_MOST_FIELD = 10_000
"""Numbers in a field beside the tensors."""


@dataclass(frozen=True)
class OfficialModel:
    """A network with the checkpoint's weights, and the thresholds that came with it.

    curve  a row for each operating point: {"thresholds": [...], "mean_macs": ..., "accuracy": ...}; the last two where known
    """

    net: GlanceFocus
    curve: list[dict[str, Any]]


def load_official(
    path: str | Path, *, model: str | None = None, patch_px: int | None = None, looks: int | None = None
) -> OfficialModel:
    """The network of a released checkpoint, or of one saved by the released training script.

    model, patch_px, looks  needed where the file does not contain them; otherwise they must be equal (looks may be fewer)
    """
    content = open_safely(path)
    if not isinstance(content, Mapping) or not all(isinstance(content.get(part), Mapping) for part in PARTS):
        raise BadCheckpoint(
            f"{path} is not a checkpoint of the paper: it must hold {', '.join(PARTS)}. "
            "For a folder written by glancefocus, name the folder."
        )
    stated = _fields(content, path)
    model = _agreed(model, stated.model, "model", path)
    patch_px = _agreed(patch_px, stated.patch_px, "patch-px", path)
    looks = looks if looks is not None else _agreed(None, stated.looks, "looks", path)
    if stated.looks is not None and looks > stated.looks:
        raise BadCheckpoint(f"{path} was made for {stated.looks} looks, not for {looks}. Give at most {stated.looks}.")
    net = build(_settings(model, patch_px, looks, tensors_in(content["fc"])))
    source = str(path)
    load_exactly(net.glance_encoder.backbone, encoder_tensors(content[PARTS[0]]), "glance encoder", source)
    load_exactly(net.focus_encoder.backbone, encoder_tensors(content[PARTS[1]]), "focus encoder", source)
    load_exactly(net.classifier, classifier_tensors(content["fc"], looks), "classifier", source)
    load_exactly(net.policy, policy_tensors(content["policy"]), "policy", source)
    return OfficialModel(net, _curve(content, looks, stated.looks))


class _Described(NamedTuple):
    """The description in a checkpoint; None for what it does not contain."""

    model: str | None
    patch_px: int | None
    looks: int | None


def _fields(content: Mapping[str, Any], path: str | Path) -> _Described:
    """The fields that the released files have beside their tensors; each is of its kind, or refused by its name."""
    try:
        fields = Fields(
            {
                name: _plain(content[name])
                for name in ("model_name", "patch_size", "flops")
                if content.get(name) is not None
            }
        )
        flops = fields.listed("flops", _MOST_FIELD, lambda value, name: value, None)
        return _Described(
            fields.text("model_name", 100, None),
            fields.whole("patch_size", 8, 4096, None),
            None if flops is None else len(flops),
        )
    except BadSetting as error:
        raise BadCheckpoint(f"{path} is damaged: {error}") from None


def _plain(value: Any) -> Any:
    """Tensors and arrays of a few numbers as lists; everything else as it is."""
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        count = value.numel() if isinstance(value, Tensor) else value.size
        return value.tolist() if count <= _MOST_FIELD else value
    return value


def _agreed(given: Any, stored: Any, name: str, path: str | Path) -> Any:
    if given is None and stored is None:
        raise BadCheckpoint(f"{path} does not say its {name}. Give it: --{name} (in Python {name.replace('-', '_')}=).")
    if given is not None and stored is not None and given != stored:
        raise BadCheckpoint(f"{path} says that its {name} is {stored!r}, not {given!r}. Leave it out.")
    return stored if given is None else given


def _settings(model: str, patch_px: int, looks: int, classifier: dict[str, Tensor]) -> NetworkSettings:
    if not isinstance(model, str) or model not in MODELS:
        raise UnknownName("model of the paper", str(model), MODELS, f"Known are {', '.join(MODELS)}.")
    if not isinstance(patch_px, int) or not 8 <= patch_px <= 4096:
        raise BadSetting(f"a patch size is a whole number of pixels from 8 to 4096, but got {patch_px!r}.")
    last = [t for name, t in classifier.items() if name.endswith("weight") and name.startswith("fc") and t.dim() == 2]
    if not last:
        raise BadCheckpoint("the checkpoint's classifier has no last layer.")
    plain = to_plain(PRESETS[MODELS[model]].settings)
    plain["glance_resize"] = "bilinear" if model.startswith(("densenet", "regnet")) else "bicubic"
    plain |= {"glance_px": patch_px, "focus": [native(patch_px).name], "looks": looks, "classes": int(last[0].shape[0])}
    units = classifier.get("rnn.weight_hh_l0")
    if units is not None and units.dim() == 2:
        plain["classifier_units"] = int(units.shape[1])
    return from_plain(NetworkSettings, plain)


def encoder_tensors(table: Mapping[str, Any]) -> dict[str, Tensor]:
    """An encoder's tensors under timm's names. Only RegNet's differ: the released code has those of pycls."""
    tensors = tensors_in(table)
    if not any(re.match(r"s\d+\.b\d+\.f\.", name) for name in tensors):
        return tensors
    return {_regnet_name(name): tensor for name, tensor in tensors.items()}


_REGNET_NAMES = (
    (re.compile(r"^(s\d+\.b\d+)\.proj\."), r"\1.downsample.conv."),
    (re.compile(r"^(s\d+\.b\d+)\.bn\."), r"\1.downsample.bn."),
    (re.compile(r"^(s\d+\.b\d+)\.f\.a\."), r"\1.conv1.conv."),
    (re.compile(r"^(s\d+\.b\d+)\.f\.a_bn\."), r"\1.conv1.bn."),
    (re.compile(r"^(s\d+\.b\d+)\.f\.b\."), r"\1.conv2.conv."),
    (re.compile(r"^(s\d+\.b\d+)\.f\.b_bn\."), r"\1.conv2.bn."),
    (re.compile(r"^(s\d+\.b\d+)\.f\.c\."), r"\1.conv3.conv."),
    (re.compile(r"^(s\d+\.b\d+)\.f\.c_bn\."), r"\1.conv3.bn."),
    (re.compile(r"^(s\d+\.b\d+)\.f\.se\.f_ex\.0\."), r"\1.se.fc1."),
    (re.compile(r"^(s\d+\.b\d+)\.f\.se\.f_ex\.2\."), r"\1.se.fc2."),
    (re.compile(r"^(head\.)?fc\."), r"head.fc."),
)


def _regnet_name(name: str) -> str:
    for pattern, ours in _REGNET_NAMES:
        if pattern.match(name):
            return pattern.sub(ours, name)
    return name


def classifier_tensors(table: Mapping[str, Any], looks: int) -> dict[str, Tensor]:
    """The classifier's tensors under our names; a cascaded one has layers for 2 to 5 looks, of which `looks` are taken."""
    tensors = tensors_in(table)
    if "rnn.weight_ih_l0" in tensors:
        return {_gru_name(name, "rnn", "linear", "fc"): tensor for name, tensor in tensors.items()}
    layers = {int(m[1]) for name in tensors if (m := re.match(r"fc_([0-9]{1,3})\.", name))}
    if looks > 1 and looks not in layers:
        raise BadCheckpoint(f"the checkpoint's classifier has layers for {sorted(layers)} looks, not for {looks}.")
    ours = {re.sub(r"^fc_([0-9]{1,3})\.", r"linears.\1.", name): tensor for name, tensor in tensors.items()}
    return {n: t for n, t in ours.items() if not (m := re.match(r"linears\.([0-9]{1,3})\.", n)) or int(m[1]) <= looks}


def policy_tensors(table: Mapping[str, Any]) -> dict[str, Tensor]:
    """The policy's tensors under our names."""
    tensors = {n: t for n, t in tensors_in(table).items() if n != "action_var"}
    with_conv = "state_encoder.3.weight" in tensors
    names = (
        {"state_encoder.0.": "conv.", "state_encoder.3.": "linears.0."}
        if with_conv
        else {"state_encoder.0.": "linears.0.", "state_encoder.2.": "linears.2."}
    ) | {"actor.0.": "actor.", "critic.0.": "critic."}
    renamed = {}
    for name, tensor in tensors.items():
        for theirs, ours in names.items():
            if name.startswith(theirs):
                name = ours + name.removeprefix(theirs)
                break
        renamed[_gru_name(name, "gru", "", "")] = tensor
    return renamed


def _gru_name(name: str, gru: str, linear: str, their_linear: str) -> str:
    """nn.GRU names its only layer l0; our GRU cell holds the same tensors without that."""
    if name.startswith(f"{gru}."):
        return f"gru.{name.removeprefix(f'{gru}.').removesuffix('_l0')}"
    if their_linear and name.startswith(f"{their_linear}."):
        return f"{linear}.{name.removeprefix(f'{their_linear}.')}"
    return name


def _curve(content: Mapping[str, Any], looks: int, stored_looks: int | None) -> list[dict[str, Any]]:
    """The operating points stored in the file.

    The released code lets a sample go at or above a threshold, we above it, so each is lowered by the least possible step. Its
    thresholds of 1e8 (no image leaves) and -1e8 (every image leaves) become 1 and 0.
    """
    table = _plain(content.get("dynamic_threshold"))
    if table is None or looks != stored_looks:
        return []
    try:
        rows = list_of(table, "dynamic_threshold", _MOST_FIELD, partial(_row, looks=looks))
        known = _measured(_plain(content.get("budgeted_batch_classification")), len(rows))
    except BadSetting as error:
        raise BadCheckpoint(f"the checkpoint's thresholds cannot be used: {error}") from None
    curve = []
    for index, row in enumerate(rows):
        point: dict[str, Any] = {"thresholds": [*map(_above, row[:-1]), 0.0]}
        if known is not None:
            point |= {"mean_macs": known[0][index], "accuracy": known[1][index] / 100}
        curve.append(point)
    return curve


def _above(at_least: float) -> float:
    """The threshold to be above, for one to be reached."""
    if at_least > 1:
        return 1.0
    return max(0.0, float(torch.nextafter(torch.tensor(at_least), torch.tensor(-1.0))))


def _number(value: Any, name: str, least: float, most: float) -> float:
    return number_of(_plain(value), name, least, most)


def _row(value: Any, name: str, looks: int) -> list[float]:
    row = list_of(_plain(value), name, looks, partial(_number, least=-1e9, most=1e9))
    if len(row) != looks:
        raise BadSetting(f"{name} must have {looks} thresholds, one for each look, but has {len(row)}.")
    return row


def _measured(columns: Any, points: int) -> tuple[list[float], list[float]] | None:
    """(mean multiply-adds, accuracy in percent) of each operating point; None where the file does not contain them."""
    if columns is None:
        return None
    name = "budgeted_batch_classification"
    if not isinstance(columns, (list, tuple)) or len(columns) != 2:
        raise BadSetting(f"{name} must be two lists, multiply-adds and accuracies, but got {shown(columns)}.")
    macs = list_of(_plain(columns[0]), f"{name}[0]", points, partial(_number, least=0.0, most=1e18))
    accuracy = list_of(_plain(columns[1]), f"{name}[1]", points, partial(_number, least=0.0, most=100.0))
    if not len(macs) == len(accuracy) == points:
        raise BadSetting(f"{name} must have {points} numbers in each list, as there are points.")
    return macs, accuracy
