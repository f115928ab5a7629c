"""Unpickles tensors and plain values, and nothing else.

A pickle is a program that calls what it names. Here it can only name the functions of `_CALLABLE`. Each checks the kinds and
sizes of what it is given before it makes anything, so that nothing large comes out of a few bytes.
"""

import math
import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class ForeignContent(Exception):
    """The file holds something else than tensors and plain values; the message says what."""


class DamagedFile(Exception):
    """The file is not consistent, or describes tensors that are larger than its content."""


class _Kind(NamedTuple):
    """A class of storages, by the kind of number in them."""

    dtype: torch.dtype


Storage = Callable[[str, torch.dtype, int], Tensor]
"""(key, kind of number, how many) -> (how many,) tensor"""


class PlainReader(pickle._Unpickler):
    """Python's own unpickler, of which only harmless operations are left.

    Not the one written in C: that one reserves memory for any number that a pickle calls an entry of its memory by.
    """

    stack: list[Any]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, stream: Any, storage: Storage) -> None:
        super().__init__(stream, encoding="utf-8", errors="strict")
        self._storage = storage

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _CALLABLE[f"{module}.{name}"]
        except KeyError:
            raise ForeignContent(_OTHER_TENSORS.get(name, f"a {module}.{name}")) from None

    def persistent_load(self, pid: Any) -> Tensor:
        word, kind, key, _, count, *view = _plain_list(pid)
        if word != "storage" or not isinstance(kind, _Kind) or type(key) not in (str, int) or not _is_count(count):
            raise DamagedFile("a tensor's values are not described as torch does")
        values = self._storage(str(key), kind.dtype, count)
        if not view or view[0] is None:
            return values
        _, first, length = _plain_list(view[0])
        if not _is_count(first) or not _is_count(length) or first + length > count:
            raise DamagedFile("a part of a tensor's values lies outside of them")
        return values[first : first + length]

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        _put(self.stack[-1], [key, value])

    def load_setitems(self) -> None:
        items = self.pop_mark()
        _put(self.stack[-1], items)

    def load_additems(self) -> None:
        items = self.pop_mark()
        if type(self.stack[-1]) is not set or not all(type(item) in _KEYS for item in items):
            raise DamagedFile("a set of things that cannot be in sets")
        self.stack[-1].update(items)

    def load_build(self) -> None:
        """Attributes that torch gives state dicts are left out; arrays of numpy get their content."""
        state, built = self.stack.pop(), self.stack[-1]
        if isinstance(built, np.ndarray):
            _fill_array(built, *state)
        elif isinstance(built, np.dtype):
            if state[1] not in ("<", "|", "="):
                raise ForeignContent("numbers in the byte order of another processor")
        elif type(built) is not OrderedDict:
            raise ForeignContent(f"attributes of a {type(built).__name__}")


