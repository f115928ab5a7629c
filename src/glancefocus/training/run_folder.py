"""The folder of a run: what its files are called, and whether the run in it is the one that is asked for."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from glancefocus.errors import BadRun, BadSetting
from glancefocus.settings import from_plain, to_plain
from glancefocus.training.checkpoint import forget_unfinished, write_aside
from glancefocus.training.settings import STAGES, TrainSettings

SETTINGS_FILE, CHECKPOINT_FILE, BUNDLE_FOLDER = "settings.json", "last.ckpt", "bundle"
BACKBONE_FILE, BEST_FILE = "backbone.safetensors", "best.safetensors"


def prepare_folder(folder: Path, settings: TrainSettings) -> None:
    """Make the run's folder, or check that the run in it has the same settings."""
    file = folder / SETTINGS_FILE
    forget_unfinished(folder, (SETTINGS_FILE, CHECKPOINT_FILE, BACKBONE_FILE, BEST_FILE))
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
            raise BadRun(
                f"the run in {folder} has other settings: {'; '.join(different[:6])}. Use the same settings, or another folder."
            )
        if found != wanted:
            write_aside(file, lambda stream: stream.write(json.dumps(wanted, indent=1).encode()))
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadRun(f"{folder} cannot be made ({error.strerror}). Choose another folder.") from None
    if any(folder.iterdir()):
        raise BadRun(f"{folder} is not empty and holds no run. Choose another folder.")
    write_aside(file, lambda stream: stream.write(json.dumps(wanted, indent=1).encode()))


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
