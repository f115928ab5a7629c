"""The journal of a run: one JSON line per epoch in metrics.jsonl, the same for trackers, and progress on the terminal.

Trackers are TensorBoard, Weights & Biases and MLflow, through accelerate's classes; none is required. A step that was sent is not
sent again when a run is resumed: its numbers would be the same.
"""

import contextlib
import errno
import importlib.util
import json
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any, BinaryIO

from rich.console import Console

from glancefocus.errors import BadRun, BadSetting, MissingExtra, MissingPackage, UnknownName
from glancefocus.files import write_text
from glancefocus.machine import cache_path, parse_json, read_json
from glancefocus.progress import ProgressBars, duration
from glancefocus.training.checkpoint import Numbers
from glancefocus.values import Fields, lines_kept

METRICS_FILE = "metrics.jsonl"


@dataclass(frozen=True)
class EpochRow:
    """One epoch of a run: one line of metrics.jsonl.

    stage_number  counted from 1, as is the epoch
    numbers       loss, accuracy, val_accuracy and others; a list has one entry per look
    aims          after the last epoch of stage II: learnt aims compared with others, see AimsCheck.to_plain
    """

    stage: str
    stage_number: int
    epoch: int
    epochs: int
    numbers: Numbers
    images_per_s: float = 0.0
    aims: dict[str, Any] | None = None

    def to_plain(self) -> dict[str, Any]:
        """All values in one table, as in the file."""
        place = {"stage": self.stage, "stage_number": self.stage_number, "epoch": self.epoch, "epochs": self.epochs}
        aims = {} if self.aims is None else {"aims": self.aims}
        return {**place, **self.numbers, "images_per_s": self.images_per_s, **aims}

    @classmethod
    def from_plain(cls, plain: Any) -> "EpochRow":
        """Raises BadSetting if it is not the table of an epoch. Values of other kinds than numbers are ignored."""
        fields = Fields(plain)
        own = {field.name for field in dataclass_fields(cls)}
        numbers = {name: value for name, value in fields.plain.items() if name not in own and _is_numeric(value)}
        aims = fields.value("aims", None)
        return cls(
            stage=fields.text("stage", 1000),
            stage_number=fields.whole("stage_number", 0, 10**6),
            epoch=fields.whole("epoch", 0, 10**9),
            epochs=fields.whole("epochs", 0, 10**9),
            numbers=numbers,
            images_per_s=fields.number("images_per_s", 0.0, 1e12, 0.0),
            aims=aims if isinstance(aims, dict) else None,
        )


def _is_numeric(value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    return all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)


TRACKERS = ("tensorboard", "wandb", "mlflow")
NONE = "none"
STATE_FILE = "trackers.json"
_MOST_STATE_BYTES = 1 << 20


@dataclass
class TrackedRun:
    """The state of a tracker: its own id for the run, and the number of epochs that were sent."""

    run: str | None = None
    steps: int = 0


class Trackers:
    """The trackers of one run.

    folder    of the run; what each tracker has is kept there in STATE_FILE
    settings  of the run, as plain values
    names     see chosen_trackers
    """

    def __init__(self, folder: Path, settings: dict[str, Any], names: Sequence[str]) -> None:
        self.file = folder / STATE_FILE
        self._known = _read_state(self.file)
        self._open: dict[str, Any] = {}
        for name in names:
            known = self._known.setdefault(name, TrackedRun())
            try:
                self._open[name] = _OPEN[name](folder, known)
                if known.steps == 0:
                    _store_settings(name, self._open[name], _flat(settings))
            # Each tracker has its own errors: not logged in, no such server, no disk space.
            except Exception as error:
                reason = str(error).strip().rstrip(".") or type(error).__name__
                raise BadRun(
                    f"the tracker {name} could not be started: {reason}. Correct that, or leave {name} out of --track."
                ) from error

    def log(self, stage: str, numbers: dict[str, Any], step: int) -> list[str]:
        """Send the numbers of an epoch to every tracker that does not have them; returns a sentence for each tracker that failed.

        A tracker that failed gets nothing more in this process; training continues.
        """
        values = {f"{stage}/{name}": value for name, value in _flat_numbers(numbers)}
        problems = []
        for name, tracker in list(self._open.items()):
            if step <= self._known[name].steps:
                continue
            try:
                tracker.log(values, step=step)
            except Exception as error:
                del self._open[name]
                problems.append(f"the tracker {name} failed and gets no more numbers of this run: {error}")
                continue
            self._known[name].steps = step
        write_text(self.file, json.dumps({name: vars(known) for name, known in self._known.items()}, indent=1) + "\n")
        return problems

    def close(self) -> None:
        for tracker in self._open.values():
            with contextlib.suppress(Exception):  # every epoch was sent already
                tracker.finish()
        self._open.clear()


