"""Numbers with bounds: what is inside is taken, everything else is refused with the bounds and what was given."""

import math
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest

from glancefocus.cli.main import read_number
from glancefocus.errors import BadSetting
from glancefocus.values import ANY_NUMBER, Range, check_fields, checked_number, from_plain, shortened

LOOKS = Range(1, 64)


@pytest.mark.parametrize(
    ("bounds", "kind", "words"),
    [
        (LOOKS, int, "a whole number from 1 to 64"),
        (Range(0, 2**63 - 1), int, "a whole number from 0 to 9,223,372,036,854,775,807"),
        (Range(0, 1), float, "a number from 0 to 1"),
        (Range(0.5, 1e18), float, "a number from 0.5 to 1,000,000,000,000,000,000"),
        (Range(0, 1, above=True), float, "a number above 0 and at most 1"),
        (Range(0, 1, below=True), float, "a number of at least 0 and below 1"),
        (Range(0, 1, above=True, below=True), float, "a number above 0 and below 1"),
        (ANY_NUMBER, int, "a whole number"),
        (ANY_NUMBER, float, "a number"),
    ],
)
def test_a_range_says_itself_in_words(bounds: Range, kind: type, words: str) -> None:
    assert bounds.words(kind) == words


@pytest.mark.parametrize("value", [1, 64, np.int64(5), np.uint8(7)])
def test_whole_numbers_within_the_bounds_are_taken_as_ints(value: Any) -> None:
    assert type(checked_number(int, LOOKS, value, "looks")) is int


@pytest.mark.parametrize(
    "value", [0, 65, -1, 10**30, 1.5, 2.0, math.nan, math.inf, True, "3", None, [3], np.float64(3), np.bool_(True), 1j]
)
def test_everything_else_is_refused_where_a_whole_number_is_wanted(value: Any) -> None:
    with pytest.raises(BadSetting, match="looks must be a whole number from 1 to 64, but got "):
        checked_number(int, LOOKS, value, "looks")


@pytest.mark.parametrize("value", [0, 1, 0.5, np.float32(0.25), 1e-300])
def test_numbers_within_the_bounds_are_taken_as_floats(value: Any) -> None:
    assert type(checked_number(float, Range(0, 1), value, "share")) is float


@pytest.mark.parametrize("value", [-1e-9, 1.0000001, math.nan, math.inf, -math.inf, 10**400, True, "0.5", None])
def test_everything_else_is_refused_where_a_number_is_wanted(value: Any) -> None:
    with pytest.raises(BadSetting, match="share must be a number from 0 to 1, but got "):
        checked_number(float, Range(0, 1), value, "share")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_without_bounds_is_finite_all_the_same(value: float) -> None:
    with pytest.raises(BadSetting, match="cost must be a number, but got "):
        checked_number(float, ANY_NUMBER, value, "cost")


@pytest.mark.parametrize(("text", "number"), [("5", 5), (" 5 ", 5), ("64.0", 64), ("1e1", 10), ("+7", 7)])
def test_written_whole_numbers_are_read(text: str, number: int) -> None:
    read = read_number(int, LOOKS, text, "--looks")
    assert (read, type(read)) == (number, int)


@pytest.mark.parametrize(
    "text", ["1.5", "0", "65", "nan", "inf", "-inf", "1e400", "9" * 5000, "", "two", "1,2", "0x10"]
)
def test_what_is_written_badly_or_out_of_bounds_is_refused_with_what_was_written(text: str) -> None:
    with pytest.raises(BadSetting) as caught:
        read_number(int, LOOKS, text, "--looks")
    assert str(caught.value).startswith("--looks must be a whole number from 1 to 64, but got ")
    assert len(str(caught.value)) < 150
    assert text[:20] in str(caught.value)


def test_the_largest_seed_is_read_exactly() -> None:
    most = 2**63 - 1
    assert read_number(int, Range(0, most), str(most), "--seed") == most
    with pytest.raises(BadSetting, match="but got 9223372036854775808"):
        read_number(int, Range(0, most), str(most + 1), "--seed")


def test_what_cannot_be_printed_is_escaped_in_a_sentence() -> None:
    assert shortened("a\nb\udc80\x1b[31m") == r"a\nb\udc80\x1b[31m"


@dataclass(frozen=True)
class Toy:
    """Settings with one number, one share and a list."""

    looks: Annotated[int, LOOKS] = 3
    share: Annotated[float, Range(0, 1)] | None = None
    sizes: tuple[Annotated[int, Range(8, 99)], ...] = (8,)

    def __post_init__(self) -> None:
        check_fields(self)


def test_fields_are_checked_however_settings_are_made() -> None:
    assert Toy(np.int64(4), 1, [9, 10]) == Toy(4, 1.0, (9, 10))  # type: ignore[arg-type]
    with pytest.raises(BadSetting, match="^looks must be a whole number from 1 to 64, but got 1.5"):
        Toy(1.5)  # type: ignore[arg-type]
    with pytest.raises(BadSetting, match="^share must be a number from 0 to 1, but got nan"):
        Toy(share=math.nan)
    with pytest.raises(BadSetting, match=r"^toy.sizes\[1\] must be a whole number from 8 to 99, but got 100"):
        from_plain(Toy, {"sizes": [8, 100]}, "toy")
