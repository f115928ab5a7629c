"""Memory of pictures: estimated, and refused with what to do."""

import io

import pytest
from PIL import Image

from glancefocus.data.images import bands, pixels_of, read_picture
from glancefocus.errors import BadImage
from glancefocus.machine import check_memory

MB = 1_000_000


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glancefocus.machine.available_bytes", lambda: 1500 * MB)


def test_what_would_not_fit_is_refused_with_what_to_do(little_memory: None) -> None:
    check_memory(1500 * MB, "a.png")
    sentence = (
        r"a.png needs about 1.6 GB of memory, but 1.5 GB are available. Make the picture smaller, or free memory."
    )
    with pytest.raises(BadImage, match=sentence):
        check_memory(1600 * MB, "a.png")


def test_a_picture_is_refused_before_it_is_decoded(little_memory: None) -> None:
    stream = io.BytesIO()
    Image.new("1", (13_000, 13_000)).save(stream, format="PNG")
    # 169 million pixels of 12 bytes.
    with pytest.raises(BadImage, match=r"\(13000x13000 px\) needs about 2.0 GB of memory, but 1.5 GB are available"):
        read_picture(stream.getvalue())


@pytest.mark.parametrize(("size", "count"), [((3, 3), 3), ((4, 6), 6), ((7, 2), 4), ((1, 9), 3), ((2, 2), 1)])
def test_bands_cover_every_pixel_once(size: tuple[int, int], count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glancefocus.data.images.PIXELS_PER_BAND", 4)
    width, height = size
    covered = [
        (x, y) for left, top, right, bottom in bands(size) for y in range(top, bottom) for x in range(left, right)
    ]
    assert sorted(covered) == [(x, y) for x in range(width) for y in range(height)]
    assert len(list(bands(size))) == count
    assert all((left, right) == (0, width) for left, _, right, _ in bands(size, whole_rows=True))


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "I;16", "F", "I"])
def test_pictures_in_bands_have_the_same_pixels(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Image.effect_noise((31, 23), 90)
    picture = source.convert("RGB").convert(mode) if mode in ("RGB", "RGBA", "P") else source.convert("I").convert(mode)
    if mode == "RGBA":
        picture.putalpha(Image.effect_noise((31, 23), 40))
    stream = io.BytesIO()
    picture.save(stream, format="TIFF", **({"transparency": 3} if mode == "P" else {}))
    whole = read_picture(stream.getvalue())
    monkeypatch.setattr("glancefocus.data.images.PIXELS_PER_BAND", 40)
    parts = read_picture(stream.getvalue())
    assert parts.tobytes() == whole.tobytes()
    assert pixels_of(parts).permute(1, 2, 0).numpy().tobytes() == whole.tobytes()
