"""JSON from outside is what the standard says, within bounds; fields are of their kind, or refused by their names."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glancefocus.errors import BadSetting
from glancefocus.machine import parse_json, read_json
from glancefocus.values import Fields, list_of, number_of, text_of, whole_of


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b'{"a": NaN}', "it has NaN where a number should be"),
        (b'{"a": -Infinity}', "it has -Infinity where a number should be"),
        (b'{"a": 1e999}', r"it has a number that is too large \(1e999\)"),
        (b'{"a": ' + b"9" * 5000 + b"}", "it has a whole number of 5,000 digits"),
        (b'{"a": 1, "b": 2, "a": 3}', "it has the name 'a' twice in one table"),
        (b'{"a": "\\ud800"}', r"it has a text that is not Unicode \(.*ud800"),
        (b'{"\\udc80": 1}', "it has a text that is not Unicode"),
        (b'{"a": "\xff"}', r"it is not text in UTF-8 \(byte 7\)"),
        ('{"a": 1}'.encode("utf-16"), "it is not text in UTF-8"),
        (b"[" * 100_000, "nested too deeply|nested more than"),
        (b"[" * 33 + b"]" * 33, "are nested more than 32 deep"),
        (b"[" + b"1," * 4_000_001 + b"1]", "it has more than 4,000,000 values"),
        (b"", "it is not JSON"),
        (b"{'a': 1}", "it is not JSON"),
    ],
)
def test_json_that_is_not_quite_json_is_refused(content: bytes, sentence: str) -> None:
    with pytest.raises(BadSetting, match=sentence):
        parse_json(content)


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=30,
)


@given(PLAIN)
def test_what_json_writes_is_read_as_it_was(plain: Any) -> None:
    assert parse_json(json.dumps(plain).encode()) == plain


@given(st.binary() | st.text(alphabet='{}[]",:0123456789.eE+-truefalsn\\u').map(str.encode))
def test_any_bytes_are_json_or_a_sentence(content: bytes) -> None:
    with contextlib.suppress(BadSetting):
        json.dumps(parse_json(content), allow_nan=False).encode("ascii")


def test_a_file_is_read_within_its_limit_and_never_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}')
    assert read_json(tmp_path / "a.json", 8) == {"a": 1}
    with pytest.raises(OSError, match="it has more than 7 bytes"):
        read_json(tmp_path / "a.json", 7)
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(OSError, match="it is a pipe"):
        read_json(tmp_path / "pipe.json", 100)


def test_fields_are_of_their_kind_or_refused_by_name() -> None:
    fields = Fields({"n": 3, "x": 2, "t": "a", "l": [1, 2], "in": {"k": True}}, "top")
    assert fields.whole("n", 1, 5) == 3
    assert fields.number("x", 0, 2) == 2.0
    assert fields.text("t", 1) == "a"
    assert fields.listed("l", 2, lambda value, name: whole_of(value, name, 0, 9)) == [1, 2]
    assert fields.whole("missing", 0, 1, default=None) is None
    for read, sentence in (
        (lambda: fields.whole("missing", 0, 1), "top.missing is missing"),
        (lambda: fields.whole("n", 4, 5), "top.n must be a whole number from 4 to 5, but got 3"),
        (lambda: fields.whole("t", 0, 5), "top.t must be a whole number from 0 to 5, but got 'a'"),
        (lambda: fields.table("in").whole("k", 0, 1), "top.in.k must be a whole number from 0 to 1, but got True"),
        (lambda: fields.table("n"), "top.n must be a table of names and values, but got 3"),
        (lambda: fields.text("t", 0), "top.t is a text of 1 characters; at most 0"),
        (lambda: fields.text("n", 9), "top.n must be a text, but got 3"),
        (lambda: fields.listed("n", 9, lambda v, n: v), "top.n must be a list, but got 3"),
        (lambda: fields.listed("l", 1, lambda v, n: v), "top.l has 2 values; at most 1"),
        (
            lambda: list_of([1, "b"], "l", 9, lambda v, n: number_of(v, n, 0, 1)),
            r"l\[1\] must be a number from 0 to 1, but got 'b'",
        ),
        (lambda: text_of("\ud800", "t", 9), "t is not Unicode text"),
        (lambda: number_of(float("nan"), "x", 0, 1), "x must be a number from 0 to 1, but got nan"),
        (lambda: number_of(10**400, "x", 0, 1), "x must be a number from 0 to 1"),
    ):
        with pytest.raises(BadSetting, match=sentence):
            read()


def test_a_value_that_doubles_itself_is_quoted_in_a_moment() -> None:
    value: Any = ()
    for _ in range(100):
        value = (value, value)
    with pytest.raises(BadSetting, match="n must be a whole number"):
        whole_of(value, "n", 0, 1)
