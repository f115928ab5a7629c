"""Frames are taken where they should be, from every kind of file that people have, and what is broken is said in a sentence."""

import contextlib
import random
import shutil
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from glancefocus.data import video as video_files
from glancefocus.data.clips import Clip, find_clips, frame_indexes, read_clip
from glancefocus.data.video import Limits, VideoFile
from glancefocus.errors import BadClip, MissingExtra

MakeVideo = Callable[..., Path]


def grey(picture: Image.Image) -> int:
    """The number of a frame that make_video drew, by its brightness."""
    return round(float(np.asarray(picture)[-8:, -8:].mean()) / 8)


def numbers(source: Path | bytes, frames: int, **more: Any) -> Clip[int]:
    return read_clip(source, frames, grey, **more)


def frame_folder(folder: Path, names: list[str], size: tuple[int, int] = (32, 24)) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        Image.new("RGB", size, (8 * number,) * 3).save(folder / name)
    return folder


def test_the_middle_of_each_part_is_taken() -> None:
    # Of 30 frames in 8 parts of 3.75: 1.875, 5.625, 9.375, ... rounded down, as TSM tests.
    assert frame_indexes(30, 8) == [1, 5, 9, 13, 16, 20, 24, 28]
    assert frame_indexes(8, 8) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert frame_indexes(9, 4) == [1, 3, 5, 7]


def test_fewer_frames_than_asked_are_all_taken_and_the_last_again() -> None:
    assert frame_indexes(3, 8) == [0, 1, 2, 2, 2, 2, 2, 2]
    assert frame_indexes(1, 4) == [0, 0, 0, 0]
    assert frame_indexes(3, 8, seed=5) == [0, 1, 2, 2, 2, 2, 2, 2]


def test_with_a_seed_any_frame_of_each_part_is_taken() -> None:
    drawn = [frame_indexes(33, 8, seed) for seed in range(200)]
    # Parts of 4 frames, as TSM trains: the last frame of 33 is never taken.
    assert all(4 * part <= number < 4 * (part + 1) for one in drawn for part, number in enumerate(one))
    assert {number for one in drawn for number in one} == set(range(32))
    assert frame_indexes(33, 8, 7) == frame_indexes(33, 8, 7)


