"""Whether large pictures get the same answers when they are read part by part as when they are decoded first.

    python benchmarks/same_answers.py cub/ plantdoc/ pcb/images --weights efficientnet-lite0.pth --write docs/results.md

The pictures are made here from photographs: as they are if they have at least 4.2 megapixels, else enlarged or side by side, and
saved in many formats, modes and orientations. Each is predicted twice with the same bundle: as the file, and decoded in memory.
The network is `tf_efficientnet_lite0` with its 1000 classes and its own heads, whose weights are in the file --weights. It zooms in
steps of several sizes, aimed by a policy with random weights. Formats without levels are tiled first. The extra `large` is needed.
"""

import argparse
import json
import math
import os
import random
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from results import machine, markdown_table, write_section

import glancefocus as gf
from glancefocus.bundle.bundle import Bundle
from glancefocus.bundle.predicting import Viewed, scene_of
from glancefocus.data.file_scene import FileImage
from glancefocus.data.images import LARGE_PIXELS, open_known_format, pillow_allows, read_picture
from glancefocus.data.large import make_tiles
from glancefocus.network.macs import count_costs
from glancefocus.region import Region
from glancefocus.settings import View

BACKBONE, PX, LOOKS = "tf_efficientnet_lite0", 224, 5
VIEWS = ("0.5@224", "0.25@224", "448px@224", "224")
THRESHOLDS = (0.6, 0.6, 0.6, 0.6)
HUGE_MEGAPIXELS = 72.0
TIFF = {"tile": True, "tile_width": 256, "tile_height": 256, "pyramid": True}
PLACES = ((0.5, 0.5), (0.0, 1.0), (0.31, 0.77))
EXIF_ORIENTATIONS = (2, 3, 4, 5, 6, 7, 8)
LIMIT = 1 << 28  # pixels
FEW_BYTES = 500_000  # of photographs that are not looked into, because they are small

Save = Callable[[Any, Path, random.Random], Path]
"""Saves a picture of libvips (sRGB, 8 bits) under this name without suffix, and returns the file."""


class Answer(NamedTuple):
    """What both ways gave for one picture.

    kind         of KINDS
    same_label, same_looks  the label, and the number of looks
    confidences  after the last look: of the file, and of the picture in memory
    moved        how far boxes of the same look are apart at most, as a share of the smaller side of the box
    most_moved_px  the same in pixels of the picture
    grey_levels  {region: mean difference of its pixels, of 255}
    """

    kind: str
    megapixels: float
    same_label: bool
    same_looks: bool
    confidences: tuple[float, float]
    looks: tuple[int, int]
    moved: float
    most_moved_px: int
    grey_levels: dict[str, float]

    @property
    def difference(self) -> float:
        """Of the confidence."""
        return abs(self.confidences[0] - self.confidences[1])


def _jpeg(suffix: str = "jpg", **options: Any) -> Save:
    def save(picture: Any, stem: Path, rng: random.Random) -> Path:
        file = stem.with_suffix(f".{suffix}")
        picture.jpegsave(str(file), Q=rng.choice((75, 90, 95)), **options)
        return file

    return save


def _tiff(change: Callable[[Any], Any] = lambda picture: picture, **options: Any) -> Save:
    def save(picture: Any, stem: Path, rng: random.Random) -> Path:
        file = stem.with_suffix(".tif")
        change(picture).tiffsave(str(file), **{**TIFF, "compression": "deflate", "level": 1, **options})
        return file

    return save


def _by_pillow(suffix: str, change: Callable[[Image.Image], Image.Image], **options: Any) -> Save:
    def save(picture: Any, stem: Path, rng: random.Random) -> Path:
        file = stem.with_suffix(f".{suffix}")
        change(Image.fromarray(picture.numpy())).save(file, **options)
        return file

    return save


def _turned(save: Save) -> Save:
    """Stored in another orientation, which an EXIF tag names."""

    def save_turned(picture: Any, stem: Path, rng: random.Random) -> Path:
        import pyvips

        tagged = picture.copy()
        tagged.set_type(pyvips.GValue.gint_type, "orientation", rng.choice(EXIF_ORIENTATIONS))
        return save(tagged, stem, rng)

    return save_turned


def _deep_zoom(picture: Any, stem: Path, rng: random.Random) -> Path:
    """A .dzi with lossless tiles; the whole picture is beside it, see reference_of."""
    overlap, tile_px = rng.choice(((0, 256), (1, 254), (3, 500)))
    picture.dzsave(str(stem), suffix=".png[compression=1]", tile_size=tile_px, overlap=overlap)
    picture.pngsave(str(stem.with_suffix(".whole.png")), compression=1)
    return stem.with_suffix(".dzi")


