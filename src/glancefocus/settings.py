"""What a network is made of and what pictures it expects: plain frozen values that go into a bundle as JSON."""

import functools
import types
import typing
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Annotated, Any, Literal, TypeVar

from glancefocus.errors import BadSetting, UnknownName
from glancefocus.values import (
    ANY_NUMBER,
    Classes,
    Colour,
    ColourDeviation,
    Frames,
    Kernel,
    Looks,
    Pixels,
    PositiveShare,
    ShiftDivisor,
    Units,
    checked_number,
    shown,
)

GlanceResize = Literal["antialias", "bicubic", "bilinear"]
Fit = Literal["crop", "stretch", "whole"]
Interpolation = Literal["bilinear", "bicubic"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
_MOST_SIZES = 16
_MOST_COLUMNS = 100_000  # of tables that have one for every sequence of patch sizes


@dataclass(frozen=True)
class ViewSettings:
    """How a picture becomes the image that is looked at.

    fit      crop: short side to side/crop_pct, then the centre (the usual evaluation on ImageNet);
             stretch: the whole picture at height x width; whole: the picture as it is, of any size
    mean, std  of the RGB channels in [0, 1]
    """

    fit: Fit = "crop"
    height_px: Pixels = 224
    width_px: Pixels = 224
    crop_pct: PositiveShare = 0.875
    interpolation: Interpolation = "bilinear"
    mean: tuple[Colour, Colour, Colour] = IMAGENET_MEAN
    std: tuple[ColourDeviation, ColourDeviation, ColourDeviation] = IMAGENET_STD

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class PolicySettings:
    """The patch proposal network (paper, Figure of pi, and its table of seven architectures).

    head     conv: kxk convolution to few channels, then a linear layer; linear: two linear layers on the flattened map
    units    of the GRU
    """

    head: Literal["conv", "linear"] = "conv"
    conv_channels: Units = 32
    conv_kernel: Kernel = 1
    linear_units: Units = 2048
    units: Units = 256

    def __post_init__(self) -> None:
        check_fields(self)
        if self.conv_kernel % 2 == 0:
            raise BadSetting(f"the policy's convolution needs an odd kernel, but got {self.conv_kernel}. Use 1 or 3.")


@dataclass(frozen=True)
class NetworkSettings:
    """One glance-and-focus network.

    backbone       any timm name; backbone_options go to timm, those of network/backbones.py
    patch_px       side of the focus patches; several sizes make a multi-scale network
    looks          the glance and the focus looks together (T in the paper)
    glance_resize  antialias for new networks; bicubic or bilinear (aligned corners, no antialiasing) as the paper's models
    first_answer   the part that answers the glance: the classifier, the glance encoder's own head, or that head only in evaluation
    frames         1 for images; more for clips of that many frames, which are all seen through the same region
    shift_div      clips: 1/shift_div of the channels is shifted each way in time (TSM); 0: frames are only averaged
    """

    backbone: str
    classes: Classes = 1000
    glance_px: Pixels = 96
    patch_px: tuple[Pixels, ...] = (96,)
    looks: Looks = 5
    glance_resize: GlanceResize = "antialias"
    classifier: Literal["recurrent", "cascaded"] = "recurrent"
    classifier_units: Units = 1024
    first_answer: Literal["classifier", "own_head", "own_head_evaluating"] = "classifier"
    policy: PolicySettings = field(default_factory=PolicySettings)
    shared_encoder: bool = False
    frames: Frames = 1
    shift_div: ShiftDivisor = 8
    backbone_options: dict[str, Any] = field(default_factory=dict)
    view: ViewSettings = field(default_factory=ViewSettings)

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.patch_px or len(set(self.patch_px)) != len(self.patch_px):
            raise BadSetting(f"patch_px must name one or several different sizes, but got {list(self.patch_px)}.")
        if len(self.patch_px) > _MOST_SIZES:
            raise BadSetting(f"patch_px names at most {_MOST_SIZES} sizes, but got {len(self.patch_px)}.")
        if list(self.patch_px) != sorted(self.patch_px):
            raise BadSetting(f"patch_px names the smallest size first, but got {list(self.patch_px)}.")
        columns = sum(len(self.patch_px) ** look for look in range(self.looks))
        if columns > _MOST_COLUMNS:
            raise BadSetting(
                f"with {len(self.patch_px)} patch sizes and {self.looks} looks there are more than {_MOST_COLUMNS:,} sequences of "
                "sizes to choose from. Use fewer sizes or looks."
            )
        if self.shift_div == 1:
            raise BadSetting(
                f"shift_div is the part of the channels that is shifted each way, 8 for an eighth, but got {self.shift_div}. "
                "Use at least 2, or 0 for no shift."
            )
        if self.classifier == "cascaded" and self.first_answer == "classifier":
            raise BadSetting(
                "a cascaded classifier has no layer for the glance: its first_answer is 'own_head', not 'classifier'."
            )
        smallest_px = min(self.view.height_px, self.view.width_px)
        if self.looks > 1 and max(self.patch_px) > smallest_px:
            raise BadSetting(
                f"a patch of {max(self.patch_px)} px is larger than the image ({smallest_px} px). "
                "Use smaller patches or larger images."
            )


Settings = TypeVar("Settings")


def to_plain(settings: Any) -> dict[str, Any]:
    """The settings as plain lists, numbers, strings and dictionaries, ready for JSON."""
    plain: dict[str, Any] = asdict(settings)
    return plain


def from_plain(kind: type[Settings], plain: Any, where: str = "") -> Settings:
    """Settings of this kind out of plain values; unknown names, and values of the wrong type or out of range, are refused.

    where  what the settings are called in these sentences, such as "network"
    """
    if not isinstance(plain, dict):
        raise BadSetting(f"{where or 'settings'} must be a table of names and values, but got {type(plain).__name__}.")
    hints = _hints(kind)
    for name in plain:
        if name not in hints:
            raise UnknownName(f"setting in {where}" if where else "setting", str(name), hints)
    values = {name: _convert(hints[name], value, _joined(where, name)) for name, value in plain.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise BadSetting(f"{where or 'a table of settings'} is incomplete: {error}.") from None


def check_fields(settings: Any) -> None:
    """Check every field of frozen settings by its type and range; for `__post_init__`."""
    for name, hint in _hints(type(settings)).items():
        value = getattr(settings, name)
        object.__setattr__(settings, name, _convert(hint, value, name))


def _read_hints(kind: Any) -> dict[str, Any]:
    """{field: its type}, with the ranges."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {f.name: hints[f.name] for f in fields(kind)}


_hints: Callable[[Any], dict[str, Any]] = functools.cache(_read_hints)


def _joined(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _convert(hint: Any, value: Any, where: str) -> Any:
    """The value as the hint says, or BadSetting."""
    if is_dataclass(hint):
        kind = typing.cast(type[Any], hint)
        return value if isinstance(value, kind) else from_plain(kind, value, where)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return checked_number(arguments[0], arguments[1], value, where)
    if origin is Literal:
        if not isinstance(value, str) or value not in arguments:
            raise BadSetting(f"{where} must be one of {', '.join(map(repr, arguments))}, but got {shown(value)}.")
        return value
    if origin in (typing.Union, types.UnionType):
        (inner,) = [a for a in arguments if a is not type(None)]
        return None if value is None else _convert(inner, value, where)
    if origin is tuple:
        return _convert_list(arguments, value, where)
    if origin is dict:
        if not isinstance(value, dict):
            raise BadSetting(f"{where} must be a table of names and values, but got {shown(value)}.")
        return dict(value)
    if hint in (int, float):
        return checked_number(hint, ANY_NUMBER, value, where)
    if not isinstance(value, hint):
        raise BadSetting(f"{where} must be {_KINDS.get(hint, hint.__name__)}, but got {shown(value)}.")
    return value


def _convert_list(hints: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise BadSetting(f"{where} must be a list, but got {shown(value)}.")
    if hints[1:] == (...,):
        hints = (hints[0],) * len(value)
    if len(value) != len(hints):
        raise BadSetting(f"{where} must be a list of {len(hints)} values, but got {shown(value)}.")
    return tuple(_convert(hint, v, f"{where}[{i}]") for i, (hint, v) in enumerate(zip(hints, value, strict=True)))


_KINDS = {str: "a text", bool: "true or false"}
