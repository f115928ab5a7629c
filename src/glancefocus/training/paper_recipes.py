"""The paper's own numbers as recipes: for each family of backbones, for clips, and for the presets of single data sets.

A recipe is a table of changes to the defaults of TrainSettings, see recipes.py.
"""

from glancefocus.training.fitted import Recipe
from glancefocus.training.settings import AimSettings


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
