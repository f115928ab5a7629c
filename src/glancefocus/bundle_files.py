"""The files of a bundle: as they are read, nothing in them is trusted; as they are written, all are there or none."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from glancefocus.data.split_record import FILE as SPLIT_FILE
from glancefocus.data.split_record import MAX_PACKED_BYTES, SplitRecord
from glancefocus.early_exit.curve import frozen
from glancefocus.errors import BadBundle, BadSetting
from glancefocus.files import write_file
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


def read_split(folder: Path) -> SplitRecord | None:
    """How the data of the bundle in a folder were split; None where it does not say. What is in it is checked when it is used."""
    file = folder / SPLIT_FILE
    if not os.path.lexists(file):
        return None
    if not file.is_file() or file.stat().st_size > MAX_PACKED_BYTES:
        raise BadBundle(f"{file} is not a file, or too large to say what a network was trained on. Remove it.")
    try:
        return SplitRecord(file.read_bytes(), str(file))
    except OSError as error:
        raise BadBundle(f"{file} cannot be read: {error.strerror or error}. Change its permissions.") from None


def update_split(folder: Path, split: SplitRecord | None) -> None:
    """Write the record of the split into a bundle, where it is not there already."""
    if split is not None and split != read_split(folder):
        write_file(folder / SPLIT_FILE, lambda stream: stream.write(split.packed))


def replace_bundle(folder: Path, tensors: dict[str, Tensor], texts: dict[str, str], split: SplitRecord | None) -> None:
    """Write weights, texts ({file: content}) and the record of the split in place of the folder, all at once."""
    with written_aside(folder) as aside:
        safetensors.torch.save_file(tensors, aside / WEIGHTS_FILE)
        for name, text in texts.items():
            (aside / name).write_text(text, encoding="utf-8")
        if split is not None:
            (aside / SPLIT_FILE).write_bytes(split.packed)


@contextmanager
def written_aside(folder: Path) -> Iterator[Path]:
    """A new folder, which takes the place of `folder` once the block is done; when it fails, what was there stays as it was."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    replaced = aside.with_name(f"{aside.name}.old")
    try:
        aside.chmod(0o755)
        yield aside
        if folder.exists():
            folder.rename(replaced)
        aside.rename(folder)
    except BaseException:
        if replaced.exists() and not folder.exists():
            replaced.rename(folder)
        shutil.rmtree(aside, ignore_errors=True)
        raise
    shutil.rmtree(replaced, ignore_errors=True)
