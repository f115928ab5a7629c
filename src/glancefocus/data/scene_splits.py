"""Splits whose batches are scenes instead of tensors: of large images only the regions that are looked at are read, or drawn.

Views of the whole image, such as glances, are read once and kept, as far as memory allows; other regions are read for each look.
"""

import functools
import math
import os
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from glancefocus.data.augmentation import mix
from glancefocus.data.file_scene import FileImage, FilePicture, FileScene
from glancefocus.data.images import pixels_of, read_picture
from glancefocus.data.large import open_large
from glancefocus.data.signs import CLASSES
from glancefocus.data.splits import Batch, FileSplit, MemorySplit
from glancefocus.data.wide_signs import WideScene, WideSignsSettings
from glancefocus.errors import BadData, BadImage, BadSetting
from glancefocus.settings import View, ViewSettings

KEPT_VIEWS_BYTES = 1 << 30
"""Most memory for views of the whole image that a split keeps."""
_REMEDY = "Remove the file, or let the check of the files skip it (--check-files)."


@dataclass
class KeptViews:
    """The pixels of views of whole images that were read before, in memory up to a limit."""

    limit_bytes: int = KEPT_VIEWS_BYTES
    taken_bytes: int = 0
    views: dict[int, dict[View, Tensor]] = field(default_factory=dict)

    def of(self, index: int) -> dict[View, Tensor]:
        """What is known of one image."""
        return dict(self.views.get(index, {}))

    def keep(self, index: int, views: dict[View, Tensor]) -> None:
        """Keep what is known of one image now, unless the memory is used up."""
        known = self.views.get(index, {})
        new_bytes = sum(pixels.nbytes for view, pixels in views.items() if view not in known)
        if new_bytes and self.taken_bytes + new_bytes <= self.limit_bytes:
            self.views[index] = dict(views)
            self.taken_bytes += new_bytes


@dataclass
class FileScenes(FileSplit):
    """Pictures in files, of which some are large: these are seen through regions, and may have any sizes.

    Of the augmentation they are only mirrored.
    """

    kept: KeptViews = field(default_factory=KeptViews)

    def __post_init__(self) -> None:
        augment = self.augment
        if augment.shift_px > 0 or augment.light > 0:
            raise BadSetting(
                "training pictures of which only regions are read are only mirrored (--flip), but got "
                f"shift_px={augment.shift_px} and light={augment.light:g}. Set both to 0, or use --fit stretch."
            )

    @property
    def fixed(self) -> bool:
        return not self.augment.flip

    def batches(self, order: Sequence[Sequence[int]], seed: int | None = None, workers: int = 0) -> Iterator[Batch]:
        """(a FileScene, labels (B,)) for each list of indexes; no worker processes are needed."""
        for indexes in order:
            with ThreadPoolExecutor(max(1, min(len(indexes), os.cpu_count() or 1))) as pool:
                images = tuple(pool.map(lambda index: self._image(index, seed), indexes))
            yield FileScene(images, self.view), self.labels[list(indexes)]
            for index, image in zip(indexes, images, strict=True):
                if isinstance(image, FileImage):
                    if image.problems:
                        raise BadData(f"{image.problems[0]} {_REMEDY}")
                    self.kept.keep(index, image.glances)

    def in_memory(self, progress: Any = None) -> MemorySplit:
        raise BadSetting(
            "some of these images are so large that they are not held in memory. Leave out --in-memory, or resize them with "
            "--fit stretch or --fit crop."
        )

    def _image(self, index: int, seed: int | None) -> Tensor | FileImage:
        file = self.files[index]
        mirrored = seed is not None and self.augment.flip and mix(seed, index) >> 32 & 1 == 1
        try:
            picture = open_large(file)
            if picture is None:
                pixels = pixels_of(read_picture(file))
                return pixels.flip(-1) if mirrored else pixels
        except BadImage as error:
            raise BadData(f"{error} {_REMEDY}") from None
        width, height = picture.size
        return FileImage(picture, (height, width), glances=self.kept.of(index), mirrored=mirrored)


