"""A recipe fitted to your own data: sizes, batch, learning rates, augmentation and epochs.

The paper's numbers are for 1.3 million images and many GPUs; they stay with the paper's presets. The numbers here were chosen on
validation images of small sets of photographs, see docs/train.md.
"""

import math
import random
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from PIL import Image

from glancefocus.data.folders import open_picture
from glancefocus.data.lists import medium_of
from glancefocus.data.sources import DataSettings, split_rows
from glancefocus.data.worlds import WORLDS, world_classes

_SAMPLED_FILES = 64


@dataclass(frozen=True)
class Survey:
    """The size of a data set.

    images    {split: {class: number of images or clips}}
    sides_px  the shorter sides of a sample of images; empty for clips and built-in worlds
    noun      images, clips or scenes
    """

    classes: tuple[str, ...]
    images: Mapping[str, Mapping[str, int]]
    sides_px: tuple[int, ...] = ()
    noun: str = "images"

    def count(self, split: str) -> int:
        return sum(self.images.get(split, {}).values())


def survey(settings: DataSettings, frames: int = 1) -> Survey:
    """Count the files, and read the headers of a few; no image is decoded."""
    if settings.source in WORLDS:
        names = ("train", "val", "test")
        counts = {name: {"": number} for name, number in zip(names, settings.scenes, strict=False)}
        return Survey(world_classes(settings.source), counts, noun="scenes")
    medium = medium_of(frames)
    rows, classes = split_rows(settings, medium)
    tallies: dict[str, Counter[str]] = {}
    for split, _, label in rows:
        tallies.setdefault(split, Counter())[classes[label]] += 1
    files = [file for _, file, _ in rows]
    sides = _sides(files) if medium.noun == "images" else ()
    return Survey(classes, tallies, sides, medium.noun)


def _sides(files: list[Path]) -> tuple[int, ...]:
    """The shorter sides of a sample of images; unreadable files are skipped here and reported by the check of the files."""
    sample = random.Random(0).sample(files, min(len(files), _SAMPLED_FILES))
    sides = []
    for file in sample:
        try:
            with open_picture(file) as stream, Image.open(stream) as picture:
                sides.append(min(picture.size))
        except Exception:  # damaged, malicious or not an image: the plug-ins of PIL raise almost anything
            continue
    return tuple(sides)


Recipe: TypeAlias = dict[str, Any]
"""Changes to the defaults of TrainSettings: {setting: value}, with an inner table for each stage."""


def merged(recipe: Recipe, changes: Recipe) -> Recipe:
    """A recipe with changes; the table of a stage keeps the values that are not changed."""
    result = dict(recipe)
    for name, value in changes.items():
        both = isinstance(value, dict) and isinstance(result.get(name), dict)
        result[name] = merged(result[name], value) if both else value
    return result


Effort = Literal["quick", "usual", "thorough"]

# Small, accurate (75 % on ImageNet), and made of plain convolutions, which every runtime and phone computes fast.
DEFAULT_BACKBONE = "tf_efficientnet_lite0"
USUAL_SIDE_PX = 224
LEAST_UPDATES = 24  # per epoch, if there are enough images
SMALLEST_BATCH, LARGEST_BATCH, LARGEST_BATCH_GPU = 4, 32, 128
# {stage: (images to process in the whole stage, fewest epochs, most epochs)}
VISITS: dict[str, tuple[int, int, int]] = {
    "backbone": (5000, 3, 15),
    "glance": (8000, 3, 25),
    "recognise": (4000, 2, 12),
    "aim": (4000, 2, 12),
    "finetune": (4000, 2, 10),
    "joint": (10000, 4, 30),
    "point": (3000, 2, 8),
}
# The same for photographs, where the small inputs learn from the backbone: it must be good, and they go on learning for longer.
PHOTO_VISITS = VISITS | {
    "backbone": (15000, 3, 15),
    "glance": (25000, 4, 25),
    "recognise": (25000, 4, 25),
    "point": (9000, 2, 10),
}
# Visits of the stage backbone per class, at least: its last layer starts with zeros, and each class has to be learnt.
VISITS_PER_CLASS = 250
# Images whose shorter side is at least this many times the usual one are shown to the backbone at half of their size first.
LARGE, HALF_SIZE = 1.5, 0.6
EFFORTS: dict[Effort, float] = {"quick": 1 / 3, "usual": 1.0, "thorough": 3.0}
EXTENT = 0.8  # of the square that a focus look covers, as a share of the shorter side
ZOOMED_SHARES = (4 / 7, 5 / 7)  # sides of such squares in px, as shares of the image's side: 128 and 160 px of 224
WHOLE_SHARE = 6 / 7  # side of the whole image as a last look that learns from the backbone: 192 px of 224
LEAST_FOR_TWO = 400  # held-out images: thresholds for another view, chosen on fewer, do not hold on new images
# The paper's policy for ResNets and DenseNets flattens the whole map: 46 million weights for ResNet-50, which is too many to learn
# places from a few thousand photographs, and takes most of the time and memory of the stage.
SMALL_POLICY = {"head": "conv", "units": 256}
REPEATS = (4, 10)  # fewest and most augmentations of each image in stages that learn from the backbone
# Of AdamW, for pretrained encoders and batches of LARGEST_BATCH images: for EfficientNets and MobileNets, and for all others.
LIGHT_RATE, USUAL_RATE = 5e-4, 7e-5
FROM_RANDOM = 4.0  # factor on the epochs where the encoders start from random weights


