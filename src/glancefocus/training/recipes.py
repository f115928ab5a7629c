"""From options to settings: the recipe that belongs to the preset and the kind of data, then what the user named.

    data            network                           recipe
    built-in world  the preset that was made for it   its own, see world_recipes.py
    built-in world  any backbone, or a paper preset   the paper's, for the family of the backbone
    your own data   a paper preset                    the paper's, for the family of the backbone
    your own data   any backbone, or a small preset   fitted to the number and the size of the images, see fitted.py

A recipe is a table of changes to the defaults of TrainSettings. The paper's numbers are for ImageNet and pretrained networks.
"""

import copy
from dataclasses import fields
from typing import Any

from glancefocus.data.sources import DataSettings, classes_of
from glancefocus.data.worlds import WORLDS
from glancefocus.network.backbones import has_pretrained_weights
from glancefocus.network.build import check_backbone
from glancefocus.network.presets import family_of, network_settings
from glancefocus.settings import NetworkSettings
from glancefocus.training.assignments import assign, stage_names
from glancefocus.training.fitted import (
    DEFAULT_BACKBONE,
    EFFORTS,
    WITHOUT_LESSONS,
    Effort,
    Fitting,
    Recipe,
    fitted_recipe,
    fitted_sizes,
    merged,
    survey,
)
from glancefocus.training.large_recipes import fit_to_large, network_for_zoom, wide_signs_recipe
from glancefocus.training.setting_checks import fit_to_rules, fit_to_shared_encoder, refuse_unused
from glancefocus.training.settings import STAGES, AimSettings, TrainSettings
from glancefocus.training.world_recipes import (
    SMALL_PRESETS,
    WORLD_RECIPES,
    draw_at_the_size_of_the_view,
    world_network,
    world_recipe,
)
from glancefocus.values import from_plain, to_plain

NO_WEIGHTS = "none"
"""The option value that asks for random initialisation."""


LIGHT_FAMILIES = ("mobilenet", "efficientnet")


def is_light(backbone: str) -> bool:
    """Whether a backbone is of a family of few multiply-adds, which takes larger learning rates on photographs."""
    return family_of(backbone)[0] in LIGHT_FAMILIES


def family_recipe(family: str) -> Recipe:
    """The paper's settings for a family of backbones (A.2, A.3)."""
    rates = {"regnet": 0.02, "mobilenet": 0.005, "efficientnet": 0.005}
    epochs = {"mobilenet": 90, "efficientnet": 30}
    light = family in LIGHT_FAMILIES
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
        # Stage III samples its places as stage II does.
        "finetune": {**recognise, "classifier_lr": 0.01, "deviation": AimSettings.deviation},
    }


# How the authors of each family trained it (A.3), for batches of 256 images: rates are scaled with the batch (RegNet 0.8 for 1024,
# MobileNetV3 0.1 and EfficientNet 0.256 for 4096). MobileNetV3's paper gives no epochs: here it has EfficientNet's.
_RMSPROP: Recipe = {"epochs": 350, "optimizer": "rmsprop", "weight_decay": 1e-5, "warmup": 0.015}
_AUTHORS: dict[str, Recipe] = {
    "regnet": {"epochs": 100, "lr": 0.2, "weight_decay": 5e-5, "warmup": 0.05},
    "mobilenet": {**_RMSPROP, "lr": 0.00625},
    "efficientnet": {**_RMSPROP, "lr": 0.016, "label_smoothing": 0.1},
}


def initialising_recipe(family: str) -> Recipe:
    """The settings with which a family of backbones was trained by its authors, for both encoders of the paper's presets."""
    own = _AUTHORS.get(family, {})
    return {"backbone": own, "glance": own}


# EfficientNet sees bicubic images in evaluation, so its training crops are bicubic, too.
CROP_CHANGES: dict[str, Recipe] = {"efficientnet": {"data": {"augment": {"crop_resize": "bicubic"}}}}


