"""The options of timm's backbones that settings may hold: a list, because timm's own would also take files and addresses.

A bundle names its backbone and its options, and may come from anywhere. `checkpoint_path`, `pretrained_cfg` or a name such as
`hf-hub:...` would make timm read files or reach for the network. What is on the list is a number within bounds, a choice of yes or
no, or a word that timm looks up in its own tables.
"""

import re
from collections.abc import Mapping
from typing import Any

from glancefocus.errors import BadSetting, UnknownName
from glancefocus.values import Range, checked_number, shown

MOST_BLOCKS = 512
"""Of a backbone, over all of its stages."""
_LONGEST_LIST = 16
_WORD = re.compile(r"[a-z0-9_]{0,32}")

_SHARES = (
    "drop_rate",
    "drop_path_rate",
    "proj_drop_rate",
    "attn_drop_rate",
    "pos_drop_rate",
    "patch_drop_rate",
    "drop_block_rate",
)
_BLOCKS = ("depth", "depths", "layers")
_WIDTHS = (
    *(
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
    ),
    *(
        "head_hidden_size",
        "growth_rate",
        "num_init_features",
        "cardinality",
        "groups",
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "key_dim",
    ),
)
_SIDES = (
    "patch_size",
    "window_size",
    "kernel_size",
    "kernel_sizes",
    "conv_kernel_size",
    "down_kernel_size",
    "reg_tokens",
)
_FACTORS = (
    *(
        "mlp_ratio",
        "mlp_ratios",
        "expand_ratio",
        "attn_ratio",
        "width_factor",
        "channel_multiplier",
        "depth_multiplier",
        "width",
    ),
    *("bn_momentum", "bn_eps", "norm_eps", "init_values", "layer_scale_init_value", "ls_init_value", "head_init_scale"),
)
_SWITCHES = (
    *(
        "avg_down",
        "zero_init_last",
        "qkv_bias",
        "qk_norm",
        "class_token",
        "no_embed_class",
        "pre_norm",
        "final_norm",
        "use_pos_embed",
    ),
    *(
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
    ),
    *(
        "dynamic_img_size",
        "dynamic_img_pad",
        "strict_img_size",
        "always_partition",
        "conv_mlp",
        "distillation",
        "downsamples",
    ),
)
_WORDS = ("global_pool", "stem_type", "act_layer", "norm_layer", "aa_layer", "pad_type")

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
        wanted, fits = "a word of timm's", isinstance(value, str) and _WORD.fullmatch(value) is not None
    else:
        kind, least, most = _NUMBERS[name]
        checked_number(kind, Range(least, most), value, f"backbone_options.{name}")
        return
    if not fits:
        raise BadSetting(f"backbone_options.{name} must be {wanted}, but got {shown(value)}.")
