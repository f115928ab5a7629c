"""What is being looked at. A network asks only two things of a scene: a glance of it, and patches of it."""

import functools
import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from glancefocus.errors import BadCheckpoint, BadSetting, ImageTooSmall
from glancefocus.resize import antialiased
from glancefocus.settings import GlanceResize, ViewSettings

# So many are resized in one go on a CPU: memory for far more is given back each time, and getting it again takes long.
FLOATS_AT_ONCE = 1 << 22


class Scene(Protocol):
    """One or several images, seen only through glances and patches.

    Of clips the frames are folded into the batch: a glance of B clips is (B x frames, 3, px, px), a patch has the same place in
    every frame. Such a scene says its number of `frames`.
    """

    @property
    def count(self) -> int:
        """How many images or clips there are."""
        ...

    def glance(self, px: int, resize: GlanceResize = "antialias") -> Tensor:
        """The whole of each image at low resolution, (B, 3, px, px)."""
        ...

    def patch(self, where: Tensor, px: int) -> Tensor:
        """One square patch of each image at full resolution, (B, 3, px, px); where (B, 2) in [0, 1] as (y, x)."""
        ...

    def keep(self, rows: Tensor) -> "Scene":
        """The scene of these rows only; rows (K,) int64."""
        ...


def shrink(images: Tensor, px: int, resize: GlanceResize = "antialias") -> Tensor:
    """The whole of each image at px x px.

    images  (B, 3, H, W)
    resize  antialias: bilinear over the whole footprint of each new pixel. bicubic, bilinear: corners aligned, no antialiasing, as
            the paper's released models were trained.
    """
    return resized(images, (px, px), resize)


def resized(images: Tensor, size: tuple[int, int], resize: GlanceResize) -> Tensor:
    """The whole of each image (B, C, H, W) at this (height, width), see shrink."""
    if resize == "antialias":
        return antialiased(images, size)
    return F.interpolate(images, size=size, mode=resize, align_corners=True)


def top_left(where: Tensor, height_px: int, width_px: int, px: int) -> Tensor:
    """The first row and column of each patch, (B, 2) int64: floor(where x (image - patch)), the product in float32.

    where  (B, 2) in [0, 1] as (y, x): 0 puts the patch against the top or left edge, 1 against the bottom or right, so a patch
           never leaves the image.
    """
    _check_fits(height_px, width_px, px)
    room = _room(height_px - px, width_px - px, where.device)
    return (where.float().clamp(0, 1) * room).floor().long()


def _check_fits(height_px: int, width_px: int, px: int) -> None:
    if px > height_px or px > width_px:
        raise ImageTooSmall(
            f"a patch of {px} px cannot be cut out of an image of {height_px}x{width_px} px. "
            "Use larger images, or a network with smaller patches."
        )


def _corners(where: Tensor, height_px: int, width_px: int, px: int) -> list[tuple[int, int]]:
    """The same, bit for bit: of a few aims Python knows it in a fraction of the time that torch takes."""
    _check_fits(height_px, width_px, px)
    high, wide = height_px - px, width_px - px
    try:
        return [(_floor(y, high), _floor(x, wide)) for y, x in where.float().tolist()]
    except ValueError:
        raise BadCheckpoint(
            "the network aims at NaN: its weights are too large, or broken. Train or import it again."
        ) from None


def _floor(share: float, room: int) -> int:
    """floor(share x room) with the product rounded to float32, as torch does."""
    product: float = _FLOAT32.unpack(_FLOAT32.pack(min(max(share, 0.0), 1.0) * room))[0]
    return int(product)


_FLOAT32 = struct.Struct("f")


@functools.lru_cache(maxsize=64)
def _room(height_px: int, width_px: int, device: torch.device) -> Tensor:
    """(2,) as a tensor; made once, for making one takes longer than using it."""
    with torch.inference_mode(False):  # so that it may be used outside of it, too
        return torch.tensor([height_px, width_px], dtype=torch.float32, device=device)


def crop(images: Tensor, where: Tensor, px: int, rows: Tensor | None = None) -> Tensor:
    """Cut one square patch out of each image, at full resolution, without touching the rest of it.

    images  (N, 3, H, W)
    where   (B, 2), see top_left
    rows    (B,) the image of each patch; None: image i for patch i
    returns (B, 3, px, px)
    """
    height_px, width_px = images.shape[-2:]
    if images.device.type == "cpu" and not torch.compiler.is_compiling():
        # Copying slices is many times faster there than picking pixel by pixel.
        numbers = range(where.shape[0]) if rows is None else rows.tolist()
        corners = _corners(where, height_px, width_px, px)
        if len(corners) == 1 and images.dtype in (torch.float32, torch.uint8) and not images.requires_grad:
            (n,), ((top, left),) = numbers, corners
            # Of one slice numpy makes less ado. "K": channels last stay last.
            return torch.from_numpy(images.numpy()[n : n + 1, :, top : top + px, left : left + px].copy("K"))
        places = zip(numbers, corners, strict=True)
        return torch.cat([images[n : n + 1, :, top : top + px, left : left + px] for n, (top, left) in places])
    start = top_left(where, height_px, width_px, px)
    offsets = torch.arange(px, device=images.device)
    y = (start[:, 0:1] + offsets)[:, :, None]
    x = (start[:, 1:2] + offsets)[:, None, :]
    if rows is None:
        rows = torch.arange(where.shape[0], device=images.device)
    return images[rows[:, None, None], :, y, x].permute(0, 3, 1, 2)


