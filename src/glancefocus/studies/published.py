"""Published figures: those of the paper, and those of the other networks that it compares with, each with its source."""

import functools
import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

from glancefocus.studies.study import Row, Value

FILE = "published.json"


@dataclass(frozen=True)
class PublishedNetwork:
    """One network of another paper: accuracy in [0, 1], multiply-adds for an image or a clip, and where that is written."""

    name: str
    data: str
    accuracy: float
    macs: float
    source: str


@functools.cache
def _content() -> dict[str, Any]:
    text = resources.files("glancefocus.studies").joinpath(FILE).read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def source_of(table: str) -> str:
    """Where a table of the paper is."""
    return str(_content()["tables"][table]["source"])


def columns_of(table: str) -> list[str]:
    return list(_content()["tables"][table]["columns"])


def paper_row(table: str, row: str, *, share: bool = True) -> tuple[list[Value], list[Value]]:
    """(values, deviations) of one row; share: percent become shares. Without a row of this name both are empty."""
    found = _content()["tables"][table]
    scale = 100 if share else 1
    parts = (found["rows"].get(row, []), found["deviations"].get(row, []))
    values, deviations = ([None if value is None else value / scale for value in part] for part in parts)
    return values, deviations


def row_beside(table: str, key: str, name: str, values: Any) -> Row:
    """A row of shares with the paper's values of the row `key`."""
    paper, deviation = paper_row(table, key)
    return Row(name, values, paper, deviation)


def sentence(study: str) -> str:
    """What the paper says in words, with its place."""
    fact = _content()["facts"][study]
    return f"{fact['sentence']} ({fact['source']})"


def networks(data: str) -> list[PublishedNetwork]:
    """The published networks on a data set."""
    return [PublishedNetwork(**each) for each in _content()["networks"] if each["data"] == data]
