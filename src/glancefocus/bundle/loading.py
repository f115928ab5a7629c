"""Loads whatever can answer: a bundle out of its folder or from the hub, or a checkpoint of the paper."""

from pathlib import Path
from typing import cast

import torch

from glancefocus.bundle.bundle import Bundle
from glancefocus.bundle.hub import local_folder
from glancefocus.data.labelled import imagenet_classes
from glancefocus.errors import BadSetting
from glancefocus.exits.curve import Point, best_thresholds
from glancefocus.network.checkpoints import load_official
from glancefocus.network.macs import count_costs
from glancefocus.runtime.choose import check_name, set_threads


def load(
    path: str | Path,
    *,
    model: str | None = None,
    patch_px: int | None = None,
    looks: int | None = None,
    device: str | torch.device | None = None,
    runtime: str | None = None,
    threads: int | None = None,
    batch: int | None = None,
    light_weights: bool = False,
) -> Bundle:
    """A bundle out of its folder or from the hub (hf://user/name, hf://user/name@revision), or out of a checkpoint of the paper.

    model, patch_px, looks         what a checkpoint of the paper does not say itself
    device                         None: the GPU where there is one, else the CPU
    runtime, batch, light_weights  who looks, see Bundle.use; None: the network itself
    threads                        of the CPU, for this whole process; None: as they are
    """
    if runtime is not None:
        check_name(runtime)
    elif light_weights:
        raise BadSetting(
            "light weights are for ONNX Runtime. Name it, too (runtime='onnx', or --runtime onnx), or leave them out."
        )
    path = local_folder(path)
    if path.is_dir() or (not path.exists() and not path.suffix):
        if any(value is not None for value in (model, patch_px, looks)):
            raise BadSetting(f"{path} is a bundle, which says itself what it is. Leave model, patch_px and looks out.")
        bundle = Bundle.load(path)
    else:
        bundle = _from_official(path, model, patch_px, looks)
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    bundle.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    bundle.to(device)
    if threads is not None:
        set_threads(threads)
    return bundle if runtime is None else bundle.use(runtime, batch=batch, light_weights=light_weights)


def _from_official(path: Path, model: str | None, patch_px: int | None, looks: int | None) -> Bundle:
    official = load_official(path, model=model, patch_px=patch_px, looks=looks)
    curve = cast(list[Point], official.curve)
    bundle = Bundle(
        net=official.net,
        classes=imagenet_classes(official.net.settings.classes),
        costs=count_costs(official.net.settings),
        curve=curve,
        notes={"source": "a checkpoint of the paper"},
    )
    bundle.thresholds = best_thresholds(curve)
    return bundle
