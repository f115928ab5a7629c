"""`gf train`: a run, and what came of it."""

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from glancefocus.bundle.bundle import Bundle
from glancefocus.cli.printing import notice, print_verdict, say
from glancefocus.costs import MOST_LOOKS
from glancefocus.errors import BadBundle, BadRun, BadSetting
from glancefocus.free_memory import is_out_of_memory, keep_freed_memory
from glancefocus.training.run import finished_bundle, train
from glancefocus.training.run_folder import BUNDLE_FOLDER, REPORT_FOLDER, run_farewell
from glancefocus.training.settings import TrainSettings
from glancefocus.values import Fields, number_of

_LONGEST_SENTENCE = 10_000


def run_training(
    settings: TrainSettings,
    folder: Path,
    *,
    asked: dict[str, Any] | None = None,
    as_json: bool,
    track: Sequence[str] | None,
) -> None:
    """Train, and say what came of it and how to ask it; of a run that is done already, only say it.

    asked  what the run was asked for with, see asked_for
    track  the trackers to send figures to, see chosen_trackers
    """
    keep_freed_memory()
    with run_farewell(folder), _memory_errors(settings):
        bundle = finished_bundle(settings, folder)
        if bundle is None:
            bundle = train(settings, folder, asked=asked, quiet=as_json, planned=True, reported=True, track=track)
        elif os.environ.get("RANK", "0") == "0":
            notice(f"the run in {folder} is done; this is its result. For another run use other options, or -o.")
    if os.environ.get("RANK", "0") != "0":
        return
    with _damaged_notes(folder / BUNDLE_FOLDER):
        _say_result(bundle, folder, as_json=as_json)


def _say_result(bundle: Bundle, folder: Path, *, as_json: bool) -> None:
    notes = Fields(bundle.notes, "notes")
    accuracy = notes.listed(
        "validation_accuracy_per_look", MOST_LOOKS, lambda value, name: number_of(value, name, 0, 1)
    )
    if as_json:
        fact = {"run": str(folder), "bundle": str(folder / BUNDLE_FOLDER), "validation_accuracy_per_look": accuracy}
        fact["report"] = str(folder / REPORT_FOLDER / "report.html")
        fact |= {name: bundle.notes[name] for name in ("aims", "verdict") if name in bundle.notes}
        print(json.dumps(fact, indent=1, allow_nan=False))
        return
    if "aims" in bundle.notes:
        say(notes.table("aims").text("sentence", _LONGEST_SENTENCE))
    if "verdict" in bundle.notes:
        print_verdict(bundle.notes["verdict"])
    shares = " / ".join(f"{100 * a:.1f}" for a in accuracy)
    say(
        f"validation accuracy after each look: {shares} %\nbundle: {folder / BUNDLE_FOLDER}\n"
        f"report: {folder / REPORT_FOLDER / 'report.html'}\nask it: gf predict {folder / BUNDLE_FOLDER} PICTURES"
    )


@contextlib.contextmanager
def _damaged_notes(folder: Path) -> Iterator[None]:
    """Notes of a finished run that were changed since are a sentence; only what is read here can fail in these ways."""
    try:
        yield
    except BadSetting as error:
        raise BadBundle(f"the bundle {folder} is damaged: {error} Train it again in another folder.") from None
    except (LookupError, TypeError, ValueError, AttributeError):
        raise BadBundle(f"the bundle {folder} is damaged: notes.verdict. Train it again in another folder.") from None


@contextlib.contextmanager
def _memory_errors(settings: TrainSettings) -> Iterator[None]:
    """Memory that ran out in spite of the plan is a sentence, too."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise BadRun(
            f"there is not enough memory for batches of {settings.batch_size} images of {settings.network.view.height_px}x"
            f"{settings.network.view.width_px} px. The last checkpoint is kept. Compute batches in more parts "
            f"(--accumulation {2 * settings.accumulation}), or free some memory, and start again in another folder."
        ) from None
