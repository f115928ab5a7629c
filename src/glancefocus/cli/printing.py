"""Text that several verbs print: results on standard output, remarks and progress on standard error."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.markup import escape

from glancefocus.cli.main import notices, output
from glancefocus.progress import Progress, ProgressBars
from glancefocus.values import lines_kept

if TYPE_CHECKING:
    from glancefocus.evaluation.verdict import Verdict


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


def print_remarks(problems: Sequence[str], remarks: Sequence[str] = ()) -> None:
    """List the files that could not be read and were skipped, then other remarks."""
    if problems:
        notice(f"{len(problems)} files cannot be read and are skipped:")
        for problem in problems:
            notice(f"  {problem}")
    for remark in remarks:
        notice(remark)


def print_verdict(verdict: "Verdict") -> None:
    """Print glancefocus and its rivals as a table, and the verdict as a sentence."""
    from glancefocus.evaluation.tables import verdict_lines, verdict_table

    table = verdict_table(verdict)
    if table is not None:
        output().print(table)
    for line in verdict_lines(verdict):
        print_line(line)
