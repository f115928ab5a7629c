"""The networks that have names: the paper's, one small enough for a laptop; and what each family of backbones takes by default.

What every preset costs is counted beforehand and kept in preset_table.json, so that `gf models` needs neither torch nor timm. After
a change to the presets write the file again:

    python -m glancefocus.network.presets

`tests/network/test_preset_table.py` counts every preset and compares.
"""

import functools
import importlib.util
import json
import re
import sys
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from glancefocus.errors import BadSetting, UnknownName
from glancefocus.files import write_text
from glancefocus.settings import NetworkSettings, PolicySettings, ViewSettings, native_names
from glancefocus.values import from_plain, to_plain

CONV_POLICY = PolicySettings(head="conv", units=256)
LINEAR_POLICY = PolicySettings(head="linear", units=1024)


@dataclass(frozen=True)
class Family:
    """What the paper chose for one family of backbones (section 3.4, A.1, A.3); `name` is how their timm names begin.

    training_options  options of the backbones in the paper's presets that act in training only: dropout and drop-connect
    """

    names: tuple[str, ...]
    looks: int = 5
    classifier: str = "recurrent"
    first_answer: str = "classifier"
    policy: PolicySettings = CONV_POLICY
    view: ViewSettings = field(default_factory=ViewSettings)
    training_options: dict[str, Any] = field(default_factory=dict)

    def settings(self) -> dict[str, Any]:
        return {
            "looks": self.looks,
            "classifier": self.classifier,
            "first_answer": self.first_answer,
            "policy": self.policy,
            "view": self.view,
        }


FAMILIES = {
    "resnet": Family(("resnet",), policy=LINEAR_POLICY),
    "densenet": Family(("densenet",), policy=LINEAR_POLICY),
    "regnet": Family(("regnet",), first_answer="own_head_evaluating"),
    "mobilenet": Family(
        ("mobilenet", "tf_mobilenet"),
        looks=3,
        classifier="cascaded",
        first_answer="own_head",
        training_options={"drop_rate": 0.2, "drop_path_rate": 0.2},
    ),
    "efficientnet": Family(
        ("efficientnet", "tf_efficientnet"),
        looks=4,
        classifier="cascaded",
        first_answer="own_head",
        view=ViewSettings(interpolation="bicubic"),
        training_options={"drop_rate": 0.3, "drop_path_rate": 0.2},
    ),
}
OTHER_FAMILY = Family(())


def family_of(backbone: str) -> tuple[str, Family]:
    """The family of a backbone by its name; networks that the paper did not try get a light policy and a GRU."""
    for name, family in FAMILIES.items():
        if backbone.startswith(family.names):
            return name, family
    return "other", OTHER_FAMILY


@dataclass(frozen=True)
class Preset:
    """A network with a name, and what the paper says it costs (None where the paper gives no figure).

    published_backbone_macs  of the plain backbone on the whole image or clip, by its own authors
    """

    name: str
    settings: NetworkSettings
    paper_encoder_macs: float | None = None
    paper_encoder_counts: str = ""
    published_backbone_macs: float | None = None


def _preset(name: str, backbone: str, px: int, **more: Any) -> Preset:
    family = family_of(backbone)[1]
    settings: dict[str, Any] = {**family.settings(), "backbone": backbone, "glance_px": px, "focus": (str(px),)}
    settings["view"] = replace(family.view, **more.pop("view", {}))
    settings["backbone_options"] = dict(family.training_options)
    # Several patch sizes (paper, section 4.2): maps are upsampled after the policy's convolution, so it needs one.
    settings |= {key: more.pop(key) for key in ("focus", "policy", "looks") if key in more}
    return Preset(name, NetworkSettings(**settings), **more)


_B2 = {"height_px": 260, "width_px": 260}
_B3 = {"height_px": 300, "width_px": 300, "crop_pct": 0.904}
_RESNET50 = {"paper_encoder_macs": 750.7e6, "paper_encoder_counts": "without head"}
_MOBILENET = {"paper_encoder_macs": 43.1e6, "paper_encoder_counts": "with head"}