def chosen_trackers(names: Sequence[str] | None) -> tuple[str, ...]:
    """The trackers to use; None: TensorBoard if it is installed. Refuses trackers that are unknown or not installed."""
    if names is None:
        return ("tensorboard",) if _is_installed("tensorboard") else ()
    chosen = tuple(dict.fromkeys(name for word in names for name in word.split(",") if name))
    for name in chosen:
        if name not in (*TRACKERS, NONE):
            raise UnknownName("tracker", name, (*TRACKERS, NONE), f"There are {', '.join(TRACKERS)} and {NONE}.")
    if NONE in chosen:
        if len(chosen) > 1:
            raise BadSetting(f"--track {NONE} means no tracker. Leave it out, or leave the others out.")
        return ()
    for name in chosen:
        if not _is_installed(name):
            raise MissingExtra(name, "tracking") if name == "tensorboard" else MissingPackage(name)
    return chosen


def _is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _tensorboard(folder: Path, known: TrackedRun) -> Any:
    from accelerate.tracking import TensorBoardTracker

    tracker = TensorBoardTracker("tensorboard", logging_dir=folder)
    tracker.start()
    return tracker


def _wandb(folder: Path, known: TrackedRun) -> Any:
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # do not send crash reports
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("WANDB_CACHE_DIR", str(cache_path() / "wandb"))
    from accelerate.tracking import WandBTracker

    project = os.environ.get("WANDB_PROJECT", "glancefocus")
    tracker = WandBTracker(project, name=folder.name, id=known.run, resume="allow", dir=str(folder))
    tracker.start()
    known.run = tracker.tracker.id
    return tracker


def _mlflow(folder: Path, known: TrackedRun) -> Any:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    import mlflow
    from accelerate.tracking import MLflowTracker

    if "MLFLOW_TRACKING_URI" not in os.environ:  # its default is the current folder
        mlflow.set_tracking_uri(f"sqlite:///{(folder / 'mlflow.db').absolute()}")
    tracker = MLflowTracker("glancefocus", logging_dir=str(folder / "mlflow"), run_name=folder.name, run_id=known.run)
    tracker.start()
    known.run = tracker.tracker.info.run_id
    return tracker


_OPEN = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}


def _store_settings(name: str, tracker: Any, settings: dict[str, Any]) -> None:
    if name == "tensorboard":  # accelerate would start a second TensorBoard run for them
        tracker.tracker.add_text("settings", f"```\n{json.dumps(settings, indent=1)}\n```")
        tracker.tracker.flush()
    else:
        tracker.store_init_configuration(settings)


def _read_state(file: Path) -> dict[str, TrackedRun]:
    try:
        plain = read_json(file, _MOST_STATE_BYTES)
        return {
            str(name): TrackedRun(None if known["run"] is None else str(known["run"]), int(known["steps"]))
            for name, known in plain.items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, BadSetting, ValueError, TypeError, KeyError, AttributeError):
        raise BadRun(f"{file} is damaged. Delete it; trackers then start a new run.") from None


def _flat_numbers(table: dict[str, Any]) -> list[tuple[str, float]]:
    """(name, value) of every number in a table; entries of lists are numbered from 1, inner names follow a slash."""
    found: list[tuple[str, float]] = []
    for name, value in table.items():
        if isinstance(value, (dict, list, tuple)):
            inner = value if isinstance(value, dict) else {str(i): entry for i, entry in enumerate(value, start=1)}
            found += [(f"{name}/{key}", number) for key, number in _flat_numbers(inner)]
        elif isinstance(value, (int, float)):
            found.append((name, float(value)))
    return found


def _flat(settings: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Settings in one flat table, with names such as network.view.fit; lists become text."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{before}{name}.")
        else:
            flat[before + name] = value if isinstance(value, (bool, int, float, str)) else str(value)
    return flat


