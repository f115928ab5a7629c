"""How docstrings become pages: lists of fields become tables, and a public name without a docstring is a warning.

mkdocs loads this file twice (see mkdocs.yml): as a hook, which checks, and as an extension of griffe, which reads the source.
`mkdocs build --strict` fails on warnings.
"""

import html
import logging
import re
from pathlib import Path
from typing import Any

import griffe

API_PAGE = "api.md"
SOURCE = Path(__file__).resolve().parent.parent / "src"
# `name   what it is`, or `one, two   what they are`: at least two spaces between. Longer descriptions go on in indented lines.
FIELD = re.compile(r"^(?P<names>\*{0,2}[A-Za-z_][\w.]*(?:, \*{0,2}[A-Za-z_][\w.]*)*) {2,}(?P<text>\S.*)$")

log = logging.getLogger("mkdocs.plugins.docstrings")


class FieldTables(griffe.Extension):
    """Turns the aligned lists of arguments and fields in our docstrings into Markdown tables."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is None or obj.extra["docstrings"].get("done"):
            return
        obj.extra["docstrings"]["done"] = True
        types = {}
        if obj.is_class:
            types = {
                name: str(part.annotation)
                for name, part in obj.members.items()
                if part.is_attribute and part.annotation
            }
            for name in listed_fields(obj.docstring.value) & types.keys():
                obj.del_member(name)  # the table says it all
        obj.docstring.value = with_tables(obj.docstring.value, types)


def listed_fields(text: str) -> set[str]:
    """The names that a docstring lists with a description."""
    return {name for line in text.splitlines() if (field := FIELD.match(line)) for name in field["names"].split(", ")}


def with_tables(text: str, types: dict[str, str]) -> str:
    """The docstring as Markdown: each run of `name   description` lines becomes a table, the rest stays as it is.

    types  the annotations of a class's fields, shown below their names
    """
    lines: list[str] = []
    fields: list[tuple[str, str]] = []

    def end_of_fields() -> None:
        if fields:
            lines.extend(["", "| name | meaning |", "|---|---|"])
            lines.extend(f"| {_names(names, types)} | {_cell(words)} |" for names, words in fields)
            lines.append("")
            fields.clear()

    for line in text.splitlines():
        if found := FIELD.match(line):
            fields.append((found["names"], found["text"]))
        elif fields and line.startswith("  ") and line.strip():
            fields[-1] = (fields[-1][0], f"{fields[-1][1]} {line.strip()}")
        else:
            end_of_fields()
            lines.append(line)
    end_of_fields()
    return "\n".join(lines)


def _names(names: str, types: dict[str, str]) -> str:
    first = names.split(", ")[0]
    kind = f"<br><small>{_cell(html.escape(types[first]))}</small>" if first in types else ""
    return ", ".join(f"`{name}`" for name in names.split(", ")) + kind


def _cell(text: str) -> str:
    """Text for a cell of a table; braces at its end would be taken for attributes."""
    return text.replace("|", "\\|").replace("{", "&#123;")


def missing(name: str, package: griffe.Object) -> list[str]:
    """The public names inside `name`, itself included, that have no docstring and are not described by the one of their class."""
    named = package[name.removeprefix("glancefocus.")]
    obj = named.final_target if named.is_alias else named
    own = obj.docstring.value if obj.docstring is not None else ""
    without = [] if own.strip() else [name]
    if not obj.is_class and not obj.is_module:
        return without
    listed = listed_fields(own)
    for member, part in obj.members.items():
        if member.startswith("_") or part.is_alias:
            continue
        described = part.docstring is not None or (part.is_attribute and member in listed)
        if part.is_class:
            without += missing(f"{name}.{member}", package)
        elif not described:
            without.append(f"{name}.{member}")
    return without


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Warn of every public name on the API page that has no docstring."""
    if page.file.src_uri == API_PAGE:
        package = griffe.load("glancefocus", search_paths=[SOURCE])
        for name in re.findall(r"^::: (\S+)$", markdown, flags=re.MULTILINE):
            for public in missing(name, package):
                log.warning(f"{public} is public and has no docstring")
    return markdown
