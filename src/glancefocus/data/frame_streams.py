"""Frames of a camera, of a network stream or of a video file, one after the other, with PyAV.

A camera and a stream do not wait. They are decoded in a separate thread that keeps the latest frame only, so that answers are about
the present; frames that arrive faster than they are used are dropped. Every frame of a file is used.
"""

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from PIL import Image

from glancefocus.data.video import MAX_FRAME_PIXELS, frame_picture, reason_of
from glancefocus.errors import BadClip, MissingExtra

OPEN_SECONDS = 10.0
"""How long a camera or a stream may take to open, and between two frames."""

# FFmpeg's input format for cameras on each system, and the device name for a number; cameras on Windows have names only.
CAMERAS = {"linux": ("v4l2", "/dev/video{}"), "darwin": ("avfoundation", "{}:none"), "win32": ("dshow", None)}
_OPTIONS = {"avfoundation": {"framerate": "30"}}  # the default of 29.97 is refused by most cameras


class Frame(NamedTuple):
    """One frame.

    number   from 0, dropped frames included
    seconds  since the start of the stream
    """

    number: int
    seconds: float
    picture: Image.Image


Decoded = tuple[int, float, Any]
"""Number, seconds and PyAV's frame, which is converted to a picture only if it is used."""


class FrameStream:
    """An open camera, stream or file; a context manager that yields frames once.

    source   a camera's number, a device such as /dev/video1, an address such as rtsp://..., or a video file
    dropped  number of frames that were replaced by newer ones before they were used
    """

    def __init__(self, source: str, max_pixels: int | None = None) -> None:
        try:
            import av
        except ImportError:
            raise MissingExtra("av", "video") from None
        self._av: Any = av
        self.source = source
        self.max_pixels = max_pixels or MAX_FRAME_PIXELS
        self.dropped = 0
        self.waits = Path(source).is_file()
        self._container = self._open()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "FrameStream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=2.0)
        if self._thread is None or not self._thread.is_alive():
            self._container.close()

    def frames(self) -> Iterator[Frame]:
        """Every frame of a file; the latest frame of a camera or a stream, each time one is requested."""
        for number, seconds, frame in self._decoded() if self.waits else self._latest():
            yield Frame(number, seconds, frame_picture(self._av, frame, self.source, self.max_pixels))

    def _decoded(self) -> Iterator[Decoded]:
        if not self._container.streams.video:
            raise BadClip(f"{self.source} has no video stream. Name another source.")
        began = time.monotonic()
        decoded = self._container.decode(video=0)
        number = 0
        while not self._stop.is_set():
            try:
                frame = next(decoded, None)
            except self._av.error.FFmpegError as error:
                if number == 0:
                    raise BadClip(f"{self.source} cannot be read: {reason_of(error)}.") from None
                frame = None  # an interrupted stream has ended
            if frame is None:
                return
            seconds = time.monotonic() - began
            if self.waits and frame.time is not None:
                seconds = float(frame.time)
            yield number, seconds, frame
            number += 1

    def _latest(self) -> Iterator[Decoded]:
        slot = _Slot()

        def fill() -> None:
            try:
                for frame in self._decoded():
                    slot.put(frame)
            except BaseException as error:
                slot.end(error)
            else:
                slot.end(None)

        self._thread = threading.Thread(target=fill, daemon=True, name="frames")
        self._thread.start()
        while (frame := slot.take()) is not None:
            yield frame
            self.dropped = slot.dropped

    def _open(self) -> Any:
        name, form = self._device()
        limits: dict[str, Any] = {} if self.waits or form is not None else {"timeout": (OPEN_SECONDS, OPEN_SECONDS)}
        options = {"protocol_whitelist": "file"} if self.waits else _OPTIONS.get(form or "", {})
        try:
            return self._av.open(name, format=form, options=options, **limits)
        except (self._av.error.FFmpegError, ValueError, OSError) as error:
            raise BadClip(self._refusal(name, form, error)) from None

    def _device(self) -> tuple[str, str | None]:
        """The name and the format for FFmpeg; None: it detects the format."""
        form, pattern = CAMERAS.get(sys.platform, (None, None))
        if self.source.startswith(("/dev/video", "video=")):
            return self.source, form
        if not self.source.isdigit() or self.waits:
            return self.source, None
        if pattern is None:
            raise BadClip(
                f"cameras on this system have names, not numbers. Use --camera video=NAME instead of {self.source}."
            )
        return pattern.format(self.source), form

    def _refusal(self, name: str, form: str | None, error: Exception) -> str:
        if form is not None:
            there = ", ".join(sorted(str(path) for path in Path("/dev").glob("video*"))) or "none"
            if isinstance(error, PermissionError):
                return f"no permission to use the camera {name} ({reason_of(error)}). Add this user to the group video."
            return f"there is no camera {self.source} ({name}: {reason_of(error)}). Cameras found: {there}."
        if "://" not in self.source and not self.waits:
            return f"there is no video file {self.source}. Give the number of a camera, a file, or an address such as rtsp://..."
        return f"{self.source} cannot be opened as a video or a stream: {reason_of(error)}."


class _Slot:
    """Holds the latest frame until it is used."""

    def __init__(self) -> None:
        self.dropped = 0
        self._changed = threading.Condition()
        self._frame: Decoded | None = None
        self._ended = False
        self._error: BaseException | None = None

    def put(self, frame: Decoded) -> None:
        with self._changed:
            self.dropped += self._frame is not None
            self._frame = frame
            self._changed.notify()

    def end(self, error: BaseException | None) -> None:
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify()

    def take(self) -> Decoded | None:
        """Wait for a frame and return the latest; None when the stream has ended."""
        with self._changed:
            while self._frame is None and not self._ended:
                self._changed.wait(timeout=0.2)  # so that Ctrl-C is handled
            frame, self._frame = self._frame, None
            if frame is None and self._error is not None:
                raise self._error
            return frame
