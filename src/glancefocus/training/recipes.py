"""From options to settings: the recipe that belongs to the preset and the kind of data, then what the user named.

    data            network                           recipe
    built-in world  the preset that was made for it   WORLD_RECIPES
    built-in world  any backbone, or a paper preset   the paper's, for the family of the backbone
    your own data   a paper preset                    the paper's, for the family of the backbone
    your own data   any backbone, or a small preset   fitted to the number and the size of the images, see fitted.py

A recipe is a table of changes to the defaults of TrainSettings. The paper's numbers are for ImageNet and pretrained networks; with
others a small network learns a built-in world from random initialisation in minutes.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, fields
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
    survey,
)
from glancefocus.training.large_recipes import fit_to_large, network_for_zoom, wide_signs_recipe
from glancefocus.training.setting_checks import fit_to_rules, fit_to_shared_encoder, refuse_unused
from glancefocus.training.settings import STAGES, AimSettings, TrainSettings
from glancefocus.values import from_plain, to_plain

NO_WEIGHTS = "none"
"""The option value that asks for random initialisation."""


def family_recipe(family: str) -> Recipe:
    """The paper's settings for a family of backbones (A.2, A.3)."""
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


FRESH_GLANCE: Recipe = {"lr": 4e-3, "optimizer": "adamw", "weight_decay": 0.05, "warmup": 0.2, "fresh": True}

SIGNS_RECIPE: Recipe = {
    "rounds": 2,
    "batch_size": 32,
    "backbone": {"epochs": 6, "lr": 0.1, "weight_decay": 5e-4, "warmup": 0.15},
    "small": {"epochs": 5, "lr": 0.1, "weight_decay": 5e-4, "warmup": 0.15, "side_px": 160, "scenes": [4000, 300]},
    "small_glance": {**FRESH_GLANCE, "epochs": 6, "side_px": 160, "scenes": [4000, 300]},
    "glance": {**FRESH_GLANCE, "epochs": 5},
    "recognise": {"epochs": 3, "classifier_lr": 0.1, "freeze_encoders": True},
    "aim": {"epochs": 5},
    "finetune": {"epochs": 3, "encoder_lr": 0.01, "classifier_lr": 0.02, "deviation": 0.0},
}

# With one candidate view, aims must be exact. Supervision by the backbone's evidence (stage point) gets there in fewer epochs than
# reinforcement, and with place memory the policy also learns to look elsewhere after a patch that missed; for that, half of the
# glances are mixed with others, so that there are enough misses to learn from. Finetune leaves the glance encoder unchanged (the
# policy sees its feature maps), and the policy is trained once more at the end, because the focus encoder has changed.
ONE_SIZE_CHANGES: Recipe = {
    "stages": ["backbone", "glance", "recognise", "point", "finetune", "point"],
    "rounds": 1,
    "backbone": {"epochs": 4},
    "glance": {"epochs": 6},
    "recognise": {"epochs": 2},
    "point": {"epochs": 6, "mixed_glances": 0.5, "return_weight": 1.0},
    "aim": {"epochs": 5, "deviation_end": 0.05, "lr_end": 5e-5},
    "finetune": {"epochs": 4, "freeze_glance": True},
    "data": {"scenes": [5000, 500, 1000]},
}
PLACE_MEMORY: Recipe = {"policy": {"place": True}}
WITHOUT_PLACE_MEMORY: Recipe = {"point": {"mixed_glances": 0.0, "return_weight": 0.0}}

LARGE_SIDE_PX = 320
"""Scenes with a shorter side of at least this have a recipe of their own, unless the user names the stages."""


