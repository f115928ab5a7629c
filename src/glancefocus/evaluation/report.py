"""The report of a bundle on labelled images: one HTML page that needs no other file, with numbers and figures beside it.

`gf demo`, `gf train` and `gf evaluate` write the same page; sections without data are left out.
"""

import contextlib
import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.splits import Split
from glancefocus.errors import BadBundle, BadSetting
from glancefocus.evaluation.assess import (
    Answers,
    Findings,
    accuracy_by_class,
    answers_of,
    examples,
    frequent_confusions,
    worst_mistakes,
)
from glancefocus.evaluation.boxes import draw_rows, sheet_of_views
from glancefocus.evaluation.every_look import AimsCheck, Comparison
from glancefocus.evaluation.figures import (
    MOST_NUMBERED,
    Epoch,
    aims_figure,
    as_png,
    as_svg,
    confusion_figure,
    draw_findings,
    expected_looks,
    look_names,
    loss_figure,
    training_figure,
)
from glancefocus.evaluation.tables import (
    BUDGET_COLUMNS,
    NO_POINT,
    VERDICT_COLUMNS,
    Rows,
    budget_rows_words,
    csv_files,
    escaped,
    gallery_sections,
    interval_words,
    look_rows,
    page_of,
    percent,
    replace_file,
    score_table,
    side_by_side,
    size_table,
    small_print,
    table_html,
    threshold_text,
    verdict_rows,
)
from glancefocus.evaluation.verdict import Verdict, macs_words
from glancefocus.exits.curve import Unit
from glancefocus.exits.record import LookRecord, short_noun, view_words, views_noun
from glancefocus.machine import parse_json, read_file
from glancefocus.values import MOST_LOOKS, Fields, figure_text, number_of, one_line

PAGE = "report.html"
OPTIONAL_FILES = ("scores.csv", "fixed_sizes.csv", "rivals.csv", "rival_budgets.csv", "classes.csv")
EXAMPLES_EACH, MISTAKES = 4, 8
MOST_CLASSES_DRAWN, MOST_ROWS, MOST_CONFUSIONS = 40, 40, 20
_MOST_JOURNAL_BYTES, _MOST_SPLITS = 64 << 20, 20


@dataclass(frozen=True)
class Training:
    """What a report shows of the run that made the bundle.

    epochs  from the run's journal
    images  {split: number of images}
    train   the training images, to show their augmentation; None: left out
    """

    epochs: Sequence[Epoch]
    images: Mapping[str, int]
    train: Split | None = None


def write_report(
    folder: Path,
    findings: Findings,
    bundle: Bundle,
    *,
    title: str,
    record: LookRecord | None = None,
    split: Split | None = None,
    training: Training | None = None,
    comparison: Comparison | None = None,
) -> None:
    """Write the page, the numbers (JSON, CSV) and the figures; files of an earlier report that no longer apply are deleted.

    record      of the images that were measured; None: no section on classes
    split       the same images, to draw them; None: no gallery
    comparison  with other aims and the plain backbone, on the same images
    """
    numbers = json.dumps(findings.to_plain(), indent=1, allow_nan=False)
    answers = None if record is None else answers_of(bundle, record)
    figures = draw_findings(findings)
    if aims := _aims_accuracy(findings.aims, comparison):
        figures["aims"] = aims_figure(aims)
    svg = {name: as_svg(figure) for name, figure in figures.items()}
    sections = [f"<h1>{html.escape(title)}</h1>", *_finding_sections(findings, bundle, comparison, svg)]
    if answers is not None:
        sections += class_sections(answers)
        sections += [] if split is None else _pictures(bundle, split, answers)
    if training is not None:
        sections += _training_section(bundle, training)
    files = {"findings.json": numbers.encode(), **csv_files(findings, answers)}
    files |= {f"figures/{name}.svg": content.encode() for name, content in svg.items()}
    files |= {f"figures/{name}.png": as_png(figure) for name, figure in figures.items()}
    files[PAGE] = page_of(title, sections).encode()
    for name, content in files.items():
        replace_file(folder / name, content)
    for name in (
        *OPTIONAL_FILES,
        *(f"figures/{name}.{kind}" for name in _captions(findings) for kind in ("svg", "png")),
    ):
        if name not in files:
            (folder / name).unlink(missing_ok=True)


