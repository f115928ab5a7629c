"""Figures of a run in TensorBoard, Weights & Biases and MLflow: only figures, every step once, and none of them required."""

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from accelerate import PartialState

from glancefocus.errors import BadRun, BadSetting, MissingExtra, UnknownName
from glancefocus.training import journal as journal_module
from glancefocus.training.journal import EpochRow, Journal, Trackers, chosen_trackers

SETTINGS = {"seed": 0, "network": {"looks": 2, "focus": ["32", "48"], "view": {"fit": "crop"}}, "start": None}
FLAT = {"seed": 0, "network.looks": 2, "network.focus": "['32', '48']", "network.view.fit": "crop", "start": "None"}


def numbers(loss: float) -> dict[str, Any]:
    return {"loss": loss, "val_accuracy": [0.25, 0.5], "aims": {"learnt": [0.75], "why": "in words"}}


def row(epoch: int, loss: float) -> EpochRow:
    own = numbers(loss)
    return EpochRow("aim", 1, epoch, 3, own, 10.0, own.pop("aims"))


# Stand-ins for the two packages: what accelerate calls of them, with a file as the server.
FAKES = {
    "wandb": """
        import json, os

        class Run:
            id = "abc123"

            def log(self, values, step=None):
                if os.environ.get("WANDB_FAILS"):
                    raise RuntimeError("the server is gone")
                _note("log", values, step)

            def finish(self):
                pass

        class config:
            @staticmethod
            def update(values, allow_val_change):
                _note("config", values)

        def init(**words):
            if os.environ.get("WANDB_REFUSES"):
                raise RuntimeError("api_key not configured")
            _note("init", words)
            return Run()

        def _note(*what):
            with open(os.environ["NOTES"], "a") as stream:
                stream.write(json.dumps(what) + "\\n")
    """,
    "mlflow": """
        import json, os, types
        from . import utils

        def set_tracking_uri(uri): _note("uri", uri)
        def search_experiments(filter_string): return []
        def create_experiment(name, artifact_location, tags): return "7"
        def log_params(values): _note("config", values)
        def log_metrics(values, step): _note("log", values, step)
        def end_run(): _note("end")

        def start_run(run_id, experiment_id, run_name, nested, tags, description):
            _note("init", run_id)
            return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run_id or "run9"))

        def _note(*what):
            with open(os.environ["NOTES"], "a") as stream:
                stream.write(json.dumps(what) + "\\n")
    """,
    "mlflow/utils": "from . import validation",
    "mlflow/utils/validation": "MAX_PARAM_VAL_LENGTH, MAX_PARAMS_TAGS_PER_BATCH = 500, 100",
}


