"""What an evaluation found, written out: one page for people, JSON and CSV for programs, every figure as a file of its own."""

import csv
import html
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from glancefocus.escaping import csv_cell, one_line
from glancefocus.evaluation.figures import as_png, as_svg, draw_findings, expected_looks, look_names
from glancefocus.evaluation.findings import Findings
from glancefocus.evaluation.report import page_of, replace_file, table_html
from glancefocus.evaluation.verdict_report import verdict_lines_of_csv, verdict_section
from glancefocus.exits.curve import Point

SCORE_BUDGETS, SIZE_BUDGETS, TERMINAL_BUDGETS = 6, 9, 8
SCORE_ORDER = ("random", "entropy", "confidence", "value")
OPTIONAL_FILES = ("scores.csv", "fixed_sizes.csv", "rivals.csv", "classes.csv")
NO_POINT = "--"


def write_findings(
    folder: Path,
    findings: Findings,
    *,
    title: str,
    more: Sequence[str] = (),
    more_csv: dict[str, list[dict[str, Any]]] | None = None,
) -> None:
    """Write the page, the numbers and the figures; what an earlier evaluation left under our names goes away.

    more      further sections of the page, as HTML
    more_csv  {file: rows} of further tables
    """
    numbers = json.dumps(findings.to_plain(), indent=1, allow_nan=False)
    figures = draw_findings(findings)
    drawn = {name: as_svg(figure) for name, figure in figures.items()}
    files = {"findings.json": numbers.encode(), **_csv_files(findings)}
    files |= {name: _csv(rows) for name, rows in (more_csv or {}).items()}
    files |= {f"figures/{name}.svg": svg.encode() for name, svg in drawn.items()}
    files |= {f"figures/{name}.png": as_png(figure) for name, figure in figures.items()}
    files["report.html"] = page_of(title, [*_sections(title, findings, drawn), *more]).encode()
    for name, content in files.items():
        replace_file(folder / name, content)
    ours = [*OPTIONAL_FILES, *(f"figures/{name}.{kind}" for name in _captions(findings) for kind in ("svg", "png"))]
    for name in ours:
        if name not in files:
            (folder / name).unlink(missing_ok=True)


def summary_tables(findings: Findings) -> list[Table]:
    """For the terminal: accuracy and cost of every look, and what some budgets give."""
    per_look = Table(title=f"{escape(one_line(findings.data))}: {findings.images:,} images")
    names = look_names(len(findings.accuracy_after_look))
    for column in ("", *names):
        per_look.add_column(column, justify="right" if column else "left")
    for name, cells in _look_rows(findings):
        per_look.add_row(name, *cells)
    return [per_look, _budget_summary(findings, names)] if findings.curve else [per_look]


def _budget_summary(findings: Findings, names: Sequence[str]) -> Table:
    budgets = Table(title=f"thresholds chosen on {escape(one_line(findings.chosen_on))}")
    with_ms = all("mean_ms" in point for point in findings.curve)
    for column in ("budget", "multiply-adds", *(["ms"] if with_ms else []), "accuracy", "95 % interval"):
        budgets.add_column(column, justify="right", no_wrap=True)
    for name in names:
        budgets.add_column(f"leave at {name}" if name == "glance" else name, justify="right")
    for point in evenly(findings.curve, TERMINAL_BUDGETS):
        budgets.add_row(
            macs_words(point["budget_macs"]),
            macs_words(point["mean_macs"]),
            *([f"{point['mean_ms']:.2f}"] if with_ms else []),
            percent(point["accuracy"], findings.images),
            _interval(point, findings.images),
            *(f"{100 * count / sum(point['exits_per_look']):.0f} %" for count in point["exits_per_look"]),
        )
    return budgets


def evenly(values: Sequence[Any], count: int) -> list[Any]:
    """So many of the values, the first and the last among them, or all where there are fewer."""
    if len(values) <= count:
        return list(values)
    return [values[round(place * (len(values) - 1) / (count - 1))] for place in range(count)]