def normalise(images: Tensor, view: ViewSettings) -> Tensor:
    """(..., 3, H, W) uint8 or [0, 1] -> floats with the view's mean and deviation taken out."""
    floats = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    mean = torch.tensor(view.mean, device=images.device)[:, None, None]
    std = torch.tensor(view.std, device=images.device)[:, None, None]
    return (floats - mean) / std


def glance_of_pixels(images: Tensor, px: int, resize: GlanceResize, view: ViewSettings) -> Tensor:
    """The whole of each image (B, 3, H, W) uint8 at px x px, normalised; never all of a large one is held as floats."""
    # Resizing mixes pixels with weights that sum to 1, so it may come before the rest of the arithmetic.
    if images.device.type != "cpu":
        shrunk = shrink(images.float(), px, resize)
    else:
        at_once = FLOATS_AT_ONCE // max(1, images[:1].numel())
        # Of an image that is too large by itself one channel after the other.
        channels = 1 if at_once == 0 else images.shape[1]
        parts = (torch.split(some, channels, dim=1) for some in torch.split(images, max(1, at_once)))
        shrunk = torch.cat([torch.cat([shrink(p.float(), px, resize) for p in some], dim=1) for some in parts])
    return normalise(shrunk / 255, view).contiguous(memory_format=torch.channels_last)


@dataclass(frozen=True)
class ImageBatch:
    """A batch of images of one size, (N, 3, H, W). Dropping a row copies no pixels: only the list of rows changes.

    images  normalised; or uint8, of which only what is looked at is normalised, by the view: of a large scene a small part
    """

    images: Tensor
    rows: Tensor | None = None
    view: ViewSettings | None = None

    def __post_init__(self) -> None:
        if self.images.dim() != 4 or self.images.shape[1] != 3:
            raise BadSetting(
                f"images must be a tensor of shape (batch, 3, height, width), but got {tuple(self.images.shape)}."
            )

    @property
    def count(self) -> int:
        return int(self.images.shape[0] if self.rows is None else self.rows.shape[0])

    @property
    def lone_image(self) -> Tensor | None:
        """The only image, (1, 3, H, W) normalised; None where there are several, or only what is looked at is normalised."""
        if self.count != 1 or self.view is not None:
            return None
        return self.images if self.rows is None else self.images[self.rows]

    @property
    def whole(self) -> Tensor:
        """Every image, normalised: what a plain backbone sees."""
        images = self._normalised(self.images if self.rows is None else self.images[self.rows])
        return images.contiguous(memory_format=torch.channels_last)

    def glance(self, px: int, resize: GlanceResize = "antialias") -> Tensor:
        images = self.images if self.rows is None else self.images[self.rows]
        if self.view is None:
            return shrink(images, px, resize)
        return glance_of_pixels(images, px, resize, self.view)

    def patch(self, where: Tensor, px: int) -> Tensor:
        return self._normalised(crop(self.images, where, px, self.rows))

    def keep(self, rows: Tensor) -> "ImageBatch":
        return ImageBatch(self.images, rows if self.rows is None else self.rows[rows], self.view)

    def _normalised(self, pixels: Tensor) -> Tensor:
        return pixels if self.view is None else normalise(pixels, self.view)


@dataclass(frozen=True)
class ClipBatch:
    """A batch of clips of one size, (N, F, 3, H, W): the same box is cut out of every frame. Dropping a clip copies no pixels.

    clips  normalised; or uint8, of which only what is looked at is normalised, by the view
    """

    clips: Tensor
    rows: Tensor | None = None
    view: ViewSettings | None = None

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

    def glance(self, px: int, resize: GlanceResize = "antialias") -> Tensor:
        return self._images.glance(px, resize)

    def patch(self, where: Tensor, px: int) -> Tensor:
        return self._images.patch(where.repeat_interleave(self.frames, dim=0), px)

    def keep(self, rows: Tensor) -> "ClipBatch":
        return ClipBatch(self.clips, rows if self.rows is None else self.rows[rows], self.view)

    @property
    def _images(self) -> ImageBatch:
        """The frames one after the other, as images; nothing is copied."""
        rows = self.rows
        if rows is not None:
            offsets = torch.arange(self.frames, device=rows.device)
            rows = (rows[:, None] * self.frames + offsets).flatten()
        return ImageBatch(self.clips.flatten(0, 1), rows, self.view)


