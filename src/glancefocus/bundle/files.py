"""The files of a bundle. Files that are read are not trusted; they are written all or none."""

import os
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import safetensors.torch
from torch import Tensor

from glancefocus.data.split_record import FILE as SPLIT_FILE
from glancefocus.data.split_record import MAX_PACKED_BYTES, SplitRecord
from glancefocus.errors import BadBundle, BadSetting
from glancefocus.exits.curve import Latency, Point
from glancefocus.files import replace_folder, write_file, write_text
from glancefocus.loop import frozen, read_thresholds
from glancefocus.machine import available_bytes, read_file, read_json
from glancefocus.network.build import MOST_HEADER_BYTES, loading_bytes, read_safetensors, weight_bytes
from glancefocus.outcome import Costs
from glancefocus.settings import NetworkSettings
from glancefocus.values import (
    LONGEST_CLASS_NAME,
    MOST_CANDIDATES,
    MOST_LOOKS,
    Fields,
    from_plain,
    list_of,
    number_of,
    one_line,
    shown,
    text_of,
    whole_of,
)

FORMAT = 1
SETTINGS_FILE, WEIGHTS_FILE, CARD_FILE = "bundle.json", "model.safetensors", "README.md"
MAX_SETTINGS_BYTES = 64 * 2**20
MOST_CLASSES, MOST_LATENCIES, MOST_POINTS = 1_000_000, 1000, 100_000
MOST_MS = 1e9
_ROOM = 4  # weights may be stored as float64, and there are values beside them that are not trained
_MOST_MACS = 10**18
_VIEW_NAME = re.compile("([a-z0-9.]{1,16}@)?[0-9]{1,6}")
PREFIX = "hf://"


def is_hub_name(path: str | Path) -> bool:
    """Whether this is a name on the hub, not a file or folder."""
    return str(path).startswith((PREFIX, str(Path(PREFIX))))  # Path("hf://...") drops one of the two slashes


def read_beside_network(plain: dict[str, Any], file: Path, network: NetworkSettings) -> dict[str, Any]:
    """Everything except the network from the settings file. Values are not trusted; a wrong one is refused with its name."""
    plain = _in_order(plain, network)
    fields, looks, sizes = Fields(plain), network.looks, network.view_choices
    try:
        temperatures = fields.value("temperatures", None)
        thresholds = fields.value("thresholds", None)
        return {
            "costs": replace(read_costs(fields.value("costs")), view_order=network.view_order),
            "classes": tuple(fields.listed("classes", MOST_CLASSES, _class_name)),
            "thresholds": None
            if thresholds is None
            else frozen(read_thresholds(thresholds, "thresholds", looks, sizes)),
            "curve": fields.listed("curve", MOST_POINTS, partial(read_point, looks=looks, sizes=sizes), []),
            "notes": fields.table("notes").plain if "notes" in plain else {},
            "score": fields.text("score", 100, "confidence"),
            "temperatures": None
            if temperatures is None
            else tuple(list_of(temperatures, "temperatures", looks, _temperature)),
            "latencies": fields.listed("latencies", MOST_LATENCIES, read_latency, []),
        }
    except BadSetting as error:
        raise BadBundle(f"{file} is damaged: {error}") from None


def _in_order(plain: dict[str, Any], network: NetworkSettings) -> dict[str, Any]:
    """The plain values, without what belongs to other orders of the views than that of a network that zooms.

    Such networks once chose the views by thresholds, too: one for each look and view. The largest of a look said when to stop, and
    is kept. Curve and milliseconds belong to other views: they are left out, and found again by gf budget.
    """
    thresholds, views = plain.get("thresholds"), len(network.candidates)
    by_view = isinstance(thresholds, list) and any(isinstance(row, list) for row in thresholds)
    if not (network.zoom and views > 1 and by_view):
        return plain
    try:
        rows = read_thresholds(thresholds, "thresholds", network.looks, views)
    except BadSetting:
        return plain  # refused where it is read
    return {**plain, "thresholds": [max(row) for row in rows], "curve": [], "latencies": []}


def read_costs(plain: Any, where: str = "costs") -> Costs:
    """Costs from plain values; a field that is missing or out of range is refused by its name."""
    fields = Fields(plain, where)
    macs = partial(whole_of, least=0, most=_MOST_MACS)
    return Costs(
        encoder_macs=fields.whole("encoder_macs", 1, _MOST_MACS),
        encoder_with_head_macs=fields.whole("encoder_with_head_macs", 1, _MOST_MACS),
        focus_encoder_macs=_by_view(fields, "focus_encoder_macs"),
        policy_macs=fields.whole("policy_macs", 0, _MOST_MACS),
        classifier_macs=tuple(fields.listed("classifier_macs", MOST_LOOKS, macs)),
        backbone_macs=fields.whole("backbone_macs", 1, _MOST_MACS),
        focus_policy_macs=_by_view(fields, "focus_policy_macs") if "focus_policy_macs" in fields.plain else {},
    )


def _by_view(fields: Fields, name: str) -> dict[str, int]:
    """{name of the view: multiply-adds}"""
    table = fields.table(name)
    if len(table.plain) > MOST_CANDIDATES or not all(map(_VIEW_NAME.fullmatch, table.plain)):
        raise BadSetting(
            f"{table.where} must have a number for each candidate view, by names such as '96' or 'whole@160'."
        )
    return {view: table.whole(view, 0, _MOST_MACS) for view in table.plain}


