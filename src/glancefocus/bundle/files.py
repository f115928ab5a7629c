"""The files of a bundle, the model card included. Files that are read are not trusted; they are written all or none."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from glancefocus.costs import Costs, Latency
from glancefocus.data.split_record import FILE as SPLIT_FILE
from glancefocus.data.split_record import MAX_PACKED_BYTES, SplitRecord
from glancefocus.errors import BadBundle, BadSetting
from glancefocus.escaping import markdown, one_line
from glancefocus.exits.curve import Point, frozen, read_curve, read_thresholds
from glancefocus.files import read_file, replace_folder, write_file, write_text
from glancefocus.free_memory import available_bytes
from glancefocus.network.encoder import hub_id
from glancefocus.network.macs import loading_bytes, weight_bytes
from glancefocus.network.weights import MOST_HEADER_BYTES, read_safetensors
from glancefocus.settings import NetworkSettings, from_plain
from glancefocus.values import LONGEST_CLASS_NAME, Fields, list_of, number_of, read_json, text_of

FORMAT = 1
SETTINGS_FILE, WEIGHTS_FILE, CARD_FILE = "bundle.json", "model.safetensors", "README.md"
MAX_SETTINGS_BYTES = 64 * 2**20
MOST_CLASSES, MOST_LATENCIES = 1_000_000, 1000
_ROOM = 4  # weights may be stored as float64, and there are values beside them that are not trained
# For the model card: longest texts, and notes that are numbers for the program or have a section of their own.
_LONGEST, _LONGEST_NAME, _LONGEST_NOTE = 200, 100, 1000
_MOST = 1e18
_TAGS = ("glancefocus", "adaptive-inference", "early-exit")
_NO_NOTES = ("data_settings", "thresholds_data", "images", "verdict")


def read_beside_network(plain: dict[str, Any], file: Path, network: NetworkSettings) -> dict[str, Any]:
    """Everything except the network from the settings file. Values are not trusted; a wrong one is refused with its name."""
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
    """The weights of the bundle in a folder; a shared encoder is stored only once."""
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


def card_header(settings: NetworkSettings, notes: dict[str, Any]) -> list[str]:
    """The lines of the YAML header of the model card."""
    task = "image-classification" if settings.frames == 1 else "video-classification"
    fields: dict[str, Any] = {
        "library_name": "glancefocus",
        "pipeline_tag": task,
        "tags": list(_TAGS),
        "license": _text(notes.get("license")),
        "base_model": hub_id(settings.backbone) if notes.get("weights") == "pretrained" else None,
        "metrics": ["accuracy"],
        "model-index": _results(settings, notes, task),
    }
    return ["---", *(f"{name}: {_json(value)}" for name, value in fields.items() if value), "---"]


def _number(value: Any) -> float | None:
    """The value if it is a finite number of at least 0; otherwise None."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value < _MOST else None


def _share(value: Any) -> float | None:
    """The value if it is a number from 0 to 1; otherwise None."""
    found = _number(value)
    return found if found is not None and found <= 1 else None


