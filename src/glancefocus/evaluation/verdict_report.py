"""The verdict for people and programs: a table for the terminal, a section of a page, lines of CSV."""

import html
from typing import Any

from rich.markup import escape
from rich.table import Table

from glancefocus.escaping import one_line
from glancefocus.evaluation.report import table_html
from glancefocus.evaluation.verdict import macs_words

Plain = dict[str, Any]
"""Verdict.to_plain()"""
COLUMNS = ("accuracy", "95 % interval", "multiply-adds", "ms")


def verdict_table(verdict: Plain) -> Table | None:
    """Backbone, resized, cascade and glancefocus, dearest backbone first; None where nothing was compared."""
    if not verdict["points"]:
        return None
    table = Table(
        title=f"glancefocus and its rivals on {verdict['images']:,} images ({escape(one_line(str(verdict['data'])))})"
    )
    table.add_column("")
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for name, cells in _rows(verdict):
        table.add_row(escape(name), *cells, style="bold" if name == "glancefocus" else None)
    return table


def verdict_lines(verdict: Plain) -> list[str]:
    """What is said below the table: the sentence last."""
    ms = f"ms: median for one image on {verdict['device']}" if verdict["device"] else None
    return [*([ms] if ms else []), *verdict["remarks"], verdict["sentence"]]


def verdict_section(verdict: Plain, figure: str = "") -> str:
    """The same as HTML; figure is HTML already."""
    parts = [f"<h2>Verdict</h2><p><strong>{html.escape(verdict['sentence'])}</strong></p>"]
    if verdict["points"]:
        rows = [(html.escape(name), cells) for name, cells in _rows(verdict)]
        note = (
            f"{verdict['images']:,} images. Thresholds of glancefocus and of the cascade were chosen on other images than they are "
            "measured on."
        )
        note += f" Milliseconds are medians for one image on {verdict['device']}." if verdict["device"] else ""
        remarks = " ".join([note, *verdict["remarks"]])
        parts += [table_html(COLUMNS, rows), f'<p class="note">{html.escape(remarks)}</p>', figure]
    return "".join(parts)


def verdict_lines_of_csv(verdict: Plain) -> list[dict[str, Any]]:
    """One line for each rival and for glancefocus, and the other budgets of the cascade."""
    lines = []
    for point in [*verdict["points"], *verdict["cascade_curve"]]:
        sizes = " ".join(f"{height}x{width}" for height, width in point["px"])
        line = {name: value for name, value in point.items() if name != "px"} | {"px": sizes}
        if line not in lines:
            lines.append(line)
    return lines


def _rows(verdict: Plain) -> list[tuple[str, list[str]]]:
    rows = []
    for point in verdict["points"]:
        name = f"{point['name']} (whole image)" if point["kind"] == "backbone" else point["name"]
        ms = f"{point['mean_ms']:.2f}" if "mean_ms" in point else ""
        low, high = (f"{100 * point[end]:.1f}" for end in ("accuracy_low", "accuracy_high"))
        rows.append(
            (name, [f"{100 * point['accuracy']:.1f} %", f"{low} to {high} %", macs_words(point["mean_macs"]), ms])
        )
    return rows
