"""Scenes, which are looked at, and Looks: what one look saw, and everything that the next look needs.

A network sees the images or clips of a scene only through `view(region)`. `ImageBatch` is a batch of one size, `ClipBatch` the same
for clips, `MixedImages` a list of any sizes. Keeping some rows copies no pixels in any of
them. A Look is a value: no state is kept anywhere else between looks.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from glancefocus.errors import BadSetting
from glancefocus.region import Region, crop, normalise, resized, shrink, shrink_pixels
from glancefocus.settings import ViewSettings


class Scene(Protocol):
    """One or several images, seen only through regions of them.

    The frames of clips are folded into the batch: a view of B clips is (B x frames, 3, px, px), with the same place in every frame.
    A scene of clips also has the attribute `frames`, see `frames_of`; one for networks that zoom has `sizes`, see `sizes_of`.
    """

    @property
    def count(self) -> int:
        """Number of images or clips."""
        ...

    def view(self, region: Region) -> Tensor:
        """What a look sees of each image, normalised, (B, 3, px, px)."""
        ...

    def keep(self, rows: Tensor) -> "Scene":
        """The scene of these rows only; rows (K,) int64."""
        ...


@dataclass(frozen=True)
class ImageBatch:
    """A batch of images of one size, (N, 3, H, W). Dropping a row copies no pixels: only the list of rows changes.

    images        normalised floats, or uint8
    normalise_by  for uint8 images: only the pixels that a look sees are normalised, with this mean and deviation
    """

    images: Tensor
    rows: Tensor | None = None
    normalise_by: ViewSettings | None = None

    def __post_init__(self) -> None:
        if self.images.dim() != 4 or self.images.shape[1] != 3:
            raise BadSetting(
                f"images must be a tensor of shape (batch, 3, height, width), but got {tuple(self.images.shape)}."
            )

    @property
    def count(self) -> int:
        return int(self.images.shape[0] if self.rows is None else self.rows.shape[0])

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Height and width of each image."""
        return [(self.images.shape[-2], self.images.shape[-1])] * self.count

    @property
    def whole(self) -> Tensor:
        """Every image at its own resolution, normalised: what a plain backbone sees."""
        return self._normalised(self._kept()).contiguous(memory_format=torch.channels_last)

    def view(self, region: Region) -> Tensor:
        seen = region.view
        if region.where is None:
            if self.normalise_by is None:
                return shrink(self._kept(), seen.px, seen.resize)
            return shrink_pixels(self._kept(), seen.px, seen.resize, self.normalise_by)
        extent_px = seen.extent if isinstance(seen.extent, int) else seen.extent_px(*self.images.shape[-2:])
        covered = self._normalised(crop(self.images, region.where, extent_px, self.rows))
        return covered if extent_px == seen.px else resized(covered, (seen.px, seen.px), seen.resize)

    def keep(self, rows: Tensor) -> "ImageBatch":
        return ImageBatch(self.images, rows if self.rows is None else self.rows[rows], self.normalise_by)

    def _kept(self) -> Tensor:
        return self.images if self.rows is None else self.images[self.rows]

    def _normalised(self, pixels: Tensor) -> Tensor:
        return pixels if self.normalise_by is None else normalise(pixels, self.normalise_by)


@dataclass(frozen=True)
class ClipBatch:
    """A batch of clips of one size, (N, F, 3, H, W): all frames of a clip are seen through the same region.

    Dropping a clip copies no pixels.

    clips         normalised floats, or uint8
    normalise_by  as in ImageBatch
    """

    clips: Tensor
    rows: Tensor | None = None
    normalise_by: ViewSettings | None = None

    def __post_init__(self) -> None:
        if self.clips.dim() != 5 or self.clips.shape[2] != 3:
            raise BadSetting(
                f"clips must be a tensor of shape (batch, frames, 3, height, width), but got {tuple(self.clips.shape)}."
            )

    @property
    def count(self) -> int:
        return int(self.clips.shape[0] if self.rows is None else self.rows.shape[0])

    @property
    def frames(self) -> int:
        return int(self.clips.shape[1])

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Height and width of each clip."""
        return [(self.clips.shape[-2], self.clips.shape[-1])] * self.count

    @property
    def whole(self) -> Tensor:
        """Every frame of every clip, normalised, (B x F, 3, H, W): what a plain backbone sees."""
        return self._images.whole

    def view(self, region: Region) -> Tensor:
        return self._images.view(region.repeat_interleave(self.frames))

    def keep(self, rows: Tensor) -> "ClipBatch":
        return ClipBatch(self.clips, rows if self.rows is None else self.rows[rows], self.normalise_by)

    @property
    def _images(self) -> ImageBatch:
        """The frames one after the other, as images; nothing is copied."""
        rows = self.rows
        if rows is not None:
            offsets = torch.arange(self.frames, device=rows.device)
            rows = (rows[:, None] * self.frames + offsets).flatten()
        return ImageBatch(self.clips.flatten(0, 1), rows, self.normalise_by)


def as_batch(images: Any, view: ViewSettings | None) -> Any:
    """A scene of what a split gives: normalised images, or uint8 pixels that are normalised where they are looked at.

    images   (B, 3, H, W), or clips (B, F, 3, H, W); a scene stays as it is (large images, of which only regions are read)
    returns  an ImageBatch, a ClipBatch, or that scene
    """
    if not isinstance(images, Tensor):
        return images
    kind = ClipBatch if images.dim() == 5 else ImageBatch
    return kind(images, normalise_by=view if images.dtype == torch.uint8 else None)


class HasShape(Protocol):
    """A tensor, or an image in a file: something whose shape ends with height and width."""

    @property
    def shape(self) -> Sequence[int]: ...


class SeparateImages:
    """What scenes have in common whose images are held one by one, because their sizes differ."""

    images: tuple[HasShape, ...]

    @property
    def count(self) -> int:
        return len(self.images)

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Height and width of each image."""
        return [(image.shape[-2], image.shape[-1]) for image in self.images]


