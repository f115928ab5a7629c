"""Rows, tables and the comparison with the paper's order, on numbers worked out by hand."""

import math

import pytest

from glancefocus.studies.results import Row, Table, agreement, csv_rows, difference, markdown_table


def test_a_row_has_the_mean_and_the_deviation_over_its_seeds() -> None:
    row = Row("one", [[0.5, None], [0.7, 0.4]])
    assert row.mean(0) == pytest.approx(0.6)
    assert row.deviation(0) == pytest.approx(math.sqrt(0.02))  # two values 0.2 apart
    assert (row.mean(1), row.deviation(1)) == (0.4, None)  # one seed has no deviation
    assert row.mean(2) is None


def test_the_standard_error_is_that_of_the_images_if_seeds_agree_by_chance() -> None:
    # Both differences are 0.2, so seeds have no variance; with 100 images a share of 0.5 has a variance of 0.25 / 100.
    one, other = Row("one", [[0.6], [0.6]]), Row("other", [[0.4], [0.4]])
    gap, error = difference(one, other, 0, images=100)
    assert gap == pytest.approx(0.2)
    assert error == pytest.approx(math.sqrt(2 * 0.24 / 200))


def test_the_standard_error_is_that_of_the_seeds_if_it_is_larger() -> None:
    # Differences 0.3 and 0.1: variance 0.02, divided by two seeds.
    gap, error = difference(Row("one", [[0.7], [0.5]]), Row("other", [[0.4], [0.4]]), 0, images=10**6)
    assert gap == pytest.approx(0.2)
    assert error == pytest.approx(0.1)


def three_rows(*shares: float) -> Table:
    papers = (0.60, 0.70, 0.80)
    rows = [Row(name, [[share]], [paper]) for name, share, paper in zip("abc", shares, papers, strict=True)]
    return Table("made-up", "Made up", ["t=1"], rows, images=10_000, ordered=True)


def test_rows_in_the_papers_order_agree() -> None:
    found = agreement(three_rows(0.2, 0.4, 0.6))
    assert (found.pairs, found.otherwise) == (3, {})
    assert found.sentence.endswith("3 of them have the paper's sign.")


def test_a_pair_in_another_order_is_named_only_if_it_differs_clearly() -> None:
    # a and b differ by half a point, about one standard error; c is clearly below both, and above them in the paper.
    found = agreement(three_rows(0.500, 0.505, 0.300))
    assert found.pairs == 2
    assert found.otherwise == {"a above c": ["t=1: 20.0"], "b above c": ["t=1: 20.5"]}
    assert found.sentence.endswith(
        "0 of them have the paper's sign. The others: a above c (t=1: 20.0 points); b above c (t=1: 20.5 points)."
    )


def test_a_table_has_the_papers_figures_below_ours() -> None:
    rows = [Row("ours", [[0.5, 0.75], [0.7, None]], [0.6962, None], [0.0013])]
    table = Table("t", "T", ["t=1", "t=2"], rows, images=500)
    assert markdown_table(table).splitlines() == [
        "|  | t=1 | t=2 |",
        "| --- | ---: | ---: |",
        "| ours | 60.0 ± 14.1 | 75.0 |",
        "| the paper | 69.62 ± 0.13 | -- |",
    ]
    assert csv_rows(table)[1] == {
        "row": "ours", "column": "t=2", "unit": "share", "mean": 0.75, "deviation": None, "seeds": 1,
        "paper": None, "paper_deviation": None,
    }  # fmt: skip
