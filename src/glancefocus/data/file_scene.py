"""Images of large pictures as a scene: each look reads its own region from the file, at the resolution that it needs."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from glancefocus.data.file_picture import FilePicture, FloatBox
from glancefocus.data.images import LARGE_PIXELS, RESAMPLING, fitted, pixels_of
from glancefocus.errors import BadImage
from glancefocus.look import as_scene
from glancefocus.region import Placement, Region, normalise, resized, top_left
from glancefocus.settings import Interpolation, View, ViewSettings


@dataclass(frozen=True)
class FileImage:
    """The image of a large picture that a network looks at. Its pixels stay in the file.

    size_px        height and width of the image
    placement      where it lies in the picture
    interpolation  by which the picture would be resized to the image
    device         of the pixels that a look gets
    glances        pixels of views of the whole image that were read ahead
    problems       what was wrong with parts that could not be read; a look sees black there
    """

    picture: FilePicture
    size_px: tuple[int, int]
    placement: Placement = Placement()  # noqa: RUF009, it is frozen
    interpolation: Interpolation = "bilinear"
    device: torch.device = torch.device("cpu")  # noqa: RUF009
    glances: dict[View, Tensor] = field(default_factory=dict, repr=False)
    problems: list[str] = field(default_factory=list)

    @property
    def shape(self) -> torch.Size:
        """As of a tensor (3, height, width)."""
        return torch.Size((3, *self.size_px))

    @property
    def nbytes(self) -> int:
        """Most memory that the picture may come to take."""
        return self.picture.held_bytes

    def to(self, device: torch.device) -> "FileImage":
        """The same image for a network on another device."""
        return self if device == self.device else replace(self, device=device)

    def read_ahead(self, view: View) -> None:
        """Read a view of the whole image now. Raises BadImage."""
        self.glances[view] = self.pixels(view, None)

    def pixels(self, view: View, where: Tensor | None) -> Tensor:
        """What a look sees, (3, px, px), as uint8 or as floats in [0, 1]; where (2,). Raises BadImage."""
        if view in self.glances:
            return self.glances[view]
        size = (view.px, view.px)
        box, covered_px = self._box(view, where)
        if where is not None and covered_px == size:
            return pixels_of(self.picture.cut(box, size, RESAMPLING[self.interpolation]))
        part, inner = self.picture.part(box, size)
        if view.resize == "antialias":
            return _resized_exactly(part, inner, size)
        left, top, right, bottom = map(round, inner)
        covered = pixels_of(part.crop((left, top, max(right, left + 1), max(bottom, top + 1))))
        return resized(covered[None].float() / 255, size, view.resize)[0]

    def _box(self, view: View, where: Tensor | None) -> tuple[FloatBox, tuple[int, int]]:
        """The region in pixels of the picture, and its height and width in pixels of the image."""
        top, left, (height, width) = 0, 0, self.size_px
        if where is not None:
            extent_px = view.extent_px(height, width)
            top, left = top_left(where[None].cpu(), height, width, extent_px)[0].tolist()
            height = width = extent_px
        return self.placement.exact_box(top, left, height, width), (height, width)


_KEPT_SHRINK = 4  # a part that is more than twice this many times as large as what is seen is averaged first


def _resized_exactly(part: Image.Image, box: FloatBox, size: tuple[int, int]) -> Tensor:
    """A box of an RGB picture at this size, (3, height, width) in [0, 1]: as floats, because images in memory are resized so.

    Rounding to 8 bits would change the pixels as much as reading from a smaller level does.
    """
    times = int(min((box[2] - box[0]) / size[0], (box[3] - box[1]) / size[1])) // _KEPT_SHRINK
    if times > 1:
        shrink = 1 << (times.bit_length() - 1)
        left, top, right, bottom = box
        part = part.reduce(shrink)
        box = (left / shrink, top / shrink, min(right / shrink, part.width), min(bottom / shrink, part.height))
    bands = [band.convert("F").resize(size, Image.Resampling.BILINEAR, box=box) for band in part.split()]
    return torch.from_numpy(np.stack([np.asarray(band) for band in bands])) / 255


@dataclass(frozen=True)
class FileScene:
    """Images of which some are in files, each (3, H, W); those of several images are read by several threads.

    normalise_by  mean and deviation for pixels from files, and for tensors that are uint8
    """

    images: tuple[Tensor | FileImage, ...]
    normalise_by: ViewSettings

    @property
    def count(self) -> int:
        return len(self.images)

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Height and width of each image."""
        return [(image.shape[-2], image.shape[-1]) for image in self.images]

    def view(self, region: Region) -> Tensor:
        places = [None] * self.count if region.where is None else list(region.where)
        readers = min(self.count, os.cpu_count() or 1)
        if readers == 1:
            seen = [_read(image, region.view, where) for image, where in zip(self.images, places, strict=True)]
        else:
            with ThreadPoolExecutor(readers) as pool:
                seen = list(pool.map(_read, self.images, [region.view] * self.count, places))
        rows = [
            self._of_tensor(image, region.rows(slice(row, row + 1)))
            if isinstance(image, Tensor)
            else normalise(pixels.to(image.device), self.normalise_by)[None]
            for row, (image, pixels) in enumerate(zip(self.images, seen, strict=True))
        ]
        return torch.cat(rows).contiguous(memory_format=torch.channels_last)

    def keep(self, rows: Tensor) -> "FileScene":
        return FileScene(tuple(self.images[row] for row in rows.tolist()), self.normalise_by)

    def _of_tensor(self, image: Tensor, region: Region) -> Tensor:
        return as_scene(image[None], self.normalise_by).view(region)


def _read(image: Tensor | FileImage, view: View, where: Tensor | None) -> Tensor:
    """The pixels of one look from a file; nothing for an image in memory. A part that cannot be read is noted, and black."""
    if isinstance(image, Tensor):
        return image
    try:
        return image.pixels(view, where)
    except BadImage as error:
        image.problems.append(str(error))
        return torch.zeros(3, view.px, view.px, dtype=torch.uint8)


def view_file(
    picture: FilePicture, view: ViewSettings, least_px: int, glance: View
) -> tuple[Tensor | FileImage, Placement]:
    """The image of a large picture: a tensor of uint8 where it is small, else a FileImage; and its position in the picture.

    least_px  see images.view_pixels
    glance    view of the whole image that is read now, so that damage is found before the looks begin
    """
    width, height = picture.size
    fit = fitted(height, width, view, least_px)
    _, _, image_height, image_width = fit.crop
    if fit.placement.note or image_height * image_width <= LARGE_PIXELS:
        box = fit.placement.exact_box(0, 0, image_height, image_width)
        small = picture.cut(box, (image_width, image_height), RESAMPLING[view.interpolation])
        return pixels_of(small), fit.placement
    image = FileImage(picture, (image_height, image_width), fit.placement, view.interpolation)
    image.read_ahead(glance)
    return image, fit.placement
