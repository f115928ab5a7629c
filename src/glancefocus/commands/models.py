"""`gf models`: every preset, counted from the real modules, beside what the paper says."""

import json
from typing import Any

from rich.progress import track
from rich.table import Table

from glancefocus.commands.printing import notices, output
from glancefocus.network.multiply_adds import count_costs, count_parameters
from glancefocus.network.presets import PRESETS, Preset


def describe(preset: Preset) -> dict[str, Any]:
    """One preset as a plain object."""
    settings, costs = preset.settings, count_costs(preset.settings)
    return {
        "preset": preset.name,
        "backbone": settings.backbone,
        "glance_px": settings.glance_px,
        "patch_px": settings.patch_px[0] if len(settings.patch_px) == 1 else list(settings.patch_px),
        "looks": settings.looks,
        "frames": settings.frames,
        "parameters": count_parameters(settings),
        "encoder_macs": costs.encoder_macs,
        "encoder_with_head_macs": costs.encoder_with_head_macs,
        "policy_macs": costs.policy_macs,
        "classifier_macs": list(costs.classifier_macs),
        "macs_after_look": list(costs.macs_after_look),
        "backbone_macs": costs.backbone_macs,
        "paper_encoder_macs": preset.paper_encoder_macs,
        "paper_encoder_counts": preset.paper_encoder_counts or None,
        "published_backbone_macs": preset.published_backbone_macs,
    }


def list_models(*, as_json: bool) -> None:
    """Print all presets."""
    progress = notices()
    rows = [
        describe(preset)
        for preset in track(PRESETS.values(), "counting multiply-adds", console=progress, transient=True)
    ]
    if as_json:
        print(json.dumps(rows, indent=1, allow_nan=False))  # noqa: T201
        return
    table = Table(
        title="Presets: multiply-adds in millions, 1000 classes, of clips for all frames (--json: every look and part)"
    )
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
