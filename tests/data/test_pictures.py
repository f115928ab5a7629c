"""Pictures of every kind, made by Pillow here, come out as a viewer would show them, or with one clear sentence."""

import io
import os
import struct
import threading
import warnings
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ExifTags, Image

from glancefocus.data import images as pictures
from glancefocus.data.folders import find_pictures
from glancefocus.data.images import MAX_PIXELS, as_rgb, pixels_of, read_picture
from glancefocus.errors import BadImage

WHITE, BLACK, RED, GREEN = (255, 255, 255), (0, 0, 0), (255, 0, 0), (0, 255, 0)

# The first bytes of each format, so that its plug-in takes what follows for its own.
MAGIC = {
    "JPEG": b"\xff\xd8\xff\xe0",
    "PNG": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "GIF": b"GIF89a",
    "WEBP": b"RIFF\x40\0\0\0WEBPVP8 ",
    "AVIF": b"\0\0\0\x20ftypavif",
    "TIFF, little end first": b"II*\0\x08\0\0\0",
    "TIFF, big end first": b"MM\0*\0\0\0\x08",
    "BMP": b"BM\x46\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0",
    "JPEG2000": b"\xff\x4f\xff\x51",
    "PPM": b"P6\n",
    "QOI": b"qoif",
    "ICO": b"\0\0\1\0\1\0",
    "PSD": b"8BPS\0\1",
    "PCX": b"\x0a\x05\x01\x08",
    "SGI": b"\x01\xda\0\1",
    "TGA": b"\0\0\2\0\0\0\0\0\0\0\0\0",
}


def file_bytes(picture: Image.Image, format_name: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, format_name, **options)
    return file.getvalue()


def striped(size: tuple[int, int] = (64, 48)) -> Image.Image:
    """A picture that does not compress to nothing, so that cutting its file cuts pixels."""
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(noise)


def red_in_the_top_left() -> Image.Image:
    picture = Image.new("RGB", (48, 32), WHITE)
    picture.paste(RED, (0, 0, 24, 16))
    return picture


def corner_that_is_red(picture: Image.Image) -> str:
    right, bottom = picture.width - 4, picture.height - 4
    corners = {"top left": (3, 3), "top right": (right, 3), "bottom left": (3, bottom), "bottom right": (right, bottom)}
    (corner,) = [name for name, at in corners.items() if cast(tuple[int, ...], picture.getpixel(at))[1] < 60]
    return corner


def first_row(picture: Image.Image) -> list[int]:
    """The red values of the first row, having checked that they are grey."""
    pixels = np.asarray(picture)
    assert (pixels == pixels[..., :1]).all()
    return cast(list[int], pixels[0, :, 0].tolist())


