"""What a network is made of and what pictures it expects: plain frozen values that go into a bundle as JSON."""

import functools
import re
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from glancefocus.errors import BadSetting
from glancefocus.values import (
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
    check_fields,
    checked,
    shown,
    to_plain,
)

GlanceResize = Literal["antialias", "bicubic", "bilinear"]
Fit = Literal["crop", "stretch", "whole"]
Interpolation = Literal["bilinear", "bicubic"]
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
PolicyKind = Literal["learnt", "random", "centre_corner"]
FirstView = Literal["glance", "centre", "random"]
GLANCE = -1
"""Stands for the glance where looks are named by the number of their candidate view."""
_VIEW = re.compile(
    r"(?:(?:(?P<whole>whole)|(?P<share>[0-9]{0,2}\.[0-9]{1,6}|1)|(?P<extent>[0-9]{1,6})px)@)?(?P<px>[0-9]{1,6})"
)


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


def as_pixels(view: ViewSettings) -> ViewSettings:
    """The same view without normalisation: colours stay in [0, 1]."""
    return replace(view, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


@dataclass(frozen=True)
class View:
    """What a look sees, but for the place: how much of an image, and at what resolution. With a place it is a Region.

    px      side of what the encoder gets
    extent  side of the square that it covers: an int in pixels of the image, a float as a share of the image's shorter side;
            None: the whole image, whose aspect ratio is not kept
    resize  how the pixels are resized; not used where extent and px are the same
    """

    px: int
    extent: int | float | None = None
    resize: GlanceResize = "antialias"

    @staticmethod
    def parse(text: Any, name: str = "focus") -> "View":
        """A view from its name: 96 (a native patch), whole@160, 0.5@112 (half of the shorter side), 200px@96."""
        found = _VIEW.fullmatch(text.strip()) if isinstance(text, str) else None
        if found is None:
            raise BadSetting(
                f"{name} names views such as 96 (a patch of 96 px as it is), 0.5@112 (half of the shorter side, seen at 112 px), "
                f"200px@96 or whole@160, but got {shown(text)}."
            )
        px = checked(Pixels, int(found["px"]), f"the side of the view {text!r}")
        if found["whole"]:
            return whole(px)
        if found["share"]:
            return View(px, checked(PositiveShare, float(found["share"]), f"the share of the view {text!r}"))
        if found["extent"]:
            return View(px, checked(Pixels, int(found["extent"]), f"the extent of the view {text!r}"))
        return native(px)

    @property
    def is_whole(self) -> bool:
        """Whether it covers the whole image, so that it has no place."""
        return self.extent is None

    @property
    def name(self) -> str:
        """As users write it, see parse."""
        if self.extent is None:
            return f"whole@{self.px}"
        if self.extent == self.px and isinstance(self.extent, int):
            return str(self.px)
        if isinstance(self.extent, int):
            return f"{self.extent}px@{self.px}"
        return f"{self.extent:.6f}".rstrip("0").rstrip(".") + f"@{self.px}"

    def extent_px(self, height_px: int, width_px: int) -> int:
        """Side of the covered square in an image of this size; only for views that do not cover the whole image."""
        assert self.extent is not None
        return self.extent if isinstance(self.extent, int) else max(1, round(self.extent * min(height_px, width_px)))

    def share_of(self, height_px: int, width_px: int) -> float:
        """The covered square's side as a share of the shorter side of an image of this size; 1 for the whole image."""
        return 1.0 if self.extent is None else self.extent_px(height_px, width_px) / min(height_px, width_px)


def whole(px: int, resize: GlanceResize = "antialias") -> View:
    """The whole image at px x px: a glance."""
    return View(px, None, resize)


def native(px: int) -> View:
    """A patch of px x px pixels as they are: the paper's focus look."""
    return View(px, px)


def native_names(patch_px: Any, name: str = "patch_px") -> list[str]:
    """The names of native patches of this side, or of these sides; `name` is what a wrong one is called."""
    sides = patch_px if isinstance(patch_px, (list, tuple)) else [patch_px]
    return [native(checked(Pixels, px, name)).name for px in sides]


@dataclass(frozen=True)
class PolicySettings:
    """The patch proposal network (paper, Figure of pi, and its table of seven architectures).

    kind     learnt; or by a rule, as in the paper's ablation: random (drawn places), centre_corner (the centre, then the corners).
             Those have nothing to learn, so the other settings have no effect.
    head     conv: kxk convolution to few channels, then a linear layer; linear: two linear layers on the flattened map
    units    of the GRU
    place    the GRU also gets where the last look was and how much it covered (beyond the paper). Without it nothing shows
             the policy which places it has seen already.
    """

    head: Literal["conv", "linear"] = "conv"
    conv_channels: Units = 32
    conv_kernel: Kernel = 1
    linear_units: Units = 2048
    units: Units = 256
    place: bool = False
    kind: PolicyKind = "learnt"

    def __post_init__(self) -> None:
        check_fields(self)
        if self.conv_kernel % 2 == 0:
            raise BadSetting(f"the policy's convolution needs an odd kernel, but got {self.conv_kernel}. Use 1 or 3.")


@dataclass(frozen=True)
class NetworkSettings:
    """One glance-and-focus network.

    backbone       any timm name; backbone_options go to timm, those of network/build.py
    focus          the candidate views of the focus looks by their names (see View.parse), smallest first. "96": patches of 96 px at
                   full resolution, as in the paper; several make a multi-scale network. gf.create also takes patch_px=96.
    looks          the glance and the focus looks together (T in the paper)
    first_view     what the first look sees: glance, the whole image at low resolution; or, as in the paper's ablation, a patch of
                   glance_px at full resolution, at the centre or at a random place. The glance encoder sees it in any case.
    glance_resize  antialias for new networks; bicubic or bilinear (aligned corners, no antialiasing) as the paper's models
    classifier     recurrent: a GRU over the looks; cascaded: one linear layer for each number of looks; both as in the paper.
                   summed: the weighted sum of what the encoders' own heads answer at each look (beyond the paper). It has one
                   weight for each view, so few images are enough to train it.
    classifier_place  the recurrent classifier also gets where each look was and how much it covered (beyond the paper)
    first_answer   the part that answers the glance: the classifier, the glance encoder's own head, or that head only in evaluation
    shared_encoder  one encoder for all views, instead of one for glances and one for focus looks
    own_norms      with a shared encoder: glances and focus looks have batch norms of their own, and share all other weights
                   (beyond the paper). Small and large inputs differ in the mean and variance of their features.
    whole_encoder  views of the whole image have an encoder of their own (beyond the paper; with summed answers only). A focus
                   encoder that learns to see parts of images gets worse on whole ones. At full size it stays the plain
                   backbone; for smaller views, such as whole@192 of 224 px, it learns in the stage recognise. With own_norms they
                   have batch norms of their own instead, and learn together with the other views.
    zoom           coarse to fine (beyond the paper): the policy aims inside, or beside, the region that the last look saw, instead
                   of anywhere in the image. For large images with candidate views in steps, such as 0.25@224, 0.0625@224, 224.
                   The focus looks have these views in their order (see network/steps.py for small images), and thresholds only say
                   when to stop.
    frames         1 for images; more for clips of that many frames, which are all seen through the same region
    shift_div      clips: 1/shift_div of the channels is shifted each way in time (TSM); 0: frames are only averaged
    """

    backbone: str
    classes: Classes = 1000
    glance_px: Pixels = 96
    focus: tuple[str, ...] = ("96",)
    looks: Looks = 5
    first_view: FirstView = "glance"
    glance_resize: GlanceResize = "antialias"
    classifier: Literal["recurrent", "cascaded", "summed"] = "recurrent"
    classifier_units: Units = 1024
    classifier_place: bool = False
    first_answer: Literal["classifier", "own_head", "own_head_evaluating"] = "classifier"
    policy: PolicySettings = field(default_factory=PolicySettings)
    shared_encoder: bool = False
    own_norms: bool = False
    whole_encoder: bool = False
    zoom: bool = False
    frames: Frames = 1
    shift_div: ShiftDivisor = 8
    backbone_options: dict[str, Any] = field(default_factory=dict)
    view: ViewSettings = field(default_factory=ViewSettings)

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "focus", tuple(view.name for view in self.candidates))  # "096" is "96"
        check_network(self)

    @staticmethod
    def upgraded(plain: dict[str, Any], where: str = "") -> dict[str, Any]:
        """Plain values with `focus` instead of `patch_px`, the name that it had when all views were native patches."""
        if "patch_px" not in plain:
            return plain
        if "focus" in plain:
            raise BadSetting("focus and patch_px both name the views of the focus looks. Give one of them.")
        others = {name: value for name, value in plain.items() if name != "patch_px"}
        return {**others, "focus": native_names(plain["patch_px"], f"{where}.patch_px" if where else "patch_px")}

    @property
    def keeps_backbone(self) -> bool:
        """Whether views of the whole image are seen by the plain backbone, which later stages do not train.

        At smaller sizes its encoder has something to learn.
        """
        full_px = min(self.view.height_px, self.view.width_px)
        full_size = all(view.px >= full_px for view in self.candidates if view.is_whole)
        return self.whole_encoder and not self.shared_encoder and full_size

    @property
    def glance_view(self) -> View:
        """What the first look sees, but for its place: the whole image, unless first_view says otherwise."""
        return whole(self.glance_px, self.glance_resize) if self.first_view == "glance" else native(self.glance_px)

    @property
    def first_words(self) -> str:
        """The first look in words, such as "a glance at 96 px"."""
        place = {"centre": "at the centre", "random": "at a random place"}.get(self.first_view)
        return f"a glance at {self.glance_px} px" if place is None else f"a patch of {self.glance_px} px {place}"

    @functools.cached_property
    def candidates(self) -> tuple[View, ...]:
        """The views that a focus look may have, smallest first. Elsewhere a candidate is its number in this list."""
        return tuple(map(View.parse, self.focus))

    @property
    def view_order(self) -> tuple[int, ...] | None:
        """The candidate of each focus look of a network that zooms, see view_in_order. None: thresholds may choose any of them."""
        return tuple(view_in_order(look, len(self.focus)) for look in range(1, self.looks)) if self.zoom else None

    @property
    def view_choices(self) -> int:
        """The number of candidates that thresholds choose among; 1: they only say when to stop."""
        return 1 if self.zoom else len(self.focus)

    def next_views(self, number: int) -> tuple[int, ...]:
        """The candidates that may follow look `number`, 1 for the glance."""
        count = len(self.focus)
        return (view_in_order(number, count),) if self.zoom else tuple(range(count))

    @property
    def view_codes(self) -> tuple[str, ...]:
        """The views that the policy tells apart. A native patch has the same code as a glance of its size (paper, section 4.2)."""
        codes = {str(self.glance_px): self.glance_px, **{view.name: view.px for view in self.candidates}}
        return tuple(sorted(codes, key=lambda name: (codes[name], name)))

    def to_hash(self) -> dict[str, Any]:
        """Plain values for fingerprints: fields that came later are left out at their defaults, so that old ones stay valid."""
        plain = to_plain(self)
        later = {"first_view": "glance", "own_norms": False, "classifier_place": False, "zoom": False}
        for table, name, usual in (*((plain, *each) for each in later.items()), (plain["policy"], "kind", "learnt")):
            if table[name] == usual:
                del table[name]
        return plain

    def code_of(self, candidate: int) -> str:
        """The code of a look at this candidate, or at GLANCE."""
        return str(self.glance_px) if candidate == GLANCE else self.candidates[candidate].name


