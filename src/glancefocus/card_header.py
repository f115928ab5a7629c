"""The header of a model card, by which Hugging Face's hub files a model: YAML whose values are JSON, so that nothing breaks out.

Notes of a bundle may come from anywhere: what is not of the right kind is left out.
"""

import json
from pathlib import Path
from typing import Any

from glancefocus.escaping import one_line
from glancefocus.network.encoder import hub_id
from glancefocus.settings import NetworkSettings

_LONGEST = 200
_MOST = 1e18
_TAGS = ("glancefocus", "adaptive-inference", "early-exit")


def card_header(settings: NetworkSettings, notes: dict[str, Any]) -> list[str]:
    """The lines of the header, its fences included."""
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


def number(value: Any) -> float | None:
    """The value where it is a number that is finite and not negative."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value < _MOST else None


def share(value: Any) -> float | None:
    """The value where it is a share from 0 to 1."""
    found = number(value)
    return found if found is not None and found <= 1 else None


def points(notes: dict[str, Any]) -> list[dict[str, Any]]:
    """What the verdict compared, see evaluation/verdict.py: glancefocus and its rivals, with their accuracies."""
    verdict = notes.get("verdict")
    found = verdict.get("points") if isinstance(verdict, dict) else None
    rows = found if isinstance(found, list) else []
    return [row for row in rows if isinstance(row, dict) and share(row.get("accuracy")) is not None]


def _results(settings: NetworkSettings, notes: dict[str, Any], task: str) -> list[dict[str, Any]]:
    """In the form of the hub's model-index; nothing where no accuracy is known."""
    accuracies = notes.get("validation_accuracy_per_look")
    last = share(accuracies[-1]) if isinstance(accuracies, list) and accuracies else None
    sure = next((share(row["accuracy"]) for row in points(notes) if row.get("kind") == "glancefocus"), None)
    found = {
        f"accuracy after {settings.looks} looks": last,
        "accuracy, stopping above the thresholds": sure,
    }
    metrics = [{"type": "accuracy", "name": name, "value": value} for name, value in found.items() if value is not None]
    data = _text(notes.get("data"))
    if not metrics or data is None:
        return []
    name = Path(data).name or data  # without the folders above it, which are of nobody's concern
    result = {
        "task": {"type": task},
        "dataset": {"type": "custom", "name": name, "split": "validation"},
        "metrics": metrics,
    }
    return [{"name": f"{one_line(settings.backbone, _LONGEST)}, up to {settings.looks} looks", "results": [result]}]


def _text(value: Any) -> str | None:
    return one_line(value, _LONGEST) if isinstance(value, str) and value else None


def _json(value: Any) -> str:
    """JSON strings are YAML strings, too; what YAML does not allow in them was escaped by one_line."""
    return json.dumps(value, ensure_ascii=False)
