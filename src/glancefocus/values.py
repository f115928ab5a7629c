"""Values from outside (options, settings, JSON files): checked by kind and bounds, and escaped before they are shown.

    looks: Looks = 5                                # Annotated[int, Range(1, 64)]: the bounds are part of the type
    images = Fields(plain, "about").whole("images", 1, 10**9)
    # "about.images must be a whole number from 1 to ..., but got 'many'."

Settings check their fields by these types (`check_fields`), and so does the command line. Upper bounds are far above what
is useful, and low enough that a typing error or a foreign file cannot exhaust memory, threads or time. All functions raise
BadSetting; the caller that reads a file adds its name.

Class names, notes and file names must not act as commands or markup where they are shown: `one_line` and `lines_kept` are for
terminals, `markdown` for pages, `csv_cell` for tables that may be opened in a spreadsheet, `figure_text` for matplotlib.
"""

import functools
import math
import numbers
import os
import re
import reprlib
import types
import typing
import unicodedata
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, TypeVar

from glancefocus.errors import BadSetting, UnknownName


@dataclass(frozen=True)
class Range:
    """The numbers from `least` to `most`, both included unless `above` or `below` is set.

    above  the number must be above `least`
    below  the number must be below `most`
    """

    least: float
    most: float
    above: bool = False
    below: bool = False

    def __contains__(self, number: float) -> bool:
        """False for NaN and for infinities, too."""
        low = self.least < number if self.above else self.least <= number
        high = number < self.most if self.below else number <= self.most
        return low and high and not math.isinf(number)

    def words(self, kind: type) -> str:
        """In words: "a whole number from 1 to 64", "a number above 0 and at most 1"."""
        noun = "a whole number" if kind is int else "a number"
        least, most = _digits(self.least), _digits(self.most)
        if math.isinf(self.most):
            return noun
        if not self.above and not self.below:
            return f"{noun} from {least} to {most}"
        return f"{noun} {'above' if self.above else 'of at least'} {least} and {'below' if self.below else 'at most'} {most}"


ANY_NUMBER = Range(-math.inf, math.inf)


def checked_number(kind: type, bounds: Range, value: Any, name: str) -> Any:
    """The value as an int or a float (`kind`) within the bounds; raises BadSetting with its name for everything else.

    A whole number is accepted as a float, but a float is not accepted as a whole number, and a bool as neither.
    """
    fits = not isinstance(value, bool) and isinstance(value, numbers.Integral if kind is int else numbers.Real)
    if fits and _number(value) in bounds:
        return kind(value)
    raise BadSetting(f"{name} must be {bounds.words(kind)}, but got {shown(value)}.")


def checked(hint: Any, value: Any, name: str) -> Any:
    """A value checked by one of the types below: checked(Looks, looks, "looks")."""
    kind, bounds = typing.get_args(hint)[:2]
    return checked_number(kind, bounds, value, name)


def shown(value: Any) -> str:
    """A value as it is quoted in a sentence, shortened; nested lists are shortened before they are turned into text."""
    return shortened(_BRIEF.repr(value) if isinstance(value, (list, tuple, dict, set)) else repr(value))


_BRIEF = reprlib.Repr()
_BRIEF.maxlevel, _BRIEF.maxlist, _BRIEF.maxtuple, _BRIEF.maxdict, _BRIEF.maxstring = 3, 20, 20, 20, 80


def shortened(text: str, most: int = 80) -> str:
    """A text on one line of at most `most` characters."""
    line = text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
    return line if len(line) <= most else f"{line[: most - 3]}..."


def _number(value: Any) -> float:
    """An int stays an int, so that large ones are compared exactly; other numbers become floats."""
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def _digits(number: float) -> str:
    if math.isfinite(number) and number == int(number) and abs(number) < 1e19:
        return f"{int(number):,}"
    return f"{number:g}"


_CORES = os.cpu_count() or 1
MOST_LOOKS, MOST_CANDIDATES = 64, 64

# Sizes of images and networks
Pixels = Annotated[int, Range(8, 16_384)]
Shift = Annotated[int, Range(0, 16_384)]
MaxPixels = Annotated[int, Range(64, 2**34)]
Classes = Annotated[int, Range(2, 1_000_000)]
Looks = Annotated[int, Range(1, MOST_LOOKS)]
Frames = Annotated[int, Range(1, 256)]
Units = Annotated[int, Range(1, 65_536)]
Kernel = Annotated[int, Range(1, 31)]
ShiftDivisor = Annotated[int, Range(0, 65_536)]
Colour = Annotated[float, Range(-1000, 1000)]
ColourDeviation = Annotated[float, Range(0, 1000, above=True)]