def view_in_order(number: int, candidates: int) -> int:
    """Coarse to fine: the candidate that follows look `number`, 1 for the glance. Each comes once, the last one again and again.

    This is the sequence in images in which each view is clearly smaller than the one before. In smaller images looks skip views,
    see network/steps.py; an outcome reports the views that an image had.
    """
    return min(number, candidates) - 1


_MOST_VIEWS = 16
_MOST_COLUMNS = 100_000  # of tables that have one for every sequence of views


def check_network(settings: NetworkSettings) -> None:
    """Refuse what does not fit together; fields are checked one by one before."""
    _check_focus(settings)
    _check_first_view(settings)
    _check_encoders(settings)
    _check_classifier(settings)
    if settings.zoom and settings.frames > 1:
        raise BadSetting(
            f"zoom=true is for images, but this network sees clips of {settings.frames} frames. Leave zoom out."
        )
    if settings.shift_div == 1:
        raise BadSetting(
            f"shift_div is the part of the channels that is shifted each way, 8 for an eighth, but got {settings.shift_div}. "
            "Use at least 2, or 0 for no shift."
        )


def _check_focus(settings: NetworkSettings) -> None:
    views, count = settings.candidates, len(settings.focus)
    if not views or len(set(settings.focus)) != count:
        raise BadSetting(
            f"focus must name one or several different views, but got {' '.join(settings.focus) or 'none'}."
        )
    if count > _MOST_VIEWS:
        raise BadSetting(f"focus names at most {_MOST_VIEWS} views, but got {count}.")
    if [view.px for view in views] != sorted(view.px for view in views):
        raise BadSetting(f"focus names the smallest view first, but got {' '.join(settings.focus)}.")
    if sum(settings.view_choices**look for look in range(settings.looks)) > _MOST_COLUMNS:
        raise BadSetting(
            f"with {count} candidate views and {settings.looks} looks there are more than {_MOST_COLUMNS:,} sequences of views to "
            "choose from. Use fewer views or looks."
        )
    height_px, width_px = settings.view.height_px, settings.view.width_px
    for view in views if settings.looks > 1 else ():
        needed_px = view.px if view.is_whole else view.extent_px(height_px, width_px)
        if needed_px > min(height_px, width_px):
            raise BadSetting(
                f"the view {view.name} is larger than the image ({min(height_px, width_px)} px). Use a smaller view or larger "
                "images."
            )
        if view.is_whole and view.px <= settings.glance_px:
            raise BadSetting(
                f"the view {view.name} shows no more than the glance, which is whole@{settings.glance_px}. Use a larger one."
            )


