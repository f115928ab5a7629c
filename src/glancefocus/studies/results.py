"""What a study found: tables beside the paper's, drawings, and all of it written as Markdown, CSV, JSON, pictures and one page."""

import html
import json
import math
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from matplotlib.figure import Figure
from rich.table import Table as TerminalTable

from glancefocus.evaluation.figures import as_png, as_svg
from glancefocus.evaluation.tables import (
    NO_POINT,
    csv_text,
    escaped,
    gallery_sections,
    page_of,
    replace_file,
    side_by_side,
    small_print,
    table_html,
)
from glancefocus.machine import device_name
from glancefocus.studies.catalogue import Study, paper_row

PAGE, NUMBERS, TEXT = "study.html", "study.json", "study.md"
_FIGURES = "figures"
Value = float | None


@dataclass(frozen=True)
class Row:
    """One row of a table.

    values  one sequence for each seed, with one value for each column; None: there is none
    paper   the paper's values, and their deviations where it has them
    """

    name: str
    values: Sequence[Sequence[Value]] = ()
    paper: Sequence[Value] = ()
    paper_deviation: Sequence[Value] = ()

    def mean(self, column: int) -> Value:
        known = self.known(column)
        return statistics.mean(known) if known else None

    def deviation(self, column: int) -> Value:
        """The standard deviation over the seeds; None for a single seed."""
        known = self.known(column)
        return statistics.stdev(known) if len(known) > 1 else None

    def known(self, column: int) -> list[float]:
        return [value for row in self.values if column < len(row) and (value := row[column]) is not None]


@dataclass(frozen=True)
class Table:
    """A table in the paper's form.

    name     of its files
    columns  without that of the names
    images   number of images that the shares were measured on
    unit     share: values in [0, 1], shown in percent; number: shown as they are
    ordered  whether the paper's order of the rows is compared with ours
    """

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Row]
    images: int = 0
    unit: Literal["share", "number"] = "share"
    ordered: bool = False
    note: str = ""


@dataclass(frozen=True)
class Drawing:
    """A figure and its caption."""

    figure: Figure
    caption: str


@dataclass(frozen=True)
class Result:
    """What a study found.

    drawings   {name of the file: drawing}
    galleries  (heading, pictures as data URLs)
    remarks    sentences
    """

    tables: Sequence[Table] = ()
    drawings: Mapping[str, Drawing] = field(default_factory=dict)
    galleries: Sequence[tuple[str, Sequence[str]]] = ()
    remarks: Sequence[str] = ()


def row_beside(table: str, key: str, name: str, values: Any) -> Row:
    """A row of shares with the paper's values of the row `key`."""
    paper, deviation = paper_row(table, key)
    return Row(name, values, paper, deviation)


@dataclass(frozen=True)
class Agreement:
    """Pairs of rows whose difference here exceeds two standard errors, and those among them that the paper orders otherwise.

    pairs      their number, over all columns
    otherwise  {two rows: columns with the difference here}
    """

    pairs: int
    otherwise: Mapping[str, Sequence[str]]

    @property
    def sentence(self) -> str:
        if self.pairs == 0:
            return "no two rows differ by more than two standard errors."
        agreeing = self.pairs - sum(map(len, self.otherwise.values()))
        sentence = (
            f"{self.pairs} differences between two rows exceed two standard errors, over all columns; "
            f"{agreeing} of them have the paper's sign."
        )
        others = "; ".join(f"{rows} ({', '.join(columns)} points)" for rows, columns in self.otherwise.items())
        return f"{sentence} The others: {others}." if others else sentence


def agreement(table: Table) -> Agreement:
    """Compare the order of the rows with the paper's, column by column, where both have values."""
    pairs, otherwise = 0, dict[str, list[str]]()
    for column, words in enumerate(table.columns):
        rows = [row for row in table.rows if _paper(row, column) is not None and row.known(column)]
        for place, one in enumerate(rows):
            for other in rows[place + 1 :]:
                gap, error = difference(one, other, column, table.images)
                theirs = (_paper(one, column) or 0.0) - (_paper(other, column) or 0.0)
                if abs(gap) <= 2 * error or theirs == 0:
                    continue
                pairs += 1
                if (gap > 0) != (theirs > 0):
                    higher, lower = (one, other) if gap > 0 else (other, one)
                    by = f"{words}: {100 * abs(gap):.1f}"
                    otherwise.setdefault(f"{higher.name} above {lower.name}", []).append(by)
    return Agreement(pairs, otherwise)


