"""Trackers of a run: TensorBoard, Weights & Biases and MLflow, through accelerate's classes. None is required.

A step that was sent is not sent again when a run is resumed: its numbers would be the same.
"""

import contextlib
import importlib.util
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glancefocus.errors import BadRun, BadSetting, MissingExtra, MissingPackage, UnknownName
from glancefocus.files import cache_path, write_text
from glancefocus.values import read_json

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

    return _started(TensorBoardTracker("tensorboard", logging_dir=folder))


def _wandb(folder: Path, known: TrackedRun) -> Any:
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # do not send crash reports
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("WANDB_CACHE_DIR", str(cache_path() / "wandb"))
    from accelerate.tracking import WandBTracker

    project = os.environ.get("WANDB_PROJECT", "glancefocus")
    tracker = WandBTracker(project, name=folder.name, id=known.run, resume="allow", dir=str(folder))
    known.run = _started(tracker).tracker.id
    return tracker


def _mlflow(folder: Path, known: TrackedRun) -> Any:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    import mlflow
    from accelerate.tracking import MLflowTracker

    if "MLFLOW_TRACKING_URI" not in os.environ:  # its default is the current folder
        mlflow.set_tracking_uri(f"sqlite:///{(folder / 'mlflow.db').absolute()}")
    tracker = MLflowTracker("glancefocus", logging_dir=str(folder / "mlflow"), run_name=folder.name, run_id=known.run)
    known.run = _started(tracker).tracker.info.run_id
    return tracker


_OPEN = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}


def _started(tracker: Any) -> Any:
    tracker.start()
    return tracker


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
