"""Training pictures that are decoded once, shrunk, and held in memory; every epoch crops and flips them anew.

Decoding a photograph of 20 megapixels takes ten times as long as learning from it. What a crop needs of it fits into 400 KB.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from glancefocus.data.images import read_picture
from glancefocus.data.splits import AugmentSettings, Batch, FileSplit, augmented, collate, mix
from glancefocus.data.views import view_picture
from glancefocus.errors import BadData
from glancefocus.settings import ViewSettings

Pixels = NDArray[np.uint8]


@dataclass
class HeldPictures(FileSplit):
    """A split of image files whose pictures are in memory, each at its own shape.

    pixels  (H, W, 3) of each picture, its shorter side at most held_side_px
    """

    pixels: list[Pixels] = field(default_factory=list)

    def batches(self, order: Sequence[Sequence[int]], seed: int | None = None, workers: int = 0) -> Iterator[Batch]:
        """As those of any split; no worker processes are needed."""
        for indexes in order:
            batch = collate([self._image(index, seed) for index in indexes])
            if isinstance(batch, str):
                raise BadData(batch)
            yield batch

    def _image(self, index: int, seed: int | None) -> Batch:
        picture = Image.fromarray(self.pixels[index])
        if seed is None:
            image, _ = view_picture(picture, self.view)
        else:
            image = augmented(picture, self.view, self.augment, mix(seed, index))
        return image, self.labels[index]


def held_side_px(view: ViewSettings, augment: AugmentSettings) -> int:
    """The shorter side at which pictures are held: the smallest crop still fills the view, up to twice its side."""
    side = max(view.height_px, view.width_px)
    return math.ceil(side / view.crop_pct * min(2.0, 1 / math.sqrt(augment.crop)))


def held_bytes(count: int, view: ViewSettings, augment: AugmentSettings) -> int:
    """About what holding so many pictures of the usual aspect of 4:3 takes."""
    side = held_side_px(view, augment)
    return count * side * (side * 4 // 3) * 3


def hold(split: FileSplit, progress: Callable[[int, int], None] | None = None) -> HeldPictures:
    """Read every picture of a split once; several are decoded at the same time."""
    side = held_side_px(split.view, split.augment)
    pixels: list[Pixels] = []
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        for done, one in enumerate(pool.map(lambda file: _shrunk(file, side), split.files), start=1):
            pixels.append(one)
            if progress is not None:
                progress(done, len(split))
    return HeldPictures(split.files, split.labels, split.view, split.augment, split.boxes, pixels=pixels)


def _shrunk(file: Path, side: int) -> Pixels:
    picture = read_picture(file, at_least_px=side)
    width, height = picture.size
    scale = side / min(width, height)
    if scale < 1:
        new = max(side, round(width * scale)), max(side, round(height * scale))
        picture = picture.resize(new, Image.Resampling.BILINEAR, reducing_gap=3.0)
    return np.asarray(picture)
