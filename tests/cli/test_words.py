"""Texts for people do not call an answer sure that only stopped above its threshold."""

import ast
import re
from pathlib import Path

import pytest

import glancefocus

SOURCE = Path(glancefocus.__file__).parent
ROOT = Path(__file__).parents[2]
# Where texts for people are written: reports, figures, drawings, tables, model cards, README of exports.
PLACES = [
    *sorted((SOURCE / "evaluation").glob("*.py")),
    *sorted((SOURCE / "cli").glob("*.py")),
    *sorted((SOURCE / "export").rglob("*.py")),
    *sorted((SOURCE / "bundle").glob("*.py")),
    SOURCE / "outcome.py",
]


@pytest.mark.parametrize("path", PLACES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_texts_for_people_do_not_say_sure(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    printed = [
        text for text in texts if re.search(r"\bsure\b", text) and text not in ("sure", "/sure")
    ]  # but for the field itself
    # In code `sure` is written as code, with what it means beside it.
    assert [text for text in printed if "threshold" not in text] == []


@pytest.mark.parametrize("document", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda p: p.name)
def test_documents_name_it_as_code_only(document: Path) -> None:
    text = re.sub(r"```.*?```|^    .*?$", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    plain = re.sub(r"`[^`]*`", "", text)
    assert re.findall(r"[^.|]*\bsure\b[^.|]*", plain) == []