def ranks(values: Sequence[float | None]) -> list[int | None]:
    """1 for the best, 2 for the second best, equals alike; None for the others, and where there is no value."""
    best = sorted({value for value in values if value is not None}, reverse=True)[:2]
    return [best.index(value) + 1 if value in best else None for value in values]


def point_within(curve: Sequence[Point], budget_macs: float) -> Point | None:
    """The point of the largest budget that is within this one; None where the curve has none or ends before this budget."""
    ordered = sorted(curve, key=lambda point: float(point["budget_macs"]))
    nearly = 1 - 1e-9  # the same budget may have been worked out in two ways
    within = [point for point in ordered if point["budget_macs"] * nearly <= budget_macs]
    return within[-1] if within and ordered[-1]["budget_macs"] >= budget_macs * nearly else None


def macs_words(macs: float) -> str:
    """31.2M, 1.25G."""
    if macs >= 1e9:
        return f"{macs / 1e9:.2f}G"
    return f"{macs / 1e6:.1f}M" if macs >= 1e7 else f"{macs / 1e6:.2f}M"


def percent(share: float, images: int) -> str:
    """With no more digits than one image is worth."""
    return f"{100 * share:.{_decimals(images)}f} %"


def _decimals(images: int) -> int:
    return 1 if images <= 1000 else 2


def _interval(point: Point, images: int) -> str:
    if "accuracy_low" not in point or "accuracy_high" not in point:
        return ""
    digits = _decimals(images)
    return f"{100 * point['accuracy_low']:.{digits}f} to {percent(point['accuracy_high'], images)}"


def _csv_files(findings: Findings) -> dict[str, bytes]:
    px = findings.patch_px
    scores = [{"score": score, **flat(point, px)} for score, curve in findings.scores.items() for point in curve]
    sizes = [{"patch_px": p, **flat(point, px)} for p, curve in findings.fixed_size_curves.items() for point in curve]
    bins = [{"look": look, **each} for look, row in enumerate(findings.reliability, start=1) for each in row]
    files = {"curve.csv": _csv([flat(point, px) for point in findings.curve], ["budget_macs", "mean_macs", "accuracy"])}
    if scores:
        files["scores.csv"] = _csv(scores)
    if sizes:
        files["fixed_sizes.csv"] = _csv(sizes)
    if findings.verdict is not None and findings.verdict["points"]:
        files["rivals.csv"] = _csv(verdict_lines_of_csv(findings.verdict))
    files["reliability.csv"] = _csv(bins, ["look", "confidence", "accuracy", "count"])
    return files


def flat(point: Point, patch_px: Sequence[int]) -> dict[str, float]:
    """An operating point as one line of numbers: lists become columns that name their look, and their patch size."""
    line: dict[str, Any] = {name: value for name, value in point.items() if not isinstance(value, (list, tuple))}
    line["expected_looks"] = expected_looks(point)
    for look, count in enumerate(point["exits_per_look"], start=1):
        line[f"leave_after_look_{look}"] = count
    for look, value in enumerate(point["thresholds"], start=1):
        if isinstance(value, (list, tuple)):
            line |= {f"threshold_look_{look}_{px}px": each for px, each in zip(patch_px, value, strict=True)}
        else:
            line[f"threshold_look_{look}"] = value
    for look, counts in enumerate(point.get("patches_per_look_and_size", ()), start=2):
        line |= {f"patches_look_{look}_{px}px": count for px, count in zip(patch_px, counts, strict=True)}
    return line


def _csv(rows: Sequence[dict[str, Any]], columns: Iterable[str] = ()) -> bytes:
    """Rows under the names of all their columns; these come first, and are there without a row."""
    names = dict.fromkeys([*columns, *(name for row in rows for name in row)])
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: csv_cell(v) if isinstance(v, str) else v for k, v in row.items()} for row in rows)
    return stream.getvalue().encode()


