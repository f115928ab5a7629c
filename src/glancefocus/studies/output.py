"""What a study writes: its tables as Markdown, CSV and JSON, its figures as SVG and PNG, and all of it as one page."""

import html
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from glancefocus.studies.study import Result, Row, Study, Table, Value, agreement

PAGE, NUMBERS, TEXT = "study.html", "study.json", "study.md"
_FIGURES = "figures"


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
        seeds = "one seed" if self.seeds == 1 else f"mean ± standard deviation over {self.seeds} seeds"
        return f"{self.study.shows}. Scale {self.scale}, data {self.data}, {seeds}. {self.machine}."


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
        f"{table.title}: {agreement(table).sentence}" if len(result.tables) > 1 else agreement(table).sentence
        for table in result.tables
        if table.ordered
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


_CSV_COLUMNS = ("row", "column", "mean", "deviation", "seeds", "paper", "paper_deviation")


def csv_rows(table: Table) -> list[dict[str, Any]]:
    """One line for each cell."""
    found = []
    for row in table.rows:
        for column, name in enumerate(table.columns):
            paper = [values[column] if column < len(values) else None for values in (row.paper, row.paper_deviation)]
            found.append({
                "row": row.name, "column": name, "mean": row.mean(column), "deviation": row.deviation(column),
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
                "rows": [
                    {"name": row.name, "values": [list(values) for values in row.values], "paper": list(row.paper)}
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
        printed = TerminalTable(title=table.title)
        for column in ("", *table.columns):
            printed.add_column(column, justify="right" if column else "left")
        for name, cells in text_rows(table):
            printed.add_row(name, *cells, style="dim" if name.endswith("the paper") else None)
        shown.append(printed)
    return shown


def _sections(about: About, result: Result) -> list[str]:
    study = about.study
    sections = [
        f"<h1>{html.escape(study.title)}</h1><p>{html.escape(about.sentence)}</p>",
        small_print(f"<code>{html.escape(about.command)}</code>"),
    ]
    for table in result.tables:
        shown = table_html([html.escape(column) for column in table.columns], escaped(text_rows(table)))
        note = [small_print(html.escape(table.note))] if table.note else []
        sections += [f"<h2>{html.escape(table.title)}</h2>", shown, *note]
    sections += [f"<p>{html.escape(remark)}</p>" for remark in remarks_of(result)]
    drawings = [(as_svg(drawing.figure), html.escape(drawing.caption)) for drawing in result.drawings.values()]
    return [*sections, side_by_side(drawings), *gallery_sections(result.galleries)]