_OPERATIONS = (
    *("PROTO", "STOP", "FRAME", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BINPERSID", "MARK", "NONE", "NEWTRUE", "NEWFALSE"),
    *(
        "BININT",
        "BININT1",
        "BININT2",
        "LONG1",
        "BINFLOAT",
        "BINUNICODE",
        "SHORT_BINUNICODE",
        "SHORT_BINSTRING",
        "BINSTRING",
    ),
    *(
        "SHORT_BINBYTES",
        "BINBYTES",
        "TUPLE",
        "TUPLE1",
        "TUPLE2",
        "TUPLE3",
        "EMPTY_TUPLE",
        "EMPTY_LIST",
        "EMPTY_DICT",
        "EMPTY_SET",
    ),
    *("APPEND", "APPENDS", "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
)
_DISPATCH: dict[int, Callable[[Any], None]] = {
    **{getattr(pickle, name)[0]: pickle._Unpickler.dispatch[getattr(pickle, name)[0]] for name in _OPERATIONS},
    pickle.SETITEM[0]: PlainReader.load_setitem,
    pickle.SETITEMS[0]: PlainReader.load_setitems,
    pickle.ADDITEMS[0]: PlainReader.load_additems,
    pickle.BUILD[0]: PlainReader.load_build,
}
PlainReader.dispatch = _DISPATCH
_MOST_DIMENSIONS = 16
_KEYS = (str, int, float, bool, bytes, type(None))


def _put(table: Any, items: list[Any]) -> None:
    """Pairs into a table. A key of other kinds could take forever to be looked up."""
    for key, value in zip(items[::2], items[1::2], strict=True):
        if type(table) not in (dict, OrderedDict) or type(key) not in _KEYS:
            raise DamagedFile("a table with keys that are neither words nor numbers")
        table[key] = value


def _plain_list(value: Any) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise DamagedFile(f"a {type(value).__name__} where a list should be")
    return list(value)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**48


def _tensor(values: Any, offset: Any, size: Any, stride: Any, *ignored: Any) -> Tensor:
    """A tensor that lies in its values, and has no more places than these."""
    size, stride = _plain_list(size)[:_MOST_DIMENSIONS], _plain_list(stride)[:_MOST_DIMENSIONS]
    if not isinstance(values, Tensor) or not all(map(_is_count, (offset, *size, *stride))):
        raise DamagedFile("a tensor's shape is not made of whole numbers")
    count = math.prod(size)
    last = offset + sum((side - 1) * step for side, step in zip(size, stride, strict=True))
    if count > values.numel() or (count and last >= values.numel()):
        raise DamagedFile(f"a tensor of shape {tuple(size)} has more places than values")
    return torch.as_strided(values, tuple(size), tuple(stride), offset if count else 0)


def _parameter(values: Any, *ignored: Any) -> Tensor:
    if not isinstance(values, Tensor):
        raise DamagedFile("a parameter without values")
    return values


def _with_attributes(make: Any, kind: Any, args: Any, state: Any) -> Any:
    """A tensor that carries attributes, which are left out."""
    if make not in (_tensor, _parameter):
        raise ForeignContent("tensors of another kind")
    return make(*args)


def _ordered(pairs: Any = ()) -> OrderedDict[Any, Any]:
    table: OrderedDict[Any, Any] = OrderedDict()
    for pair in _plain_list(pairs):
        key, value = _plain_list(pair)
        _put(table, [key, value])
    return table


def _latin_bytes(text: Any, codec: Any) -> bytes:
    if codec not in ("latin1", "latin-1") or not isinstance(text, str):
        raise DamagedFile("bytes that are written in another way than pickles do")
    return text.encode("latin1")


def _plain_set(items: Any = ()) -> set[Any]:
    if not isinstance(items, list) or not all(type(item) in _KEYS for item in items):
        raise DamagedFile("a set of things that cannot be in sets")
    return set(items)


def _plain_bytes(content: Any = b"") -> bytearray:
    if not isinstance(content, bytes):
        raise DamagedFile("bytes that are none")
    return bytearray(content)


def _kind_of_number(code: Any, *ignored: Any) -> np.dtype[Any]:
    kind = np.dtype(code if isinstance(code, str) and len(code) <= 3 else "O")
    if kind.kind not in "biuf":
        raise ForeignContent("an array of numpy that is not made of numbers")
    return kind


def _number(kind: Any, content: Any) -> Any:
    if not isinstance(kind, np.dtype) or not isinstance(content, bytes) or len(content) != kind.itemsize:
        raise DamagedFile("a number of numpy that is none")
    return np.frombuffer(content, kind)[0]


def _empty_array(*ignored: Any) -> np.ndarray[Any, Any]:
    """To be filled; the shape that stands here is that of something empty."""
    return np.ndarray((0,), np.uint8)


def _fill_array(
    array: np.ndarray[Any, Any], version: Any, shape: Any, kind: Any, columns_first: Any, content: Any
) -> None:
    sized = isinstance(shape, tuple) and all(type(side) is int and side >= 0 for side in shape)
    if not sized or not isinstance(kind, np.dtype) or not isinstance(content, bytes):
        raise ForeignContent("an array of numpy that is not made of numbers")
    if math.prod(shape) * kind.itemsize != len(content):
        raise DamagedFile("an array of numpy has more places than values")
    state: Any = (1, shape, kind, bool(columns_first), content)
    array.__setstate__(state)


_NUMBERS = {
    "Float": torch.float32,
    "Double": torch.float64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
    "ComplexFloat": torch.complex64,
    "ComplexDouble": torch.complex128,
}


def _callable() -> Iterator[tuple[str, Any]]:
    for name, dtype in _NUMBERS.items():
        for module in ("torch", "torch.cuda"):
            yield f"{module}.{name}Storage", _Kind(dtype)
        yield str(dtype), dtype
    yield from (
        ("torch._utils._rebuild_tensor", _tensor),
        ("torch._utils._rebuild_tensor_v2", _tensor),
        ("torch._utils._rebuild_parameter", _parameter),
        ("torch._utils._rebuild_parameter_with_state", _parameter),
        ("torch._tensor._rebuild_from_type_v2", _with_attributes),
        ("torch.Tensor", None),  # only named by the one before
        ("torch.nn.parameter.Parameter", None),
        ("torch.Size", lambda sides=(): tuple(_plain_list(sides))),
        ("torch.device", lambda *name: "cpu"),
        ("collections.OrderedDict", _ordered),
        ("_codecs.encode", _latin_bytes),
        ("numpy.dtype", _kind_of_number),
        ("numpy.ndarray", None),  # only named by the next
    )
    for builtins in ("builtins", "__builtin__"):
        yield f"{builtins}.set", _plain_set
        yield f"{builtins}.bytearray", _plain_bytes
    for core in ("core", "_core"):
        yield f"numpy.{core}.multiarray._reconstruct", _empty_array
        yield f"numpy.{core}.multiarray.scalar", _number


_CALLABLE: dict[str, Any] = dict(_callable())
_OTHER_TENSORS = {
    "_rebuild_sparse_tensor": "sparse tensors",
    "_rebuild_sparse_csr_tensor": "sparse tensors",
    "_rebuild_qtensor": "quantised tensors",
    "_rebuild_meta_tensor_no_storage": "tensors without values",
    "_rebuild_nested_tensor": "nested tensors",
    "_rebuild_wrapper_subclass": "tensors of another kind",
    "_rebuild_tensor_v3": "tensors of another kind of number",
}
