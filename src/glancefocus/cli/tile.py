"""`gf tile`: tiles of pictures that are too large to be decoded for every look, made once."""

import json
import os
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any

from glancefocus.cli.main import Json, OutputName, command_options
from glancefocus.cli.printing import print_line, progress_bars
from glancefocus.errors import BadSetting
from glancefocus.progress import Progress
from glancefocus.values import MaxPixels

MAX_PIXELS = 1 << 32
"""Higher than the limit of `gf predict`: tiles are made for files that are expected to be large."""


@command_options
@dataclass(frozen=True)
class TileOptions:
    """Options of `gf tile`."""

    files: list[str]
    """Image files. Files that are pyramids already (OME-TIFF, SVS, cloud-optimised TIFF, DeepZoom) need no tiles and are
    skipped."""
    _: KW_ONLY
    output: Annotated[Path | None, OutputName] = None
    """Write the tiles of one picture to this TIFF file. Default: a file in the cache folder."""
    max_pixels: MaxPixels = MAX_PIXELS
    """Refuse pictures with more pixels than this, before they are decoded."""
    json: Json = False

    def __post_init__(self) -> None:
        if self.output is not None and len(self.files) > 1:
            raise BadSetting(f"--output is for the tiles of one picture, but {len(self.files)} were named.")


def tile(options: TileOptions) -> None:
    """Make tiles of pictures that cannot be read part by part, so that later looks at them are fast and take little memory.

    The tiles of a picture are a TIFF file with the picture in several sizes (a pyramid). It is kept in the cache folder, where
    `gf predict` finds it. All tiles there take at most 20 GB; the environment variable GLANCEFOCUS_TILES_GB changes this limit. The
    least recently used tiles are removed first. If a picture changes, its tiles are made again. `gf predict` makes missing tiles
    itself, for pictures with more than 67 million pixels that need them.

    Example: gf tile scan.png

    Example: gf tile scan.png -o scan.tif
    """
    with progress_bars(quiet=options.json) as progress:
        done = [_tiled(file, options, progress) for file in options.files]
    if options.json:
        print(json.dumps(done, indent=1))
        return
    for one in done:
        print_line(f"{one['file']}: {one['words']}")


def _tiled(file: str, options: TileOptions, progress: Progress) -> dict[str, Any]:
    """What was done with one file."""
    from glancefocus.data.large import make_tiles
    from glancefocus.machine import in_words

    place = make_tiles(file, options.output, max_pixels=options.max_pixels, progress=progress)
    if place is None:
        return {"file": file, "tiles": None, "bytes": 0, "words": "it is a pyramid, and needs no tiles"}
    size = os.stat(place).st_size
    return {"file": file, "tiles": str(place), "bytes": size, "words": f"{in_words(size)} in {place}"}
