"""Splits, from which training and evaluation draw batches: held in memory, or read from files by worker processes."""

import atexit
import functools
import math
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from glancefocus.data.augmentation import AugmentSettings, augmented, mix, shift_of, shifted
from glancefocus.data.images import read_picture, view_picture
from glancefocus.data.large import is_huge, read_shrunk
from glancefocus.errors import BadData, BadImage
from glancefocus.interrupts import children_without_signals
from glancefocus.region import normalise
from glancefocus.settings import ViewSettings, as_pixels

Batch = tuple[Any, Tensor]
"""Images and labels. Images are a tensor; or, where they are too large for that, a scene of which only regions are read."""
Row = tuple[str, Path, int]
"""One file of a data set: its split, its path, its label."""
Pixels = NDArray[np.uint8]


class Split(Protocol):
    """Images with labels.

    labels  (N,) int64
    boxes   (N, 4) the object, as (top, left, bottom, right) in px; None if unknown. For measuring only, never for training
    """

    labels: Tensor

    @property
    def boxes(self) -> Tensor | None: ...

    @property
    def fixed(self) -> bool:
        """True if a seed changes nothing: every epoch gets the same images."""
        ...

    def __len__(self) -> int: ...

    def batches(self, order: Sequence[Sequence[int]], seed: int | None = None, workers: int = 0) -> Iterator[Batch]:
        """(images (B, 3, H, W) or clips (B, F, 3, H, W) normalised, labels (B,)) for each list of indexes.

        seed     augments the images; None: nothing is changed. The same seed gives the same image in every process
        workers  processes that read files
        """
        ...


@dataclass
class MemorySplit:
    """Images of one size, held (or mapped) as uint8 (N, 3, H, W); or clips, (N, F, 3, H, W).

    files  that they were read from, if any
    """

    images: Tensor
    labels: Tensor
    view: ViewSettings
    flip: bool = False
    boxes: Tensor | None = None
    shift_px: int = 0
    files: list[Path] | None = None

    @property
    def fixed(self) -> bool:
        return not self.flip and self.shift_px == 0

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    def batches(self, order: Sequence[Sequence[int]], seed: int | None = None, workers: int = 0) -> Iterator[Batch]:
        for images, labels in self.pixel_batches(order, seed):
            yield channels_last(normalise(images, self.view)), labels

    def pixel_batches(self, order: Sequence[Sequence[int]], seed: int | None = None) -> Iterator[Batch]:
        """The same as uint8, not normalised: most pixels of large images are never looked at closely."""
        for indexes in order:
            rows = torch.as_tensor(list(indexes))
            images = self.images[rows]
            if seed is not None:
                # By the index of the image, not by its position in the order: a resumed epoch starts in the middle.
                seeds = _seeds(seed, rows)
                if self.flip:
                    flipped = _flipped(seeds)
                    images[flipped] = images[flipped].flip(-1)
                if self.shift_px > 0:
                    images = torch.stack([shifted(*one, self.shift_px) for one in zip(images, seeds, strict=True)])
            yield images, self.labels[rows]