KINDS = {
    "clip.mp4": {},
    "clip.webm": {"codec": "libvpx-vp9"},
    "clip.mkv": {},
    "clip.avi": {"codec": "mpeg4"},
    "ordered.avi": {},  # H.264 with frames stored in another order than they are shown in, which AVI has no times for
    "clip.mov": {"codec": "mjpeg", "pixels": "yuvj420p"},
    "clip.ts": {},
    "ten_bits.mkv": {"codec": "libx264", "pixels": "yuv420p10le"},
    "odd.mkv": {"codec": "ffv1", "pixels": "yuv444p", "size": (65, 47)},
    "odd.webm": {"codec": "libvpx-vp9", "size": (65, 47)},
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_file_gives_the_same_frames(name: str, make_video: MakeVideo, tmp_path: Path) -> None:
    file = make_video(tmp_path / name, **KINDS[name])
    clip = numbers(file, 8)
    assert clip.frames == [1, 5, 9, 13, 16, 20, 24, 28]
    assert (clip.count, clip.notes) == (30, ())
    assert numbers(file.read_bytes(), 8).frames == clip.frames


def test_a_gif_is_a_clip(make_video: MakeVideo, tmp_path: Path) -> None:
    pictures = [Image.new("RGB", (40, 30), (8 * number,) * 3) for number in range(30)]
    pictures[0].save(tmp_path / "clip.gif", save_all=True, append_images=pictures[1:], duration=100)
    assert numbers(tmp_path / "clip.gif", 8).frames == [1, 5, 9, 13, 16, 20, 24, 28]


def test_what_is_transparent_in_a_gif_lies_on_white(tmp_path: Path) -> None:
    clear = Image.new("RGBA", (20, 20), (0, 0, 0, 0))
    clear.paste((255, 0, 0, 255), (0, 0, 10, 20))
    clear.save(tmp_path / "clip.gif", save_all=True, append_images=[clear.rotate(180)], duration=100, disposal=2)
    first = read_clip(tmp_path / "clip.gif", 2, lambda picture: picture).frames[0]
    assert first.getpixel((15, 10)) == (255, 255, 255)
    assert first.getpixel((5, 10)) == (255, 0, 0)


def test_a_video_that_was_filmed_upright_is_seen_upright(make_video: MakeVideo, tmp_path: Path) -> None:
    file = make_video(tmp_path / "clip.mp4", turned=90, frames=8)
    first = read_clip(file, 8, lambda picture: picture).frames[0]
    # 64x48 turned a quarter to the left: the square of the upper left corner is now in the lower left one.
    assert first.size == (48, 64)
    assert first.getpixel((4, 60))[0] > 200  # type: ignore[index]
    assert first.getpixel((4, 4))[0] < 60  # type: ignore[index]


ORIENTATIONS = {  # (a, b, c, d): a pixel at (x, y) is shown at (a x + c y, b x + d y)
    "as it is": (1, 0, 0, 1),
    "mirrored": (-1, 0, 0, 1),
    "upside down and mirrored": (1, 0, 0, -1),
    "upside down": (-1, 0, 0, -1),
    "turned to the right": (0, 1, -1, 0),
    "turned to the left": (0, -1, 1, 0),
    "transposed": (0, 1, 1, 0),
    "transposed and upside down": (0, -1, -1, 0),
}


def with_matrix(file: Path, matrix: tuple[int, int, int, int]) -> Path:
    """The MP4 with another display matrix in its track header."""
    content = bytearray(file.read_bytes())
    at = content.index(b"tkhd") + 44  # after type, flags, times, id, duration, layer, group and volume
    a, b, c, d = (value << 16 for value in matrix)
    content[at : at + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    file.write_bytes(content)
    return file


def shown_by_ffmpeg(file: Path) -> np.ndarray[Any, Any]:
    """The first frame after the filters that ffmpeg's `-autorotate` puts in for its matrix (fftools/ffmpeg_filter.c)."""
    with av.open(str(file)) as container:
        frame = next(container.decode(video=0))
    data: Any = frame.side_data.get("DISPLAYMATRIX")
    matrix = (1 << 16, 0, 0, 0, 1 << 16) if data is None else struct.unpack("=9i", bytes(data))
    filters: list[tuple[str, str]] = []
    match round(-frame.rotation) % 360:
        case 90:
            filters = [("transpose", "cclock_flip" if matrix[3] > 0 else "clock")]
        case 180:
            filters = [("hflip", "")] * (matrix[0] < 0) + [("vflip", "")] * (matrix[4] < 0)
        case 270:
            filters = [("transpose", "clock_flip" if matrix[3] < 0 else "cclock")]
        case 0:
            filters = [("vflip", "")] * (matrix[4] < 0)
    graph = av.filter.Graph()
    nodes = [graph.add_buffer(width=frame.width, height=frame.height, format=frame.format, time_base=frame.time_base)]
    nodes += [graph.add(name, words) for name, words in filters]
    graph.link_nodes(*nodes, graph.add("buffersink")).configure()
    graph.push(frame)
    turned: Any = graph.pull()
    return np.asarray(turned.to_ndarray(format="rgb24"))


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_a_video_is_seen_as_ffmpeg_shows_it(make_video: MakeVideo, tmp_path: Path, orientation: str) -> None:
    a, b, c, d = ORIENTATIONS[orientation]
    file = with_matrix(make_video(tmp_path / "clip.mp4", frames=1), (a, b, c, d))
    (seen,) = read_clip(file, 1, np.asarray).frames
    assert seen.shape == ((48, 64, 3) if b == 0 else (64, 48, 3))
    # The red square was in the upper left corner: where its middle is now, from the middle of the frame.
    red = np.argwhere((seen[..., 0] > 150) & (seen[..., 1] < 100)).mean(axis=0) - np.array(seen.shape[:2]) / 2
    assert np.sign(red).tolist() == [-(b + d), -(a + c)]
    expected = shown_by_ffmpeg(file)
    assert expected.shape == seen.shape
    assert np.abs(expected.astype(int) - seen.astype(int)).mean() < 3  # colours are rounded after turning, not before


def test_a_matrix_that_turns_nowhere_changes_nothing(make_video: MakeVideo, tmp_path: Path) -> None:
    file = with_matrix(make_video(tmp_path / "clip.mp4", frames=1), (0, 0, 0, 0))
    assert read_clip(file, 1, lambda picture: picture).frames[0].size == (64, 48)


def test_a_variable_frame_rate_changes_nothing_about_which_frames_are_taken(
    make_video: MakeVideo, tmp_path: Path
) -> None:
    times = [number if number < 15 else 15 + 7 * (number - 15) for number in range(30)]
    assert numbers(make_video(tmp_path / "clip.mkv", times=times), 8).frames == [1, 5, 9, 13, 16, 20, 24, 28]


@pytest.mark.parametrize(
    "options", [{"g": "4"}, {"g": "12", "bf": "3"}, {"g": "12", "x264-params": "open-gop=1:bframes=3"}]
)
@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_seeking_finds_the_frames_that_decoding_everything_does(
    suffix: str, options: dict[str, str], make_video: MakeVideo, tmp_path: Path
) -> None:
    file = make_video(tmp_path / f"clip.{suffix}", **options)
    for frames in (1, 2, 3, 8, 30):
        assert numbers(file, frames).frames == frame_indexes(30, frames)


def test_only_what_is_needed_is_decoded(make_video: MakeVideo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = make_video(tmp_path / "clip.mp4", g="10", bf="0", sc_threshold="0")
    decoded: list[int] = []
    whole = VideoFile._decoded

    def counted(self: VideoFile, container: Any, stream: Any, needed: Any) -> Any:
        for frame in whole(self, container, stream, needed):
            decoded.append(frame.pts)
            yield frame

    monkeypatch.setattr(VideoFile, "_decoded", counted)
    # Frames 7 and 22: from key frame 0 to 7 are 8 frames, from key frame 20 to 22 three more.
    assert numbers(file, 2).frames == [7, 22]
    assert len(decoded) <= 8 + 3 + 2


def test_fewer_frames_than_requested_are_reported(make_video: MakeVideo, tmp_path: Path) -> None:
    clip = numbers(make_video(tmp_path / "clip.mp4", frames=3), 8)
    assert clip.frames == [0, 1, 2, 2, 2, 2, 2, 2]
    assert clip.notes == (
        f"{tmp_path / 'clip.mp4'} has 3 frames, fewer than the 8 that the network needs; the last is repeated.",
    )


def test_a_clip_and_the_folder_of_its_frames_are_the_same(make_video: MakeVideo, tmp_path: Path) -> None:
    file = make_video(tmp_path / "clip.mp4")
    folder = tmp_path / "frames"
    folder.mkdir()
    for number, picture in enumerate(read_clip(file, 30, lambda p: p).frames):
        picture.save(folder / f"{number + 1:05d}.png")
    one, two = (read_clip(source, 8, np.asarray) for source in (file, folder))
    assert all(np.array_equal(a, b) for a, b in zip(one.frames, two.frames, strict=True))


def test_frames_are_ordered_by_their_numbers(tmp_path: Path) -> None:
    # Drawn in this order, so that frame i has brightness i; "frame10" would sort before "frame2".
    folder = frame_folder(tmp_path / "clip", [f"frame{number}.png" for number in range(12)])
    assert numbers(folder, 12).frames == list(range(12))


@pytest.mark.parametrize("digits", ["٠١٢٣٤٥٦٧٨٩", "⁰¹²³⁴⁵⁶⁷⁸⁹", "①", "०१२३४५६७८९"])
def test_frames_are_ordered_by_numbers_in_digits_of_any_kind(tmp_path: Path, digits: str) -> None:
    counted = [str(number) for number in range(2, 12)] if len(digits) == 10 else ["2", "10"]
    spelt = [
        "".join(digits[int(d)] for d in number) if len(digits) == 10 else chr(0x245F + int(number))
        for number in counted
    ]
    folder = frame_folder(tmp_path / "clip", [f"frame{number}.png" for number in spelt])
    assert numbers(folder, len(spelt)).frames == list(range(len(spelt)))


def test_names_with_odd_digits_and_the_same_number_have_one_order(tmp_path: Path) -> None:
    folder = frame_folder(tmp_path / "clip", ["x1.png", "x¹.png", "x½.png", "x२.png", "x².png", "x03.png"])
    assert sorted(numbers(folder, 6).frames) == [0, 1, 2, 3, 4, 5]
    assert numbers(folder, 6).frames == numbers(folder, 6).frames


def test_gaps_between_frames_are_reported_and_skipped(tmp_path: Path) -> None:
    folder = frame_folder(tmp_path / "clip", ["00001.jpg", "00002.jpg", "00005.jpg", "00006.jpg"])
    clip = numbers(folder, 4)
    assert clip.frames == [0, 1, 2, 3]
    assert clip.notes == (
        f"{folder} has gaps: 2 frames are missing between 00001.jpg and 00006.jpg; the others are used.",
    )


def test_frames_of_two_sizes_are_refused(tmp_path: Path) -> None:
    folder = frame_folder(tmp_path / "clip", ["1.png", "2.png"])
    frame_folder(folder, ["3.png"], size=(10, 10))
    with pytest.raises(BadClip, match=r"differ in size: 3.png has 10x10 px, others 32x24\. Put each clip into"):
        numbers(folder, 3)


def test_a_broken_frame_is_named(tmp_path: Path) -> None:
    folder = frame_folder(tmp_path / "clip", ["1.png", "2.png"])
    (folder / "2.png").write_bytes(b"no picture")
    with pytest.raises(BadClip, match=r"a frame of .*clip cannot be read: .*2\.png is not an image"):
        numbers(folder, 2)


def audio(path: Path) -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), dtype=np.float32), format="fltp", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def test_what_is_no_video_is_refused_in_a_sentence(make_video: MakeVideo, tmp_path: Path) -> None:
    whole = make_video(tmp_path / "clip.mp4")
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "text.mp4").write_text("this is no video\n" * 100)
    (tmp_path / "cut.mp4").write_bytes(whole.read_bytes()[:-400])  # an MP4 has its table of contents at the end
    Image.new("RGB", (64, 48)).save(tmp_path / "picture.jpg")
    shutil.move(tmp_path / "picture.jpg", tmp_path / "picture.mp4")
    (tmp_path / "hollow").mkdir()
    sentences = {
        "missing.mp4": "there is no file .*missing.mp4. Check the path",
        "empty.mp4": "empty.mp4 is empty. Save or download it again",
        "text.mp4": "text.mp4 is not a video that can be read, or it is cut off",
        "cut.mp4": "cut.mp4 .* is cut off",
        "picture.mp4": "picture.mp4 is not a video that can be read",
        audio(tmp_path / "sound.mp4").name: "sound.mp4 has no video stream, only audio. Give a file that has one",
        "hollow": "hollow holds no frames",
    }
    for name, sentence in sentences.items():
        with pytest.raises(BadClip, match=sentence):
            numbers(tmp_path / name, 8)
    with pytest.raises(BadClip, match="the clip on standard input is empty"):
        numbers(b"", 8)


