"""`gf budget`: finds the thresholds for a budget, and stores them in the bundle."""

import json
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.table import Table

from glancefocus.cli.main import (
    BundleName,
    Flag,
    Json,
    LightWeights,
    Runtime,
    SplitName,
    Threads,
    command_options,
    output,
)
from glancefocus.cli.measuring import (
    LatencyFile,
    ReadingProcesses,
    SkippedFiles,
    TimedBatch,
    load_to_measure,
    records_of,
)
from glancefocus.cli.printing import cell, print_line, print_remarks, progress_bars
from glancefocus.errors import BadBudget, BadSetting
from glancefocus.values import Count, Milliseconds, MultiplyAdds

if TYPE_CHECKING:
    from glancefocus.bundle.bundle import Bundle
    from glancefocus.evaluation.choosing import Budgeted, Choice
    from glancefocus.evaluation.records import Records
    from glancefocus.exits.curve import Point
    from glancefocus.exits.table import LookTable, Thresholds


@command_options
@dataclass(frozen=True)
class BudgetOptions:
    """Options of `gf budget`."""

    bundle: BundleName
    data: str
    """Labelled images, as for `gf evaluate`."""
    _: KW_ONLY
    macs: MultiplyAdds | None = None
    """Largest mean cost of an image in multiply-adds, such as 2e8. Give exactly one of --macs, --ms and --curve."""
    ms: Milliseconds | None = None
    """Largest mean time of an image in milliseconds. Each look is timed on this device in this runtime, and the times are stored
    in the bundle."""
    curve: Flag = False
    """No budget: show cost and accuracy for a whole range of budgets, and store the cheapest thresholds whose expected accuracy is
    within 0.1 points of the best."""
    solver: Literal["direct", "geometric", "geometric-paper", "genetic"] | None = None
    """Method that finds the thresholds. direct: search for the highest accuracy. geometric: the share of images that stop changes
    by one constant factor from look to look, as in the paper's code; geometric-paper: this factor is below 1. genetic: a
    genetic algorithm, for networks with several candidate views. Default: direct; genetic with several candidate views."""
    score: Literal["confidence", "entropy", "value", "random"] | None = None
    """The score that is compared with the thresholds; images stop above them. confidence: the largest class probability. entropy:
    1 for a certain answer, 0 for equal probabilities. value: computed from the critic (the part of the policy that predicts the
    reward of further looks), high if this reward is low. random: a baseline. Default: the score stored in the bundle."""
    latency_file: LatencyFile = None
    on: Literal["held-out", "train"] = "held-out"
    """The images of DATA that are used to choose the thresholds. held-out: images that the network was not trained on (see
    --split). train: the training images, as in the released code of the paper; answers to these are more confident than answers to
    new images, so new images cost more than the thresholds assume. The result is measured on held-out images, if there are any."""
    train_images: Count | None = None
    """With --on train: choose the thresholds on this many training images, augmented at random as in training. The released code of
    the paper uses 200000. Default: every training image once, as it is seen in evaluation."""
    split: SplitName | None = None
    """With --on held-out: the split used to choose the thresholds. The result is then measured on other held-out images; if there
    are none, by cross-validation on the same images. Images that were used to train the network are recognised by their content
    and left out, except with train or all. Default: val."""
    calibrate: Flag = False
    """Before choosing thresholds, fit one temperature per look, by which logits are divided so that confidences match accuracies,
    and store them in the bundle. `gf train` does this already for your own images, except with a preset of the paper. If no
    other images are held out, one half of the images is used for the temperatures and thresholds, and the other half to measure
    the result."""
    batch_size: TimedBatch = 1
    runtime: Runtime = None
    light_weights: LightWeights = False
    threads: Threads = None
    workers: ReadingProcesses = 0
    max_bad_files: SkippedFiles = 10
    store: bool = True
    """Write thresholds and curve into the bundle. --no-store only prints them."""
    json: Json = False

    def __post_init__(self) -> None:
        if (self.macs is None) + (self.ms is None) + (not self.curve) != 2:
            raise BadSetting(
                "give the cost that an answer may have: --macs 2e8, or --ms 12, or --curve for all budgets; exactly one of them."
            )

        if self.train_images is not None and self.on != "train":
            raise BadSetting("--train-images is for --on train. Add it, or leave --train-images out.")

    @property
    def unit(self) -> Literal["macs", "ms"]:
        return "macs" if self.ms is None else "ms"

    @property
    def budget(self) -> float | None:
        return self.macs if self.ms is None else self.ms

    @property
    def words(self) -> str:
        """What the thresholds are for, as the notes of the bundle describe it."""
        from glancefocus.evaluation.assess import BEST_ACCURACY

        if self.budget is None:
            return BEST_ACCURACY
        return f"a budget of {_amount(self.budget, self.unit)}{' multiply-adds' if self.ms is None else ''}"


