"""Clips: a few evenly spaced frames of a video file or of a folder of pictures, read, viewed and augmented for a network."""

import os
import random
import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from glancefocus.data.arrays import view_tensor
from glancefocus.data.augmentation import AugmentSettings, mix, shifted
from glancefocus.data.folders import SUFFIXES, walk_visible
from glancefocus.data.images import RESAMPLING, pixels_of, read_picture, view_picture
from glancefocus.data.splits import Batch, FileSplit
from glancefocus.data.video import Limits, VideoFile
from glancefocus.errors import BadClip, BadImage
from glancefocus.machine import check_memory
from glancefocus.region import Placement, normalise
from glancefocus.settings import ViewSettings, as_pixels

VIDEO_SUFFIXES = frozenset(
    (
        *(".mp4", ".m4v", ".mov", ".webm", ".mkv", ".avi", ".gif", ".mpg", ".mpeg", ".ts", ".mts", ".m2ts"),
        *(".wmv", ".flv", ".ogv", ".3gp"),
    )
)
FRAME_SUFFIXES = SUFFIXES - {".gif"}

Kept = TypeVar("Kept")


@dataclass(frozen=True)
class Clip(Generic[Kept]):
    """What `keep` returned for each chosen frame, in order; see read_clip.

    count  number of frames in the file or folder
    notes  remarks: cut off, gaps, fewer frames than requested
    """

    frames: list[Kept]
    count: int
    notes: tuple[str, ...] = ()


