"""The page that a person reads first in a bundle's folder."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glancefocus.costs import Costs
from glancefocus.escaping import markdown, one_line
from glancefocus.exits.curve import Point
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


_LONGEST_NAME, _LONGEST_NOTE = 100, 1000
# Notes that are numbers for the program, or have a section of their own.
_NO_NOTES = ("data_settings", "thresholds_data", "images", "verdict")


def model_card(
    settings: NetworkSettings, classes: Sequence[str], costs: Costs, notes: dict[str, Any], curve: list[Point]
) -> str:
    """Markdown: what this network is, what it costs, how to ask it. Names and notes may come from anywhere, and are escaped."""
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
    told = {name: value for name, value in notes.items() if name not in _NO_NOTES}
    told |= {name: told[name].get("sentence") for name in ("aims",) if isinstance(told.get(name), dict)}
    if told:
        lines += ["## Notes", "", *map(_note, told.items()), ""]
    if curve:
        lines += [f"{len(curve)} operating points are stored; `--budget-macs` chooses among them.", ""]
    return "\n".join(lines)


def _images(notes: dict[str, Any]) -> list[str]:
    """How many images there were in each split."""
    counts = notes.get("images")
    if not isinstance(counts, dict):
        return []
    known = {name: number(count) for name, count in counts.items()}
    counted = ", ".join(f"{count:,.0f} {markdown(name, _LONGEST_NAME)}" for name, count in known.items() if count)
    return [f"**Images**: {counted}", ""] if counted else []


def _verdict(notes: dict[str, Any]) -> list[str]:
    """Glancefocus beside the same backbone on resized images, and what to make of it."""
    verdict = notes.get("verdict")
    if not isinstance(verdict, dict):
        return []
    lines = ["## Verdict", "", markdown(str(verdict.get("sentence")), _LONGEST_NOTE), ""]
    rows = points(notes)
    if rows:
        lines += ["| | accuracy | 95 % interval | multiply-adds |", "|---|---|---|---|", *map(_point, rows), ""]
    return lines


def _point(row: dict[str, Any]) -> str:
    low, high = share(row.get("accuracy_low")), share(row.get("accuracy_high"))
    interval = "" if low is None or high is None else f"{100 * low:.1f} to {100 * high:.1f} %"
    macs = number(row.get("mean_macs"))
    cost = "" if macs is None else f"{macs / 1e6:,.1f}M"
    name = markdown(str(row.get("name")), _LONGEST_NAME)
    return f"| {name} | {100 * row['accuracy']:.1f} % | {interval} | {cost} |"


def _note(note: tuple[str, Any]) -> str:
    name, value = note
    return f"- {markdown(name.replace('_', ' '), _LONGEST_NAME)}: {markdown(str(value), _LONGEST_NOTE)}"
