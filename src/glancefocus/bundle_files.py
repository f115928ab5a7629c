"""The files of a bundle: as they are read, nothing in them is trusted; as they are written, all are there or none."""

import json
import shutil
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from glancefocus.early_exit.curve import frozen
from glancefocus.errors import BadBundle, BadSetting
from glancefocus.files import replace_folder, write_text
from glancefocus.latency import Latency

FORMAT = 1
SETTINGS_FILE, WEIGHTS_FILE, CARD_FILE = "bundle.json", "model.safetensors", "README.md"
MAX_SETTINGS_BYTES = 64 * 2**20


def told_beside_the_network(plain: dict[str, Any], file: Path) -> dict[str, Any]:
    """Everything but the network out of the settings file, whose values may be of any kind."""
    classes, curve, notes = plain.get("classes"), plain.get("curve", []), plain.get("notes", {})
    try:
        if not isinstance(classes, list) or not isinstance(notes, dict) or not all(isinstance(p, dict) for p in curve):
            raise ValueError
        thresholds, temperatures = plain.get("thresholds"), plain.get("temperatures")
        return {
            "classes": tuple(str(name) for name in classes),
            "thresholds": None if thresholds is None else frozen(thresholds),
            "curve": list(curve),
            "notes": notes,
            "score": str(plain.get("score", "confidence")),
            "temperatures": None if temperatures is None else tuple(float(t) for t in temperatures),
            "latencies": [Latency.from_plain(latency) for latency in plain.get("latencies", [])],
        }
    except (TypeError, ValueError, BadSetting):
        raise BadBundle(
            f"{file} is damaged: its classes, thresholds, curve or notes are not what they should be."
        ) from None


def read_settings(folder: Path) -> dict[str, Any]:
    """What the settings file of a bundle says, checked as far as one can without knowing networks."""
    file = folder / SETTINGS_FILE
    if not folder.is_dir():
        raise BadBundle(f"there is no bundle at {folder}. Name a folder written by training or by `gf import`.")
    if not file.is_file():
        raise BadBundle(f"the folder {folder} is not a bundle: it has no {SETTINGS_FILE}.")
    if file.stat().st_size > MAX_SETTINGS_BYTES:
        raise BadBundle(f"{file} is too large to be the settings of a bundle.")
    try:
        plain = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise BadBundle(f"{file} is damaged: {error}. Copy or export the bundle again.") from None
    if not isinstance(plain, dict) or not isinstance(plain.get("format"), int):
        raise BadBundle(f"{file} is not the settings of a bundle.")
    if plain["format"] > FORMAT:
        raise BadBundle(
            f"the bundle {folder} has format {plain['format']}, this glancefocus reads up to {FORMAT}. Update glancefocus."
        )
    return plain


def read_weights(folder: Path, *, shared_encoder: bool = False) -> dict[str, Tensor]:
    """The weights of the bundle in a folder; of an encoder that is shared they are there once."""
    file = folder / WEIGHTS_FILE
    try:
        tensors: dict[str, Tensor] = safetensors.torch.load_file(file)
    except FileNotFoundError:
        raise BadBundle(f"the bundle {folder} has no {WEIGHTS_FILE}. Copy the whole folder again.") from None
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise BadBundle(f"{file} is damaged ({error}). Copy or export the bundle again.") from None
    if shared_encoder:
        shared = {n: t for n, t in tensors.items() if n.startswith("glance_encoder.")}
        tensors |= {n.replace("glance_encoder.", "focus_encoder.", 1): t for n, t in shared.items()}
    return tensors


def replace_bundle(folder: Path, tensors: dict[str, Tensor], texts: dict[str, str]) -> None:
    """Write weights and texts ({file: content}) in place of the folder, all at once."""
    with replace_folder(folder) as aside:
        for name, text in texts.items():
            write_text(aside / name, text)
        safetensors.torch.save_file(tensors, aside / WEIGHTS_FILE)
        shutil.copymode(aside / SETTINGS_FILE, aside / WEIGHTS_FILE)  # which safetensors lets only the user read
