"""Builds the network that settings describe: its backbone by name, within the free memory, and with weights that fit exactly."""

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from glancefocus.errors import BadCheckpoint, BadSetting, UnknownName
from glancefocus.machine import available_bytes, ensure_torchvision, open_file, read_file
from glancefocus.network.backbones import cannot_be_had, create_options, forget_answers
from glancefocus.network.model import GlanceFocus
from glancefocus.network.modules import (
    PLACE_FEATURES,
    CascadedClassifier,
    Classifier,
    Encoder,
    LearntPolicy,
    RecurrentClassifier,
    SummedClassifier,
    covered_extents,
)
from glancefocus.network.places import UnlearntPolicy
from glancefocus.network.plain_pickles import DamagedFile
from glancefocus.network.temporal_shift import ClipEncoder
from glancefocus.settings import GLANCE, NetworkSettings
from glancefocus.values import Range, checked_number, from_plain, is_writable_text, shown, to_plain

ensure_torchvision()
import timm  # noqa: E402  (torchvision must be whole before timm imports it)


def build(settings: NetworkSettings, pretrained: bool = False) -> GlanceFocus:
    """The network that the settings describe, in evaluation mode, with fresh weights."""

    def encoder() -> Encoder:
        backbone = build_backbone(settings.backbone, settings.classes, settings.backbone_options, pretrained)
        if pretrained and getattr(backbone, "pretrained_cfg", {}).get("num_classes") != settings.classes:
            forget_answers(backbone)
        return Encoder(backbone) if settings.frames == 1 else ClipEncoder(backbone, settings.frames, settings.shift_div)

    glance_encoder = encoder()
    if settings.own_norms and not glance_encoder.norms:
        raise BadSetting(f"own_norms=true needs batch norms, but {settings.backbone!r} has none. Leave it out.")
    another = glance_encoder.with_own_norms if settings.own_norms else encoder
    focus_encoder = glance_encoder if settings.shared_encoder and not settings.own_norms else another()
    features = glance_encoder.vector_features
    if settings.classifier == "cascaded":
        classifier: Classifier = CascadedClassifier(features, settings.classes, settings.looks)
    elif settings.classifier == "summed":
        classifier = SummedClassifier(len(settings.candidates))
    else:
        inputs = features + (PLACE_FEATURES if settings.classifier_place else 0)
        classifier = RecurrentClassifier(inputs, settings.classes, settings.classifier_units)
    sides, map_channels = _map_sides(glance_encoder, settings)
    policy = make_policy(settings, map_channels, sides)
    whole_encoder = another() if settings.whole_encoder else None
    return GlanceFocus(settings, glance_encoder, focus_encoder, classifier, policy, whole_encoder).eval()


def _map_sides(encoder: Encoder, settings: NetworkSettings) -> tuple[dict[int, int], int]:
    """{px: side of the feature map} for every size that is looked at, and the map's channels; found without computing."""
    tensors = {**dict(encoder.named_parameters()), **dict(encoder.named_buffers())}
    on_meta = {name: tensor.to("meta") for name, tensor in tensors.items()}
    was_training = encoder.training
    encoder.eval()
    sides, channels = {}, 0
    for px in sorted({settings.glance_px, *(view.px for view in settings.candidates)}):
        image = torch.empty(settings.frames, 3, px, px, device="meta")
        try:
            with torch.no_grad():
                map_ = torch.func.functional_call(encoder, on_meta, (image,)).map
        except (RuntimeError, AssertionError, ValueError) as error:
            raise BadSetting(
                f"the backbone {settings.backbone!r} does not take images of {px} px: {str(error).splitlines()[0]} "
                "Choose another size or another backbone."
            ) from None
        if map_.dim() != 4 or map_.shape[-1] != map_.shape[-2]:
            raise BadSetting(f"the backbone {settings.backbone!r} gives no square feature map to aim by.")
        sides[px], channels = int(map_.shape[-1]), int(map_.shape[1])
    encoder.train(was_training)
    return sides, channels


