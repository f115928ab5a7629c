"""The built-in world `gestures`: splits of short clips made from a seed, kept on disk, opened without loading them."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from glancefocus.data.gesture_scenes import CLASSES, DRAWING_VERSION, GesturesSettings, draw_clip
from glancefocus.data.world_cache import Shapes, kept_scenes
from glancefocus.data.world_seeds import balanced_label, scene_stream
from glancefocus.errors import BadSetting, UnknownName

__all__ = ["CLASSES", "SPLITS", "Gestures", "GesturesSettings", "draw_clip", "make_gestures"]

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Gestures:
    """A finished split.

    clips   (N, F, 3, H, W) uint8; mapped from the cache where there is one, so only what is looked at takes memory
    labels  (N,) int64, an index into classes
    boxes   (N, 4) float32, the amber disc's (top, left, bottom, right) in px, the same in all frames, NaN for the
            class `none`; for measuring where the policy looks, never for training
    """

    clips: Tensor
    labels: Tensor
    boxes: Tensor
    classes: tuple[str, ...] = CLASSES

    def __len__(self) -> int:
        return self.clips.shape[0]


def make_gestures(
    split: str,
    count: int,
    settings: GesturesSettings,
    seed: int,
    *,
    cache: Path | Literal["default"] | None = "default",
    progress: Callable[[int, int], None] | None = None,
) -> Gestures:
    """The first `count` clips of a split, the classes in equal shares.

    Clip i depends on seed, split, i and settings alone, not on how many there are.

    split     train, val or test: three streams that share no clip
    cache     folder to keep the clips in; "default" is the one for made data, None keeps them in memory only
    progress  called with (clips drawn, count) after each clip; not called when the cache has them all
    """
    if split not in SPLITS:
        raise UnknownName("split of gestures", split, SPLITS, f"Choose one of {', '.join(SPLITS)}.")
    for name, number, least in (("count", count, 1), ("seed", seed, 0)):
        if not isinstance(number, int) or number < least:
            raise BadSetting(f"{name} of gestures is {number}. Choose a whole number of at least {least}.")
    shapes: Shapes = {
        "clips": ((count, settings.frames, 3, settings.height, settings.width), "|u1"),
        "labels": ((count,), "<i8"),
        "boxes": ((count, 4), "<f4"),
    }
    about = {
        "world": "gestures",
        "drawing_version": DRAWING_VERSION,
        "split": split,
        "count": count,
        "seed": seed,
        "settings": asdict(settings),
    }
    kept = kept_scenes(_drawn(split, count, settings, seed, progress), shapes, about, cache)
    return Gestures(kept["clips"], kept["labels"], kept["boxes"])


def _drawn(
    split: str, count: int, settings: GesturesSettings, seed: int, progress: Callable[[int, int], None] | None
) -> Iterator[tuple[NDArray[Any], ...]]:
    """Clip (F, 3, H, W), label and box (4,) of each in turn."""
    for index in range(count):
        label = balanced_label(len(CLASSES), split, seed, index)
        clip, box = draw_clip(settings, label, scene_stream(split, seed, index))
        yield (
            clip.transpose(0, 3, 1, 2),
            np.array(label),
            np.array(box if box is not None else [np.nan] * 4, dtype=np.float32),
        )
        if progress is not None:
            progress(index + 1, count)
