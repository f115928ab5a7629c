"""The verdict on hand-made tables, where the answer is known."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from glancefocus.evaluation.verdict import (
    MethodResult,
    Verdict,
    at_equal_cost,
    best_mix,
    conclusion_of,
    decide,
    images_for_a_decision,
    paired_interval,
)

FLAT = np.arange(1000) % 20  # 20 classes: always answering with the same one is right for 5 %


def answers(right: NDArray[np.bool_], macs: float, name: str = "backbone at 160 px") -> MethodResult:
    kind = "glancefocus" if name == "glancefocus" else "resized"
    return MethodResult(kind, name, right.astype(np.float64), np.full(len(right), macs))  # type: ignore[arg-type]


def right_on(first: int, count: int = 1000) -> NDArray[np.bool_]:
    """Right on this many images, wrong on the others."""
    return np.arange(count) < first


def verdict(ours: MethodResult, *rivals: MethodResult) -> Verdict:
    labels = FLAT[: len(ours.right)]
    fold = np.arange(len(labels)) % 5
    return decide(ours, rivals, labels, fold)


def test_it_is_worth_it_where_the_gain_at_equal_cost_is_above_zero_for_certain() -> None:
    given = verdict(
        answers(right_on(900), 130e6, "glancefocus"),
        answers(right_on(800), 130e6, "backbone at 128 px"),
        answers(right_on(950), 390e6, "backbone at 224 px"),
        answers(right_on(500), 10e6, "backbone at 32 px"),
    )
    # Mixing 128 px and 224 px costs more than 130M; so resizing has 80 %, and differs on 100 of 1,000 images, all one way.
    assert given.outcome == "worth it"
    assert given.difference == pytest.approx(0.1, abs=1e-12)
    assert 0.08 < given.difference_low < 0.1 < given.difference_high < 0.12  # type: ignore[operator]
    assert given.instead is None
    assert given.sentence.startswith("Worth it here: glancefocus has 90.0 % (88 to 92) with 130M multiply-adds")
    assert "backbone at 128 px" in given.sentence


def test_more_time_in_spite_of_fewer_multiply_adds_is_reported() -> None:
    ours = replace(answers(right_on(900), 130e6, "glancefocus"), ms=12.0)
    rival = answers(right_on(800), 130e6, "backbone at 128 px")
    warning = "; but on this device it takes 12.0 ms per image, the backbone at 128 px 8.0 ms."
    assert verdict(ours, replace(rival, ms=8.0)).sentence.endswith(warning)
    assert "ms" not in verdict(ours, replace(rival, ms=11.5)).sentence


def test_it_is_not_worth_it_if_resizing_is_better_and_the_sentence_recommends_what_to_use() -> None:
    given = verdict(
        answers(right_on(692), 190e6, "glancefocus"),
        answers(right_on(825), 196e6, "backbone at 160 px"),
        answers(right_on(760), 125e6, "backbone at 128 px"),
    )
    # At 190M: 65/71 of the images at 160 px, the others at 128 px.
    assert given.rival_accuracy == pytest.approx((65 * 0.825 + 6 * 0.76) / 71, abs=1e-12)
    assert given.outcome == "not worth it"
    assert given.instead == "backbone at 160 px"
    assert given.sentence.startswith(
        "Not worth it here: glancefocus has 69.2 % (66 to 72) with 190M multiply-adds, 12.8 points less (10."
    )
    assert "than resized images at that cost (82.0 %; nearest: the backbone at 160 px)." in given.sentence
    assert given.sentence.endswith("Use the backbone at 160 px: 82.5 % (80 to 85) with 196M multiply-adds.")


def test_a_difference_that_could_be_chance_is_undecided() -> None:
    ours, theirs = right_on(60, 72), right_on(60, 72)
    ours[60:66] = True  # six images that only glancefocus gets
    ours[:4] = False  # and four that only the backbone gets
    given = verdict(answers(ours, 2e8, "glancefocus"), answers(theirs, 2e8))
    assert given.outcome == "undecided"
    assert given.difference == pytest.approx(2 / 72, abs=1e-12)
    assert given.images_needed is not None
    assert given.images_needed > 72
    assert f"About {given.images_needed:,} images are needed for a decision." in given.sentence
    # The same shares in as many images decide.
    times = given.images_needed // 72 + 1
    again = decide(
        answers(np.tile(ours, times), 2e8, "glancefocus"),
        [answers(np.tile(theirs, times), 2e8)],
        np.tile(FLAT[:72], times),
        np.arange(72 * times) % 5,
    )
    assert again.outcome == "worth it"


def test_a_difference_within_one_point_for_certain_is_a_tie() -> None:
    ours, rival = answers(right_on(900), 1e8, "glancefocus"), answers(right_on(900), 1e8)
    given = verdict(ours, rival)
    assert given.outcome == "tie"
    assert given.difference == 0
    assert given.instead is None
    assert given.images_needed is None
    # Without a difference the interval is 1.96 / 1002 on either side.
    assert given.sentence == (
        "A tie here: glancefocus has 90.0 % (88 to 92) with 100M multiply-adds, the same accuracy as resized images at that cost "
        "(90.0 %; nearest: the backbone at 160 px): a difference of +0.0 points (-0.2 to +0.2). Resizing is simpler."
    )
    slower = verdict(replace(ours, ms=12.0), replace(rival, ms=8.0)).sentence
    assert slower.endswith(
        "On this device glancefocus takes 12.0 ms per image, the backbone at 160 px 8.0 ms: "
        "resizing is cheaper to run, and simpler."
    )
    faster = verdict(replace(ours, ms=4.0), replace(rival, ms=8.0)).sentence
    assert faster.endswith("8.0 ms: glancefocus is cheaper to run, resizing is simpler.")
    alike = verdict(replace(ours, ms=8.1), replace(rival, ms=8.0)).sentence
    assert alike.endswith("Both take about 8.1 ms per image on this device; resizing is simpler.")


def test_two_standard_errors_are_those_of_the_paired_difference() -> None:
    ours, rival = right_on(60, 100), right_on(40, 100)  # 20 of 100 images differ, all in one direction
    found = at_equal_cost(answers(ours, 1e8, "glancefocus"), [answers(rival, 1e8)], FLAT[:100], np.arange(100) % 5)
    assert found.difference == pytest.approx(0.2, abs=1e-12)
    assert found.two_standard_errors == pytest.approx(2 * (0.2 * 0.8 / 100) ** 0.5, abs=1e-12)
    assert found.mix_cost == 1e8


def test_rivals_may_be_allowed_another_cost_than_that_of_glancefocus() -> None:
    rivals = [answers(right_on(500), 100.0), answers(right_on(900), 300.0)]
    labels, fold = FLAT, np.arange(1000) % 5
    found = at_equal_cost(answers(right_on(600), 100.0, "glancefocus"), rivals, labels, fold, 200.0)
    assert found.difference == pytest.approx(0.6 - 0.7, abs=1e-12)
    assert found.mix_cost == pytest.approx(200.0)


def test_ten_images_without_a_difference_prove_nothing() -> None:
    assert verdict(answers(right_on(10, 10), 1e8, "glancefocus"), answers(right_on(10, 10), 1e8)).outcome == "undecided"


def test_a_rival_that_costs_more_counts_only_as_a_share_of_the_images() -> None:
    expensive = answers(right_on(900), 400e6, "backbone at 224 px")
    given = verdict(answers(right_on(600), 100e6, "glancefocus"), expensive)
    # A quarter of the images at 224 px, the others are guessed: 5 % of them are right.
    assert given.rival_accuracy == pytest.approx(0.25 * 0.9 + 0.75 * 0.05, abs=1e-12)
    assert given.outcome == "worth it"


def test_a_network_that_costs_more_than_its_backbone_is_compared_with_the_backbone() -> None:
    given = verdict(answers(right_on(850), 500e6, "glancefocus"), answers(right_on(900), 400e6, "backbone at 224 px"))
    assert given.rival_accuracy == pytest.approx(0.9, abs=1e-12)
    assert given.instead == "backbone at 224 px"


def test_the_luckiest_of_many_rivals_is_not_taken_for_the_best() -> None:
    """Of rivals that guess, the luckiest is no better than the others on images that did not choose it."""
    generator = np.random.default_rng(0)
    rivals = [answers(generator.random(1000) < 0.5, 1e8, f"rival {i}") for i in range(40)]
    luckiest = max(each.accuracy for each in rivals)
    given = verdict(answers(generator.random(1000) < 0.5, 1e8, "glancefocus"), *rivals)
    assert given.rival_accuracy == pytest.approx(luckiest)  # as the table of the rivals shows
    assert given.outcome == "undecided"  # although the luckiest alone is better for certain


def test_few_images_do_not_make_rivals_look_bad_by_choosing_them_on_the_others() -> None:
    """Rivals that name one class each: the best on the other images is the worst on those that are left."""
    labels = np.arange(12) % 3
    rivals = [answers(labels == each, 1e8, f"rival {each}") for each in range(3)]
    given = decide(answers(labels == 0, 1e8, "glancefocus"), rivals, labels, np.arange(12) // 4)
    assert given.outcome == "undecided"


def test_the_best_mix_is_a_point_of_the_upper_hull() -> None:
    rivals = [
        answers(right_on(500), 100.0),
        answers(right_on(550), 200.0),  # below the line from 100 to 300
        answers(right_on(900), 300.0),
    ]
    everything = np.ones(1000, dtype=np.bool_)
    assert best_mix(rivals, 200.0, everything) == {0: 0.5, 2: 0.5}
    assert best_mix(rivals, 100.0, everything) == {0: 1.0}
    assert best_mix(rivals, 1e9, everything) == {2: 1.0}


def test_the_interval_is_the_one_of_agresti_and_min() -> None:
    # b = 20, c = 10, N = 100: (10 +- 1.96 sqrt(31 - 100 / 102)) / 102
    differences = np.array([1.0] * 20 + [-1.0] * 10 + [0.0] * 70)
    mean, low, high = paired_interval(differences)
    assert mean == pytest.approx(0.1, abs=1e-12)
    half = 1.959964 * (31 - 100 / 102) ** 0.5 / 102
    assert (low, high) == (pytest.approx(10 / 102 - half, abs=1e-12), pytest.approx(10 / 102 + half, abs=1e-12))


def test_the_interval_holds_the_true_difference_in_about_95_of_100_samples() -> None:
    generator, held = np.random.default_rng(1), 0
    for _ in range(400):
        drawn = generator.choice([1.0, -1.0, 0.0], size=80, p=[0.15, 0.05, 0.8])
        _, low, high = paired_interval(drawn)
        held += low <= 0.1 <= high
    assert 370 <= held <= 395


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [
        (0.001, 0.2, "worth it"),
        (0.0, 0.2, "undecided"),
        (-0.1, 0.0099, "not worth it"),
        (-0.1, 0.01, "undecided"),
        (-0.0099, 0.0099, "tie"),
        (0.001, 0.009, "tie"),
        (-0.01, 0.0099, "not worth it"),
        (0.001, 0.01, "worth it"),
    ],
)
def test_the_outcome_follows_from_the_interval(low: float, high: float, outcome: str) -> None:
    assert conclusion_of(low, high) == outcome


def test_the_number_of_images_needed_is_finite_even_without_a_difference() -> None:
    # Half a point is the farthest from both decisions: a difference of 0.5 points, half width 5 points on 100 images.
    assert images_for_a_decision(0.005, 0.05, 100) == 21_000  # 100 x (0.05 x 1.4294 / 0.005)^2 = 20,432
    assert images_for_a_decision(0.05, 0.05, 100) == 210  # 204
