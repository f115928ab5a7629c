"""The built-in world `signs`: splits of road scenes made from a seed, kept on disk, opened without loading them."""

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from glancefocus.data.worlds.cache import Shapes, balanced_label, kept_scenes, scene_stream
from glancefocus.data.worlds.sign_scenes import CLASSES, DRAWING_VERSION, Box, SignsSettings, draw_scene
from glancefocus.errors import BadSetting, UnknownName
from glancefocus.interrupts import children_without_signals

__all__ = ["CLASSES", "SPLITS", "Signs", "SignsSettings", "draw_scene", "make_signs"]

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Signs:
    """A finished split.

    images  (N, 3, H, W) uint8; mapped from the cache where there is one, so only what is looked at takes memory
    labels  (N,) int64, an index into classes
    boxes   (N, 4) float32, the speed limit's (top, left, bottom, right) in px, NaN for the class `none`;
            for measuring where the policy looks, never for training
    """

    images: Tensor
    labels: Tensor
    boxes: Tensor
    classes: tuple[str, ...] = CLASSES

    def __len__(self) -> int:
        return self.images.shape[0]


def make_signs(
    split: str,
    count: int,
    settings: SignsSettings,
    seed: int,
    *,
    cache: Path | Literal["default"] | None = "default",
    progress: Callable[[int, int], None] | None = None,
    workers: int = 1,
) -> Signs:
    """The first `count` scenes of a split, the classes in equal shares.

    Scene i depends on seed, split, i and settings alone: neither their number nor that of the processes changes it.

    split     train, val or test: three streams that share no scene
    cache     folder to keep the scenes in; "default" is that of the program (files.cache_folder), None keeps them in memory only
    progress  called with (scenes drawn, count) after each scene; not called when the cache has them all
    workers   processes that draw; more than one needs a main module that can be imported
    """
    if split not in SPLITS:
        raise UnknownName("split of signs", split, SPLITS, f"Choose one of {', '.join(SPLITS)}.")
    for name, number, least in (("count", count, 1), ("seed", seed, 0), ("workers", workers, 1)):
        if not isinstance(number, int) or number < least:
            raise BadSetting(f"{name} of signs is {number}. Choose a whole number of at least {least}.")
    scenes = _drawn(split, count, settings, seed, workers, progress)
    shapes: Shapes = {
        "images": ((count, 3, settings.height, settings.width), "|u1"),
        "labels": ((count,), "<i8"),
        "boxes": ((count, 4), "<f4"),
    }
    about = {
        "world": "signs",
        "drawing_version": DRAWING_VERSION,
        "split": split,
        "count": count,
        "seed": seed,
        "settings": asdict(settings),
    }
    kept = kept_scenes(scenes, shapes, about, cache)
    return Signs(kept["images"], kept["labels"], kept["boxes"])


def _draw_one(split: str, settings: SignsSettings, seed: int, index: int) -> tuple[NDArray[np.uint8], Box | None]:
    label = balanced_label(len(CLASSES), split, seed, index)
    return draw_scene(settings, label, scene_stream(split, seed, index))


Scenes = Iterator[tuple[NDArray[Any], ...]]


def _drawn(
    split: str,
    count: int,
    settings: SignsSettings,
    seed: int,
    workers: int,
    progress: Callable[[int, int], None] | None,
) -> Scenes:
    """Image (3, H, W), label and box (4,) of each scene in turn. Nothing is drawn before the first is asked for."""
    draw = partial(_draw_one, split, settings, seed)

    def in_order() -> Iterator[tuple[NDArray[np.uint8], Box | None]]:
        if workers == 1:
            yield from map(draw, range(count))
            return
        # spawn: a fork would copy the locks of torch's threads
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            stride = 32 * workers  # so that no more than this many scenes wait in memory to be written
            for start in range(0, count, stride):
                with children_without_signals():
                    drawn = pool.map(draw, range(start, min(start + stride, count)), chunksize=4)
                yield from drawn

    for index, (picture, box) in enumerate(in_order()):
        corners = np.array(box if box is not None else [np.nan] * 4, dtype=np.float32)
        yield picture.transpose(2, 0, 1), np.array(balanced_label(len(CLASSES), split, seed, index)), corners
        if progress is not None:
            progress(index + 1, count)