def _class_name(value: Any, name: str) -> str:
    return text_of(value, name, LONGEST_CLASS_NAME)


def _temperature(value: Any, name: str) -> float:
    return number_of(value, name, 1e-6, 1e6)


def read_point(plain: Any, where: str, looks: int, sizes: int) -> Point:
    """An operating point from JSON, for a network with this number of looks and candidate views; impossible values are refused.

    Fields that are used are checked; unknown fields are kept as they are.
    """
    fields = Fields(plain, where)
    point = cast(Point, dict(fields.plain))
    point["thresholds"] = read_thresholds(fields.value("thresholds"), fields.name("thresholds"), looks, sizes)
    if "mean_macs" in point:
        point["mean_macs"] = fields.number("mean_macs", 0.0, 1e18)
    if "budget_macs" in point:
        point["budget_macs"] = fields.number("budget_macs", 0.0, 1e18)
    if "accuracy" in point:
        point["accuracy"] = fields.number("accuracy", 0.0, 1.0)
    if "exits_per_look" in point:
        exits = fields.listed("exits_per_look", looks, _count)
        if len(exits) != looks or sum(exits) < 1:
            raise BadSetting(f"{fields.name('exits_per_look')} must count images for each of {looks} looks.")
    if "patches_per_look_and_size" in point:
        rows = fields.listed("patches_per_look_and_size", looks, lambda v, n: list_of(v, n, sizes, _count))
        if [len(row) for row in rows] != [sizes] * (looks - 1):
            raise BadSetting(
                f"{fields.name('patches_per_look_and_size')} must have {looks - 1} rows of {sizes} counts."
            )
    return point


def _count(value: Any, name: str) -> int:
    return whole_of(value, name, 0, 10**12)


def read_latency(plain: Any, where: str) -> Latency:
    """Measured milliseconds from JSON; a field that is missing or out of range is refused by its name."""
    fields = Fields(plain, where)
    ms = partial(number_of, least=0.0, most=MOST_MS)

    def row(value: Any, name: str) -> tuple[float, ...]:
        return tuple(list_of(value, name, MOST_CANDIDATES, ms))

    return Latency(
        device=fields.text("device", 200),
        threads=fields.whole("threads", 1, 4096),
        batch_size=fields.whole("batch_size", 1, 65_536),
        glance_ms=fields.number("glance_ms", 0.0, MOST_MS),
        focus_ms=tuple(fields.listed("focus_ms", MOST_LOOKS, row)),
        runtime=None if fields.value("runtime", None) is None else fields.text("runtime", 200),
    )


def read_latency_file(file: Path, settings: NetworkSettings) -> Latency:
    """Milliseconds that were measured elsewhere, such as on a phone, for a network with these settings. See docs/budgets.md."""
    try:
        plain = read_json(file, MAX_SETTINGS_BYTES)
    except FileNotFoundError:
        raise BadSetting(f"there is no file {file}. Check the path.") from None
    except OSError as error:
        raise BadSetting(f"{file} cannot be read: {error.strerror or error}. Check the path.") from None
    except BadSetting as error:
        raise BadSetting(f"{file} is not a file of latencies: {error}") from None
    if not isinstance(plain, dict):
        raise BadSetting(f"{file} must hold an object with device, glance_ms and focus_ms, but holds {shown(plain)}.")
    latency = read_latency({"threads": 1, "batch_size": 1, **plain}, str(file))
    rows, views = settings.looks - 1, settings.view_choices
    if [len(row) for row in latency.focus_ms] != [views] * rows:
        raise BadSetting(
            f"{file} must have focus_ms for {rows} focus looks with {views} candidate view{'s' if views > 1 else ''} each, such as "
            f"{[[12.5] * views] * rows}, but got {[list(row) for row in latency.focus_ms]}."
        )
    return latency


def read_settings(folder: Path) -> dict[str, Any]:
    """The content of the settings file of a bundle; only its form is checked."""
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
    """The network that the settings file describes; refused, before it is built, if it does not fit into memory."""
    try:
        settings = from_plain(NetworkSettings, plain.get("network"), "network")
        needed = loading_bytes(settings)
    except BadSetting as error:
        raise BadBundle(f"{file} does not describe a network: {error}") from None
    if needed > (free := available_bytes()):
        raise BadBundle(
            f"the network of {file} needs at least {needed / 1e9:,.1f} GB to be loaded and to predict, "
            f"but {free / 1e9:,.1f} GB are free. Use a machine with more memory; or the file is damaged."
        )
    return settings


def read_weights(folder: Path, settings: NetworkSettings) -> dict[str, Tensor]:
    """The weights of the bundle in a folder, as they are stored: those that encoders share only once."""
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
    return tensors


def read_split(folder: Path) -> SplitRecord | None:
    """The record of how the data were split; None if the bundle has none. Its content is checked when it is used."""
    file = folder / SPLIT_FILE
    if not os.path.lexists(file):
        return None
    try:
        return SplitRecord(read_file(file, MAX_PACKED_BYTES), str(file))
    except OSError as error:
        raise BadBundle(
            f"{file}, the record of the training data, cannot be read: {error.strerror or error}. Remove it."
        ) from None


def update_split(folder: Path, split: SplitRecord | None) -> None:
    """Write the record of the split into a bundle, unless it is there already."""
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
        shutil.copymode(aside / SETTINGS_FILE, aside / WEIGHTS_FILE)  # safetensors lets only the user read it
