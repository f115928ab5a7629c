"""Progress of long work: the callback that functions report to, and the bars that show it on a terminal."""

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Task, TaskID
    from rich.text import Text

Progress = Callable[[str, int, int], None]
"""Called with a description of the work, how much of it is done, and how much there is in all."""


def progress_of(progress: Progress | None, what: str) -> Callable[[int, int], None] | None:
    """The callback for one piece of work, called with (done, total); None if progress is not reported."""
    return None if progress is None else lambda done, total: progress(what, done, total)


def duration(seconds: float) -> str:
    """45 s, 12 min, 3.5 h, 4.2 days."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"


class ProgressBars:
    """One bar with the time left for each description, on a terminal; nothing is shown elsewhere. A context manager.

    in_percent  show the share that is done instead of "3/10"
    redirect    let rich print what others write to standard output and standard error above the bars
    """

    def __init__(
        self, console: "Console", *, hidden: bool = False, in_percent: bool = False, redirect: bool = True
    ) -> None:
        # Here, because everything that takes a Progress imports this module, and few commands show a bar.
        from rich import progress
        from rich.text import Text

        class TimeLeft(progress.TimeRemainingColumn):
            def render(self, task: "Task") -> "Text":
                return super().render(task) if task.fields["timed"] else Text("")

        self._bars = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=24),
            progress.TaskProgressColumn() if in_percent else progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[note]}"),
            TimeLeft(),
            console=console,
            transient=True,
            disable=hidden or not console.is_terminal,
            redirect_stdout=redirect,
            redirect_stderr=redirect,
        )
        self._tasks: dict[str, TaskID] = {}

    def show(self, what: str, done: float, total: float, *, note: str = "", timed: bool = True) -> None:
        """Show how much of something is done.

        note   text beside the bar
        timed  estimate the time left from the pace so far
        """
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=total, note=note, timed=timed)
        self._bars.update(self._tasks[what], completed=done, total=total, note=note, timed=timed)

    def remove(self, what: str) -> None:
        """Take the bar of this description away."""
        if what in self._tasks:
            self._bars.remove_task(self._tasks.pop(what))

    def start(self) -> None:
        self._bars.start()

    def stop(self) -> None:
        self._bars.stop()

    def __enter__(self) -> "ProgressBars":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stop()
