"""The page that a person reads first in a bundle's folder."""

from collections.abc import Sequence
from typing import Any

from glancefocus.costs import Costs
from glancefocus.escaping import markdown, one_line
from glancefocus.settings import NetworkSettings

_LONGEST_NAME, _LONGEST_NOTE = 100, 1000


def model_card(
    settings: NetworkSettings, classes: Sequence[str], costs: Costs, notes: dict[str, Any], curve: list[dict[str, Any]]
) -> str:
    """Markdown: what this network is, what it costs, how to ask it. Names and notes may come from anywhere, and are escaped."""
    named = ", ".join(markdown(name, _LONGEST_NAME) for name in classes[:20])
    named += f", ... ({len(classes)} in all)" if len(classes) > 20 else ""
    patches = "/".join(str(px) for px in settings.patch_px)
    lines = [
        f"# {one_line(settings.backbone)}, up to {settings.looks} looks",
        "",
        f"A glance-and-focus classifier: a glance at {settings.glance_px} px, then up to {settings.looks - 1} patches of "
        f"{patches} px, stopping once the score is above the threshold of a look.",
        "",
        "    gf predict THIS_FOLDER picture.jpg",
        "",
        f"**Classes**: {named}",
        "",
        "| looks | multiply-adds |",
        "|---|---|",
        *(f"| {look} | {macs / 1e6:,.1f}M |" for look, macs in enumerate(costs.macs_after_look, start=1)),
        f"| plain backbone, {settings.view.height_px}x{settings.view.width_px} px | {costs.backbone_macs / 1e6:,.1f}M |",
        "",
    ]
    told = {name: value for name, value in notes.items() if name not in ("data_settings", "thresholds_data")}
    told |= {name: told[name].get("sentence") for name in ("verdict", "aims") if isinstance(told.get(name), dict)}
    if told:
        lines += ["## Notes", "", *map(_note, told.items()), ""]
    if curve:
        lines += [f"{len(curve)} operating points are stored; `--budget-macs` chooses among them.", ""]
    return "\n".join(lines)


def _note(note: tuple[str, Any]) -> str:
    name, value = note
    return f"- {markdown(name.replace('_', ' '), _LONGEST_NAME)}: {markdown(str(value), _LONGEST_NOTE)}"
