"""`gf budget`: what an answer may cost goes in, thresholds come out and into the bundle."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.table import Table

from glancefocus.bench.latency import measure_latency
from glancefocus.bundle.bundle import Bundle
from glancefocus.bundle.loading import load
from glancefocus.cli.printing import cell, notice, output, progress_bars, say, tell_bad_files
from glancefocus.errors import BadBudget, BadSetting
from glancefocus.evaluation.assess import BEST_ACCURACY, Budgeted, halves, look_table, with_interval, within_budget
from glancefocus.evaluation.choosing import Choice, Records, choose_images, choosing_and_measuring, looks_folder
from glancefocus.evaluation.records import fit_temperatures
from glancefocus.exits.budget import check_solver, check_table, cross_fitted_curve, solve_curve
from glancefocus.exits.curve import Point, frozen, leave_thresholds, refuse_budget
from glancefocus.exits.table import LookTable, Thresholds


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

    @property
    def unit(self) -> Literal["macs", "ms"]:
        return "macs" if self.ms is None else "ms"

    @property
    def budget(self) -> float | None:
        return self.macs if self.ms is None else self.ms

    @property
    def words(self) -> str:
        """What the thresholds are for, as a bundle notes it."""
        if self.budget is None:
            return BEST_ACCURACY
        return f"a budget of {_amount(self.budget, self.unit)}{' multiply-adds' if self.ms is None else ''}"


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
    _refuse_at_once(bundle, asked)
    if asked.score is not None:
        bundle.score = asked.score
        # Refuses a score that does not go with several patch sizes.
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
        choice = choose_images(records, asked.on, split=asked.split, in_halves=asked.calibrate)
        tell_bad_files(records.bad_files)
        remarks = records.remarks(choice.split)
        for remark in remarks:
            notice(remark)
        if asked.ms is not None:
            keep = [latency for latency in bundle.latencies if latency != bundle.latency_here()]
            bundle.latencies = [*keep, measure_latency(bundle, batch_size=asked.batch_size)]
        choosing, measuring = _tables(bundle, choice, asked.unit)
        check_table(choosing)
        found = within_budget(choosing, asked.budget, measuring=measuring, solver=asked.solver)
        curve = solve_curve(replace(choosing, unit="macs"), solver=asked.solver)
        result = _result(bundle, choice, asked, found)
        if asked.curve:
            result["curve"] = _measured_curve(choosing, measuring, curve, asked.solver)
    if asked.save:
        records.remember_choosing(choice.split)
        _store(bundle, folder, choice, asked, found.thresholds, curve)
    result |= {"stored": asked.save, "remarks": remarks}
    if as_json:
        print(json.dumps(result, indent=1, allow_nan=False))
        return
    _print(result)


def _refuse_at_once(bundle: Bundle, asked: BudgetAsked) -> None:
    """What cannot be asked of this bundle is refused before anything is looked at."""
    check_solver(len(bundle.settings.patch_px), asked.solver)
    if asked.budget is not None:
        refuse_budget(asked.budget, bundle.costs.macs_after_look[0] if asked.ms is None else asked.budget, asked.unit)
    if asked.ms is not None and asked.ms <= 0:
        raise BadBudget(f"a budget is a number of ms above 0, but got {asked.ms:g}.")


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
    return fit_temperatures(bundle.net, split, rows=rows, workers=records.workers, device=bundle.device)


def _tables(bundle: Bundle, choice: Choice, unit: Literal["macs", "ms"]) -> tuple[LookTable, LookTable | None]:
    choosing = replace(look_table(bundle, choice.choosing).rows(choice.choosing_rows), unit=unit)
    if choice.crosswise:
        return choosing, None
    return choosing, replace(look_table(bundle, choice.measuring, seed=1).rows(choice.measuring_rows), unit=unit)


def _measured_curve(
    choosing: LookTable, measuring: LookTable | None, curve: list[Point], solver: str | None
) -> list[Point]:
    """The curve as images make it that were judged by thresholds which they did not choose."""
    if measuring is None:
        points = cross_fitted_curve(replace(choosing, unit="macs"), curve, solver=solver)
        return [with_interval(point, len(choosing)) for point in points]
    arrays = [np.asarray(point["thresholds"], dtype=np.float32) for point in curve]
    points = [{**measuring.point(th), "budget_macs": p["budget_macs"]} for th, p in zip(arrays, curve, strict=True)]
    return [with_interval(point, len(measuring)) for point in points]


def _result(bundle: Bundle, choice: Choice, asked: BudgetAsked, found: Budgeted) -> dict[str, Any]:
    latency = bundle.latency_here()
    return {
        "thresholds": np.asarray(found.thresholds, dtype=np.float64).tolist(),
        "score": bundle.score,
        "solver": check_solver(len(bundle.settings.patch_px), asked.solver),
        "temperatures": None if bundle.temperatures is None else list(bundle.temperatures),
        "budget": asked.budget if found.binds else None,
        "unit": asked.unit,
        "every_look_fits": asked.budget is not None and not found.binds,
        "chosen_on": choice.choosing_words,
        "on_those": with_interval(found.on_choosers, len(choice.choosing_rows)),
        "measured_on": choice.measuring_words,
        "on_these": with_interval(found.on_others, len(choice.measuring_rows)),
        "forecast": found.forecast.to_plain(),
        "device": None if latency is None else latency.device,
        "runtime": bundle.runtime,
    }


def _store(
    bundle: Bundle,
    folder: Path,
    choice: Choice,
    asked: BudgetAsked,
    thresholds: Thresholds,
    curve: list[Point],
) -> None:
    bundle.thresholds = frozen(np.asarray(thresholds, dtype=np.float64).tolist())
    bundle.curve = curve
    bundle.notes |= {
        "thresholds_chosen_on": choice.choosing_words,
        "thresholds_data": choice.choosing.about.data,
        "thresholds_for": asked.words,
    }
    bundle.update(folder)


def _print(result: dict[str, Any]) -> None:
    unit = result["unit"]
    table = Table(title=f"thresholds on the {result['score']}: {_rounded(result['thresholds'][:-1])}")
    for name in ("images", "accuracy", "cost", "leave after each look"):
        table.add_column(name, justify="left" if name == "images" else "right")
    for words, point in (("chosen", result["on_those"]), ("measured", result["on_these"])):
        table.add_row(
            f"{words} on {cell(result[f'{words}_on'])}",
            f"{100 * point['accuracy']:.1f} %",
            _amount(point[f"mean_{unit}"], unit),
            " / ".join(str(count) for count in point["exits_per_look"]),
        )
    new = result["forecast"]
    table.add_row(
        f"expected on {new['new_images']:,} new images, 95 %",
        f"{100 * new['accuracy_low']:.1f} to {100 * new['accuracy_high']:.1f} %",
        f"{_amount(new['cost_low'], unit)} to {_amount(new['cost_high'], unit)}",
        "",
    )
    console = output()
    console.print(table)
    for sentence in _sentences(result):
        say(sentence)
    if "curve" in result:
        console.print(_curve_table(result["curve"]))
    kept = (
        "stored in the bundle: gf predict uses them, and --budget-macs any other" if result["stored"] else "not stored"
    )
    say(kept)


def _sentences(result: dict[str, Any]) -> list[str]:
    """What is to be said of the figures."""
    unit, new, spent = result["unit"], result["forecast"], result["on_those"][f"mean_{result['unit']}"]
    sentences = []
    if result["every_look_fits"]:
        sentences.append("every look for every image fits into this budget.")
    if result["every_look_fits"] or (result["budget"] is not None and spent < 0.95 * result["budget"]):
        sentences.append(
            f"{_amount(spent, unit)} are spent: on the images that chose, more would gain less than a tenth of a point."
        )
    if new["images"] < new["images_needed"]:
        half = (new["cost_high"] - new["cost_low"]) / 2 / new["cost"]
        sentences.append(
            f"few images: {new['images']} tell the cost to ±{100 * half:.0f} %; about {new['images_needed']:,} would tell it "
            "to ±10 %."
        )
    return sentences


def _curve_table(curve: list[Point]) -> Table:
    table = Table(title="every budget, measured on images that did not choose")
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
