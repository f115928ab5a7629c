"""timm's backbones from outside: the options that settings may hold, and where pretrained weights come from.

A bundle names its backbone and its options, and may come from anywhere. timm would also take files and addresses as options
(`checkpoint_path`, `pretrained_cfg`, a name such as `hf-hub:...`). So there is a list of allowed options: numbers within bounds,
switches, and words that timm looks up in its own tables.

Pretrained weights are taken from the local cache of downloads. Where they are not there and cannot be downloaded, an error says so
within seconds, with the file to fetch.
"""

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
import torch

from glancefocus.errors import BadSetting, UnknownName
from glancefocus.network.weights import find_checkpoint
from glancefocus.torchvision_whole import ensure_torchvision
from glancefocus.values import Range, checked_number, shown

MOST_BLOCKS = 512
"""Blocks of a backbone, summed over its stages."""
_LONGEST_LIST = 16
_WORD = re.compile(r"[a-z0-9_]{0,32}")

_SHARES = [
    "drop_rate",
    "drop_path_rate",
    "proj_drop_rate",
    "attn_drop_rate",
    "pos_drop_rate",
    "patch_drop_rate",
    "drop_block_rate",
]
_BLOCKS = ["depth", "depths", "layers"]
_WIDTHS = [
    "channels",
    "dims",
    "embed_dim",
    "embed_dims",
    "widths",
    "stem_width",
    "stem_size",
    "stem_chs",
    "base_width",
    "num_features",
    "head_hidden_size",
    "growth_rate",
    "num_init_features",
    "cardinality",
    "groups",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "key_dim",
]
_SIDES = [
    "patch_size",
    "window_size",
    "kernel_size",
    "kernel_sizes",
    "conv_kernel_size",
    "down_kernel_size",
    "reg_tokens",
]
_FACTORS = [
    "mlp_ratio",
    "mlp_ratios",
    "expand_ratio",
    "attn_ratio",
    "width_factor",
    "channel_multiplier",
    "depth_multiplier",
    "width",
    "bn_momentum",
    "bn_eps",
    "norm_eps",
    "init_values",
    "layer_scale_init_value",
    "ls_init_value",
    "head_init_scale",
]
_SWITCHES = [
    "avg_down",
    "zero_init_last",
    "qkv_bias",
    "qk_norm",
    "class_token",
    "no_embed_class",
    "pre_norm",
    "final_norm",
    "use_pos_embed",
    "fix_stem",
    "fix_init",
    "se_from_exp",
    "head_norm_first",
    "head_bias",
    "conv_bias",
    "stem_norm",
    "stem_bias",
    "preact",
    "bn_tf",
    "dynamic_img_size",
    "dynamic_img_pad",
    "strict_img_size",
    "always_partition",
    "conv_mlp",
    "distillation",
    "downsamples",
]
_WORDS = ["global_pool", "stem_type", "act_layer", "norm_layer", "aa_layer", "pad_type"]