PRESETS = {
    preset.name: preset
    for preset in (
        _preset("gf-resnet50-96", "resnet50", 96, **_RESNET50),
        _preset("gf-resnet50-128", "resnet50", 128),
        _preset("gf-densenet121-96", "densenet121", 96),
        _preset("gf-densenet169-96", "densenet169", 96),
        _preset("gf-densenet201-96", "densenet201", 96),
        _preset("gf-regnety-600m-96", "regnety_006", 96),
        _preset("gf-regnety-800m-96", "regnety_008", 96),
        _preset("gf-regnety-1.6g-96", "regnety_016", 96),
        _preset("gf-mobilenetv3-large-100-96", "mobilenetv3_large_100", 96, **_MOBILENET),
        _preset("gf-mobilenetv3-large-100-128", "mobilenetv3_large_100", 128),
        _preset("gf-mobilenetv3-large-125-128", "mobilenetv3_large_125", 128),
        _preset("gf-efficientnet-b2-128", "efficientnet_b2", 128, view=_B2),
        _preset("gf-efficientnet-b3-128", "efficientnet_b3", 128, view=_B3),
        _preset("gf-efficientnet-b3-144", "efficientnet_b3", 144, view=_B3),
        _preset(
            "gf-ms-resnet50-96", "resnet50", 96, focus=("96", "128", "160"), policy=CONV_POLICY, looks=4, **_RESNET50
        ),
        _preset("gf-ms-efficientnet-b3-128", "efficientnet_b3", 128, focus=("128", "160", "192"), looks=4, view=_B3),
    )
}
# Beyond the paper: small enough to be trained on a laptop's processor in minutes; what the built-in world is learnt with.
_MINI = NetworkSettings(
    backbone="resnet18",
    backbone_options={
        "layers": [1, 1, 1, 1],
        "channels": [24, 40, 64, 96],
        "stem_type": "deep",
        "stem_width": 8,
        "output_stride": 16,
        "zero_init_last": False,
    },
    glance_px=48,
    focus=("48",),
    looks=3,
    classifier_units=128,
    policy=PolicySettings(units=128),
    view=ViewSettings(fit="whole", height_px=160, width_px=160),
)
PRESETS["gf-mini-48"] = Preset("gf-mini-48", replace(_MINI, looks=4))
PRESETS["gf-ms-mini-48"] = Preset("gf-ms-mini-48", replace(_MINI, focus=("32", "48", "64")))
# The Swedish traffic signs (section 5.1): ResNet-18 on road scenes of 960x1280 px. The paper does not say how many looks it has;
# here as many as its other ResNets.
_ROADS = ViewSettings(fit="stretch", height_px=960, width_px=1280)
PRESETS["gf-resnet18-192-roads"] = Preset(
    "gf-resnet18-192-roads",
    replace(_preset("", "resnet18", 192).settings, classes=4, view=_ROADS),
    published_backbone_macs=44.7e9,
)
# Clips (A.4): ResNet-50 with the temporal shift, the cascaded classifier, 3 looks. The paper does not say by what its policy sees a
# clip; with two linear layers on eight maps it would have 300 million weights, so it is the convolution here.
_CLIPS: dict[str, Any] = {"classifier": "cascaded", "first_answer": "own_head", "policy": CONV_POLICY, "looks": 3}
_TSM_MACS = {8: 33e9, 16: 65e9}  # TSM's paper, 224 px; others count 32.7e9 and 65.4e9


def _clip_preset(name: str, px: int, frames: int) -> Preset:
    settings = NetworkSettings("resnet50", glance_px=px, focus=(str(px),), frames=frames, **_CLIPS)
    return Preset(name, settings, published_backbone_macs=_TSM_MACS.get(frames))


PRESETS |= {
    preset.name: preset
    for preset in (
        *(_clip_preset(f"gf-tsm-resnet50-96-{frames}f", 96, frames) for frames in (8, 12, 16)),
        *(_clip_preset(f"gf-tsm-resnet50-{px}-jester", px, 8) for px in (80, 96, 128)),
    )
}
PRESETS["gf-tsm-mini-40"] = Preset(
    "gf-tsm-mini-40",
    replace(
        _MINI,
        glance_px=40,
        focus=("40",),
        looks=4,
        frames=8,
        classifier="cascaded",
        first_answer="own_head",
        view=ViewSettings(fit="whole", height_px=128, width_px=128),
    ),
)


def check_preset(name: str) -> None:
    """Refuse a name that no preset has, with the nearest ones that do."""
    if name not in PRESETS:
        raise UnknownName("preset", name, PRESETS, "`gf models` lists them all; any timm backbone goes as backbone=.")