def test_a_playlist_that_names_other_files_is_not_followed(make_video: MakeVideo, tmp_path: Path) -> None:
    make_video(tmp_path / "clip.ts")
    (tmp_path / "list.mp4").write_text("#EXTM3U\n#EXT-X-TARGETDURATION:3\n#EXTINF:3,\nclip.ts\n#EXT-X-ENDLIST\n")
    with pytest.raises(BadClip, match="list.mp4 is not a video that can be read"):
        numbers(tmp_path / "list.mp4", 8)


def test_a_wrong_suffix_does_not_matter(make_video: MakeVideo, tmp_path: Path) -> None:
    make_video(tmp_path / "clip.webm", codec="libvpx-vp9").rename(tmp_path / "clip.avi")
    assert numbers(tmp_path / "clip.avi", 8).frames == [1, 5, 9, 13, 16, 20, 24, 28]


def test_of_a_video_that_was_cut_off_the_frames_that_are_there_are_taken(make_video: MakeVideo, tmp_path: Path) -> None:
    noisy = make_video(tmp_path / "clip.webm", codec="libvpx-vp9", deadline="realtime", g="1")
    content = noisy.read_bytes()
    (tmp_path / "cut.webm").write_bytes(content[: len(content) * 2 // 3])
    clip = numbers(tmp_path / "cut.webm", 8)
    assert 8 <= clip.count < 30
    assert clip.frames == frame_indexes(clip.count, 8)


def test_an_mp4_that_was_cut_off_behind_its_table_of_contents_says_how_much_is_there(
    make_video: MakeVideo, tmp_path: Path
) -> None:
    with av.open(str(make_video(tmp_path / "clip.mkv", g="1"))) as source:
        options = {"movflags": "faststart"}
        with av.open(str(tmp_path / "clip.mp4"), "w", options=options) as container:
            stream = container.add_stream_from_template(source.streams.video[0])
            for packet in source.demux(video=0):
                if packet.size:
                    packet.stream = stream
                    container.mux(packet)
    content = (tmp_path / "clip.mp4").read_bytes()
    start = content.index(b"mdat")
    (tmp_path / "cut.mp4").write_bytes(content[: start + (len(content) - start) // 2])
    clip = numbers(tmp_path / "cut.mp4", 4)
    assert 4 <= clip.count < 30
    assert clip.frames == frame_indexes(clip.count, 4)
    assert clip.notes == (f"{tmp_path / 'cut.mp4'} is cut off: it has {clip.count} of its 30 frames.",)


def test_bytes_changed_at_random_never_hang_and_never_show_a_traceback(make_video: MakeVideo, tmp_path: Path) -> None:
    content = make_video(tmp_path / "clip.mp4").read_bytes()
    draw = random.Random(0)
    for _ in range(60):
        broken = bytearray(content)
        for _ in range(draw.randrange(1, 30)):
            broken[draw.randrange(len(broken))] = draw.randrange(256)
        with contextlib.suppress(BadClip):
            assert len(numbers(bytes(broken), 4, limits=Limits(seconds=5)).frames) == 4


def test_a_clip_that_takes_too_long_is_refused(
    make_video: MakeVideo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make_video(tmp_path / "clip.mp4")
    now = time.monotonic()
    steps = iter(range(10_000))
    monkeypatch.setattr(
        video_files.time, "monotonic", lambda: now + next(steps)
    )  # every glance at the clock takes a second
    with pytest.raises(BadClip, match=r"clip.mp4 takes longer than 3 s to read\. Cut it shorter"):
        numbers(file, 8, limits=Limits(seconds=3))


def test_frames_that_are_too_large_are_refused_before_they_are_decoded(make_video: MakeVideo, tmp_path: Path) -> None:
    file = make_video(tmp_path / "clip.mp4", size=(640, 480), frames=2)
    with pytest.raises(BadClip, match="has frames of 640x480 px, more than the limit of 100,000 pixels"):
        numbers(file, 8, limits=Limits(pixels=100_000))


def test_without_pyav_the_extra_is_named(
    make_video: MakeVideo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make_video(tmp_path / "clip.mp4")
    folder = frame_folder(tmp_path / "frames", ["1.png", "2.png"])
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingExtra, match=r"pip install -c constraints.txt -e '.\[video\]'"):
        numbers(file, 8)
    assert numbers(folder, 2).frames == [0, 1]  # frames need no decoder


def test_clips_are_found_in_folders(make_video: MakeVideo, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    make_video(tmp_path / "b.mp4")
    frame_folder(tmp_path / "a" / "clip", ["1.jpg"])
    (tmp_path / "a" / ".hidden.mp4").touch()
    (tmp_path / "notes.txt").touch()
    assert find_clips([tmp_path]) == [tmp_path / "a" / "clip", tmp_path / "b.mp4"]
    assert find_clips([tmp_path / "a" / "clip"]) == [tmp_path / "a" / "clip"]
    assert find_clips([tmp_path / "named.xyz"]) == [tmp_path / "named.xyz"]
    with pytest.raises(BadClip, match="there are no clips in the folder"):
        find_clips([tmp_path / "b"])
