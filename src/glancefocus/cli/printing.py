"""Output of the commands: results on standard output, progress and remarks on standard error."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from glancefocus.escaping import lines_kept

WIDTH_WITHOUT_TERMINAL = 120


def output() -> Console:
    """Standard output; as wide as the terminal, or wide enough for our tables if it is not a terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH_WITHOUT_TERMINAL)


def notices() -> Console:
    """Standard error, for progress and remarks, so that standard output can be piped."""
    return Console(stderr=True)


def say(text: str) -> None:
    """Print text on standard output without breaking lines, so that paths stay whole. Control characters are escaped."""
    output().print(lines_kept(text), highlight=False, markup=False, soft_wrap=True)


def notice(text: str) -> None:
    """Print a remark on standard error without breaking lines, so that paths can be copied and searched for."""
    notices().print(lines_kept(text), highlight=False, markup=False, soft_wrap=True)


def cell(text: str) -> str:
    """Text from outside the program for a table: rich's [markup] and control characters are escaped."""
    return escape(lines_kept(text))


@contextmanager
def progress_bars(*, quiet: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """A function of (what, done, total) that shows a progress bar for each `what` on a terminal, while the block runs."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = notices()
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as progress:
        tasks: dict[str, object] = {}

        def update(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done)  # type: ignore[arg-type]

        yield update


class Display:
    """Rows on standard output, and below them a progress bar with the remaining time."""

    def __init__(self, console: Console, bar: Progress) -> None:
        self.console = console
        self.bar = bar
        self._tasks: dict[str, TaskID] = {}

    def show(self, row: RenderableType) -> None:
        """Print a row, a table, ..."""
        self.console.print(row)

    def progress(self, what: str, done: float, total: float) -> None:
        """Show how much of something is done."""
        if what not in self._tasks:
            self._tasks[what] = self.bar.add_task(what, total=total)
        self.bar.update(self._tasks[what], completed=done, total=total)


@contextmanager
def display(*, for_programs: bool = False, in_percent: bool = False, quiet: bool = False) -> Iterator[Display]:
    """Show a progress bar on the terminal while the block runs, and print rows above it.

    for_programs  standard output is read by a program: the bar is shown only if standard output is not the terminal
    """
    console = output()
    # If one terminal shows both, one console must write both; otherwise rows and bar would overwrite each other.
    on_terminal = console.is_terminal and not for_programs
    bars = console if on_terminal else notices()
    hidden = quiet or not bars.is_terminal or (for_programs and console.is_terminal)
    counted: ProgressColumn = TaskProgressColumn() if in_percent else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), counted, TimeRemainingColumn())
    # Rich must not redirect standard output: output for programs would go to standard error.
    with Progress(
        *columns, console=bars, transient=True, disable=hidden, redirect_stdout=False, redirect_stderr=False
    ) as bar:
        yield Display(console, bar)


def print_bad_files(problems: Sequence[str]) -> None:
    """List the files that could not be read and were skipped."""
    if problems:
        notice(f"{len(problems)} files cannot be read and are skipped:")
        for problem in problems:
            notice(f"  {problem}")


def print_verdict(verdict: dict[str, Any]) -> None:
    """Print glancefocus and its rivals as a table, and the verdict as a sentence; verdict: Verdict.to_plain()."""
    from glancefocus.evaluation.verdict_report import verdict_lines, verdict_table

    table = verdict_table(verdict)
    if table is not None:
        output().print(table)
    for line in verdict_lines(verdict):
        say(line)
