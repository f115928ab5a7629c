"""Splits: what training and evaluation draw batches from. Held in memory, or read from files by worker processes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from glancefocus.data.images import as_tensor, read_picture
from glancefocus.data.views import view_picture
from glancefocus.errors import BadData, BadImage, BadSetting
from glancefocus.interrupts import children_without_signals
from glancefocus.region import normalise
from glancefocus.settings import ViewSettings, check_fields
from glancefocus.torchvision_whole import ensure_torchvision
from glancefocus.values import PositiveShare, Shift

Batch = tuple[Tensor, Tensor]
Row = tuple[str, Path, int]
"""One file of a data set: its split, itself, its label."""


class Split(Protocol):
    """Images with labels.

    labels  (N,) int64
    boxes   (N, 4) what there is to find, as (top, left, bottom, right) in px; None where nobody knows. Never for training.
    """

    labels: Tensor
    boxes: Tensor | None

    @property
    def fixed(self) -> bool:
        """A seed changes nothing: every epoch sees the same images."""
        ...

    def __len__(self) -> int: ...

    def batches(self, order: Sequence[Sequence[int]], seed: int | None = None, workers: int = 0) -> Iterator[Batch]:
        """(images (B, 3, H, W) or clips (B, F, 3, H, W) normalised, labels (B,)) for each list of indexes; a seed augments.

        Without a seed nothing is changed. An image augmented with the same seed is the same, whoever reads it in whichever process.
        """
        ...


@dataclass(frozen=True)
class AugmentSettings:
    """What training may change in an image without changing its label; for digits and road signs, nothing.

    crop  a random part of at least this share of the area, resized to the view's size; 1 turns it off. Clips are cropped as TSM
          does, to parts of 1, 7/8, 3/4 or 0.66 of the side, the same for all frames, whatever the share
    flip  left and right
    shift_px  moved by up to so many pixels up, down, left and right, the edge repeated; what there is to see may be cut off there
    """

    crop: PositiveShare = 0.08
    flip: bool = True
    shift_px: Shift = 0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass
class MemorySplit:
    """Images of one size, held (or mapped) as uint8 (N, 3, H, W); or clips, (N, F, 3, H, W).

    files  that they were read from, where there are any
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
        """The same before normalising, uint8: of large images most pixels are never looked at closely."""
        for indexes in order:
            rows = torch.as_tensor(list(indexes))
            images = self.images[rows]
            if seed is not None:
                # By the image's number, not by its place in the order: a resumed epoch starts in the middle of it.
                seeds = _seeds(seed, rows)
                if self.flip:
                    flipped = _flipped(seeds)
                    images[flipped] = images[flipped].flip(-1)
                if self.shift_px > 0:
                    images = torch.stack([shifted(*one, self.shift_px) for one in zip(images, seeds, strict=True)])
            yield images, self.labels[rows]


@dataclass
class FileSplit:
    """Images in files, decoded, viewed and augmented when they are needed."""

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
        return not cropped and not self.augment.flip and self.augment.shift_px == 0

    def __len__(self) -> int:
        return len(self.files)

    def batches(self, order: Sequence[Sequence[int]], seed: int | None = None, workers: int = 0) -> Iterator[Batch]:
        # Workers are started once and stay: starting them takes longer than a short epoch. A loader whose workers stay can be gone
        # through once at a time, so whoever asks in the middle of that gets another one.
        if workers in self._reading:
            yield from _read(self._loader(workers, stays=False), order, seed)
            return
        if workers not in self._loaders:
            self._loaders[workers] = self._loader(workers, stays=workers > 0)
        self._reading.add(workers)
        try:
            yield from _read(self._loaders[workers], order, seed)
        finally:
            self._reading.discard(workers)

    def _loader(self, workers: int, *, stays: bool) -> Any:
        return DataLoader(
            self._reader(),
            batch_sampler=_Orders(),
            num_workers=workers,
            collate_fn=collate,
            multiprocessing_context="spawn" if workers else None,
            persistent_workers=stays,
        )

    def in_memory(self, progress: Any = None) -> MemorySplit:
        """The same images viewed once and held; of the augmentation flips and shifts are left."""
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
        """Reads one image, in a worker."""
        return _Pictures(self.files, self.labels, self.view, self.augment)

    def _viewed(self, index: int) -> Tensor:
        image, _ = view_picture(read_picture(self.files[index]), as_pixels(self.view))
        return (image * 255).round().to(torch.uint8)


