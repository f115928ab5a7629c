"""Which images are held out: enough of them that figures mean something, some of every class, never the last one of a class."""

from collections import Counter
from pathlib import Path

import pytest

from glancefocus.data.classes import small_classes
from glancefocus.data.split_record import Content, hold_out, without_copies
from glancefocus.data.splits import Row
from glancefocus.errors import BadData


def rows(*counts: int) -> list[Row]:
    return [("train", Path(f"{label}/{n}.png"), label) for label, count in enumerate(counts) for n in range(count)]


def held(found: list[Row]) -> dict[int, int]:
    counts = Counter(label for split, _, label in found if split == "val")
    return {label: counts[label] for label in sorted({label for _, _, label in found})}


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((500, 500), (100, 100)),  # a fifth is 200
        ((400, 400), (80, 80)),  # a fifth is 160
        ((80,) * 6, (25,) * 6),  # a fifth would be 96, so 150 of 480
        ((77,) * 6, (25,) * 6),  # a fifth would be 92, so 150 of 462
        ((225, 225), (75, 75)),  # 150 are exactly a third
        ((60,) * 6, (20,) * 6),  # a third of 360
        ((20, 10), (7, 3)),  # a third of 30
        ((2, 1, 6), (1, 0, 2)),  # the class of one keeps it
        ((1, 1, 100), (0, 0, 33)),  # a third of 102 would be 34; a class of one gives none
    ],
)
def test_small_sets_hold_out_up_to_a_third_and_large_ones_a_fifth(
    counts: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    found = hold_out(rows(*counts), None, 0)
    assert tuple(held(found).values()) == expected
    assert [(file, label) for _, file, label in found] == [(file, label) for _, file, label in rows(*counts)]


@pytest.mark.parametrize(("share", "expected"), [(0.2, (2, 4)), (0.5, (5, 10)), (0.01, (1, 1)), (0.99, (9, 19))])
def test_a_share_that_is_asked_for_is_held_out_of_each_class(share: float, expected: tuple[int, ...]) -> None:
    assert tuple(held(hold_out(rows(10, 20), share, 0)).values()) == expected


def test_the_seed_decides_which_ones_and_repeats() -> None:
    one, again, other = (hold_out(rows(20, 20), None, seed) for seed in (0, 0, 1))
    assert one == again != other
    assert held(one) == held(other)


def test_images_of_other_splits_stay_where_they_are() -> None:
    test: Row = ("test", Path("t.png"), 0)
    assert test in hold_out([*rows(5, 5), test], None, 0)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
def test_a_share_that_leaves_nothing_is_refused(share: float) -> None:
    with pytest.raises(BadData, match="val_share must be above 0 and below 1"):
        hold_out(rows(5, 5), share, 0)


def test_classes_with_too_few_images_are_reported() -> None:
    found = hold_out(rows(30, 1, 2, 0), None, 0)
    none, few = small_classes(found, ("ant", "bee", "cow", "dog"), "images")
    assert none == "no training images of the class 'dog': the network cannot learn it."
    assert few.startswith("fewer than 10 images of 2 classes, 'bee' (1), 'cow' (2): too few to learn from")
    assert small_classes(hold_out(rows(30, 10), None, 0), ("ant", "bee"), "images") == []


def test_held_out_copies_of_training_images_are_left_out_and_reported() -> None:
    table: list[Row] = [("train", Path("a"), 0), ("val", Path("b"), 0), ("val", Path("c"), 1), ("test", Path("d"), 1)]
    contents: dict[Path, Content | None] = {
        Path("a"): Content(1, "1"),
        Path("b"): Content(1, "1"),
        Path("c"): Content(1, "3"),
        Path("d"): None,
    }
    kept, sentences = without_copies(table, contents, "images")
    assert [file.name for _, file, _ in kept] == ["a", "c", "d"]
    assert sentences == ["1 of 2 images of val are copies of training images and are left out, such as b."]
    kept, sentences = without_copies(table, {**contents, Path("c"): Content(1, "1")}, "images")
    assert kept == table
    assert sentences == [
        "all 2 images of val are copies of training images: results on them say nothing about new images."
    ]
