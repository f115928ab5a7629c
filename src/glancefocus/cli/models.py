"""`gf models`: every preset with what it costs, beside the figures of the paper; `gf import`: a bundle from its checkpoints."""

import json
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from rich.table import Table

from glancefocus.cli.main import Json, OutputName, command_options, output
from glancefocus.cli.printing import print_line
from glancefocus.network.presets import read_table
from glancefocus.values import Looks, Pixels

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


@command_options
@dataclass(frozen=True)
class ImportOptions:
    """Options of `gf import`."""

    checkpoint: Path
    """A .pth.tar file of the paper's release, or one that its training script has saved."""
    _: KW_ONLY
    output: Annotated[Path, OutputName]
    """The folder to write the bundle to."""
    model: str | None = None
    """The backbone, such as resnet50 or regnety_600m. Needed only if the file does not name it."""
    patch_px: Pixels | None = None
    """Side of the glance and of the patches in pixels. Needed only if the file does not contain it."""
    looks: Looks | None = None
    """Number of looks. Needed only if the file does not contain it."""
    json: Json = False


def import_checkpoint(options: ImportOptions) -> None:
    """Make a bundle from a checkpoint of the paper.

    Example: gf import gfnet_resnet50_96.pth.tar -o bundles/resnet50-96
    """
    from glancefocus.bundle.bundle import load

    checkpoint = options.checkpoint
    if checkpoint.is_dir() or not checkpoint.suffix:
        # `load` would take a folder for a bundle; the reader of checkpoints refuses it with its own sentence.
        from glancefocus.network.weights import open_safely

        open_safely(checkpoint)
    bundle = load(checkpoint, model=options.model, patch_px=options.patch_px, looks=options.looks, device="cpu")
    folder = bundle.save(options.output)
    settings = bundle.settings
    if options.json:
        facts = {
            "bundle": str(folder),
            "backbone": settings.backbone,
            "glance_px": settings.glance_px,
            "focus": list(settings.focus),
            "looks": settings.looks,
            "classes": settings.classes,
            "operating_points": len(bundle.curve),
            "macs_after_look": list(bundle.costs.macs_after_look),
        }
        print(json.dumps(facts, indent=1, allow_nan=False))
        return
    points = f"{len(bundle.curve)} operating points" if bundle.curve else "no thresholds (every look is taken)"
    print_line(
        f"{folder}: {settings.backbone}, {settings.glance_px} px, {settings.looks} looks, "
        f"{settings.classes} classes, {points}."
    )
