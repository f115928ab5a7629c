"""Reads what was written on the command line by the hints of a verb: numbers within their ranges, texts that are not empty.

The ranges are those of `glancefocus.values`, so that an option and the setting behind it have the same bounds. Everything else
(names, flags, choices, help) is left to cyclopts.
"""

import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from cyclopts import Parameter, Token

from glancefocus.errors import BadSetting
from glancefocus.values import Range, read_number

Verb = TypeVar("Verb", bound=Callable[..., Any])


def read_by_type(verb: Verb) -> Verb:
    """The verb, whose numbers, texts and paths are checked before it is called; raises BadSetting, not cyclopts' errors."""
    hints = typing.get_type_hints(verb, include_extras=True)
    for name, hint in hints.items():
        reader = None if name == "return" else _reader_of(hint, name)
        if reader is not None:
            verb.__annotations__[name] = Annotated[hint, Parameter(converter=reader.read)]
    return verb


@dataclass(frozen=True)
class _Reader:
    """Reads the words of one option.

    kind    of a value: int, float, str or Path
    bounds  of a number
    shape   list or tuple where there are several values; a list of numbers may have commas, too
    name    of the parameter, for words that no option stands before
    """

    kind: type
    bounds: Range | None
    shape: type | None
    name: str

    def read(self, tokens: Sequence[Token]) -> Any:
        with_commas = self.shape is list and self.bounds is not None
        words = [
            (token, word)
            for token in tokens
            for word in (filter(None, token.value.split(",")) if with_commas else [token.value])
        ]
        values = [self._value(word, token.keyword or self.name.upper()) for token, word in words]
        return values[0] if self.shape is None else self.shape(values)

    def _value(self, word: str, option: str) -> Any:
        if self.bounds is None:
            return self.kind(_checked_text(word, option))
        try:
            return read_number(self.kind, self.bounds, word, option)
        except BadSetting as error:
            if self.shape is not list or _is_number(word):
                raise
            raise BadSetting(f"{error} Arguments without an option go before {option}.") from None


def _checked_text(text: str, option: str) -> str:
    if not text:
        raise BadSetting(f"{option} is an empty text. Leave it out, or give it a value.")
    if "\0" in text:
        raise BadSetting(f"{option} contains a zero character, which no name has.")
    return text


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _reader_of(hint: Any, name: str) -> _Reader | None:
    """How to read an option of this type; None where cyclopts does it alone."""
    hint, shape = _bare(hint), None
    if typing.get_origin(hint) in (list, tuple):
        shape = typing.get_origin(hint)
        hint = _bare(typing.get_args(hint)[0])
    if typing.get_origin(hint) is Annotated:
        kind, bounds = typing.get_args(hint)[:2]
        return _Reader(kind, bounds, shape, name)
    return _Reader(hint, None, shape, name) if hint in (str, Path) else None


def _bare(hint: Any) -> Any:
    """Without `| None`, and without Annotated unless it holds a range."""
    while True:
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin is Annotated and not isinstance(arguments[1], Range):
            hint = arguments[0]
        elif origin in (typing.Union, types.UnionType):
            inner = [argument for argument in arguments if argument is not type(None)]
            if len(inner) != 1:
                return hint
            (hint,) = inner
        else:
            return hint
