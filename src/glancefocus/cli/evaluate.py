"""`gf evaluate`: measures a bundle on labelled images at every budget, and writes tables, a report page and files of numbers."""

import json
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from glancefocus.cli.main import (
    BundleName,
    Json,
    LightWeights,
    OutputName,
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
from glancefocus.cli.printing import print_line, print_remarks, print_verdict, progress_bars

if TYPE_CHECKING:
    from glancefocus.evaluation.assess import Findings
    from glancefocus.evaluation.records import Records
    from glancefocus.evaluation.verdict import Verdict
    from glancefocus.exits.record import LookRecord


@command_options
@dataclass(frozen=True)
class EvaluateOptions:
    """Options of `gf evaluate`."""

    bundle: BundleName
    data: str
    """A folder with val/ or test/, which hold one folder of images for each class; or a folder with one folder for each class; a
    CSV file with the columns path and label; a built-in data set; or the folder of a look record (the answers after every look,
    stored by an earlier evaluation)."""
    _: KW_ONLY
    output: Annotated[Path | None, OutputName] = None
    """Write report.html, figures, and the numbers as JSON and CSV into this folder."""
    split: SplitName | None = None
    """Images to measure on: train, val, test or all. Default: test; without test images, those that were held out from training;
    otherwise all. Images that were used to train the network are recognised by their content and left out, except with train or
    all."""
    latency: bool = True
    """Also report milliseconds on this device in this runtime: those that `gf budget --ms` stored in the bundle, or else measured
    now. Those of the rivals are measured in the same runtime."""
    latency_file: LatencyFile = None
    batch_size: TimedBatch = 1
    runtime: Runtime = None
    light_weights: LightWeights = False
    threads: Threads = None
    workers: ReadingProcesses = 0
    max_bad_files: SkippedFiles = 10
    rivals: Literal["none", "as-is", "tuned"] = "as-is"
    """The simpler alternatives (rivals) that the network is compared with, at equal cost. as-is: the backbone of the run on the
    same images, resized to several sizes; the network's own encoders, each alone; and cascades of these (a small size first, a
    larger one if the confidence is low). tuned: also the backbone trained further at each smaller size, in the folder of the run;
    for each size this takes about as long as the stage glance. none: no comparison."""
    json: Json = False


def evaluate(options: EvaluateOptions) -> None:
    """Measure a bundle on labelled images: accuracy after each look, at every budget, with every exit score. Can write a report.

    Example: gf evaluate runs/signs/bundle signs -o report
    """
    from glancefocus.bundle.sharing import local_folder
    from glancefocus.evaluation.assess import assess, look_table
    from glancefocus.evaluation.every_look import noted_aims
    from glancefocus.evaluation.latency import measure_latency
    from glancefocus.evaluation.report import Training, noted_images, read_training_curves, write_report
    from glancefocus.exits.table import check_table

    folder = local_folder(options.bundle)
    bundle = load_to_measure(folder, options)
    with progress_bars(quiet=options.json) as progress:
        records = records_of(bundle, folder, options, progress)
        name = records.to_measure(options.split)
        record = records.of(name)
        choosing = records.of("val") if name == "test" and "val" in records.names else None
        chose = records.chose(name)
    remarks = records.remarks(name)
    print_remarks(records.bad_files, remarks)
    if options.latency and bundle.latency_here() is None:
        bundle.latencies = [*bundle.latencies, measure_latency(bundle, batch_size=options.batch_size)]
    check_table(look_table(bundle, record))
    findings = replace(
        assess(bundle, record, choosing, chose=chose),
        remarks=remarks,
        aims=noted_aims(bundle.notes),
        verdict=None if options.rivals == "none" else _verdict_on(records, record, folder, options),
    )
    if options.output is not None:
        run = folder.absolute().parent
        write_report(
            options.output,
            findings,
            bundle,
            title=f"{folder} on {options.data}",
            record=record,
            split=None if records.made_before is not None else records.split(name),
            training=Training(read_training_curves(run), noted_images(bundle.notes)),
        )
    if options.json:
        print(json.dumps(findings.to_plain(), indent=1, allow_nan=False))
        return
    _print(findings, options.output)


def _verdict_on(records: "Records", record: "LookRecord", folder: Path, options: EvaluateOptions) -> "Verdict":
    """The comparison with the backbone beside the bundle, on the images of a record.

    With --rivals tuned the backbone is first fine-tuned at smaller sizes, in the run of the bundle, unless that is done already.
    """
    from glancefocus.evaluation.latency import measure_rival_times
    from glancefocus.evaluation.records import looks_folder
    from glancefocus.evaluation.rivals import Weights, judge, tuned_files
    from glancefocus.evaluation.verdict import no_verdict
    from glancefocus.training.run import tune_rivals_of
    from glancefocus.training.run_folder import BACKBONE_FILE

    run = folder.absolute().parent
    if records.made_before is not None:
        return no_verdict("the comparison with rivals needs images, and a look record contains none. Name the data.")
    if options.rivals == "tuned":
        tune_rivals_of(run, quiet=options.json)
    weights = Weights(run / BACKBONE_FILE, tuned_files(run))
    with progress_bars(quiet=options.json) as progress:
        return judge(
            records.bundle,
            record,
            records.split(record.about.split),
            weights,
            looks_folder(folder),
            workers=records.workers,
            progress=progress,
            measure_times=measure_rival_times if options.latency else None,
            chose=records.chose(record.about.split),
        )


def _print(findings: "Findings", report: Path | None) -> None:
    from glancefocus.evaluation.tables import summary_tables

    console = output()
    for table in summary_tables(findings):
        console.print(table)
    if findings.verdict is not None:
        print_verdict(findings.verdict)
    if findings.aims is not None and not findings.aims.better:
        print_line(findings.aims.sentence)
    if report is not None:
        print_line(f"open {report / 'report.html'} in a browser; numbers and figures are beside it")
