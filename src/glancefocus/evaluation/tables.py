"""Tables of an evaluation for the terminal, for the report page (HTML) and for programs (CSV); and the frame of the page."""

import csv
import html
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from rich.markup import escape
from rich.table import Table

from glancefocus.errors import BadRun
from glancefocus.evaluation.assess import Answers, Findings, accuracy_by_class
from glancefocus.evaluation.figures import expected_looks, look_names
from glancefocus.evaluation.verdict import Verdict, macs_words
from glancefocus.exits.curve import Point, Unit
from glancefocus.exits.record import short_noun, view_label
from glancefocus.files import write_file
from glancefocus.values import csv_cell, one_line

Rows = list[tuple[str, list[str]]]
"""Rows of a table: a name and its cells."""
Value = TypeVar("Value")

SCORE_BUDGETS, SIZE_BUDGETS, TERMINAL_BUDGETS = 6, 9, 8
SCORE_ORDER = ("random", "entropy", "confidence", "value")
NO_POINT = "--"
VERDICT_COLUMNS = ("accuracy", "95 % interval", "multiply-adds", "ms")
BUDGET_COLUMNS = (
    "glancefocus",
    "best rival",
    "difference in points",
    "95 % interval",
    "2 standard errors",
    "nearest rival",
)

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }
h1 { font-size: 1.6rem; overflow-wrap: anywhere; } h2 { font-size: 1.2rem; margin-top: 2.2rem; border-bottom: 1px solid #ddd; }
h3 { font-size: 1rem; margin-bottom: .4rem; }
table { border-collapse: collapse; margin: .8rem 0; display: block; overflow-x: auto; }
td, th { padding: .25rem .8rem; border-bottom: 1px solid #eee; text-align: right; }
td + td { white-space: nowrap; } td:first-child, th:first-child { text-align: left; }
.budgets td:first-child { white-space: nowrap; }
.budgets td:last-child, .budgets th:last-child { white-space: normal; text-align: left; min-width: 13rem; }
.row { display: flex; flex-wrap: wrap; gap: 1rem; align-items: flex-start; } .row > * { margin: 0; }
svg { max-width: 100%; height: auto; } figure { margin: 0; } figcaption, .note { color: #555; font-size: .85rem; }
.figures { display: grid; gap: 1.5rem 1rem; margin: 1rem 0; }
.figures { grid-template-columns: repeat(auto-fill, minmax(min(31rem, 100%), 1fr)); }
.figures > :last-child:nth-child(odd) { grid-column: 1 / -1; display: flex; flex-wrap: wrap; gap: 1rem; align-items: center; }
.figures > :last-child:nth-child(odd) figcaption { flex: 1 1 14rem; }
img.sheet { max-width: 100%; height: auto; }
.gallery figure { width: 15.5rem; } .gallery img { width: 100%; image-rendering: auto; }
@media (max-width: 40rem) {
  body { margin: 1rem auto; padding: 0 .7rem; } table { font-size: .78rem; } td, th { padding: .25rem .3rem; }
  td:first-child { overflow-wrap: anywhere; min-width: 6rem; } .gallery figure { width: calc(50% - .5rem); }
}
"""


def percent(share: float, images: int) -> str:
    """A share of images in percent; with one decimal if there are at most 1000 images, otherwise with two."""
    return f"{100 * share:.{_decimals(images)}f} %"


def _decimals(images: int) -> int:
    return 1 if images <= 1000 else 2


def interval_words(point: Point, images: int) -> str:
    """The 95 % interval of a point's accuracy; empty if it is not known."""
    if "accuracy_low" not in point or "accuracy_high" not in point:
        return ""
    return f"{100 * point['accuracy_low']:.{_decimals(images)}f} to {percent(point['accuracy_high'], images)}"


def evenly(values: Sequence[Value], count: int) -> list[Value]:
    """At most this many of the values, evenly spaced, with the first and the last among them."""
    if len(values) <= count:
        return list(values)
    return [values[round(place * (len(values) - 1) / (count - 1))] for place in range(count)]


def ranks(values: Sequence[float | None]) -> list[int | None]:
    """1 for the best value, 2 for the second best, the same rank for equal values; None for all others."""
    best = sorted({value for value in values if value is not None}, reverse=True)[:2]
    return [best.index(value) + 1 if value in best else None for value in values]


def point_within(curve: Sequence[Point], budget_macs: float) -> Point | None:
    """The point with the largest budget up to this one; None if the curve has none, or ends below this budget."""
    ordered = sorted(curve, key=lambda point: point["budget_macs"])
    rounding = 1 - 1e-9  # the same budget may have been computed in two ways
    within = [point for point in ordered if point["budget_macs"] * rounding <= budget_macs]
    return within[-1] if within and ordered[-1]["budget_macs"] >= budget_macs * rounding else None


def look_rows(findings: Findings) -> Rows:
    """Accuracy, cost, calibration, thresholds and exits, one column for each look."""
    images, chosen = findings.images, findings.chosen
    rows = [
        ("accuracy", [percent(share, images) for share in findings.accuracy_after_look]),
        ("multiply-adds", [macs_words(macs) for macs in findings.macs_after_look]),
    ]
    if findings.ms_after_look is not None:
        rows.append(("milliseconds", [f"{ms:.2f}" for ms in findings.ms_after_look]))
    if findings.calibration_error:
        rows.append(("calibration error", [f"{100 * error:.1f} %" for error in findings.calibration_error]))
    rows += _threshold_rows(findings)
    exits = chosen["exits_per_look"]
    rows.append(("images that stop here", [f"{100 * count / sum(exits):.1f} %" for count in exits]))
    right = ["" if share is None else f"{100 * share:.1f} %" for share in chosen["accuracy_of_exits"]]
    rows.append(("of these correct", right))
    return rows


def threshold_text(value: float) -> str:
    """A threshold for people. Scores are in [0, 1], so that every image is above a negative threshold, and none above 1."""
    return "all stop" if value < 0 else "none stops" if value >= 1 else f"{value:.3f}"


def _threshold_rows(findings: Findings) -> Rows:
    """One row for each view that thresholds choose among; the last look has no threshold, since every image stops there."""
    *thresholds, _ = findings.chosen["thresholds"]
    if not findings.chooses_views:
        return [("threshold", [*map(threshold_text, thresholds), ""])]
    return [
        (f"threshold for {view_label(view)}", [*(threshold_text(values[size]) for values in thresholds), ""])
        for size, view in enumerate(findings.views)
    ]


def verdict_rows(verdict: Verdict) -> Rows:
    """One row for each rival, and one for glancefocus; the cells are those of VERDICT_COLUMNS."""
    rows = []
    for point in verdict.points:
        name = f"{point.name} (whole image)" if point.kind == "backbone" else point.name
        interval = f"{100 * point.accuracy_low:.1f} to {100 * point.accuracy_high:.1f} %"
        ms = "" if point.mean_ms is None else f"{point.mean_ms:.2f}"
        rows.append((name, [f"{100 * point.accuracy:.1f} %", interval, macs_words(point.mean_macs), ms]))
    return rows


def budget_rows_words(verdict: Verdict, unit: Unit) -> Rows:
    """One row for each budget in this unit; the cells are those of BUDGET_COLUMNS."""
    return [
        (
            macs_words(row.budget) if unit == "macs" else f"{row.budget:.2f} ms",
            [
                f"{100 * row.accuracy:.1f} %",
                f"{100 * row.rival_accuracy:.1f} %",
                f"{100 * row.difference:+.1f}",
                f"{100 * row.difference_low:+.1f} to {100 * row.difference_high:+.1f}",
                f"{100 * row.two_standard_errors:.1f}",
                row.rival,
            ],
        )
        for row in verdict.budgets
        if row.unit == unit
    ]


def summary_tables(findings: Findings) -> list[Table]:
    """For the terminal: accuracy and cost of every look, and the results for some budgets."""
    per_look = Table(title=f"{escape(one_line(findings.data))}: {findings.images:,} images")
    names = look_names(len(findings.accuracy_after_look))
    for column in ("", *names):
        per_look.add_column(column, justify="right" if column else "left")
    for name, cells in look_rows(findings):
        per_look.add_row(name, *cells)
    return [per_look, _budget_summary(findings, names)] if findings.curve else [per_look]


def _budget_summary(findings: Findings, names: Sequence[str]) -> Table:
    budgets = Table(title=f"thresholds chosen on {escape(one_line(findings.chosen_on))}")
    with_ms = all("mean_ms" in point for point in findings.curve)
    for column in ("budget", "multiply-adds", *(["ms"] if with_ms else []), "accuracy", "95 % interval"):
        budgets.add_column(column, justify="right", no_wrap=True)
    for name in names:
        budgets.add_column(f"stop at {name}" if name == "glance" else name, justify="right")
    for point in evenly(findings.curve, TERMINAL_BUDGETS):
        budgets.add_row(
            macs_words(point["budget_macs"]),
            macs_words(point["mean_macs"]),
            *([f"{point['mean_ms']:.2f}"] if with_ms else []),
            percent(point["accuracy"], findings.images),
            interval_words(point, findings.images),
            *(f"{100 * count / sum(point['exits_per_look']):.0f} %" for count in point["exits_per_look"]),
        )
    return budgets


def verdict_table(verdict: Verdict) -> Table | None:
    """For the terminal: the backbone, its rivals and glancefocus; None if nothing was compared."""
    if not verdict.points:
        return None
    table = Table(
        title=f"glancefocus and its rivals on {verdict.images:,} images ({escape(one_line(str(verdict.data)))})"
    )
    table.add_column("")
    for column in VERDICT_COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for name, cells in verdict_rows(verdict):
        table.add_row(escape(name), *cells, style="bold" if name == "glancefocus" else None)
    return table


def verdict_lines(verdict: Verdict) -> list[str]:
    """The lines below the table: remarks, and the sentence last."""
    ms = [f"ms: median for one image on {verdict.device}"] if verdict.device else []
    return [*ms, *verdict.remarks, verdict.sentence]


def score_table(findings: Findings) -> str:
    """Accuracy of each exit score at some budgets, as HTML; the best in bold."""
    known = [score for score in SCORE_ORDER if score in findings.scores]
    order = [*known, *(score for score in findings.scores if score not in known)]
    curves = {html.escape(score): findings.scores[score] for score in order}
    budgets = sorted({point["budget_macs"] for curve in curves.values() for point in curve})
    return budget_table(curves, evenly(budgets, SCORE_BUDGETS), findings.images, {1: "strong"})


def size_table(findings: Findings) -> str:
    """Accuracy with each candidate view at some budgets, as HTML; the best in bold, the second best underlined."""
    curves = {f"{view_label(view)} (fixed)": curve for view, curve in findings.fixed_size_curves.items()}
    curves[f"{short_noun(findings.views)} chosen"] = findings.curve
    budgets = sorted({point["budget_macs"] for point in findings.curve})
    return budget_table(curves, evenly(budgets, SIZE_BUDGETS), findings.images, {1: "strong", 2: "u"})


def budget_table(
    curves: Mapping[str, Sequence[Point]], budgets: Sequence[float], images: int, tags: Mapping[int, str]
) -> str:
    """Accuracy of each curve at each budget, as HTML; tags: the HTML tags for the best (1) and second best (2) of a column."""
    columns = []
    for budget in budgets:
        points = [point_within(curve, budget) for curve in curves.values()]
        # Rounded as printed, so that equal numbers are marked alike.
        values = [None if p is None else round(100 * p["accuracy"], _decimals(images)) for p in points]
        columns.append([_marked(*cell, images, tags) for cell in zip(values, ranks(values), strict=True)])
    rows = [(name, [column[row] for column in columns]) for row, name in enumerate(curves)]
    return table_html([macs_words(budget) for budget in budgets], rows)


def _marked(value: float | None, rank: int | None, images: int, tags: Mapping[int, str]) -> str:
    if value is None:
        return NO_POINT
    text = f"{value:.{_decimals(images)}f} %"
    return f"<{tags[rank]}>{text}</{tags[rank]}>" if rank is not None and rank in tags else text


def csv_files(findings: Findings, answers: Answers | None = None) -> dict[str, bytes]:
    """{file name: content} of the tables for programs; answers: for the accuracy per class."""
    views = findings.views
    scores = [{"score": score, **flat(point, views)} for score, curve in findings.scores.items() for point in curve]
    sizes = [
        {"view": view, **flat(point, views)} for view, curve in findings.fixed_size_curves.items() for point in curve
    ]
    bins = [{"look": look, **each} for look, row in enumerate(findings.reliability, start=1) for each in row]
    files = {
        "curve.csv": csv_text(
            [flat(point, views) for point in findings.curve], ["budget_macs", "mean_macs", "accuracy"]
        ),
        "reliability.csv": csv_text(bins, ["look", "confidence", "accuracy", "count"]),
    }
    if scores:
        files["scores.csv"] = csv_text(scores)
    if sizes:
        files["fixed_sizes.csv"] = csv_text(sizes)
    if findings.verdict is not None and findings.verdict.points:
        files["rivals.csv"] = csv_text(verdict_csv_rows(findings.verdict))
    if findings.verdict is not None and findings.verdict.budgets:
        files["rival_budgets.csv"] = csv_text([asdict(row) for row in findings.verdict.budgets])
    if answers is not None:
        files["classes.csv"] = csv_text(class_csv_rows(answers))
    return files


def flat(point: Point, views: Sequence[str]) -> dict[str, Any]:
    """An operating point as one row: lists become columns, named by look and candidate view."""
    row: dict[str, Any] = {name: value for name, value in point.items() if not isinstance(value, (list, tuple))}
    row["expected_looks"] = expected_looks(point)
    labels = [view_label(view).replace(" ", "") for view in views]
    for look, count in enumerate(point["exits_per_look"], start=1):
        row[f"leave_after_look_{look}"] = count
    for look, value in enumerate(point["thresholds"], start=1):
        if isinstance(value, (list, tuple)):
            row |= {f"threshold_look_{look}_{label}": each for label, each in zip(labels, value, strict=True)}
        else:
            row[f"threshold_look_{look}"] = value
    for look, counts in enumerate(point.get("patches_per_look_and_size", ()), start=2):
        row |= {f"patches_look_{look}_{label}": count for label, count in zip(labels, counts, strict=True)}
    return row


def verdict_csv_rows(verdict: Verdict) -> list[dict[str, Any]]:
    """One row for each rival and for glancefocus."""
    return [
        {**asdict(point), "px": " ".join(f"{height}x{width}" for height, width in point.px)} for point in verdict.points
    ]


def class_csv_rows(answers: Answers) -> list[dict[str, Any]]:
    """One row for each class."""
    return [
        {
            "class": each.name,
            "images": each.images,
            "right": each.right,
            "accuracy": each.accuracy,
            "accuracy_low": each.low,
            "accuracy_high": each.high,
        }
        for each in accuracy_by_class(answers)
    ]


def csv_text(rows: Sequence[Mapping[str, Any]], columns: Iterable[str] = ()) -> bytes:
    """Rows as CSV with the names of all columns on top; the given columns come first, and exist even without rows."""
    names = dict.fromkeys([*columns, *(name for row in rows for name in row)])
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: csv_cell(v) if isinstance(v, str) else v for k, v in row.items()} for row in rows)
    return stream.getvalue().encode()


def page_of(title: str, sections: Sequence[str]) -> str:
    """A whole HTML page; the sections are HTML, the title is text."""
    body = "\n".join(sections)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>{body}</body></html>\n'
    )


