"""`gf import`: a checkpoint of the paper becomes a bundle."""

import json
from pathlib import Path

from glancefocus.bundle.loading import load
from glancefocus.cli.printing import say


def import_checkpoint(
    checkpoint: Path, target: Path, *, model: str | None, patch_px: int | None, looks: int | None, as_json: bool
) -> None:
    """Load, verify, save, and say what it is."""
    if checkpoint.is_dir() or not checkpoint.suffix:
        # `load` would take a folder for a bundle; here only a checkpoint makes sense, and its reader says so.
        from glancefocus.network.weights import open_safely

        open_safely(checkpoint)
    bundle = load(checkpoint, model=model, patch_px=patch_px, looks=looks, device="cpu")
    folder = bundle.save(target)
    settings = bundle.settings
    if as_json:
        fact = {
            "bundle": str(folder),
            "backbone": settings.backbone,
            "glance_px": settings.glance_px,
            "patch_px": settings.patch_px[0],
            "looks": settings.looks,
            "classes": settings.classes,
            "operating_points": len(bundle.curve),
            "macs_after_look": list(bundle.costs.macs_after_look),
        }
        print(json.dumps(fact, indent=1, allow_nan=False))
        return
    points = f"{len(bundle.curve)} operating points" if bundle.curve else "no thresholds (every look is taken)"
    say(
        f"{folder}: {settings.backbone}, {settings.glance_px} px, {settings.looks} looks, "
        f"{settings.classes} classes, {points}."
    )
