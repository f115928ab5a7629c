"""What a prediction costs in time and memory over the size of the picture, from 1 megapixel to 1 gigapixel.

    python benchmarks/large.py
    python benchmarks/large.py --megapixels 1 4 16 --photos photos/ --write docs/results.md

The pictures are made here, from photographs (a mosaic) or from drawn scenes of the built-in world, as JPEG and as a pyramid in
a TIFF. Three ways are measured, each in a process of its own: `predict` of a network with four looks; decoding the whole picture
with Pillow and resizing it to the side that the plain backbone takes; and the plain backbone on every tile of the picture. The last
is measured on some tiles, and multiplied. Weights are random: only time and memory are measured. The extra `large` is needed.
"""

import argparse
import json
import math
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import machine, markdown_table, write_section

SIDE = 224
WAYS = ("predict", "resize", "tiles")
# Runs in a process of its own, so that the memory of one way is not that of another.
MEASURE = """
import json, resource, statistics, sys, time
from pathlib import Path
import torch
from PIL import Image
import glancefocus as gf
from glancefocus.bundle.bundle import Bundle
from glancefocus.data.images import normalise_small, read_picture, view_pixels
from glancefocus.network.macs import count_costs
from glancefocus.settings import ViewSettings
way, file, warm, backbone, side, rounds = *sys.argv[1:5], int(sys.argv[5]), int(sys.argv[6])
torch.set_num_threads(1)
net = gf.create(backbone=backbone, classes=10, glance_px=side, patch_px=side, looks=4, view={"fit": "whole"}, seed=0).eval()
bundle = Bundle(net, tuple(map(str, range(10))), count_costs(net.settings))
view = ViewSettings("stretch", side, side)

def once(name):
    if way == "predict":
        return bundle.predict(bundle.view(name, max_pixels=1 << 34)).looks.tolist()
    if way == "resize":
        image = normalise_small(view_pixels(read_picture(name, max_pixels=1 << 34), view)[0], view)
        net.glance_encoder(image[None])
        return None
    tiles = torch.zeros(8, 3, side, side)
    for _ in range(8):
        net.glance_encoder(tiles[:1])
    return None

with torch.inference_mode():
    once(warm)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for _ in range(1 + rounds):
        started = time.perf_counter()
        looks = once(file)
        seconds.append(time.perf_counter() - started)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
first, later = seconds[0], statistics.median(seconds[1:])
print(json.dumps({"first": first, "seconds": later, "grown_mib": (after - before) / 1024, "looks": looks}))
"""


def material(photos: Path | None) -> Any:
    """An image of libvips with much detail, which is repeated to any size: photographs side by side, or drawn scenes."""
    import pyvips

    side = 1024
    if photos is None:
        from glancefocus.data.signs import SignsSettings, draw_scene

        settings = SignsSettings(height=side, width=side)
        parts = [pyvips.Image.new_from_array(draw_scene(settings, 1 + n % 4, n)[0]) for n in range(4)]
    else:
        files = sorted(photos.rglob("*.jpg"))[:16]
        parts = [
            pyvips.Image.thumbnail(str(file), side, height=side, crop="centre").colourspace("srgb") for file in files
        ]
    joined = pyvips.Image.arrayjoin(parts, across=max(1, round(math.sqrt(len(parts)))))
    return joined.copy_memory()


