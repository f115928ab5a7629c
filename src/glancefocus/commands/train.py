"""`gf train`: from words to a run, in one process or several."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from glancefocus.commands.printing import print_verdict, say
from glancefocus.errors import BadRun, BadSetting
from glancefocus.memory import is_out_of_memory, keep_freed_memory
from glancefocus.training.run import threads_per_process, train
from glancefocus.training.run_folder import BUNDLE_FOLDER, locked, prepare_folder, run_farewell
from glancefocus.training.settings import TrainSettings


def run_training(settings: TrainSettings, folder: Path, *, as_json: bool) -> None:
    """Train, and say what came of it and how to ask it."""
    keep_freed_memory()
    with run_farewell(folder), _memory_errors(settings):
        bundle = train(settings, folder, quiet=as_json, planned=True)
    if int(os.environ.get("RANK", "0")) != 0:
        return
    accuracy = bundle.notes["validation_accuracy_per_look"]
    if as_json:
        fact = {"run": str(folder), "bundle": str(folder / BUNDLE_FOLDER), "validation_accuracy_per_look": accuracy}
        fact |= {name: bundle.notes[name] for name in ("aims", "verdict") if name in bundle.notes}
        print(json.dumps(fact, indent=1))  # noqa: T201
        return
    if "aims" in bundle.notes:
        say(bundle.notes["aims"]["sentence"])
    if "verdict" in bundle.notes:
        print_verdict(bundle.notes["verdict"])
    shares = " / ".join(f"{100 * a:.1f}" for a in accuracy)
    say(
        f"validation accuracy after each look: {shares} %\nbundle: {folder / BUNDLE_FOLDER}\n"
        f"ask it: gf predict {folder / BUNDLE_FOLDER} PICTURES"
    )


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


def run_in_processes(arguments: list[str], processes: int, settings: TrainSettings, folder: Path) -> None:
    """The same command again, launched by torchrun in so many processes of this machine."""
    if not 1 <= processes <= settings.batch_size:
        raise BadSetting(
            f"processes must be at least 1 and at most the batch size ({settings.batch_size}), but got {processes}."
        )
    with locked(folder):
        prepare_folder(folder, settings)  # so that a mistake is said once, and not by every process
    environment: dict[str, Any] = {**os.environ}
    environment.setdefault("OMP_NUM_THREADS", str(threads_per_process(processes)))
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    # Ctrl-C reaches them too, and they save before they stop: wait for that.
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        command = [sys.executable, *launch, "-m", "glancefocus.cli", *arguments]
        done = subprocess.run(command, env=environment, check=False)
    finally:
        signal.signal(signal.SIGINT, before)
    if done.returncode:
        sys.exit(done.returncode if done.returncode > 0 else 130)