def frame_indexes(count: int, frames: int, seed: int | None = None) -> list[int]:
    """Which of `count` frames to take: the middle of each of `frames` equal parts, or with a seed a random one of each part.

    TSM samples in the same way for testing and training. If there are fewer frames than requested, the last one is repeated.
    """
    if count < frames:
        return [*range(count), *[count - 1] * (frames - count)]
    if seed is None:
        return [(2 * part + 1) * count // (2 * frames) for part in range(frames)]
    long, draw = count // frames, random.Random(seed)
    return [part * long + draw.randrange(long) for part in range(frames)]


def read_clip(
    source: str | Path | bytes,
    frames: int,
    keep: Callable[[Image.Image], Kept],
    *,
    seed: int | None = None,
    limits: Limits | None = None,
    name: str | None = None,
) -> Clip[Kept]:
    """Chosen frames of a video file, of its bytes, or of a folder of pictures.

    keep  called with each frame, upright and in RGB; only what it returns stays in memory
    seed  takes random frames, see frame_indexes
    """
    limits = limits or Limits()
    name = name or ("the clip on standard input" if isinstance(source, bytes) else str(source))
    choose = partial(frame_indexes, frames=frames, seed=seed)
    if isinstance(source, bytes):
        if not source:
            raise BadClip(f"{name} is empty. Save or download it again.")
        return _from_video(VideoFile(source, name, limits), choose, keep, frames)
    path = Path(source)
    if path.is_dir():
        return _from_folder(path, choose, keep, frames, limits)
    _check_file(path, name)
    return _from_video(VideoFile(path, name, limits), choose, keep, frames)


def find_clips(paths: Iterable[str | Path]) -> list[Path]:
    """All clips: files and folders of frames as given; other folders are searched and their clips sorted."""
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir() or holds_frames(path):
            found.append(path)
            continue
        inside = clips_inside(path)
        if not inside:
            raise BadClip(
                f"there are no clips in the folder {path}. Name video files such as .mp4, or folders of frames."
            )
        found.extend(inside)
    return found


def clips_inside(folder: Path) -> list[Path]:
    """Video files and folders of frames anywhere in a folder, sorted, without hidden ones."""
    found: list[Path] = []
    for where, files in walk_visible(folder):
        videos = [file for file in files if _is(file, VIDEO_SUFFIXES)]
        found += [Path(where, file) for file in videos]
        if not videos and Path(where) != folder and any(_is(file, FRAME_SUFFIXES) for file in files):
            found.append(Path(where))
    return sorted(found)


def holds_frames(folder: Path) -> bool:
    """Whether a folder is a clip: it contains pictures and no videos."""
    files = [entry.name for entry in os.scandir(folder) if entry.is_file()]
    return any(_is(file, FRAME_SUFFIXES) for file in files) and not any(_is(file, VIDEO_SUFFIXES) for file in files)


def frame_names(folder: Path) -> list[str]:
    """The pictures in a folder of frames, in the order of their numbers."""
    try:
        names = [entry.name for entry in os.scandir(folder) if _is(entry.name, FRAME_SUFFIXES) and entry.is_file()]
    except OSError as error:
        raise BadClip(f"the folder {folder} cannot be read: {error.strerror}. Check its permissions.") from None
    if not names:
        raise BadClip(f"the folder {folder} holds no frames. Name a folder with pictures such as 00001.jpg.")
    return sorted(names, key=_in_order)


def _is(file: str, suffixes: frozenset[str]) -> bool:
    return not file.startswith(".") and Path(file).suffix.lower() in suffixes


def _check_file(path: Path, name: str) -> None:
    try:
        if not path.exists():
            raise BadClip(f"there is no file {name}. Check the path.")
        if not path.is_file():
            raise BadClip(f"{name} is neither a file nor a folder. Name a video file or a folder of frames.")
        with path.open("rb") as file:
            if not file.read(1):
                raise BadClip(f"{name} is empty. Save or download it again.")
    except PermissionError:
        raise BadClip(f"no permission to read {name}. Change its permissions.") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte in it
        raise BadClip(f"{name} cannot be read: {error}. Check the path and the disk.") from None


def _from_video(
    video: VideoFile, choose: Callable[[int], list[int]], keep: Callable[[Image.Image], Kept], frames: int
) -> Clip[Kept]:
    kept: dict[int, Kept] = {}
    size: list[tuple[int, int]] = []

    def take(number: int, picture: Image.Image) -> None:
        size.append(picture.size)
        # The size may change in the middle of a stream; a clip has one size, that of its first frame.
        kept[number] = keep(picture if picture.size == size[0] else picture.resize(size[0]))

    chosen = video.read(choose, take)
    notes = video.notes + _too_few(video.name, video.count, frames)
    return Clip([kept[number] for number in chosen], video.count, tuple(notes))


def _from_folder(
    folder: Path,
    choose: Callable[[int], list[int]],
    keep: Callable[[Image.Image], Kept],
    frames: int,
    limits: Limits,
) -> Clip[Kept]:
    names = frame_names(folder)
    chosen = choose(len(names))
    kept: dict[int, Kept] = {}
    size: tuple[int, int] | None = None
    for number in sorted(set(chosen)):
        try:
            picture = read_picture(folder / names[number], max_pixels=limits.pixels)
        except BadImage as error:
            raise BadClip(f"a frame of {folder} cannot be read: {error}") from None
        size = size or picture.size
        if picture.size != size:
            raise BadClip(
                f"the frames of {folder} differ in size: {names[number]} has {picture.width}x{picture.height} px, others "
                f"{size[0]}x{size[1]}. Put each clip into a folder of its own."
            )
        kept[number] = keep(picture)
    notes = _gaps(folder, names) + _too_few(str(folder), len(names), frames)
    return Clip([kept[number] for number in chosen], len(names), tuple(notes))


def _in_order(name: str) -> tuple[list[tuple[int, str]], str]:
    """Sort key that puts frame2 before frame10, for digits of any script; equal numbers are sorted by spelling."""
    parts = enumerate(re.split(r"(\d+)", _plain_digits(name).lower()))
    return [(int(part), "") if place % 2 else (-1, part) for place, part in parts], name


def _plain_digits(name: str) -> str:
    """The name with special forms of digits, such as ², replaced by the usual ones."""
    return unicodedata.normalize("NFKC", name)


def _gaps(folder: Path, names: list[str]) -> list[str]:
    numbers = [int(found[-1]) for name in names if (found := re.findall(r"\d+", _plain_digits(Path(name).stem)))]
    missing = max(numbers) - min(numbers) + 1 - len(set(numbers)) if len(numbers) == len(names) else 0
    if missing <= 0 or len(set(numbers)) != len(numbers):
        return []
    what = "one frame is" if missing == 1 else f"{missing} frames are"
    return [f"{folder} has gaps: {what} missing between {names[0]} and {names[-1]}; the others are used."]


def _too_few(name: str, count: int, frames: int) -> list[str]:
    if count >= frames:
        return []
    has = "one frame" if count == 1 else f"{count} frames"
    return [f"{name} has {has}, fewer than the {frames} that the network needs; the last is repeated."]


SCALES = (1.0, 0.875, 0.75, 0.66)
"""Sides of the crops in TSM's training, as shares of the largest one."""

# Positions of a crop, in quarters of the free space: corners, edges and middle, and four places between.
_PLACES = tuple((y, x) for y in range(5) for x in range(5) if (y % 2 == 0) == (x % 2 == 0))


def view_clip(
    source: str | Path | bytes,
    frames: int,
    view: ViewSettings,
    *,
    limits: Limits | None = None,
    name: str | None = None,
    see: Callable[[Image.Image], tuple[Tensor, Placement]] | None = None,
) -> tuple[Tensor, Placement, Clip[Tensor]]:
    """The normalised frames (F, 3, H, W) of a clip, their position in its pictures, and the clip with its remarks.

    see  makes the image of one frame; None: view_picture does
    """
    placements: list[Placement] = []

    def keep(picture: Image.Image) -> Tensor:
        image, placement = view_picture(picture, view) if see is None else see(picture)
        if not placements:
            check_frames(image, frames, name or ("a clip" if isinstance(source, bytes) else str(source)))
        placements.append(placement)
        return image

    clip = read_clip(source, frames, keep, limits=limits, name=name)
    return torch.stack(clip.frames), placements[0], clip


def check_frames(first: Tensor, frames: int, name: str) -> None:
    """Refuse a clip whose frames would not fit into memory; they are copied once when they are stacked into one tensor."""
    check_memory(2 * frames * first.numel() * first.element_size(), f"{name} ({frames} frames)")


def view_clip_array(
    clip: Tensor | np.ndarray[Any, Any] | Image.Image, frames: int, view: ViewSettings, least_px: int = 1
) -> tuple[Tensor, Placement]:
    """The normalised frames of an array (F, H, W, 3) of uint8, or of a tensor (F, 3, H, W) of uint8 or floats in [0, 1]."""
    if isinstance(clip, Image.Image):
        raise BadImage(f"this network takes clips of {frames} frames, not a single picture. Give a video, or a tensor.")
    if isinstance(clip, np.ndarray):
        if clip.ndim != 4 or clip.shape[3] != 3 or clip.dtype != np.uint8:
            raise BadImage(
                f"a clip as an array must be uint8 (frames, height, width, 3), but got {clip.dtype} {clip.shape}."
            )
        clip = torch.from_numpy(clip).permute(0, 3, 1, 2)
    if clip.dim() != 4 or clip.shape[0] != frames or clip.shape[1] != 3:
        raise BadImage(f"a clip must have the shape ({frames}, 3, height, width), but got {tuple(clip.shape)}.")
    viewed = [view_tensor(image, view, least_px) for image in clip]
    return torch.stack([image for image, _ in viewed]), viewed[0][1]


def augmented_clip(source: Path, frames: int, view: ViewSettings, augment: AugmentSettings, seed: int) -> Tensor:
    """Normalised frames (F, 3, H, W) at random times, all cropped, mirrored and shifted in the same way, as TSM trains."""

    def keep(picture: Image.Image) -> Tensor:
        draw = random.Random(seed)  # a new one for each frame, so that all frames get the same choice
        mirrored = augment.flip and draw.random() < 0.5
        if augment.crop < 1 and view.fit != "whole":
            box = multi_scale_crop(picture.height, picture.width, view, draw)
            resized = picture.resize((view.width_px, view.height_px), RESAMPLING[view.interpolation], box=box)
            image = normalise(pixels_of(resized), view)
        else:
            image, _ = view_picture(picture, view)
        return shifted(image.flip(-1) if mirrored else image, seed, augment.shift_px)

    return torch.stack(read_clip(source, frames, keep, seed=seed).frames)


def multi_scale_crop(height: int, width: int, view: ViewSettings, draw: random.Random) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) of a random part of a frame: TSM's multi-scale crop.

    Height and width are one of SCALES times the largest crop of the view's shape, at most one step apart; there are 13 positions.
    """
    scale = min(height / view.height_px, width / view.width_px)
    largest_h, largest_w = view.height_px * scale, view.width_px * scale
    sides = [
        (_snapped(largest_h * SCALES[i], view.height_px), _snapped(largest_w * SCALES[j], view.width_px))
        for i in range(len(SCALES))
        for j in range(len(SCALES))
        if abs(i - j) <= 1
    ]
    crop_h, crop_w = draw.choice(sides)
    quarters_y, quarters_x = draw.choice(_PLACES)
    top, left = quarters_y * ((height - crop_h) // 4), quarters_x * ((width - crop_w) // 4)
    return left, top, left + crop_w, top + crop_h


def _snapped(side: float, wanted_px: int) -> int:
    """The side, or wanted_px if they differ by less than 3 px, so that nothing is resized by a pixel or two."""
    return wanted_px if abs(int(side + 1e-6) - wanted_px) < 3 and wanted_px <= side else max(1, int(side + 1e-6))


@dataclass
class ClipFileSplit(FileSplit):
    """Clips in video files or in folders of frames; their batches are (B, frames, 3, H, W)."""

    frames: int = 8

    @property
    def fixed(self) -> bool:
        return False  # frames are taken at random times

    def _reader(self) -> "Dataset[Batch | str]":
        return _Clips(self.files, self.labels, self.view, self.augment, self.frames)

    def _viewed(self, index: int) -> Tensor:
        clip, _, _ = view_clip(self.files[index], self.frames, as_pixels(self.view))
        return (clip * 255).round().to(torch.uint8)


class _Clips(Dataset[Batch | str]):
    """Reads one clip of a split in a worker of the loader; a clip that cannot be read gives a sentence instead."""

    def __init__(
        self, files: list[Path], labels: Tensor, view: ViewSettings, augment: AugmentSettings, frames: int
    ) -> None:
        self.files = files
        self.labels = labels
        self.view = view
        self.augment = augment
        self.frames = frames

    def __getitem__(self, asked: tuple[int, int | None]) -> Batch | str:
        index, seed = asked
        file = self.files[index]
        try:
            if seed is None:
                clip, _, _ = view_clip(file, self.frames, self.view)
            else:
                clip = augmented_clip(file, self.frames, self.view, self.augment, mix(seed, index))
        except BadImage as error:
            return f"{error} Remove the clip, or let the check of the files skip it (--check-files)."
        return clip, self.labels[index]