# The paper's settings for clips (A.4). The paper uses TSM's backbone as it was released; 50 epochs at a rate of 0.01 for 64 clips
# are TSM's own. Clips are not mirrored: that would change what a gesture means.
SOMETHING_RECIPE: Recipe = {
    "stages": ["backbone", "glance", "recognise", "aim"],
    "batch_size": 64,
    "backbone": {"epochs": 50, "lr": 0.01},
    "glance": {"epochs": 10, "lr": 0.1},
    "recognise": {
        "epochs": 30,
        "classifier_lr": 0.01,
        "freeze_encoders": True,
        "own_head_weight": 0.0,  # frozen heads cannot learn
    },
    "aim": {"epochs": 50},
    "data": {"augment": {"flip": False}},
}
JESTER_CHANGES: Recipe = {"glance": {"lr": 0.01}, "recognise": {"epochs": 10}}
# The augmentation of the traffic signs in Katharopoulos and Fleuret (2019); theirs fills gaps with black, ours repeats the edge.
# 747 scenes fill 23 batches of 32, with rates an eighth of those for 256.
ROADS_CHANGES: Recipe = {
    "batch_size": 32,
    "backbone": {"lr": 0.0125},
    "glance": {"lr": 0.0125},
    "recognise": {"encoder_lr": 0.00125, "classifier_lr": 0.0125},
    "finetune": {"encoder_lr": 0.00125, "classifier_lr": 0.00125},
    "data": {"augment": {"crop": 1.0, "flip": False, "shift_px": 100, "shift_share": 0.8, "light": 0.8}},
}
# Clips get SOMETHING_RECIPE; these presets change it, or the recipe of their family.
PRESET_CHANGES: dict[str, Recipe] = {
    **{f"gf-tsm-resnet50-{px}-jester": JESTER_CHANGES for px in (80, 96, 128)},
    "gf-resnet18-192-roads": ROADS_CHANGES,
}

# Pretrained encoders are adapted to other classes. The paper's own were pretrained on the same classes.
_ADAPT: Recipe = {"epochs": 10, "lr": 0.01, "optimizer": "sgd", "warmup": 0.0, "label_smoothing": 0.0}
ADAPT_RECIPE: Recipe = {"backbone": _ADAPT, "glance": _ADAPT}


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
    """The settings of a run: a recipe, see the table at the top of this module, with the changes that the user named.

    network, data  changes to NetworkSettings and DataSettings
    changes        top-level settings such as seed or batch_size; None values are ignored
    assignments    name=value with dots, such as aim.epochs=8; they override everything else
    effort         scales the epochs
    """
    data, network, changes = (_without_none(table or {}) for table in (data, network, changes))
    named = {f"network.{name}" for name in network} | changes.keys()
    if source in WORLDS and preset is None and backbone is None:
        preset = next(iter(WORLD_RECIPES[source]))
    network |= network_for_zoom(source, preset, network, assignments or [])
    if preset is None:
        backbone = backbone or DEFAULT_BACKBONE
    # Sizes are checked below: those that the user did not name may be fitted to the data.
    sizes = {"glance_px", "focus", "patch_px", "view"} if _is_fitted(source, preset) else set()
    asked = network_settings(preset, backbone=backbone, **{name: network[name] for name in network.keys() - sizes})
    check_backbone(asked.backbone)  # before any data is read
    _choose_weights(changes, source, preset, asked.backbone)
    pretrained = changes.get("weights") is not None

    fitting = None
    if _is_fitted(source, preset):
        looked_at = survey(from_plain(DataSettings, {"source": source, **data}), asked.frames)
        fitting = Fitting(looked_at, pretrained or "start" in changes, on_gpu, effort, is_light(asked.backbone))
        if preset is None:
            network |= fitted_sizes(looked_at, network)
    if source in WORLDS:
        network["view"] = {"fit": "whole", **network.get("view", {})}
        network = merged(world_network(source, preset, asked), network)
    classes = len(classes_of(source, asked.frames) if fitting is None else fitting.survey.classes)
    chosen = network_settings(preset, backbone=backbone, classes=classes, **network)
    if source in WORLDS:
        draw_at_the_size_of_the_view(source, chosen, data)

    recipe = _recipe(
        source, preset, chosen, fitting, pretrained=pretrained, own_stages=stages is not None, effort=effort
    )
    plain = copy.deepcopy(merged(recipe, {**changes, "effort": effort, "network": to_plain(chosen)}))
    plain = merged(plain, {"data": {"source": source, **data}})
    if stages is not None:
        named.add("stages")
        plain["stages"] = stage_names(stages)
        if fitting is not None and "backbone" not in plain["stages"] and "teacher" not in changes:
            plain = merged(plain, WITHOUT_LESSONS)
    settings = _assigned(plain, assignments or [], named, fitted=fitting is not None)
    refuse_unused(settings, STAGES, assignments or [], changes)
    return settings


