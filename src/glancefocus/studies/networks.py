"""The runs that train one network at either scale: backbone, glance encoder, stages I, II and III, each a run of its own.

Several studies train the same beginnings. As separate runs these are trained once and shared.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from glancefocus.data.sources import DataSettings
from glancefocus.errors import BadSetting
from glancefocus.files import fingerprint
from glancefocus.network.backbones import has_pretrained_weights
from glancefocus.network.presets import PRESETS, network_settings
from glancefocus.settings import NetworkSettings
from glancefocus.training.recipes import train_settings
from glancefocus.training.settings import STAGES, TrainSettings
from glancefocus.values import to_plain

TINY_IMAGES, TINY_SIZES, TINY_CLIPS = "gf-mini-48", "gf-ms-mini-48", "gf-tsm-mini-40"
_TINY_SIGNS: dict[str, Any] = {
    "data.scenes": [3000, 400, 1000],
    "backbone.epochs": 6,
    "glance.epochs": 7,
    "recognise.epochs": 2,
    "aim.epochs": 5,
    "finetune.epochs": 4,
}
TINY: dict[str, dict[str, Any]] = {
    TINY_IMAGES: _TINY_SIGNS,
    # With several sizes, each look trains one of them.
    TINY_SIZES: {**_TINY_SIGNS, "recognise.epochs": 3, "aim.epochs": 8, "aim.deviation_end": 0.05, "aim.lr_end": 5e-5},
    TINY_CLIPS: {
        "data.scenes": [1500, 200, 600],
        "small.epochs": 12,
        "glance.epochs": 5,
        "aim.epochs": 4,
        "finetune.epochs": 2,
    },
}
"""{preset: changes to its recipe that make a run of seconds out of one of minutes}."""

ASSUMED_CLASSES = {False: 1000, True: 174}  # ImageNet; Something-Something
ENCODERS = ("glance_encoder", "focus_encoder")
WITHOUT_POLICY = (*ENCODERS, "classifier")


Scale = Literal["tiny", "paper"]
"""tiny: small networks on a built-in data set, minutes on two cores. paper: the paper's networks and settings."""


@dataclass(frozen=True)
class Scope:
    """What the runs of a study are made for.

    data         a data set; None: the paper's, which is not here, so that runs can only be planned
    seed         of everything that is trained after the backbone
    weights      scale paper: initial weights of the backbone; "pretrained": timm's; "none": it is trained from random ones
    assignments  name=value, changes to the settings of all runs that have the stage of this name
    """

    scale: Scale
    data: str | None
    seed: int = 0
    weights: str = "pretrained"
    assignments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in (text.partition("=")[0].strip() for text in self.assignments):
            if name in _SET_BY_STUDIES:
                raise BadSetting(f"a study sets {name} itself, for each of its runs. {_SET_BY_STUDIES[name]}")


# With the same seed in all runs, the deviation over the seeds would be 0.
_SET_BY_STUDIES = {
    "seed": "Leave it out; --seeds gives their number.",
    "weights": "Leave it out; --weights names those of the backbone.",
    **dict.fromkeys(("stages", "start", "rounds"), "Leave it out."),
}


@dataclass(frozen=True)
class Run:
    """One training run.

    name      for people, and of its folder
    settings  with neither `start` nor `weights`, which come from other runs
    start     the run whose network it continues
    parts     only these parts of that network are taken, the others are new; empty: the whole network
    weights   the run whose plain backbone both encoders start from
    """

    name: str
    settings: TrainSettings
    start: "Run | None" = None
    parts: tuple[str, ...] = ()
    weights: "Run | None" = None

    @property
    def content(self) -> str:
        """Hash of everything that the trained network depends on; the name does not count."""
        earlier = [None if run is None else run.content for run in (self.start, self.weights)]
        return fingerprint([to_plain(self.settings), list(self.parts), earlier])

    @property
    def stages(self) -> Sequence[str]:
        return self.settings.stages

    @property
    def seed(self) -> int:
        return self.settings.seed

    def with_earlier(self) -> "Iterator[Run]":
        """The runs that this one builds on, the first one first, and itself."""
        for earlier in (self.weights, self.start):
            if earlier is not None:
                yield from earlier.with_earlier()
        yield self


@dataclass(frozen=True)
class Chain:
    """The runs of one network, in order; None where its recipe leaves a stage out, or where there is no policy to train."""

    backbone: Run
    glance: Run | None
    stage1: Run
    stage2: Run | None
    stage3: Run | None

    @property
    def trained(self) -> Run:
        """The last run."""
        return self.stage3 or self.stage2 or self.stage1


