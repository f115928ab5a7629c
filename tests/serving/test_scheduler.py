"""Looks that are shared by many requests: which rows are computed next, and that this never changes an answer."""

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from glancefocus.bundle.bundle import Bundle
from glancefocus.bundle.predicting import Viewed
from glancefocus.loop import Deadline
from glancefocus.outcome import Outcome
from glancefocus.serving.jobs import Job, Stopping
from glancefocus.serving.scheduler import Answered, LookScheduler, LookTimes, Pool


class Clock:
    """Seconds that pass only when they are told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def pictures() -> torch.Tensor:
    """Noise of different brightness and contrast, so that the confidences of a network without training differ."""
    generator = torch.Generator().manual_seed(3)
    noise = torch.rand(24, 3, 64, 64, generator=generator)
    bright, contrast = torch.rand(2, 24, 3, 1, 1, generator=generator)
    return (255 * (bright + contrast * (noise - bright))).to(torch.uint8)


def between(bundle: Bundle, pictures: torch.Tensor, share: float) -> list[float]:
    """A threshold for each look but the last, below which this share of the pictures lies, far from every single one."""
    found = []
    for scores in bundle.predict(pictures, looks=3).confidence_after.T[:2]:
        ordered = scores.sort().values
        near = range(int(share * 24) - 4, int(share * 24) + 4)
        place = max(near, key=lambda row: float(ordered[row + 1] - ordered[row]))
        found.append(float(ordered[place] + ordered[place + 1]) / 2)
    return found


@pytest.fixture
def bundle(small_bundle: Callable[..., Bundle], pictures: torch.Tensor) -> Bundle:
    bundle = small_bundle()
    bundle.thresholds = (*between(bundle, pictures, 0.5), 0.0)
    return bundle


@pytest.fixture
def made(bundle: Bundle) -> Callable[..., LookScheduler]:
    def make(of: Bundle = bundle, **changes: Any) -> LookScheduler:
        return LookScheduler(of, Stopping(of.exit_rule()), clock=Clock(), **changes)

    return make


def job(scheduler: LookScheduler, picture: torch.Tensor, **more: Any) -> Job:
    return Job(Viewed(picture), scheduler.clock(), **more)


def run(scheduler: LookScheduler) -> Iterator[Answered]:
    while scheduler.pending:
        yield from scheduler.step()


def rows_of(answered: list[Answered], jobs: list[Job]) -> list[Any]:
    """The answer of every job, in the order of the jobs."""
    found = {}
    for group in answered:
        for one, answer in zip(group.jobs, group.outcome.answers(3), strict=True):
            found[id(one)] = answer
    assert len(found) == len(jobs)
    return [found[id(one)] for one in jobs]


def assert_same(answers: list[Any], offline: Outcome) -> None:
    """Equal in every field; numbers up to rounding, because batches of other sizes are summed in another order."""
    expected = offline.answers(3)
    for ours, theirs in zip(answers, expected, strict=True):
        for name in ("label", "looks", "sure", "threshold", "patch_px", "views", "cost_macs", "notes"):
            assert ours[name] == theirs[name]
        assert ours["confidence"] == pytest.approx(theirs["confidence"], abs=1e-5)
        for mine, other in zip(ours["where"], theirs["where"], strict=True):
            assert mine == pytest.approx(other, abs=1e-5)
        for mine, other in zip(ours["boxes"], theirs["boxes"], strict=True):
            assert mine == pytest.approx(other, abs=1)


@pytest.mark.parametrize("batching", ["look", "request"])
def test_answers_are_those_of_predict_whatever_is_computed_together(
    bundle: Bundle, pictures: torch.Tensor, made: Callable[..., LookScheduler], batching: str
) -> None:
    scheduler = made(batching=batching, full_batch=4)
    arrivals = random.Random(5)
    jobs: list[Job] = []
    answered: list[Answered] = []
    while len(jobs) < len(pictures):
        for picture in pictures[len(jobs) : len(jobs) + arrivals.randint(0, 3)]:
            jobs.append(job(scheduler, picture))
            scheduler.add(jobs[-1])
        scheduler.clock.now += 0.01
        answered += scheduler.step()
    answered += run(scheduler)
    offline = bundle.predict(pictures)
    assert sorted(set(offline.looks.tolist())) == [1, 2, 3]  # the thresholds make some pictures stop after every look
    assert_same(rows_of(answered, jobs), offline)


def test_every_picture_stops_by_its_own_thresholds(
    bundle: Bundle, pictures: torch.Tensor, made: Callable[..., LookScheduler]
) -> None:
    scheduler = made(full_batch=32)
    asked: list[dict[str, Any]] = [{}, {"thresholds": between(bundle, pictures, 0.3)}, {"looks": 2}, {"looks": 3}]
    rules = [None, *(Stopping(bundle.exit_rule(**each)) for each in asked[1:])]
    jobs = [job(scheduler, picture, stopping=rules[row % 4]) for row, picture in enumerate(pictures)]
    for one in jobs:
        scheduler.add(one)
    answers = rows_of(list(run(scheduler)), jobs)
    for number, options in enumerate(asked):
        assert_same(answers[number::4], bundle.predict(pictures[number::4], **options))


def test_several_candidate_views_are_chosen_by_the_rule_of_each_row(
    small_bundle: Callable[..., Bundle], pictures: torch.Tensor, made: Callable[..., LookScheduler]
) -> None:
    bundle = small_bundle(focus=("32", "whole@48"))
    low, high = between(bundle, pictures, 0.3)[0], between(bundle, pictures, 0.7)[0]
    bundle.thresholds = ((low, high), (low, high), (0.0, 0.0))
    scheduler = made(bundle, full_batch=32)
    other = [[high, low], [1.0, low]]
    stopping = Stopping(bundle.exit_rule(thresholds=other))
    jobs = [job(scheduler, picture, stopping=stopping if row % 2 else None) for row, picture in enumerate(pictures)]
    for one in jobs:
        scheduler.add(one)
    answers = rows_of(list(run(scheduler)), jobs)
    assert_same(answers[::2], bundle.predict(pictures[::2]))
    assert_same(answers[1::2], bundle.predict(pictures[1::2], thresholds=other))
    assert len({view for answer in answers for view in answer["views"]}) == 2


def test_views_come_in_their_order_whatever_the_rule_of_each_row_is(
    small_bundle: Callable[..., Bundle], pictures: torch.Tensor, made: Callable[..., LookScheduler]
) -> None:
    bundle = small_bundle(focus=("0.5@16", "0.25@16"), zoom=True)
    scheduler = made(bundle, full_batch=32)
    jobs = [
        job(scheduler, picture, stopping=Stopping(bundle.exit_rule(thresholds=[1 + row % 2, 1])))
        for row, picture in enumerate(pictures)
    ]
    for one in jobs:
        scheduler.add(one)
    answers = rows_of(list(run(scheduler)), jobs)
    assert_same(answers, bundle.predict(pictures))
    assert {tuple(answer["views"]) for answer in answers} == {("0.5@16", "0.25@16")}


def test_a_single_picture_is_computed_at_once(made: Callable[..., LookScheduler], pictures: torch.Tensor) -> None:
    scheduler = made(full_batch=32)
    scheduler.add(job(scheduler, pictures[0]))
    scheduler.step()
    assert scheduler.last_step is not None
    assert (scheduler.last_step.look, scheduler.last_step.rows) == (1, 1)


def test_nothing_is_computed_where_nothing_waits(made: Callable[..., LookScheduler]) -> None:
    scheduler = made()
    assert scheduler.step() == []
    assert scheduler.last_step is None


def test_a_pool_is_worth_the_answers_that_a_second_of_its_look_brings() -> None:
    times = LookTimes(fixed_s=0.02, row_s=0.01, exits=0.5)
    # 4 of 8 rows are expected to stop, after 100 ms; they have waited for half of the patience.
    assert Pool(1, 8, since=10.0).worth(10.05, times, patience_s=0.1) == pytest.approx(8 * 0.5 * 1.5**3 / 0.1)
    assert Pool(1, 8, since=10.0).worth(9.0, times, patience_s=0.1) == pytest.approx(40)  # never waited less than 0


def test_times_of_a_look_come_from_one_row_and_from_many() -> None:
    times = LookTimes.measured(one_s=0.030, many_s=0.170, many=8)  # 20 ms for each row more, so 10 ms beside them
    assert (times.fixed_s, times.row_s) == (pytest.approx(0.010), pytest.approx(0.020))
    assert times.seconds(3) == pytest.approx(0.070)
    assert LookTimes.measured(one_s=0.030, many_s=0.300, many=8).fixed_s == 0.0  # many rows were slower than one by one
    assert LookTimes.measured(one_s=0.030, many_s=0.030, many=1).row_s == pytest.approx(0.030)


@pytest.mark.parametrize(("fixed_s", "rows"), [(0.0, 1), (0.005, 5), (0.1, 90)])
def test_a_batch_is_full_when_the_fixed_cost_is_a_tenth_of_it(fixed_s: float, rows: int) -> None:
    assert LookTimes(fixed_s=fixed_s, row_s=0.01).full_batch() == rows


def test_exit_shares_follow_the_rows_that_were_computed() -> None:
    times = LookTimes(exits=0.5)
    times.stopped(8, of=8)
    assert times.exits == pytest.approx(1 - 0.5 * math.exp(-8 / 200))
    for _ in range(200):
        times.stopped(2, of=8)
    assert times.exits == pytest.approx(0.25, abs=0.001)


def test_a_short_look_that_answers_many_comes_before_a_long_one_until_that_has_waited(
    made: Callable[..., LookScheduler], pictures: torch.Tensor
) -> None:
    glance, second, third = LookTimes(0.0, 0.010, 0.6), LookTimes(0.0, 0.030, 0.9), LookTimes(0.0, 0.030, 1.0)
    scheduler = made(patience_ms=100, times=[glance, second, third])
    never = Stopping(scheduler.bundle.exit_rule(looks=3))
    scheduler.add(job(scheduler, pictures[0], stopping=never))
    scheduler.step()
    glance.exits = 0.6
    scheduler.clock.now = 0.02
    scheduler.add(job(scheduler, pictures[1], stopping=never))
    assert scheduler.next_look(0.02) == 0  # 0.6 / 10 ms = 60 a second against 1.2 x 1.2 x 1.2 x 0.9 / 30 ms = 52
    for one in scheduler.jobs()[:1]:
        one.came = 0.05
    assert scheduler.next_look(0.05) == 1  # 60 against 1.5 x 1.5 x 1.5 x 0.9 / 30 ms = 101


def test_looks_that_cost_nothing_beside_their_rows_are_computed_row_by_row(
    made: Callable[..., LookScheduler], pictures: torch.Tensor
) -> None:
    scheduler = made(times=[LookTimes(0.0, 0.01), LookTimes(0.0, 0.01), LookTimes(0.0, 0.01)])
    for picture in pictures[:3]:
        scheduler.add(job(scheduler, picture))
    scheduler.step()
    assert scheduler.last_step is not None
    assert scheduler.last_step.rows == 1


def test_the_deeper_of_two_looks_that_are_worth_the_same_comes_first(
    made: Callable[..., LookScheduler], pictures: torch.Tensor
) -> None:
    same = [LookTimes(exits=0.5), LookTimes(exits=0.5), LookTimes(exits=0.5)]
    scheduler = made(times=same)
    never = Stopping(scheduler.bundle.exit_rule(looks=3))
    scheduler.add(job(scheduler, pictures[0], stopping=never))
    scheduler.step()
    same[0].exits = 0.5
    scheduler.add(job(scheduler, pictures[1], stopping=never))
    assert scheduler.next_look(0.0) == 1


def test_a_near_deadline_counts_as_time_that_was_waited(
    made: Callable[..., LookScheduler], pictures: torch.Tensor
) -> None:
    times = [LookTimes(0.0, 0.01, 0.6), LookTimes(0.0, 0.01, 0.4), LookTimes()]
    scheduler = made(patience_ms=100, times=times)
    never = Stopping(scheduler.bundle.exit_rule(looks=3))
    # It must be answered within 10 ms, as if it had waited for 90 of 100 ms already: 1.9 x 1.9 x 1.9 x 0.4 against 1 x 0.6.
    scheduler.add(job(scheduler, pictures[0], stopping=never, deadline=Deadline(scheduler.clock, 0.0, 0.010)))
    scheduler.step()
    times[0].exits = 0.6
    scheduler.add(job(scheduler, pictures[1], stopping=never))
    assert scheduler.next_look(0.0) == 1


def test_a_batch_is_never_larger_than_full(made: Callable[..., LookScheduler], pictures: torch.Tensor) -> None:
    scheduler = made(full_batch=4)
    for picture in pictures:
        scheduler.add(job(scheduler, picture))
    while scheduler.pending:
        scheduler.step()
        assert scheduler.last_step is not None
        assert scheduler.last_step.rows <= 4


def test_rows_that_stayed_together_take_a_look_in_smaller_batches_where_that_is_as_fast(
    bundle: Bundle, made: Callable[..., LookScheduler], pictures: torch.Tensor
) -> None:
    # Ten rows at the second look would take 300 ms in one step, in which no other picture is answered.
    scheduler = made(times=[LookTimes(0.1, 0.01), LookTimes(0.0, 0.03), LookTimes(0.01, 0.03)])
    never = Stopping(bundle.exit_rule(looks=3))
    jobs = [job(scheduler, picture, stopping=never) for picture in pictures[:10]]
    for one in jobs:
        scheduler.add(one)
    steps, answered = [], []
    while scheduler.pending:
        answered += scheduler.step()
        assert scheduler.last_step is not None
        steps.append((scheduler.last_step.look, scheduler.last_step.rows))
    assert steps[0] == (1, 10)
    assert {rows for look, rows in steps if look == 2} == {1}
    assert max(rows for look, rows in steps if look == 3) <= 3
    assert_same(rows_of(answered, jobs), bundle.predict(pictures[:10], looks=3))


def test_a_picture_whose_deadline_passes_while_it_waits_is_answered_without_another_look(
    made: Callable[..., LookScheduler], pictures: torch.Tensor
) -> None:
    scheduler = made(full_batch=32)
    never = Stopping(scheduler.bundle.exit_rule(looks=3))
    late = job(scheduler, pictures[0], stopping=never, deadline=Deadline(scheduler.clock, 0.0, 1.0))
    other = job(scheduler, pictures[1], stopping=never)
    scheduler.add(late)
    scheduler.add(other)
    assert scheduler.step() == []
    scheduler.clock.now = 1.5
    answered = scheduler.step()
    assert [group.jobs for group in answered] == [[late]]
    assert answered[0].outcome.looks.tolist() == [1]
    assert answered[0].outcome.stopped(0) == "out of time"
    assert [group.outcome.looks.tolist() for group in run(scheduler)] == [[3]]


def test_cancelled_pictures_take_no_more_looks(made: Callable[..., LookScheduler], pictures: torch.Tensor) -> None:
    scheduler = made(full_batch=32)
    never = Stopping(scheduler.bundle.exit_rule(looks=3))
    gone, gone_early, stays = (job(scheduler, picture, stopping=never) for picture in pictures[:3])
    scheduler.add(gone)
    scheduler.add(stays)
    scheduler.step()
    gone.cancelled = True
    gone_early.cancelled = True
    scheduler.add(gone_early)
    scheduler.step()
    assert scheduler.last_step is not None
    assert (scheduler.last_step.look, scheduler.last_step.rows) == (2, 1)
    assert scheduler.pending == 1


def test_request_batching_begins_the_next_batch_after_the_last_answer(
    made: Callable[..., LookScheduler], pictures: torch.Tensor
) -> None:
    scheduler = made(batching="request", full_batch=2)
    always, never = (Stopping(scheduler.bundle.exit_rule(looks=looks)) for looks in (1, 3))
    early, slow, other = (job(scheduler, picture) for picture in pictures[:3])
    early.stopping, slow.stopping, other.stopping = always, never, always
    for one in (early, slow, other):
        scheduler.add(one)
    assert scheduler.step() == []  # one has stopped, but its batch has not ended
    assert scheduler.step() == []
    assert {id(one) for group in scheduler.step() for one in group.jobs} == {id(early), id(slow)}
    assert [group.jobs for group in scheduler.step()] == [[other]]


def test_new_thresholds_apply_to_pictures_that_wait(made: Callable[..., LookScheduler], pictures: torch.Tensor) -> None:
    scheduler = made()
    scheduler.stopping = Stopping(scheduler.bundle.exit_rule(looks=3), budget_macs=3.0)
    scheduler.add(job(scheduler, pictures[0]))
    scheduler.add(job(scheduler, pictures[1], stopping=Stopping(scheduler.bundle.exit_rule(looks=3))))
    scheduler.step()
    cheaper = Stopping(scheduler.bundle.exit_rule(thresholds=[-1.0, -1.0]), budget_macs=2.0)
    scheduler.stopping = cheaper
    (answered,) = scheduler.step()
    # As offline with these thresholds: it stops after the glance, and takes no other look first.
    assert answered.outcome.looks.tolist() == [1]
    assert answered.stopping is cheaper
    assert scheduler.pending == 1  # the other one has thresholds of its own


def test_rows_that_are_released_while_they_wait_are_not_among_the_exits_of_the_next_look(
    made: Callable[..., LookScheduler], pictures: torch.Tensor
) -> None:
    scheduler = made(times=[LookTimes(exits=0.5), LookTimes(exits=0.5), LookTimes(exits=0.5)])
    never = Stopping(scheduler.bundle.exit_rule(looks=3))
    gone = [job(scheduler, picture, stopping=never) for picture in pictures[:6]]
    for one in gone:
        scheduler.add(one)
    scheduler.step()
    for one in gone:
        one.cancelled = True
    scheduler.times[0].exits = 0.5
    scheduler.add(job(scheduler, pictures[6], stopping=never))
    scheduler.step()
    assert scheduler.times[0].exits < 0.5  # one row was glanced at, and it has stayed


def test_memory_of_the_record_stays_bounded(made: Callable[..., LookScheduler], pictures: torch.Tensor) -> None:
    scheduler = made(full_batch=4)
    for _ in range(5):
        for picture in pictures[:8]:
            scheduler.add(job(scheduler, picture))
        for _ in run(scheduler):
            pass
    assert len(scheduler.recorder._table["looks"]) == 0
    assert scheduler.jobs() == []
    assert scheduler.waiting == {}
