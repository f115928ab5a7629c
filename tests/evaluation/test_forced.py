"""Exits decided beforehand: the right shares leave, whatever their confidence."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from glancefocus.errors import BadBudget, BadSetting
from glancefocus.evaluation.wall_clock import checked_shares, forced_exits, shares_within
from glancefocus.exits.one_size import planned_exits
from glancefocus.look import as_scene
from glancefocus.loop import look_until_sure


def test_planned_exits_keep_to_the_shares_all_along() -> None:
    assert planned_exits([0.5, 0.25, 0.25], 8) == [1, 2, 3, 1, 1, 2, 3, 1]
    plan = planned_exits([0.7, 0.2, 0.1], 1000)
    assert [plan.count(look) for look in (1, 2, 3)] == [700, 200, 100]
    for end in range(1, 1000, 37):
        assert all(abs(plan[:end].count(look + 1) - share * end) < 1 for look, share in enumerate([0.7, 0.2, 0.1]))
    assert planned_exits([0.0, 0.0, 1.0], 3) == [3, 3, 3]


def test_rows_leave_after_the_look_that_was_decided(small_net: Callable[..., Any]) -> None:
    exits = [2, 1, 3, 1, 2]
    with torch.inference_mode():
        outcome = look_until_sure(small_net(), as_scene(torch.rand(5, 3, 64, 64)), forced_exits(exits, 3))
    assert outcome.looks.tolist() == exits


def test_geometric_shares_cost_what_the_budget_says() -> None:
    macs = [100.0, 200.0, 300.0]
    assert shares_within(macs, 200) == pytest.approx([1 / 3, 1 / 3, 1 / 3], abs=1e-6)
    shares = shares_within(macs, 150)
    assert sum(share * cost for share, cost in zip(shares, macs, strict=True)) == pytest.approx(150, rel=1e-6)
    assert shares[1] / shares[0] == pytest.approx(shares[2] / shares[1], rel=1e-6)
    assert shares_within(macs, 1000) == pytest.approx([0, 0, 1], abs=1e-6)
    assert shares_within(macs, 100) == pytest.approx([1, 0, 0], abs=1e-6)
    assert shares_within(macs, 1000, falling=True) == pytest.approx([1 / 3, 1 / 3, 1 / 3], abs=1e-6)
    assert shares_within(macs, 150, falling=True) == pytest.approx(shares, abs=1e-6)
    with pytest.raises(BadBudget, match="less than one glance"):
        shares_within(macs, 90)


@pytest.mark.parametrize(
    ("shares", "sentence"),
    [
        ([0.5, 0.5], "needs 3 shares of exits, but got 2"),
        ([0.5, 0.4, 0.2], "which sum to 1, but got 0.5, 0.4, 0.2"),
        ([1.5, -0.5, 0.0], "which sum to 1, but got 1.5, -0.5, 0"),
        ([float("nan"), 0.5, 0.5], "but got nan"),
    ],
)
def test_impossible_shares_are_refused(shares: list[float], sentence: str) -> None:
    with pytest.raises(BadSetting, match=sentence):
        checked_shares(shares, 3)
