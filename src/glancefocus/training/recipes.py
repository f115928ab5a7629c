"""From words to settings: what a user names, what the paper chose for the family, what fits the built-in world."""

import copy
import json
from dataclasses import fields
from typing import Any

from glancefocus.data.sources import DataSettings, classes_of
from glancefocus.data.worlds.names import WORLDS
from glancefocus.errors import BadSetting, UnknownName
from glancefocus.network.encoder import check_backbone, has_pretrained_weights
from glancefocus.network.presets import family_of, network_settings
from glancefocus.settings import from_plain, to_plain
from glancefocus.training.fitted import DEFAULT_BACKBONE, EFFORTS, Effort, Fitting, fitted_recipe, fitted_sizes, survey
from glancefocus.training.settings import STAGE_WORDS, STAGES, TrainSettings


def clip_defaults(jester: bool = False) -> dict[str, Any]:
    """The paper's settings for clips (A.4): for Something-Something V2, or for Jester. Flips change what a gesture says.

    Of the backbone the paper takes TSM's own; its 50 epochs at a rate of 0.01 for 64 clips are those of TSM.
    """
    return {
        "stages": ["backbone", "glance", "recognise", "aim"],
        "batch_size": 64,
        "backbone": {"epochs": 50, "lr": 0.01},
        "glance": {"epochs": 10, "lr": 0.01 if jester else 0.1},
        "recognise": {
            "epochs": 10 if jester else 30,
            "classifier_lr": 0.01,
            "freeze_encoders": True,
            "own_head_weight": 0.0,  # heads that are frozen have nothing to learn
        },
        "aim": {"epochs": 50},
        "data": {"augment": {"flip": False}},
    }


def family_defaults(family: str) -> dict[str, Any]:
    """The paper's settings for a family of backbones, as changes to TrainSettings' defaults."""
    rates = {"regnet": 0.02, "mobilenet": 0.005, "efficientnet": 0.005}
    epochs = {"mobilenet": 90, "efficientnet": 30}
    light = family in ("mobilenet", "efficientnet")
    recognise = {
        "epochs": epochs.get(family, 60),
        "encoder_lr": rates.get(family, 0.01),
        "weight_decay": 5e-5 if family == "regnet" else 1e-4,
        "own_head_weight": 5.0 if light else 1.0,
        "freeze_glance": light,
    }
    stages = ["backbone", "glance", "recognise", "aim"] + ([] if family == "efficientnet" else ["finetune"])
    return {
        "stages": stages,
        "recognise": {**recognise, "classifier_lr": 0.1},
        "finetune": {**recognise, "classifier_lr": 0.01},
    }


FRESH_GLANCE: dict[str, Any] = {"lr": 4e-3, "optimizer": "adamw", "weight_decay": 0.05, "warmup": 0.2, "fresh": True}

# A small network learns the built-in world from nothing in minutes; the paper's numbers are for ImageNet and pretrained networks.
SIGNS_RECIPE: dict[str, Any] = {
    "rounds": 2,
    "batch_size": 32,
    "backbone": {"epochs": 6, "lr": 0.1, "weight_decay": 5e-4, "warmup": 0.15},
    "small": {"epochs": 5, "lr": 0.1, "weight_decay": 5e-4, "warmup": 0.15, "side_px": 160, "scenes": [4000, 300]},
    "small_glance": {**FRESH_GLANCE, "epochs": 6, "side_px": 160, "scenes": [4000, 300]},
    "glance": {**FRESH_GLANCE, "epochs": 5},
    "recognise": {"epochs": 3, "classifier_lr": 0.1, "freeze_encoders": True},
    "aim": {"epochs": 5},
    "finetune": {"epochs": 3, "encoder_lr": 0.01, "classifier_lr": 0.02},
}