def as_batch(images: Tensor, view: ViewSettings) -> ImageBatch | ClipBatch:
    """A scene out of what a split gives: normalised images, or the pixels (uint8) of images that the view is to normalise.

    images  (B, 3, H, W), or clips (B, F, 3, H, W)
    """
    kind = ClipBatch if images.dim() == 5 else ImageBatch
    return kind(images, view=view if images.dtype == torch.uint8 else None)


@dataclass(frozen=True)
class MixedImages:
    """Images of different sizes and shapes, each (3, H, W); of those that are uint8 the view normalises what is looked at."""

    images: tuple[Tensor, ...]
    view: ViewSettings | None = None

    def __post_init__(self) -> None:
        for image in self.images:
            if image.dim() != 3 or image.shape[0] != 3:
                raise BadSetting(f"each image must have the shape (3, height, width), but got {tuple(image.shape)}.")

    @property
    def count(self) -> int:
        return len(self.images)

    def glance(self, px: int, resize: GlanceResize = "antialias") -> Tensor:
        return torch.cat([image.glance(px, resize) for image in self._single()])

    def patch(self, where: Tensor, px: int) -> Tensor:
        return torch.cat([image.patch(where[i : i + 1], px) for i, image in enumerate(self._single())])

    def keep(self, rows: Tensor) -> "MixedImages":
        return MixedImages(tuple(self.images[i] for i in rows.tolist()), self.view)

    def _single(self) -> list[ImageBatch]:
        """Each image alone: they share no tensor."""
        return [ImageBatch(i[None], view=self.view if i.dtype == torch.uint8 else None) for i in self.images]


@dataclass(frozen=True)
class MixedClips:
    """Clips of different sizes and shapes, each (F, 3, H, W), all of as many frames; of those that are uint8 see MixedImages."""

    clips: tuple[Tensor, ...]
    view: ViewSettings | None = None

    def __post_init__(self) -> None:
        for clip in self.clips:
            if clip.dim() != 4 or clip.shape[1] != 3 or clip.shape[0] != self.clips[0].shape[0]:
                raise BadSetting(
                    f"each clip must have the shape ({self.clips[0].shape[0]}, 3, height, width), but got {tuple(clip.shape)}."
                )

    @property
    def count(self) -> int:
        return len(self.clips)

    @property
    def frames(self) -> int:
        return int(self.clips[0].shape[0])

    def glance(self, px: int, resize: GlanceResize = "antialias") -> Tensor:
        return torch.cat([clip.glance(px, resize) for clip in self._single()])

    def patch(self, where: Tensor, px: int) -> Tensor:
        return torch.cat([clip.patch(where[i : i + 1], px) for i, clip in enumerate(self._single())])

    def keep(self, rows: Tensor) -> "MixedClips":
        return MixedClips(tuple(self.clips[i] for i in rows.tolist()), self.view)

    def _single(self) -> list[ClipBatch]:
        return [ClipBatch(c[None], view=self.view if c.dtype == torch.uint8 else None) for c in self.clips]


@dataclass(frozen=True)
class JoinedScenes:
    """Scenes one after the other, as one. No image is copied: each scene is asked for its own patches."""

    scenes: tuple[Scene, ...]

    def __post_init__(self) -> None:
        frames = sorted({frames_of(scene) for scene in self.scenes})
        if len(frames) != 1:
            raise BadSetting(f"scenes that are joined must have as many frames each, but these have {frames}.")

    @property
    def count(self) -> int:
        return sum(scene.count for scene in self.scenes)

    @property
    def frames(self) -> int:
        return frames_of(self.scenes[0])

    def glance(self, px: int, resize: GlanceResize = "antialias") -> Tensor:
        return torch.cat([scene.glance(px, resize) for scene in self.scenes])

    def patch(self, where: Tensor, px: int) -> Tensor:
        shares = torch.split(where, [scene.count for scene in self.scenes])
        return torch.cat([scene.patch(share, px) for scene, share in zip(self.scenes, shares, strict=True)])

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
    """How many frames each clip of a scene has; 1 for images."""
    return int(getattr(scene, "frames", 1))


def as_scene(images: "Tensor | Sequence[Tensor] | Scene", view: ViewSettings | None = None) -> Scene:
    """A scene out of a batch (B, 3, H, W), one image (3, H, W), or a list of images of any sizes; a scene stays as it is.

    Clips are (B, F, 3, H, W), or a list of (F, 3, H, W).

    view  normalises images that are uint8, where they are looked at
    """
    if isinstance(images, Tensor):
        view = view if images.dtype == torch.uint8 else None
        if images.dim() == 5:
            return ClipBatch(images, view=view)
        return ImageBatch(images[None] if images.dim() == 3 else images, view=view)
    if isinstance(images, (list, tuple)):
        if not images:
            raise BadSetting("there is nothing to look at: the list of images is empty.")
        if len({(tuple(image.shape), image.dtype) for image in images}) == 1:
            return as_scene(images[0][None] if len(images) == 1 else torch.stack(list(images)), view)
        return MixedClips(tuple(images), view) if images[0].dim() == 4 else MixedImages(tuple(images), view)
    return images  # type: ignore[return-value]
