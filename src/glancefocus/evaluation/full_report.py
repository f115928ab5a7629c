"""The whole report of a bundle on labelled images: what was found, classes, mistakes, a gallery, and how it was trained."""

import contextlib
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glancefocus.bundle.bundle import Bundle
from glancefocus.costs import MOST_LOOKS
from glancefocus.data.splits import Split
from glancefocus.errors import BadBundle, BadSetting
from glancefocus.escaping import figure_text, one_line
from glancefocus.evaluation.by_class import Answers, answers_of, class_rows, class_sections, examples, worst_mistakes
from glancefocus.evaluation.figures import as_svg, loss_figure, training_figure
from glancefocus.evaluation.findings import Findings
from glancefocus.evaluation.findings_report import write_findings
from glancefocus.evaluation.galleries import draw_rows, sheet_of_views
from glancefocus.evaluation.report import gallery_sections, table_html
from glancefocus.exits.record import LookRecord
from glancefocus.files import read_file
from glancefocus.values import Fields, number_of, parse_json

EXAMPLES_EACH, MISTAKES = 4, 8
_MOST_JOURNAL_BYTES, _MOST_SPLITS = 64 << 20, 20


@dataclass(frozen=True)
class Training:
    """What a report says of the run that made the bundle.

    metrics  rows of the run's journal
    images   {split: number of images}
    train    the training images, for a sheet of what the network sees of them; None: left out
    """

    metrics: Sequence[dict[str, Any]]
    images: dict[str, int]
    train: Split | None = None


def write_report_page(
    folder: Path,
    findings: Findings,
    bundle: Bundle,
    *,
    title: str,
    record: LookRecord | None = None,
    split: Split | None = None,
    training: Training | None = None,
) -> None:
    """Write report.html, figures and numbers; sections for which there is nothing to show are left out.

    record  of the images that were measured; None: no section on classes
    split   the same images, to draw; None: no gallery
    """
    sections: list[str] = []
    files: dict[str, list[dict[str, Any]]] = {}
    if record is not None:
        answers = answers_of(bundle, record)
        sections += class_sections(answers)
        files["classes.csv"] = class_rows(answers)
        if split is not None:
            sections += _pictures(bundle, split, answers)
    if training is not None:
        sections += _training_sections(bundle, training)
    write_findings(folder, findings, title=title, more=sections, more_csv=files)


def read_training_curves(run: Path) -> list[dict[str, Any]]:
    """The rows of a run's journal that can be read; none where there is no journal."""
    rows = []
    try:
        lines = read_file(run / "metrics.jsonl", _MOST_JOURNAL_BYTES).split(b"\n")
    except OSError:
        return []
    for line in lines:
        with contextlib.suppress(BadSetting):  # cut off, or of something else
            rows.append(_read_row(parse_json(line)))
    return rows


def _read_row(plain: Any) -> dict[str, Any]:
    """What is drawn of an epoch: its stage, loss and accuracies, checked."""
    fields = Fields(plain, "row")
    row: dict[str, Any] = {
        "stage": figure_text(fields.text("stage", 100)),
        "stage_number": fields.whole("stage_number", 0, 10_000),
        "val_accuracy": fields.listed("val_accuracy", MOST_LOOKS, lambda value, name: number_of(value, name, 0.0, 1.0)),
    }
    return row | ({"loss": fields.number("loss", -1e9, 1e9)} if "loss" in fields.plain else {})


def noted_images(notes: Mapping[str, Any]) -> dict[str, int]:
    """How many images each split had in training, as a bundle's notes say; checked."""
    try:
        fields = Fields(notes.get("images", {}), "notes.images")
        return {one_line(name, 100): fields.whole(name, 0, 10**12) for name in list(fields.plain)[:_MOST_SPLITS]}
    except BadSetting as error:
        raise BadBundle(f"the bundle is damaged: {error}") from None


def _pictures(bundle: Bundle, split: Split, answers: Answers) -> list[str]:
    mistakes = worst_mistakes(answers, MISTAKES)
    chosen = examples(answers, EXAMPLES_EACH)
    if mistakes:
        chosen.append(("Worst mistakes: wrong, and confident", mistakes))
    return gallery_sections([(heading, draw_rows(bundle, split, rows)) for heading, rows in chosen])


def _training_sections(bundle: Bundle, training: Training) -> list[str]:
    sections = ["<h2>Training</h2>"]
    if training.images:
        rows = [(html.escape(name), [f"{count:,}"]) for name, count in training.images.items()]
        sections.append(table_html(("images",), rows))
    if training.metrics:
        figures = (
            (training_figure(training.metrics), "Accuracy on validation images after each epoch."),
            (loss_figure(training.metrics), "Mean loss of each epoch; every stage has a loss of its own."),
        )
        drawn = "".join(f"<figure>{as_svg(figure)}<figcaption>{text}</figcaption></figure>" for figure, text in figures)
        sections.append(f'<div class="figures">{drawn}</div>')
    sheet = None if training.train is None else sheet_of_views(training.train, bundle.settings.view)
    if sheet is not None:
        sections.append(
            f'<h3>What the network sees while it learns</h3><img class="sheet" src="{sheet}" alt="augmented training images">'
            '<p class="note">Each row is one training image as it is seen in different epochs.</p>'
        )
    return sections