# With one patch size aims must be exact: exploration and its steps narrow along the stage, the glances that the policy sees stay as
# they are while the rest is fine-tuned, and the policy has the last word.
ONE_SIZE_RECIPE: dict[str, Any] = {
    "stages": ["backbone", "glance", "recognise", "aim", "finetune", "aim"],
    "rounds": 1,
    "backbone": {"epochs": 4},
    "glance": {"epochs": 6},
    "recognise": {"epochs": 2},
    "aim": {"epochs": 5, "deviation_end": 0.05, "lr_end": 5e-5},
    "finetune": {"epochs": 4, "freeze_glance": True},
    "data": {"scenes": [5000, 500, 1000]},
}


LARGE_SIDE_PX = 320  # of scenes that are large; with stages of one's own choosing they have the settings of small ones


def large_scenes_recipe(side_px: int) -> dict[str, Any]:
    """Where a sign is a thousandth of the pixels, labels alone teach a glance little, and reinforcement comes across signs late.

    So the backbone, which learns to read in small scenes first, shows the glance encoder and the policy where things are; the
    policy has the last word again.

    side_px  the shorter side of the scenes
    """
    return {
        "stages": ["small", "backbone", "glance", "recognise", "point", "finetune", "aim"],
        "batch_size": 16,
        "small": {"side_px": side_px // 3, "lr": 0.05},
        "backbone": {"epochs": 1, "lr": 0.03},
        "glance": {"epochs": 20, "evidence_weight": 3.0},
        "recognise": {"epochs": 1},
        "point": {"epochs": 6},
        "finetune": {"epochs": 5, "deviation": 0.02, "mistaken_glances": 0.15},
        "aim": {"epochs": 2, "judge": "own_head", "lr": 1e-4, "deviation": 0.03, "deviation_end": 0.02},
        "data": {"scenes": [4000, 400, 1000], "augment": {"shift_px": side_px // 20}},
    }


# The same for clips. At the glance nothing of the mark is left: its encoder learns whether a disc is amber, and so where to look.
# In whole clips a network from nothing finds no motion to hold on to; in small ones it does, and then in whole ones too.
GESTURES_RECIPE: dict[str, Any] = {
    "stages": ["small", "backbone", "glance", "recognise", "aim", "finetune", "aim"],
    "batch_size": 16,
    "small": {"epochs": 15, "lr": 0.05, "weight_decay": 5e-4, "warmup": 0.15, "side_px": 64, "scenes": [1200, 120]},
    "backbone": {"epochs": 2, "lr": 0.03, "weight_decay": 5e-4, "warmup": 0.1},
    "small_glance": {**FRESH_GLANCE, "epochs": 6, "side_px": 64, "scenes": [1200, 120]},
    "glance": {**FRESH_GLANCE, "epochs": 4},
    "recognise": {"epochs": 3, "classifier_lr": 0.05, "freeze_encoders": True},
    "aim": {"epochs": 5, "deviation_end": 0.05, "lr_end": 5e-5},
    "finetune": {"epochs": 3, "encoder_lr": 0.01, "classifier_lr": 0.02, "freeze_glance": True, "deviation": 0.05},
    "data": {"scenes": [2500, 300, 1000]},
}

NO_WEIGHTS = "none"
"""What a user says for random initialisation."""

WORLD_PRESETS = {"signs": "gf-mini-48", "gestures": "gf-tsm-mini-40"}


# Pretrained encoders are adapted. The paper's own were pretrained on the same classes.
FINETUNE_RECIPE: dict[str, Any] = {
    "backbone": {"epochs": 10, "lr": 0.01},
    "glance": {"epochs": 10, "lr": 0.01},
}


def train_settings(
    source: str,
    *,
    preset: str | None = None,
    backbone: str | None = None,
    network: dict[str, Any] | None = None,
    data: dict[str, Any] | None = None,
    stages: list[str] | None = None,
    changes: dict[str, Any] | None = None,
    assignments: list[str] | None = None,
    effort: Effort = "usual",
    on_gpu: bool = False,
) -> TrainSettings:
    """The settings of a run: the paper's for a preset, those of the built-in world, or what fits the data, see fitted.py.

    network, data  changes to NetworkSettings and DataSettings
    changes        top-level settings such as seed or batch_size; None values are passed over
    assignments    name=value with dots, such as aim.epochs=8, which override everything else
    effort         fewer or more epochs
    """
    data = {name: value for name, value in (data or {}).items() if value is not None}
    network = {name: value for name, value in (network or {}).items() if value is not None}
    changes = {name: value for name, value in (changes or {}).items() if value is not None}
    if source in WORLDS and preset is None and backbone is None:
        preset = WORLD_PRESETS[source]
    if preset is None:
        backbone = backbone or DEFAULT_BACKBONE
    settings = network_settings(preset, backbone=backbone, **network)
    check_backbone(settings.backbone)  # before any data is read
    frames = settings.frames
    if changes.get("weights") == NO_WEIGHTS:
        changes["weights"] = None
    elif preset is None and source not in WORLDS and "weights" not in changes and "start" not in changes:
        changes["weights"] = "pretrained" if has_pretrained_weights(settings.backbone) else None
    weights = changes.get("weights")
    if source in WORLDS:
        plain = _world_recipe(source, preset, backbone, network, data, frames, stages)
    else:
        plain = _data_recipe(source, preset, backbone, network, data, frames)
    # For clips TSM's epochs and rates start from ImageNet's weights anyway.
    if preset is not None and weights is not None and frames == 1:
        plain = _merged(plain, copy.deepcopy(FINETUNE_RECIPE))
    if preset is None and source not in WORLDS:
        looked_at = survey(from_plain(DataSettings, {"source": source, **data}), frames)
        pretrained = weights is not None or "start" in changes
        plain = _merged(plain, fitted_recipe(Fitting(looked_at, pretrained, on_gpu, effort)))
    elif effort != "usual":
        plain = _with_effort(plain, effort)
    plain = _merged(plain, {**changes, "effort": effort})
    plain = _merged(plain, {"data": {"source": source, **data}})
    if stages is not None:
        plain["stages"] = _stage_names(stages)
    for assignment in assignments or []:
        assign(plain, assignment)
    settings_of_run: TrainSettings = from_plain(TrainSettings, plain)
    _refuse_unused(settings_of_run, assignments or [], changes)
    return settings_of_run


def _refuse_unused(settings: TrainSettings, assignments: list[str], changes: dict[str, Any]) -> None:
    """Refuse what the user set for a stage that does not run: it would change nothing."""
    used = {*settings.stages, *(["aim"] if "joint" in settings.stages else [])}  # it aims as stage II does
    used |= {"backbone"} if settings.rivals == "tuned" else set()  # these are tuned as the backbone was
    running = ", ".join(settings.plan())
    for assignment in assignments:
        name = assignment.partition("=")[0].strip()
        stage = name.split(".")[0]
        if stage in STAGES and stage not in used:
            raise BadSetting(
                f"{name} is a setting of the stage {stage}, which does not run: the stages are {running}. "
                "Leave the setting out, or name the stage with --stages."
            )
    asked = {*changes, *(assignment.partition("=")[0].strip() for assignment in assignments)}
    if "rounds" in asked and settings.rounds > 1 and not {"aim", "finetune"} & set(settings.stages):
        raise BadSetting(
            f"--rounds repeats the stages aim (2) and finetune (3), but the stages are {running}. Leave it out."
        )


def _data_recipe(
    source: str,
    preset: str | None,
    backbone: str | None,
    network: dict[str, Any],
    data: dict[str, Any],
    frames: int,
) -> dict[str, Any]:
    """Network and the paper's numbers for its family, for data of one's own."""
    if preset is None:
        looked_at = survey(from_plain(DataSettings, {"source": source, **data}), frames)
        network = {**network, **fitted_sizes(looked_at, network)}
        classes = len(looked_at.classes)
    else:
        classes = len(classes_of(source, frames))
    plain_network = to_plain(network_settings(preset, backbone=backbone, classes=classes, **network))
    return {**_preset_recipe(plain_network["backbone"], preset, frames), "network": plain_network}


def _world_recipe(
    source: str,
    preset: str | None,
    backbone: str | None,
    network: dict[str, Any],
    data: dict[str, Any],
    frames: int,
    stages: list[str] | None,
) -> dict[str, Any]:
    """Network and recipe for a built-in world, which is drawn at the size that the network looks at."""
    network["view"] = {"fit": "whole", **network.get("view", {})}
    data.setdefault("workers", 0)
    classes = len(classes_of(source, frames))
    plain_network = to_plain(network_settings(preset, backbone=backbone, classes=classes, **network))
    view = plain_network["view"]
    drawn = {"height": view["height_px"], "width": view["width_px"], **data.get(source, {})}
    data[source] = drawn if source == "signs" else {"frames": max(3, frames), **drawn}
    plain = {**_preset_recipe(plain_network["backbone"], preset, frames), "network": plain_network}
    shorter_px = min(view["height_px"], view["width_px"])
    if (preset, source) == ("gf-mini-48", "signs") and shorter_px >= LARGE_SIDE_PX and stages is None:
        plain = _merged(plain, large_scenes_recipe(shorter_px))
    return plain


def _preset_recipe(backbone: str, preset: str | None, frames: int) -> dict[str, Any]:
    """The paper's numbers for a family, and ours for the presets that are not the paper's."""
    plain = family_defaults(family_of(backbone)[0])
    if frames > 1:
        plain = _merged(plain, clip_defaults(jester=preset is not None and preset.endswith("jester")))
    if preset in ("gf-mini-48", "gf-ms-mini-48"):
        plain = _merged(plain, copy.deepcopy(SIGNS_RECIPE))
    if preset == "gf-mini-48":
        plain = _merged(plain, copy.deepcopy(ONE_SIZE_RECIPE))
    if preset == "gf-tsm-mini-40":
        plain = _merged(plain, copy.deepcopy(GESTURES_RECIPE))
    return plain


def _with_effort(plain: dict[str, Any], effort: Effort) -> dict[str, Any]:
    """A recipe with fewer or more epochs."""
    epochs = {name: plain.get(name, {}).get("epochs") or _default_epochs(name) for name in STAGES}
    return _merged(plain, {name: {"epochs": max(1, round(n * EFFORTS[effort]))} for name, n in epochs.items()})


def _default_epochs(stage: str) -> int:
    (kind,) = [f.default_factory for f in fields(TrainSettings) if f.name == stage]
    epochs: int = kind().epochs  # type: ignore[operator]
    return epochs


def _stage_names(words: list[str]) -> list[str]:
    names: list[str] = []
    for word in [part for text in words for part in text.split(",") if part]:
        if word.lower() not in STAGE_WORDS:
            raise UnknownName("stage", word, STAGE_WORDS, f"Known are {', '.join(STAGE_WORDS)}.")
        names += STAGE_WORDS[word.lower()]
    return names


def _merged(plain: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(plain)
    for name, value in changes.items():
        both = isinstance(value, dict) and isinstance(merged.get(name), dict)
        merged[name] = _merged(merged[name], value) if both else value
    return merged


def assign(plain: dict[str, Any], assignment: str) -> None:
    """Put the value of name=value, in which dots lead into tables of the table, into it."""
    name, equals, text = assignment.partition("=")
    if not equals or not name:
        raise BadSetting(f"a setting is given as name=value, such as aim.epochs=8, but got {assignment!r}.")
    try:
        value = json.loads(text)
    except ValueError:
        value = {"none": None, "true": True, "false": False}.get(text.lower(), text)
    table = plain
    *sections, last = name.strip().split(".")
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise BadSetting(f"{name} is not a setting: {section} has no parts.")
    table[last] = value
