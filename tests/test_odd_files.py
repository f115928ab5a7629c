"""Pipes, devices and names that are not UTF-8 where files are expected: an answer or a sentence, never a wait."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import glancefocus as gf
from glancefocus.bundle.bundle import Bundle
from glancefocus.cli.main import main
from glancefocus.data.lists import read_labelled_csv
from glancefocus.data.sources import DataSettings
from glancefocus.errors import BadData, BadRun
from glancefocus.network.model import GlanceFocus
from glancefocus.training.fitted import _sides
from glancefocus.training.journal import EpochRow, Journal, Trackers
from glancefocus.training.plan import stored_plan
from glancefocus.training.run_folder import asked_for, read_table
from glancefocus.training.settings import TrainSettings

NOT_UTF8 = os.fsdecode(b"caf\xe9")


@pytest.fixture(autouse=True)
def no_waiting() -> Iterator[None]:
    """A test that waits for a pipe fails."""

    def stop(number: int, frame: object) -> None:
        raise BaseException("it waits")

    old = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, old)


@pytest.fixture(params=["pipe", "device"])
def no_file(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    """Puts something in a file's place that never ends."""
    return os.mkfifo if request.param == "pipe" else lambda path: os.symlink("/dev/zero", path)


def test_a_plan_is_never_waited_for(
    tmp_path: Path, no_file: Callable[[Path], None], small_net: Callable[..., GlanceFocus]
) -> None:
    no_file(tmp_path / "plan.json")
    settings = TrainSettings(data=DataSettings("signs"), network=small_net().settings)
    assert stored_plan(tmp_path / "plan.json", settings) is None


@pytest.mark.parametrize("content", ["[" * 100_000, '{"tensorboard": {"run": null, "steps": 1e999}}', "null"])
def test_a_damaged_state_of_trackers_is_a_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "trackers.json").write_text(content)
    with pytest.raises(BadRun, match="is damaged. Delete it"):
        Trackers(tmp_path, {}, ())


def test_a_state_of_trackers_is_never_waited_for(tmp_path: Path, no_file: Callable[[Path], None]) -> None:
    no_file(tmp_path / "trackers.json")
    with pytest.raises(BadRun, match="is damaged. Delete it"):
        Trackers(tmp_path, {}, ())


def test_tables_of_a_run_are_never_waited_for(tmp_path: Path, no_file: Callable[[Path], None]) -> None:
    no_file(tmp_path / "asked.json")
    with pytest.raises(BadRun, match="not a regular file"):
        read_table(tmp_path / "asked.json")


def test_metrics_are_never_waited_for(tmp_path: Path, no_file: Callable[[Path], None]) -> None:
    no_file(tmp_path / "metrics.jsonl")
    with pytest.raises(BadRun, match="not a regular file"):
        Journal(tmp_path, writes=True, quiet=True).epoch(EpochRow("aim", 1, 1, 1, {}))


def test_lists_and_pictures_of_a_data_set_are_never_waited_for(tmp_path: Path, no_file: Callable[[Path], None]) -> None:
    no_file(tmp_path / "a.png")
    assert _sides([tmp_path / "a.png"]) == ()
    with pytest.raises(BadData, match="not a regular file"):
        read_labelled_csv(tmp_path / "a.png")


def test_a_run_whose_names_cannot_be_kept_is_refused_at_once(tmp_path: Path) -> None:
    for options in ({"data": NOT_UTF8}, {"data": "signs", "output": Path(NOT_UTF8)}, {"data": "a", "start": NOT_UTF8}):
        with pytest.raises(BadRun, match="not UTF-8"):
            asked_for(options)


@pytest.fixture
def labelled(tmp_path: Path, small_bundle: Callable[..., Bundle]) -> tuple[str, str]:
    """A bundle, and pictures of its classes, in folders whose names are not UTF-8."""
    bundle = small_bundle()
    folder = tmp_path / "bundle"
    bundle.save(folder)
    assert bundle.classes is not None
    for name in bundle.classes:
        (tmp_path / NOT_UTF8 / name).mkdir(parents=True)
        for number in range(2):
            pixels = np.full((64, 64, 3), 40 * number, np.uint8)
            Image.fromarray(pixels).save(tmp_path / NOT_UTF8 / name / f"{number}.png")
    moved = tmp_path / f"{NOT_UTF8}-bundle"
    folder.rename(moved)
    return str(moved), str(tmp_path / NOT_UTF8)


def test_bundles_and_data_under_names_that_are_not_utf8_are_read(
    labelled: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, data = labelled
    for _ in range(2):  # the second time out of the look record
        with pytest.raises(SystemExit) as ended:
            main(["evaluate", bundle, data, "--no-latency", "--rivals", "none", "--json"])
        assert ended.value.code == 0, capsys.readouterr().err
    assert gf.load(bundle, device="cpu").classes is not None


def test_an_export_to_a_name_that_is_not_utf8_is_refused(
    labelled: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["export", labelled[0], "--to", "onnx", "-o", str(tmp_path / NOT_UTF8 / "onnx")])
    assert ended.value.code == 2
    assert "is not UTF-8. Choose another place." in capsys.readouterr().err


def test_answers_go_through_links_and_into_pipes_which_stay_what_they_are(
    labelled: tuple[str, str], tmp_path: Path
) -> None:
    (tmp_path / "real.json").write_text("old")
    os.symlink("real.json", tmp_path / "link.json")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    for name in ("link.json", "pipe"):
        with pytest.raises(SystemExit) as ended:
            main(["predict", labelled[0], labelled[1], "--json", "-o", str(tmp_path / name)])
        assert ended.value.code == 0
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "pipe").is_fifo()
    assert json.loads((tmp_path / "real.json").read_text()) == json.loads(os.read(reader, 1 << 20))
    os.close(reader)