def check_backbone(name: str) -> None:
    """Refuse a name that no backbone has, with the nearest ones that do."""
    if name in _BEYOND_TIMM:
        return
    if timm.is_model(name):
        _check_tag(name)
        return
    if ":" in name or "/" in name:
        raise BadSetting(
            f"the backbone {name!r} lies outside of timm. Name one of timm's own, such as 'resnet50', "
            "and give its weights as a file."
        )
    raise UnknownName("backbone", name, [*timm.list_models(), *_BEYOND_TIMM], "`gf models` lists the presets.")


def expected_colours(backbone: str) -> dict[str, Any]:
    """mean and std that the weights of a timm backbone were trained with; nothing for a name that timm does not have."""
    _check_tag(backbone)
    config = timm.models.get_pretrained_cfg(backbone, allow_unregistered=True)
    return {} if config is None else {"mean": tuple(config.mean), "std": tuple(config.std)}


def _check_tag(name: str) -> None:
    """Refuse weights that timm does not have for a backbone: what follows the point in resnet50.a1_in1k."""
    try:
        timm.models.get_pretrained_cfg(name, allow_unregistered=True)
    except RuntimeError:
        architecture = name.partition(".")[0]
        known = timm.list_pretrained(f"{architecture}.*")
        raise UnknownName("backbone", name, known, f"Leave out what follows the point: {architecture}.") from None


def build_backbone(
    name: str, classes: int, options: dict[str, Any] | None = None, pretrained: bool = False
) -> nn.Module:
    """A timm backbone by name, with free input size where it is a transformer.

    name        one of timm's own, or of _BEYOND_TIMM. Not hf-hub:... or local-dir:..., with which timm would read a network's
                description from elsewhere: bundles name their backbone, and must be able to load without a network
    options     see check_options
    pretrained  with the weights that timm names for it; they are downloaded when they are not in the local cache
    """
    check_backbone(name)
    if options:
        check_options(options)
    make = _BEYOND_TIMM.get(name) or functools.partial(timm.create_model, name)
    wanted = {**(options or {}), "num_classes": classes, "pretrained": pretrained}
    if pretrained and name not in _BEYOND_TIMM and ":" not in name:
        wanted |= create_options(name)
    try:
        backbone = _with_free_size(make, wanted)
    except BadSetting:
        raise
    except TypeError as error:
        raise BadSetting(f"the backbone {name!r} does not take these options ({options}): {error}.") from None
    except Exception as error:  # timm asserts, looks up and divides by what it is given
        if not pretrained and not options and not isinstance(error, (RuntimeError, MemoryError)):
            raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if pretrained:
            raise cannot_be_had(name, reason) from None
        raise BadSetting(
            f"the backbone {name!r} cannot be built for {classes} classes with {options or {}}: {reason}"
        ) from None
    if not hasattr(backbone, "forward_features") or not hasattr(backbone, "forward_head"):
        raise BadSetting(f"the backbone {name!r} has no feature map to aim by. Choose another one.")
    return backbone


MOST_BLOCKS = 512
"""Blocks of a backbone, summed over its stages."""
_LONGEST_LIST = 16
_WORD = re.compile(r"[a-z0-9_]{0,32}")

# A bundle may come from anywhere, and timm would also take files and addresses as options (checkpoint_path, pretrained_cfg). So
# there is a list of allowed ones: numbers within bounds, switches, and words that timm looks up in its own tables.
# fmt: off
_SHARES = [
    "drop_rate", "drop_path_rate", "proj_drop_rate", "attn_drop_rate", "pos_drop_rate", "patch_drop_rate",
    "drop_block_rate",
]
_BLOCKS = ["depth", "depths", "layers"]
_WIDTHS = [
    "channels", "dims", "embed_dim", "embed_dims", "widths", "stem_width", "stem_size", "stem_chs", "base_width",
    "num_features", "head_hidden_size", "growth_rate", "num_init_features", "cardinality", "groups", "num_heads",
    "num_kv_heads", "head_dim", "key_dim",
]
_SIDES = [
    "patch_size", "window_size", "kernel_size", "kernel_sizes", "conv_kernel_size", "down_kernel_size", "reg_tokens",
]
_FACTORS = [
    "mlp_ratio", "mlp_ratios", "expand_ratio", "attn_ratio", "width_factor", "channel_multiplier",
    "depth_multiplier", "width", "bn_momentum", "bn_eps", "norm_eps", "init_values", "layer_scale_init_value",
    "ls_init_value", "head_init_scale",
]
_SWITCHES = [
    "avg_down", "zero_init_last", "qkv_bias", "qk_norm", "class_token", "no_embed_class", "pre_norm", "final_norm",
    "use_pos_embed", "fix_stem", "fix_init", "se_from_exp", "head_norm_first", "head_bias", "conv_bias",
    "stem_norm", "stem_bias", "preact", "bn_tf", "dynamic_img_size", "dynamic_img_pad", "strict_img_size",
    "always_partition", "conv_mlp", "distillation", "downsamples",
]
_WORDS = ["global_pool", "stem_type", "act_layer", "norm_layer", "aa_layer", "pad_type"]
# fmt: on

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