def _check_first_view(settings: NetworkSettings) -> None:
    if settings.zoom and settings.first_view != "glance":
        raise BadSetting(
            f"zoom=true begins with the whole image, but first_view is {settings.first_view!r}. Use first_view='glance', or leave "
            "zoom out."
        )
    shorter_px = min(settings.view.height_px, settings.view.width_px)
    if settings.first_view != "glance" and settings.glance_px > shorter_px:
        raise BadSetting(
            f"the first look is a patch of glance_px={settings.glance_px}, which is larger than the image ({shorter_px} px)."
        )


def _check_encoders(settings: NetworkSettings) -> None:
    if settings.own_norms and not settings.shared_encoder:
        raise BadSetting("own_norms=true needs shared_encoder=true: separate encoders have their own norms anyway.")
    if not settings.whole_encoder:
        return
    if settings.classifier != "summed" or settings.shared_encoder != settings.own_norms:
        raise BadSetting(
            "whole_encoder=true needs classifier='summed', and with shared_encoder=true also own_norms=true."
        )
    if not any(view.is_whole for view in settings.candidates):
        raise BadSetting(
            f"whole_encoder=true needs a view of the whole image, but focus names {' '.join(settings.focus)}."
        )


def _check_classifier(settings: NetworkSettings) -> None:
    parts = any(not view.is_whole for view in settings.candidates)
    if settings.classifier_place and (settings.classifier != "recurrent" or not parts):
        raise BadSetting(
            "classifier_place=true needs classifier='recurrent' and a view of a part of the image, but got "
            f"{settings.classifier!r} and {' '.join(settings.focus)}. Leave it out."
        )
    if settings.classifier == "cascaded" and settings.first_answer == "classifier":
        raise BadSetting(
            "a cascaded classifier has no layer for the glance: its first_answer is 'own_head', not 'classifier'."
        )