_NUMBERS: dict[str, tuple[type, float, float]] = {
    **dict.fromkeys(_SHARES, (float, 0.0, 1.0)),
    **dict.fromkeys(_BLOCKS, (int, 1, 256)),
    **dict.fromkeys(_WIDTHS, (int, 1, 8192)),
    **dict.fromkeys(_SIDES, (int, 0, 64)),
    **dict.fromkeys(_FACTORS, (float, 0.0, 64.0)),
    "img_size": (int, 8, 4096),
    "output_stride": (int, 8, 32),
}
KNOWN = frozenset((*_NUMBERS, *_SWITCHES, *_WORDS))


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse an option that is not on the list, or whose value is not of its kind or out of bounds."""
    for name, value in options.items():
        if name not in KNOWN:
            raise UnknownName(
                "option of backbones", str(name), KNOWN, "docs/security.md says which there are, and why."
            )
        many = isinstance(value, (list, tuple))
        if many and not 1 <= len(value) <= _LONGEST_LIST:
            raise BadSetting(
                f"backbone_options.{name} must have from 1 to {_LONGEST_LIST} values, but has {len(value)}."
            )
        for each in value if many else (value,):
            _check(name, each)
        if name in _BLOCKS and many and sum(value) > MOST_BLOCKS:
            raise BadSetting(f"backbone_options.{name} asks for {sum(value)} blocks. Use at most {MOST_BLOCKS}.")


def _check(name: str, value: Any) -> None:
    if name in _SWITCHES:
        wanted, fits = "true or false", isinstance(value, bool)
    elif name in _WORDS:
        wanted, fits = "one of timm's words", isinstance(value, str) and _WORD.fullmatch(value) is not None
    else:
        kind, least, most = _NUMBERS[name]
        checked_number(kind, Range(least, most), value, f"backbone_options.{name}")
        return
    if not fits:
        raise BadSetting(f"backbone_options.{name} must be {wanted}, but got {shown(value)}.")


ensure_torchvision()
import timm  # noqa: E402  (torchvision must be whole before timm imports it)

SECONDS_TO_ANSWER = 4.0
_HUB_FILES = ("model.safetensors", "pytorch_model.bin")  # in the order in which timm looks for them


@dataclass(frozen=True)
class WeightsSource:
    """One file of weights that timm names.

    name   what it is called: a model of the Hugging Face hub, or an address
    page   where people find it
    file   its name there
    url    what a download asks for first
    """

    name: str
    page: str
    file: str
    url: str
    repository: str | None = None
    revision: str | None = None

    def kept_file(self) -> Path | None:
        """The file in the local cache of downloads; None where it is not there."""
        if self.repository is None:
            file = Path(torch.hub.get_dir()) / "checkpoints" / self.file
            return file if file.is_file() else None
        for name in dict.fromkeys((self.file, *_HUB_FILES)):
            kept = huggingface_hub.try_to_load_from_cache(self.repository, name, revision=self.revision)
            if isinstance(kept, str):
                return Path(kept)
        return None


def weights_source(backbone: str) -> WeightsSource:
    """What timm would download for a backbone; raises BadSetting where it names no weights."""
    known = timm.models.get_pretrained_cfg(backbone, allow_unregistered=True) if timm.is_model(backbone) else None
    if known is None or not (known.hf_hub_id or known.url):
        raise BadSetting(
            f"there are no public weights of {backbone}. Give a file with --weights FILE, or train from random initialisation with "
            "--weights none."
        )
    if not known.hf_hub_id:
        return WeightsSource(known.url, known.url, known.url.rpartition("/")[2], known.url)
    repository, _, revision = known.hf_hub_id.partition("@")
    page = f"{huggingface_hub.constants.ENDPOINT}/{repository}"
    file = known.hf_hub_filename or _HUB_FILES[0]
    url = f"{page}/resolve/{revision or 'main'}/{file}"
    return WeightsSource(repository, page, file, url, repository, revision or None)


def check_weights(backbone: str, weights: str | None) -> None:
    """Refuse "pretrained" where nothing can be downloaded, and a file that is not there, before anything else is done."""
    if weights == "pretrained":
        check_pretrained(backbone)
    elif weights is not None:
        find_checkpoint(weights)


def check_pretrained(backbone: str) -> None:
    """Refuse weights that are neither kept on this machine nor can be downloaded now."""
    source = weights_source(backbone)
    if source.kept_file() is None:
        trouble = _trouble(source)
        if trouble is not None:
            raise cannot_be_had(backbone, trouble)


def create_options(backbone: str) -> dict[str, Any]:
    """Arguments of timm.create_model beside pretrained=True: weights in the local cache are read without asking the network."""
    check_pretrained(backbone)
    kept = weights_source(backbone).kept_file()
    return {} if kept is None else {"pretrained_cfg_overlay": {"file": str(kept)}}


def cannot_be_had(backbone: str, trouble: str) -> BadSetting:
    """The sentence for weights that were not downloaded."""
    source = weights_source(backbone)
    return BadSetting(
        f"the pretrained weights of {backbone} cannot be downloaded: {trouble}. They are {source.name}: download {source.file} "
        f"from {source.page} on a machine with a network and pass --weights {source.file}; or train from random initialisation "
        "with --weights none."
    )


def _trouble(source: WeightsSource) -> str | None:
    """Why a download would fail, found with one request of a few seconds; None where there is an answer.

    The client is the hub's own, so that its proxies, certificates and endpoint count.
    """
    if source.repository is not None and huggingface_hub.constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    answers: list[str | None] = []

    def ask() -> None:
        try:
            status = huggingface_hub.get_session().request("HEAD", source.url, timeout=SECONDS_TO_ANSWER).status_code
        except Exception as error:  # every client and every network fails in its own way
            answers.append(" ".join(str(error).split()) or type(error).__name__)
        else:
            answers.append(f"{source.url} answers with status {status}" if status >= 400 else None)

    # A thread, because looking up a host's name has no timeout of its own.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(SECONDS_TO_ANSWER)
    host = source.url.split("/")[2]
    if not answers:
        return f"{host} did not answer within {SECONDS_TO_ANSWER:g} s"
    return None if answers[0] is None else f"{host} cannot be asked ({answers[0][:200]})"
