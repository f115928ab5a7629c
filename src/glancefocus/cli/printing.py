"""Where commands print: tables for people on standard output, progress on standard error."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.markup import escape

from glancefocus.escaping import lines_kept
from glancefocus.progress import Progress, ProgressBars

WIDTH_WITHOUT_TERMINAL = 120


def output() -> Console:
    """Standard output; as wide as the terminal, or wide enough for our tables where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH_WITHOUT_TERMINAL)


def notices() -> Console:
    """Standard error, for progress and remarks, so that standard output can be piped."""
    return Console(stderr=True)


def say(text: str) -> None:
    """One line of text on standard output, as it is: paths stay whole. Control characters in it are shown, not obeyed."""
    output().print(lines_kept(text), highlight=False, markup=False, soft_wrap=True)


def notice(text: str) -> None:
    """One remark on standard error, never broken into lines: its paths can be copied and searched for."""
    notices().print(lines_kept(text), highlight=False, markup=False, soft_wrap=True)


def cell(text: str) -> str:
    """Text from outside for a cell or a title of a table: neither rich's [markup] nor control characters do anything."""
    return escape(lines_kept(text))


@contextmanager
def progress_bars(*, quiet: bool = False) -> Iterator[Progress]:
    """A function of (what, done, total) that shows a bar for each description while the block runs."""
    with ProgressBars(notices(), hidden=quiet) as bars:
        yield bars.show


class Display:
    """Rows on standard output as they come, above a bar with the time left."""

    def __init__(self, console: Console, bars: ProgressBars) -> None:
        self.console = console
        self.tell = bars.show

    def show(self, row: RenderableType) -> None:
        """Print a row, a table, ..."""
        self.console.print(row)


@contextmanager
def display(*, for_programs: bool = False, in_percent: bool = False, quiet: bool = False) -> Iterator[Display]:
    """A bar on the terminal while the block runs, and rows above it.

    for_programs  standard output is read by a program: the bar is shown only if it does not disturb there
    """
    console = output()
    # A terminal that shows both is written to by one console only, or rows and bar would overwrite each other.
    on_terminal = console.is_terminal and not for_programs
    hidden = quiet or (for_programs and console.is_terminal)
    # Rich must not redirect standard output: rows for a program would end up on standard error.
    with ProgressBars(
        console if on_terminal else notices(), hidden=hidden, in_percent=in_percent, redirect=False
    ) as bars:
        yield Display(console, bars)


def tell_bad_files(problems: Sequence[str]) -> None:
    """List files that could not be read and were skipped."""
    if problems:
        notice(f"{len(problems)} files cannot be read and are skipped:")
        for problem in problems:
            notice(f"  {problem}")


def print_verdict(verdict: dict[str, Any]) -> None:
    """Glancefocus and its rivals as a table, and the verdict in a sentence; verdict: Verdict.to_plain()."""
    from glancefocus.evaluation.verdict_report import verdict_lines, verdict_table

    table = verdict_table(verdict)
    if table is not None:
        output().print(table)
    for line in verdict_lines(verdict):
        say(line)
