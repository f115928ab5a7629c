"""A bundle reads large pictures part by part, by itself, with the same answers as from memory."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from glancefocus.bundle.bundle import Bundle
from glancefocus.bundle.predicting import Viewed, ahead
from glancefocus.data.file_scene import FileImage
from glancefocus.data.images import read_picture
from glancefocus.errors import BadImage

pyvips = pytest.importorskip("pyvips")
pytestmark = pytest.mark.usefixtures("small_is_large")
MakeBundle = Callable[..., Bundle]


def mixed(folder: Path, count: int) -> list[Path]:
    """Pictures of many sizes, formats and modes; every fourth is small."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    made = []
    for number in range(count):
        size = tuple(rng.integers(40, 90, 2) if number % 4 == 3 else rng.integers(160, 420, 2))
        coarse = rng.integers(0, 256, (9, 11, 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)
        mode = ("RGB", "L", "RGBA", "P", "CMYK", "RGB")[number % 6]
        suffix = {"RGBA": "png", "P": "png", "CMYK": "jpg"}.get(mode, ("jpg", "png", "tif")[number % 3])
        exif = Image.Exif()
        exif[0x0112] = (1, 3, 6, 8)[number % 4]
        made.append(folder / f"{number:03d}.{suffix}")
        if mode == "RGBA":
            picture.putalpha(Image.fromarray(coarse[..., 0]).resize(size, Image.Resampling.BICUBIC))
        picture = picture.quantize(120) if mode == "P" else picture if mode == "RGBA" else picture.convert(mode)
        picture.save(
            made[-1], **({"quality": 95} if suffix == "jpg" else {}), **({"exif": exif} if suffix != "tif" else {})
        )
    return made


@pytest.mark.parametrize("fit", ["whole", "crop"])
def test_answers_and_boxes_are_those_of_the_pictures_in_memory(
    fit: str, small_bundle: MakeBundle, tmp_path: Path
) -> None:
    view = {"fit": fit, "height_px": 120, "width_px": 120}
    bundle = small_bundle(view=view, focus=("32", "100px@32", "0.5@40", "whole@48"), looks=4)
    files = mixed(tmp_path / "pictures", 24)
    assert (
        sum(isinstance(bundle.view(file).image, FileImage) for file in files) == 16
    )  # PNG that fit into memory are decoded whole
    outcome = bundle.predict(files, thresholds=[[0.4] * 4] * 3, batch_size=7)
    in_memory = bundle.predict([read_picture(file) for file in files], thresholds=[[0.4] * 4] * 3, batch_size=7)
    torch.testing.assert_close(outcome.logits, in_memory.logits, rtol=0, atol=0.02)
    assert outcome.label == in_memory.label
    assert outcome.looks.tolist() == in_memory.looks.tolist()
    assert outcome.candidate.tolist() == in_memory.candidate.tolist()
    assert outcome.image_px is not None
    assert in_memory.image_px is not None
    assert outcome.image_px.tolist() == in_memory.image_px.tolist()
    assert outcome.placements == in_memory.placements
    assert outcome.notes == in_memory.notes
    for boxes, expected in zip(outcome.boxes, in_memory.boxes, strict=True):
        for box, other in zip(boxes, expected, strict=True):
            assert max(abs(one - two) for one, two in zip(box, other, strict=True)) <= 4


@pytest.mark.parametrize("merge", [False, True])
def test_a_stream_of_large_and_small_pictures_is_answered_in_order(
    merge: bool, small_bundle: MakeBundle, tmp_path: Path
) -> None:
    bundle = small_bundle(view={"fit": "whole"})
    files = mixed(tmp_path / "pictures", 9)
    outcomes = list(bundle.predict_stream(iter(files), batch_size=2, merge=merge, thresholds=[0.4, 0.4]))
    expected = bundle.predict(files, thresholds=[0.4, 0.4])
    labels = [label for outcome in outcomes for label in outcome.label]
    assert labels == expected.label
    torch.testing.assert_close(torch.cat([outcome.logits for outcome in outcomes]), expected.logits, rtol=0, atol=1e-5)


def test_a_limit_of_pixels_is_checked_before_decoding(small_bundle: MakeBundle, tmp_path: Path) -> None:
    bundle = small_bundle(view={"fit": "whole"})
    file = mixed(tmp_path / "pictures", 1)[0]
    with pytest.raises(BadImage, match="more than the limit of 20,000"):
        bundle.view(file, max_pixels=20_000)


def test_damage_that_a_later_look_finds_is_an_error_of_its_picture_only(
    small_bundle: MakeBundle, tmp_path: Path
) -> None:
    """The largest level is damaged, so the glance can be read and the patches cannot."""
    noise = np.random.default_rng(0).integers(0, 256, (320, 320, 3), dtype=np.uint8)
    file = tmp_path / "a.tif"
    pyvips.Image.new_from_array(noise).tiffsave(
        str(file), tile=True, tile_width=64, tile_height=64, pyramid=True, compression="deflate"
    )
    content = bytearray(file.read_bytes())
    for begin in range(200, 290_000, 500):
        content[begin : begin + 20] = bytes(20)
    file.write_bytes(content)
    good = tmp_path / "good.png"
    Image.fromarray(noise).save(good)
    bundle = small_bundle(view={"fit": "whole"})
    with pytest.raises(BadImage, match="a.tif is damaged or cut off: a part of it cannot be read"):
        bundle.predict([good, file])
    (outcome,) = bundle.predict_stream([good, file], batch_size=2)
    assert [bool(problem) for problem in outcome.problems] == [False, True]
    torch.testing.assert_close(outcome.logits[:1], bundle.predict(good).logits, rtol=0, atol=1e-5)


def test_a_truncated_picture_is_refused_when_it_is_opened(small_bundle: MakeBundle, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)
    bundle = small_bundle(view={"fit": "whole"})
    for name, options in (("a.jpg", {}), ("b.jpg", {"progressive": True}), ("a.png", {}), ("a.tif", {})):
        Image.fromarray(noise).save(tmp_path / name, **options)
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-30_000])
        with pytest.raises(BadImage, match="damaged or cut off"):
            bundle.view(tmp_path / name)


