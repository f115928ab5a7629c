"""The folder of a run: what its files are called, who trains in it, and whether the run in it is the one that is asked for."""

import errno
import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from glancefocus.data.sources import classes_of
from glancefocus.data.split_record import FILE, MAX_PACKED_BYTES, RecordedFile, SplitRecord
from glancefocus.data.worlds.names import WORLDS
from glancefocus.errors import BadData, BadRun, BadSetting
from glancefocus.files import Locked, lock, remove_unfinished, write_file
from glancefocus.interrupts import farewell
from glancefocus.settings import from_plain, to_plain
from glancefocus.training.checkpoint import write_run_file
from glancefocus.training.settings import STAGES, TrainSettings
from glancefocus.values import Fields, read_json

_NAMES_SHOWN = 3


def keep_data(folder: Path, record: SplitRecord | None, *, begun: bool) -> None:
    """Write the record of the data into the run's folder; where the run has learnt from other data, refuse with the difference.

    record  None: a built-in world, which its settings describe
    begun   whether the run has learnt anything; otherwise the data may still change
    """
    if record is None:
        return
    found = _found(folder)
    if found is not None and found == record:
        return
    if found is not None and begun:
        different = list(data_differences(found, record))
        if different:
            raise BadRun(
                f"the data of the run in {folder} has changed: {'; '.join(different)}. "
                "Put it back as it was to go on, or train in another folder (--output)."
            )
    write_file(folder / FILE, lambda stream: stream.write(record.packed))


def classes_of_run(folder: Path) -> tuple[str, ...]:
    """The classes of the data that the run in a folder began with; none where that is not known."""
    found = _found(folder)
    return () if found is None else found.classes


def data_differences(found: SplitRecord, now: SplitRecord) -> Iterator[str]:
    """What differs between the data of a run and the data as it is now, in words: classes, then files by their names."""
    yield from class_differences(found.classes, now.classes)
    before, after = ({file.name: file for file in record.files()} for record in (found, now))
    both = [name for name in after if name in before]
    labels_move = found.classes != now.classes

    def label(record: SplitRecord, file: RecordedFile) -> str:
        return record.classes[file.label]

    yield from _listed("changed", [name for name in both if before[name].content != after[name].content])
    if not labels_move:
        moved = [name for name in both if label(found, before[name]) != label(now, after[name])]
        yield from _listed("got another label", moved)
    new, gone = [name for name in after if name not in before], [name for name in before if name not in after]
    contents_gone = {before[name].content for name in gone}
    renamed = [name for name in new if after[name].content in contents_gone]
    contents_renamed = {after[name].content for name in renamed}
    yield from _listed("have another name", renamed)
    yield from _listed("are new", [name for name in new if after[name].content not in contents_gone])
    yield from _listed("are gone", [name for name in gone if before[name].content not in contents_renamed])
    if before.keys() == after.keys():
        moved = [name for name in both if before[name].split != after[name].split]
        yield from _listed("went to another split", moved)


def class_differences(found: tuple[str, ...], now: tuple[str, ...]) -> Iterator[str]:
    """Which classes came, went or changed their place; nothing where those of before are not known."""
    if not found:
        return
    gone, new = [n for n in found if n not in now], [n for n in now if n not in found]
    if gone and len(gone) == len(new) and len(found) == len(now):
        pairs = [f"{one!r} is now {two!r}" for one, two in zip(gone, new, strict=True)]
        yield f"the class {', '.join(pairs[:_NAMES_SHOWN])}{', ...' if len(pairs) > _NAMES_SHOWN else ''}"
        return
    if new:
        yield f"the class {_some([repr(name) for name in new])} is new"
    if gone:
        yield f"the class {_some([repr(name) for name in gone])} is gone"
    if not gone and not new and found != now:
        place = next(number for number, (one, two) in enumerate(zip(found, now, strict=True)) if one != two)
        yield f"the classes have another order: class {place} was {found[place]!r} and is {now[place]!r}"


def _listed(what: str, names: list[str]) -> Iterator[str]:
    if names:
        yield f"{len(names)} {'file' if len(names) == 1 else 'files'} {_verb(what, len(names))} ({_some(names)})"


def _verb(what: str, count: int) -> str:
    return what.replace("are ", "is ").replace("have ", "has ") if count == 1 else what


def _some(names: list[str]) -> str:
    return ", ".join(names[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")


def _found(folder: Path) -> SplitRecord | None:
    """What the folder says; None where it says nothing that can be used, so that there is nothing to compare with."""
    file = folder / FILE
    if not file.is_file() or file.stat().st_size > MAX_PACKED_BYTES:
        return None
    record = SplitRecord(file.read_bytes(), str(file))
    try:
        for _ in record.files():
            pass
    except BadData as error:
        raise BadRun(f"{error} Or remove the file; the data of this run is then not compared any more.") from None
    return record


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