# Shares, weights and rates
Share = Annotated[float, Range(0, 1)]
PositiveShare = Annotated[float, Range(0, 1, above=True)]
PartialShare = Annotated[float, Range(0, 1, below=True)]
InnerShare = Annotated[float, Range(0, 1, above=True, below=True)]
Weight = Annotated[float, Range(0, 1_000_000)]
Rate = Annotated[float, Range(0, 1000)]
PositiveRate = Annotated[float, Range(0, 1000, above=True)]
WeightDecay = Annotated[float, Range(0, 1000)]
Points = Annotated[float, Range(0, 100)]

# Counts
Epochs = Annotated[int, Range(0, 100_000)]
Rounds = Annotated[int, Range(1, 10_000)]
Passes = Annotated[int, Range(1, 1000)]
Repeats = Annotated[int, Range(0, 1000)]
Count = Annotated[int, Range(1, 1_000_000)]
Scenes = Annotated[int, Range(5, 1_000_000)]
BadFiles = Annotated[int, Range(0, 1_000_000_000)]
BatchSize = Annotated[int, Range(1, 65_536)]
TrainBatchSize = Annotated[int, Range(2, 65_536)]
Seed = Annotated[int, Range(0, 2**63 - 1)]

# Resources of the machine
Threads = Annotated[int, Range(1, min(1024, max(16, 4 * _CORES)))]
Workers = Annotated[int, Range(0, min(1024, max(64, 4 * _CORES)))]
Processes = Annotated[int, Range(1, min(1024, max(16, 4 * _CORES)))]
Mebibytes = Annotated[int, Range(0, 2**24)]
Port = Annotated[int, Range(0, 65_535)]

# Budgets and times
MultiplyAdds = Annotated[float, Range(0, 1e18, above=True)]
Milliseconds = Annotated[float, Range(0, 1e9, above=True)]
WaitingMs = Annotated[float, Range(0, 1e9)]
Minutes = Annotated[float, Range(0, 1_000_000)]
Threshold = Annotated[float, Range(-1e6, 1e6)]

# JSON and tables of fields
LONGEST_CLASS_NAME = 1000
_REQUIRED: Any = object()

Value = TypeVar("Value")
Answer = dict[str, Any]
"""The answer for one picture as plain values, with the fields that docs/predict.md lists."""


class Fields:
    """A table whose fields are read one by one; a missing field, or one of another kind, is refused by name.

    where  what the table is called, such as "costs"
    """

    def __init__(self, plain: Any, where: str = "") -> None:
        if not isinstance(plain, dict):
            raise BadSetting(f"{where or 'it'} must be a table of names and values, but got {shown(plain)}.")
        self.plain: dict[str, Any] = plain
        self.where = where

    def name(self, field: str) -> str:
        """The full name of a field, such as network.looks."""
        return f"{self.where}.{field}" if self.where else field

    def value(self, field: str, default: Any = _REQUIRED) -> Any:
        """The value of a field, of any kind."""
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
        """A list of at most `most` values, each read by `each(value, name)`."""
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
        raise BadSetting(f"{name} is a text of {len(value):,} characters; at most {longest:,} are allowed.")
    if not is_writable_text(value):
        raise BadSetting(f"{name} is not Unicode text ({shown(value)}).")
    return value


def list_of(value: Any, name: str, most: int, each: Callable[[Any, str], Value]) -> list[Value]:
    """A list of at most `most` values, each read by `each(value, name)`."""
    if not isinstance(value, (list, tuple)):
        raise BadSetting(f"{name} must be a list, but got {shown(value)}.")
    if len(value) > most:
        raise BadSetting(f"{name} has {len(value):,} values; at most {most:,} are allowed.")
    return [each(inner, f"{name}[{index}]") for index, inner in enumerate(value)]


Settings = TypeVar("Settings")


def to_plain(settings: Any) -> dict[str, Any]:
    """The settings as plain lists, numbers, strings and dictionaries, ready for JSON."""
    plain: dict[str, Any] = asdict(settings)
    return plain


