"""Pictures that are read part by part: the same pixels as of the picture in memory, whatever the kind of file."""

import gc
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image

from glancefocus.data.file_scene import FilePicture, Stamp
from glancefocus.data.images import TURNS, read_picture
from glancefocus.data.large import is_read_by_parts, make_tiles, open_large, read_header
from glancefocus.data.tiles import LIMIT_VARIABLE, forget_oldest, limit_bytes
from glancefocus.errors import BadImage, BadSetting
from glancefocus.files import is_held
from glancefocus.region import Box

pyvips = pytest.importorskip("pyvips")
SIZE = (301, 203)  # odd, so that levels are rounded


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Pictures of more than 10,000 pixels are large here, and those of more than 40,000 are not decoded whole."""
    monkeypatch.setenv("GLANCEFOCUS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("glancefocus.data.large.LARGE_PIXELS", 10_000)
    monkeypatch.setattr("glancefocus.data.large.HELD_PIXELS", 40_000)
    monkeypatch.setattr("glancefocus.data.levels.HELD_PIXELS", 40_000)


def smooth(size: tuple[int, int] = SIZE, bands: int = 3) -> np.ndarray:
    """(H, W, bands) with structure of many sizes, so that a shifted or turned picture is another one."""
    width, height = size
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (height // 25 + 1, width // 25 + 1, bands), dtype=np.uint8)
    layers = [
        np.asarray(Image.fromarray(coarse[..., band]).resize(size, Image.Resampling.BICUBIC)) for band in range(bands)
    ]
    return np.stack(layers, axis=-1)


def pyramid(file: Path, pixels: np.ndarray, **options: object) -> Path:
    image = pyvips.Image.new_from_array(pixels)
    settings = {"tile": True, "tile_width": 64, "tile_height": 64, "pyramid": True, "compression": "deflate"}
    image.tiffsave(str(file), **{**settings, **options})
    return file


def opened(file: Path | bytes) -> FilePicture:
    picture = open_large(file)
    assert picture is not None
    return picture


def differs_by(one: Image.Image, other: Image.Image) -> float:
    """Mean absolute difference of two pictures of the same size, in levels of 0 to 255."""
    assert one.size == other.size
    return float(np.abs(np.asarray(one, np.float64) - np.asarray(other, np.float64)).mean())


class OneLevel:
    """A pyramid of a picture in memory, stored in another orientation than it is shown."""

    def __init__(self, upright: Image.Image, turn: Image.Transpose | None) -> None:
        back = {
            Image.Transpose.ROTATE_90: Image.Transpose.ROTATE_270,
            Image.Transpose.ROTATE_270: Image.Transpose.ROTATE_90,
        }
        self.stored = upright if turn is None else upright.transpose(back.get(turn, turn))
        self.levels: tuple[Image.Image, ...] = (self.stored,)
        self.sizes: tuple[tuple[int, int], ...] = (self.stored.size,)
        self.name, self.turn, self.held_bytes = "a picture", turn, 0

    def read(self, level: int, box: Box) -> Image.Image:
        return self.levels[level].crop(box)


@pytest.mark.parametrize("turn", [None, *TURNS.values()])
def test_a_part_of_a_turned_picture_is_that_of_the_upright_one(turn: Image.Transpose | None) -> None:
    upright = Image.fromarray(smooth())
    picture = FilePicture(OneLevel(upright, turn))
    assert picture.size == SIZE
    box = (40, 17, 104, 81)
    assert picture.cut(box, (64, 64)).tobytes() == upright.crop(box).tobytes()
    smaller = picture.cut((10, 3, 290, 203), (70, 50))
    assert smaller.tobytes() == upright.crop((10, 3, 290, 203)).resize((70, 50), Image.Resampling.BILINEAR).tobytes()


@pytest.mark.parametrize("turn", [None, *TURNS.values()])
def test_levels_that_were_rounded_down_show_the_same_places(turn: Image.Transpose | None) -> None:
    """A level of an eighth lacks the last 7 of 1,007 columns and of 807 rows, which are the first ones of a turned picture.

    Grey levels change by half a level for each pixel, so places that are 7 px off would differ by up to 7 levels.
    """
    across, down = (abs(np.arange(side) % 500 - 250) / 2 for side in (1007, 807))
    upright = Image.fromarray((across + down[:, None]).round().astype(np.uint8)).convert("RGB")
    pyramid = OneLevel(upright, turn)
    width, height = pyramid.stored.size
    small = pyramid.stored.crop((0, 0, width - 7, height - 7)).reduce(8)
    pyramid.sizes = ((width, height), small.size)
    pyramid.levels = (pyramid.stored, small)
    exact = upright.resize((60, 48), Image.Resampling.BILINEAR)
    assert differs_by(FilePicture(pyramid).cut((0, 0, 1007, 807), (60, 48)), exact) < 0.7


def test_a_part_is_read_from_the_smallest_level_with_enough_pixels(tmp_path: Path) -> None:
    read: list[tuple[int, Box]] = []

    class Noting:
        name, turn, held_bytes, sizes = "a picture", None, 0, ((1000, 800), (500, 400), (250, 200))

        def read(self, level: int, box: Box) -> Image.Image:
            read.append((level, box))
            return Image.new("RGB", (box[2] - box[0], box[3] - box[1]))

    picture = FilePicture(Noting())
    picture.cut((0, 0, 1000, 800), (100, 80))  # a tenth: twice that is 0.2, so the quarter has enough
    picture.cut((100, 200, 500, 600), (100, 100))  # a quarter: the half has twice as many
    picture.cut((100, 200, 500, 600), (120, 120))  # 0.3: twice that is more than the half has
    picture.cut((101, 202, 165, 266), (64, 64))
    assert read == [
        (2, (0, 0, 250, 200)),
        (1, (50, 100, 250, 300)),
        (0, (100, 200, 500, 600)),
        (0, (101, 202, 165, 266)),
    ]


KINDS: dict[str, Callable[[Path], Path]] = {
    "tiff": lambda folder: pyramid(folder / "a.tif", smooth()),
    "jpeg in tiff": lambda folder: pyramid(folder / "a.tif", smooth(), compression="jpeg", Q=95),
    "ome": lambda folder: pyramid(folder / "a.ome.tif", smooth(), subifd=True),
    "big": lambda folder: pyramid(folder / "a.tif", smooth(), bigtiff=True),
    "grey": lambda folder: pyramid(folder / "a.tif", smooth(bands=1)),
    "grey, 16 bits": lambda folder: pyramid(folder / "a.tif", smooth(bands=1).astype(np.uint16) * 257),
    "16 bits": lambda folder: pyramid(folder / "a.tif", smooth().astype(np.uint16) * 257),
    "alpha": lambda folder: pyramid(folder / "a.tif", smooth(bands=4)),
    "strips": lambda folder: pyramid(folder / "a.tif", smooth(), tile=False, pyramid=False),
    "jpeg": lambda folder: saved(folder / "a.jpg", smooth(), quality=95),
    "grey jpeg": lambda folder: saved(folder / "a.jpg", smooth(bands=1)[..., 0], quality=95),
    "progressive jpeg": lambda folder: saved(folder / "a.jpg", smooth(), quality=95, progressive=True),
    "cmyk jpeg": lambda folder: saved(folder / "a.jpg", Image.fromarray(smooth()).convert("CMYK"), quality=95),
    "png": lambda folder: saved(folder / "a.png", smooth()),
    "png with alpha": lambda folder: saved(folder / "a.png", smooth(bands=4)),
    "palette png": lambda folder: saved(folder / "a.png", Image.fromarray(smooth()).quantize(200)),
    "black and white png": lambda folder: saved(folder / "a.png", Image.fromarray(smooth()).convert("1")),
    "png of 16 bits": lambda folder: saved(folder / "a.png", smooth(bands=1)[..., 0].astype(np.uint16) * 257),
    "cmyk tiff": lambda folder: saved(folder / "a.tif", Image.fromarray(smooth()).convert("CMYK")),
    "deep zoom": lambda folder: zoomed(folder / "a"),
}


def saved(file: Path, picture: np.ndarray | Image.Image, **options: object) -> Path:
    (picture if isinstance(picture, Image.Image) else Image.fromarray(picture)).save(file, **options)  # type: ignore[arg-type]
    return file


def zoomed(stem: Path) -> Path:
    pyvips.Image.new_from_array(smooth()).dzsave(str(stem), suffix=".png", tile_size=62, overlap=3)
    return stem.with_suffix(".dzi")


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_a_file_are_those_of_the_picture_in_memory(kind: str, tmp_path: Path) -> None:
    file = KINDS[kind](tmp_path)
    whole = Image.fromarray(smooth()) if kind == "deep zoom" else read_picture(file)
    picture = opened(file)
    assert picture.size == whole.size == SIZE
    for box in ((0, 0, 64, 64), (237, 139, 301, 203), (100, 70, 164, 134)):
        rounding = 1.01 if "alpha" in kind else 0.0  # Pillow and libvips round transparency differently
        part, exact = (np.asarray(one, np.int16) for one in (picture.cut(box, (64, 64)), whole.crop(box)))
        assert np.abs(part - exact).max() <= rounding, box
        assert np.abs(part - exact).mean() <= rounding / 20, box
    smooth_enough = 12.0 if kind == "black and white png" else 2.5
    for box, size in (((0, 0, *SIZE), (32, 32)), ((0, 0, *SIZE), (60, 40)), ((50, 20, 250, 200), (48, 48))):
        exact = whole.crop(box).resize(size, Image.Resampling.BILINEAR)
        assert differs_by(picture.cut(box, size), exact) <= smooth_enough, (box, size)


@pytest.mark.parametrize("orientation", [1, 3, 6, 8, 5])
@pytest.mark.parametrize("suffix", ["jpg", "png", "tif"])
def test_a_file_with_an_exif_orientation_is_read_upright(suffix: str, orientation: int, tmp_path: Path) -> None:
    picture = Image.fromarray(smooth())
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    file = saved(tmp_path / f"a.{suffix}", picture, exif=exif.tobytes() if suffix != "tif" else exif)
    upright = read_picture(file)
    part = opened(file)
    assert part.size == upright.size
    box = (30, 50, 94, 114)
    assert differs_by(part.cut(box, (64, 64)), upright.crop(box)) == 0
    whole = (0, 0, *upright.size)
    assert differs_by(part.cut(whole, (40, 40)), upright.resize((40, 40), Image.Resampling.BILINEAR)) < 2.5


@pytest.mark.parametrize("suffix", ["jpg", "tif", "png"])
def test_the_bytes_of_a_file_are_read_like_the_file(suffix: str, tmp_path: Path) -> None:
    file = pyramid(tmp_path / "a.tif", smooth()) if suffix == "tif" else saved(tmp_path / f"a.{suffix}", smooth())
    box = (30, 50, 94, 114)
    assert opened(file.read_bytes()).cut(box, (64, 64)).tobytes() == opened(file).cut(box, (64, 64)).tobytes()


def test_small_pictures_and_other_formats_are_decoded_whole(tmp_path: Path) -> None:
    assert open_large(saved(tmp_path / "a.jpg", smooth((90, 90)))) is None
    assert open_large(saved(tmp_path / "a.bmp", smooth())) is None
    assert open_large(saved(tmp_path / "b.tif", Image.fromarray(smooth(bands=1)[..., 0].astype(np.float32)))) is None
    assert open_large(tmp_path / "missing.jpg") is None
    (tmp_path / "text.jpg").write_text("no picture")
    assert open_large(tmp_path / "text.jpg") is None
    assert read_header(tmp_path / "text.jpg") is None


def test_which_files_are_read_ahead(tmp_path: Path) -> None:
    assert is_read_by_parts(saved(tmp_path / "a.jpg", smooth()))
    assert is_read_by_parts(pyramid(tmp_path / "a.tif", smooth()))
    assert not is_read_by_parts(saved(tmp_path / "small.jpg", smooth((90, 90))))
    assert not is_read_by_parts(saved(tmp_path / "a.png", smooth()))  # it may have to be decoded whole
    assert not is_read_by_parts(tmp_path / "missing.jpg")
    assert not is_read_by_parts(Image.fromarray(smooth()))


def test_pictures_beyond_a_limit_are_refused_before_anything_is_decoded(tmp_path: Path) -> None:
    for file in (pyramid(tmp_path / "a.tif", smooth()), saved(tmp_path / "a.jpg", smooth()), zoomed(tmp_path / "b")):
        with pytest.raises(BadImage, match="61,103 pixels .301x203., more than the limit of 50,000"):
            open_large(file, max_pixels=50_000)


def test_a_bomb_is_refused_in_a_sentence_and_leaves_no_tiles(tmp_path: Path) -> None:
    """A PNG of a few hundred bytes that says that it has 4 gigapixels."""
    file = saved(tmp_path / "a.png", Image.new("1", (64, 64)))
    content = bytearray(file.read_bytes())
    content[16:24] = (65_536).to_bytes(4, "big") * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    file.write_bytes(content)
    with pytest.raises(BadImage, match=r"4,294,967,296 pixels \(65536x65536\), more than the limit of 178,956,970"):
        open_large(file)
    with pytest.raises(BadImage, match="limit of 1,000,000"):
        make_tiles(file, max_pixels=1_000_000)
    assert not list((tmp_path / "cache").rglob("*.tif"))


@pytest.mark.parametrize("name", ["a.png", "a.jpg"])
def test_tiles_of_a_truncated_file_are_not_kept(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    file = saved(tmp_path / name, rng.integers(0, 256, (203, 301, 3), dtype=np.uint8))
    file.write_bytes(file.read_bytes()[:-20_000])
    with pytest.raises(BadImage, match="damaged or cut off"):
        make_tiles(file, max_pixels=10**9)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.suffix in (".tif", ".aside")]


def test_a_damaged_tile_is_reported_where_it_is_read(tmp_path: Path) -> None:
    file = pyramid(tmp_path / "a.tif", np.random.default_rng(0).integers(0, 256, (203, 301, 3), dtype=np.uint8))
    content = bytearray(file.read_bytes())
    content[200:8000] = bytes(7800)  # the first tiles of the largest level
    file.write_bytes(content)
    picture = opened(file)
    picture.cut((200, 100, 264, 164), (64, 64))
    with pytest.raises(BadImage, match="a part of it cannot be read"):
        picture.cut((0, 0, 64, 64), (64, 64))


def test_a_missing_tile_of_a_deep_zoom_picture_is_named(tmp_path: Path) -> None:
    file = zoomed(tmp_path / "a")
    (tmp_path / "a_files" / "9" / "0_0.png").unlink()
    picture = opened(file)
    picture.cut((100, 100, 164, 164), (64, 64))
    with pytest.raises(BadImage, match="a tile of .*a.dzi cannot be read: there is no file .*0_0.png"):
        picture.cut((0, 0, 64, 64), (64, 64))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<Image TileSize='62' Overlap='3' Format='png'/>",
        "<Image TileSize='0' Overlap='3' Format='png'><Size Width='301' Height='203'/></Image>",
        "<Image TileSize='62' Overlap='3' Format='../x'><Size Width='301' Height='203'/></Image>",
        "<Image TileSize='62' Overlap='3' Format='png'><Size Width='301' Height='99999999999999'/></Image>",
        "<!DOCTYPE a [<!ENTITY b 'c'>]><Image/>",
    ],
)
def test_a_description_that_is_not_deep_zoom_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.dzi").write_text(text)
    with pytest.raises(BadImage, match="a.dzi"):
        open_large(tmp_path / "a.dzi")


@pytest.mark.parametrize("name", ["a.tif", "a.jpg"])
def test_a_file_that_changes_while_it_is_read_is_refused(name: str, tmp_path: Path) -> None:
    write = pyramid if name == "a.tif" else saved
    file = write(tmp_path / name, smooth())
    picture = opened(file)
    write(file, smooth()[::-1].copy())
    os.utime(file, ns=(1, 1))
    with pytest.raises(BadImage, match="was changed or removed while it was being read"):
        picture.cut((0, 0, 64, 64), (64, 64))


def test_tiles_are_made_once_and_again_when_the_file_changes(tmp_path: Path) -> None:
    file = saved(tmp_path / "a.png", smooth())
    told: list[int] = []
    kept = make_tiles(file, max_pixels=10**9, progress=lambda what, done, total: told.append(done))
    assert kept is not None
    assert told
    told.clear()
    assert make_tiles(file, max_pixels=10**9, progress=lambda what, done, total: told.append(done)) == kept
    assert told == []
    saved(file, smooth()[::-1].copy())
    os.utime(file, ns=(1, 1))
    other = make_tiles(file, max_pixels=10**9)
    assert other is not None
    assert other != kept
    assert opened(file).cut((0, 0, 64, 64), (64, 64)).tobytes() == read_picture(file).crop((0, 0, 64, 64)).tobytes()


def test_tiles_can_be_written_elsewhere_and_are_a_pyramid(tmp_path: Path) -> None:
    place = tmp_path / "tiles.tif"
    assert make_tiles(saved(tmp_path / "a.png", smooth()), place, max_pixels=10**9) == place
    assert make_tiles(place, max_pixels=10**9) is None  # it needs none
    assert not list((tmp_path / "cache").rglob("*.tif"))
    assert (
        opened(place).cut((5, 5, 69, 69), (64, 64)).tobytes()
        == Image.fromarray(smooth()).crop((5, 5, 69, 69)).tobytes()
    )


def test_tiles_that_do_not_fit_on_the_disk_are_refused_before_they_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = saved(tmp_path / "a.png", smooth())
    usage = type("Usage", (), {"free": 1_000_000})
    monkeypatch.setattr("glancefocus.data.tiles.shutil.disk_usage", lambda place: usage)
    with pytest.raises(BadSetting, match="the tiles of .*a.png may take 0 MB, but .* has 1 MB left"):
        make_tiles(file, max_pixels=10**9)
    assert not list((tmp_path / "cache").rglob("*.tif"))


def test_the_tiles_that_were_not_used_for_longest_are_removed_first(tmp_path: Path) -> None:
    for number, name in enumerate(("new", "old", "older")):
        (tmp_path / f"{name}.tif").write_bytes(bytes(100))
        os.utime(tmp_path / f"{name}.tif", (1000 - number, 1000 - number))
    forget_oldest(tmp_path, 200, keep=tmp_path / "older.tif")
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".tif") == ["new.tif", "older.tif"]


def test_tiles_that_are_read_are_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pictures of one batch, whose tiles do not both fit into the limit."""
    one, other = saved(tmp_path / "a.png", smooth()), saved(tmp_path / "b.png", smooth()[::-1].copy())
    tiles = make_tiles(one, max_pixels=10**9)
    assert tiles is not None
    monkeypatch.setenv(LIMIT_VARIABLE, str(1.5e-9 * tiles.stat().st_size))
    picture = opened(one)
    make_tiles(other, max_pixels=10**9)
    assert picture.cut((0, 0, 64, 64), (64, 64)).tobytes() == read_picture(one).crop((0, 0, 64, 64)).tobytes()
    del picture
    gc.collect()
    assert not is_held(tiles)
    make_tiles(saved(tmp_path / "c.png", smooth()[:, ::-1].copy()), max_pixels=10**9)
    assert not tiles.exists()


