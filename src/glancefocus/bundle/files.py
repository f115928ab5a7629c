"""The files of a bundle: as they are read, nothing in them is trusted; as they are written, all are there or none."""

import os
import shutil
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from glancefocus.costs import Costs, Latency
from glancefocus.data.split_record import FILE as SPLIT_FILE
from glancefocus.data.split_record import MAX_PACKED_BYTES, SplitRecord
from glancefocus.errors import BadBundle, BadSetting
from glancefocus.escaping import one_line
from glancefocus.exits.curve import frozen, read_curve, read_thresholds
from glancefocus.files import read_file, replace_folder, write_file, write_text
from glancefocus.free_memory import available_bytes
from glancefocus.network.macs import loading_bytes, weight_bytes
from glancefocus.network.weights import MOST_HEADER_BYTES, read_safetensors
from glancefocus.settings import NetworkSettings, from_plain
from glancefocus.values import LONGEST_CLASS_NAME, Fields, list_of, number_of, read_json, text_of

FORMAT = 1
SETTINGS_FILE, WEIGHTS_FILE, CARD_FILE = "bundle.json", "model.safetensors", "README.md"
MAX_SETTINGS_BYTES = 64 * 2**20
MOST_CLASSES, MOST_LATENCIES = 1_000_000, 1000
_ROOM = 4  # weights may be stored as float64, and beside them there are numbers that are not learnt


def told_beside_the_network(plain: dict[str, Any], file: Path, network: NetworkSettings) -> dict[str, Any]:
    """Everything but the network out of the settings file, whose values may be of any kind; a wrong one is refused by its name."""
    fields, looks, sizes = Fields(plain), network.looks, len(network.patch_px)
    try:
        temperatures = fields.value("temperatures", None)
        thresholds = fields.value("thresholds", None)
        return {
            "costs": Costs.from_plain(fields.value("costs")),
            "classes": tuple(fields.listed("classes", MOST_CLASSES, _class_name)),
            "thresholds": None
            if thresholds is None
            else frozen(read_thresholds(thresholds, "thresholds", looks, sizes)),
            "curve": read_curve(fields.value("curve", []), "curve", looks, sizes),
            "notes": fields.table("notes").plain if "notes" in plain else {},
            "score": fields.text("score", 100, "confidence"),
            "temperatures": None
            if temperatures is None
            else tuple(list_of(temperatures, "temperatures", looks, _temperature)),
            "latencies": fields.listed("latencies", MOST_LATENCIES, Latency.from_plain, []),
        }
    except BadSetting as error:
        raise BadBundle(f"{file} is damaged: {error}") from None


def _class_name(value: Any, name: str) -> str:
    return text_of(value, name, LONGEST_CLASS_NAME)


def _temperature(value: Any, name: str) -> float:
    return number_of(value, name, 1e-6, 1e6)


def read_settings(folder: Path) -> dict[str, Any]:
    """What the settings file of a bundle says, checked as far as one can without knowing networks."""
    file = folder / SETTINGS_FILE
    if not folder.is_dir():
        raise BadBundle(f"there is no bundle at {folder}. Name a folder written by training or by `gf import`.")
    try:
        plain = read_json(file, MAX_SETTINGS_BYTES)
    except FileNotFoundError:
        raise BadBundle(f"the folder {folder} is not a bundle: it has no {SETTINGS_FILE}.") from None
    except OSError as error:
        raise BadBundle(f"{file} cannot be the settings of a bundle: {error.strerror or error}.") from None
    except BadSetting as error:
        raise BadBundle(f"{file} is damaged: {error} Copy or export the bundle again.") from None
    if not isinstance(plain, dict) or type(plain.get("format")) is not int or plain["format"] < 1:
        raise BadBundle(f"{file} is not the settings of a bundle.")
    if plain["format"] > FORMAT:
        raise BadBundle(
            f"the bundle {folder} has format {plain['format']}, this glancefocus reads up to {FORMAT}. Update glancefocus."
        )
    return plain


def read_network(plain: dict[str, Any], file: Path) -> NetworkSettings:
    """The network that the settings file describes; refused before it is built where it does not fit into memory."""
    try:
        settings = from_plain(NetworkSettings, plain.get("network"), "network")
        needed = loading_bytes(settings)
    except BadSetting as error:
        raise BadBundle(f"{file} does not describe a network: {error}") from None
    if needed > (free := available_bytes()):
        raise BadBundle(
            f"the network of {file} needs at least {needed / 1e9:,.1f} GB to be loaded and to look, "
            f"but {free / 1e9:,.1f} GB are free. Use a machine with more memory; or the file is damaged."
        )
    return settings


def read_weights(folder: Path, settings: NetworkSettings) -> dict[str, Tensor]:
    """The weights of the bundle in a folder; of an encoder that is shared they are there once."""
    file = folder / WEIGHTS_FILE
    try:
        if file.stat().st_size > (most := _ROOM * weight_bytes(settings) + MOST_HEADER_BYTES):
            raise BadBundle(f"{file} has more than {most:,} bytes: these are not the weights of this network.")
        tensors = read_safetensors(file)
    except FileNotFoundError:
        raise BadBundle(f"the bundle {folder} has no {WEIGHTS_FILE}. Copy the whole folder again.") from None
    except BadBundle:
        raise
    except Exception as error:  # damaged bytes make the reader fail in many ways
        reason = getattr(error, "strerror", None) or one_line(str(error), 200) or type(error).__name__
        raise BadBundle(f"{file} is damaged ({reason}). Copy or export the bundle again.") from None
    if settings.shared_encoder:
        shared = {n: t for n, t in tensors.items() if n.startswith("glance_encoder.")}
        tensors |= {n.replace("glance_encoder.", "focus_encoder.", 1): t for n, t in shared.items()}
    return tensors


def read_split(folder: Path) -> SplitRecord | None:
    """How the data of the bundle in a folder were split; None where it does not say. What is in it is checked when it is used."""
    file = folder / SPLIT_FILE
    if not os.path.lexists(file):
        return None
    try:
        return SplitRecord(read_file(file, MAX_PACKED_BYTES), str(file))
    except OSError as error:
        raise BadBundle(
            f"{file}, which says what the network was trained on, cannot be read: {error.strerror or error}. Remove it."
        ) from None


def update_split(folder: Path, split: SplitRecord | None) -> None:
    """Write the record of the split into a bundle, where it is not there already."""
    if split is not None and split != read_split(folder):
        write_file(folder / SPLIT_FILE, lambda stream: stream.write(split.packed))


def replace_bundle(folder: Path, tensors: dict[str, Tensor], texts: dict[str, str], split: SplitRecord | None) -> None:
    """Write weights, texts ({file: content}) and the record of the split in place of the folder, all at once.

    Weights with NaN in them are refused.
    """
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise BadBundle(f"the tensor {name} of the network holds NaN or infinity; the bundle was not written.")
    with replace_folder(folder) as aside:
        for name, text in texts.items():
            write_text(aside / name, text)
        if split is not None:
            write_file(aside / SPLIT_FILE, lambda stream: stream.write(split.packed))
        safetensors.torch.save_file(tensors, aside / WEIGHTS_FILE)
        shutil.copymode(aside / SETTINGS_FILE, aside / WEIGHTS_FILE)  # which safetensors lets only the user read
