"""Names from outside are shown as text, and nothing in them is obeyed: by terminals, Markdown, HTML or spreadsheets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glancefocus.values import csv_cell, is_writable_text, lines_kept, markdown, one_line


def test_control_characters_are_shown_and_not_obeyed() -> None:
    assert one_line("cat\x1b[2J\r\n\x07") == r"cat\x1b[2J\r\n\x07"
    assert (
        one_line("a\u202ebc\u2028d\ud800") == r"a\u202ebc\u2028d\ud800"
    )  # turned round, a line break, half a character
    assert one_line("\x9b31m") == r"\x9b31m"  # the same command as an escape and a bracket, in one byte


def test_letters_of_all_languages_stay() -> None:
    for text in ("fjärilar", "猫", "قط", "👨\u200d👩\u200d👧", "a b"):
        assert one_line(text) == text


def test_long_text_is_cut() -> None:
    assert one_line("x" * 100, 10) == "xxxxxxx..."


def test_line_breaks_of_our_own_stay() -> None:
    assert lines_kept("one\ntwo\x1b[0m") == "one\ntwo\\x1b[0m"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("# big", r"\# big"),
        ("a\n# big", r"a\\n# big"),
        ("a | b", r"a \| b"),
        ("`rm -rf`", r"\`rm -rf\`"),
        ("<script>x</script>&", "&lt;script&gt;x&lt;/script&gt;&amp;"),
        ("[x](http://y)", r"\[x\](http\://y)"),
        ("**b** _i_ ~s~", r"\*\*b\*\* \_i\_ \~s\~"),
        ("1. one", r"1\. one"),
        ("- one", r"\- one"),
        ("0.5 - 1", "0.5 - 1"),
    ],
)
def test_markdown_shows_the_text_itself(text: str, shown: str) -> None:
    assert markdown(text) == shown


@given(st.text())
def test_whatever_the_text_it_stays_on_its_line(text: str) -> None:
    for shown in (one_line(text), markdown(text), csv_cell(text)):
        assert len(shown.splitlines()) <= 1
        assert "\x1b" not in shown
        shown.encode("utf-8")
    assert not set("<>") & set(markdown(text))


@pytest.mark.parametrize("text", ["=1+1", "+cmd", "-1+1", "@SUM(A1)", "-", "\t=1"])
def test_a_spreadsheet_does_not_take_a_name_for_a_formula(text: str) -> None:
    assert not csv_cell(text).startswith(("=", "+", "-", "@", "\t"))
    for text in ("cat", "-1", "+0.5"):
        assert csv_cell(text) == text


def test_names_that_are_not_utf8_are_known() -> None:
    assert is_writable_text("katze 猫")
    assert not is_writable_text(b"caf\xe9".decode("utf-8", "surrogateescape"))
