"""The folder of a run: what its files are called, who trains in it, and whether the run in it is the one that is asked for."""

import errno
import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from glancefocus.data.datasets import classes_of
from glancefocus.data.worlds import WORLDS
from glancefocus.errors import BadRun, BadSetting
from glancefocus.files import Locked, lock, remove_unfinished
from glancefocus.interrupts import farewell
from glancefocus.settings import from_plain, to_plain
from glancefocus.training.checkpoint import write_run_file
from glancefocus.training.run_data import class_differences, classes_of_run
from glancefocus.training.settings import STAGES, TrainSettings
from glancefocus.typed import Fields, read_json

REPORT_FOLDER = "report"
SETTINGS_FILE, CHECKPOINT_FILE, BUNDLE_FOLDER = "settings.json", "last.ckpt", "bundle"
BACKBONE_FILE, BEST_FILE, PLAN_FILE = "backbone.safetensors", "best.safetensors", "plan.json"
LOCK_FILE, ASKED_FILE = ".lock", "asked.json"
_MOST_TABLE_BYTES = 16 << 20
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # of file systems that have none


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """This process alone trains in the folder while the block runs; the folder is made where there is none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        strangers = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    except OSError as error:
        raise BadRun(f"{folder} cannot be made ({error.strerror}). Choose another folder.") from None
    if strangers - {ASKED_FILE} and SETTINGS_FILE not in strangers:
        raise BadRun(f"{folder} is not empty and holds no run. Choose another folder.")
    with ExitStack() as stack:
        try:
            stack.enter_context(lock(folder / LOCK_FILE, wait=False))
        except Locked as error:
            who = "another process" if error.holder is None else f"process {error.holder}"
            raise BadRun(
                f"{who} is training in {folder}. Wait until it ends, stop it, or choose another folder with -o."
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise BadRun(
                    f"{folder / LOCK_FILE} cannot be opened ({error.strerror}). Choose another folder."
                ) from None
        yield


def run_farewell(folder: Path) -> AbstractContextManager[None]:
    """How to go on with a run that is stopped in this block."""

    def words(at_once: bool) -> str:
        if not (folder / CHECKPOINT_FILE).exists():
            return "stopped before anything was learnt, so nothing is lost. The same command starts again."
        saved = "the last checkpoint is" if at_once else "everything learnt so far is saved"
        return f"stopped; {saved} in {folder}. Run the same command again to go on."

    return farewell(words)


def prepare_folder(folder: Path, settings: TrainSettings, asked: dict[str, Any] | None = None) -> None:
    """Note the settings of a new run in its folder, or check that the run in it has the same ones.

    asked  what the run was asked for with, see asked_for; it is kept beside the settings
    """
    for name in (SETTINGS_FILE, ASKED_FILE, CHECKPOINT_FILE, BACKBONE_FILE, BEST_FILE, PLAN_FILE, BUNDLE_FOLDER):
        remove_unfinished(folder, name)
    wanted = json.loads(json.dumps(to_plain(settings)))
    found = None
    if (folder / SETTINGS_FILE).exists():
        # Of a run from before a setting existed, that setting has its default.
        found = json.loads(json.dumps(to_plain(settings_of(folder))))
        if (folder / CHECKPOINT_FILE).exists():  # nothing learnt yet: any settings will do
            _check_same(folder, settings, found, wanted)
    # First, so that several processes that choose a folder at the same time choose this one.
    if asked is not None and (found != wanted or not (folder / ASKED_FILE).exists()):
        _write_table(folder / ASKED_FILE, asked)
    if found != wanted:
        _write_table(folder / SETTINGS_FILE, wanted)


def _check_same(folder: Path, settings: TrainSettings, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse other settings than those of the run; stages may be added, and the checkpoint knows which ones are done."""
    # How a stage goes that the run did not have so far is not decided yet.
    used = {*found["stages"], *(["aim"] if "joint" in found["stages"] else [])}  # it aims as stage II does
    free = {"stages", "rounds", "rivals", "checkpoint_minutes", *STAGES} - used
    kept, asked = ({k: v for k, v in _comparable(t).items() if k not in free} for t in (found, wanted))
    different = list(differences(kept, asked))
    if different:
        if found["network"]["classes"] != wanted["network"]["classes"]:
            now = classes_of(settings.data.source, settings.network.frames)
            different = [*class_differences(classes_of_run(folder), now), *different]
        raise BadRun(
            f"the run in {folder} has other settings: {'; '.join(different[:6])}. Use the same settings, or another folder."
        )


def alike(one: TrainSettings, other: TrainSettings) -> bool:
    """Two runs with these settings learn the same."""
    return _comparable(to_plain(one)) == _comparable(to_plain(other))


def _comparable(plain: dict[str, Any]) -> dict[str, Any]:
    """Settings without what changes nothing, and with one way to write where the data is."""
    data = {name: value for name, value in plain["data"].items() if name != "workers"}
    source = data["source"]
    return {**plain, "data": {**data, "source": source if source in WORLDS else os.path.realpath(source)}}


def settings_of(folder: Path) -> TrainSettings:
    """The settings of the run in a folder."""
    file = folder / SETTINGS_FILE
    if not file.exists():
        raise BadRun(f"{folder} holds no run: there is no {file.name}.")
    try:
        return from_plain(TrainSettings, read_table(file), "")
    except BadSetting as error:
        raise BadRun(f"{file} is damaged: {error} Start in another folder.") from None


def read_table(file: Path) -> dict[str, Any]:
    """A table of a run out of its JSON file."""
    try:
        table = Fields(read_json(file, _MOST_TABLE_BYTES)).plain
    except OSError as error:
        raise BadRun(f"{file} cannot be read: {error.strerror or error}. Start in another folder.") from None
    except BadSetting as error:
        raise BadRun(f"{file} is damaged: {error} Start in another folder.") from None
    return table


def _write_table(file: Path, table: dict[str, Any]) -> None:
    write_run_file(file, lambda stream: stream.write(json.dumps(table, indent=1).encode()))


def differences(found: Any, wanted: Any, name: str = "") -> Iterator[str]:
    """`name: was X, now Y` for everything that differs between two tables."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in sorted({*found, *wanted}):
            yield from differences(found.get(key), wanted.get(key), f"{name}.{key}" if name else str(key))
    elif found != wanted:
        yield f"{name} was {found}, now {wanted}"
