"""The options of a verb are one frozen dataclass: its fields are the signature, the texts below them the help.

    @command_options
    @dataclass(frozen=True)
    class ModelsOptions:
        json: Json = False

Numbers, texts and paths are checked by the type of their field. The ranges are those of `glancefocus.values`, so that an option and
the setting behind it have the same limits. Names, flags, choices and help pages are left to cyclopts. Modules of verbs import torch
and everything that needs it inside their functions, so that help pages are instant.
"""

import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from cyclopts import Parameter, Token

from glancefocus import values
from glancefocus.errors import BadSetting
from glancefocus.values import Range, read_number

Options = TypeVar("Options", bound=type)

# Types of options that several verbs have.
BundleName = Annotated[
    str,
    Parameter(
        help="A bundle: the folder of a trained network, written by `gf train` or `gf import`; "
        "or hf://user/name (hf://user/name@revision) on the Hugging Face hub."
    ),
]
OutputName = Parameter(name=["--output", "-o"])
Flag = Annotated[bool, Parameter(negative="", show_default=False)]
Json = Annotated[Flag, Parameter(name="--json", help="Print JSON for programs instead of text for people.")]
Runtime = Annotated[
    str | None,
    Parameter(
        help="Inference backend. plain: torch, without any preparation; eager: torch, batch norms folded into convolutions; "
        "compile: torch.compile; onnx: ONNX Runtime; openvino: OpenVINO; auto: the fastest one for this network and "
        "device, measured once and remembered. Answers are the same up to rounding. Default: torch modules as they were trained."
    ),
]
Threads = Annotated[values.Threads | None, Parameter(help="Number of CPU threads.")]
LightWeights = Annotated[
    Flag,
    Parameter(
        help="With --runtime onnx: int8 weights in memory-bound layers, faster for single pictures and small batches. "
        "The weights are rounded, so a few answers may differ.",
    ),
]
SplitName = typing.Literal["train", "val", "test", "all"]


def command_options(options: Options) -> Options:
    """The dataclass, flattened into options of the command. A wrong value raises BadSetting, not an error of cyclopts."""
    for name, hint in typing.get_type_hints(options, include_extras=True).items():
        reader = _reader_of(hint, name)
        if reader is not None:
            options.__annotations__[name] = Annotated[hint, Parameter(converter=reader.read)]
    return Parameter(name="*")(options)


@dataclass(frozen=True)
class _Reader:
    """Converts the words of one option.

    kind    type of a value: int, float, str or Path
    bounds  range of a number
    shape   list or tuple for several values; the numbers of a list may also be separated by commas
    name    name of the parameter, for values without an option in front
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
        raise BadSetting(f"{option} contains a zero character, which names cannot contain. Remove it.")
    return text


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _reader_of(hint: Any, name: str) -> _Reader | None:
    """How to read an option of this type; None: cyclopts reads it."""
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


def words_of(given: Sequence[str]) -> list[str]:
    """Words that were given one by one, or separated by commas."""
    return [word for text in given for word in text.split(",") if word]
