"""Names of stages and assignments such as aim.epochs=8, as they are typed after `gf train`."""

import json
from typing import Any

from glancefocus.errors import BadSetting, UnknownName
from glancefocus.training.settings import STAGE_WORDS


def stage_names(words: list[str]) -> list[str]:
    """The stages that these words name; one word may hold several, separated by commas."""
    names: list[str] = []
    for word in [part for text in words for part in text.split(",") if part]:
        if word.lower() not in STAGE_WORDS:
            raise UnknownName("stage", word, STAGE_WORDS, f"Known are {', '.join(STAGE_WORDS)}.")
        names += STAGE_WORDS[word.lower()]
    return names


def assign(plain: dict[str, Any], assignment: str) -> None:
    """Set the value of name=value in a table; dots in the name lead into inner tables."""
    name, equals, text = assignment.partition("=")
    if not equals or not name:
        raise BadSetting(f"a setting is given as name=value, such as aim.epochs=8, but got {assignment!r}.")
    try:
        value = json.loads(text)
    except ValueError:
        value = {"none": None, "true": True, "false": False}.get(text.lower(), text)
    table = plain
    *sections, last = name.strip().split(".")
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise BadSetting(f"{name} is not a setting: {section} has no parts.")
    table[last] = value