@dataclass(frozen=True)
class MixedImages(SeparateImages):
    """Images of different sizes, each (3, H, W), normalised or uint8; or clips of different sizes, each (F, 3, H, W).

    normalise_by  as in ImageBatch, for those that are uint8
    """

    images: tuple[Tensor, ...]
    normalise_by: ViewSettings | None = None

    def __post_init__(self) -> None:
        for image in self.images:
            if image.dim() not in (3, 4) or image.shape[-3] != 3:
                raise BadSetting(
                    "each image must have the shape (3, height, width), and each clip (frames, 3, height, width), "
                    f"but got {tuple(image.shape)}."
                )
            if image.shape[:-2] != self.images[0].shape[:-2]:
                first, other = tuple(self.images[0].shape), tuple(image.shape)
                raise BadSetting(f"all clips must have the same number of frames, but got shapes {first} and {other}.")

    @property
    def frames(self) -> int:
        return 1 if self.images[0].dim() == 3 else int(self.images[0].shape[0])

    def view(self, region: Region) -> Tensor:
        single = (as_scene(image[None], self.normalise_by) for image in self.images)
        return torch.cat([one.view(region.rows(slice(i, i + 1))) for i, one in enumerate(single)])

    def keep(self, rows: Tensor) -> "MixedImages":
        return MixedImages(tuple(self.images[i] for i in rows.tolist()), self.normalise_by)


def sizes_of(scene: Scene) -> Tensor:
    """(B, 2) height and width of each image of a scene, in pixels; for networks that zoom."""
    sizes = getattr(scene, "sizes", None)
    if sizes is None:
        raise BadSetting(
            "a network with zoom=true looks at scenes that have the attribute `sizes`, but this one has none."
        )
    return torch.as_tensor(sizes, dtype=torch.float64)


def size_of_first(images: Any) -> tuple[int, int]:
    """Height and width of the first of a batch of images: a tensor, or a scene."""
    height, width = images.shape[-2:] if isinstance(images, Tensor) else images.sizes[0]
    return int(height), int(width)


def in_parts(images: Any, parts: int) -> list[Any]:
    """A batch of images, a tensor or a scene, as this many smaller ones."""
    if isinstance(images, Tensor):
        return list(images.tensor_split(parts))
    return [images.keep(rows) for rows in torch.arange(images.count).tensor_split(parts)]


def frames_of(scene: Scene) -> int:
    """Number of frames of each clip in a scene; 1 for images."""
    return int(getattr(scene, "frames", 1))


def as_scene(images: "Tensor | Sequence[Tensor] | Scene", view: ViewSettings | None = None) -> Scene:
    """A scene of a batch (B, 3, H, W), one image (3, H, W), or a list of images of any sizes; a scene stays as it is.

    Clips are (B, F, 3, H, W), or a list of (F, 3, H, W).

    view  normalises images that are uint8, where they are looked at
    """
    if isinstance(images, Tensor):
        batch: Scene = as_batch(images[None] if images.dim() == 3 else images, view)
        return batch
    if isinstance(images, (list, tuple)):
        if not images:
            raise BadSetting("there is nothing to look at: the list of images is empty.")
        if len({(tuple(image.shape), image.dtype) for image in images}) == 1:
            return as_scene(images[0][None] if len(images) == 1 else torch.stack(list(images)), view)
        return MixedImages(tuple(images), view)
    return images  # type: ignore[return-value]


