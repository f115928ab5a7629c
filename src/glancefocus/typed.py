"""What comes from disk as JSON or in a checkpoint: read within limits, every field of its kind, or refused by its name.

    plain = read_json(folder / "about.json", 1 << 20)
    fields = Fields(plain, "about")
    images = fields.whole("images", 1, 10**9)          # "about.images must be a whole number from 1 to ..., but got 'many'."

Settings, which are dataclasses, are read by `settings.from_plain`, with the same sentences. All of this raises BadSetting; whoever
reads a file says which one it was.
"""

import json
import math
import typing
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

from glancefocus.errors import BadSetting, UnknownName
from glancefocus.escaping import is_writable_text
from glancefocus.files import read_file
from glancefocus.ranges import Range, checked_number, shown

MOST_VALUES, DEEPEST = 4_000_000, 32
"""Of a JSON file: lists, tables and what is in them; how deep these may lie in one another."""
LONGEST_CLASS_NAME = 1000
_LONGEST_NUMBER = 40
_REQUIRED: Any = object()

Value = TypeVar("Value")


def read_json(file: Path, most_bytes: int) -> Any:
    """The content of a JSON file. Raises BadSetting where it is not what JSON should be, OSError where there is nothing to read."""
    return parse_json(read_file(file, most_bytes))


def parse_json(content: bytes) -> Any:
    """JSON as the standard has it: UTF-8, every name once, no NaN or infinity, numbers that fit, and not without bounds."""
    if sum(map(content.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise BadSetting(f"it has more than {MOST_VALUES:,} values.")
    try:
        plain = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_table,
            parse_int=_whole,
            parse_float=_float,
            parse_constant=_refuse_constant,
        )
    except UnicodeDecodeError as error:
        raise BadSetting(f"it is not text in UTF-8 (byte {error.start}).") from None
    except RecursionError:
        raise BadSetting("its lists and tables lie too deep in one another.") from None
    except ValueError as error:
        raise BadSetting(f"it is not JSON: {error}.") from None
    _check_inside(plain)
    return plain


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        last = {name: index for index, (name, _) in enumerate(pairs)}
        twice = next(name for index, (name, _) in enumerate(pairs) if last[name] != index)
        raise BadSetting(f"it has the name {shown(twice)} twice in one table.")
    return table


def _whole(digits: str) -> int:
    if len(digits) > _LONGEST_NUMBER:
        raise BadSetting(f"it has a whole number of {len(digits):,} digits.")
    return int(digits)


def _float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise BadSetting(f"it has a number that is too large ({digits[:_LONGEST_NUMBER]}).")
    return number


def _refuse_constant(name: str) -> Any:
    raise BadSetting(f"it has {name} where a number should be.")


def _check_inside(plain: Any) -> None:
    """Refuse what lies too deep, and text that is half a character; without recursion, whatever the depth."""
    level: list[Any] = [plain]
    for _ in range(DEEPEST):
        following: list[Any] = []
        for value in level:
            if isinstance(value, str) and not is_writable_text(value):
                raise BadSetting(f"it has a text that is not Unicode ({shown(value)}).")
            if isinstance(value, dict):
                following += [*value.keys(), *value.values()]
            elif isinstance(value, list):
                following += value
        if not following:
            return
        level = following
    raise BadSetting(f"its lists and tables lie more than {DEEPEST} deep in one another.")


class Fields:
    """A table whose fields are read one by one; each that is missing or of another kind is refused with its name.

    where  what the table is called, such as "costs"
    """

    def __init__(self, plain: Any, where: str = "") -> None:
        if not isinstance(plain, dict):
            raise BadSetting(f"{where or 'it'} must be a table of names and values, but got {shown(plain)}.")
        self.plain: dict[str, Any] = plain
        self.where = where

    def name(self, field: str) -> str:
        """The field's full name, as in network.looks."""
        return f"{self.where}.{field}" if self.where else field

    def value(self, field: str, default: Any = _REQUIRED) -> Any:
        """Whatever is there."""
        if field in self.plain:
            return self.plain[field]
        if default is _REQUIRED:
            raise BadSetting(f"{self.name(field)} is missing.")
        return default

    def refuse_others(self, known: Collection[str]) -> None:
        """Refuse fields of other names."""
        for field in self.plain:
            if field not in known:
                raise UnknownName(f"field in {self.where}" if self.where else "field", field, known)

    def whole(self, field: str, least: int, most: int, default: Any = _REQUIRED) -> int:
        return self._read(field, default, lambda value, name: whole_of(value, name, least, most))

    def number(self, field: str, least: float, most: float, default: Any = _REQUIRED) -> float:
        return self._read(field, default, lambda value, name: number_of(value, name, least, most))

    def text(self, field: str, longest: int, default: Any = _REQUIRED) -> str:
        return self._read(field, default, lambda value, name: text_of(value, name, longest))

    def table(self, field: str, default: Any = _REQUIRED) -> "Fields":
        return self._read(field, default, lambda value, name: Fields(value, name))

    def listed(self, field: str, most: int, each: Callable[[Any, str], Value], default: Any = _REQUIRED) -> list[Value]:
        """A list of at most so many values, each read by `each(value, its name)`."""
        return self._read(field, default, lambda value, name: list_of(value, name, most, each))

    def _read(self, field: str, default: Any, read: Callable[[Any, str], Value]) -> Value:
        if field not in self.plain and default is not _REQUIRED:
            return typing.cast(Value, default)
        return read(self.value(field), self.name(field))


def whole_of(value: Any, name: str, least: int, most: int) -> int:
    """A whole number within bounds."""
    return int(checked_number(int, Range(least, most), value, name))


def number_of(value: Any, name: str, least: float, most: float) -> float:
    """A number within bounds."""
    return float(checked_number(float, Range(least, most), value, name))


def text_of(value: Any, name: str, longest: int) -> str:
    """A text that can be written to a file."""
    if not isinstance(value, str):
        raise BadSetting(f"{name} must be a text, but got {shown(value)}.")
    if len(value) > longest:
        raise BadSetting(f"{name} is a text of {len(value):,} characters. At most {longest:,} can be meant.")
    if not is_writable_text(value):
        raise BadSetting(f"{name} is not Unicode text ({shown(value)}).")
    return value


def list_of(value: Any, name: str, most: int, each: Callable[[Any, str], Value]) -> list[Value]:
    """A list of at most so many values, each read by `each(value, its name)`."""
    if not isinstance(value, (list, tuple)):
        raise BadSetting(f"{name} must be a list, but got {shown(value)}.")
    if len(value) > most:
        raise BadSetting(f"{name} has {len(value):,} values. At most {most:,} can be meant.")
    return [each(inner, f"{name}[{index}]") for index, inner in enumerate(value)]