class Journal:
    """Writes metrics.jsonl and shows progress. Only the journal of the main process writes."""

    def __init__(self, folder: Path, *, writes: bool, quiet: bool, trackers: Trackers | None = None) -> None:
        self.file = folder / METRICS_FILE
        self.writes = writes
        self.console = Console(stderr=True, quiet=quiet or not writes)
        self.bars = ProgressBars(self.console)
        self._trackers = trackers
        self._epoch = ("", 0, 0)  # description, steps done, steps in all
        self._time_left: TimeLeft | None = None

    def rewind(self, length: int) -> None:
        """Remove the lines after the checkpoint that a run resumes from: they will be written again."""
        if self.writes and self.file.exists():
            with self._write_errors(), self._open(os.O_RDWR) as stream:
                stream.truncate(min(length, self.length))  # never extend it: that would append zeros

    @property
    def length(self) -> int:
        return self.file.stat().st_size if self.file.exists() else 0

    def start(self, description: str, total: int, done: int = 0) -> None:
        self.bars.start()
        self.bars.remove(self._epoch[0])
        self._epoch = description, done, total
        self.bars.show(*self._epoch)

    def show_progress(self, what: str, done: int, total: int) -> None:
        """Show the progress of work outside the epochs; see progress.Progress."""
        self.bars.start()
        self.bars.show(what, done, total)
        if done >= total:
            self.bars.remove(what)

    def expect(self, total_s: float) -> None:
        """From now on show the progress of the whole run and the remaining time."""
        self._time_left = TimeLeft(total_s)
        self.bars.show("whole run, %", 0, 100, timed=False)

    def reach(self, done_s: float) -> None:
        """Report that `done_s` of the expected seconds are done."""
        if self._time_left is not None:
            self._time_left.reach(done_s, time.monotonic())
            share = 100 * done_s / max(1e-9, self._time_left.total_s)
            self.bars.show("whole run, %", min(100, int(share)), 100, note=self._left(), timed=False)

    def _left(self) -> str:
        return "" if self._time_left is None else f"about {duration(self._time_left.seconds)} left"

    def step(self, numbers: Numbers, images_per_s: float) -> None:
        description, done, total = self._epoch
        if description:
            self._epoch = description, done + 1, total
            self.bars.show(*self._epoch, note=f"{_brief(numbers)} {images_per_s:,.0f} img/s")

    def epoch(self, row: EpochRow) -> None:
        """Write one line to the file and one to the terminal."""
        if self.writes:
            with self._write_errors():
                self._write(row)
        self.console.print(
            f"{row.stage:<10} epoch {row.epoch:>3}/{row.epochs}  {_brief(row.numbers)}  "
            f"{row.images_per_s:,.0f} img/s  {self._left()}".rstrip(),
            highlight=False,
            soft_wrap=True,
        )

    def _write(self, row: EpochRow) -> None:
        with self._open(os.O_WRONLY | os.O_APPEND | os.O_CREAT) as stream:
            stream.write(json.dumps(row.to_plain()).encode() + b"\n")
        if self._trackers is not None:
            epochs_done = self.file.read_bytes().count(b"\n")
            for problem in self._trackers.log(row.stage, {**row.numbers, "aims": row.aims or {}}, epochs_done):
                self.print(problem)

    def _open(self, flags: int) -> BinaryIO:
        """Open the file; links and pipes are refused, since opening a pipe would wait for the other end."""
        if os.path.lexists(self.file) and not stat.S_ISREG(os.lstat(self.file).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        flags |= getattr(os, "O_NONBLOCK", 0)
        descriptor = os.open(self.file, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0), 0o666)
        return os.fdopen(descriptor, "r+b" if flags & os.O_RDWR else "ab")

    @contextmanager
    def _write_errors(self) -> Iterator[None]:
        """Raise BadRun with the reason where the file cannot be written."""
        try:
            yield
        except OSError as error:
            raise BadRun(
                f"{self.file} could not be written ({error.strerror or error}). The last checkpoint is unchanged. "
                "Make room on the disk and run the same command again."
            ) from error

    def print(self, text: str) -> None:
        self.console.print(lines_kept(text), highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        self.bars.stop()
        if self._trackers is not None:
            self._trackers.close()


class TimeLeft:
    """The remaining seconds of an expected total, corrected by the measured speed."""

    def __init__(self, total_s: float) -> None:
        self.total_s = total_s
        self.seconds = total_s
        self._first: tuple[float, float] | None = None

    def reach(self, done_s: float, now: float) -> None:
        """Report that `done_s` of the total are done; `now` is the time in s of any clock."""
        if self._first is None:
            self._first = done_s, now
        expected, taken = done_s - self._first[0], now - self._first[1]
        # The speed of the first minute is noisy, so one minute at the planned speed is added to both.
        pace = (taken + 60) / (expected + 60)
        self.seconds = max(0.0, (self.total_s - done_s) * pace)


def _brief(numbers: Numbers) -> str:
    """The most important numbers, for one line on the terminal; accuracies in percent."""
    parts = []
    words = {"loss": "loss", "reward": "reward", "accuracy": "train", "val_accuracy": "val", "hit_rate": "hits"}
    for name, word in words.items():
        value = numbers.get(name)
        if isinstance(value, list):
            parts.append(f"{word} " + "/".join(f"{100 * v:.1f}" for v in value))
        elif value is not None:
            parts.append(f"{word} {value:.3f}")
    return "  ".join(parts)


def read_metrics(folder: Path) -> list[EpochRow]:
    """The rows of a run's metrics, one per epoch; an incomplete last line is left out."""
    file = folder / METRICS_FILE
    try:
        lines = file.read_bytes().split(b"\n") if file.is_file() else []
    except OSError as error:
        raise BadRun(f"{file} cannot be read ({error.strerror or error}).") from None
    rows: list[EpochRow] = []
    # After the last line break comes nothing, or an incomplete line.
    for number, line in enumerate(lines[:-1], start=1):
        try:
            rows.append(EpochRow.from_plain(parse_json(line)))
        except BadSetting as error:
            raise BadRun(f"{file} is damaged: line {number} is not an epoch: {error}") from None
    return rows