@dataclass(frozen=True)
class Aim:
    """Where the next look goes.

    where      (B, 2) in [0, 1] as (y, x)
    candidate  number of the candidate view that the next look has, one for all rows or (B,) int64
    memory     (B, units) the policy's memory after aiming; None where the policy has none
    mean       (B, 2) where the policy would aim without exploring; None for policies that are not learnt
    value      (B,) the critic's estimate of the reward of further looks; None where there is no critic
    log_prob   (B,) of `where`, where it was drawn from a distribution
    """

    where: Tensor
    candidate: int | Tensor
    memory: Tensor | None = None
    mean: Tensor | None = None
    value: Tensor | None = None
    log_prob: Tensor | None = None

    def keep(self, rows: Tensor) -> "Aim":
        """The aim of these rows, (K,) int64 or a mask (B,)."""
        return Aim(
            where=self.where[rows],
            candidate=_rows(self.candidate, rows),
            memory=_rows(self.memory, rows),
            mean=_rows(self.mean, rows),
            value=_rows(self.value, rows),
            log_prob=_rows(self.log_prob, rows),
        )

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self.where.shape[0])


@dataclass(frozen=True)
class Look:
    """One look at the rows that are still being looked at.

    number         1 for the glance, 2 for the first focus, ...
    scene          what is being looked at, these rows only
    rows           (B,) int64 position of each row in the batch that the glance saw
    logits         (B, classes) the answer after this look
    vector         (B, features) the encoder's pooled features of this look; None where the runner does not give them (only the
                   network's own modules do, for training)
    map            (B, channels, S, S) the same, not pooled; a row seen at a smaller size fills the upper left part only. For clips
                   (B, frames x channels, S, S)
    candidate      number of the candidate view that this look had, one for all rows or (B,) int64; GLANCE for the glance
    memory         (B, ·) the classifier's memory, this look included
    policy_memory  (B, units) the policy's memory before it has seen this look; None at the glance
    aim            where this look was aimed; None for a glance, which sees the whole image
    place          (B, 2) where it was in the whole image, if aims are relative to the last region (NetworkSettings.zoom); None: at
                   aim.where
    known_best     `best`, where the runner has computed it already
    """

    number: int
    scene: Scene
    rows: Tensor
    logits: Tensor
    vector: Tensor | None
    map: Tensor
    candidate: int | Tensor
    memory: Tensor
    policy_memory: Tensor | None = None
    aim: Aim | None = None
    place: Tensor | None = None
    known_best: tuple[Tensor, Tensor] | None = None

    @property
    def count(self) -> int:
        """Number of rows that are still looked at."""
        return int(self.logits.shape[0])

    @functools.cached_property
    def best(self) -> tuple[Tensor, Tensor]:
        """(B,) the largest softmax probability, and (B,) int64 the class that has it."""
        if self.known_best is not None:
            return self.known_best
        confidence, answer = self.logits.float().softmax(dim=1).max(dim=1)
        return confidence, answer

    @property
    def confidence(self) -> Tensor:
        """(B,) the largest softmax probability."""
        return self.best[0]

    @property
    def where(self) -> Tensor | None:
        """(B, 2) where it was in the whole image; None for the glance."""
        return self.place if self.place is not None or self.aim is None else self.aim.where

    @property
    def features(self) -> Tensor:
        """`vector`, where it must be there: for looks of the network's own modules."""
        assert self.vector is not None, "only the network's own modules give the vector of a look"
        return self.vector

    def keep(self, mask: Tensor) -> "Look":
        """The same look at the rows where mask (B,) is true; the others are not copied."""
        return self if bool(mask.all()) else self.at(mask.nonzero(as_tuple=True)[0])

    def at(self, rows: Tensor) -> "Look":
        """The same look at these rows, (K,) int64, in this order; a row may be repeated."""
        return replace(
            self,
            scene=self.scene.keep(rows),
            rows=self.rows[rows],
            logits=self.logits[rows],
            vector=_rows(self.vector, rows),
            map=self.map[rows],
            candidate=_rows(self.candidate, rows),
            memory=self.memory[rows],
            policy_memory=_rows(self.policy_memory, rows),
            aim=None if self.aim is None else self.aim.keep(rows),
            place=_rows(self.place, rows),
            known_best=self.known_best and (self.known_best[0][rows], self.known_best[1][rows]),
        )


def padded_alike(maps: Sequence[Tensor]) -> list[Tensor]:
    """Maps of different sides, padded with zeros to the right and below to the largest."""
    side = max(map_.shape[-1] for map_ in maps)
    short = [side - map_.shape[-1] for map_ in maps]
    return [F.pad(map_, (0, less, 0, less)) if less else map_ for map_, less in zip(maps, short, strict=True)]


def _rows(value: Any, rows: Tensor) -> Any:
    return value[rows] if isinstance(value, torch.Tensor) else value
