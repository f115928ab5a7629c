"""`gf import`: makes a bundle from a checkpoint of the paper."""

import json
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from glancefocus.cli.options import Json, OutputName, command_options
from glancefocus.cli.printing import print_line
from glancefocus.values import Looks, Pixels


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
            "patch_px": settings.patch_px[0],
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