def test_large_files_are_opened_ahead_by_threads_and_errors_come_in_order(
    small_bundle: MakeBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glancefocus.data.large.os.cpu_count", lambda: 2)
    bundle = small_bundle(view={"fit": "whole"})
    for number in range(6):
        side = 60 if number == 2 else 200
        Image.new("RGB", (side, side), (40 * number, 0, 0)).save(tmp_path / f"{number}.jpg")
    (tmp_path / "4.jpg").write_bytes((tmp_path / "4.jpg").read_bytes()[:-300])
    by_threads: dict[str, bool] = {}

    def view(source: Any) -> Viewed:
        by_threads[Path(source).name] = threading.current_thread() is not threading.main_thread()
        return bundle.view(source)

    with ahead(sorted(tmp_path.glob("*.jpg")), view) as take:
        for number in range(4):
            assert take(number).image.shape[-1] == (60 if number == 2 else 200)
        with pytest.raises(BadImage, match="4.jpg is damaged"):
            take(4)
        assert take(5).image.shape[-1] == 200
    assert by_threads == {f"{number}.jpg": number != 2 for number in range(6)}


def test_a_large_picture_takes_little_memory_until_it_is_looked_at_closely(
    small_bundle: MakeBundle, tmp_path: Path
) -> None:
    """A batch is limited by what its images may come to hold."""
    pyvips.Image.black(400, 300, bands=3).copy(interpretation="srgb").tiffsave(
        str(tmp_path / "a.tif"), tile=True, tile_width=64, tile_height=64, pyramid=True
    )
    Image.new("RGB", (400, 300)).save(tmp_path / "a.jpg")
    bundle = small_bundle(view={"fit": "whole"})
    assert bundle.view(tmp_path / "a.jpg").held_bytes == 4 * 400 * 300
    assert bundle.view(tmp_path / "a.tif").held_bytes == 3 * 64 * (400 + 200 + 100 + 50)
