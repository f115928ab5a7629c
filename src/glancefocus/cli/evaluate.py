"""`gf evaluate`: what a bundle achieves on labelled images at every budget, as tables, a page and files of numbers."""

import json
from dataclasses import replace
from pathlib import Path

from glancefocus.bench.latency import measure_latency, measure_rival_times
from glancefocus.bundle.loading import load
from glancefocus.cli.printing import notice, output, print_verdict, progress_bars, say, tell_bad_files
from glancefocus.evaluation.assess import Findings, assess, look_table
from glancefocus.evaluation.every_look import noted_aims
from glancefocus.evaluation.judge import Weights, judge
from glancefocus.evaluation.records import Records, looks_folder
from glancefocus.evaluation.report import Training, noted_images, read_training_curves, write_report
from glancefocus.evaluation.rivals import tuned_files
from glancefocus.evaluation.tables import summary_tables
from glancefocus.evaluation.verdict import Verdict, no_verdict
from glancefocus.exits.budget import check_table
from glancefocus.exits.record import LookRecord


def evaluate_bundle(
    folder: Path,
    source: str,
    *,
    report: Path | None,
    split: str | None,
    latency: bool,
    batch_size: int,
    runtime: str | None,
    light_weights: bool,
    threads: int | None,
    workers: int,
    max_bad_files: int,
    rivals: str,
    as_json: bool,
) -> None:
    """Measure, print, and write the report."""
    bundle = load(folder, runtime=runtime, threads=threads, batch=batch_size, light_weights=light_weights)
    with progress_bars(quiet=as_json) as progress:
        records = Records(
            bundle, source, looks_folder(folder), workers=workers, max_bad_files=max_bad_files, progress=progress
        )
        name = records.to_measure(split)
        record = records.of(name)
        choosing = records.of("val") if name == "test" and "val" in records.names else None
        chose = records.chose(name)
    tell_bad_files(records.bad_files)
    remarks = records.remarks(name)
    for remark in remarks:
        notice(remark)
    if latency and bundle.latency_here() is None:
        bundle.latencies = [*bundle.latencies, measure_latency(bundle, batch_size=batch_size)]
    check_table(look_table(bundle, record))
    findings = replace(
        assess(bundle, record, choosing, chose=chose),
        remarks=remarks,
        aims=noted_aims(bundle.notes),
        verdict=None
        if rivals == "none"
        else verdict_on(records, record, folder, tuned=rivals == "tuned", latency=latency, quiet=as_json),
    )
    if report is not None:
        run = folder.absolute().parent
        write_report(
            report,
            findings,
            bundle,
            title=f"{folder} on {source}",
            record=record,
            split=None if records.made_before is not None else records.split(name),
            training=Training(read_training_curves(run), noted_images(bundle.notes)),
        )
    if as_json:
        print(json.dumps(findings.to_plain(), indent=1, allow_nan=False))
        return
    _print(findings, report)


def verdict_on(
    records: Records,
    record: LookRecord,
    folder: Path,
    *,
    tuned: bool = False,
    latency: bool = True,
    quiet: bool = False,
) -> Verdict:
    """The verdict on the images of a record, against the backbone that lies beside the bundle.

    tuned  the backbone is first tuned at smaller sizes in the run that the bundle lies in, where that is not done yet
    """
    from glancefocus.training.run import tune_rivals_of
    from glancefocus.training.run_folder import BACKBONE_FILE

    run = folder.absolute().parent
    if records.made_before is not None:
        return no_verdict("a look record holds no images for rivals to answer. Name the data.")
    if tuned:
        tune_rivals_of(run, quiet=quiet)
    weights = Weights(run / BACKBONE_FILE, tuned_files(run))
    split = records.split(record.about.split)
    with progress_bars(quiet=quiet) as progress:
        return judge(
            records.bundle,
            record,
            split,
            weights,
            looks_folder(folder),
            workers=records.workers,
            progress=progress,
            measure_times=measure_rival_times if latency else None,
        )


def _print(findings: Findings, report: Path | None) -> None:
    console = output()
    for table in summary_tables(findings):
        console.print(table)
    if findings.verdict is not None:
        print_verdict(findings.verdict)
    if findings.aims is not None and not findings.aims.better:
        say(findings.aims.sentence)
    if report is not None:
        say(f"open {report / 'report.html'} in a browser; numbers and figures are beside it")
