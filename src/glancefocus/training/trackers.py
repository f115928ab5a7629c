"""Sends the figures of a run to trackers: TensorBoard, Weights & Biases, MLflow, through accelerate's classes for them.

None is required. A step that was sent is not sent again when a run goes on from a checkpoint: its figures would be the same.
"""

import contextlib
import importlib.util
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glancefocus.errors import BadRun, BadSetting, MissingExtra, MissingPackage, UnknownName
from glancefocus.files import cache_path, write_text
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
