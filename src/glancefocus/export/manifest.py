"""glancefocus.json: everything that the loop needs beside the graphs, for programs in any language."""

import json
from pathlib import Path
from typing import Any

import glancefocus
from glancefocus.bundle.bundle import Bundle
from glancefocus.errors import BadSetting
from glancefocus.exits.curve import leave_thresholds, rising, stay_thresholds
from glancefocus.export.formats import Format
from glancefocus.files import write_text
from glancefocus.settings import to_plain
from glancefocus.values import read_json

MANIFEST_FILE = "glancefocus.json"
FORMAT = 1


def describe(bundle: Bundle, to: Format, graphs: list[dict[str, Any]]) -> dict[str, Any]:
    """What the file says.

    curve              operating points, the cheaper the earlier, each at least as accurate as those before it
    cheapest, dearest  everybody leaves at the glance, nobody leaves before the last look
    """
    settings, looks, sizes = bundle.settings, bundle.settings.looks, len(bundle.settings.patch_px)
    points = rising(sorted((p for p in bundle.curve if "mean_macs" in p), key=lambda p: float(p["mean_macs"])))
    return {
        "format": FORMAT,
        "made_by": f"glancefocus {glancefocus.__version__}",
        "runtime": to.name,
        "batch": to.batch,
        "int8": False,
        "glance_px": settings.glance_px,
        "patch_px": list(settings.patch_px),
        "looks": looks,
        "frames": settings.frames,
        "glance_resize": settings.glance_resize,
        "classifier": settings.classifier,
        "policy_units": settings.policy.units,
        "view": to_plain(settings.view),
        "classes": list(bundle.classes),
        "score": bundle.score,
        "thresholds": bundle.thresholds,
        "temperatures": bundle.temperatures,
        "cheapest": {"mean_macs": bundle.costs.macs_after_look[0], "thresholds": leave_thresholds(looks, sizes)},
        "dearest": {"mean_macs": max(bundle.costs.macs_of_tree()), "thresholds": stay_thresholds(looks, sizes)},
        "curve": points,
        "costs": bundle.costs.to_plain(),
        "graphs": graphs,
        "bundle": bundle.fingerprint,
    }


def check_exportable(bundle: Bundle) -> None:
    """Refuse what the loop outside cannot do."""
    if bundle.score == "random":
        raise BadSetting(
            "this bundle leaves at random, which is for comparing with only. Choose another score with `gf budget --score`."
        )


def write_manifest(about: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Write it, and give it back as a reader will find it."""
    text = json.dumps(about, indent=1, allow_nan=False)
    write_text(folder / MANIFEST_FILE, text + "\n")
    read: dict[str, Any] = json.loads(text)
    return read


def is_export(folder: Path) -> bool:
    """Whether an export was written there before."""
    try:
        about = read_json(folder / MANIFEST_FILE, 64 << 20)
    except (OSError, BadSetting):
        return False
    return isinstance(about, dict) and {"format", "runtime", "graphs"} <= about.keys()
