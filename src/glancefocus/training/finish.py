"""What is measured and written after the last stage: the bundle with thresholds for every budget."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.sources import Data
from glancefocus.errors import GlancefocusError
from glancefocus.evaluation.assess import BEST_ACCURACY, assess, look_table
from glancefocus.evaluation.choosing import looks_folder
from glancefocus.evaluation.full_report import Training, read_training_curves, write_report_page
from glancefocus.evaluation.judge import Weights, judge
from glancefocus.evaluation.records import record_looks
from glancefocus.evaluation.rivals import tuned_files
from glancefocus.exits.budget import solve_curve, solve_within
from glancefocus.exits.curve import frozen
from glancefocus.network.macs import count_costs
from glancefocus.network.model import GlanceFocus
from glancefocus.progress import Progress
from glancefocus.settings import to_plain
from glancefocus.training.checkpoint import load_checkpoint
from glancefocus.training.journal import read_metrics
from glancefocus.training.run_folder import (
    BACKBONE_FILE,
    BUNDLE_FOLDER,
    CHECKPOINT_FILE,
    REPORT_FOLDER,
    SETTINGS_FILE,
    alike,
    settings_of,
)
from glancefocus.training.settings import TrainSettings


def finish_bundle(
    net: GlanceFocus, data: Data, settings: TrainSettings, folder: Path, tell: Progress | None = None
) -> Bundle:
    """A bundle with thresholds for every budget, chosen on the validation data; what they were chosen from is kept beside it.

    tell  is called with (what, done, total) while rivals answer
    """
    splits = {"train": data.train, "val": data.val, "test": data.test}
    notes: dict[str, Any] = {
        "data": settings.data.source,
        "data_settings": to_plain(settings.data),
        **({} if settings.weights is None else {"weights": Path(settings.weights).name}),
        "images": {name: len(split) for name, split in splits.items() if split is not None},
    }
    bundle = Bundle(net, data.classes, count_costs(settings.network), notes=notes, split=data.record)
    record = record_looks(
        bundle,
        data.val,
        looks_folder(folder / BUNDLE_FOLDER),
        source=settings.data.source,
        name="val",
        workers=settings.data.workers,
    )
    table = look_table(bundle, record)
    if len(table) > 1:
        bundle.curve = solve_curve(table)
        bundle.thresholds = frozen(solve_within(table, None).tolist())
    bundle.notes |= {
        "validation_accuracy_per_look": [round(a, 4) for a in table.accuracy_after_look],
        "thresholds_chosen_on": f"{settings.data.source}, val",
        "thresholds_data": record.about.data,
        "thresholds_for": BEST_ACCURACY,
    }
    aims = last_aims(folder)
    if aims is not None:
        bundle.notes["aims"] = aims
    if settings.rivals != "none":
        weights = Weights(folder / BACKBONE_FILE, tuned_files(folder))
        looks, workers = looks_folder(folder / BUNDLE_FOLDER), settings.data.workers
        verdict = judge(bundle, record, data.val, weights, looks, workers=workers, progress=tell)
        bundle.notes["verdict"] = verdict.to_plain()
    return bundle


def last_aims(folder: Path) -> dict[str, Any] | None:
    """The last comparison of learnt aims with others in a run's journal, see evaluation/aims.py; None where there is none."""
    return next((row["aims"] for row in reversed(read_metrics(folder)) if "aims" in row), None)


def finished_bundle(settings: TrainSettings, folder: Path) -> Bundle | None:
    """The bundle of a run with exactly these settings that is done; None where something is left to do."""
    there = (folder / BUNDLE_FOLDER).is_dir() and (folder / SETTINGS_FILE).exists()
    if not there or not alike(settings_of(folder), settings):
        return None
    checkpoint = load_checkpoint(folder / CHECKPOINT_FILE)
    if checkpoint is None or checkpoint.plan != settings.plan() or checkpoint.stage < len(checkpoint.plan):
        return None
    try:
        bundle = Bundle.load(folder / BUNDLE_FOLDER)
    except GlancefocusError:
        return None  # it is written again
    weights = bundle.net.state_dict()
    # Stages may have been added after it was written.
    same = weights.keys() == checkpoint.net.keys() and all(
        torch.equal(weights[name].cpu(), tensor) for name, tensor in checkpoint.net.items()
    )
    return bundle if same else None


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
        training=Training(read_training_curves(folder), bundle.notes.get("images", {}), data.train),
    )
    return folder / REPORT_FOLDER / "report.html"