def large_signs_changes(side_px: int) -> Recipe:
    """For scenes in which a sign covers a thousandth of the pixels.

    There, labels alone teach a glance little, and reinforcement rarely finds a sign by chance. So the backbone, which first learns
    to read signs in small scenes, shows the glance encoder and the policy where they are; the policy is trained last.

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


# A glance is too small to show the mark of a gesture: its encoder learns whether a disc is amber, and so where to look. A network
# with random weights does not learn motion from whole clips; it does from small ones, and then continues with whole ones.
GESTURES_RECIPE: Recipe = {
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


@dataclass(frozen=True)
class WorldRecipe:
    """The recipe of one preset in one built-in world.

    usual    changes to the paper's settings for the family
    large    side of large scenes in px -> further changes for them; None: the same recipe for every size
    network  changes to the network of the preset, which the usual recipe needs; large scenes do not get them
    """

    usual: Recipe
    large: Callable[[int], Recipe] | None = None
    network: Recipe = field(default_factory=dict)


def merged(recipe: Recipe, changes: Recipe) -> Recipe:
    """A recipe with changes; the table of a stage keeps the values that are not changed."""
    result = dict(recipe)
    for name, value in changes.items():
        both = isinstance(value, dict) and isinstance(result.get(name), dict)
        result[name] = merged(result[name], value) if both else value
    return result


WORLD_RECIPES: dict[str, dict[str, WorldRecipe]] = {
    "signs": {
        "gf-mini-48": WorldRecipe(merged(SIGNS_RECIPE, ONE_SIZE_CHANGES), large_signs_changes, PLACE_MEMORY),
        "gf-ms-mini-48": WorldRecipe(SIGNS_RECIPE),
    },
    "gestures": {"gf-tsm-mini-40": WorldRecipe(GESTURES_RECIPE)},
}
"""{world: {preset: recipe}}; the first preset of a world is the one that is trained there if the user names no network."""

SMALL_PRESETS = {preset for recipes in WORLD_RECIPES.values() for preset in recipes}
"""Presets that are not the paper's. Outside their world their settings are fitted to the data."""


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
    asked = network_settings(preset, backbone=backbone, **network)
    check_backbone(asked.backbone)  # before any data is read
    _choose_weights(changes, source, preset, asked.backbone)
    pretrained = changes.get("weights") is not None

    fitting = None
    if _is_fitted(source, preset):
        looked_at = survey(from_plain(DataSettings, {"source": source, **data}), asked.frames)
        fitting = Fitting(looked_at, pretrained or "start" in changes, on_gpu, effort)
        if preset is None:
            network |= fitted_sizes(looked_at, network)
    if source in WORLDS:
        network["view"] = {"fit": "whole", **network.get("view", {})}
        network = merged(_world_network(source, preset, asked), network)
    classes = len(classes_of(source, asked.frames) if fitting is None else fitting.survey.classes)
    chosen = network_settings(preset, backbone=backbone, classes=classes, **network)
    if source in WORLDS:
        _draw_at_the_size_of_the_view(source, chosen, data)

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
        recipe = merged(recipe, initialising_recipe(family))
    if network.frames > 1:
        recipe = merged(recipe, SOMETHING_RECIPE)
    recipe = merged(recipe, PRESET_CHANGES.get(preset or "", {}))
    if fitting is not None:
        return merged(recipe, fitted_recipe(fitting, min(network.view.height_px, network.view.width_px)))
    recipe = merged(recipe, _world_recipe(source, preset, network, own_stages=own_stages))
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


def _world_recipe(source: str, preset: str | None, network: NetworkSettings, *, own_stages: bool) -> Recipe:
    """The recipe of a preset in its built-in world; empty for any other network or data."""
    found = WORLD_RECIPES.get(source, {}).get(preset or "")
    if found is None:
        return {}
    recipe = found.usual
    if found.large is not None and _is_large(network) and not own_stages:
        recipe = merged(recipe, found.large(_shorter_px(network)))
    return recipe if network.policy.place else merged(recipe, WITHOUT_PLACE_MEMORY)


def _world_network(source: str, preset: str | None, network: NetworkSettings) -> Recipe:
    """Changes to the network of a preset in its built-in world, which its recipe there needs; large scenes have none."""
    found = WORLD_RECIPES.get(source, {}).get(preset or "")
    if found is None or _is_large(network) or network.zoom or network.policy.kind != "learnt":
        return {}
    return found.network


def _is_large(network: NetworkSettings) -> bool:
    return _shorter_px(network) >= LARGE_SIDE_PX


def _shorter_px(network: NetworkSettings) -> int:
    return min(network.view.height_px, network.view.width_px)


def _draw_at_the_size_of_the_view(source: str, network: NetworkSettings, data: dict[str, Any]) -> None:
    """Scenes of a built-in world are drawn at the size that the network looks at, so none is resized."""
    data.setdefault("workers", 0)
    drawn = {"height": network.view.height_px, "width": network.view.width_px, **data.get(source, {})}
    data[source] = drawn if source == "signs" else {"frames": max(3, network.frames), **drawn}


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
