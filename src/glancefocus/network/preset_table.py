"""What every preset costs, counted beforehand and kept in preset_table.json, so that `gf models` needs neither torch nor timm.

After a change to the presets write the file again:

    python -m glancefocus.network.preset_table

`tests/network/test_preset_table.py` counts every preset and compares.
"""

import json
from importlib import resources
from pathlib import Path
from typing import Any

from glancefocus.files import write_text
from glancefocus.network.presets import PRESETS, Preset

TABLE_FILE = "preset_table.json"


def read_table() -> list[dict[str, Any]]:
    """One plain object for each preset, as `count_preset` makes them."""
    text = resources.files("glancefocus.network").joinpath(TABLE_FILE).read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = json.loads(text)
    return rows


def count_preset(preset: Preset) -> dict[str, Any]:
    """One preset with its parameters and multiply-adds, counted on the real modules without computing anything."""
    from glancefocus.network.macs import count_costs, count_parameters  # they need torch and timm

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


def write_table(file: Path) -> None:
    """Count every preset and write the table."""
    rows = [count_preset(preset) for preset in PRESETS.values()]
    write_text(file, json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    write_table(Path(__file__).with_name(TABLE_FILE))
