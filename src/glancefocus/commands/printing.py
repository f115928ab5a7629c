"""Where commands print: tables for people on standard output, progress on standard error."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

WIDTH_WITHOUT_TERMINAL = 120


def output() -> Console:
    """Standard output; as wide as the terminal, or wide enough for our tables where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH_WITHOUT_TERMINAL)


def notices() -> Console:
    """Standard error, for progress and remarks, so that standard output can be piped."""
    return Console(stderr=True)


def say(text: str) -> None:
    """One line of text on standard output, as it is: paths stay whole."""
    output().print(text, highlight=False, markup=False, soft_wrap=True)


def notice(text: str) -> None:
    """One remark on standard error, never broken into lines: its paths can be copied and searched for."""
    notices().print(text, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def progress_bars(*, quiet: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """A function of (what, done, total) that shows a bar for everything it is told about, on a terminal, while the block runs."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = notices()
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as progress:
        tasks: dict[str, object] = {}

        def tell(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done)  # type: ignore[arg-type]

        yield tell


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