def difference(one: Row, other: Row, column: int, images: int) -> tuple[float, float]:
    """The mean difference of two rows of shares, and its standard error: by seeds or by images, whichever is larger."""
    first, second = one.known(column), other.known(column)
    count = min(len(first), len(second))
    gaps = [a - b for a, b in zip(first[:count], second[:count], strict=True)]
    by_images = sum(statistics.mean(s) * (1 - statistics.mean(s)) / (len(s) * max(1, images)) for s in (first, second))
    by_seeds = statistics.variance(gaps) / count if count > 1 else 0.0
    return statistics.mean(gaps), math.sqrt(max(by_images, by_seeds))


def _paper(row: Row, column: int) -> Value:
    return row.paper[column] if column < len(row.paper) else None


@dataclass(frozen=True)
class About:
    """What a result belongs to.

    data     its name, for people
    command  that gives this result
    machine  that it was computed on
    """

    study: Study
    scale: str
    data: str
    seeds: int
    command: str
    machine: str

    @property
    def sentence(self) -> str:
        seeds = (
            "one seed (standard errors leave out the variation between trainings)"
            if self.seeds == 1
            else f"mean ± standard deviation over {self.seeds} seeds"
        )
        other = (
            " Small networks on a built-in data set: compare the order of the rows with the paper's, not the values."
        )
        sentence = f"{self.study.shows} of the paper. Scale {self.scale}, data {self.data}, {seeds}. {self.machine}."
        return sentence + (other if self.scale == "tiny" else "")


def machine_words() -> str:
    """What this machine computes with."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    name = device_name(device or torch.device("cpu"))
    return f"{name}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}"


def write_study(folder: Path, about: About, result: Result) -> list[str]:
    """Write all files of a study into its folder; returns their names."""
    files: dict[str, bytes] = {
        NUMBERS: json.dumps(plain(about, result), indent=1, allow_nan=False).encode(),
        TEXT: markdown(about, result).encode(),
    }
    files |= {f"{table.name}.csv": csv_text(csv_rows(table), _CSV_COLUMNS) for table in result.tables}
    for name, drawing in result.drawings.items():
        files[f"{_FIGURES}/{name}.svg"] = as_svg(drawing.figure).encode()
        files[f"{_FIGURES}/{name}.png"] = as_png(drawing.figure)
    files[PAGE] = page_of(f"{about.study.name}: {about.study.title}", _sections(about, result)).encode()
    for name, content in files.items():
        replace_file(folder / name, content)
    return list(files)


def remarks_of(result: Result) -> list[str]:
    """The remarks of a study, and for each table that can be compared whether its order is the paper's."""
    compared = [
        f"Order of the rows of {table.name}: {agreement(table).sentence}" for table in result.tables if table.ordered
    ]
    return [*compared, *result.remarks]


def markdown(about: About, result: Result) -> str:
    """The whole result as Markdown."""
    parts = [f"# {about.study.title}", f"    {about.command}", about.sentence]
    for table in result.tables:
        parts += [f"## {table.title}", markdown_table(table), *([table.note] if table.note else [])]
    parts += remarks_of(result)
    parts += [f"![{drawing.caption}]({_FIGURES}/{name}.png)" for name, drawing in result.drawings.items()]
    return "\n\n".join(parts) + "\n"


def markdown_table(table: Table) -> str:
    """A table as Markdown; the paper's figures are in a line of their own below ours."""
    head = ["", *table.columns]
    lines = [head, ["---", *["---:"] * len(table.columns)], *([name, *cells] for name, cells in text_rows(table))]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def text_rows(table: Table) -> list[tuple[str, list[str]]]:
    """(name, cells) of each row, and of the paper's below it."""
    rows = []
    for row in table.rows:
        if row.values:
            rows.append((row.name, [_cell(table, row, column) for column in range(len(table.columns))]))
        if any(value is not None for value in row.paper):
            name = "the paper" if row.values else f"{row.name} (the paper)"
            rows.append((name, [_paper_cell(table, row, column) for column in range(len(table.columns))]))
    return rows


