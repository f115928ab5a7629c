"""The page that a person reads first in a bundle's folder."""

from collections.abc import Sequence
from typing import Any

from glancefocus.card_header import card_header, number, points, share
from glancefocus.costs import Costs
from glancefocus.escaping import markdown, one_line
from glancefocus.settings import NetworkSettings

_LONGEST_NAME, _LONGEST_NOTE = 100, 1000
# Notes that are numbers for the program, or have a section of their own.
_NO_NOTES = ("data_settings", "thresholds_data", "images", "verdict")


def model_card(
    settings: NetworkSettings, classes: Sequence[str], costs: Costs, notes: dict[str, Any], curve: list[dict[str, Any]]
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
