"""Reads a few frames of a video file with PyAV, decoding no more than needed.

A first pass reads packets without decoding them, which gives the number of frames, their times, and the key frames, where decoding
can start. Then each run of wanted frames is decoded from the nearest key frame before it, skipping frames that no other refers to.
So a short clip is decoded from start to end, and only a small part of a long one.
"""

import bisect
import io
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from glancefocus.data.images import as_rgb
from glancefocus.errors import BadClip, MissingExtra

MAX_FRAME_PIXELS = 40_000_000  # 8K has 35 million; a decoder holds several frames at once
MAX_SECONDS = 60.0

# Formats that contain frames and sound. Playlists, which name other files, are left out: a clip may be untrusted.
_FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,gif,mpeg,mpegts,flv,asf,ogg,h264,hevc,ivf,obu,m4v,mjpeg,apng,nut,mxf"
)
# The transposition for each orientation of the display matrix, see _orientation.
_TURNS = {
    (False, True, False): Image.Transpose.FLIP_LEFT_RIGHT,
    (False, False, True): Image.Transpose.FLIP_TOP_BOTTOM,
    (False, True, True): Image.Transpose.ROTATE_180,
    (True, False, False): Image.Transpose.TRANSPOSE,
    (True, True, False): Image.Transpose.ROTATE_270,
    (True, False, True): Image.Transpose.ROTATE_90,
    (True, True, True): Image.Transpose.TRANSVERSE,
}

Take = Callable[[int, Image.Image], None]
"""Called with the number and the picture of a frame."""


@dataclass(frozen=True)
class Limits:
    """Limits for reading one clip; a clip that exceeds them is refused.

    pixels   of one frame
    seconds  for reading the whole clip
    """

    pixels: int = MAX_FRAME_PIXELS
    seconds: float = MAX_SECONDS


class _Watch:
    """Refuses a clip that takes too long to read."""

    def __init__(self, name: str, seconds: float) -> None:
        self.name = name
        self.seconds = seconds
        self.ends_at = time.monotonic() + seconds

    def check(self) -> None:
        if time.monotonic() > self.ends_at:
            raise BadClip(
                f"{self.name} takes longer than {self.seconds:g} s to read. Cut it shorter or make it smaller, or raise the limit."
            )


@dataclass(frozen=True)
class _Timetable:
    """The times of the frames, in ticks of the stream.

    shown    of all frames, sorted
    keys     of the key frames, where decoding can start, sorted
    exact    whether a frame can be found by its time; otherwise frames must be counted
    missing  how many frames the header promises that are not in the file
    """

    shown: list[int]
    keys: list[int]
    exact: bool
    missing: int


