"""The report of a finished run, on its validation images: the same page as that of `gf evaluate`."""

from dataclasses import replace
from pathlib import Path

from glancefocus.bundle import Bundle
from glancefocus.data.datasets import Data
from glancefocus.evaluation.assess import assess
from glancefocus.evaluation.choosing import looks_folder
from glancefocus.evaluation.full_report import Training, read_metrics, write_report_page
from glancefocus.evaluation.recording import record_looks
from glancefocus.training.run_folder import BUNDLE_FOLDER, REPORT_FOLDER
from glancefocus.training.settings import TrainSettings


def write_run_report(bundle: Bundle, data: Data, settings: TrainSettings, folder: Path) -> Path:
    """Write the page into the run's folder; returns its file."""
    source = settings.data.source
    record = record_looks(
        bundle, data.val, looks_folder(folder / BUNDLE_FOLDER), source=source, name="val", workers=settings.data.workers
    )
    findings = replace(
        assess(bundle, record, chose=True), aims=bundle.notes.get("aims"), verdict=bundle.notes.get("verdict")
    )
    write_report_page(
        folder / REPORT_FOLDER,
        findings,
        bundle,
        title=f"{folder.name}: {settings.network.backbone} on {source}",
        record=record,
        split=data.val,
        training=Training(read_metrics(folder), bundle.notes.get("images", {}), data.train),
    )
    return folder / REPORT_FOLDER / "report.html"