def _finding_sections(
    findings: Findings, bundle: Bundle, comparison: Comparison | None, svg: Mapping[str, str]
) -> list[str]:
    captions = _captions(findings)

    def figures(*names: str) -> str:
        return side_by_side([(svg[name], captions[name]) for name in names if name in svg])

    sections = [
        *_overview(findings, bundle),
        *_backbone_sentence(comparison),
        *verdict_section(findings.verdict, figures("rivals", "rivals_over_ms")),
        *_aims_section(findings, comparison, figures("aims")),
    ]
    if findings.curve:
        sections.append("<h2>Accuracy for a budget</h2>")
        sections.append(figures("accuracy_over_macs", "accuracy_over_ms", "expected_looks", "patch_sizes"))
    if findings.fixed_size_curves:
        note = (
            "Accuracy for an average budget of multiply-adds. Best in bold, second best underlined; "
            f"{NO_POINT} if looks at this view cannot use up the budget."
        )
        heading = f"Fixed {views_noun(findings.views)}, and {short_noun(findings.views)} chosen per look"
        sections += [f"<h2>{heading}</h2>", size_table(findings), small_print(note)]
    sections += _look_section(findings, figures("accuracy_per_look", "exits"))
    if findings.scores or findings.reliability:
        sections.append("<h2>When it stops</h2>")
    if findings.scores:
        note = "Accuracy for an average budget of multiply-adds, by exit score. Best in bold."
        sections += [score_table(findings), small_print(note)]
    return [*sections, figures("exit_scores", "reliability")]


def _captions(findings: Findings) -> dict[str, str]:
    """The caption of every figure that a report can have, as HTML."""
    device = html.escape(findings.device or "this device")
    return {
        "rivals": "Accuracy over multiply-adds: glancefocus and the best rivals (cascades, and mixes of sizes) at several budgets, "
        "and the backbone alone on the whole image and on resized images. Stars, with 95 % intervals: at the bundle's own cost.",
        "rivals_over_ms": "The same over milliseconds for one image. Thresholds and rivals were chosen by milliseconds.",
        "aims": "Accuracy if every image takes 1, 2, ... looks, with aims that are learnt, random, or fixed.",
        "accuracy_over_macs": "Accuracy over multiply-adds. The dotted line is the cost of the plain backbone on the whole image; "
        "the squares are 1, 2, ... looks for every image.",
        "accuracy_over_ms": f"Accuracy over milliseconds, measured on {device}.",
        "accuracy_per_look": "Accuracy if every image takes 1, 2, ... looks.",
        "exits": "Images that stop after each look with the bundle's thresholds, and the share of correct answers among them.",
        "expected_looks": "Accuracy over the mean number of looks per image, E(t). Only the thresholds differ between the points; "
        "nothing was trained again.",
        "patch_sizes": "The share of each candidate view among all focus looks. The glance is not counted.",
        "exit_scores": "The same network with other exit scores.",
        "reliability": "Accuracy over confidence. Above the diagonal, answers are correct more often than their confidence "
        "suggests, below it less often. The error is the expected calibration error. Below: the number of images in each bin; "
        "bins of few images are uncertain.",
    }


def _overview(findings: Findings, bundle: Bundle) -> list[str]:
    chosen, images, network = findings.chosen, findings.images, bundle.settings
    interval = interval_words(chosen, images)
    ratio = findings.backbone_macs / chosen["mean_macs"]
    compared = f"{ratio:.1f} times fewer than" if ratio >= 1 else f"{1 / ratio:.1f} times as many as"
    ms = f", and {chosen['mean_ms']:.2f} ms on {findings.device or 'this device'}" if "mean_ms" in chosen else ""
    sentences = [
        f"Measured on {findings.data}: {images:,} images. Thresholds were chosen on {findings.chosen_on}.",
        f"With the bundle's own thresholds on the {findings.score} ({_threshold_words(findings)}), "
        f"{percent(chosen['accuracy'], images)} of the answers are correct{f' (95 % interval {interval})' if interval else ''}, "
        f"for {macs_words(chosen['mean_macs'])} multiply-adds on average, {compared} the backbone on the whole image "
        f"({macs_words(findings.backbone_macs)}), with {expected_looks(chosen):.2f} looks on average{ms}.",
        f"The network: {network.backbone}, images of {network.view.height_px}x{network.view.width_px} px, "
        f"{network.first_words}, {view_words(findings.views)}, up to {network.looks} looks.",
        *findings.remarks,
    ]
    return [f"<p>{html.escape(sentence)}</p>" for sentence in sentences]


def _threshold_words(findings: Findings) -> str:
    """The thresholds of all looks but the last, where every image stops."""
    *thresholds, _ = findings.chosen["thresholds"]
    if findings.chooses_views:
        return "see the table of looks"
    names = ["the glance", *look_names(len(thresholds) + 1)[1:]]
    words = [f"{threshold_text(value)} at {name}" for value, name in zip(thresholds, names, strict=False)]
    return ", ".join(words) or "none: there is one look"


