"""`gf budget`: what an answer may cost goes in, thresholds come out and into the bundle."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from glancefocus.bundle import Bundle
from glancefocus.commands.printing import cell, notice, output, progress_bars, say, tell_bad_files
from glancefocus.early_exit.budget import (
    check_budget,
    check_table,
    direct_within,
    genetic_within,
    geometric_within,
    solve_curve,
)
from glancefocus.early_exit.curve import best_thresholds, frozen, leave_thresholds
from glancefocus.early_exit.look_table import LookTable, Thresholds
from glancefocus.errors import BadSetting
from glancefocus.evaluation.assess import halves, look_table, with_interval
from glancefocus.evaluation.calibration import fit_temperatures
from glancefocus.evaluation.choosing import Choice, Records, choose_images, choosing_and_measuring, looks_folder
from glancefocus.evaluation.latency import measure_latency
from glancefocus.loading import load

SOLVERS = ("direct", "geometric", "geometric-paper", "genetic")


@dataclass(frozen=True)
class BudgetAsked:
    """What the user asked for; macs, ms or the curve."""

    macs: float | None
    ms: float | None
    curve: bool
    solver: str | None
    score: str | None
    on: str
    calibrate: bool
    batch_size: int
    workers: int
    max_bad_files: int
    save: bool
    split: str | None = None

    def __post_init__(self) -> None:
        if (self.macs is None) + (self.ms is None) + (not self.curve) != 2:
            raise BadSetting(
                "say what an answer may cost: --macs 2e8, or --ms 12, or --curve for all budgets; one of them."
            )


def set_budget(
    folder: Path,
    source: str,
    asked: BudgetAsked,
    *,
    runtime: str | None = None,
    light_weights: bool = False,
    threads: int | None = None,
    as_json: bool,
) -> None:
    """Solve, store in the bundle, and tell what came of it on other images."""
    bundle = load(folder, runtime=runtime, threads=threads, batch=asked.batch_size, light_weights=light_weights)
    if asked.score is not None:
        bundle.score = asked.score
        # Refuses a score that does not go with several patch sizes, before anything is looked at.
        bundle.exit_rule(thresholds=leave_thresholds(bundle.settings.looks, len(bundle.settings.patch_px)))
    with progress_bars(quiet=as_json) as progress:
        records = Records(
            bundle,
            source,
            looks_folder(folder),
            workers=asked.workers,
            max_bad_files=asked.max_bad_files,
            progress=progress,
        )
        if asked.calibrate:
            bundle.temperatures = _temperatures(records, asked)
        choice = choose_images(records, asked.on, split=asked.split)
        if asked.save:
            records.remember_choosing(choice.split)
    tell_bad_files(records.bad_files)
    remarks = records.remarks(choice.split)
    for remark in remarks:
        notice(remark)
    if asked.ms is not None:
        keep = [latency for latency in bundle.latencies if latency != bundle.latency_here()]
        bundle.latencies = [*keep, measure_latency(bundle, batch_size=asked.batch_size)]
    choosing, measuring = _tables(bundle, choice, "ms" if asked.ms is not None else "macs")
    check_table(choosing)
    budget = asked.ms if asked.ms is not None else asked.macs
    binds = budget is None or check_budget(choosing, budget)
    curve = solve_curve(replace(choosing, unit="macs"))
    if budget is None:
        thresholds = np.asarray(best_thresholds(curve), dtype=np.float32)
    else:
        thresholds = _solve(choosing, budget, asked.solver) if binds else choosing.stay()
    result = _result(bundle, choice, choosing, measuring, thresholds)
    result |= {"budget": budget if binds else None, "unit": choosing.unit, "every_look_fits": not binds}
    if asked.curve:
        points = [{**measuring.point(_array(p)), "budget_macs": p["budget_macs"]} for p in curve]
        result["curve"] = [with_interval(point, len(measuring)) for point in points]
    if asked.save:
        _store(bundle, folder, choice, thresholds, curve)
    result |= {"stored": asked.save, "remarks": remarks}
    if as_json:
        print(json.dumps(result, indent=1, allow_nan=False))  # noqa: T201
        return
    _print(result, curve)


def _temperatures(records: Records, asked: BudgetAsked) -> tuple[float, ...]:
    """Fitted on the images that choose, and on no others."""
    if records.made_before is not None:
        raise BadSetting(
            "temperatures are found by looking at images; a look record does not hold them. Name the data."
        )
    first, second = choosing_and_measuring(records, asked.on, asked.split)
    split = records.split(first)
    rows = None if second is not None else halves(len(split))[0].tolist()
    bundle = records.bundle
    return fit_temperatures(bundle.looking, split, rows=rows, workers=records.workers, device=bundle.device)


def _tables(bundle: Bundle, choice: Choice, unit: Any) -> tuple[LookTable, LookTable]:
    choosing = look_table(bundle, choice.choosing).rows(choice.choosing_rows)
    measuring = look_table(bundle, choice.measuring, seed=1).rows(choice.measuring_rows)
    return replace(choosing, unit=unit), replace(measuring, unit=unit)


def _solve(table: LookTable, budget: float, solver: str | None) -> Thresholds:
    """Thresholds by the solver that was named; the best one for the network where none was."""
    solver = ("genetic" if table.sizes > 1 else "direct") if solver is None else solver
    if solver not in SOLVERS:
        raise BadSetting(f"a solver is one of {', '.join(SOLVERS)}, but got {solver!r}.")
    if (solver == "genetic") != (table.sizes > 1):
        raise BadSetting(
            "with several patch sizes thresholds are found by the solver 'genetic'."
            if table.sizes > 1
            else "the solver 'genetic' is for several patch sizes; this network has one. Use direct or geometric."
        )
    if solver == "genetic":
        return genetic_within(table, budget)
    if solver == "direct":
        return direct_within(table, budget)
    return geometric_within(table, budget, wide=solver == "geometric")


def _result(
    bundle: Bundle, choice: Choice, choosing: LookTable, measuring: LookTable, thresholds: Thresholds
) -> dict[str, Any]:
    return {
        "thresholds": np.asarray(thresholds, dtype=np.float64).tolist(),
        "score": bundle.score,
        "temperatures": None if bundle.temperatures is None else list(bundle.temperatures),
        "chosen_on": choice.choosing_words,
        "on_those": with_interval(choosing.point(thresholds), len(choosing)),
        "measured_on": choice.measuring_words,
        "on_these": with_interval(measuring.point(thresholds), len(measuring)),
        "device": None if bundle.latency_here() is None else bundle.latency_here().device,  # type: ignore[union-attr]
        "runtime": bundle.runtime,
    }


def _store(bundle: Bundle, folder: Path, choice: Choice, thresholds: Thresholds, curve: list[dict[str, Any]]) -> None:
    bundle.thresholds = frozen(np.asarray(thresholds, dtype=np.float64).tolist())
    bundle.curve = curve
    bundle.notes |= {"thresholds_chosen_on": choice.choosing_words, "thresholds_data": choice.choosing.about.data}
    bundle.update(folder)


def _array(point: dict[str, Any]) -> Thresholds:
    return np.asarray(point["thresholds"], dtype=np.float32)


def _print(result: dict[str, Any], curve: list[dict[str, Any]]) -> None:
    unit = result["unit"]
    table = Table(title=f"thresholds on the {result['score']}: {_rounded(result['thresholds'][:-1])}")
    for name in ("images", "accuracy", "95 %", "cost", "leave after each look"):
        table.add_column(name, justify="left" if name == "images" else "right")
    for words, point in ((result["chosen_on"], result["on_those"]), (result["measured_on"], result["on_these"])):
        table.add_row(
            f"{'chosen' if point is result['on_those'] else 'measured'} on {cell(words)}",
            f"{100 * point['accuracy']:.1f} %",
            f"{100 * point['accuracy_low']:.1f} to {100 * point['accuracy_high']:.1f}",
            _amount(point[f"mean_{unit}"], unit),
            " / ".join(str(count) for count in point["exits_per_look"]),
        )
    console = output()
    console.print(table)
    if result["every_look_fits"]:
        say("every look for every image fits into this budget: nobody leaves early.")
    cheaper = _cheaper(curve, result["on_those"])
    if cheaper is not None and result["budget"] is not None and unit == "macs":
        say(f"on the images that chose, {_amount(cheaper, 'macs')} on average achieve as much.")
    if "curve" in result:
        console.print(_curve_table(result["curve"]))
    kept = (
        "stored in the bundle: gf predict uses them, and --budget-macs any other" if result["stored"] else "not stored"
    )
    say(kept)


def _cheaper(curve: list[dict[str, Any]], point: dict[str, Any]) -> float | None:
    """The least multiply-adds with which the curve is as accurate as a point, where that saves more than a twentieth."""
    costs = [p["mean_macs"] for p in curve if p["accuracy"] >= point["accuracy"]]
    return min(costs) if costs and min(costs) < 0.95 * point["mean_macs"] else None


def _curve_table(curve: list[dict[str, Any]]) -> Table:
    table = Table(title="every budget, measured on the images that chose nothing")
    for name in ("budget", "mean cost", "accuracy", "leave after each look"):
        table.add_column(name, justify="right")
    for point in curve[:: max(1, len(curve) // 12)]:
        table.add_row(
            _amount(point["budget_macs"], "macs"),
            _amount(point["mean_macs"], "macs"),
            f"{100 * point['accuracy']:.1f} %",
            " / ".join(str(count) for count in point["exits_per_look"]),
        )
    return table


def _amount(cost: float, unit: str) -> str:
    return f"{cost:.2f} ms" if unit == "ms" else f"{cost / 1e6:,.2f}M"


def _rounded(thresholds: list[Any]) -> str:
    return ", ".join(f"({_rounded(t)})" if isinstance(t, list) else f"{t:.3f}" for t in thresholds)