def make(folder: Path, megapixels: float, kind: str, source: Any) -> Path:
    """A square picture of this size in the folder."""
    side = round(math.sqrt(megapixels * 1e6))
    across, down = -(-side // source.width), -(-side // source.height)
    picture = source.replicate(across, down).crop(0, 0, side, side)
    file = folder / f"{megapixels:g}.{'jpg' if kind == 'jpeg' else 'tif'}"
    if kind == "jpeg":
        picture.jpegsave(str(file), Q=90)
    else:
        options = {"tile": True, "tile_width": 256, "tile_height": 256, "pyramid": True, "bigtiff": True}
        picture.tiffsave(str(file), compression="jpeg", Q=90, **options)
    return file


def measure(way: str, file: Path, warm: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds, MiB and looks of one way in a fresh process; or why it does not work."""
    words = [way, str(file), str(warm), options.backbone, str(SIDE), str(options.rounds)]
    cache = {**os.environ, "GLANCEFOCUS_CACHE": str(warm.parent)}  # of the tiles, which are removed with the pictures
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *words], capture_output=True, text=True, check=False, env=cache
    )
    if done.returncode != 0:
        return {"error": done.stderr.strip().splitlines()[-1]}
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def measured(kind: str, megapixels: float, folder: Path, source: Any, options: argparse.Namespace) -> dict[str, Any]:
    """One row: all ways for one picture, which is removed afterwards."""
    warm = folder / "warm" / f"0.5.{'jpg' if kind == 'jpeg' else 'tif'}"
    if not warm.exists():
        warm.parent.mkdir(exist_ok=True)
        make(warm.parent, 6, kind, source).rename(warm)
    started = time.perf_counter()
    file = make(folder, megapixels, kind, source)
    print(
        f"made {file.name} ({file.stat().st_size / 1e6:.0f} MB) in {time.perf_counter() - started:.0f} s",
        file=sys.stderr,
    )
    row: dict[str, Any] = {"kind": kind, "megapixels": megapixels, "file_mb": file.stat().st_size / 1e6}
    for way in WAYS:
        row[way] = measure(way, file, warm, options)
    tiles = math.ceil(math.sqrt(megapixels * 1e6) / SIDE) ** 2
    if "seconds" in row["tiles"]:
        row["tiles"] = {"seconds": row["tiles"]["seconds"] / 8 * tiles, "count": tiles}
    file.unlink()
    shutil.rmtree(warm.parent / "tiles", ignore_errors=True)
    return row


def measured_rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All rows that the options ask for."""
    source = material(options.photos)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        return [
            measured(kind, megapixels, Path(folder), source, options)
            for kind in options.kinds
            for megapixels in options.megapixels
        ]


def table(rows: list[dict[str, Any]]) -> str:
    def cell(told: dict[str, Any], name: str, times: float = 1, digits: int = 0) -> str:
        return f"{times * told[name]:,.{digits}f}" if name in told else "-"

    head = ["picture", "megapixels", "file, MB", "first predict, ms", "predict, ms", "memory, MiB"]
    head += ["decode and resize, ms", "memory, MiB"]
    cells = [[*head, "backbone on every tile, s"]]
    for row in rows:
        cells.append(
            [
                "JPEG" if row["kind"] == "jpeg" else "pyramid in a TIFF",
                f"{row['megapixels']:,g}",
                f"{row['file_mb']:,.1f}",
                *(
                    cell(row["predict"], name, times)
                    for name, times in (("first", 1000), ("seconds", 1000), ("grown_mib", 1))
                ),
                *(cell(row["resize"], name, times) for name, times in (("seconds", 1000), ("grown_mib", 1))),
                cell(row["tiles"], "seconds", digits=1),
            ]
        )
    return markdown_table(cells)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megapixels", nargs="+", type=float, default=[1, 4, 16, 64, 256, 1024])
    parser.add_argument("--kinds", nargs="+", choices=["jpeg", "tiff"], default=["tiff", "jpeg"])
    parser.add_argument("--photos", type=Path, help="a folder of photographs; otherwise scenes of the world signs")
    parser.add_argument("--backbone", default="mobilenetv3_small_100")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the pictures are made, one after the other; up to 1 GB each")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rows", nargs="+", type=Path, help="measure nothing: rows of earlier runs with --json")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args(arguments)
    rows = [row for file in options.rows or () for row in json.loads(file.read_text())["rows"]] or measured_rows(
        options
    )
    if options.json:
        print(json.dumps({"rows": rows}, indent=1))
        return
    large = [row["predict"] for row in rows if row["kind"] == "tiff" and row["megapixels"] >= 4]
    ratio = ""
    if len(large) > 1 and all("seconds" in told for told in large):
        times = statistics.median([told["seconds"] for told in large[:1]]), max(told["seconds"] for told in large)
        ratio = f" The slowest pyramid from 4 megapixels on takes {times[1] / times[0]:.1f} times as long as the first of them."
    body = (
        f"`{options.backbone}`, {SIDE} px, four looks at every picture, one thread; medians of {options.rounds} predictions of "
        f"one file after the first, each way in a process of its own. The first prediction of a JPEG beyond 67 megapixels makes "
        f"its tiles. Memory is what the process grows by, over a picture of 6 megapixels.{ratio}\n\n{table(rows)}"
    )
    print(body)
    if options.write:
        words = sys.argv[1:] if arguments is None else arguments
        command = f"python benchmarks/large.py {shlex.join(words)}"
        write_section(
            options.write, "large", title="Pictures of any size", command=command, machine=machine(), body=body
        )


if __name__ == "__main__":
    main()
