"""Finds timm's names of backbones in its source files: importing timm takes seconds, and a misspelt name should be said at once."""

import functools
import importlib.util
import re
from pathlib import Path

from glancefocus.errors import UnknownName
from glancefocus.network.presets import PRESETS

_DEFINED = re.compile(r"^@register_model\s*\ndef (\w+)\(", re.MULTILINE)


def refuse_misspelt(backbone: str) -> None:
    """Refuse a backbone that occurs nowhere in timm's files, with the nearest names that do; timm has the last word on others."""
    ours = {preset.settings.backbone for preset in PRESETS.values()}  # some are not timm's
    sources = _sources()
    word = re.compile(rf"\b{re.escape(backbone.partition('.')[0])}\b")
    if not sources or backbone in ours or ":" in backbone or any(word.search(source) for source in sources):
        return
    names = ours | {name for source in sources for name in _DEFINED.findall(source)}
    raise UnknownName("backbone", backbone, names, "`gf models` lists the presets.")


@functools.cache
def _sources() -> list[str]:
    """The text of timm's modules of models; none where timm is not installed as files."""
    spec = importlib.util.find_spec("timm")
    if spec is None or spec.origin is None:
        return []
    files = sorted((Path(spec.origin).parent / "models").glob("*.py"))
    return [file.read_text(encoding="utf-8", errors="replace") for file in files]