@pytest.mark.parametrize("format_name", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize(
    ("orientation", "corner", "size"),
    [
        (1, "top left", (48, 32)),
        (2, "top right", (48, 32)),
        (3, "bottom right", (48, 32)),
        (4, "bottom left", (48, 32)),
        (5, "top left", (32, 48)),
        (6, "top right", (32, 48)),
        (7, "bottom right", (32, 48)),
        (8, "bottom left", (32, 48)),
    ],
)
def test_a_rotated_photograph_stands_upright(
    format_name: str, orientation: int, corner: str, size: tuple[int, int]
) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    picture = read_picture(file_bytes(red_in_the_top_left(), format_name, exif=exif))
    assert (corner_that_is_red(picture), picture.size) == (corner, size)


def test_nothing_turns_a_picture_twice() -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    picture = read_picture(file_bytes(red_in_the_top_left(), "JPEG", exif=exif))
    assert dict(picture.getexif()) == {}
    assert as_rgb(picture).size == (32, 48)


def test_broken_exif_does_not_spoil_a_whole_picture() -> None:
    data = file_bytes(red_in_the_top_left(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\x7f")
    assert corner_that_is_red(read_picture(data)) == "top left"


@pytest.mark.parametrize("format_name", ["PNG", "WEBP", "TIFF"])
def test_transparency_is_laid_on_white(format_name: str) -> None:
    picture = Image.new("RGBA", (2, 1), (255, 0, 0, 0))
    picture.putpixel((1, 0), (255, 0, 0, 128))
    options = {"lossless": True, "exact": True} if format_name == "WEBP" else {}
    seen = read_picture(file_bytes(picture, format_name, **options))
    # Half red on white: 255 x (1 - 128/255) = 127 of the white shines through in green and blue.
    assert [seen.getpixel((0, 0)), seen.getpixel((1, 0))] == [WHITE, (255, 127, 127)]


def test_grey_with_alpha_is_laid_on_white() -> None:
    picture = Image.new("LA", (2, 1), (0, 0))
    picture.putpixel((1, 0), (0, 255))
    assert first_row(read_picture(file_bytes(picture, "PNG"))) == [255, 0]


@pytest.mark.parametrize("mode", ["La", "RGBa", "PA", "RGBX", "HSV"])
def test_modes_that_no_file_here_has_are_flattened_too(mode: str) -> None:
    assert as_rgb(Image.new(mode, (3, 2))).mode == "RGB"


def test_a_palette_shows_its_colours_and_its_transparent_ones_are_white() -> None:
    picture = Image.new("P", (3, 1))
    picture.putpalette([*RED, *GREEN, *BLACK])
    for x in range(3):
        picture.putpixel((x, 0), x)
    one = read_picture(file_bytes(picture, "PNG", transparency=1))
    several = read_picture(file_bytes(picture, "PNG", transparency=bytes([0, 255, 0])))
    gif = read_picture(file_bytes(picture, "GIF", transparency=1))
    assert [one.getpixel((x, 0)) for x in range(3)] == [RED, WHITE, BLACK]
    assert [several.getpixel((x, 0)) for x in range(3)] == [WHITE, GREEN, WHITE]
    assert [gif.getpixel((x, 0)) for x in range(3)] == [RED, WHITE, BLACK]


@pytest.mark.parametrize("format_name", ["JPEG", "TIFF"])
def test_ink_is_turned_into_light(format_name: str) -> None:
    # No cyan, full magenta and yellow: red. JPEG stores ink the other way around (Adobe), which must not show.
    picture = read_picture(file_bytes(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), format_name))
    assert np.abs(np.asarray(picture).astype(int) - RED).max() <= 2


def test_ycbcr_and_lab_are_turned_into_rgb() -> None:
    # Y 76, Cb 85, Cr 255 and L 53 %, a +80, b +67 (each + 128) are both pure red, up to rounding.
    ycbcr = read_picture(file_bytes(Image.new("YCbCr", (16, 16), (76, 85, 255)), "TIFF"))
    lab = read_picture(file_bytes(Image.new("LAB", (16, 16), (136, 208, 195)), "TIFF"))
    assert np.abs(np.asarray(ycbcr).astype(int) - RED).max() <= 2
    assert np.abs(np.asarray(lab).astype(int) - RED).max() <= 12


def test_one_bit_is_black_and_white_and_grey_stays_grey() -> None:
    bits = Image.new("1", (2, 1), 0)
    bits.putpixel((1, 0), 1)
    assert first_row(read_picture(file_bytes(bits, "PNG"))) == [0, 255]
    assert first_row(read_picture(file_bytes(Image.new("L", (2, 1), 77), "PNG"))) == [77, 77]


@pytest.mark.parametrize("format_name", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_are_scaled_to_eight_and_not_clipped(format_name: str) -> None:
    gradient = (np.arange(256, dtype=np.uint16) * 257).reshape(1, 256)
    picture = read_picture(file_bytes(Image.fromarray(gradient), format_name))
    assert first_row(picture) == list(range(256))


def test_sixteen_bits_are_scaled_whatever_end_comes_first() -> None:
    for mode, kind in [("I;16", "<u2"), ("I;16L", "<u2"), ("I;16B", ">u2")]:
        values = np.array([[0, 255, 256, 65535]], dtype=kind)
        assert first_row(as_rgb(Image.frombytes(mode, (4, 1), values.tobytes()))) == [0, 0, 1, 255]
    assert first_row(as_rgb(Image.fromarray(np.array([[0, 255, 256, 65535]], dtype=np.int32)))) == [0, 0, 1, 255]


def test_sixteen_bits_keep_their_transparent_value_and_their_white_that_is_zero() -> None:
    deep = Image.fromarray(np.array([[0, 257, 514]], dtype=np.uint16))
    assert first_row(read_picture(file_bytes(deep, "PNG", transparency=257))) == [0, 255, 2]
    white_is_zero = {int(ExifTags.Base.PhotometricInterpretation): 0}
    assert first_row(read_picture(file_bytes(deep, "TIFF", tiffinfo=white_is_zero))) == [255, 254, 253]


def test_twelve_bits_are_scaled_to_eight() -> None:
    # Width, height, bits, compression, black is zero, where the pixels are, samples, rows and bytes per strip.
    tags = {256: 2, 257: 1, 258: 12, 259: 1, 262: 1, 273: 8, 277: 1, 278: 1, 279: 3}
    pixels = b"\xff\xf1\x00"  # 0xFFF and 0x100
    directory = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", tag, 4, 1, n) for tag, n in tags.items())
    data = b"II*\0" + struct.pack("<I", 12) + pixels + b"\0" + directory + b"\0\0\0\0"
    assert first_row(read_picture(data)) == [0xFF, 0x10]


def test_whole_numbers_beyond_sixteen_bits_are_stretched() -> None:
    deep = Image.fromarray(np.array([[-1000, 0, 1550]], dtype=np.int32))
    assert first_row(read_picture(file_bytes(deep, "TIFF"))) == [0, 100, 255]


def test_floats_from_0_to_1_are_black_to_white_and_others_are_stretched() -> None:
    def seen(*values: float) -> list[int]:
        return first_row(read_picture(file_bytes(Image.fromarray(np.array([values], dtype=np.float32)), "TIFF")))

    assert seen(0.2, 0.4, 0.6) == [51, 102, 153]
    assert seen(-1.0, 0.0, 4.0) == [0, 51, 255]
    assert seen(0.0, float("nan"), float("inf"), float("-inf"), 1.0) == [0, 0, 255, 0, 255]
    assert seen(float("nan"), float("nan")) == [0, 0]
    assert seen(7.0, 7.0) == [0, 0]


@pytest.mark.parametrize("format_name", ["GIF", "PNG", "WEBP"])
def test_of_an_animation_the_first_frame_is_read(format_name: str) -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in (RED, GREEN, BLACK)]
    options = {"lossless": True} if format_name == "WEBP" else {}
    data = file_bytes(frames[0], format_name, save_all=True, append_images=frames[1:], duration=100, **options)
    assert Image.open(io.BytesIO(data)).n_frames == 3  # type: ignore[attr-defined]
    assert read_picture(data).getcolors() == [(256, RED)]


def test_a_path_bytes_and_a_stream_give_the_same_picture(tmp_path: Path) -> None:
    file = tmp_path / "noise.png"
    striped().save(file)
    expected = striped().tobytes()
    assert read_picture(file).tobytes() == expected
    assert read_picture(str(file)).tobytes() == expected
    assert read_picture(file.read_bytes()).tobytes() == expected
    with file.open("rb") as stream:
        assert read_picture(stream).tobytes() == expected


def test_a_pipe_can_be_read_though_it_cannot_go_back() -> None:
    ends = os.pipe()
    data = file_bytes(striped(), "PNG")

    def write() -> None:
        with open(ends[1], "wb") as stream:
            stream.write(data)

    writer = threading.Thread(target=write)
    writer.start()
    with open(ends[0], "rb") as stream:
        assert read_picture(stream).tobytes() == striped().tobytes()
    writer.join()


def test_a_picture_of_one_pixel_is_a_picture() -> None:
    assert read_picture(file_bytes(Image.new("RGB", (1, 1), RED), "PNG")).getpixel((0, 0)) == RED


def test_the_content_counts_and_not_the_suffix(tmp_path: Path) -> None:
    file = tmp_path / "really-a-png.jpg"
    file.write_bytes(file_bytes(striped(), "PNG"))
    assert read_picture(file).size == (64, 48)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadImage, match=r"there is no file .*nothing\.png"):
        read_picture(tmp_path / "nothing.png")


def test_a_folder_is_not_an_image(tmp_path: Path) -> None:
    with pytest.raises(BadImage, match="is a folder, not an image"):
        read_picture(tmp_path)


def test_an_impossible_path_is_refused() -> None:
    with pytest.raises(BadImage, match="cannot be read: embedded null byte"):
        read_picture("a\0b.png")
    with pytest.raises(BadImage, match="there is no file ''"):
        read_picture("")


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").touch()
    with pytest.raises(BadImage, match=r"empty\.jpg is empty"):
        read_picture(tmp_path / "empty.jpg")


def test_a_text_is_not_an_image(tmp_path: Path) -> None:
    (tmp_path / "notes.jpg").write_text("These are notes on the paper.\n" * 50)
    with pytest.raises(BadImage, match=r"notes\.jpg is not an image in a known format"):
        read_picture(tmp_path / "notes.jpg")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="the superuser may read everything")
