"""Which folder a run goes to: a run that was asked for before goes on, another one gets a folder of its own."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from glancefocus.data.worlds.names import WORLDS
from glancefocus.errors import BadRun
from glancefocus.escaping import is_writable_text
from glancefocus.files import Locked, lock
from glancefocus.training.run_folder import (
    ASKED_FILE,
    CHECKPOINT_FILE,
    LOCK_FILE,
    SETTINGS_FILE,
    differences,
    read_table,
    settings_of,
)
from glancefocus.training.settings import TrainSettings
from glancefocus.values import shown

_SAME_RUN = (
    "output",
    "resume",
    "processes",
    "workers",
    "track",
    "rivals",
    "json",
)  # options that change nothing in what is learnt


@dataclass(frozen=True)
class Choice:
    """Where a run goes.

    settings  of the run that goes on there; None: nothing has been learnt there yet, they are still to be made
    sentence  for the user; None where there is nothing special about it
    """

    folder: Path
    settings: TrainSettings | None = None
    sentence: str | None = None


def asked_for(options: Mapping[str, Any]) -> dict[str, Any]:
    """What decides what is learnt, out of the options of `gf train`, in a form that can be kept as JSON and compared.

    Runs are compared by this and not by their settings: these may depend on the machine.
    """
    not_given = {"quick": False, "thorough": False}
    asked = {
        name: value for name, value in options.items() if value is not not_given.get(name) and name not in _SAME_RUN
    }
    asked["data"] = _place(options["data"])
    if options.get("stages"):
        asked["stages"] = ",".join(options["stages"])
    if options.get("setting"):
        asked["setting"] = {
            name.strip(): value for name, _, value in (text.partition("=") for text in options["setting"])
        }
    _check_names(*(value for value in asked.values() if isinstance(value, str)), options.get("output"))
    plain: dict[str, Any] = json.loads(json.dumps(asked))
    return plain


def _check_names(*paths: Any) -> None:
    """Refuse paths that the files of a run could not name, before anything is learnt."""
    for path in map(str, filter(None, paths)):
        if not is_writable_text(path):
            raise BadRun(f"the name {shown(path)} is not UTF-8, so a run cannot keep it. Rename the folder or file.")


def choose_run(asked: dict[str, Any], data: str, output: Path | None, *, resume: bool = False) -> Choice:
    """The folder of the run that was asked for.

    data    as the user named it
    output  the folder that the user named; None: runs/NAME, or runs/NAME-2, ... where the runs there were asked for otherwise
    resume  go on with the run in `output`, or else with the latest one of this data, whatever it was asked for with
    """
    first = Path("runs") / (Path(data).stem or "run")
    known = [output] if output is not None else _numbered(first)
    if resume:
        return _resumed(asked, data, known, output or first)
    for folder in known:
        if _asked(folder) == asked:
            settings = _begun_settings(folder, data)
            known_run = f"the run in {folder} was started with the same options: this is that run."
            return Choice(folder, settings, None if settings is None or output is not None else known_run)
    if output is not None:
        return Choice(output)
    folder = next((folder for folder in known if _unused(folder)), None) or _free(first)
    if folder == first:
        return Choice(folder)
    return Choice(
        folder,
        sentence=f"{first} holds another run, so this one goes to {folder}. --resume goes on with the latest run.",
    )


def _resumed(asked: dict[str, Any], data: str, known: list[Path], place: Path) -> Choice:
    runs = [folder for folder in known if (folder / CHECKPOINT_FILE).exists() and _data_of(folder) == _place(data)]
    if not runs:
        raise BadRun(f"there is no run of {data} in {place} to go on with. Leave out --resume to start one.")
    folder = max(runs, key=lambda run: (run / CHECKPOINT_FILE).stat().st_mtime)
    before = _asked(folder)
    if before is not None:
        different = list(differences({name: before.get(name) for name in asked}, asked))
        if different:
            raise BadRun(
                f"the run in {folder} was asked for otherwise: {'; '.join(different[:6])}. Leave these options out, "
                "or leave out --resume to start another run."
            )
    return Choice(folder, _begun_settings(folder, data), f"going on with the run in {folder}.")


def _begun_settings(folder: Path, data: str) -> TrainSettings | None:
    """The settings of a run that has learnt something; its data is where the user says that it is now."""
    if not (folder / CHECKPOINT_FILE).exists():
        return None
    settings = settings_of(folder)
    return replace(settings, data=replace(settings.data, source=data))


def _numbered(first: Path) -> list[Path]:
    """runs/NAME, runs/NAME-2, ... as far as they exist, in this order."""
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
    """Nothing has been learnt there, and nobody is about to."""
    if (folder / CHECKPOINT_FILE).exists():
        return False
    if not (folder / SETTINGS_FILE).exists():
        return not any(path for path in folder.iterdir() if path.name not in (LOCK_FILE, ASKED_FILE))
    try:
        with lock(folder / LOCK_FILE, wait=False):
            return True
    except (Locked, OSError):
        return False


def _asked(folder: Path) -> dict[str, Any] | None:
    """What the run in a folder was asked for with; None where it does not say."""
    return read_table(folder / ASKED_FILE) if (folder / ASKED_FILE).exists() else None


def _data_of(folder: Path) -> str | None:
    asked = _asked(folder)
    data = settings_of(folder).data.source if asked is None else asked.get("data")
    return _place(data) if isinstance(data, str) else None


def _place(data: str) -> str:
    """The data, however its path is written."""
    return data if data in WORLDS else os.path.realpath(data)