def _choose_weights(changes: dict[str, Any], source: str, preset: str | None, backbone: str) -> None:
    """Put the initial weights into the top-level settings: pretrained ones for your own data, if the user named none."""
    if changes.get("weights") == NO_WEIGHTS:
        changes["weights"] = None
    elif preset is None and source not in WORLDS and "weights" not in changes and "start" not in changes:
        changes["weights"] = "pretrained" if has_pretrained_weights(backbone) else None


def _assigned(plain: dict[str, Any], assignments: list[str], named: set[str], *, fitted: bool) -> TrainSettings:
    """The settings of a table, with these assignments, fitted to one another.

    named   settings that the user named otherwise, with dots
    fitted  the recipe is fitted to the user's images
    """
    for assignment in assignments:
        assign(plain, assignment)
    named = named | {assignment.partition("=")[0].strip() for assignment in assignments}
    if fitted:
        fit_to_large(plain, named)
    if "stages" not in named:
        fit_to_rules(plain)
    fit_to_shared_encoder(plain, named)
    return from_plain(TrainSettings, plain)


def _recipe(
    source: str,
    preset: str | None,
    network: NetworkSettings,
    fitting: Fitting | None,
    *,
    pretrained: bool,
    own_stages: bool,
    effort: Effort,
) -> Recipe:
    """The recipe for this network and this data, see the table at the top of this module."""
    family = family_of(network.backbone)[0]
    recipe = family_recipe(family)
    if preset is not None and preset not in SMALL_PRESETS and network.frames == 1:
        recipe = merged(merged(recipe, initialising_recipe(family)), CROP_CHANGES.get(family, {}))
    if network.frames > 1:
        recipe = merged(recipe, SOMETHING_RECIPE)
    recipe = merged(recipe, PRESET_CHANGES.get(preset or "", {}))
    if fitting is not None:
        return merged(recipe, fitted_recipe(fitting, min(network.view.height_px, network.view.width_px)))
    recipe = merged(recipe, world_recipe(source, preset, network, own_stages=own_stages))
    recipe = merged(recipe, wide_signs_recipe(source, network))
    # The epochs and rates for clips assume pretrained weights already.
    if preset is not None and pretrained and network.frames == 1:
        recipe = merged(recipe, ADAPT_RECIPE)
    return _with_effort(recipe, effort)


def _is_fitted(source: str, preset: str | None) -> bool:
    """Whether no recipe belongs to this network and this kind of data, so that one is fitted to the data."""
    if preset is None:
        return source not in WORLDS
    return preset in SMALL_PRESETS and preset not in WORLD_RECIPES.get(source, {})


def _with_effort(recipe: Recipe, effort: Effort) -> Recipe:
    """A recipe with fewer or more epochs."""
    if effort == "usual":
        return recipe
    epochs = {name: recipe.get(name, {}).get("epochs") or _default_epochs(name) for name in STAGES}
    return merged(recipe, {name: {"epochs": max(1, round(n * EFFORTS[effort]))} for name, n in epochs.items()})


def _default_epochs(stage: str) -> int:
    (kind,) = [f.default_factory for f in fields(TrainSettings) if f.name == stage]
    epochs: int = kind().epochs  # type: ignore[operator]
    return epochs


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in table.items() if value is not None}