def test_a_file_without_permission_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "secret.png"
    striped().save(file)
    file.chmod(0)
    with pytest.raises(BadImage, match=r"no permission to read .*secret\.png"):
        read_picture(file)


class Forbidden(io.RawIOBase):
    """A stream that the operating system keeps to itself."""

    def read(self, size: int = -1) -> bytes:
        raise PermissionError(13, "Permission denied")


def test_a_stream_without_permission_is_refused() -> None:
    with pytest.raises(BadImage, match="no permission to read the image on standard input"):
        read_picture(cast(BinaryIO, Forbidden()))


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("format_name", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM"])
def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, format_name: str, share: float) -> None:
    data = file_bytes(striped(), format_name)
    file = tmp_path / "half"
    file.write_bytes(data[: max(8, int(len(data) * share))])
    with pytest.raises(BadImage, match=r"half is damaged or cut off \(.+\)\. Save or download it again\."):
        read_picture(file)


@pytest.mark.parametrize(
    "header", [b"P6\n0 4\n255\n", b"qoif\0\0\0\0\0\0\0\4\3\0", b"GIF89a\0\0\0\0\0\0\0,\0\0\0\0\0\0\0\0\0\2\0;"]
)
def test_a_picture_without_pixels_is_refused(header: bytes) -> None:
    with pytest.raises(BadImage, match="is damaged or cut off"):
        read_picture(header)