@dataclass
class FileSplit:
    """Images in files, which are decoded and augmented when they are needed."""

    files: list[Path]
    labels: Tensor
    view: ViewSettings
    augment: AugmentSettings
    boxes: Tensor | None = None
    _loaders: dict[int, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _reading: set[int] = field(default_factory=set, init=False, repr=False, compare=False)

    @property
    def fixed(self) -> bool:
        cropped = self.augment.crop < 1 and self.view.fit != "whole"
        return not cropped and not self.augment.flip and self.augment.shift_px == 0 and self.augment.light == 0

    def __len__(self) -> int:
        return len(self.files)

    def batches(self, order: Sequence[Sequence[int]], seed: int | None = None, workers: int = 0) -> Iterator[Batch]:
        # Workers are started once and kept: starting them takes longer than a short epoch. A loader with kept workers can run one
        # pass at a time, so a second pass that starts meanwhile gets a loader of its own.
        if workers in self._reading:
            yield from _read(self._loader(workers, keep=False), order, seed)
            return
        if workers not in self._loaders:
            self._loaders[workers] = self._loader(workers, keep=workers > 0)
        self._reading.add(workers)
        try:
            yield from _read(self._loaders[workers], order, seed)
        finally:
            self._reading.discard(workers)

    def _loader(self, workers: int, *, keep: bool) -> Any:
        if workers:
            _end_workers_at_exit()
        return DataLoader(
            self._reader(),
            batch_sampler=_Orders(),
            num_workers=workers,
            collate_fn=collate,
            multiprocessing_context="spawn" if workers else None,
            persistent_workers=keep,
        )

    def in_memory(self, progress: Callable[[int, int], None] | None = None) -> MemorySplit:
        """The same images read once and held in memory; of the augmentation only flips and shifts remain."""
        first = self._viewed(0)
        images = torch.empty(len(self), *first.shape, dtype=torch.uint8)
        for index in range(len(self)):
            viewed = first if index == 0 else self._viewed(index)
            if viewed.shape != first.shape:
                raise BadData(_uneven(viewed, first))
            images[index] = viewed
            if progress is not None:
                progress(index + 1, len(self))
        augment = self.augment
        return MemorySplit(images, self.labels, self.view, augment.flip, self.boxes, augment.shift_px, self.files)

    def _reader(self) -> "Dataset[Batch | str]":
        """What reads one image, in a worker process."""
        return _Pictures(self.files, self.labels, self.view, self.augment)

    def _viewed(self, index: int) -> Tensor:
        image, _ = view_picture(_read_whole(self.files[index], self.view, self.augment), as_pixels(self.view))
        return (image * 255).round().to(torch.uint8)


def scene_batches(
    split: Split, view: ViewSettings, order: Sequence[Sequence[int]], seed: int | None = None, workers: int = 0
) -> Iterator[Batch]:
    """Batches for `scene.as_batch` with this view: uint8 pixels if the split holds them and normalises them in the same way."""
    if isinstance(split, MemorySplit) and (split.view.mean, split.view.std) == (view.mean, view.std):
        return split.pixel_batches(order, seed)
    return split.batches(order, seed, workers)


class _Pictures(Dataset[Batch | str]):
    """Reads one image of a split in a worker of the loader; a file that cannot be read gives a sentence instead.

    An error raised in a worker would arrive with the worker's traceback in its message, so the sentence is returned.
    """

    def __init__(self, files: list[Path], labels: Tensor, view: ViewSettings, augment: AugmentSettings) -> None:
        self.files = files
        self.labels = labels
        self.view = view
        self.augment = augment

    def __getitem__(self, asked: tuple[int, int | None]) -> Batch | str:
        index, seed = asked
        try:
            picture = _read_whole(self.files[index], self.view, self.augment)
            if seed is None:
                image, _ = view_picture(picture, self.view)
            else:
                image = augmented(picture, self.view, self.augment, mix(seed, index))
        except BadImage as error:
            return f"{error} Remove the file, or let the check of the files skip it (--check-files)."
        return image, self.labels[index]


def _read_whole(file: Path, view: ViewSettings, augment: AugmentSettings) -> Image.Image:
    return read_picture(file) if view.fit == "whole" else read_shrunk(file, held_side_px(view, augment))


@functools.cache
def _end_workers_at_exit() -> None:
    """Kill loader workers that are still running when Python exits, before multiprocessing waits for them.

    It would end them with SIGTERM, which is blocked in them (see interrupts.children_without_signals), and wait forever.
    """

    def kill() -> None:
        if hasattr(signal, "SIGCHLD"):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch would report the killed workers
        for child in multiprocessing.active_children():
            if child.daemon:
                child.kill()

    atexit.register(kill)


def _read(loader: Any, order: Sequence[Sequence[int]], seed: int | None) -> Iterator[Batch]:
    """The batches of one pass; a sentence from a worker is raised here."""
    loader.batch_sampler.batches = [[(index, seed) for index in indexes] for indexes in order]
    with children_without_signals():
        batches = iter(loader)
    for batch in batches:
        if isinstance(batch, str):
            raise BadData(batch)
        yield batch


class _Orders:
    """The batches of one pass as lists of (index, seed); replaced for each pass, so that one loader serves all passes."""

    def __init__(self) -> None:
        self.batches: list[list[tuple[int, int | None]]] = []

    def __iter__(self) -> Iterator[list[tuple[int, int | None]]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def _seeds(seed: int, rows: Tensor) -> list[int]:
    """The seed for the augmentation of each image."""
    return [mix(seed, index) for index in rows.tolist()]


def _flipped(seeds: list[int]) -> Tensor:
    """(B,) which images are mirrored."""
    return torch.tensor([seed >> 32 & 1 == 1 for seed in seeds])


def followed(split: Split, places: Tensor, rows: Tensor, seed: int) -> Tensor | None:
    """(B, 2) the positions of points after their images are augmented, perhaps outside the image.

    None if they are unknown, because the images are read from files and augmented then.

    places  (B, 2) points in the unchanged images, as (y, x) in px
    rows    (B,) indexes of the images in the split
    seed    of the batches
    """
    if split.fixed:
        return places
    if not isinstance(split, MemorySplit):
        return None
    seeds, places = _seeds(seed, rows), places.clone()
    if split.flip:
        flipped = _flipped(seeds)
        places[flipped, 1] = split.images.shape[-1] - places[flipped, 1]
    if split.shift_px > 0:
        places += torch.tensor([[shift_of(one, axis, split.shift_px) for axis in (-2, -1)] for one in seeds])
    return places


def collate(rows: list[Batch | str]) -> Batch | str:
    """One batch of several images, or the first sentence on what is wrong with one."""
    batch: list[Batch] = []
    for row in rows:
        if isinstance(row, str):
            return row
        batch.append(row)
        if row[0].shape != batch[0][0].shape:
            return _uneven(row[0], batch[0][0])
    images = torch.stack([image for image, _ in batch])
    return channels_last(images), torch.stack([label for _, label in batch])


def channels_last(images: Tensor) -> Tensor:
    """Images in the memory layout that convolutions are fastest with; clips are left as they are."""
    return images.contiguous(memory_format=torch.channels_last) if images.dim() == 4 else images


def _uneven(one: Tensor, other: Tensor) -> str:
    return (
        f"training needs images of one size, but got {tuple(one.shape[-2:])} and {tuple(other.shape[-2:])} px. "
        "Crop or stretch them to one size with --fit crop or --fit stretch."
    )


def in_order(count: int, batch_size: int) -> list[list[int]]:
    """Every index once, in order."""
    return [list(range(start, min(start + batch_size, count))) for start in range(0, count, batch_size)]


def shuffled(count: int, batch_size: int, seed: int) -> list[list[int]]:
    """Every index at most once, in an order given by the seed alone; an incomplete last batch is dropped."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    batch_size = min(batch_size, count)
    return [order[start : start + batch_size] for start in range(0, count - batch_size + 1, batch_size)]


@dataclass
class HeldPictures(FileSplit):
    """Training pictures that are decoded once, shrunk and held in memory; every epoch crops and flips them anew.

    Decoding a photograph of 20 megapixels takes ten times as long as one training step on it; what a crop needs of it is 400 KB.

    pixels  (H, W, 3) of each picture, its shorter side at most held_side_px
    """

    pixels: list[Pixels] = field(default_factory=list)

    def batches(self, order: Sequence[Sequence[int]], seed: int | None = None, workers: int = 0) -> Iterator[Batch]:
        """See Split.batches; no worker processes are needed."""
        for indexes in order:
            batch = collate([self._image(index, seed) for index in indexes])
            if isinstance(batch, str):
                raise BadData(batch)
            yield batch

    def _image(self, index: int, seed: int | None) -> Batch:
        pixels = self.pixels[index]
        if seed is None:
            image, _ = view_picture(Image.fromarray(pixels), self.view)
        else:
            image = augmented(pixels, self.view, self.augment, mix(seed, index))
        return image, self.labels[index]


def held_side_px(view: ViewSettings, augment: AugmentSettings) -> int:
    """The shorter side of pictures in memory, so that the smallest crop still fills the view; at most twice the view's side."""
    side = max(view.height_px, view.width_px)
    return math.ceil(side / view.crop_pct * min(2.0, 1 / math.sqrt(augment.crop)))


def held_bytes(count: int, view: ViewSettings, augment: AugmentSettings) -> int:
    """Estimated memory for this many pictures of the usual aspect of 4:3."""
    side = held_side_px(view, augment)
    return count * side * (side * 4 // 3) * 3


def hold(split: FileSplit, progress: Callable[[int, int], None] | None = None) -> HeldPictures:
    """Read every picture of a split into memory, several at a time."""
    side = held_side_px(split.view, split.augment)
    pixels: list[Pixels] = []
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        for done, one in enumerate(pool.map(lambda file: _shrunk(file, side), split.files), start=1):
            pixels.append(one)
            if progress is not None:
                progress(done, len(split))
    return HeldPictures(split.files, split.labels, split.view, split.augment, split.boxes, pixels=pixels)


def _shrunk(file: Path, side: int) -> Pixels:
    picture = read_shrunk(file, side) if is_huge(file) else read_picture(file, at_least_px=side)
    width, height = picture.size
    scale = side / min(width, height)
    if scale < 1:
        new = max(side, round(width * scale)), max(side, round(height * scale))
        picture = picture.resize(new, Image.Resampling.BILINEAR, reducing_gap=3.0)
    return np.array(picture)  # a copy, since torch warns of memory that must not be written to


def first_images(split: Split, count: int) -> Split:
    """The first images of a split, as a split."""
    if isinstance(split, HeldPictures):
        own: Any = {"pixels": split.pixels[:count], "files": split.files[:count]}
    elif isinstance(split, FileSplit):
        own = {"files": split.files[:count]}
    elif isinstance(split, MemorySplit):
        own = {"images": split.images[:count], "files": None if split.files is None else split.files[:count]}
    else:
        own_way = getattr(split, "first_images", None)
        return split if own_way is None else own_way(count)
    boxes = None if split.boxes is None else split.boxes[:count]
    return replace(split, labels=split.labels[:count], boxes=boxes, **own)
