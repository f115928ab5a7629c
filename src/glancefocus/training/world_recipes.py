"""The recipes of the small presets in the built-in worlds, which they learn from random initialisation in minutes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from glancefocus.settings import NetworkSettings
from glancefocus.training.fitted import Recipe, merged

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
    # The glance encoder knows its training scenes, so the classifier would believe every glance that seems to show a sign.
    "finetune": {"epochs": 4, "freeze_glance": True, "mistaken_glances": 0.15},
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


def world_recipe(source: str, preset: str | None, network: NetworkSettings, *, own_stages: bool) -> Recipe:
    """The recipe of a preset in its built-in world; empty for any other network or data."""
    found = WORLD_RECIPES.get(source, {}).get(preset or "")
    if found is None:
        return {}
    recipe = found.usual
    if found.large is not None and _is_large(network) and not own_stages:
        recipe = merged(recipe, found.large(_shorter_px(network)))
    return recipe if network.policy.place else merged(recipe, WITHOUT_PLACE_MEMORY)


def world_network(source: str, preset: str | None, network: NetworkSettings) -> Recipe:
    """Changes to the network of a preset in its built-in world, which its recipe there needs; large scenes have none."""
    found = WORLD_RECIPES.get(source, {}).get(preset or "")
    if found is None or _is_large(network) or network.zoom or network.policy.kind != "learnt":
        return {}
    return found.network


def draw_at_the_size_of_the_view(source: str, network: NetworkSettings, data: dict[str, Any]) -> None:
    """Scenes of a built-in world are drawn at the size that the network looks at, so none is resized."""
    data.setdefault("workers", 0)
    drawn = {"height": network.view.height_px, "width": network.view.width_px, **data.get(source, {})}
    data[source] = drawn if source == "signs" else {"frames": max(3, network.frames), **drawn}


def _is_large(network: NetworkSettings) -> bool:
    return _shorter_px(network) >= LARGE_SIDE_PX


def _shorter_px(network: NetworkSettings) -> int:
    return min(network.view.height_px, network.view.width_px)
