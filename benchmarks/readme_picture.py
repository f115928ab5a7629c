"""Draws the README's picture: test scenes of a finished demo, easy and hard ones, with their looks.

python benchmarks/readme_picture.py demo docs/looks.png
"""

import base64
import io
import sys
from pathlib import Path

from PIL import Image

import glancefocus as gf
from glancefocus.data.sources import open_data
from glancefocus.data.splits import MemorySplit
from glancefocus.evaluation.report import gallery_of
from glancefocus.training.recipes import train_settings


def main() -> None:
    demo, target = Path(sys.argv[1]), Path(sys.argv[2])
    bundle = gf.load(demo / "run" / "bundle", device="cpu")
    settings = train_settings("signs")
    test = open_data(settings.data, settings.network.view).test
    assert isinstance(test, MemorySplit)
    gallery = [g for g in gallery_of(bundle, test, bundle.exit_rule(), each=2) if g[0] != "answered wrongly"]
    urls = [url for heading, urls in gallery for url in urls[: 1 if heading == "answered at the glance" else 2]]
    pictures = [Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) for url in urls[:4]]
    width, height = max(p.width for p in pictures), max(p.height for p in pictures)
    strip = Image.new("RGB", (len(pictures) * (width + 12) - 12, height), "white")
    for index, picture in enumerate(pictures):
        strip.paste(picture, (index * (width + 12), 0))
    strip.save(target, optimize=True)


if __name__ == "__main__":
    main()