def _cell(table: Table, row: Row, column: int) -> str:
    mean = row.mean(column)
    if mean is None:
        return NO_POINT
    digits = 1 if table.images <= 1000 else 2
    return _spread(table, mean, row.deviation(column), digits)


def _paper_cell(table: Table, row: Row, column: int) -> str:
    value = row.paper[column] if column < len(row.paper) else None
    deviation = row.paper_deviation[column] if column < len(row.paper_deviation) else None
    return NO_POINT if value is None else _spread(table, value, deviation, 2)


def _spread(table: Table, value: float, deviation: Value, digits: int) -> str:
    if table.unit == "number":
        text = f"{value:.4g}"
        return text if deviation is None else f"{text} ± {deviation:.2g}"
    text = f"{100 * value:.{digits}f}"
    return text if deviation is None else f"{text} ± {100 * deviation:.{digits}f}"


_CSV_COLUMNS = ("row", "column", "unit", "mean", "deviation", "seeds", "paper", "paper_deviation")


def csv_rows(table: Table) -> list[dict[str, Any]]:
    """One line for each cell; unit: see Table, shares are not in percent here."""
    found = []
    for row in table.rows:
        for column, name in enumerate(table.columns):
            paper = [values[column] if column < len(values) else None for values in (row.paper, row.paper_deviation)]
            found.append({
                "row": row.name, "column": name, "unit": table.unit,
                "mean": row.mean(column), "deviation": row.deviation(column),
                "seeds": len(row.known(column)), "paper": paper[0], "paper_deviation": paper[1],
            })  # fmt: skip
    return found


def plain(about: About, result: Result) -> dict[str, Any]:
    """The numbers of a study as JSON values."""
    return {
        "study": about.study.name,
        "title": about.study.title,
        "paper": about.study.shows,
        "scale": about.scale,
        "data": about.data,
        "seeds": about.seeds,
        "command": about.command,
        "machine": about.machine,
        "tables": [
            {
                "name": table.name,
                "title": table.title,
                "columns": list(table.columns),
                "images": table.images,
                "unit": table.unit,
                "note": table.note,
                "rows": [
                    {
                        "name": row.name,
                        "values": [list(values) for values in row.values],
                        "paper": list(row.paper),
                        "paper_deviation": list(row.paper_deviation),
                    }
                    for row in table.rows
                ],
            }
            for table in result.tables
        ],
        "figures": {name: drawing.caption for name, drawing in result.drawings.items()},
        "remarks": remarks_of(result),
    }


def terminal_tables(result: Result) -> list[TerminalTable]:
    """The tables for the terminal."""
    shown = []
    for table in result.tables:
        printed = TerminalTable(title=table.title, caption=table.note or None)
        for column in ("", *table.columns):
            printed.add_column(column, justify="right" if column else "left")
        for name, cells in text_rows(table):
            printed.add_row(name, *cells, style="dim" if name.endswith("the paper") else None)
        shown.append(printed)
    return shown


def _subdued(name: str, cells: Sequence[str]) -> tuple[str, list[str]]:
    """A row of HTML in the style of notes, such as the paper's figures below ours."""
    return f'<span class="note">{name}</span>', [f'<span class="note">{cell}</span>' for cell in cells]


def _sections(about: About, result: Result) -> list[str]:
    study = about.study
    sections = [
        f"<h1>{html.escape(study.title)}</h1><p>{html.escape(about.sentence)}</p>",
        small_print(f"<code>{html.escape(about.command)}</code>"),
    ]
    for table in result.tables:
        rows = [_subdued(*row) if row[0].endswith("the paper") else row for row in escaped(text_rows(table))]
        shown = table_html([html.escape(column) for column in table.columns], rows)
        note = [small_print(html.escape(table.note))] if table.note else []
        sections += [f"<h2>{html.escape(table.title)}</h2>", shown, *note]
    sections += [f"<p>{html.escape(remark)}</p>" for remark in remarks_of(result)]
    drawings = [(as_svg(drawing.figure), html.escape(drawing.caption)) for drawing in result.drawings.values()]
    return [*sections, side_by_side(drawings), *gallery_sections(result.galleries)]
