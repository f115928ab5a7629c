"""How a bundle stops: the exit rule for what a user asks, out of stored thresholds and operating points."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from glancefocus.costs import Costs, Latency
from glancefocus.errors import BadBudget, BadSetting
from glancefocus.exits.curve import Point, leave_thresholds, refuse_budget, stay_thresholds, thresholds_at
from glancefocus.exits.rule import ExitRule, SizeRule, every_look
from glancefocus.exits.score import score_named
from glancefocus.settings import NetworkSettings
from glancefocus.values import Looks, Milliseconds, MultiplyAdds, checked, shown


@dataclass(frozen=True)
class Stopping:
    """What a bundle knows about stopping, see there; latency is that of the device it is on, where it was measured."""

    settings: NetworkSettings
    costs: Costs
    thresholds: tuple[Any, ...] | None
    curve: list[Point]
    score: str
    temperatures: tuple[float, ...] | None
    latency: Latency | None

    def rule(
        self,
        *,
        thresholds: Sequence[Any] | None = None,
        looks: int | None = None,
        budget_macs: float | None = None,
        budget_ms: float | None = None,
    ) -> ExitRule:
        """By given thresholds, after so many looks, within an average budget, or as the bundle says."""
        if sum(choice is not None for choice in (thresholds, looks, budget_macs, budget_ms)) > 1:
            raise BadSetting("give thresholds, or a number of looks, or a budget, not several of them.")
        most = self.settings.looks
        if looks is not None and checked(Looks, looks, "looks") > most:
            raise BadSetting(f"this network takes 1 to {most} looks, not {looks}.")
        if budget_macs is not None:
            budget_macs = checked(MultiplyAdds, budget_macs, "budget_macs")
            everything = max(self.costs.macs_of_tree())
            thresholds = self._within(budget_macs, self.costs.macs_after_look[0], everything, "macs", _mean_macs)
        elif budget_ms is not None:
            budget_ms = checked(Milliseconds, budget_ms, "budget_ms")
            latency = self._measured()
            thresholds = self._within(budget_ms, latency.glance_ms, max(latency.ms_of_tree()), "ms", latency.mean_ms)
        elif thresholds is None and looks is None:
            thresholds = self.thresholds
        if thresholds is None:
            return self._every_look(looks or most)
        if isinstance(thresholds, str) or not isinstance(thresholds, Iterable):
            raise BadSetting(f"thresholds must be a list of numbers, but got {shown(thresholds)}.")
        return self._rule_of(list(thresholds))

    def _every_look(self, looks: int) -> ExitRule:
        return replace(every_look(looks), temperatures=self.temperatures and self.temperatures[:looks])

    def _rule_of(self, thresholds: list[Any]) -> ExitRule:
        most, sizes = self.settings.looks, self.settings.patch_px
        if len(thresholds) == most - 1:
            thresholds = [*thresholds, 0.0 if len(sizes) == 1 else [0.0] * len(sizes)]
        if len(thresholds) != most:
            raise BadSetting(
                f"this network takes {most} looks, so it needs {most - 1} thresholds, but got {len(thresholds)}."
            )
        if {isinstance(t, Sequence) for t in thresholds} != {len(sizes) > 1}:
            each = "one threshold" if len(sizes) == 1 else f"{len(sizes)} thresholds"
            raise BadSetting(f"a network with patches of {list(sizes)} px needs {each} for each look.")
        score = score_named(self.score, torch.Generator().manual_seed(0))
        if len(sizes) > 1:
            return SizeRule(thresholds, score, self.temperatures, patch_px=sizes)
        return ExitRule(thresholds, score, self.temperatures)

    def _measured(self) -> Latency:
        if self.latency is None:
            raise BadBudget(
                "no milliseconds were measured on this device with so many threads in this runtime. "
                "Run `gf budget BUNDLE DATA --ms` on it (with the same --runtime, --light-weights and --threads), "
                "or give a budget in multiply-adds."
            )
        return self.latency

    def _within(
        self, budget: float, glance: float, everything: float, unit: str, cost_of: Callable[[Point], float]
    ) -> Sequence[Any]:
        refuse_budget(budget, glance, unit)
        looks, sizes = self.settings.looks, len(self.settings.patch_px)
        if budget >= everything:
            return stay_thresholds(looks, sizes)
        points = [p for p in self.curve if "mean_macs" in p and (unit == "macs" or "exits_per_look" in p)]
        if not points:
            raise BadBudget(
                "this bundle has no operating points to choose from. Solve them with `gf budget BUNDLE DATA`, "
                "or give thresholds or a number of looks instead."
            )
        # Between one glance and the cheapest point nothing was measured; stopping everybody at the glance always fits.
        found = thresholds_at(points, budget, cost_of)
        return leave_thresholds(looks, sizes) if found is None else found


def _mean_macs(point: Point) -> float:
    return float(point["mean_macs"])
