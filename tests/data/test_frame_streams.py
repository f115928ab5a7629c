"""Frames of cameras, streams and files: every frame of a file, the latest of what does not wait, sentences for what is missing."""

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from glancefocus.data import frame_streams
from glancefocus.data.frame_streams import FrameStream
from glancefocus.errors import BadClip, MissingExtra

MakeVideo = Callable[..., Path]


def test_every_frame_of_a_file_comes_in_order_with_its_time(make_video: MakeVideo, tmp_path: Path) -> None:
    video = make_video(tmp_path / "clip.mp4", frames=12)
    with FrameStream(str(video)) as stream:
        frames = []
        for frame in stream.frames():
            frames.append(frame)
            time.sleep(0.002)  # a file waits
    assert [frame.number for frame in frames] == list(range(12))
    assert [frame.seconds for frame in frames] == pytest.approx([number / 10 for number in range(12)])
    assert frames[0].picture.size == (64, 48)
    # Frame i is grey of brightness 8 x i.
    assert [frame.picture.getpixel((40, 40))[0] for frame in frames] == pytest.approx([8 * n for n in range(12)], abs=4)
    assert stream.dropped == 0


@pytest.fixture
def fake_camera(monkeypatch: pytest.MonkeyPatch) -> None:
    """A camera with 25 frames, which come as fast as they can be decoded."""
    fake = ("lavfi", "testsrc=size=64x48:rate=25:duration=1:decimals={}")
    monkeypatch.setitem(frame_streams.CAMERAS, sys.platform, fake)


def test_of_a_camera_the_latest_frame_counts(fake_camera: None) -> None:
    with FrameStream("0") as stream:
        assert not stream.waits
        numbers = []
        for frame in stream.frames():
            numbers.append(frame.number)
            time.sleep(0.05)
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == 24  # the last frame is always taken
    assert stream.dropped == 25 - len(numbers) > 0


@pytest.fixture
def address(make_video: MakeVideo, tmp_path: Path) -> Iterator[str]:
    """Sends a video of 20 frames to the first to connect, a frame every 20 ms or so."""
    content = make_video(tmp_path / "clip.ts", frames=20, codec="mpeg2video").read_bytes()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def send() -> None:
            connection, _ = server.accept()
            with connection:
                step = len(content) // 20
                for start in range(0, len(content), step):
                    connection.sendall(content[start : start + step])
                    time.sleep(0.02)

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        thread.join(timeout=10)


def test_a_stream_at_an_address_is_read_as_it_comes(address: str) -> None:
    with FrameStream(address) as stream:
        numbers = [frame.number for frame in stream.frames()]
    assert len(numbers) + stream.dropped == 20
    assert numbers == sorted(set(numbers))


def test_a_stream_can_be_left_before_it_ends(fake_camera: None) -> None:
    with FrameStream("0") as stream:
        assert next(stream.frames()).picture.size == (64, 48)
    assert not any(thread.name == "frames" and thread.is_alive() for thread in threading.enumerate())


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("7", r"there is no camera 7 \(/dev/video7: no such file or directory\). Cameras found: "),
        ("/dev/video7", r"there is no camera /dev/video7 "),
        ("nothing.mp4", r"there is no video file nothing.mp4. Give the number of a camera, a file, or an address"),
        (__file__, r"cannot be opened as a video or a stream: invalid data"),
        ("tcp://127.0.0.1:9", r"tcp://127.0.0.1:9 cannot be opened as a video or a stream: connection refused."),
    ],
)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="cameras have other names there")
def test_what_is_not_there_gets_a_sentence(source: str, sentence: str) -> None:
    with pytest.raises(BadClip, match=sentence):
        FrameStream(source)


@pytest.mark.parametrize(
    ("platform", "source", "expected"),
    [
        ("linux", "2", ("/dev/video2", "v4l2")),
        ("linux", "/dev/video1", ("/dev/video1", "v4l2")),
        ("darwin", "0", ("0:none", "avfoundation")),
        ("win32", "video=Integrated Camera", ("video=Integrated Camera", "dshow")),
        ("linux", "rtsp://host/stream", ("rtsp://host/stream", None)),
    ],
)
def test_each_system_has_its_own_cameras(
    platform: str,
    source: str,
    expected: tuple[str, str | None],
    monkeypatch: pytest.MonkeyPatch,
    make_video: MakeVideo,
    tmp_path: Path,
) -> None:
    stream = FrameStream(str(make_video(tmp_path / "clip.mp4", frames=1)))
    monkeypatch.setattr(sys, "platform", platform)
    stream.source, stream.waits = source, False
    assert stream._device() == expected


def test_on_windows_a_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(
        BadClip, match="cameras on this system have names, not numbers. Use --camera video=NAME instead of 0"
    ):
        FrameStream("0")


def test_without_pyav_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingExtra, match=r"\[video\]"):
        FrameStream("0")
