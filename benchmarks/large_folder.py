"""A folder of large pictures: pictures a second when they are read part by part, against decoding each of them first.

    python benchmarks/large_folder.py runs/photos/bundle photos/ --count 200
    python benchmarks/large_folder.py runs/photos/bundle large/ --make photos/ --megapixels 12 --count 1000 --write docs/results.md
    python benchmarks/large_folder.py runs/photos/bundle mixed/ --make photos/ --megapixels 5 --kinds mixed --write docs/results.md

Both ways take turns in one process, batch by batch. It also counts how many answers are the same. With --make the folder is made
first: photographs, enlarged, as JPEG or in many formats and modes. Beyond --distinct pictures its files are links to earlier ones.
"""

import argparse
import json
import math
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from results import machine, markdown_table, write_section

import glancefocus as gf
from glancefocus.bundle.bundle import Bundle
from glancefocus.data.folders import find_pictures
from glancefocus.data.images import read_picture
from glancefocus.outcome import Outcome

FORMATS = ("jpg", "progressive.jpg", "grey.jpg", "cmyk.jpg", "turned.jpg", "pyramid.tif", "deep.tif", "png")


def both_ways(bundle: Bundle, files: list[Path], batch_size: int) -> tuple[list[Outcome], list[Outcome], float, float]:
    """Outcomes of all batches, read part by part and decoded first, and the seconds that each way took."""
    parts, decoded, parts_s, decoded_s = [], [], 0.0, 0.0
    for start in range(0, len(files), batch_size):
        batch = files[start : start + batch_size]
        started = time.perf_counter()
        parts.append(bundle.predict(batch))
        between = time.perf_counter()
        decoded.append(bundle.predict([read_picture(file) for file in batch]))
        parts_s, decoded_s = parts_s + between - started, decoded_s + time.perf_counter() - between
    return parts, decoded, parts_s, decoded_s


def summary(parts: Outcome, decoded: Outcome, parts_s: float, decoded_s: float) -> dict[str, Any]:
    """The numbers that are reported."""
    same = sum(one == other for one, other in zip(parts.label, decoded.label, strict=True))
    difference = (parts.logits.softmax(dim=1) - decoded.logits.softmax(dim=1)).abs().amax(dim=1)
    return {
        "pictures": len(parts),
        "by_parts_per_second": len(parts) / parts_s,
        "decoded_per_second": len(parts) / decoded_s,
        "ratio": decoded_s / parts_s,
        "same_answers": same,
        "same_looks": int((parts.looks == decoded.looks).sum()),
        "median_difference_of_probabilities": float(difference.median()),
        "largest_difference_of_probabilities": float(difference.max()),
    }


def make(folder: Path, photos: Path, options: argparse.Namespace) -> None:
    """Fill the folder with enlarged photographs."""
    import pyvips

    folder.mkdir()
    sources = sorted(photos.rglob("*.jpg"))
    sources = sources[:: max(1, len(sources) // options.distinct)][: options.distinct]
    for number in range(options.count):
        kind = "jpg" if options.kinds == "jpeg" else FORMATS[number % len(FORMATS)]
        file = folder / f"{number:04d}.{kind}"
        if number >= len(sources):
            os.link(folder / f"{number % len(sources):04d}.{kind}", file)
            continue
        picture = pyvips.Image.new_from_file(str(sources[number])).colourspace("srgb")[:3]
        scale = math.sqrt(options.megapixels * 1e6 / (picture.width * picture.height))
        picture = picture.resize(scale, kernel="cubic").cast("uchar").copy_memory()
        save(picture, kind, file)


def save(picture: Any, kind: str, file: Path) -> None:
    """One picture of libvips in one of FORMATS."""
    import pyvips

    if kind == "pyramid.tif":
        picture.tiffsave(str(file), tile=True, pyramid=True, compression="jpeg", Q=90)
    elif kind == "deep.tif":
        picture.cast("ushort", shift=True).tiffsave(str(file), tile=True, pyramid=True, compression="deflate")
    elif kind == "png":
        picture.pngsave(str(file), compression=1)
    elif kind == "grey.jpg":
        picture.colourspace("b-w").jpegsave(str(file), Q=90)
    elif kind == "cmyk.jpg":
        picture.icc_export(output_profile="cmyk").jpegsave(str(file), Q=90)
    elif kind == "turned.jpg":
        turned = picture.rot90().copy()
        turned.set_type(pyvips.GValue.gint_type, "orientation", 8)
        turned.jpegsave(str(file), Q=90)
    else:
        picture.jpegsave(str(file), Q=90, interlace=kind == "progressive.jpg")


def body_of(numbers: dict[str, Any], options: argparse.Namespace) -> str:
    """What is written into the results."""
    cells = [
        ["", "pictures a second"],
        ["read part by part", f"{numbers['by_parts_per_second']:.2f}"],
        ["each decoded first", f"{numbers['decoded_per_second']:.2f}"],
        ["ratio", f"{numbers['ratio']:.2f}"],
    ]
    distinct = min(options.distinct, options.count)
    links = f", {distinct} of them distinct" if distinct < options.count else ""
    kinds = "JPEG" if options.kinds == "jpeg" else "eight kinds of JPEG, TIFF and PNG"
    return (
        f"{numbers['pictures']:,} enlarged photographs of {options.megapixels:g} megapixels ({kinds}{links}), with "
        f"`{options.words}`; batches of {options.batch_size}, both ways in turns. The same label: {numbers['same_answers']:,}; the "
        f"same number of looks: {numbers['same_looks']:,}. Difference of the probabilities: median "
        f"{numbers['median_difference_of_probabilities']:.4f}, largest {numbers['largest_difference_of_probabilities']:.4f}.\n\n"
        f"{markdown_table(cells)}"
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=200, help="largest number of pictures")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--make", type=Path, help="make the folder from the photographs in this one")
    parser.add_argument("--megapixels", type=float, default=12)
    parser.add_argument("--kinds", choices=["jpeg", "mixed"], default="jpeg")
    parser.add_argument("--distinct", type=int, default=200)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args(arguments)
    if options.make is not None and not options.folder.exists():
        make(options.folder, options.make, options)
    bundle = gf.load(options.bundle)
    settings = bundle.settings
    options.words = (
        f"{settings.backbone}, glance {settings.glance_px}, {' '.join(settings.focus)}, fit {settings.view.fit}"
    )
    files = find_pictures([options.folder])[: options.count]
    bundle.predict(files[0])  # not counted: the first prediction loads libraries
    parts, decoded, parts_s, decoded_s = both_ways(bundle, files, options.batch_size)
    numbers = summary(Outcome.join(parts), Outcome.join(decoded), parts_s, decoded_s)
    print(json.dumps(numbers, indent=1))
    if options.write:
        command = f"python benchmarks/large_folder.py {shlex.join(sys.argv[1:] if arguments is None else arguments)}"
        title = "A folder of large photographs" if options.kinds == "jpeg" else "Parts of a file and pictures in memory"
        name = "large_folder" if options.kinds == "jpeg" else "large_same"
        write_section(
            options.write, name, title=title, command=command, machine=machine(), body=body_of(numbers, options)
        )


if __name__ == "__main__":
    main()