def _sections(title: str, findings: Findings, drawn: dict[str, str]) -> list[str]:
    def figures(*names: str) -> str:
        captions = _captions(findings)
        shown = (f"<figure>{drawn[n]}<figcaption>{captions[n]}</figcaption></figure>" for n in names if n in drawn)
        return f'<div class="figures">{"".join(shown)}</div>'

    sections = [f"<h1>{html.escape(title)}</h1>", _overview(findings)]
    sections += [f"<p>{html.escape(remark)}</p>" for remark in findings.remarks]
    if findings.verdict is not None:
        sections.append(verdict_section(findings.verdict, figures("rivals")))
    if findings.aims is not None:
        sections.append(f"<p>{html.escape(findings.aims['sentence'])}</p>")
    sections.append("<h2>Accuracy for a budget</h2>")
    sections.append(figures("accuracy_over_macs", "accuracy_over_ms", "expected_looks", "patch_sizes"))
    if findings.fixed_size_curves:
        sections += ["<h2>Patches of one size, and sizes chosen</h2>", _size_table(findings)]
    sections += ["<h2>Looks</h2>", _look_table(findings), figures("accuracy_per_look", "exits")]
    if findings.scores or "reliability" in drawn:
        sections.append("<h2>When to stop</h2>")
    if findings.scores:
        sections.append(_score_table(findings))
    sections.append(figures("exit_scores", "reliability"))
    return sections


def _captions(findings: Findings) -> dict[str, str]:
    """What is under each figure, as HTML; also the names of all figures that there can be."""
    device = html.escape(findings.device or "the device")
    return {
        "rivals": "Accuracy with its 95 % interval over multiply-adds: the backbone on the whole image and on resized images, a "
        "cascade of these sizes, and glancefocus.",
        "accuracy_over_macs": "Accuracy over multiply-adds. The dotted line is what the plain backbone costs on the "
        "whole image; the squares take 1, 2, ... looks for every image.",
        "accuracy_over_ms": f"The same over milliseconds, measured on {device}.",
        "accuracy_per_look": "Accuracy when every image takes so many looks.",
        "exits": "Images that stop after each look with the bundle's thresholds, and how many of them were right.",
        "expected_looks": "Accuracy over the number of looks that an image takes on average, E(t). "
        "Only the thresholds differ between the points; nothing was trained again.",
        "patch_sizes": "The share of each patch size among all focus patches. The glance is not counted.",
        "exit_scores": "The same network, with other scores deciding who leaves.",
        "reliability": "How often the answers are right, over their confidence. Above the diagonal the network is "
        "right more often than its confidence says, below it less often. The error is the expected calibration error. "
        "Below: how many images each point stands for; points of few images say little.",
    }


def _overview(findings: Findings) -> str:
    chosen, images = findings.chosen, findings.images
    interval = _interval(chosen, images)
    ratio = findings.backbone_macs / chosen["mean_macs"]
    compared = f"{ratio:.1f} times fewer than" if ratio >= 1 else f"{1 / ratio:.1f} times as many as"
    ms = f", and {chosen['mean_ms']:.2f} ms on {findings.device or 'the device'}" if "mean_ms" in chosen else ""
    given = (
        f"{percent(chosen['accuracy'], images)} right{f' (95 % interval {interval})' if interval else ''} for "
        f"{macs_words(chosen['mean_macs'])} multiply-adds on average, {compared} the backbone on the whole image "
        f"({macs_words(findings.backbone_macs)}), with {expected_looks(chosen):.2f} looks on average{ms}."
    )
    first = f"Measured on {findings.data}: {images:,} images. Thresholds were chosen on {findings.chosen_on}."
    second = f"The bundle's own thresholds on the {findings.score} ({_threshold_words(findings)}) give {given}"
    return f"<p>{html.escape(first)}</p><p>{html.escape(second)}</p>"