def _deep(picture: Any) -> Any:
    """16 bits whose lower 8 are not those of the upper 8."""
    return (picture.cast("ushort") * 256 + 77).cast("ushort")


def _with_alpha(picture: Image.Image) -> Image.Image:
    """Transparent towards its right edge."""
    alpha = Image.linear_gradient("L").rotate(90).resize(picture.size)
    return Image.merge(f"{picture.mode}A", (*picture.split(), alpha))


def _deep_grey(picture: Image.Image) -> Image.Image:
    import numpy as np

    return Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 256 + 77)


KINDS: dict[str, Save] = {
    "JPEG": _jpeg(),
    "JPEG, progressive": _jpeg(interlace=True),
    "JPEG, EXIF rotation": _turned(_jpeg()),
    "JPEG, progressive, EXIF rotation": _turned(_jpeg(interlace=True)),
    "JPEG, grey": lambda picture, stem, rng: _jpeg()(picture.colourspace("b-w"), stem, rng),
    "JPEG, CMYK": lambda picture, stem, rng: _jpeg()(picture.icc_export(output_profile="cmyk"), stem, rng),
    "JPEG beyond 67 megapixels": _jpeg(),
    "TIFF, pyramid": _tiff(),
    "TIFF, pyramid, JPEG tiles": _tiff(compression="jpeg", Q=90),
    "TIFF, pyramid, 16 bits": _tiff(_deep),
    "TIFF, pyramid, EXIF rotation": _turned(_tiff()),
    "TIFF, pyramid, alpha": lambda picture, stem, rng: _tiff()(
        picture.bandjoin((255 - picture[1]).cast("uchar")).copy(interpretation="srgb"), stem, rng
    ),
    "TIFF, OME (levels in sub-images)": _tiff(subifd=True),
    "TIFF, strips": _tiff(tile=False, pyramid=False, compression="lzw"),
    "TIFF, CMYK": _by_pillow("tif", lambda picture: picture.convert("CMYK")),
    "DeepZoom": _deep_zoom,
    "PNG": _by_pillow("png", lambda picture: picture, compress_level=1),
    "PNG, palette": _by_pillow("png", lambda picture: picture.quantize(200), compress_level=1),
    "PNG, alpha": _by_pillow("png", _with_alpha, compress_level=1),
    "PNG, grey with alpha": _by_pillow("png", lambda picture: _with_alpha(picture.convert("L")), compress_level=1),
    "PNG, grey, 16 bits": _by_pillow("png", _deep_grey, compress_level=1),
    "PNG, RGB, 16 bits": lambda picture, stem, rng: _saved_png(_deep(picture), stem),
    "PNG, EXIF rotation": _turned(lambda picture, stem, rng: _saved_png(picture, stem)),
    "WebP": _by_pillow("webp", lambda picture: picture, quality=85, method=0),
}


def _saved_png(picture: Any, stem: Path) -> Path:
    file = stem.with_suffix(".png")
    picture.copy(interpretation="rgb16" if picture.format == "ushort" else "srgb").pngsave(str(file), compression=1)
    return file


def bundle_of(weights: Path, seed: int) -> Bundle:
    """An ImageNet classifier that zooms at random places."""
    net = gf.create(
        backbone=BACKBONE,
        classes=1000,
        weights=weights,
        classifier="summed",
        glance_px=PX,
        focus=VIEWS,
        looks=LOOKS,
        zoom=True,
        view={"fit": "whole", "height_px": 1024, "width_px": 1024},
        seed=seed,
    ).eval()
    classes = tuple(map(str, range(1000)))
    return Bundle(net, classes, count_costs(net.settings), thresholds=(*THRESHOLDS, 0.0))