def _points(notes: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows that the verdict compared, see evaluation/verdict.py: the network and its rivals, with their accuracies."""
    verdict = notes.get("verdict")
    found = verdict.get("points") if isinstance(verdict, dict) else None
    rows = found if isinstance(found, list) else []
    return [row for row in rows if isinstance(row, dict) and _share(row.get("accuracy")) is not None]


def _results(settings: NetworkSettings, notes: dict[str, Any], task: str) -> list[dict[str, Any]]:
    """The accuracies in the format of the hub's model-index; empty if none is known."""
    accuracies = notes.get("validation_accuracy_per_look")
    last = _share(accuracies[-1]) if isinstance(accuracies, list) and accuracies else None
    sure = next((_share(row["accuracy"]) for row in _points(notes) if row.get("kind") == "glancefocus"), None)
    found = {
        f"accuracy after {settings.looks} looks": last,
        "accuracy, stopping above the thresholds": sure,
    }
    metrics = [{"type": "accuracy", "name": name, "value": value} for name, value in found.items() if value is not None]
    data = _text(notes.get("data"))
    if not metrics or data is None:
        return []
    name = Path(data).name or data  # without the folders above it, which are private
    result = {
        "task": {"type": task},
        "dataset": {"type": "custom", "name": name, "split": "validation"},
        "metrics": metrics,
    }
    return [{"name": f"{one_line(settings.backbone, _LONGEST)}, up to {settings.looks} looks", "results": [result]}]


def _text(value: Any) -> str | None:
    return one_line(value, _LONGEST) if isinstance(value, str) and value else None


def _json(value: Any) -> str:
    """JSON, which YAML can read. Characters that YAML does not allow were escaped by one_line."""
    return json.dumps(value, ensure_ascii=False)


def model_card(
    settings: NetworkSettings, classes: Sequence[str], costs: Costs, notes: dict[str, Any], curve: list[Point]
) -> str:
    """Markdown: what this network is, what it costs, how to use it. Names and notes are not trusted, and are escaped."""
    named = ", ".join(markdown(name, _LONGEST_NAME) for name in classes[:20])
    named += f", ... ({len(classes)} in all)" if len(classes) > 20 else ""
    patches = "/".join(str(px) for px in settings.patch_px)
    lines = [
        *card_header(settings, notes),
        "",
        f"# {one_line(settings.backbone)}, up to {settings.looks} looks",
        "",
        f"A glance-and-focus classifier: a glance at {settings.glance_px} px, then up to {settings.looks - 1} patches of "
        f"{patches} px, stopping once the score is above the threshold of a look.",
        "",
        "    gf predict THIS_FOLDER picture.jpg",
        "",
        f"**Classes**: {named}",
        "",
        *_images(notes),
        "| looks | multiply-adds |",
        "|---|---|",
        *(f"| {look} | {macs / 1e6:,.1f}M |" for look, macs in enumerate(costs.macs_after_look, start=1)),
        f"| plain backbone, {settings.view.height_px}x{settings.view.width_px} px | {costs.backbone_macs / 1e6:,.1f}M |",
        "",
        *_verdict(notes),
    ]
    shown = {name: value for name, value in notes.items() if name not in _NO_NOTES}
    shown |= {name: shown[name].get("sentence") for name in ("aims",) if isinstance(shown.get(name), dict)}
    if shown:
        lines += ["## Notes", "", *map(_note, shown.items()), ""]
    if curve:
        lines += [f"{len(curve)} operating points are stored; `--budget-macs` chooses among them.", ""]
    return "\n".join(lines)


def _images(notes: dict[str, Any]) -> list[str]:
    """How many images there were in each split."""
    counts = notes.get("images")
    if not isinstance(counts, dict):
        return []
    known = {name: _number(count) for name, count in counts.items()}
    counted = ", ".join(f"{count:,.0f} {markdown(name, _LONGEST_NAME)}" for name, count in known.items() if count)
    return [f"**Images**: {counted}", ""] if counted else []


def _verdict(notes: dict[str, Any]) -> list[str]:
    """The network beside the same backbone on resized images, and the conclusion."""
    verdict = notes.get("verdict")
    if not isinstance(verdict, dict):
        return []
    lines = ["## Verdict", "", markdown(str(verdict.get("sentence")), _LONGEST_NOTE), ""]
    rows = _points(notes)
    if rows:
        lines += ["| | accuracy | 95 % interval | multiply-adds |", "|---|---|---|---|", *map(_point, rows), ""]
    return lines


def _point(row: dict[str, Any]) -> str:
    low, high = _share(row.get("accuracy_low")), _share(row.get("accuracy_high"))
    interval = "" if low is None or high is None else f"{100 * low:.1f} to {100 * high:.1f} %"
    macs = _number(row.get("mean_macs"))
    cost = "" if macs is None else f"{macs / 1e6:,.1f}M"
    name = markdown(str(row.get("name")), _LONGEST_NAME)
    return f"| {name} | {100 * row['accuracy']:.1f} % | {interval} | {cost} |"


def _note(note: tuple[str, Any]) -> str:
    name, value = note
    return f"- {markdown(name.replace('_', ' '), _LONGEST_NAME)}: {markdown(str(value), _LONGEST_NOTE)}"
