"""`gf tile`, and `gf predict` on large pictures."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from glancefocus.bundle.bundle import Bundle

pyvips = pytest.importorskip("pyvips")
pytestmark = pytest.mark.usefixtures("small_is_large")
Run = Callable[..., Any]


@pytest.fixture
def noise(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (300, 500, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "noise.png")
    return tmp_path / "noise.png"


@pytest.fixture
def bundle_folder(small_bundle: Callable[..., Bundle], tmp_path: Path) -> Path:
    return small_bundle(view={"fit": "whole"}).save(tmp_path / "bundle")


def test_tiles_are_made_in_the_cache_and_found_again(gf: Run, noise: Path, tmp_path: Path) -> None:
    (made,) = gf("tile", noise, "--json")
    assert Path(made["tiles"]).parent == tmp_path / "cache" / "tiles"
    assert made["bytes"] == Path(made["tiles"]).stat().st_size > 3 * 300 * 500
    assert gf("tile", noise, "--json") == [made]
    assert made["tiles"] in gf("tile", noise)


def test_tiles_can_be_written_to_a_file(gf: Run, noise: Path, tmp_path: Path) -> None:
    gf("tile", noise, "-o", tmp_path / "tiles.tif")
    assert (tmp_path / "tiles.tif").exists()
    assert "it is a pyramid, and needs no tiles" in gf("tile", tmp_path / "tiles.tif")
    assert not (tmp_path / "cache" / "tiles").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("missing.png",), "gf: there is no file missing.png. Check the path."),
        (
            ("noise.png", "--max-pixels", "1000"),
            "gf: noise.png has 150,000 pixels (500x300), more than the limit of 1,000.",
        ),
        (("noise.png", "noise.png", "-o", "a.tif"), "gf: --output is for the tiles of one picture, but 2 were named."),
        (("noise.png", "-o", "no/a.tif"), "gf: the folder no for the tiles does not exist. Make it first, or choose"),
        (("text.png",), "gf: text.png is not an image in a known format."),
        (("a.bmp",), "gf: a.bmp is in a format of which no tiles are made. Convert it to PNG, JPEG or TIFF"),
    ],
)
def test_what_cannot_be_tiled_gets_a_sentence(
    words: tuple[str, ...], sentence: str, gf: Run, noise: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(noise.parent)
    Path("text.png").write_text("no picture")
    Image.new("RGB", (200, 200)).save("a.bmp")
    assert gf("tile", *words, code=2).startswith(sentence)


def test_without_the_extra_the_command_says_what_to_install(
    gf: Run, noise: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from glancefocus.data.levels import vips

    vips.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "pyvips", None)
    try:
        assert "gf: this needs the package 'pyvips'. Install it with: pip install" in gf("tile", noise, code=2)
    finally:
        vips.cache_clear()


def test_a_large_picture_is_drawn_as_an_overview_and_look_by_look(
    gf: Run, bundle_folder: Path, noise: Path, tmp_path: Path
) -> None:
    (answer,) = gf("predict", bundle_folder, noise, "--draw", tmp_path / "drawings", "--json")
    assert answer["looks"] == 3
    names = sorted(path.name for path in (tmp_path / "drawings").iterdir())
    assert names == ["00000-noise-look2.png", "00000-noise-look3.png", "00000-noise.png"]
    picture = Image.open(noise)
    for look, box in enumerate(answer["boxes"], start=2):
        drawn = Image.open(tmp_path / "drawings" / f"00000-noise-look{look}.png")
        assert drawn.tobytes() == picture.crop(tuple(box)).tobytes()
    assert list((tmp_path / "cache" / "tiles").glob("*.tif"))  # it was too large to be decoded whole


def test_good_files_are_answered_beside_one_whose_parts_are_damaged(
    gf: Run, bundle_folder: Path, noise: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from glancefocus.cli.main import main

    gf("tile", noise, "-o", tmp_path / "tiles.tif")
    pyvips.Image.new_from_file(str(noise)).tiffsave(
        str(tmp_path / "bad.tif"), tile=True, tile_width=64, tile_height=64, pyramid=True, compression="deflate"
    )
    content = bytearray((tmp_path / "bad.tif").read_bytes())
    for begin in range(200, 400_000, 500):
        content[begin : begin + 20] = bytes(20)
    (tmp_path / "bad.tif").write_bytes(content)
    with pytest.raises(SystemExit) as ended:
        main(
            ["predict", str(bundle_folder), str(noise), str(tmp_path / "bad.tif"), str(tmp_path / "tiles.tif"), "--csv"]
        )
    out, err = capsys.readouterr()
    assert ended.value.code == 2
    assert len(out.strip().splitlines()) == 4
    assert "bad.tif is damaged or cut off: a part of it cannot be read" in err
    assert "2 pictures in" in err


def test_a_folder_with_a_deep_zoom_picture_is_one_picture(
    gf: Run, bundle_folder: Path, noise: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "slides"
    folder.mkdir()
    pyvips.Image.new_from_file(str(noise)).dzsave(str(folder / "a"), suffix=".png")
    answers = gf("predict", bundle_folder, folder, "--json")
    assert [Path(answer["file"]).name for answer in answers] == ["a.dzi"]