def verdict_section(verdict: Verdict | None, figure: str = "") -> list[str]:
    """The comparison with the rivals, as HTML; figure is HTML already."""
    if verdict is None:
        return []
    sections = [f"<h2>Verdict</h2><p><strong>{html.escape(verdict.sentence)}</strong></p>"]
    if verdict.points:
        where = f"Measured on {verdict.data}: " if verdict.data else ""
        note = (
            f"{where}{verdict.images:,} images. The thresholds of glancefocus and of the cascade were chosen on other images than "
            "those that they are measured on."
        )
        note += f" Milliseconds are medians for one image on {verdict.device}." if verdict.device else ""
        table = table_html(VERDICT_COLUMNS, escaped(verdict_rows(verdict)))
        sections += [table, small_print(html.escape(" ".join([note, *verdict.remarks]))), figure]
    return [*sections, *_budget_tables(verdict)]


def _budget_tables(verdict: Verdict) -> list[str]:
    """The comparison at several budgets: of multiply-adds, and of milliseconds if they were measured."""
    sections = []
    units: dict[Unit, str] = {"macs": "multiply-adds", "ms": "milliseconds"}
    for unit, words in units.items():
        if rows := budget_rows_words(verdict, unit):
            table = f'<div class="budgets">{table_html(BUDGET_COLUMNS, escaped(rows))}</div>'
            sections += [f"<h3>Average budgets of {words}</h3>", table]
    note = (
        "Accuracy within each budget, with thresholds that were chosen on other images. The best rival is the best mix of two; "
        "the one that answers most of its images is named. A difference whose interval includes zero may be due to chance."
    )
    return [*sections, small_print(note)] if sections else []


def _aims_accuracy(aims: AimsCheck | None, comparison: Comparison | None) -> dict[str, Sequence[float]]:
    """{kind of aims: accuracy after each look}; empty if other aims were not measured."""
    names = ("learnt aims", "random aims", "centre, then corners")
    measured: tuple[Sequence[float], ...] = ()
    if comparison is not None:
        learnt, random = comparison.accuracy_per_look, comparison.accuracy_per_look_random_aims
        measured = (learnt, random, comparison.accuracy_per_look_centre_corner)
    elif aims is not None and aims.accuracy_learnt and aims.accuracy_random and aims.accuracy_centre:
        measured = (aims.accuracy_learnt, aims.accuracy_random, aims.accuracy_centre)
    return dict(zip(names, measured, strict=False))


def _aims_section(findings: Findings, comparison: Comparison | None, figure: str) -> list[str]:
    """Learnt aims against others: measured with the report (comparison), or during training."""
    aims, accuracy = findings.aims, _aims_accuracy(findings.aims, comparison)
    sections = ["<h2>Where it looks</h2>"] if aims is not None or accuracy else []
    if aims is not None:
        sections.append(f"<p>{html.escape(aims.sentence)}</p>")
    if accuracy:
        rows: Rows = [(name, [f"{100 * share:.1f} %" for share in shares]) for name, shares in accuracy.items()]
        if comparison is not None:
            for name, per_look in comparison.hits().items():
                words = ["" if math.isnan(share) else f"{100 * share:.1f} %" for share in per_look]
                rows.append((name, words))
        images = f"{findings.images:,} images of {findings.data}" if comparison is not None else "validation images"
        note = f"Accuracy if every image takes 1, 2, ... looks, on {images}. Aims decide where focus looks are."
        names = look_names(max(map(len, accuracy.values())))
        sections += [table_html(names, escaped(rows)), small_print(html.escape(note)), figure]
    return sections


def _backbone_sentence(comparison: Comparison | None) -> list[str]:
    """How many multiply-adds the accuracy of the plain backbone takes."""
    if comparison is None or comparison.backbone_accuracy is None:
        return []
    ratio = comparison.mac_ratio_at_backbone_accuracy
    reached = "does not reach that accuracy" if ratio is None else f"reaches that accuracy with {ratio:.1f} times fewer"
    return [
        f"<p>The plain backbone on the whole image: {100 * comparison.backbone_accuracy:.1f} % with "
        f"{macs_words(comparison.backbone_macs)} multiply-adds. glancefocus {reached}.</p>"
    ]