class VideoFile:
    """A video file, or its bytes.

    name   used in errors
    count  number of frames: by its packets at first, and by what could be decoded after reading
    """

    def __init__(self, source: Path | bytes, name: str, limits: Limits) -> None:
        try:
            import av
        except ImportError:
            raise MissingExtra("av", "video") from None
        self._av: Any = av
        self.source = source
        self.name = name
        self.limits = limits
        self._watch = _Watch(name, limits.seconds)
        self._table = self._read_timetable()
        self.count = len(self._table.shown)

    @property
    def notes(self) -> list[str]:
        """Remarks on a file that can be used nevertheless."""
        if self._table.missing == 0:
            return []
        promised = self.count + self._table.missing
        return [f"{self.name} is cut off: it has {self.count} of its {promised} frames."]

    def read(self, choose: Callable[[int], list[int]], take: Take) -> list[int]:
        """Call `take` for the chosen frames, in order; returns their numbers. If seeking fails, some frames are taken twice.

        choose  gives the wanted frame numbers for a number of frames; called again if the file proves to have fewer
        """
        wanted = choose(self.count)
        if self._table.exact:
            place = {shown: number for number, shown in enumerate(self._table.shown)}
            left = sorted({self._table.shown[number] for number in wanted})
            if self._read_by_seeking(left, place, take):
                return wanted
        for _ in range(2):
            there = self._read_by_counting(set(wanted), take)
            if there is None:
                return wanted
            if there == 0:
                raise BadClip(f"{self.name} is damaged: none of its frames can be decoded. Save or download it again.")
            self.count = there
            wanted = choose(there)
        raise BadClip(f"{self.name} is damaged: its frames cannot be decoded. Save or download it again.")

    def _read_by_seeking(self, wanted: list[int], place: dict[int, int], take: Take) -> bool:
        """Take the wanted frames; False if some were not found."""
        moved = False
        with self._opened() as (container, stream):
            for start, run in _runs(wanted, self._table.keys):
                missing = set(run)
                try:
                    if start > self._table.keys[0] or moved:
                        container.seek(start, stream=stream, backward=True)
                        moved = True
                except self._av.error.FFmpegError:
                    return False
                for frame in self._decoded(container, stream, missing):
                    if frame.pts in missing:
                        take(place[frame.pts], self._picture(frame))
                        missing.remove(frame.pts)
                    if not missing or frame.pts is None or frame.pts > run[-1]:
                        break
                if missing:
                    return False
        return True

    def _read_by_counting(self, wanted: set[int], take: Take) -> int | None:
        """Decode from the first frame to the last wanted one; returns the number of frames if the file ends before it."""
        last, number = max(wanted), 0
        with self._opened() as (container, stream):
            for frame in self._decoded(container, stream, None):
                if number in wanted:
                    take(number, self._picture(frame))
                if number == last:
                    return None
                number += 1
        return number

    def _decoded(self, container: Any, stream: Any, needed: set[int] | None) -> Iterator[Any]:
        """Frames from the current position. Frames that are neither needed nor referred to are not decoded."""
        codec = stream.codec_context
        for packet in self._packets(container, stream):
            if needed is not None and packet.size:
                codec.skip_frame = "DEFAULT" if packet.pts in needed else "NONREF"
            try:
                yield from packet.decode()
            except self._av.error.FFmpegError:
                continue  # a damaged packet; the caller notices if its frame is missing
            except EOFError:
                return

    def _packets(self, container: Any, stream: Any) -> Iterator[Any]:
        """Packets from the current position, up to the first that cannot be read."""
        packets = container.demux(stream)
        while True:
            self._watch.check()
            try:
                packet = next(packets)
            except (StopIteration, self._av.error.FFmpegError):
                return
            yield packet

    def _picture(self, frame: Any) -> Image.Image:
        return frame_picture(self._av, frame, self.name, self.limits.pixels)

    def _read_timetable(self) -> _Timetable:
        shown: list[int] = []
        keys: list[int] = []
        timed = True
        with self._opened() as (container, stream):
            size = int(stream.codec_context.width), int(stream.codec_context.height)
            _check_size(*size, self.name, self.limits.pixels)
            promised = int(stream.frames)
            for packet in self._packets(container, stream):
                if not packet.size or packet.is_discard or packet.is_corrupt:
                    continue
                timed &= packet.pts is not None
                when = len(shown) if packet.pts is None else int(packet.pts)
                shown.append(when)
                if packet.is_keyframe:
                    keys.append(when)
            # AVI stores no times, so frames whose display order differs from their storage order cannot be found.
            ordered = container.format.name != "avi" or not stream.codec_context.has_b_frames
        if not shown:
            raise BadClip(f"{self.name} has a video stream without frames, or is cut off. Save or download it again.")
        exact = timed and ordered and bool(keys) and len(set(shown)) == len(shown) and min(keys) == min(shown)
        return _Timetable(sorted(shown), sorted(keys), exact, max(0, promised - len(shown)))

    @contextmanager
    def _opened(self) -> Iterator[tuple[Any, Any]]:
        """The container and its video stream."""
        options = {"format_whitelist": _FORMATS, "protocol_whitelist": "file"}
        source = io.BytesIO(self.source) if isinstance(self.source, bytes) else str(self.source)
        if isinstance(source, io.BytesIO):
            del options["protocol_whitelist"]
        try:
            container = self._av.open(source, options=options)
        except (self._av.error.FFmpegError, ValueError) as error:
            raise BadClip(
                f"{self.name} is not a video that can be read, or it is cut off ({reason_of(error)}). "
                "Save or download it again, or convert it to MP4."
            ) from None
        with container:
            pictures = self._av.stream.Disposition.attached_pic
            streams = [s for s in container.streams.video if not s.disposition & pictures]
            if not streams:
                kinds = sorted({str(s.type) for s in container.streams})
                raise BadClip(
                    f"{self.name} has no video stream, only {' and '.join(kinds) or 'nothing'}. Give a file that has one."
                )
            if streams[0].codec_context is None:
                raise BadClip(f"{self.name} is in a format without a decoder here. Convert it to MP4.")
            yield container, streams[0]


def frame_picture(av: Any, frame: Any, name: str, max_pixels: int) -> Image.Image:
    """The frame as a viewer shows it: upright, in RGB, transparency on white.

    av  the module of PyAV
    """
    _check_size(frame.width, frame.height, name, max_pixels)  # the size may change in the middle of a stream
    try:
        if any(component.is_alpha for component in frame.format.components):
            picture = as_rgb(Image.fromarray(frame.to_ndarray(format="rgba")))
        else:
            picture = Image.fromarray(frame.to_ndarray(format="rgb24"))
    except (av.error.FFmpegError, ValueError, MemoryError) as error:
        raise BadClip(f"a frame of {name} cannot be converted to a picture ({reason_of(error)}).") from None
    matrix = frame.side_data.get("DISPLAYMATRIX")
    turn = None if matrix is None else _TURNS.get(_orientation(bytes(matrix)))
    return picture if turn is None else picture.transpose(turn)


def _check_size(width: int, height: int, name: str, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise BadClip(
            f"{name} has frames of {width}x{height} px, more than the limit of {max_pixels:,} pixels. "
            "Make it smaller, or raise the limit if you trust it."
        )


def _orientation(matrix: bytes) -> tuple[bool, bool, bool]:
    """(transpose, then mirror left-right, then mirror top-bottom): the nearest of the eight orientations.

    matrix  nine 32-bit numbers (a b u, c d v, x y w): a pixel at (x, y) is shown at (a x + c y, b x + d y), y pointing down
    """
    a, b, _, c, d, *_ = struct.unpack("=9i", matrix)
    if abs(b) + abs(c) > abs(a) + abs(d):
        return True, c < 0, b < 0
    return False, a < 0, d < 0


def _runs(wanted: list[int], keys: list[int]) -> Iterator[tuple[int, list[int]]]:
    """(key frame to start at, wanted frames from there on), so that nothing between two runs is decoded."""
    run: list[int] = []
    start = keys[0]
    for shown in wanted:
        key = keys[max(0, bisect.bisect_right(keys, shown) - 1)]
        if run and key != start:
            yield start, run
            run = []
        start = key
        run.append(shown)
    if run:
        yield start, run


def reason_of(error: BaseException) -> str:
    """The text of an error of PyAV or the system, for a sentence."""
    return str(getattr(error, "strerror", None) or error).rstrip(".").lower()
