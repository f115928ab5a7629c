"""Output of the commands: results on standard output, progress and remarks on standard error."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.markup import escape

from glancefocus.escaping import lines_kept
from glancefocus.progress import Progress, ProgressBars

if TYPE_CHECKING:
    from glancefocus.evaluation.verdict import Verdict

WIDTH_WITHOUT_TERMINAL = 120


def output() -> Console:
    """Standard output; as wide as the terminal, or wide enough for our tables if it is not a terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH_WITHOUT_TERMINAL)


def notices() -> Console:
    """Standard error, for progress and remarks, so that standard output can be piped."""
    return Console(stderr=True)


def print_line(text: str) -> None:
    """Print text on standard output without breaking lines, so that paths stay whole. Control characters are escaped."""
    output().print(lines_kept(text), highlight=False, markup=False, soft_wrap=True)


def notice(text: str) -> None:
    """Print a remark on standard error without breaking lines, so that paths can be copied and searched for."""
    notices().print(lines_kept(text), highlight=False, markup=False, soft_wrap=True)


def cell(text: str) -> str:
    """Text from outside the program for a table: rich's [markup] and control characters are escaped."""
    return escape(lines_kept(text))


@contextmanager
def progress_bars(*, quiet: bool = False) -> Iterator[Progress]:
    """A function of (what, done, total) that shows a bar for each description while the block runs."""
    with ProgressBars(notices(), hidden=quiet) as bars:
        yield bars.show


class Display:
    """Rows on standard output, and below them a progress bar with the remaining time."""

    def __init__(self, console: Console, progress: Callable[[str, float, float], None]) -> None:
        self.console = console
        self.progress = progress

    def show(self, row: RenderableType) -> None:
        """Print a row, a table, ..."""
        self.console.print(row)


@contextmanager
def display(*, for_programs: bool = False, in_percent: bool = False, quiet: bool = False) -> Iterator[Display]:
    """Show a progress bar on the terminal while the block runs, and print rows above it.

    for_programs  standard output is read by a program: the bar is shown only if standard output is not the terminal
    quiet         show no bar
    """
    console = output()
    # If one terminal shows both, one console must write both; otherwise rows and bar would overwrite each other.
    place = console if console.is_terminal and not for_programs else notices()
    if quiet or not place.is_terminal or (for_programs and console.is_terminal):
        yield Display(console, lambda what, done, total: None)
        return
    # Rich must not redirect standard output: rows for a program would end up on standard error.
    with ProgressBars(place, in_percent=in_percent, redirect=False) as bars:
        yield Display(console, bars.show)


def print_bad_files(problems: Sequence[str]) -> None:
    """List the files that could not be read and were skipped."""
    if problems:
        notice(f"{len(problems)} files cannot be read and are skipped:")
        for problem in problems:
            notice(f"  {problem}")


def print_verdict(verdict: "Verdict") -> None:
    """Print glancefocus and its rivals as a table, and the verdict as a sentence."""
    from glancefocus.evaluation.tables import verdict_lines, verdict_table

    table = verdict_table(verdict)
    if table is not None:
        output().print(table)
    for line in verdict_lines(verdict):
        print_line(line)
