"""What a run tells: one JSON line an epoch, the same to trackers, progress for people."""

import errno
import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from rich.console import Console

from glancefocus.errors import BadRun
from glancefocus.escaping import lines_kept
from glancefocus.progress import ProgressBars
from glancefocus.training.plan import duration
from glancefocus.training.trackers import Trackers

METRICS_FILE = "metrics.jsonl"


class Journal:
    """Notes of a run. Only the main process has one that writes."""

    def __init__(self, folder: Path, *, writes: bool, quiet: bool, trackers: Trackers | None = None) -> None:
        self.file = folder / METRICS_FILE
        self.writes = writes
        self.console = Console(stderr=True, quiet=quiet or not writes)
        self.bars = ProgressBars(self.console)
        self._trackers = trackers
        self._epoch = ("", 0, 0)  # description, steps done, steps in all
        self._time_left: TimeLeft | None = None
        self._started = time.monotonic()

    def rewind(self, length: int) -> None:
        """Forget what was written after the checkpoint that a run goes on from: it will be written again."""
        if self.writes and self.file.exists():
            with self._said(), self._open(os.O_RDWR) as stream:
                stream.truncate(min(length, self.length))  # never longer than it is: that would fill it with zeros

    @property
    def length(self) -> int:
        return self.file.stat().st_size if self.file.exists() else 0

    def start(self, description: str, total: int, done: int = 0) -> None:
        self.bars.start()
        self.bars.remove(self._epoch[0])
        self._epoch = description, done, total
        self.bars.show(*self._epoch)

    def tell(self, what: str, done: int, total: int) -> None:
        """Show the progress of work outside the epochs; see progress.Progress."""
        self.bars.start()
        self.bars.show(what, done, total)
        if done >= total:
            self.bars.remove(what)

    def expect(self, total_s: float) -> None:
        """Show how much of the whole run is done, and the time left, from now on."""
        self._time_left = TimeLeft(total_s)
        self.bars.show("whole run, %", 0, 100, timed=False)

    def reach(self, done_s: float) -> None:
        """So many of the expected seconds lie behind."""
        if self._time_left is not None:
            self._time_left.reach(done_s, time.monotonic())
            share = 100 * done_s / max(1e-9, self._time_left.total_s)
            self.bars.show("whole run, %", min(100, int(share)), 100, note=self._left(), timed=False)

    def _left(self) -> str:
        return "" if self._time_left is None else f"about {duration(self._time_left.seconds)} left"

    def step(self, numbers: dict[str, Any], images_per_s: float) -> None:
        description, done, total = self._epoch
        if description:
            self._epoch = description, done + 1, total
            self.bars.show(*self._epoch, note=f"{_brief(numbers)} {images_per_s:,.0f} img/s")

    def epoch(self, row: dict[str, Any]) -> None:
        """One line, for machines and for people."""
        if self.writes:
            with self._said():
                self._write(row)
        self.console.print(
            f"{row['stage']:<10} epoch {row['epoch']:>3}/{row['epochs']}  {_brief(row)}  "
            f"{row.get('images_per_s', 0):,.0f} img/s  {self._left()}".rstrip(),
            highlight=False,
            soft_wrap=True,
        )

    def _write(self, row: dict[str, Any]) -> None:
        with self._open(os.O_WRONLY | os.O_APPEND | os.O_CREAT) as stream:
            stream.write(json.dumps(row).encode() + b"\n")
        if self._trackers is not None:
            epochs_done = self.file.read_bytes().count(b"\n")
            for problem in self._trackers.log(row, epochs_done):
                self.say(problem)

    def _open(self, flags: int) -> BinaryIO:
        """The metrics, never through a link, and never a pipe that would be waited for."""
        if os.path.lexists(self.file) and not stat.S_ISREG(os.lstat(self.file).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        flags |= getattr(os, "O_NONBLOCK", 0)
        descriptor = os.open(self.file, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0), 0o666)
        return os.fdopen(descriptor, "r+b" if flags & os.O_RDWR else "ab")

    @contextmanager
    def _said(self) -> Iterator[None]:
        """What cannot be written is a sentence."""
        try:
            yield
        except OSError as error:
            raise BadRun(
                f"{self.file} could not be written ({error.strerror or error}). The last checkpoint is unharmed. "
                "Make room on the disk and run the same command again."
            ) from error

    def say(self, text: str) -> None:
        self.console.print(lines_kept(text), highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        self.bars.stop()
        if self._trackers is not None:
            self._trackers.close()


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


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics, one an epoch; a last line that was cut off is left out."""
    file = folder / METRICS_FILE
    try:
        lines = file.read_bytes().split(b"\n") if file.is_file() else []
    except OSError as error:
        raise BadRun(f"{file} cannot be read ({error.strerror or error}).") from None
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last line break is nothing, or cut off
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict) or not isinstance(row.get("stage"), str):
            raise BadRun(f"{file} is damaged: line {number} is not a table with a stage.")
        rows.append(row)
    return rows
