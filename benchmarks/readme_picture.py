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
from glancefocus.evaluation.assess import answers_of, examples
from glancefocus.evaluation.boxes import draw_rows
from glancefocus.evaluation.records import looks_folder, record_looks
from glancefocus.training.recipes import train_settings


def main() -> None:
    demo, target = Path(sys.argv[1]), Path(sys.argv[2])
    bundle = gf.load(demo / "run" / "bundle", device="cpu")
    settings = train_settings("signs")
    test = open_data(settings.data, settings.network.view).test
    assert isinstance(test, MemorySplit)
    record = record_looks(bundle, test, looks_folder(demo / "run" / "bundle"), source="signs", name="test")
    chosen = [rows[: 1 if look == 0 else 2] for look, (_, rows) in enumerate(examples(answers_of(bundle, record), 2))]
    urls = draw_rows(bundle, test, [row for rows in chosen for row in rows])
    pictures = [Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) for url in urls[:4]]
    width, height = max(p.width for p in pictures), max(p.height for p in pictures)
    strip = Image.new("RGB", (len(pictures) * (width + 12) - 12, height), "white")
    for index, picture in enumerate(pictures):
        strip.paste(picture, (index * (width + 12), 0))
    strip.save(target, optimize=True)


if __name__ == "__main__":
    main()
