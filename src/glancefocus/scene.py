"""A scene: the images or clips that are looked at. A network sees them only through `view(region)`, never as a whole.

`ImageBatch` is a batch of one size, `MixedImages` a list of images or clips of any sizes, `ClipBatch` a batch of clips of one size,
`JoinedScenes` several scenes as one. Keeping some rows copies no pixels in any of them.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from glancefocus.errors import BadSetting
from glancefocus.region import Region, crop, normalise, resized, shrink, shrink_pixels
from glancefocus.settings import ViewSettings


class Scene(Protocol):
    """One or several images, seen only through regions of them.

    The frames of clips are folded into the batch: a view of B clips is (B x frames, 3, px, px), with the same place in every frame.
    A scene of clips also has the attribute `frames`, see `frames_of`.
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


def as_batch(images: Tensor, view: ViewSettings) -> ImageBatch | ClipBatch:
    """A scene of what a split gives: normalised images, or uint8 pixels that are normalised where they are looked at.

    images  (B, 3, H, W), or clips (B, F, 3, H, W)
    """
    kind = ClipBatch if images.dim() == 5 else ImageBatch
    return kind(images, normalise_by=view if images.dtype == torch.uint8 else None)


@dataclass(frozen=True)
class MixedImages:
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
    def count(self) -> int:
        return len(self.images)

    @property
    def frames(self) -> int:
        return 1 if self.images[0].dim() == 3 else int(self.images[0].shape[0])

    def view(self, region: Region) -> Tensor:
        single = (as_scene(image[None], self.normalise_by) for image in self.images)
        return torch.cat([one.view(region.rows(slice(i, i + 1))) for i, one in enumerate(single)])

    def keep(self, rows: Tensor) -> "MixedImages":
        return MixedImages(tuple(self.images[i] for i in rows.tolist()), self.normalise_by)


@dataclass(frozen=True)
class JoinedScenes:
    """Scenes one after the other, as one. No image is copied: each scene is asked for its own views."""

    scenes: tuple[Scene, ...]

    def __post_init__(self) -> None:
        frames = sorted({frames_of(scene) for scene in self.scenes})
        if len(frames) != 1:
            raise BadSetting(f"scenes that are joined must have the same number of frames, but these have {frames}.")

    @property
    def count(self) -> int:
        return sum(scene.count for scene in self.scenes)

    @property
    def frames(self) -> int:
        return frames_of(self.scenes[0])

    def view(self, region: Region) -> Tensor:
        regions = region.split([scene.count for scene in self.scenes])
        return torch.cat([scene.view(own) for scene, own in zip(self.scenes, regions, strict=True)])

    def keep(self, rows: Tensor) -> "Scene":
        places = [(number, row) for number, scene in enumerate(self.scenes) for row in range(scene.count)]
        kept = itertools.groupby((places[row] for row in rows.tolist()), key=lambda place: place[0])
        return join_scenes(
            [
                self.scenes[number].keep(torch.tensor([row for _, row in some], device=rows.device))
                for number, some in kept
            ]
        )


def join_scenes(scenes: Sequence[Scene]) -> Scene:
    """These scenes one after the other, as one."""
    flat = [inner for scene in scenes for inner in (scene.scenes if isinstance(scene, JoinedScenes) else [scene])]
    return flat[0] if len(flat) == 1 else JoinedScenes(tuple(flat))


def frames_of(scene: Scene) -> int:
    """Number of frames of each clip in a scene; 1 for images."""
    return int(getattr(scene, "frames", 1))


def as_scene(images: "Tensor | Sequence[Tensor] | Scene", view: ViewSettings | None = None) -> Scene:
    """A scene of a batch (B, 3, H, W), one image (3, H, W), or a list of images of any sizes; a scene stays as it is.

    Clips are (B, F, 3, H, W), or a list of (F, 3, H, W).

    view  normalises images that are uint8, where they are looked at
    """
    if isinstance(images, Tensor):
        view = view if images.dtype == torch.uint8 else None
        if images.dim() == 5:
            return ClipBatch(images, normalise_by=view)
        return ImageBatch(images[None] if images.dim() == 3 else images, normalise_by=view)
    if isinstance(images, (list, tuple)):
        if not images:
            raise BadSetting("there is nothing to look at: the list of images is empty.")
        if len({(tuple(image.shape), image.dtype) for image in images}) == 1:
            return as_scene(images[0][None] if len(images) == 1 else torch.stack(list(images)), view)
        return MixedImages(tuple(images), view)
    return images  # type: ignore[return-value]
