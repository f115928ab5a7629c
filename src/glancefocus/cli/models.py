"""`gf models`: every preset with what it costs, beside the figures of the paper."""

import json
from dataclasses import KW_ONLY, dataclass

from rich.table import Table

from glancefocus.cli.options import Json, command_options
from glancefocus.cli.printing import output, print_line
from glancefocus.network.preset_table import read_table

LEGEND = """\
All figures except looks and params are millions of multiply-adds for one image (for a clip: all of its frames), with 1000 classes.
looks      the glance and the focus looks together
params     parameters of the whole network: two encoders, classifier, policy
encoder    one pass of an encoder at the size of the glance; with its head if the paper counts it
paper      the same figure in the paper, if it gives one
1 look     an image that stops after the glance
all        an image that takes every look
backbone   the plain backbone on the whole image
published  the same figure as published by the authors of the backbone, if they gave one
gf models --json prints every look and every part."""


@command_options
@dataclass(frozen=True)
class ModelsOptions:
    """Options of `gf models`."""

    _: KW_ONLY
    json: Json = False


def models(options: ModelsOptions = ModelsOptions()) -> None:  # noqa: B008, cyclopts needs a default if no option is required
    """List the presets (ready-made network settings) with their parameters and multiply-adds, beside the paper's figures.

    Example: gf models
    """
    rows = read_table()
    if options.json:
        print(json.dumps(rows, indent=1, allow_nan=False))
        return
    table = Table(title="Presets")
    table.add_column("preset", no_wrap=True)
    for name in ("looks", "params", "encoder", "paper", "1 look", "all", "backbone", "published"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        paper = row["paper_encoder_macs"]
        with_head = row["paper_encoder_counts"] == "with head"
        table.add_row(
            row["preset"],
            str(row["looks"]),
            f"{row['parameters'] / 1e6:.1f}M",
            f"{row['encoder_with_head_macs' if with_head else 'encoder_macs'] / 1e6:.1f}",
            "" if paper is None else f"{paper / 1e6:.1f}",
            f"{row['macs_after_look'][0] / 1e6:.0f}",
            f"{row['macs_after_look'][-1] / 1e6:.0f}",
            f"{row['backbone_macs'] / 1e6:.0f}",
            "" if row["published_backbone_macs"] is None else f"{row['published_backbone_macs'] / 1e6:.0f}",
        )
    output().print(table)
    print_line(LEGEND)
