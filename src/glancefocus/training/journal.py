"""What a run tells: one JSON line an epoch, the same to trackers, progress for people."""

import contextlib
import errno
import importlib.util
import json
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from rich.console import Console

from glancefocus.errors import BadRun, BadSetting, MissingExtra, MissingPackage, UnknownName
from glancefocus.escaping import lines_kept
from glancefocus.files import cache_path, write_text
from glancefocus.progress import ProgressBars
from glancefocus.training.plan import duration
from glancefocus.values import read_json

TRACKERS = ("tensorboard", "wandb", "mlflow")
NONE = "none"
STATE_FILE = "trackers.json"
_MOST_STATE_BYTES = 1 << 20
BOOKKEEPING = frozenset({"stage", "stage_number", "epoch", "epochs", "images_per_s"})
"""Values of a row that say where a run is, not how good it is."""


class Trackers:
    """The trackers of one run.

    folder    the run's; ids of its runs elsewhere, and the steps that were sent, are kept in STATE_FILE there
    settings  of the run, as plain values
    names     see chosen_trackers
    """

    def __init__(self, folder: Path, settings: dict[str, Any], names: Sequence[str]) -> None:
        self.file = folder / STATE_FILE
        self._known = _read_state(self.file)
        self._open: dict[str, Any] = {}
        for name in names:
            known = self._known.setdefault(name, {"run": None, "steps": 0})
            try:
                self._open[name] = _OPEN[name](folder, known)
                if known["steps"] == 0:
                    _store_settings(name, self._open[name], _flat(settings))
            except (
                Exception
            ) as error:  # each tracker has errors of its own: not logged in, no such server, no disk space
                reason = str(error).strip().rstrip(".") or type(error).__name__
                raise BadRun(
                    f"the tracker {name} could not be started: {reason}. Correct that, or leave {name} out of --track."
                ) from error

    def log(self, row: dict[str, Any], step: int) -> list[str]:
        """Send the figures of an epoch to every tracker that has not had them; returns a sentence for each tracker that failed.

        One that failed gets nothing more in this process: hours of training are worth more than a curve.
        """
        stage = row.get("stage", "run")
        values = {f"{stage}/{name}": value for name, value in _numbers(row)}
        problems = []
        for name, tracker in list(self._open.items()):
            if step <= self._known[name]["steps"]:
                continue
            try:
                tracker.log(values, step=step)
            except Exception as error:
                del self._open[name]
                problems.append(f"the tracker {name} failed and gets no more figures of this run: {error}")
                continue
            self._known[name]["steps"] = step
        write_text(self.file, json.dumps(self._known, indent=1) + "\n")
        return problems

    def close(self) -> None:
        for tracker in self._open.values():
            with contextlib.suppress(Exception):  # everything was sent after its epoch
                tracker.finish()
        self._open.clear()


def chosen_trackers(names: Sequence[str] | None) -> tuple[str, ...]:
    """The trackers to use; None: TensorBoard where it is installed. Refuses names that are not known or not installed."""
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


def _tensorboard(folder: Path, known: dict[str, Any]) -> Any:
    from accelerate.tracking import TensorBoardTracker

    return _started(TensorBoardTracker("tensorboard", logging_dir=folder))


def _wandb(folder: Path, known: dict[str, Any]) -> Any:
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # crashes are not reported to its makers
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("WANDB_CACHE_DIR", str(cache_path() / "wandb"))
    from accelerate.tracking import WandBTracker

    project = os.environ.get("WANDB_PROJECT", "glancefocus")
    tracker = WandBTracker(project, name=folder.name, id=known["run"], resume="allow", dir=str(folder))
    known["run"] = _started(tracker).tracker.id
    return tracker


def _mlflow(folder: Path, known: dict[str, Any]) -> Any:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    import mlflow
    from accelerate.tracking import MLflowTracker

    if "MLFLOW_TRACKING_URI" not in os.environ:  # else it would write to the current folder
        mlflow.set_tracking_uri(f"sqlite:///{(folder / 'mlflow.db').absolute()}")
    tracker = MLflowTracker(
        "glancefocus", logging_dir=str(folder / "mlflow"), run_name=folder.name, run_id=known["run"]
    )
    known["run"] = _started(tracker).tracker.info.run_id
    return tracker


_OPEN = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}


def _started(tracker: Any) -> Any:
    tracker.start()
    return tracker


def _store_settings(name: str, tracker: Any, settings: dict[str, Any]) -> None:
    if name == "tensorboard":  # accelerate would begin another run of TensorBoard's for them
        tracker.tracker.add_text("settings", f"```\n{json.dumps(settings, indent=1)}\n```")
        tracker.tracker.flush()
    else:
        tracker.store_init_configuration(settings)


def _read_state(file: Path) -> dict[str, dict[str, Any]]:
    try:
        plain = read_json(file, _MOST_STATE_BYTES)
        return {
            str(name): {"run": None if known["run"] is None else str(known["run"]), "steps": int(known["steps"])}
            for name, known in plain.items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, BadSetting, ValueError, TypeError, KeyError, AttributeError):
        raise BadRun(f"{file} is damaged. Delete it; trackers then begin a new run.") from None


def _numbers(row: dict[str, Any]) -> list[tuple[str, float]]:
    """(name, value) of every figure of a row; those of lists are counted from 1, those of tables have both names."""
    found: list[tuple[str, float]] = []
    for name, value in row.items():
        if name in BOOKKEEPING:
            continue
        if isinstance(value, dict):
            found += [(f"{name}/{inner}", number) for inner, number in _numbers(value)]
        elif isinstance(value, list):
            entries = {str(i): entry for i, entry in enumerate(value, start=1)}
            found += [(f"{name}/{inner}", number) for inner, number in _numbers(entries)]
        elif isinstance(value, (int, float)):
            found.append((name, float(value)))
    return found


def _flat(settings: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Settings without nesting, under names such as network.view.fit; lists as text."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{before}{name}.")
        else:
            flat[before + name] = value if isinstance(value, (bool, int, float, str)) else str(value)
    return flat


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