def chain(
    scope: Scope,
    preset: str | None = None,
    *,
    name: str = "",
    network: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    changes: Mapping[str, Any] | None = None,
    fine_tuned: bool = True,
) -> Chain:
    """The runs of a preset.

    preset      None: the small one for images
    name        of the runs, for people; None: that of the preset
    network     changes to its network; data: to its data
    changes     {name with dots: value}, changes to its recipe
    fine_tuned  whether the glance encoder is trained on glances before stage I; otherwise it starts as the backbone
    """
    preset = preset or TINY_IMAGES
    name = name or preset.removeprefix("gf-")
    own = network or {}
    # Of the changes to the network, encoders depend on these only.
    seen = {key: own[key] for key in ("view", "frames", "backbone_options") if key in own}
    base = _settings(scope, preset, None, seen, data, {})
    backbone = backbone_run(scope, preset, network=seen, data=data)
    glance = None
    if fine_tuned:
        seen |= {key: own[key] for key in ("glance_px", "first_view") if key in own}
        px = seen.get("glance_px", base.network.glance_px)
        settings = _settings(scope, preset, ["glance"], seen, data, changes)
        glance = Run(f"{preset.removeprefix('gf-')}-glance-{px}", settings, weights=backbone)
    recognise = _settings(scope, preset, ["recognise"], own, data, changes)
    stage1 = Run(
        f"{name}-stage1",
        recognise,
        start=glance,
        parts=ENCODERS if glance is not None else (),
        weights=backbone if glance is None else None,
    )
    stage2 = stage3 = None
    if recognise.network.policy.kind == "learnt":
        stage2 = Run(f"{name}-stage2", _settings(scope, preset, ["aim"], own, data, changes), start=stage1)
    if "finetune" in base.stages:
        settings = _settings(scope, preset, ["finetune"], own, data, changes)
        stage3 = Run(f"{name}-stage3", settings, start=stage2 or stage1)
    return Chain(backbone, glance, stage1, stage2, stage3)


def again(
    scope: Scope,
    stage: str,
    start: Run,
    name: str,
    *,
    preset: str | None = None,
    network: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    changes: Mapping[str, Any] | None = None,
    parts: tuple[str, ...] = (),
) -> Run:
    """One stage of a preset, from another run on; parts: see Run."""
    settings = _settings(scope, preset or TINY_IMAGES, [stage], network or {}, data, changes)
    return Run(name, settings, start=start, parts=parts)


def backbone_run(
    scope: Scope,
    preset: str | None = None,
    *,
    network: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
) -> Run:
    """The plain backbone, with seed 0 for all seeds: like the paper's pretrained networks, there is one.

    Weights for the same classes (timm's for ImageNet, or a file) are taken as they are. For other classes, and for larger images
    than those that they were trained on, they are trained further.
    """
    preset, own = _with_the_same_backbone(preset or TINY_IMAGES), network or {}
    first = replace(scope, seed=0)
    base = _settings(first, preset, None, own, data, {})
    stages = [stage for stage in base.stages if stage in ("small", "backbone")]
    side_px, backbone = base.network.view.height_px, base.network.backbone
    name = f"{preset.removeprefix('gf-')}-backbone-{side_px}"
    from_timm = scope.weights == "pretrained"
    if scope.scale == "tiny" or scope.weights == "none" or (from_timm and not has_pretrained_weights(backbone)):
        return Run(name, _settings(first, preset, stages, own, data, {}))
    changes: dict[str, Any] = {}
    if side_px > PRESETS[preset].settings.view.height_px:
        changes = {"backbone.epochs": 10, "backbone.lr": 0.01}
    elif not from_timm or (base.network.classes == ASSUMED_CLASSES[False] and base.network.frames == 1):
        changes = {"backbone.epochs": 0}
    return Run(name, replace(_settings(first, preset, stages, own, data, changes), weights=scope.weights))


def _with_the_same_backbone(preset: str) -> str:
    """The first preset with the same backbone on the same images, so that several presets share one run."""
    wanted = PRESETS[preset].settings

    def seen(settings: NetworkSettings) -> tuple[Any, ...]:
        return settings.backbone, settings.backbone_options, settings.view, settings.frames

    return next(name for name, other in PRESETS.items() if seen(other.settings) == seen(wanted))


def _settings(
    scope: Scope,
    preset: str,
    stages: Sequence[str] | None,
    network: Mapping[str, Any],
    data: Mapping[str, Any] | None,
    changes: Mapping[str, Any] | None,
) -> TrainSettings:
    """The settings of a run with these stages; changes to stages that do not run have no effect."""
    own = {**(TINY[preset] if scope.scale == "tiny" else {}), **(changes or {})}
    assignments = [f"{name}={json.dumps(value)}" for name, value in own.items()] + list(scope.assignments)
    used = [text for text in assignments if stages is not None and _applies(text, stages)]
    stand_in = "gestures" if _is_for_clips(preset) else "signs"  # the recipe of the paper's networks is the same there
    if scope.scale == "tiny":  # the recipe of the built-in world goes beyond the paper
        network = {**network, "policy": {"place": False, **network.get("policy", {})}}
    settings = train_settings(
        scope.data or stand_in,
        preset=preset,
        network=dict(network),
        data=dict(data or {}),
        stages=None if stages is None else list(stages),
        changes={"seed": scope.seed, "rivals": "none", "rounds": 1},
        assignments=used,
    )
    return settings if scope.data is not None else _assumed(settings, preset, network)


def _applies(assignment: str, stages: Sequence[str]) -> bool:
    first = assignment.partition("=")[0].strip().split(".")[0]
    return first not in STAGES or first in stages


def _is_for_clips(preset: str) -> bool:
    return PRESETS[preset].settings.frames > 1


def _assumed(settings: TrainSettings, preset: str, network: Mapping[str, Any]) -> TrainSettings:
    """Settings for the data set of the paper, which is not here; they can be planned only."""
    classes = ASSUMED_CLASSES[_is_for_clips(preset)]
    chosen: NetworkSettings = network_settings(preset, classes=classes, **network)
    return replace(settings, network=chosen, data=DataSettings(source="the paper's data set"))