def _threshold_words(findings: Findings) -> str:
    """The thresholds of all looks but the last, which lets everybody go."""
    *thresholds, _ = findings.chosen["thresholds"]
    if len(findings.patch_px) > 1:
        return "in the table of looks"
    names = ["the glance", *look_names(len(thresholds) + 1)[1:]]
    words = [f"{value:.3f} at {name}" for value, name in zip(thresholds, names, strict=False)]
    return ", ".join(words) or "none: there is one look"


def _threshold_rows(findings: Findings) -> list[tuple[str, list[str]]]:
    """One row for each patch size; the last look has no threshold, as it lets everybody go."""
    *thresholds, _ = findings.chosen["thresholds"]
    if len(findings.patch_px) == 1:
        return [("the bundle's thresholds", [*(f"{value:.3f}" for value in thresholds), ""])]
    return [
        (f"the bundle's thresholds for {px} px", [*(f"{values[size]:.3f}" for values in thresholds), ""])
        for size, px in enumerate(findings.patch_px)
    ]


def _look_rows(findings: Findings) -> list[tuple[str, list[str]]]:
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
    rows.append(("stop here with them", [f"{100 * count / sum(exits):.1f} %" for count in exits]))
    right = ["" if share is None else f"{100 * share:.1f} %" for share in chosen["accuracy_of_exits"]]
    rows.append(("of these right", right))
    return rows


def _look_table(findings: Findings) -> str:
    table = table_html(look_names(len(findings.accuracy_after_look)), _look_rows(findings))
    several = len(findings.patch_px) > 1
    note = "Accuracy, cost and calibration error are those of every image taking so many looks"
    note += f", with patches of {max(findings.patch_px)} px." if several else "."
    if several:
        note += " An image leaves above all thresholds of its look; otherwise the nearest above names the next patch's size."
    return f'{table}<p class="note">{note}</p>'


def _score_table(findings: Findings) -> str:
    known = [score for score in SCORE_ORDER if score in findings.scores]
    order = [*known, *(score for score in findings.scores if score not in known)]
    curves = {html.escape(score): findings.scores[score] for score in order}
    budgets = sorted({point["budget_macs"] for curve in curves.values() for point in curve})
    note = '<p class="note">Accuracy for an average budget of multiply-adds. Best in bold.</p>'
    return budget_table(curves, evenly(budgets, SCORE_BUDGETS), findings.images, {1: "strong"}) + note


def _size_table(findings: Findings) -> str:
    curves = {f"{px} px (fixed)": curve for px, curve in findings.fixed_size_curves.items()}
    curves["sizes chosen"] = findings.curve
    budgets = sorted({point["budget_macs"] for point in findings.curve})
    note = (
        '<p class="note">Accuracy for an average budget of multiply-adds. Best in bold, second best underlined; '
        f"{NO_POINT} where patches of this size cannot use up the budget.</p>"
    )
    return budget_table(curves, evenly(budgets, SIZE_BUDGETS), findings.images, {1: "strong", 2: "u"}) + note


def budget_table(curves: dict[str, list[Point]], budgets: Sequence[float], images: int, tags: dict[int, str]) -> str:
    """Accuracy of each curve at each budget, as HTML; tags say what the best (1) and second best (2) of a column stand in."""
    columns = []
    for budget in budgets:
        points = [point_within(curve, budget) for curve in curves.values()]
        # As printed, so that what reads the same is marked the same.
        values = [None if p is None else round(100 * p["accuracy"], _decimals(images)) for p in points]
        columns.append([_marked(*cell, images, tags) for cell in zip(values, ranks(values), strict=True)])
    rows = [(name, [column[row] for column in columns]) for row, name in enumerate(curves)]
    return table_html([macs_words(budget) for budget in budgets], rows)


def _marked(value: float | None, rank: int | None, images: int, tags: dict[int, str]) -> str:
    if value is None:
        return NO_POINT
    text = f"{value:.{_decimals(images)}f} %"
    return f"<{tags[rank]}>{text}</{tags[rank]}>" if rank in tags else text
