"""The folder of a run: its files, the lock of the process that trains in it, its settings, and which folder a new command uses.

The same options continue the run that was started with them; other options get a folder of their own.
"""

import errno
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from glancefocus.data.sources import MOST_DEFAULT_WORKERS, classes_of, default_workers
from glancefocus.data.worlds import WORLDS
from glancefocus.errors import BadRun, BadSetting
from glancefocus.files import Locked, lock, remove_unfinished
from glancefocus.interrupts import stop_message
from glancefocus.machine import read_json
from glancefocus.training.checkpoint import class_differences, classes_of_run, write_run_file
from glancefocus.training.settings import STAGES, TrainSettings
from glancefocus.values import Fields, from_plain, is_writable_text, shown, to_plain

Asked: TypeAlias = dict[str, Any]
"""The options that a run was started with, as JSON values, see asked_for."""

REPORT_FOLDER = "report"
SETTINGS_FILE, CHECKPOINT_FILE, BUNDLE_FOLDER = "settings.json", "last.ckpt", "bundle"
BACKBONE_FILE, PLAN_FILE = "backbone.safetensors", "plan.json"
LOCK_FILE, ASKED_FILE = ".lock", "asked.json"
_MOST_TABLE_BYTES = 16 << 20
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # file systems without locks


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Create the folder if there is none, and lock it: no other process trains in it while the block runs."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    except OSError as error:
        raise BadRun(f"{folder} cannot be created ({error.strerror}). Choose another folder.") from None
    if names - {ASKED_FILE} and SETTINGS_FILE not in names:
        raise BadRun(f"{folder} is not empty and holds no run. Choose another folder.")
    with ExitStack() as stack:
        try:
            stack.enter_context(lock(folder / LOCK_FILE, wait=False))
        except Locked as error:
            holder = "another process" if error.holder is None else f"process {error.holder}"
            raise BadRun(
                f"{holder} is training in {folder}. Wait until it ends, stop it, or choose another folder with -o."
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise BadRun(
                    f"{folder / LOCK_FILE} cannot be opened ({error.strerror}). Choose another folder."
                ) from None
        yield


def run_stop_message(folder: Path) -> AbstractContextManager[None]:
    """If the block is interrupted, print how to continue the run."""

    def words(at_once: bool) -> str:
        if not (folder / CHECKPOINT_FILE).exists():
            return "stopped before anything was learnt, so nothing is lost. The same command starts again."
        saved = "the last checkpoint is" if at_once else "everything learnt so far is saved"
        return f"stopped; {saved} in {folder}. Run the same command again to continue."

    return stop_message(words)


def prepare_folder(folder: Path, settings: TrainSettings, asked: Asked | None = None) -> None:
    """Write the settings of a new run into its folder, or check that the run in it has the same ones.

    asked  the options of the command, see asked_for; they are kept beside the settings
    """
    for name in (SETTINGS_FILE, ASKED_FILE, CHECKPOINT_FILE, BACKBONE_FILE, PLAN_FILE, BUNDLE_FOLDER):
        remove_unfinished(folder, name)
    wanted = json.loads(json.dumps(to_plain(settings)))
    found = None
    if (folder / SETTINGS_FILE).exists():
        # A setting that did not exist when the run was started has its default.
        found = json.loads(json.dumps(to_plain(settings_of(folder))))
        if (folder / CHECKPOINT_FILE).exists():  # before the first checkpoint, settings may change
            _check_same(folder, settings, found, wanted)
    # Before the settings, so that several processes that choose a folder at the same time choose this one.
    if asked is not None and (found != wanted or not (folder / ASKED_FILE).exists()):
        _write_table(folder / ASKED_FILE, asked)
    if found != wanted:
        _write_table(folder / SETTINGS_FILE, wanted)


def _check_same(folder: Path, settings: TrainSettings, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse other settings than those of the run. Stages may be added; the checkpoint records which ones are done."""
    # Settings of stages that the run did not have so far are still free.
    used = {*found["stages"], *(["aim"] if "joint" in found["stages"] else [])}  # joint uses the settings of aim, too
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
    """Whether two runs with these settings give the same result."""
    return _comparable(to_plain(one)) == _comparable(to_plain(other))


def _comparable(plain: dict[str, Any]) -> dict[str, Any]:
    return {**plain, "data": comparable_data(plain["data"])}


def comparable_data(plain: dict[str, Any]) -> dict[str, Any]:
    """Settings of the data without those that have no effect on the result, and with its real path."""
    source = plain["source"]
    drawn = source in WORLDS
    without_effect = {"workers", *(["hold_mib"] if drawn else [])}
    data = {name: value for name, value in plain.items() if name not in without_effect}
    return {**data, "source": source if drawn else os.path.realpath(source)}


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
    """A table from a JSON file of a run."""
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
    """`name was X, now Y` for everything that differs between two tables."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in sorted({*found, *wanted}):
            yield from differences(found.get(key), wanted.get(key), f"{name}.{key}" if name else str(key))
    elif found != wanted:
        yield f"{name} was {found}, now {wanted}"


_NO_EFFECT = ("output", "resume", "processes", "workers", "track", "rivals", "json")  # on what is learnt


@dataclass(frozen=True)
class Choice:
    """The folder of a run.

    settings  of the run that continues there; None: it has no checkpoint yet, so its settings are still to be made
    sentence  to print for the user; None: nothing
    """

    folder: Path
    settings: TrainSettings | None = None
    sentence: str | None = None


def asked_for(options: Mapping[str, Any]) -> Asked:
    """The options of `gf train` that have an effect on what is learnt, as JSON values that can be kept and compared.

    Runs are compared by their options and not by their settings, because settings may depend on the machine.
    """
    not_given = {"quick": False, "thorough": False}
    asked = {
        name: value for name, value in options.items() if value is not not_given.get(name) and name not in _NO_EFFECT
    }
    asked["data"] = _place(options["data"])
    if options.get("stages"):
        asked["stages"] = ",".join(options["stages"])
    if options.get("setting"):
        asked["setting"] = {
            name.strip(): value for name, _, value in (text.partition("=") for text in options["setting"])
        }
    _check_names(*(value for value in asked.values() if isinstance(value, str)), options.get("output"))
    plain: Asked = json.loads(json.dumps(asked))
    return plain


def _check_names(*paths: Any) -> None:
    """Refuse paths that cannot be written to the files of a run, before training starts."""
    for path in map(str, filter(None, paths)):
        if not is_writable_text(path):
            raise BadRun(
                f"the name {shown(path)} is not UTF-8, so it cannot be stored with a run. Rename the folder or file."
            )


def choose_run(asked: Asked, data: str, output: Path | None, *, resume: bool = False) -> Choice:
    """The folder for a command with these options.

    data    as the user named it
    output  the folder that the user named; None: runs/NAME, or runs/NAME-2, ... if that holds a run with other options
    resume  continue the run in `output`, or else the latest run of this data, with the options that it was started with
    """
    first = Path("runs") / (Path(data).stem or "run")
    known = [output] if output is not None else _numbered(first)
    if resume:
        return _resumed(asked, data, known, output or first)
    for folder in known:
        if _asked(folder) == asked:
            settings = _begun_settings(folder, data)
            known_run = f"the run in {folder} was started with the same options, so it is continued."
            return Choice(folder, settings, None if settings is None or output is not None else known_run)
    if output is not None:
        return Choice(output)
    folder = next((folder for folder in known if _unused(folder)), None) or _free(first)
    if folder == first:
        return Choice(folder)
    return Choice(
        folder,
        sentence=f"{first} holds another run, so this one goes to {folder}. --resume continues the latest run.",
    )


def _resumed(asked: Asked, data: str, known: list[Path], place: Path) -> Choice:
    runs = [folder for folder in known if (folder / CHECKPOINT_FILE).exists() and _data_of(folder) == _place(data)]
    if not runs:
        raise BadRun(f"there is no run of {data} in {place} to continue. Leave out --resume to start one.")
    folder = max(runs, key=lambda run: (run / CHECKPOINT_FILE).stat().st_mtime)
    before = _asked(folder)
    if before is not None:
        different = list(differences({name: before.get(name) for name in asked}, asked))
        if different:
            raise BadRun(
                f"the run in {folder} was started with other options: {'; '.join(different[:6])}. Leave these options out, "
                "or leave out --resume to start another run."
            )
    return Choice(folder, _begun_settings(folder, data), f"continuing the run in {folder}.")


def _begun_settings(folder: Path, data: str) -> TrainSettings | None:
    """The settings of a run that has a checkpoint, with the path of the data as the user names it now; otherwise None."""
    if not (folder / CHECKPOINT_FILE).exists():
        return None
    settings = settings_of(folder)
    workers = settings.data.workers
    if workers <= MOST_DEFAULT_WORKERS:  # perhaps the default, of a machine with more cores
        workers = min(workers, default_workers())
    return replace(settings, data=replace(settings.data, source=data, workers=workers))


def _numbered(first: Path) -> list[Path]:
    """The existing folders among runs/NAME, runs/NAME-2, ..., in this order."""
    found = {}
    if first.parent.is_dir():
        for folder in first.parent.iterdir():
            number = re.fullmatch(rf"{re.escape(first.name)}(?:-([1-9]\d{{0,8}}))?", folder.name)
            if number is not None and folder.is_dir():
                found[int(number[1] or 1)] = folder
    return [found[number] for number in sorted(found)]


def _free(first: Path) -> Path:
    if not os.path.lexists(first):
        return first
    number = 2
    while os.path.lexists(folder := first.with_name(f"{first.name}-{number}")):
        number += 1
    return folder


def _unused(folder: Path) -> bool:
    """Whether the folder has no checkpoint, and no process is training in it."""
    if (folder / CHECKPOINT_FILE).exists():
        return False
    if not (folder / SETTINGS_FILE).exists():
        return not any(path for path in folder.iterdir() if path.name not in (LOCK_FILE, ASKED_FILE))
    try:
        with lock(folder / LOCK_FILE, wait=False):
            return True
    except (Locked, OSError):
        return False


def _asked(folder: Path) -> Asked | None:
    """The options that the run in a folder was started with; None if they are not stored."""
    return read_table(folder / ASKED_FILE) if (folder / ASKED_FILE).exists() else None


def _data_of(folder: Path) -> str | None:
    asked = _asked(folder)
    data = settings_of(folder).data.source if asked is None else asked.get("data")
    return _place(data) if isinstance(data, str) else None


def _place(data: str) -> str:
    """The real path of the data, or the name of a built-in world."""
    return data if data in WORLDS else os.path.realpath(data)