def _with_free_size(make: Any, wanted: dict[str, Any]) -> nn.Module:
    """Built so that it takes images of any size: transformers need an option for that, which other networks do not have."""
    try:
        return make(**wanted, dynamic_img_size=True)  # type: ignore[no-any-return]
    except TypeError:
        return make(**wanted)  # type: ignore[no-any-return]


def _mobilenetv3_large_125(**options: Any) -> nn.Module:
    """MobileNetV3-Large 1.25: in the paper, but not among timm's names; its builder takes any width."""
    from timm.models.mobilenetv3 import _gen_mobilenet_v3

    if options.pop("pretrained", False):
        raise BadSetting("there are no public weights of mobilenetv3_large_125. Give a file instead.")
    return _gen_mobilenet_v3("mobilenetv3_large_100", 1.25, pretrained=False, **options)  # type: ignore[no-any-return]


_BEYOND_TIMM = {"mobilenetv3_large_125": _mobilenetv3_large_125}


def count_parameters(settings: NetworkSettings) -> int:
    """How many numbers the network learns."""
    net = on_meta(settings)
    own = net.glance_encoder.norms if settings.own_norms else [net.glance_encoder]
    others = (settings.own_norms or not settings.shared_encoder) + settings.whole_encoder
    return sum(p.numel() for p in net.parameters()) + others * sum(p.numel() for m in own for p in m.parameters())


@functools.lru_cache(maxsize=1)
def _on_meta_cached(settings: str) -> GlanceFocus:
    with torch.device("meta"):
        return build(from_plain(NetworkSettings, json.loads(settings)))


def on_meta(settings: NetworkSettings) -> GlanceFocus:
    """The network without values, its encoders as one; made once for the same settings."""
    # One encoder is enough for counting, since all have the same layers.
    one = replace(settings, shared_encoder=True, own_norms=False, whole_encoder=False)
    return _on_meta_cached(json.dumps(to_plain(one)))


_FLOAT_BYTES = 4


def weight_bytes(settings: NetworkSettings) -> int:
    """What the weights take in float32."""
    return _FLOAT_BYTES * count_parameters(settings)


def loading_bytes(settings: NetworkSettings) -> int:
    """The least that it takes to load the network and to look once: the weights twice, as they are made and as they are read, and
    what goes into and comes out of the largest layer."""
    focus_px = [view.px for view in settings.candidates if settings.looks > 1]
    largest = max([settings.glance_px, *focus_px])
    encoder = on_meta(settings).glance_encoder
    return 2 * weight_bytes(settings) + _FLOAT_BYTES * _largest_layer(encoder, settings.frames, largest)


def _largest_layer(encoder: nn.Module, frames: int, px: int) -> int:
    """How many numbers go into and come out of the layer where they are most."""
    most = 0

    def note(module: nn.Module, given: tuple[Any, ...], made: Any) -> None:
        nonlocal most
        most = max(most, sum(tensor.numel() for tensor in (*given, made) if isinstance(tensor, Tensor)))

    layers = [module for module in encoder.modules() if not list(module.children())]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    try:
        with torch.device("meta"), torch.no_grad():
            encoder(torch.empty(frames, 3, px, px))
    finally:
        for hook in hooks:
            hook.remove()
    return most