@dataclass(frozen=True)
class Fitting:
    """The inputs that a recipe is fitted to.

    pretrained  the encoders start from pretrained weights
    light       the backbone is a MobileNet or an EfficientNet
    """

    survey: Survey
    pretrained: bool
    on_gpu: bool = False
    effort: Effort = "usual"
    light: bool = True


def fitted_sizes(survey: Survey, network: dict[str, Any]) -> Recipe:
    """The settings of the network that depend on the data and that the user did not name; `network` holds those that were named."""
    sizes: Recipe = {}
    view = dict(network.get("view", {}))
    if "height_px" not in view and "width_px" not in view:
        side = _view_side(survey.sides_px)
        if side != USUAL_SIDE_PX:
            view |= {"height_px": side, "width_px": side}
            sizes["view"] = view
    shorter = min(view.get("height_px", USUAL_SIDE_PX), view.get("width_px", USUAL_SIDE_PX))
    if "glance_px" not in network:
        sizes["glance_px"] = fitted_side(shorter)
    if "looks" not in network:
        sizes["looks"] = 3
    if survey.noun != "images":
        return sizes if {"focus", "patch_px"} & network.keys() else {**sizes, "focus": (str(fitted_side(shorter)),)}
    if "policy" not in network:
        sizes["policy"] = dict(SMALL_POLICY)
    # Photographs: a square around the object at one or two resolutions, and the whole image for what is still undecided.
    if not {"focus", "patch_px"} & network.keys():
        many = survey.count("val") >= LEAST_FOR_TWO
        zoomed = {fitted_side(shorter, share) for share in (ZOOMED_SHARES if many else ZOOMED_SHARES[:1])}
        whole_px = max(fitted_side(shorter, WHOLE_SHARE), *zoomed) if many else shorter
        sizes["focus"] = (*(f"{EXTENT:g}@{px}" for px in sorted(zoomed)), f"whole@{whole_px}")
    if "classifier" not in network:
        sizes["classifier"] = "summed"
        focus = sizes.get("focus", network.get("focus", ()))
        whole = [name for name in focus if str(name).startswith("whole@")]
        one_for_all = network.get("shared_encoder", False) and not network.get("own_norms", False)
        # Without views of parts the focus encoder is the one for whole images.
        sizes["whole_encoder"] = 0 < len(whole) < len(focus) and not one_for_all
    return sizes