@pytest.mark.parametrize("format_name", ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP"])
def test_a_picture_with_too_many_pixels_is_refused_with_both_numbers(format_name: str) -> None:
    data = file_bytes(striped((64, 48)), format_name)
    assert read_picture(data, max_pixels=3072).size == (64, 48)
    with pytest.raises(BadImage, match=r"has 3,072 pixels \(64x48\), more than the limit of 3,071.*raise max_pixels"):
        read_picture(data, max_pixels=3071)


@pytest.mark.parametrize("format_name", ["WEBP", "ICO"])
def test_pillow_refusing_first_gives_a_sentence_too(format_name: str) -> None:
    with pytest.raises(BadImage, match="the limit of 100"):
        read_picture(file_bytes(striped((64, 64)), format_name), max_pixels=100)


def test_a_bomb_is_refused_before_it_is_decoded() -> None:
    header = b"P6\n100000 100000\n255\n"  # ten thousand million pixels in 22 bytes
    with pytest.raises(BadImage, match=rf"10,000,000,000 pixels .* the limit of {MAX_PIXELS:,}"):
        read_picture(header)


@pytest.mark.parametrize("format_name", ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "ICO"])
def test_max_pixels_counts_and_not_the_limit_of_pillow(monkeypatch: pytest.MonkeyPatch, format_name: str) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    assert read_picture(file_bytes(striped((64, 64)), format_name)).size == (64, 64)
    assert Image.MAX_IMAGE_PIXELS == 10


def test_warnings_of_others_are_as_before_after_reading() -> None:
    before = list(warnings.filters)
    read_picture(file_bytes(striped(), "PNG"))
    with pytest.raises(BadImage):
        read_picture(b"no picture")
    assert list(warnings.filters) == before