MOST_HEADER_BYTES = 16 << 20
"""Largest header of a .safetensors file: names, shapes and places of its tensors. A thousand tensors take 0.1 MB."""
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def read_safetensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file. Raises OSError, DamagedFile, or what safetensors raises."""
    with open_file(file) as stream:
        header_bytes = int.from_bytes(stream.read(8), "little")
    if header_bytes > MOST_HEADER_BYTES:
        raise DamagedFile(f"its header would have {header_bytes:,} bytes")
    if is_writable_text(str(file)):
        tensors: dict[str, Tensor] = safetensors.torch.load_file(file)
    else:  # which load_file cannot open
        tensors = safetensors.torch.load(read_file(file, available_bytes()))
    return tensors


def load_exactly(module: nn.Module, tensors: Mapping[str, Tensor], part: str, source: str) -> None:
    """Load a state dict that must match name by name and shape by shape; the error lists what does not."""
    wanted = module.state_dict()
    # Files from before torch 0.4.1 do not count batches; nothing depends on that count.
    missing = [n for n in wanted if n not in tensors and not n.endswith("num_batches_tracked")]
    foreign = [n for n in tensors if n not in wanted]
    shapes = [
        f"{n} is {tuple(tensors[n].shape)} instead of {tuple(wanted[n].shape)}"
        for n in wanted
        if n in tensors and tensors[n].shape != wanted[n].shape
    ]
    problems = [f"{len(missing)} missing (such as {missing[0]})"] if missing else []
    problems += [f"{len(foreign)} unknown (such as {foreign[0]})"] if foreign else []
    problems += [f"{len(shapes)} of another shape ({shapes[0]})"] if shapes else []
    if problems:
        raise BadCheckpoint(f"{source} does not fit the {part}: of its tensors {', '.join(problems)}.")
    for name, tensor in tensors.items():
        refuse_values(name, tensor, wanted[name], source)
    module.load_state_dict({n: tensors.get(n, v) for n, v in wanted.items()})


def refuse_values(name: str, tensor: Tensor, wanted: Tensor, source: str) -> None:
    """Refuse a tensor of another kind of number than is wanted, or with NaN or infinity in it."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise BadCheckpoint(
            f"{source}: the tensor {name} is sparse, quantised or without values. Save it as plain numbers."
        )
    # A count that nothing depends on; older files have it in other kinds of numbers.
    if name.endswith("num_batches_tracked"):
        if tensor.is_complex():
            raise BadCheckpoint(f"{source}: the tensor {name} is made of {_kind(tensor)}, not of {_kind(wanted)}.")
        return
    if wanted.is_floating_point() and tensor.dtype not in FLOATS:
        raise BadCheckpoint(
            f"{source}: the tensor {name} is made of {_kind(tensor)}, not of floating-point numbers. "
            "Convert it, or save it again before it is quantised."
        )
    if not wanted.is_floating_point() and tensor.dtype != wanted.dtype:
        raise BadCheckpoint(f"{source}: the tensor {name} is made of {_kind(tensor)}, not of {_kind(wanted)}.")
    if tensor.is_floating_point() and not bool(tensor.to(wanted.dtype).isfinite().all()):
        raise BadCheckpoint(
            f"{source}: the tensor {name} holds NaN or infinity. Training diverged, or the file is damaged: use an earlier one."
        )


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def make_policy(settings: NetworkSettings, map_channels: int, sides: dict[int, int]) -> LearntPolicy | UnlearntPolicy:
    """The policy that the settings describe; sides: {px: side of the feature map} of every view."""
    if settings.policy.kind != "learnt":
        return UnlearntPolicy(settings)
    numbers = (*range(len(settings.candidates)), GLANCE)
    return LearntPolicy(
        settings.policy,
        map_channels,
        sides[settings.glance_px],
        tuple(sides[view.px] for view in settings.candidates),
        tuple(settings.view_codes.index(settings.code_of(each)) for each in numbers),
        settings.frames,
        covered_extents(settings),
        steps=settings.candidates if settings.zoom else (),
    )
