"""Changes of a recipe for images of which only regions are seen: large files with --fit whole, and large scenes of signs.

No stage can see these images whole, so there is no backbone to compare with or to learn from. In large scenes of signs the places
of the signs are known, so the policy can learn by supervision; in the user's own images it learns by reinforcement.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from glancefocus.data.images import LARGE_PIXELS
from glancefocus.data.large import is_large
from glancefocus.data.lists import medium_of
from glancefocus.data.scene_splits import reads_regions
from glancefocus.data.sources import Data, DataSettings, split_rows
from glancefocus.data.worlds import WORLDS
from glancefocus.errors import BadSetting
from glancefocus.network.presets import PRESETS
from glancefocus.settings import NetworkSettings
from glancefocus.training.fitted import WITHOUT_LESSONS, Recipe
from glancefocus.training.settings import TrainSettings
from glancefocus.values import from_plain

ZOOM_PX = 64
_STEP = 4  # each look of a zooming network sees a quarter of the side of the last one's region


def asks_for_zoom(assignments: Sequence[str]) -> bool | None:
    """What --set network.zoom=... says; None: nothing."""
    values = [
        value for name, _, value in (each.partition("=") for each in assignments) if name.strip() == "network.zoom"
    ]
    try:
        return bool(json.loads(values[-1].lower())) if values else None
    except ValueError:  # refused where it is assigned
        return None


def zoom_sizes(preset: str, network: Mapping[str, Any]) -> Recipe:
    """The sizes of a zooming network for scenes of signs that the user did not name; `network` holds those that were named.

    The signs can be read in pixels as they are; steps of a quarter lead there.
    """
    sizes: Recipe = {}
    px = network.get("glance_px", ZOOM_PX)
    sizes["glance_px"] = px
    usual, view = PRESETS[preset].settings, network.get("view", {})
    shorter = min(view.get("height_px", usual.view.height_px), view.get("width_px", usual.view.width_px))
    if "focus" not in network:
        steps, share = [], 1 / _STEP
        while share * shorter > 2 * px:
            steps.append(f"{share:.6f}@{px}")
            share /= _STEP
        sizes["focus"] = (*steps, str(px))
    if "looks" not in network:
        sizes["looks"] = 1 + len(sizes.get("focus", network.get("focus", ())))
    if preset == "gf-mini-48":
        # Small inputs need maps of more cells: places are found in them.
        sizes["backbone_options"] = {**usual.backbone_options, "output_stride": 8}
        sizes["policy"] = {"units": usual.policy.units, "conv_kernel": 3}
    return {name: value for name, value in sizes.items() if name not in network}


def network_for_zoom(source: str, preset: str | None, network: Mapping[str, Any], assignments: Sequence[str]) -> Recipe:
    """What --set network.zoom=... means for the rest of the network."""
    zoom = asks_for_zoom(assignments)
    if zoom is None:
        return {}
    sizes = zoom_sizes(preset, network) if zoom and source == "signs" and preset is not None else {}
    return {"zoom": zoom, **sizes}


def wide_signs_recipe(source: str, network: NetworkSettings) -> Recipe:
    """Scenes of signs that are drawn region by region: the focus encoder first learns to read signs in small scenes.

    Training has new scenes in every epoch. The places of the signs are known.
    """
    view = network.view
    if source != "signs" or view.height_px * view.width_px <= LARGE_PIXELS:
        return {}
    rates = {"optimizer": "adamw", "weight_decay": 0.01, "warmup": 0.05}
    known = {"aims": "known", "deviation": 0.1, "random_share": 0.05, "point_weight": 0.5}
    return {
        "stages": ["small", "glance", "recognise", "point"],
        "rounds": 1,
        "batch_size": 24,
        "small": {"epochs": 8, "side_px": 96, "scenes": [4000, 300], "lr": 1e-3, **rates},
        "glance": {"epochs": 2, "lr": 1e-3, "fresh": False, "evidence_weight": 3.0, **rates},
        "recognise": {
            "epochs": 6,
            "encoder_lr": 1e-3,
            "classifier_lr": 1e-3,
            "freeze_encoders": False,
            "freeze_glance": False,
            **rates,
            **known,
        },
        "point": {"epochs": 2, "lr": 3e-4, "lr_end": 3e-5},
        "finetune": {"epochs": 2, "encoder_lr": 3e-4, "classifier_lr": 3e-4, "deviation": 0.02, **rates},
        "rivals": "none",
        "data": {"scenes": [4000, 300, 1000], "augment": {"shift_px": 0}},
    }


def fit_to_large(plain: dict[str, Any], named: Collection[str]) -> None:
    """Change the plain settings of a recipe that is fitted to the user's images, so that no stage needs whole images.

    Nothing is changed unless only regions are read of some of the images.

    named  the settings that the user named: they stay
    """
    network, data = plain["network"], plain["data"]
    if network["view"]["fit"] != "whole" or network["frames"] > 1 or data["source"] in WORLDS:
        return
    rows, _ = split_rows(from_plain(DataSettings, data), medium_of(1))
    if not any(is_large(Path(file)) for _, file, _ in rows):
        return
    if "stages" not in named:
        plain["stages"] = ["glance", "recognise", "aim"]
    changes: Recipe = {**WITHOUT_LESSONS, "network": {"whole_encoder": False}, "backbone": {"half_size": 0.0}}
    for section, values in changes.items():
        for name, value in values.items():
            if f"{section}.{name}" not in named:
                plain.setdefault(section, {})[name] = value
    for name, value in (("calibrate", False), ("rivals", "none")):
        if name not in named:
            plain[name] = value


def check_regions(settings: TrainSettings, data: Data) -> None:
    """Refuse stages that need whole images, where only regions of them are seen."""
    if not any(reads_regions(split) for split in (data.train, data.val)):
        return
    instead = "Train without a backbone, such as --stages glance,1,2; or resize the images with --fit stretch."
    if settings.data.source == "signs":
        instead = "Leave it out: the stage small trains the focus encoder on small scenes."
    for name in settings.stages:
        if name == "backbone":
            raise BadSetting(
                "the stage backbone trains on whole images at full resolution, but some of these images have more than "
                f"{LARGE_PIXELS / 1e6:.1f} megapixels, and only regions of them are read. {instead}"
            )
    if settings.teacher is not None or any(settings.is_taught(name) for name in settings.stages):
        raise BadSetting(
            "a teacher answers whole images at full resolution, but some of these images have more than "
            f"{LARGE_PIXELS / 1e6:.1f} megapixels, and only regions of them are read. Train without --teacher and distillation."
        )
    if "joint" in settings.stages and settings.joint.whole_image_weight > 0:
        raise BadSetting("joint.whole_image_weight needs whole images. Set joint.whole_image_weight=0.")


def as_seen(settings: TrainSettings, data: Data) -> TrainSettings:
    """The settings with images as large as what is seen of them at once, to estimate the memory of training."""
    if not reads_regions(data.train):
        return settings
    network = settings.network
    px = max(view.px for view in (network.glance_view, *network.candidates))
    px = max(px, settings.small.side_px if "small" in settings.stages else 0)
    native = max((view.extent for view in network.candidates if isinstance(view.extent, int)), default=0)
    side = max(px, native)
    view = replace(network.view, height_px=side, width_px=side)
    return replace(settings, network=replace(network, view=view))
