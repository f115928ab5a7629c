"""The folder of a run: what its files are called, who trains in it, and whether the run in it is the one that is asked for."""

import errno
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from glancefocus.data.datasets import classes_of
from glancefocus.errors import BadRun, BadSetting
from glancefocus.files import Locked, lock, remove_unfinished
from glancefocus.interrupts import farewell
from glancefocus.settings import from_plain, to_plain
from glancefocus.training.checkpoint import write_run_file
from glancefocus.training.run_data import class_differences, classes_of_run
from glancefocus.training.settings import STAGES, TrainSettings

SETTINGS_FILE, CHECKPOINT_FILE, BUNDLE_FOLDER = "settings.json", "last.ckpt", "bundle"
BACKBONE_FILE, BEST_FILE, PLAN_FILE = "backbone.safetensors", "best.safetensors", "plan.json"
LOCK_FILE = ".lock"
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # of file systems that have none


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """This process alone trains in the folder while the block runs; the folder is made where there is none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        strangers = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    except OSError as error:
        raise BadRun(f"{folder} cannot be made ({error.strerror}). Choose another folder.") from None
    if strangers and SETTINGS_FILE not in strangers:
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


def prepare_folder(folder: Path, settings: TrainSettings) -> None:
    """Note the settings of a new run in its folder, or check that the run in it has the same ones."""
    file = folder / SETTINGS_FILE
    for name in (SETTINGS_FILE, CHECKPOINT_FILE, BACKBONE_FILE, BEST_FILE, BUNDLE_FOLDER):
        remove_unfinished(folder, name)
    wanted = json.loads(json.dumps(to_plain(settings)))
    if file.exists():
        try:
            # Of a run from before a setting existed, that setting has its default.
            found = json.loads(json.dumps(to_plain(from_plain(TrainSettings, json.loads(file.read_text())))))
        except (ValueError, BadSetting):
            raise BadRun(f"{file} is damaged. Start in another folder.") from None
        # Stages may be added to a run; the checkpoint knows which ones are done. Nothing learnt yet: any settings will do.
        # How a stage goes that the run did not have so far is not decided yet.
        used = {*found["stages"], *(["aim"] if "joint" in found["stages"] else [])}  # it aims as stage II does
        free = {"stages", "rounds", "rivals", *STAGES} - used
        kept, asked = ({k: v for k, v in t.items() if k not in free} for t in (found, wanted))
        different = list(differences(kept, asked))
        if different and (folder / CHECKPOINT_FILE).exists():
            if found["network"]["classes"] != wanted["network"]["classes"]:
                now = classes_of(settings.data.source, settings.network.frames)
                different = [*class_differences(classes_of_run(folder), now), *different]
            raise BadRun(
                f"the run in {folder} has other settings: {'; '.join(different[:6])}. Use the same settings, or another folder."
            )
        if found != wanted:
            write_run_file(file, lambda stream: stream.write(json.dumps(wanted, indent=1).encode()))
        return
    write_run_file(file, lambda stream: stream.write(json.dumps(wanted, indent=1).encode()))


def settings_of(folder: Path) -> TrainSettings:
    """The settings of the run in a folder."""
    file = folder / SETTINGS_FILE
    try:
        return from_plain(TrainSettings, json.loads(file.read_text()))
    except OSError as error:
        raise BadRun(f"{folder} holds no run: {file.name} cannot be read ({error.strerror or error}).") from None
    except (ValueError, BadSetting):
        raise BadRun(f"{file} is damaged.") from None


def differences(found: Any, wanted: Any, name: str = "") -> Iterator[str]:
    """`name: was X, now Y` for everything that differs between two tables."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in sorted({*found, *wanted}):
            yield from differences(found.get(key), wanted.get(key), f"{name}.{key}" if name else str(key))
    elif found != wanted:
        yield f"{name} was {found}, now {wanted}"