def _look_section(findings: Findings, figures: str) -> list[str]:
    note = "Accuracy, cost and calibration error are for every image taking that many looks"
    if len(findings.views) > 1:
        note += (
            f", with {view_words(findings.views[-1:])}" if findings.chooses_views else ", with the views in their order"
        )
    note += ". An image stops if its score is above the bundle's threshold."
    if findings.chooses_views:
        note += f" With several {views_noun(findings.views)}: above all thresholds of its look; otherwise the nearest threshold "
        note += "above its score decides the view of the next look."
    table = table_html(look_names(len(findings.accuracy_after_look)), escaped(look_rows(findings)))
    return ["<h2>Looks</h2>", table, small_print(note), figures]


def class_sections(answers: Answers) -> list[str]:
    """Accuracy per class, the least accurate first, and confusions between classes, as HTML."""
    found = accuracy_by_class(answers)
    rows: Rows = [
        (
            each.name,
            [
                f"{each.images:,}",
                f"{each.right:,}",
                f"{100 * each.accuracy:.1f} %",
                f"{100 * each.low:.1f} to {100 * each.high:.1f} %",
            ],
        )
        for each in found[:MOST_ROWS]
    ]
    more = f" {len(found) - MOST_ROWS} more classes are in classes.csv." if len(found) > MOST_ROWS else ""
    sections = [
        "<h2>Classes</h2>",
        table_html(("images", "correct", "accuracy", "95 % interval"), escaped(rows)),
        small_print(f"With the bundle's own thresholds; the least accurate classes first.{more}"),
    ]
    if len(answers.classes) <= MOST_CLASSES_DRAWN:
        caption = "Images of each class (rows) by their answer (columns). Correct answers are on the diagonal."
        sections.append(side_by_side([(as_svg(confusion_figure(answers)), caption)]))
    confused = frequent_confusions(answers, MOST_CONFUSIONS)
    if confused and len(answers.classes) > MOST_NUMBERED:
        pairs: Rows = [(true, [answer, f"{count:,}"]) for true, answer, count in confused]
        sections += ["<h3>Most frequent confusions</h3>", table_html(("answer", "images"), escaped(pairs))]
    return sections


def _pictures(bundle: Bundle, split: Split, answers: Answers) -> list[str]:
    chosen = [*examples(answers, EXAMPLES_EACH), ("Most confident mistakes", worst_mistakes(answers, MISTAKES))]
    return gallery_sections([(heading, draw_rows(bundle, split, rows)) for heading, rows in chosen if rows])


def _training_section(bundle: Bundle, training: Training) -> list[str]:
    sections = []
    if training.images:
        sections.append(table_html(("images",), escaped([(name, [f"{n:,}"]) for name, n in training.images.items()])))
    if training.epochs:
        sections.append(
            side_by_side(
                [
                    (as_svg(training_figure(training.epochs)), "Accuracy on validation images after each epoch."),
                    (
                        as_svg(loss_figure(training.epochs)),
                        "Mean loss of each epoch; every stage has its own kind of loss.",
                    ),
                ]
            )
        )
    sheet = None if training.train is None else sheet_of_views(training.train, bundle.settings.view)
    if sheet is not None:
        sections.append(
            f'<h3>Training images with augmentation</h3><img class="sheet" src="{sheet}" alt="augmented training images">'
            + small_print("Each row is one training image, as the network sees it in different epochs.")
        )
    return ["<h2>Training</h2>", *sections] if sections else []


def read_training_curves(run: Path) -> list[Epoch]:
    """The rows of a run's journal that can be read; none if there is no journal."""
    rows = []
    try:
        lines = read_file(run / "metrics.jsonl", _MOST_JOURNAL_BYTES).split(b"\n")
    except OSError:
        return []
    for line in lines:
        with contextlib.suppress(BadSetting):  # a line that was cut off, or has other content
            rows.append(_read_epoch(parse_json(line)))
    return rows


def _read_epoch(plain: Any) -> Epoch:
    fields = Fields(plain, "row")
    epoch: Epoch = {
        "stage": figure_text(fields.text("stage", 100)),
        "stage_number": fields.whole("stage_number", 0, 10_000),
        "val_accuracy": fields.listed("val_accuracy", MOST_LOOKS, lambda value, name: number_of(value, name, 0.0, 1.0)),
    }
    if "loss" in fields.plain:
        epoch["loss"] = fields.number("loss", -1e9, 1e9)
    return epoch


def noted_images(notes: Mapping[str, Any]) -> dict[str, int]:
    """How many images each split had in training, from a bundle's notes; checked."""
    try:
        fields = Fields(notes.get("images", {}), "notes.images")
        return {one_line(name, 100): fields.whole(name, 0, 10**12) for name in list(fields.plain)[:_MOST_SPLITS]}
    except BadSetting as error:
        raise BadBundle(f"the bundle is damaged: {error}") from None