def replace_file(file: Path, content: bytes) -> None:
    """Write a file atomically; the error message names the file and the reason."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_file(file, lambda stream: stream.write(content))
    except OSError as error:
        raise BadRun(
            f"{file} could not be written ({error.strerror or error}). Choose another folder, or free some disk space."
        ) from error


def table_html(columns: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    """A table from (name, cells) rows; names, cells and columns must be HTML already."""
    head = "".join(f"<th>{column}</th>" for column in columns)
    lines = (f"<tr><td>{name}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" for name, cells in rows)
    return f"<table><tr><th></th>{head}</tr>{''.join(lines)}</table>"


def escaped(rows: Rows) -> Rows:
    """Rows of text as rows of HTML."""
    return [(html.escape(name), [html.escape(cell) for cell in cells]) for name, cells in rows]


def side_by_side(figures: Sequence[tuple[str, str]]) -> str:
    """Figures and their captions, both HTML."""
    shown = "".join(f"<figure>{svg}<figcaption>{caption}</figcaption></figure>" for svg, caption in figures)
    return f'<div class="figures">{shown}</div>' if shown else ""


def small_print(text: str) -> str:
    """A remark in small print; text is HTML."""
    return f'<p class="note">{text}</p>'


def gallery_sections(gallery: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """One section of HTML for each (heading, pictures as data URLs)."""
    sections = []
    for heading, urls in gallery:
        words = html.escape(heading)
        figures = "".join(f'<figure><img src="{html.escape(url)}" alt="{words}"></figure>' for url in urls)
        sections.append(f'<h2>{words}</h2><div class="row gallery">{figures}</div>')
    return sections