def fitted_recipe(fitting: Fitting, image_px: int = USUAL_SIDE_PX) -> Recipe:
    """Changes to TrainSettings: batch, epochs, rates and augmentation for a data set of this size.

    image_px  the shorter side of the images that are looked at
    """
    images = fitting.survey.count("train")
    batch = fitted_batch(images, fitting.on_gpu)
    scale = batch / LARGEST_BATCH  # learning rates of SGD are proportional to the batch size
    rate = 0.005 if fitting.pretrained else 0.05
    photos = fitting.survey.noun == "images"  # not clips, nor scenes of a built-in world
    recipe: Recipe = {
        name: {
            "epochs": fitted_epochs(
                name, images, fitting.effort, fitting.pretrained, photos=photos, classes=len(fitting.survey.classes)
            )
        }
        for name in VISITS
    }
    if photos and image_px >= LARGE * USUAL_SIDE_PX:
        recipe["backbone"]["half_size"] = HALF_SIZE
    recipe |= {"batch_size": batch, "keep_statistics": fitting.pretrained}
    recipe["backbone"] |= {"lr": rate * scale, "warmup": 0.1, "label_smoothing": 0.1}
    recipe["glance"] |= {"lr": rate * scale, "warmup": 0.1, "label_smoothing": 0.1}
    recipe["recognise"] |= {"encoder_lr": 0.5 * rate * scale, "classifier_lr": 4 * rate * scale}
    recipe["finetune"] |= {"encoder_lr": 0.25 * rate * scale, "classifier_lr": 2 * rate * scale}
    recipe["aim"] |= {"deviation_end": 0.05, "lr_end": 1e-4}
    recipe["joint"] |= {"encoder_lr": 0.5 * rate * scale, "classifier_lr": 4 * rate * scale}
    if photos:
        recipe = _with_lessons(recipe, fitting)
    return recipe


WITHOUT_LESSONS: Recipe = {
    "glance": {"distill": 0.0},
    "recognise": {"distill": 0.0, "aims": "random"},
    "finetune": {"distill": 0.0},
}
"""For runs whose stages do not begin with the backbone, so that there is nothing to learn from."""


def _with_lessons(recipe: Recipe, fitting: Fitting) -> Recipe:
    """The recipe for photographs: all small inputs learn from the backbone, the policy from its evidence; no reinforcement."""
    # AdamW copies a teacher better than SGD within the same epochs. Its rate grows with the root of the batch size.
    usual = USUAL_RATE if fitting.pretrained and not fitting.light else LIGHT_RATE
    exact = usual * math.sqrt(recipe["batch_size"] / LARGEST_BATCH) * (1 if fitting.pretrained else 4)
    rate = float(f"{exact:.1g}")
    lesson = {"distill": 0.7, "optimizer": "adamw", "weight_decay": 0.02}
    epochs: int = recipe["recognise"]["epochs"]
    taught = {"encoder_lr": rate, "classifier_lr": 4 * rate, "own_head_weight": 2.0, "freeze_glance": True, **lesson}
    taught |= {"warmup": 0.1, "deviation": 0.08, "random_share": 0.25}
    return {
        **recipe,
        "stages": ["backbone", "glance", "recognise", "point"],
        "calibrate": True,
        "glance": {**recipe["glance"], "lr": rate, "label_smoothing": 0.0, **lesson},
        "recognise": {**recipe["recognise"], "aims": "evidence", **taught},
        "finetune": {**recipe["finetune"], **taught, "encoder_lr": 0.5 * rate, "classifier_lr": 2 * rate},
        "data": {"augment": {"crop": 0.35, "repeat": max(REPEATS[0], min(REPEATS[1], epochs))}},
    }


def fitted_batch(images: int, on_gpu: bool = False) -> int:
    """The largest power of two that still gives LEAST_UPDATES per epoch, within limits."""
    most = LARGEST_BATCH_GPU if on_gpu else LARGEST_BATCH
    batch = SMALLEST_BATCH
    while batch * 2 <= most and images // (batch * 2) >= LEAST_UPDATES:
        batch *= 2
    return batch


def fitted_epochs(
    stage: str,
    images: int,
    effort: Effort = "usual",
    pretrained: bool = True,
    *,
    photos: bool = True,
    classes: int = 0,
) -> int:
    """The epochs of a stage for this number of training images: the fewer images, and the more classes, the more epochs."""
    visits, least, most = (PHOTO_VISITS if photos else VISITS)[stage]
    if photos and stage == "backbone":
        visits = max(visits, VISITS_PER_CLASS * classes)
    times = EFFORTS[effort] * (1.0 if pretrained else FROM_RANDOM)
    return max(1, round(times * max(least, min(most, visits / max(1, images)))))


def _view_side(sides_px: tuple[int, ...]) -> int:
    """The side that images are resized to: 224 px, or less where most images are smaller than half of that."""
    if not sides_px:
        return USUAL_SIDE_PX
    return max(64, min(USUAL_SIDE_PX, 32 * round(2 * statistics.median(sides_px) / 32)))


def fitted_side(side_px: int, share: float = 3 / 7) -> int:
    """A part of the side as a multiple of 32 px: for glances and patches 96 px of 224."""
    return max(32, 32 * round(side_px * share / 32))