def from_plain(kind: type[Settings], plain: Any, where: str = "") -> Settings:
    """Settings of this kind out of plain values; unknown names, and values of the wrong type or out of range, are refused.

    where  what the settings are called in these sentences, such as "network"
    """
    if not isinstance(plain, dict):
        raise BadSetting(f"{where or 'settings'} must be a table of names and values, but got {type(plain).__name__}.")
    hints = _hints(kind)
    upgraded = getattr(kind, "upgraded", None)
    if upgraded is not None:
        plain = upgraded(plain, where)
    for name in plain:
        if name not in hints:
            raise UnknownName(f"setting in {where}" if where else "setting", str(name), hints)
    values = {name: _convert(hints[name], value, _joined(where, name)) for name, value in plain.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise BadSetting(f"{where or 'a table of settings'} is incomplete: {error}.") from None


def check_fields(settings: Any) -> None:
    """Check every field of frozen settings by its type and range; for `__post_init__`."""
    for name, hint in _hints(type(settings)).items():
        value = getattr(settings, name)
        object.__setattr__(settings, name, _convert(hint, value, name))


def _read_hints(kind: Any) -> dict[str, Any]:
    """{field: its type}, with the ranges."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {f.name: hints[f.name] for f in fields(kind)}


_hints: Callable[[Any], dict[str, Any]] = functools.cache(_read_hints)


def _joined(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _convert(hint: Any, value: Any, where: str) -> Any:
    """The value as the hint says, or BadSetting."""
    if is_dataclass(hint):
        kind = typing.cast(type[Any], hint)
        return value if isinstance(value, kind) else from_plain(kind, value, where)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return checked_number(arguments[0], arguments[1], value, where)
    if origin is Literal:
        if not isinstance(value, str) or value not in arguments:
            raise BadSetting(f"{where} must be one of {', '.join(map(repr, arguments))}, but got {shown(value)}.")
        return value
    if origin in (typing.Union, types.UnionType):
        (inner,) = [a for a in arguments if a is not type(None)]
        return None if value is None else _convert(inner, value, where)
    if origin is tuple:
        return _convert_list(arguments, value, where)
    if origin is dict:
        if not isinstance(value, dict):
            raise BadSetting(f"{where} must be a table of names and values, but got {shown(value)}.")
        return dict(value)
    if hint in (int, float):
        return checked_number(hint, ANY_NUMBER, value, where)
    if not isinstance(value, hint):
        raise BadSetting(f"{where} must be {_KINDS.get(hint, hint.__name__)}, but got {shown(value)}.")
    return value


def _convert_list(hints: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise BadSetting(f"{where} must be a list, but got {shown(value)}.")
    if hints[1:] == (...,):
        hints = (hints[0],) * len(value)
    if len(value) != len(hints):
        raise BadSetting(f"{where} must be a list of {len(hints)} values, but got {shown(value)}.")
    return tuple(_convert(hint, v, f"{where}[{i}]") for i, (hint, v) in enumerate(zip(hints, value, strict=True)))


_KINDS = {str: "a text", bool: "true or false"}


# Markup anywhere; the start of a heading, a list or a quotation; addresses that become links automatically.
_MARKDOWN = re.compile(r"([\\`*_\[\]|~@$]|^[#+=-]|:(?=//)|(?<=www)\.)")
_NUMBERED = re.compile(r"^([0-9]{1,9})([.)])(?= |$)")
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_FORMULA = re.compile(r"[=@\t\r]|[+-](?![0-9.]+$)")  # a number such as -1 is not a formula
# Control, format, surrogate, private, unassigned, line, paragraph.
_INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
_JOINERS = "\u200c\u200d"  # format characters that are part of words and of many emoji


def one_line(text: str, most: int | None = None) -> str:
    """The text on one line, without terminal commands; cut after `most` characters."""
    line = text if text.isprintable() else "".join(map(_visible, text))
    return line if most is None or len(line) <= most else f"{line[: max(0, most - 3)]}..."


def lines_kept(text: str) -> str:
    """Text of several lines without terminal commands; line breaks are kept."""
    return "\n".join(one_line(line) for line in text.split("\n"))


def markdown(text: str, most: int | None = None) -> str:
    """The text for a Markdown page: no heading, list, link, code or HTML begins in it."""
    line = " ".join(one_line(text, most).split())
    line = "".join(_HTML.get(c, c) for c in line)
    return _NUMBERED.sub(r"\1\\\2", _MARKDOWN.sub(r"\\\1", line))


def csv_cell(text: str) -> str:
    """The text, with an apostrophe in front if a spreadsheet would execute it as a formula."""
    line = one_line(text)
    return f"'{line}" if _FORMULA.match(line) else line


def figure_text(text: str) -> str:
    """The text for a label of matplotlib, which reads text between dollar signs as formulas."""
    return one_line(text).replace("$", r"\$")


def is_writable_text(text: str) -> bool:
    """Whether the text can be written in UTF-8; a file name that is not UTF-8 contains surrogates in Python."""
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)


def _visible(character: str) -> str:
    if character in _JOINERS or unicodedata.category(character) not in _INVISIBLE:
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
