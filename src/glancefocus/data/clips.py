"""Clips: a few evenly spaced frames of a video file, or of a folder that holds its frames as pictures."""

import os
import random
import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from PIL import Image

from glancefocus.data.images import SUFFIXES, read_picture, walk_visible
from glancefocus.data.video import Limits, VideoFile
from glancefocus.errors import BadClip, BadImage

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
    """What was kept of each frame, in order.

    count  frames of the file or folder itself
    notes  sentences on what is odd: cut off, gaps, fewer frames than asked
    """

    frames: list[Kept]
    count: int
    notes: tuple[str, ...] = ()


def frame_indexes(count: int, frames: int, seed: int | None = None) -> list[int]:
    """Which of `count` frames to take: the middle of each of `frames` equal parts; with a seed, any one of each part.

    As TSM samples when it tests, and when it trains. Where there are fewer frames than asked, all of them, and the last again.
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
    """The frames of a video file, its bytes, or a folder of pictures.

    keep  what to hold of each frame; it gets the frame's picture, upright and in RGB, so that never all of them are in memory
    seed  takes frames at random places, see frame_indexes
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
    """Every clip: files as they are given, folders of frames as they are, other folders searched through, sorted."""
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
    """Video files and folders of frames anywhere in a folder, sorted; hidden ones are passed over."""
    found: list[Path] = []
    for where, files in walk_visible(folder):
        videos = [file for file in files if _is(file, VIDEO_SUFFIXES)]
        found += [Path(where, file) for file in videos]
        if not videos and Path(where) != folder and any(_is(file, FRAME_SUFFIXES) for file in files):
            found.append(Path(where))
    return sorted(found)


def holds_frames(folder: Path) -> bool:
    """Whether a folder is a clip: pictures lie directly in it, and no videos."""
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
        raise BadClip(f"{name} may not be read by this user. Change its permissions.") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte in it
        raise BadClip(f"{name} cannot be read: {error}. Check the path and the disk.") from None


def _from_video(
    video: VideoFile, choose: Callable[[int], list[int]], keep: Callable[[Image.Image], Kept], frames: int
) -> Clip[Kept]:
    kept: dict[int, Kept] = {}
    size: list[tuple[int, int]] = []

    def take(number: int, picture: Image.Image) -> None:
        size.append(picture.size)
        # A stream may change its size half way; a clip has one size, that of its first frame.
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
    """frame2 before frame10, in the digits of any script; names with the same numbers by their spelling."""
    parts = enumerate(re.split(r"(\d+)", _plain_digits(name).lower()))
    return [(int(part), "") if place % 2 else (-1, part) for place, part in parts], name


def _plain_digits(name: str) -> str:
    """The name with digits that have a special form, such as ², in their usual one."""
    return unicodedata.normalize("NFKC", name)


def _gaps(folder: Path, names: list[str]) -> list[str]:
    numbers = [int(found[-1]) for name in names if (found := re.findall(r"\d+", _plain_digits(Path(name).stem)))]
    missing = max(numbers) - min(numbers) + 1 - len(set(numbers)) if len(numbers) == len(names) else 0
    if missing <= 0 or len(set(numbers)) != len(numbers):
        return []
    what = "one frame is" if missing == 1 else f"{missing} frames are"
    return [f"{folder} has gaps: {what} missing between {names[0]} and {names[-1]}; those that are there are used."]


def _too_few(name: str, count: int, frames: int) -> list[str]:
    if count >= frames:
        return []
    has = "one frame" if count == 1 else f"{count} frames"
    return [f"{name} has {has}, fewer than the {frames} that are looked at; the last is repeated."]