@pytest.fixture(autouse=True)
def accelerate_state() -> None:
    """As a run has it; accelerate's trackers ask it which process they are in."""
    PartialState(cpu=True)


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file into which the stand-ins write what they receive."""
    for name, text in FAKES.items():
        package = tmp_path / "packages" / name
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    for name in ("wandb", "mlflow", "mlflow.utils", "mlflow.utils.validation"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path / "notes"


def lines(file: Path, kind: str) -> list[Any]:
    return [rest for first, *rest in map(json.loads, file.read_text().splitlines()) if first == kind]


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """{name: (step, value) of every event} in the event files of a run by step, those that appear twice included.

    The names of event files end in a counter without leading zeros, so their order is not the order of writing.
    """
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    found: dict[str, list[tuple[int, float]]] = {}
    for file in (folder / "tensorboard").glob("events*"):
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    found.setdefault(value.tag, []).append((event.step, value.tensor.float_val[0]))
    return {name: sorted(values) for name, values in found.items()}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_gets_figures_and_no_bookkeeping(tmp_path: Path) -> None:
    opened = Trackers(tmp_path, SETTINGS, ("tensorboard",))
    assert opened.log("aim", numbers(0.5), 1) == []
    opened.close()
    assert scalars(tmp_path) == {
        "aim/loss": [(1, 0.5)],
        "aim/val_accuracy/1": [(1, 0.25)],
        "aim/val_accuracy/2": [(1, 0.5)],
        "aim/aims/learnt/1": [(1, 0.75)],
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_resumed_run_sends_no_step_twice(tmp_path: Path, notes: Path) -> None:
    names = ("tensorboard", "wandb", "mlflow")
    first = Trackers(tmp_path, SETTINGS, names)
    for step in (1, 2):
        first.log("aim", numbers(step / 2), step)
    first.close()
    again = Trackers(tmp_path, SETTINGS, names)  # from a checkpoint of the first epoch
    for step in (2, 3):
        again.log("aim", numbers(step / 2), step)
    again.close()
    assert scalars(tmp_path)["aim/loss"] == [(1, 0.5), (2, 1.0), (3, 1.5)]
    assert sorted(step for _, step in lines(notes, "log")) == [1, 1, 2, 2, 3, 3]
    assert [values for (values,) in lines(notes, "config")] == [FLAT, FLAT]  # of each of the two once
    (wandb, mlflow), (wandb_again, mlflow_again) = lines(notes, "init")[:2], lines(notes, "init")[2:]
    assert (wandb[0]["id"], wandb_again[0]["id"]) == (None, "abc123")
    assert (mlflow, mlflow_again) == ([None], ["run9"])


def test_everything_is_kept_in_the_folder_of_the_run(
    tmp_path: Path, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    Trackers(tmp_path, SETTINGS, ("wandb", "mlflow")).close()
    (((wandb,)), _) = lines(notes, "init")
    assert (wandb["dir"], wandb["project"], wandb["name"]) == (str(tmp_path), "glancefocus", tmp_path.name)
    assert lines(notes, "uri") == [[f"sqlite:///{tmp_path / 'mlflow.db'}"]]


def test_a_tracker_that_fails_does_not_end_the_run(
    tmp_path: Path, notes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(tmp_path, writes=True, quiet=False, trackers=Trackers(tmp_path, {}, ("wandb", "mlflow")))
    monkeypatch.setenv("WANDB_FAILS", "1")
    journal.epoch(row(1, 0.5))
    journal.epoch(row(2, 0.4))
    journal.close()
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("the tracker wandb failed and gets no more numbers of this run: the server is gone") == 1
    assert [step for _, step in lines(notes, "log")] == [1, 2]  # of MLflow
    assert len(journal.file.read_text().splitlines()) == 2


def test_a_tracker_that_does_not_start_is_reported_before_training(
    tmp_path: Path, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_REFUSES", "1")
    with pytest.raises(
        BadRun, match="the tracker wandb could not be started: api_key not configured. Correct that, or"
    ):
        Trackers(tmp_path, SETTINGS, ("wandb",))


def test_trackers_are_chosen_by_name(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_trackers(["wandb,mlflow", "wandb"]) == ("wandb", "mlflow")
    assert chosen_trackers(["none"]) == ()
    assert chosen_trackers(None) == ("tensorboard",)
    with pytest.raises(UnknownName, match="no tracker named 'tensorbord'. Did you mean 'tensorboard'"):
        chosen_trackers(["tensorbord"])
    with pytest.raises(BadSetting, match="--track none means no tracker"):
        chosen_trackers(["none", "wandb"])
    monkeypatch.setattr(journal_module, "_is_installed", lambda name: False)
    assert chosen_trackers(None) == ()
    with pytest.raises(MissingExtra, match="needs the package 'wandb'. Install it with: pip install wandb"):
        chosen_trackers(["wandb"])
    with pytest.raises(MissingExtra, match=r"pip install .*\[tracking\]"):
        chosen_trackers(["tensorboard"])


def test_a_damaged_file_of_steps_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trackers.json").write_text('{"wandb": 3}')
    with pytest.raises(BadRun, match="trackers.json is damaged. Delete it"):
        Trackers(tmp_path, SETTINGS, ())