def test_the_limit_of_pillow_is_put_back_after_reading_in_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 12345)
    data = file_bytes(striped(), "PNG")
    sizes: list[tuple[int, int]] = []

    def read_often(limit: int) -> None:
        for _ in range(20):
            sizes.append(read_picture(data, max_pixels=limit).size)

    threads = [threading.Thread(target=read_often, args=(limit,)) for limit in (4000, 5000, 6000, 6000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sizes == [(64, 48)] * 80
    assert Image.MAX_IMAGE_PIXELS == 12345


def test_a_name_that_is_given_is_used() -> None:
    with pytest.raises(BadImage, match=r"^upload 7 is not an image"):
        read_picture(b"hello, this is no picture", name="upload 7")
    with pytest.raises(BadImage, match=r"^the image on standard input is not an image"):
        read_picture(b"hello, this is no picture")


def survives(data: bytes) -> None:
    """A picture or a sentence, and nothing else."""
    try:
        picture: Image.Image | None = read_picture(data, max_pixels=1_000_000)
        sentence = ""
    except BadImage as refusal:
        picture, sentence = None, str(refusal)
    if picture is not None:
        assert picture.mode == "RGB"
    else:
        assert sentence.startswith("the image on standard input ")
        assert sentence.endswith(".")


@pytest.mark.parametrize("magic", MAGIC.values(), ids=MAGIC)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(tail=st.binary(max_size=300))
def test_hostile_bytes_behind_the_magic_of_a_format_give_a_sentence(magic: bytes, tail: bytes) -> None:
    survives(magic + tail)


@pytest.mark.parametrize(
    "format_name", ["JPEG", "PNG", "GIF", "WEBP", "AVIF", "TIFF", "BMP", "JPEG2000", "PPM", "QOI", "ICO", "PCX", "TGA"]
)
def test_flipped_bytes_in_a_real_file_give_a_picture_or_a_sentence(format_name: str) -> None:
    if format_name not in Image.SAVE:
        pytest.skip("this Pillow was built without it")
    whole = np.frombuffer(file_bytes(striped((16, 16)), format_name), dtype=np.uint8)
    random = np.random.default_rng(1)
    for _ in range(60):
        damaged = whole.copy()
        at = random.integers(0, min(len(damaged), 300), 4)  # headers are where it hurts
        damaged[at] = random.integers(0, 256, 4)
        survives(damaged.tobytes())


def test_folders_are_searched_through_in_order_and_files_stay_as_they_are(tmp_path: Path) -> None:
    for file in ["b/2.PNG", "b/1.jpg", "a.webp", "b/deep/er/0.tiff", "notes.txt", ".hidden.png", ".cache/3.png"]:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    inside = [tmp_path / file for file in ["a.webp", "b/1.jpg", "b/2.PNG", "b/deep/er/0.tiff"]]
    assert find_pictures([str(tmp_path)]) == inside
    missing, text = tmp_path / "missing.png", tmp_path / "notes.txt"
    assert find_pictures([missing, tmp_path, text]) == [missing, *inside, text]
    assert find_pictures([]) == []


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(BadImage, match="there are no images in the folder"):
        find_pictures([tmp_path])


@pytest.mark.skipif(os.name != "posix", reason="links need rights elsewhere")
def test_a_link_that_leads_back_up_ends_the_search(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "1.png").touch()
    (tmp_path / "real" / "up").symlink_to(tmp_path, target_is_directory=True)
    assert find_pictures([tmp_path]) == [tmp_path / "real" / "1.png"]


def test_a_tensor_has_colours_first_and_memory_of_its_own() -> None:
    picture = Image.new("RGB", (3, 2), (1, 2, 3))
    picture.putpixel((2, 1), (7, 8, 9))
    tensor = pixels_of(picture)
    assert (tensor.dtype, tensor.shape, tensor.is_contiguous()) == (torch.uint8, (3, 2, 3), True)
    assert tensor[:, 0, 0].tolist() == [1, 2, 3]
    assert tensor[:, 1, 2].tolist() == [7, 8, 9]
    tensor.zero_()
    assert picture.getpixel((2, 1)) == (7, 8, 9)


def test_pipes_and_devices_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "photo.jpg")
    (tmp_path / "zeros.png").symlink_to("/dev/zero")
    for name, what in (("photo.jpg", "a pipe"), ("zeros.png", "a device")):
        with pytest.raises(BadImage, match=f"{name} cannot be read: it is {what}, not a regular file"):
            read_picture(tmp_path / name)


def test_a_stream_that_does_not_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MAX_BYTES", 2_000_000)
    with (
        open("/dev/zero", "rb") as endless,
        pytest.raises(BadImage, match="cannot be read: it has more than 2,000,000 bytes"),
    ):
        read_picture(endless)