def budget(options: BudgetOptions) -> None:
    """Find the most accurate thresholds within a budget, store them in the bundle, and show what they achieve on other images.

    Example: gf budget runs/signs/bundle signs --macs 9e6
    """
    from glancefocus.bundle.sharing import local_folder, refuse_writing
    from glancefocus.evaluation.choosing import choose_images, within_budget
    from glancefocus.evaluation.latency import measure_latency
    from glancefocus.exits.budget import solve_curve
    from glancefocus.exits.curve import leave_thresholds
    from glancefocus.exits.table import check_table

    if options.store:
        refuse_writing(options.bundle)
    folder = local_folder(options.bundle)
    bundle = load_to_measure(folder, options)
    _refuse_early(bundle, options)
    if options.score is not None:
        bundle.score = options.score
        # Refuses a score that does not work with several candidate views.
        bundle.exit_rule(thresholds=leave_thresholds(bundle.settings.looks, bundle.settings.view_choices))
    with progress_bars(quiet=options.json) as progress:
        records = records_of(bundle, folder, options, progress, options.train_images)
        if options.calibrate:
            bundle.temperatures = _temperatures(records, options)
        choice = choose_images(records, options.on, split=options.split, in_halves=options.calibrate)
        remarks = records.remarks(choice.split)
        print_remarks(records.bad_files, remarks)
        if options.ms is not None and bundle.elsewhere is None:
            keep = [latency for latency in bundle.latencies if latency != bundle.latency_here()]
            bundle.latencies = [*keep, measure_latency(bundle, batch_size=options.batch_size)]
        choosing, measuring = _tables(bundle, choice, options.unit)
        check_table(choosing)
        found = within_budget(choosing, options.budget, measuring=measuring, solver=options.solver)
        curve = solve_curve(replace(choosing, unit="macs"), solver=options.solver)
        result = _result(bundle, choice, options, found)
        if options.curve:
            result["curve"] = _measured_curve(choosing, measuring, curve, options.solver)
    if options.store:
        records.remember_choosing(choice.split)
        _store(bundle, folder, choice, options, found.thresholds, curve)
    result |= {"stored": options.store, "remarks": remarks}
    if options.json:
        print(json.dumps(result, indent=1, allow_nan=False))
        return
    _print(result)


def _refuse_early(bundle: "Bundle", options: BudgetOptions) -> None:
    """Refuse what this bundle cannot do before any image is read."""
    from glancefocus.exits.budget import check_solver
    from glancefocus.exits.curve import refuse_budget

    check_solver(bundle.settings.view_choices, options.solver)
    if options.budget is not None:
        refuse_budget(
            options.budget, bundle.costs.macs_after_look[0] if options.ms is None else options.budget, options.unit
        )
    if options.ms is not None and options.ms <= 0:
        raise BadBudget(f"a budget is a number of ms above 0, but got {options.ms:g}.")


def _temperatures(records: "Records", options: BudgetOptions) -> tuple[float, ...]:
    """Fitted only on the images that choose the thresholds."""
    from glancefocus.evaluation.assess import halves
    from glancefocus.evaluation.choosing import choosing_and_measuring, fit_temperatures

    if records.made_before is not None:
        raise BadSetting(
            "temperatures are fitted on images, and a look record does not contain them. Name the data instead."
        )
    first, second = choosing_and_measuring(records, options.on, options.split)
    split = records.split(first)
    rows = None if second is not None else halves(len(split))[0].tolist()
    bundle = records.bundle
    return fit_temperatures(bundle.net, split, rows=rows, workers=records.workers, device=bundle.device)


def _tables(bundle: "Bundle", choice: "Choice", unit: Literal["macs", "ms"]) -> tuple["LookTable", "LookTable | None"]:
    from glancefocus.evaluation.assess import look_table

    choosing = replace(look_table(bundle, choice.choosing).rows(choice.choosing_rows), unit=unit)
    if choice.crosswise:
        return choosing, None
    return choosing, replace(look_table(bundle, choice.measuring, seed=1).rows(choice.measuring_rows), unit=unit)


