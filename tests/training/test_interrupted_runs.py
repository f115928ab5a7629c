"""Runs that are stopped by Ctrl-C or SIGTERM, wherever they are, save themselves and end as if they had not been."""

import functools
import json
import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import glancefocus as gf
from glancefocus.cli.main import main
from glancefocus.errors import BadRun
from glancefocus.interrupts import Interrupted
from glancefocus.network.modules import Encoder
from glancefocus.training import loop, run
from glancefocus.training.journal import Journal
from glancefocus.training.run import train
from glancefocus.training.settings import TrainSettings
from glancefocus.training.stage import FrozenGlances
from glancefocus.training.stage_aim import AimStage
from glancefocus.training.stage_recognise import RecogniseStage

pytestmark = pytest.mark.usefixtures("_tiny_world")
BENCHMARK = Path(__file__).parent.parent.parent / "benchmarks" / "interrupt.py"


def press_at(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int = 1, number: signal.Signals = signal.SIGINT
) -> list[str]:
    """Presses Ctrl-C when a function is called for the nth time; the list then names it."""
    original, calls, pressed = getattr(owner, name), [], []

    def pressing(*words: Any, **more: Any) -> Any:
        calls.append(1)
        if len(calls) == call:
            pressed.append(name)
            os.kill(os.getpid(), number)
        return original(*words, **more)

    monkeypatch.setattr(owner, name, pressing)
    return pressed


def what_it_became(folder: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    without_clock = [{name: value for name, value in row.items() if name != "images_per_s"} for row in rows]
    return torch.load(folder / "last.ckpt", weights_only=True)["net"], without_clock


TWO = ("recognise", "aim")
MOMENTS: dict[str, tuple[tuple[str, ...], Any, str, int]] = {
    "reading the data": (TWO, run, "open_data", 1),
    "building a stage": (TWO, loop, "build_stage", 2),
    "in a step": (TWO, RecogniseStage, "update", 2),
    "in a step, by SIGTERM": (TWO, RecogniseStage, "update", 2),
    "before the first batch": (TWO, loop, "scene_batches", 2),
    "validating": (TWO, RecogniseStage, "validate", 1),
    "validating, by SIGTERM": (TWO, RecogniseStage, "validate", 1),
    "validating before the stage begins": (TWO, AimStage, "begin", 1),
    "encoding glances": (TWO, FrozenGlances, "_fill", 1),
    "finding evidence": (("recognise", "point"), Encoder, "evidence", 1),
    "noting an epoch": (TWO, Journal, "epoch", 1),
    "saving": (TWO, loop, "save_checkpoint", 3),
    "between stages": (TWO, AimStage, "finish", 1),
    "writing the look record": (TWO, run, "finish_bundle", 1),
    "writing the bundle": (TWO, gf.Bundle, "save", 1),
}


@pytest.fixture(scope="module")
def finished(
    _tiny_world: None, tiny_run: types.ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Any]:
    """The result of a run that is never stopped; each is run once."""

    @functools.cache
    def of(*stages: str) -> Any:
        folder = tmp_path_factory.mktemp("whole")
        train(settings_of(tiny_run, *stages), folder, quiet=True)
        return what_it_became(folder)

    return of


def settings_of(tiny_run: types.ModuleType, *stages: str) -> TrainSettings:
    """Steps are saved at the end of an epoch only, so that stopping has something to save."""
    settings: TrainSettings = tiny_run.tiny_settings(stages=stages, checkpoint_minutes=60.0)
    return settings


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_stopped_at_any_moment_ends_like_one_never_stopped(
    moment: str,
    tiny_run: types.ModuleType,
    finished: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stages, owner, name, call = MOMENTS[moment]
    number = signal.SIGTERM if "SIGTERM" in moment else signal.SIGINT
    settings = settings_of(tiny_run, *stages)
    with monkeypatch.context() as patch:
        pressed = press_at(patch, owner, name, call, number)
        with pytest.raises(Interrupted):
            train(settings, tmp_path / "stopped", quiet=True)
        assert pressed == [name]
    train(settings, tmp_path / "stopped", quiet=True)
    (weights, rows), (other_weights, other_rows) = what_it_became(tmp_path / "stopped"), finished(*stages)
    assert weights.keys() == other_weights.keys()
    assert all(torch.equal(weights[name], other_weights[name]) for name in weights)
    assert rows == other_rows
    assert not [path for path in (tmp_path / "stopped").rglob("*") if path.name.endswith(".aside")]


def test_no_step_is_lost_when_a_run_is_stopped(
    tiny_run: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tiny_run.tiny_settings(stages=["recognise"], checkpoint_minutes=60.0)  # three steps
    for moment, step in (("update", 2), ("validate", 3)):
        with monkeypatch.context() as patch:
            press_at(patch, RecogniseStage, moment, call=2 if moment == "update" else 1)
            with pytest.raises(Interrupted):
                train(settings, tmp_path / moment, quiet=True)
        saved = torch.load(tmp_path / moment / "last.ckpt", weights_only=True)
        assert (saved["stage"], saved["epoch"], saved["step"]) == (0, 0, step)


def test_before_anything_is_learnt_there_is_nothing_to_save(
    tiny_run: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    press_at(monkeypatch, run, "open_data")
    with pytest.raises(SystemExit) as end:
        main(["train", "signs", "-o", str(tmp_path / "run")])
    assert end.value.code == 130
    assert (
        "gf: stopped before anything was learnt, so nothing is lost. The same command starts again."
        in capsys.readouterr().err
    )
    assert not (tmp_path / "run" / "last.ckpt").exists()


def test_a_second_signal_in_a_step_saves_nothing_half_done(
    tiny_run: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tiny_run.tiny_settings(stages=["recognise"])
    press_at(monkeypatch, RecogniseStage, "update", call=2)
    press_at(monkeypatch, RecogniseStage, "update", call=2)
    with pytest.raises(Interrupted):
        train(settings, tmp_path / "run", quiet=True)
    assert torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)["step"] == 1


def test_a_second_process_in_a_folder_is_refused_with_the_id_of_the_first(
    tiny_run: types.ModuleType, tmp_path: Path
) -> None:
    settings = tiny_run.tiny_settings(stages=["aim"], aim={"epochs": 0})
    code = (
        "import sys, time; from pathlib import Path; from glancefocus.training.run_folder import locked\n"
        "with locked(Path(sys.argv[1])): print('here', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        with pytest.raises(BadRun, match=rf"^process {process.pid} is training in .*run\. Wait until it ends"):
            train(settings, tmp_path / "run", quiet=True)
        process.kill()
    train(settings, tmp_path / "run", quiet=True)


def test_ctrl_c_in_a_terminal_while_workers_start_and_later(tmp_path: Path) -> None:
    """The real thing, with a real signal; benchmarks/interrupt.py tries more moments."""
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--moments", "1", "--epochs", "1", "--at", "workers"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "identical after 1 stops" in done.stdout
