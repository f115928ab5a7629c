"""What a run tells: one JSON line an epoch, TensorBoard events where it is installed, progress for people."""

import json
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from glancefocus.errors import BadRun
from glancefocus.training.plan_words import duration

METRICS_FILE = "metrics.jsonl"


class Journal:
    """Notes of a run. Only the main process has one that writes."""

    def __init__(self, folder: Path, *, writes: bool, quiet: bool) -> None:
        self.file = folder / METRICS_FILE
        self.writes = writes
        self.console = Console(stderr=True, quiet=quiet or not writes)
        self.progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            _EpochTime(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._board = _tensorboard(folder / "tensorboard") if writes else None
        self._task: Any = None
        self._total: Any = None
        self._time_left: TimeLeft | None = None
        self._started = time.monotonic()

    def rewind(self, length: int) -> None:
        """Forget what was written after the checkpoint that a run goes on from: it will be written again."""
        if self.writes and self.file.exists():
            with self.file.open("r+b") as stream:
                stream.truncate(min(length, self.length))  # never longer than it is: that would fill it with zeros

    @property
    def length(self) -> int:
        return self.file.stat().st_size if self.file.exists() else 0

    def start(self, description: str, total: int, done: int = 0) -> None:
        self.progress.start()
        if self._task is not None:
            self.progress.remove_task(self._task)
        self._task = self.progress.add_task(description, total=total, completed=done, numbers="")

    def expect(self, total_s: float) -> None:
        """Show how much of the whole run is done, and the time left, from now on."""
        self._time_left = TimeLeft(total_s)
        self._total = self.progress.add_task("whole run, %", total=100, numbers="", whole=True)

    def reach(self, done_s: float) -> None:
        """So many of the expected seconds lie behind."""
        if self._time_left is not None:
            self._time_left.reach(done_s, time.monotonic())
            share = 100 * done_s / max(1e-9, self._time_left.total_s)
            self.progress.update(self._total, completed=min(100, int(share)), numbers=self._left())

    def _left(self) -> str:
        return "" if self._time_left is None else f"about {duration(self._time_left.seconds)} left"

    def step(self, numbers: dict[str, Any], images_per_s: float) -> None:
        if self._task is not None:
            self.progress.update(self._task, advance=1, numbers=f"{_brief(numbers)} {images_per_s:,.0f} img/s")

    def epoch(self, row: dict[str, Any], number: int) -> None:
        """One line, for machines and for people."""
        if self.writes:
            try:
                self._write(row, number)
            except OSError as error:
                raise BadRun(
                    f"{self.file} could not be written ({error.strerror or error}). The last checkpoint is unharmed. "
                    "Make room on the disk and run the same command again."
                ) from error
        self.console.print(
            f"{row['stage']:<10} epoch {row['epoch']:>3}/{row['epochs']}  {_brief(row)}  "
            f"{row.get('images_per_s', 0):,.0f} img/s  {self._left()}".rstrip(),
            highlight=False,
            soft_wrap=True,
        )

    def _write(self, row: dict[str, Any], number: int) -> None:
        with self.file.open("a") as stream:
            stream.write(json.dumps(row) + "\n")
        if self._board is not None:
            for name, value in _flat(row):
                self._board.add_scalar(f"{row['stage']}/{name}", value, number)
            self._board.flush()

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self.progress.stop()
        if self._board is not None:
            self._board.close()


class TimeLeft:
    """Seconds that are left of an expected total, corrected by how fast it really goes."""

    def __init__(self, total_s: float) -> None:
        self.total_s = total_s
        self.seconds = total_s
        self._first: tuple[float, float] | None = None

    def reach(self, done_s: float, now: float) -> None:
        """This much of the total is done; `now` is the time of any clock."""
        if self._first is None:
            self._first = done_s, now
        expected, taken = done_s - self._first[0], now - self._first[1]
        # The first minute says little: until then the plan counts as well as what was seen.
        pace = (taken + 60) / (expected + 60)
        self.seconds = max(0.0, (self.total_s - done_s) * pace)


class _EpochTime(TimeRemainingColumn):
    """Time left of an epoch; the whole run's is worked out from the plan and stands beside its bar."""

    def render(self, task: Task) -> Text:
        return Text("") if task.fields.get("whole") else super().render(task)


def _brief(numbers: dict[str, Any]) -> str:
    parts = []
    for name, word in (
        ("loss", "loss"),
        ("reward", "reward"),
        ("accuracy", "train"),
        ("val_accuracy", "val"),
        ("hit_rate", "hits"),
    ):
        value = numbers.get(name)
        if isinstance(value, list):
            parts.append(f"{word} " + "/".join(f"{100 * v:.1f}" for v in value))
        elif value is not None:
            parts.append(f"{word} {value:.3f}")
    return "  ".join(parts)


def _flat(row: dict[str, Any]) -> list[tuple[str, float]]:
    flat: list[tuple[str, float]] = []
    for name, value in row.items():
        if isinstance(value, list):
            flat += [(f"{name}/{i}", float(v)) for i, v in enumerate(value, start=1)]
        elif isinstance(value, (int, float)):
            flat.append((name, float(value)))
    return flat


def _tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder))
