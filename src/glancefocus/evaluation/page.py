"""Building blocks of the report's HTML page: style, tables, figures with captions, galleries."""

import html
from collections.abc import Iterable, Sequence
from pathlib import Path

from glancefocus.errors import BadRun
from glancefocus.files import write_file

Rows = list[tuple[str, list[str]]]
"""Rows of a table: a name and its cells."""

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }
h1 { font-size: 1.6rem; overflow-wrap: anywhere; } h2 { font-size: 1.2rem; margin-top: 2.2rem; border-bottom: 1px solid #ddd; }
h3 { font-size: 1rem; margin-bottom: .4rem; }
table { border-collapse: collapse; margin: .8rem 0; display: block; overflow-x: auto; }
td, th { padding: .25rem .8rem; border-bottom: 1px solid #eee; text-align: right; }
td + td { white-space: nowrap; } td:first-child, th:first-child { text-align: left; }
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