@dataclass
class DrawnScenes:
    """Scenes of the world `signs` of any size, drawn on demand, with the known place of each speed limit.

    labels  (N,) the class of each scene
    sizes   settings of one or several sizes, which take turns
    first   seed of the first scene; the others follow
    fresh   every epoch of training has new scenes, of the same classes
    """

    labels: Tensor
    view: ViewSettings
    sizes: tuple[WideSignsSettings, ...]
    first: int = 0
    fresh: bool = False
    kept: KeptViews = field(default_factory=KeptViews)

    @property
    def fixed(self) -> bool:
        return not self.fresh

    def __len__(self) -> int:
        return len(self.labels)

    @functools.cached_property
    def boxes(self) -> Tensor | None:
        """See Split; the scenes are laid out when this is first asked for."""
        if self.fresh:
            return None
        boxes = [self.scene(index).box or (math.nan,) * 4 for index in range(len(self))]
        return torch.tensor(boxes, dtype=torch.float32)

    @property
    def description(self) -> str:
        """Everything that the scenes follow from, besides the labels: for fingerprints."""
        return f"{self.sizes} {self.first} {self.fresh}"

    def batches(self, order: Sequence[Sequence[int]], seed: int | None = None, workers: int = 0) -> Iterator[Batch]:
        """(a FileScene, labels (B,)) for each list of indexes."""
        new = self.fresh and seed is not None
        for indexes in order:
            scenes = [self.scene(index, seed) for index in indexes]
            images = tuple(
                FileImage(FilePicture(scene), scene.sizes[0][::-1], glances={} if new else self.kept.of(index))
                for index, scene in zip(indexes, scenes, strict=True)
            )
            yield FileScene(images, self.view, centres_of(scenes)), self.labels[list(indexes)]
            for index, image in zip(indexes, images, strict=True):
                if not new:
                    self.kept.keep(index, image.glances)

    def scene(self, index: int, seed: int | None = None) -> WideScene:
        """One scene, laid out; seed: of the augmentation, see Split.batches."""
        number = mix(self.first, index) if seed is None or not self.fresh else mix(self.first, index, seed)
        return WideScene(self.sizes[index % len(self.sizes)], int(self.labels[index]), number)

    def first_images(self, count: int) -> "DrawnScenes":
        """The first of them, as a split."""
        return replace(self, labels=self.labels[:count], kept=KeptViews())


def centres_of(scenes: Sequence[WideScene]) -> Tensor:
    """(B, 2) float32 the centre of each speed limit as (y, x) in px; NaN for the class `none`."""
    boxes = torch.tensor([scene.box or (math.nan,) * 4 for scene in scenes], dtype=torch.float64)
    return ((boxes[:, :2] + boxes[:, 2:]) / 2).float()


def drawn_scenes(
    name: str, count: int, sizes: Sequence[WideSignsSettings], view: ViewSettings, seed: int
) -> DrawnScenes:
    """A split of the world `signs`, with every class in equal shares; the scenes of `train` are new in every epoch.

    name  train, val or test, which have no scene in common
    """
    first = mix(seed, zlib.crc32(name.encode()))
    # In turns: with several sizes each of them has every class.
    labels = (torch.arange(count) // len(sizes)) % len(CLASSES)
    return DrawnScenes(labels, view, tuple(sizes), first, fresh=name == "train")


def reads_regions(split: Any) -> bool:
    """Whether the batches of a split, or of any of its parts, are scenes: then its images cannot be seen whole."""
    return isinstance(split, (FileScenes, DrawnScenes)) or any(map(reads_regions, getattr(split, "parts", ())))


@dataclass(frozen=True)
class OpenedAnew:
    """Images of such a split, for measuring time: opened again for each scene, so that none of their regions was read before.

    split  a split whose batches are scenes
    rows   of the split
    """

    split: Any
    rows: tuple[int, ...]
    device: torch.device

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, start: int, end: int) -> "OpenedAnew":
        """Some of them."""
        return replace(self, rows=self.rows[start:end])

    def scene(self) -> FileScene:
        """A scene of all of them; no view of the whole image is known yet."""
        scene, _ = next(self.split.batches([self.rows]))
        images = (replace(image, glances={}) if isinstance(image, FileImage) else image for image in scene.images)
        return FileScene(tuple(images), scene.normalise_by).to(self.device)


def joined_images(parts: Sequence[Any]) -> Any:
    """Several batches of images, tensors or scenes, as one."""
    if all(isinstance(part, Tensor) for part in parts):
        return torch.cat(list(parts))
    if len(parts) == 1:
        return parts[0]
    view = next(part.normalise_by for part in parts if isinstance(part, FileScene))
    return FileScene(
        tuple(image for part in parts for image in (part if isinstance(part, Tensor) else part.images)), view
    )


def chosen_images(images: Any, rows: Tensor) -> Any:
    """These rows of a batch of images, a tensor or a scene."""
    return images[rows] if isinstance(images, Tensor) else images.keep(rows)