def as_pixels(view: ViewSettings) -> ViewSettings:
    """The same view with colours as they are."""
    return replace(view, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


def scene_batches(
    split: Split, view: ViewSettings, order: Sequence[Sequence[int]], seed: int | None = None, workers: int = 0
) -> Iterator[Batch]:
    """What `scene.as_batch` takes with this view: pixels where the split holds them and normalises them alike, else images."""
    if isinstance(split, MemorySplit) and (split.view.mean, split.view.std) == (view.mean, view.std):
        return split.pixel_batches(order, seed)
    return split.batches(order, seed, workers)


class _Pictures(Dataset[Batch | str]):
    """One image of a split, for the loader's workers; or what is wrong with it.

    A mistake is handed over as its sentence: raised in a worker, it would come back with a traceback inside.
    """

    def __init__(self, files: list[Path], labels: Tensor, view: ViewSettings, augment: AugmentSettings) -> None:
        self.files = files
        self.labels = labels
        self.view = view
        self.augment = augment

    def __getitem__(self, asked: tuple[int, int | None]) -> Batch | str:
        index, seed = asked
        try:
            picture = read_picture(self.files[index])
            if seed is None:
                image, _ = view_picture(picture, self.view)
            else:
                image = augmented(picture, self.view, self.augment, mix(seed, index))
        except BadImage as error:
            return f"{error} Remove the file, or let the check of the files skip it (--check-files)."
        return image, self.labels[index]


def _read(loader: Any, order: Sequence[Sequence[int]], seed: int | None) -> Iterator[Batch]:
    """The batches of one pass; a worker's mistake is raised here."""
    loader.batch_sampler.batches = [[(index, seed) for index in indexes] for indexes in order]
    with children_without_signals():
        batches = iter(loader)
    for batch in batches:
        if isinstance(batch, str):
            raise BadData(batch)
        yield batch


class _Orders:
    """The batches of one pass: lists of (index, seed). Replaced for each pass, so that one loader serves them all."""

    def __init__(self) -> None:
        self.batches: list[list[tuple[int, int | None]]] = []

    def __iter__(self) -> Iterator[list[tuple[int, int | None]]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def augmented(picture: Image.Image, view: ViewSettings, augment: AugmentSettings, seed: int) -> Tensor:
    """The picture with what may be changed in it; what may not is as in evaluation."""
    ensure_torchvision()
    from torchvision.transforms import v2

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if augment.crop < 1 and view.fit != "whole":
            crop = v2.RandomResizedCrop((view.height_px, view.width_px), scale=(augment.crop, 1.0), antialias=True)
            image: Tensor = normalise(crop(as_tensor(picture)), view)
        else:
            image, _ = view_picture(picture, view)
        if augment.flip:
            image = v2.RandomHorizontalFlip()(image)
    return shifted(image, seed, augment.shift_px)


def shifted(image: Tensor, seed: int, most_px: int) -> Tensor:
    """An image (..., H, W) moved by up to so many px either way on both axes; what comes into view repeats the edge."""
    if most_px == 0:
        return image
    if 2 * most_px > min(image.shape[-2:]):
        raise BadSetting(
            f"images of {image.shape[-2]}x{image.shape[-1]} px shifted by up to {most_px} px may show nothing of themselves. "
            "Shift them by less than half of their side."
        )
    for axis in (-2, -1):
        by, side = _shift(seed, axis, most_px), image.shape[axis]
        edge = image.narrow(axis, 0 if by > 0 else side - 1, 1)
        beyond = edge.repeat_interleave(abs(by), dim=axis)
        kept = image.narrow(axis, max(0, -by), side - abs(by))
        image = torch.cat([beyond, kept] if by > 0 else [kept, beyond], dim=axis)
    return image


def _shift(seed: int, axis: int, most_px: int) -> int:
    """By how many px an image is moved along this axis, -2 or -1."""
    return mix(seed, axis) % (2 * most_px + 1) - most_px


def _seeds(seed: int, rows: Tensor) -> list[int]:
    """The seed of each image's own augmentation."""
    return [mix(seed, index) for index in rows.tolist()]


def _flipped(seeds: list[int]) -> Tensor:
    """(B,) which images are turned left to right."""
    return torch.tensor([seed >> 32 & 1 == 1 for seed in seeds])


def followed(split: Split, places: Tensor, rows: Tensor, seed: int) -> Tensor | None:
    """(B, 2) where places of images come to lie when the images are augmented, also beyond their edges; None: nobody knows, as of
    images that are read from files and changed then.

    places  (B, 2) in px of the images as they are, as (y, x)
    rows    (B,) which images of the split
    seed    that the batches were asked for with
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
        places += torch.tensor([[_shift(one, axis, split.shift_px) for axis in (-2, -1)] for one in seeds])
    return places


def collate(rows: list[Batch | str]) -> Batch | str:
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
    """Images laid out as convolutions like them; clips become images only where they are looked at."""
    return images.contiguous(memory_format=torch.channels_last) if images.dim() == 4 else images


def _uneven(one: Tensor, other: Tensor) -> str:
    return (
        f"training needs images of one size, but got {tuple(one.shape[-2:])} and {tuple(other.shape[-2:])} px. "
        "Let them be cropped or stretched to one size: --fit crop or --fit stretch."
    )


def mix(*numbers: int) -> int:
    """One seed out of several numbers, so that neighbours have nothing in common."""
    mixed = 0x9E3779B97F4A7C15
    for number in numbers:
        mixed = (mixed ^ (number & 0xFFFFFFFFFFFFFFFF)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 31
    return mixed & 0x7FFFFFFFFFFFFFFF


def in_order(count: int, batch_size: int) -> list[list[int]]:
    """Every index once, in order."""
    return [list(range(start, min(start + batch_size, count))) for start in range(0, count, batch_size)]


def shuffled(count: int, batch_size: int, seed: int) -> list[list[int]]:
    """Every index at most once, in an order that the seed alone decides; an incomplete last batch is left out."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    batch_size = min(batch_size, count)
    return [order[start : start + batch_size] for start in range(0, count - batch_size + 1, batch_size)]