def network_settings(
    preset: str | None = None, *, backbone: str | None = None, classes: int | None = None, **changes: Any
) -> NetworkSettings:
    """The settings of a preset or of any backbone, with changes.

    changes  any field of NetworkSettings; focus may be one view, and patch_px=96 means focus="96"; policy and view may be tables of
             names and values, of which only the named ones change
    """
    if (preset is None) == (backbone is None):
        raise BadSetting(
            "name either a preset or a backbone: gf.create('gf-resnet50-96') or gf.create(backbone='resnet50')."
        )
    if preset is not None:
        check_preset(preset)
        plain = to_plain(PRESETS[preset].settings)
    else:
        assert backbone is not None
        from glancefocus.network.build import expected_colours

        family = family_of(backbone)[1].settings()
        if changes.get("frames", 1) > 1:
            family |= _CLIPS
        plain = to_plain(NetworkSettings(backbone=backbone, **family))
        plain["view"] |= expected_colours(backbone)
        plain["policy"]["place"] = True  # beyond the paper, whose presets keep to it
    if classes is not None:
        plain["classes"] = classes
    return from_plain(NetworkSettings, _changed(plain, changes))


def _changed(plain: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    changed = dict(plain)
    for name, value in changes.items():
        if name == "patch_px":
            changed["focus"] = native_names(value)
        elif name == "focus" and isinstance(value, (str, int)):
            changed[name] = [str(value)]
        elif name in ("policy", "view"):
            table = to_plain(value) if isinstance(value, (PolicySettings, ViewSettings)) else value
            changed[name] = {**plain[name], **table} if isinstance(table, dict) else table
        else:
            changed[name] = value
    if changes.get("classifier") == "cascaded" and "first_answer" not in changes:
        changed["first_answer"] = "own_head"
    return changed


_DEFINED = re.compile(r"^@register_model\s*\ndef (\w+)\(", re.MULTILINE)


def refuse_misspelt(backbone: str) -> None:
    """Refuse a backbone that occurs nowhere in timm's files, with the nearest names that do; timm has the last word on others.

    A program may have registered a backbone of its own with timm before; importing timm here would take too long.
    """
    timm = sys.modules.get("timm")
    if timm is not None and timm.is_model(backbone):
        return
    ours = {preset.settings.backbone for preset in PRESETS.values()}  # some are not timm's
    sources = _sources()
    word = re.compile(rf"\b{re.escape(backbone.partition('.')[0])}\b")
    if not sources or backbone in ours or ":" in backbone or any(word.search(source) for source in sources):
        return
    names = ours | {name for source in sources for name in _DEFINED.findall(source)}
    raise UnknownName("backbone", backbone, names, "`gf models` lists the presets.")


@functools.cache
def _sources() -> list[str]:
    """The text of timm's modules of models; none where timm is not installed as files."""
    spec = importlib.util.find_spec("timm")
    if spec is None or spec.origin is None:
        return []
    files = sorted((Path(spec.origin).parent / "models").glob("*.py"))
    return [file.read_text(encoding="utf-8", errors="replace") for file in files]


TABLE_FILE = "preset_table.json"


def read_table() -> list[dict[str, Any]]:
    """One plain object for each preset, as `count_preset` makes them."""
    text = resources.files("glancefocus.network").joinpath(TABLE_FILE).read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = json.loads(text)
    return rows


def count_preset(preset: Preset) -> dict[str, Any]:
    """One preset with its parameters and multiply-adds, counted on the real modules without computing anything."""
    from glancefocus.network.build import count_parameters
    from glancefocus.network.macs import count_costs

    settings, costs = preset.settings, count_costs(preset.settings)
    return {
        "preset": preset.name,
        "backbone": settings.backbone,
        "glance_px": settings.glance_px,
        "focus": list(settings.focus),
        "looks": settings.looks,
        "frames": settings.frames,
        "parameters": count_parameters(settings),
        "encoder_macs": costs.encoder_macs,
        "encoder_with_head_macs": costs.encoder_with_head_macs,
        "policy_macs": costs.policy_macs,
        "classifier_macs": list(costs.classifier_macs),
        "macs_after_look": list(costs.macs_after_look),
        "backbone_macs": costs.backbone_macs,
        "paper_encoder_macs": preset.paper_encoder_macs,
        "paper_encoder_counts": preset.paper_encoder_counts or None,
        "published_backbone_macs": preset.published_backbone_macs,
    }


def write_table(file: Path) -> None:
    """Count every preset and write the table."""
    rows = [count_preset(preset) for preset in PRESETS.values()]
    write_text(file, json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    write_table(Path(__file__).with_name(TABLE_FILE))
