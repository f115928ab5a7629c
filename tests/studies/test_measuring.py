"""What studies compute from look tables, by hand-made runs."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from glancefocus.exits.table import LookTable
from glancefocus.studies.budgets import (
    accuracies_at,
    at_random,
    budget_curve,
    curves_figure,
    drawn_difference,
    look_columns,
)
from glancefocus.studies.curves import cheapest_at, envelope
from glancefocus.studies.pictures import Places, _shares
from glancefocus.studies.tables import hit_tables


def made_up_table() -> LookTable:
    """Four images; the glance is sure of the two that it answers correctly, the second look is right about all. Costs 1 and 3."""
    score = np.array([[0.9, 0.9], [0.8, 0.9], [0.2, 0.9], [0.1, 0.9]], dtype=np.float32)
    correct = np.array([[True, True], [True, True], [False, True], [False, True]])
    return LookTable(score, correct, np.array([1.0, 3.0]))


@dataclass
class MadeUp:
    """A finished run with a table; thresholds are chosen on the same images."""

    def table(self, score: str | None = None) -> LookTable:
        return made_up_table()

    def choosing(self, score: str | None = None) -> LookTable:
        return made_up_table()


RUN: Any = MadeUp()


def test_accuracy_within_a_budget_is_that_of_the_best_thresholds() -> None:
    # At 2.0 the two unsure images take the second look: everything is right. More cannot be spent than 3.
    assert accuracies_at(RUN, [1.0, 2.0, 3.0, 4.0, 5.0]) == [0.5, 1.0, 1.0, 1.0, None]


def test_a_curve_goes_from_the_glance_to_all_looks() -> None:
    curve = budget_curve(RUN)
    assert (curve[0]["mean_macs"], curve[0]["accuracy"]) == (1.0, 0.5)
    assert cheapest_at(curve, 1.0) == 2.0
    assert cheapest_at(curve, 1.01) is None


def test_random_exits_answer_as_well_as_all_images_do_after_that_look() -> None:
    # Three images of four stop after the glance, which is right about half of all images; one after the second look.
    assert at_random({"exits_per_look": [3, 1]}, [0.5, 1.0]) == pytest.approx(0.75 * 0.5 + 0.25 * 1.0)  # type: ignore[typeddict-item]


def test_solvers_are_compared_with_many_draws_of_the_images_that_choose() -> None:
    # The second look is right as often as the glance, so the geometric rule wastes the images that stop there; all else is alike.
    ranks = np.random.default_rng(0).permutation(200) / 200
    score = np.stack([ranks, ranks, np.full(200, 0.9)], axis=1).astype(np.float32)
    correct = np.stack([ranks > 0.5, ranks > 0.5, np.ones(200)], axis=1).astype(bool)
    table = LookTable(score, correct, np.array([1.0, 2.0, 3.0]))
    choosing, measuring = table.rows(np.arange(100)), table.rows(np.arange(100, 200))
    least, middle, most = drawn_difference(choosing, measuring, [1.0, 1.6, 3.0])
    assert (least, most) == (0.0, 0.0)
    assert middle > 0.05


def test_the_envelope_has_the_best_network_for_every_cost() -> None:
    one: Any = [{"mean_macs": 1.0, "accuracy": 0.5}, {"mean_macs": 4.0, "accuracy": 0.7}]
    other: Any = [{"mean_macs": 2.0, "accuracy": 0.4}, {"mean_macs": 3.0, "accuracy": 0.9}]
    assert envelope([one, other]) == ([1.0, 3.0], [0.5, 0.9])


def test_rewards_of_a_place_are_compared_with_the_glance_or_with_the_mean_of_all_places() -> None:
    places = Places(0.2, np.array([[0.4, 0.6], [0.8, 1.0]]))
    assert places.increment.ravel().tolist() == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert places.contrastive.ravel().tolist() == pytest.approx([-0.3, -0.1, 0.1, 0.3])
    assert _shares([places.increment]) == [1.0, 0.0, 0.0]  # every place is rewarded
    assert _shares([places.contrastive]) == [0.0, 0.0, 1.0]


@dataclass
class Aimed:
    """A finished run whose focus looks show the object this often; None: its place is unknown."""

    found: list[float] | None

    def hits(self) -> list[float] | None:
        return self.found


def test_hits_are_shown_only_where_the_place_of_the_object_is_known() -> None:
    known: Any = {"one": [Aimed([0.3, 0.2]), Aimed([0.5, 0.4])], "other": [Aimed([0.1, 0.0]), Aimed([0.1, 0.0])]}
    (table,) = hit_tables("hits", known, images=10)
    assert list(table.columns) == ["look 2", "look 3"]
    assert [row.mean(0) for row in table.rows] == pytest.approx([0.4, 0.1])
    unknown: Any = {"photographs": [Aimed(None)]}
    assert hit_tables("hits", {**known, **unknown}, images=10) == []


def test_the_axis_says_what_the_multiply_adds_are_of() -> None:
    curves = {"made up": budget_curve(RUN)}
    for words, figure in (("image", curves_figure(curves)), ("clip", curves_figure(curves, noun="clip"))):
        assert figure.axes[0].get_xlabel().startswith(f"multiply-adds per {words} (millions")


def test_columns_are_named_as_in_the_paper() -> None:
    assert look_columns(3) == ["t=1", "t=2", "t=3"]