def photographs(folders: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Those with more than LARGE_PIXELS pixels, and the others; sorted."""
    large, small = [], []
    for folder in folders:
        for file in sorted(folder.rglob("*")):
            if file.suffix.lower() in (".jpg", ".jpeg", ".png"):
                (large if _pixels(file) > LARGE_PIXELS else small).append(file)
    return large, small


def _pixels(file: Path) -> int:
    if file.stat().st_size < FEW_BYTES:
        return 0
    with file.open("rb") as stream, pillow_allows(LIMIT):
        picture = open_known_format(stream, stream.read(16))
        return 0 if picture is None else picture.width * picture.height


def material(kind: str, large: list[Path], small: list[Path], rng: random.Random) -> Any:
    """A picture of libvips with more than LARGE_PIXELS pixels: a photograph as it is, enlarged, or many side by side."""
    import pyvips

    way = rng.choice(("as it is", "as it is", "enlarged", "side by side"))
    if kind == "JPEG beyond 67 megapixels":
        way, megapixels = "enlarged", HUGE_MEGAPIXELS
    else:
        megapixels = rng.uniform(1.1 * LARGE_PIXELS / 1e6, 9)
    if way == "side by side" and small:
        side, across = 256, math.ceil(math.sqrt(megapixels * 1e6) / 256)
        files = [rng.choice(small) for _ in range(across * (across - rng.randrange(across // 3)))]
        tiles = [pyvips.Image.thumbnail(str(file), side, height=side, crop="centre") for file in files]
        picture = pyvips.Image.arrayjoin([_rgb(tile) for tile in tiles], across=across)
        return _grown(picture, 1.05 * LARGE_PIXELS).copy_memory()
    file = rng.choice(large if way == "as it is" and large else small or large)
    picture = _rgb(pyvips.Image.new_from_file(str(file)).autorot())
    if way == "as it is" and large:
        return picture.copy_memory()
    return _grown(picture, megapixels * 1e6).copy_memory()


def _rgb(picture: Any) -> Any:
    """In 8 bits, without transparency, profile or tags."""
    rgb = (picture.flatten() if picture.hasalpha() else picture).colourspace("srgb")[:3].cast("uchar").copy()
    for field in rgb.get_fields():
        if field.startswith(("exif", "icc", "orientation", "xmp", "iptc")):
            rgb.remove(field)
    return rgb


def _grown(picture: Any, pixels: float) -> Any:
    scale = math.sqrt(pixels / (picture.width * picture.height))
    return picture.resize(scale, kernel="cubic").cast("uchar") if scale > 1 else picture


def reference_of(file: Path) -> Image.Image:
    """The picture of a file, decoded whole."""
    whole = file.with_suffix(".whole.png")
    return read_picture(whole if whole.exists() else file, max_pixels=LIMIT)


def compared(bundle: Bundle, kind: str, file: Path) -> Answer:
    """Both ways for one picture."""
    viewed = bundle.view(file, max_pixels=LIMIT)
    if not isinstance(viewed.image, FileImage):
        make_tiles(file, max_pixels=LIMIT)
        viewed = bundle.view(file, max_pixels=LIMIT)
    assert isinstance(viewed.image, FileImage), f"{file} is not read part by part"
    in_memory = bundle.view(reference_of(file))
    assert isinstance(in_memory.image, torch.Tensor)
    one, other = bundle.predict(viewed), bundle.predict(in_memory)
    if any(one.problems):
        raise SystemExit(f"{file}: {one.problems}")
    # Boxes are compared as far as both ways looked.
    moves = [
        (max(abs(a - b) for a, b in zip(box, same, strict=True)), min(box[2] - box[0], box[3] - box[1]))
        for box, same in zip(one.boxes[0], other.boxes[0], strict=False)
    ]
    return Answer(
        kind,
        viewed.image.size_px[0] * viewed.image.size_px[1] / 1e6,
        one.label == other.label,
        bool((one.looks == other.looks).all()),
        (float(one.confidence[0]), float(other.confidence[0])),
        (int(one.looks[0]), int(other.looks[0])),
        max((px / side for px, side in moves), default=0.0),
        max((px for px, _ in moves), default=0),
        grey_levels(bundle, viewed, in_memory),
    )


def grey_levels(bundle: Bundle, of_file: Viewed, in_memory: Viewed) -> dict[str, float]:
    """{view: mean difference of the pixels of its regions at the same places, in grey levels of 255}."""
    settings = bundle.settings
    std = torch.tensor(settings.view.std)[None, :, None, None]
    scenes = [scene_of(bundle, [viewed]) for viewed in (of_file, in_memory)]
    found = {}
    for view in (settings.glance_view, *settings.candidates):
        regions = [Region(view, place) for place in _places(view)]
        differences = [
            ((scenes[0].view(region) - scenes[1].view(region)).abs() * std * 255).mean() for region in regions
        ]
        found[view.name] = float(torch.stack(differences).mean())
    return found


def _places(view: View) -> list[torch.Tensor | None]:
    return [None] if view.is_whole else [torch.tensor([place]) for place in PLACES]


def answers(bundle: Bundle, options: argparse.Namespace) -> Iterator[Answer]:
    """All pictures, made one after the other; the kinds take turns. Those that an earlier call answered are read from its rows."""
    rows = options.rows.read_text().splitlines() if options.rows and options.rows.exists() else []
    yield from (Answer(**json.loads(row)) for row in rows[: options.count])
    for number, answer in new_answers(bundle, options, range(len(rows), options.count)):
        if not (answer.same_label and answer.same_looks) or options.verbose:
            print(number, answer, file=sys.stderr)
        if options.rows:
            with options.rows.open("a") as file:
                file.write(json.dumps(answer._asdict()) + "\n")
        yield answer


def new_answers(bundle: Bundle, options: argparse.Namespace, numbers: range) -> Iterator[tuple[int, Answer]]:
    """(number, answer) of these pictures, each of which is removed afterwards."""
    if not numbers:
        return
    large, small = photographs(options.folders)
    kinds = [kind for kind in KINDS if not options.kinds or kind in options.kinds]
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        os.environ["GLANCEFOCUS_CACHE"] = folder
        for number in numbers:
            rng = random.Random(f"{options.seed}, {number}")
            kind = kinds[number % len(kinds)]
            with tempfile.TemporaryDirectory(dir=folder) as own:
                file = KINDS[kind](material(kind, large, small, rng), Path(own) / f"{number:03d}", rng)
                answer = compared(bundle, kind, file)
            for tiles in (Path(folder) / "tiles").glob("*.tif"):
                tiles.unlink()
            yield number, answer


def table(found: list[Answer]) -> str:
    """One row for each kind of file, and one for all."""
    head = ["", "pictures", "same label", "same looks", "boxes the same to the pixel", "boxes apart by at most"]
    head += [
        "difference of confidence: median",
        "largest",
        "glance, grey levels",
        "focus, grey levels",
        "at full resolution",
    ]
    rows = [_row(kind, [each for each in found if each.kind == kind]) for kind in KINDS]
    return markdown_table([head, *(row for row in rows if row), *([_row("all", found)] if found else [])])


def _row(name: str, found: list[Answer]) -> list[str]:
    if not found:
        return []
    differences = torch.tensor([each.difference for each in found])
    whole, *zoomed, full = found[0].grey_levels

    def mean(views: Sequence[str]) -> float:
        return sum(each.grey_levels[view] for each in found for view in views) / len(found) / len(views)

    return [
        name,
        f"{len(found)}",
        f"{sum(each.same_label for each in found)}",
        f"{sum(each.same_looks for each in found)}",
        f"{sum(each.most_moved_px == 0 for each in found)}",
        f"{100 * max(each.moved for each in found):.1f} %",
        f"{differences.median():.4f}",
        f"{differences.max():.4f}",
        f"{mean([whole]):.3f}",
        f"{mean(zoomed):.3f}",
        f"{mean([full]):.3f}",
    ]


def body_of(found: list[Answer], options: argparse.Namespace) -> str:
    """What is written into the results."""
    sizes = [each.megapixels for each in found]
    apart = [each for each in found if not (each.same_label and each.same_looks)]
    sentences = [
        f"{each.kind}: {each.looks[0]} and {each.looks[1]} looks, confidence {each.confidences[0]:.4f} and "
        f"{each.confidences[1]:.4f}, {'the same label' if each.same_label else 'another label'}"
        for each in apart
    ]
    return (
        f"{len(found)} pictures of {min(sizes):.1f} to {max(sizes):.0f} megapixels, made of photographs, with `{BACKBONE}` and its "
        f"ImageNet heads: {PX} px, views {' '.join(VIEWS)}, zooming at places of a policy with random weights, thresholds of "
        f"{THRESHOLDS[0]:g}. Mean number of looks: {sum(each.looks[0] for each in found) / len(found):.2f}. Every picture was "
        "predicted as a file, of which only parts are read, and decoded in memory. How far boxes are apart is a share of the box's "
        "side. Grey levels are mean differences (of 255) of the pixels of the same regions.\n\n"
        f"{table(found)}\n\n"
        + (
            f"Not the same (file, memory): {'; '.join(sentences)}."
            if apart
            else "No label and no number of looks differs."
        )
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="photographs")
    parser.add_argument("--weights", required=True, type=Path, help=f"a file with the weights of {BACKBONE}")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, metavar="KIND", help="only these kinds of files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scratch", type=Path, help="where the pictures are made, one after the other")
    parser.add_argument("--verbose", action="store_true", help="print every picture")
    parser.add_argument(
        "--rows", type=Path, help="a file for the answers, one on each line; with it an interrupted call goes on"
    )
    parser.add_argument("--write", type=Path)
    options = parser.parse_args(arguments)
    found = list(answers(bundle_of(options.weights, options.seed), options))
    body = body_of(found, options)
    print(body)
    if options.write:
        words = shlex.join(sys.argv[1:] if arguments is None else arguments)
        command = f"python benchmarks/same_answers.py {words}"
        title = "The same answers from a file and from memory"
        write_section(options.write, "same_answers", title=title, command=command, machine=machine(), body=body)


if __name__ == "__main__":
    main()
