"""`gf evaluate`: what a bundle achieves on labelled images at every budget, as tables, a page and files of numbers."""

import json
from pathlib import Path

from glancefocus.commands.printing import output, progress_bars, say, tell_bad_files
from glancefocus.early_exit.budget import check_table
from glancefocus.errors import BadData
from glancefocus.evaluation.assess import assess, look_table
from glancefocus.evaluation.choosing import Records, looks_folder
from glancefocus.evaluation.findings import Findings
from glancefocus.evaluation.findings_report import summary_tables, write_findings
from glancefocus.evaluation.latency import measure_latency
from glancefocus.loading import load


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
    as_json: bool,
) -> None:
    """Measure, print, and write the report."""
    bundle = load(folder, runtime=runtime, threads=threads, batch=batch_size, light_weights=light_weights)
    with progress_bars(quiet=as_json) as progress:
        records = Records(
            bundle, source, looks_folder(folder), workers=workers, max_bad_files=max_bad_files, progress=progress
        )
        name = records.first_of("test", "val", "all", "train") if split is None else records.first_of(split)
        if name is None:
            raise BadData(f"{source} has no split {split!r}, only {', '.join(records.names)}.")
        record = records.of(name)
        choosing = records.of("val") if name == "test" and "val" in records.names else None
    tell_bad_files(records.bad_files)
    if latency and bundle.latency_here() is None:
        bundle.latencies = [*bundle.latencies, measure_latency(bundle, batch_size=batch_size)]
    check_table(look_table(bundle, record))
    findings = assess(bundle, record, choosing)
    if report is not None:
        write_findings(report, findings, title=f"{folder} on {source}")
    if as_json:
        print(json.dumps(findings.to_plain(), indent=1, allow_nan=False))  # noqa: T201
        return
    _print(findings, report)


def _print(findings: Findings, report: Path | None) -> None:
    console = output()
    for table in summary_tables(findings):
        console.print(table)
    if report is not None:
        say(f"open {report / 'report.html'} in a browser; numbers and figures are beside it")