def test_tiles_beyond_the_limit_are_refused_before_they_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, "0.00001")
    monkeypatch.setattr("glancefocus.data.tiles.Tiler._save", None)
    with pytest.raises(BadSetting, match="more than the limit of 0 MB for all tiles"):
        make_tiles(saved(tmp_path / "a.png", smooth()), max_pixels=10**9)


def test_a_part_that_does_not_fit_into_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only level is far larger than what is asked for."""
    picture = FilePicture(OneLevel(Image.fromarray(smooth()), None))
    monkeypatch.setattr("glancefocus.machine.UNCHECKED_BYTES", 100_000)
    monkeypatch.setattr("glancefocus.machine.available_bytes", lambda: 200_000)
    picture.cut((0, 0, 100, 100), (10, 10))
    with pytest.raises(BadImage, match=r"a part of a picture \(301x203 px\) needs about 0 MB of memory"):
        picture.cut((0, 0, 301, 203), (10, 10))


def test_a_long_picture_that_would_be_read_whole_is_refused(tmp_path: Path) -> None:
    """A description of 100 bytes claims 16 gigapixels; for a glance, a quarter of each side would be put together."""
    file = tmp_path / "a.dzi"
    file.write_text("<Image TileSize='4096' Overlap='0' Format='png'><Size Width='16000000' Height='1000'/></Image>")
    with pytest.raises(
        BadImage, match=r"needs 1,000,000,000 of its pixels at once \(4000000x250\), more than the limit"
    ):
        opened(file).part((0, 0, 16_000_000, 1000), (64, 64))


def test_tiles_are_not_written_over_a_folder(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"is a folder. Name a file in it for the tiles, such as .*tiles.tif"):
        make_tiles(saved(tmp_path / "a.png", smooth()), tmp_path, max_pixels=10**9)


def test_a_tiff_that_changes_during_a_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = pyramid(tmp_path / "a.tif", smooth())
    picture = opened(file)
    fetch = pyvips.Region.fetch

    def fetched(*arguments: Any) -> Any:
        pixels = fetch(*arguments)
        os.utime(file, ns=(1, 1))
        return pixels

    monkeypatch.setattr(pyvips.Region, "fetch", fetched)
    with pytest.raises(BadImage, match="was changed or removed while it was being read"):
        picture.cut((0, 0, 64, 64), (64, 64))


def test_the_limit_of_tiles_is_a_number_of_gigabytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert limit_bytes() == 20_000_000_000
    monkeypatch.setenv(LIMIT_VARIABLE, "0.00001")
    assert limit_bytes() == 10_000
    with pytest.raises(BadSetting, match="more than the limit of 0 MB for all tiles"):
        make_tiles(saved(tmp_path / "a.png", smooth()), max_pixels=10**9)
    assert not list((tmp_path / "cache").rglob("*.tif"))
    monkeypatch.setenv(LIMIT_VARIABLE, "many")
    with pytest.raises(BadSetting, match="GLANCEFOCUS_TILES_GB must be a number of gigabytes, but it is 'many'"):
        limit_bytes()


def test_a_stamp_of_bytes_never_changes() -> None:
    Stamp.of(b"abc").check("a picture")