def _measured_curve(
    choosing: "LookTable", measuring: "LookTable | None", curve: "list[Point]", solver: str | None
) -> "list[Point]":
    """The curve, measured on images that did not choose its thresholds."""
    import numpy as np

    from glancefocus.exits.budget import cross_fitted_curve, with_interval

    if measuring is None:
        points = cross_fitted_curve(replace(choosing, unit="macs"), curve, solver=solver)
        return [with_interval(point, len(choosing)) for point in points]
    arrays = [np.asarray(point["thresholds"], dtype=np.float32) for point in curve]
    points = [{**measuring.point(th), "budget_macs": p["budget_macs"]} for th, p in zip(arrays, curve, strict=True)]
    return [with_interval(point, len(measuring)) for point in points]


def _result(bundle: "Bundle", choice: "Choice", options: BudgetOptions, found: "Budgeted") -> dict[str, Any]:
    import numpy as np

    from glancefocus.exits.budget import check_solver, with_interval

    latency = bundle.latency_here()
    return {
        "thresholds": np.asarray(found.thresholds, dtype=np.float64).tolist(),
        "score": bundle.score,
        "solver": check_solver(bundle.settings.view_choices, options.solver),
        "temperatures": None if bundle.temperatures is None else list(bundle.temperatures),
        "budget": options.budget if found.binds else None,
        "unit": options.unit,
        "every_look_fits": options.budget is not None and not found.binds,
        "chosen_on": choice.choosing_words,
        "on_those": with_interval(found.on_choosers, len(choice.choosing_rows)),
        "measured_on": choice.measuring_words,
        "on_these": with_interval(found.on_others, len(choice.measuring_rows)),
        "forecast": found.forecast.to_plain(),
        "device": None if latency is None else latency.device,
        "runtime": bundle.runtime,
    }


def _store(
    bundle: "Bundle",
    folder: Path,
    choice: "Choice",
    options: BudgetOptions,
    thresholds: "Thresholds",
    curve: "list[Point]",
) -> None:
    import numpy as np

    from glancefocus.loop import frozen

    bundle.thresholds = frozen(np.asarray(thresholds, dtype=np.float64).tolist())
    bundle.curve = curve
    bundle.notes |= {
        "thresholds_chosen_on": choice.choosing_words,
        "thresholds_data": choice.choosing.about.data,
        "thresholds_for": options.words,
    }
    bundle.update(folder)


def _print(result: dict[str, Any]) -> None:
    unit = result["unit"]
    table = Table(title=f"thresholds on the {result['score']}: {_rounded(result['thresholds'][:-1])}")
    for name in ("images", "accuracy", "cost", "stop after each look"):
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
        print_line(sentence)
    if "curve" in result:
        console.print(_curve_table(result["curve"]))
    stored = "stored in the bundle. gf predict uses these thresholds; gf predict --budget-macs chooses others"
    print_line(stored if result["stored"] else "not stored")


def _sentences(result: dict[str, Any]) -> list[str]:
    """Remarks on the figures."""
    unit, new, spent = result["unit"], result["forecast"], result["on_those"][f"mean_{result['unit']}"]
    sentences = []
    if result["every_look_fits"]:
        sentences.append("every look for every image fits into this budget.")
    if result["every_look_fits"] or (result["budget"] is not None and spent < 0.95 * result["budget"]):
        sentences.append(
            f"only {_amount(spent, unit)} are used: on the images that chose the thresholds, more would gain less than 0.1 points "
            "of accuracy."
        )
    if new["images"] < new["images_needed"]:
        half = (new["cost_high"] - new["cost_low"]) / 2 / new["cost"]
        sentences.append(
            f"few images: with {new['images']} the mean cost is known to ±{100 * half:.0f} %; about {new['images_needed']:,} are "
            "needed for ±10 %."
        )
    return sentences


def _curve_table(curve: "list[Point]") -> Table:
    table = Table(title="all budgets, measured on images that did not choose the thresholds")
    for name in ("budget", "mean cost", "accuracy", "stop after each look"):
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
    from glancefocus.evaluation.tables import threshold_text

    return ", ".join(f"({_rounded(t)})" if isinstance(t, list) else threshold_text(t) for t in thresholds)
