"""What a network is made of and what pictures it expects: plain frozen values that go into a bundle as JSON."""

import types
import typing
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, Literal, TypeVar

from glancefocus.errors import BadSetting, UnknownName

GlanceResize = Literal["antialias", "bicubic", "bilinear"]
Fit = Literal["crop", "stretch", "whole"]
Interpolation = Literal["bilinear", "bicubic"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class ViewSettings:
    """How a picture becomes the image that is looked at.

    fit      crop: short side to side/crop_pct, then the centre (the usual evaluation on ImageNet);
             stretch: the whole picture at height x width; whole: the picture as it is, of any size
    mean, std  of the RGB channels in [0, 1]
    """

    fit: Fit = "crop"
    height_px: int = 224
    width_px: int = 224
    crop_pct: float = 0.875
    interpolation: Interpolation = "bilinear"
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD

    def __post_init__(self) -> None:
        if min(self.height_px, self.width_px) < 8:
            raise BadSetting(f"an image of {self.height_px}x{self.width_px} px is too small. Use at least 8x8 px.")
        if not 0 < self.crop_pct <= 1:
            raise BadSetting(f"crop_pct is a share in (0, 1], but got {self.crop_pct}.")
        if min(self.std) <= 0:
            raise BadSetting(f"std holds deviations above 0, but got {self.std}.")


@dataclass(frozen=True)
class PolicySettings:
    """The patch proposal network (paper, Figure of pi, and its table of seven architectures).

    head     conv: kxk convolution to few channels, then a linear layer; linear: two linear layers on the flattened map
    units    of the GRU
    """

    head: Literal["conv", "linear"] = "conv"
    conv_channels: int = 32
    conv_kernel: int = 1
    linear_units: int = 2048
    units: int = 256

    def __post_init__(self) -> None:
        if self.conv_kernel % 2 == 0 or self.conv_kernel < 1:
            raise BadSetting(f"the policy's convolution needs an odd kernel, but got {self.conv_kernel}. Use 1 or 3.")
        for name in ("conv_channels", "linear_units", "units"):
            if getattr(self, name) < 1:
                raise BadSetting(f"the policy's {name} must be at least 1, but got {getattr(self, name)}.")


@dataclass(frozen=True)
class NetworkSettings:
    """One glance-and-focus network.

    backbone       any timm name; backbone_options go to timm as they are
    patch_px       side of the focus patches; several sizes make a multi-scale network
    looks          the glance and the focus looks together (T in the paper)
    glance_resize  antialias for new networks; bicubic or bilinear (aligned corners, no antialiasing) as the paper's models
    first_answer   who answers the glance: the classifier, the glance encoder's own head, or that head only when evaluating
    frames         1 for images; more for clips of so many frames, which are looked at through the same box
    shift_div      clips: 1/shift_div of the channels is shifted each way in time (TSM); 0: frames are only averaged
    """

    backbone: str
    classes: int = 1000
    glance_px: int = 96
    patch_px: tuple[int, ...] = (96,)
    looks: int = 5
    glance_resize: GlanceResize = "antialias"
    classifier: Literal["recurrent", "cascaded"] = "recurrent"
    classifier_units: int = 1024
    first_answer: Literal["classifier", "own_head", "own_head_evaluating"] = "classifier"
    policy: PolicySettings = field(default_factory=PolicySettings)
    shared_encoder: bool = False
    frames: int = 1
    shift_div: int = 8
    backbone_options: dict[str, Any] = field(default_factory=dict)
    view: ViewSettings = field(default_factory=ViewSettings)

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise BadSetting(f"a classifier needs at least 2 classes, but got {self.classes}.")
        if not 1 <= self.looks <= 64:
            raise BadSetting(f"the number of looks must be from 1 to 64, but got {self.looks}.")
        if not self.patch_px or len(set(self.patch_px)) != len(self.patch_px):
            raise BadSetting(f"patch_px must name one or several different sizes, but got {list(self.patch_px)}.")
        if list(self.patch_px) != sorted(self.patch_px):
            raise BadSetting(f"patch_px names the smallest size first, but got {list(self.patch_px)}.")
        if min(self.glance_px, *self.patch_px) < 8:
            raise BadSetting(
                f"a glance of {self.glance_px} px and patches of {list(self.patch_px)} px: each must be at least 8 px."
            )
        if not 1 <= self.frames <= 256:
            raise BadSetting(
                f"a clip has from 1 to 256 frames, but got {self.frames}. 1 is for images, 8 is usual for clips."
            )
        if self.shift_div < 0 or self.shift_div == 1:
            raise BadSetting(
                f"shift_div is the part of the channels that is shifted each way, 8 for an eighth, but got {self.shift_div}. "
                "Use at least 2, or 0 for no shift."
            )
        if self.classifier_units < 1:
            raise BadSetting(f"classifier_units must be at least 1, but got {self.classifier_units}.")
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


def from_plain(kind: type[Settings], plain: Any, where: str = "settings") -> Settings:
    """Settings of this kind out of plain values; unknown names and values of the wrong type are refused."""
    if not isinstance(plain, dict):
        raise BadSetting(f"{where} must be a table of names and values, but got {type(plain).__name__}.")
    hints = typing.get_type_hints(kind)
    known = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    for name in plain:
        if name not in known:
            raise UnknownName(f"setting in {where}", str(name), known)
    values = {name: _convert(hints[name], value, f"{where}.{name}") for name, value in plain.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise BadSetting(f"{where} is incomplete: {error}.") from None


def _convert(hint: Any, value: Any, where: str) -> Any:
    if is_dataclass(hint):
        return from_plain(typing.cast(type[Any], hint), value, where)
    origin = typing.get_origin(hint)
    if origin is Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise BadSetting(f"{where} must be one of {', '.join(map(repr, choices))}, but got {value!r}.")
        return value
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in typing.get_args(hint):
            return None
        (inner,) = [a for a in typing.get_args(hint) if a is not type(None)]
        return _convert(inner, value, where)
    if origin is tuple:
        inner, *others = typing.get_args(hint)
        if not isinstance(value, (list, tuple)):
            raise BadSetting(f"{where} must be a list, but got {value!r}.")
        if others != [...] and len(value) != 1 + len(others):
            raise BadSetting(f"{where} must be a list of {1 + len(others)} values, but got {value!r}.")
        return tuple(_convert(inner, v, f"{where}[{i}]") for i, v in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise BadSetting(f"{where} must be a table of names and values, but got {value!r}.")
        return dict(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise BadSetting(f"{where} must be of type {hint.__name__}, but got {value!r}.")
    return value
