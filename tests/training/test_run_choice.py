"""A run that was asked for before goes on; another one gets a folder of its own."""

import json
import os
import time
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glancefocus.cli.main import main
from glancefocus.errors import BadRun
from glancefocus.training.run_folder import asked_for, choose_run, locked, prepare_folder
from glancefocus.training.settings import TrainSettings

Tiny = Callable[..., TrainSettings]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()


def asked(data: str = "photos", **options: Any) -> dict[str, Any]:
    return asked_for({"data": data, "quick": False, "thorough": False, "json": False, "output": None, **options})


def begun(folder: str, settings: TrainSettings, words: dict[str, Any], *, learnt: bool = True) -> Path:
    """A run that was asked for like this, and has learnt something."""
    path = Path(folder)
    with locked(path):
        prepare_folder(path, settings, words)
    if learnt:
        (path / "last.ckpt").touch()
    return path


@pytest.fixture
def of_photos(tiny_settings: Tiny) -> TrainSettings:
    settings = tiny_settings(stages=["recognise"])
    return replace(settings, data=replace(settings.data, source="photos"))


def test_a_run_goes_where_its_data_is_named() -> None:
    places = {"signs": "runs/signs", "a/pets": "runs/pets", "lists/birds.csv": "runs/birds", "photos/": "runs/photos"}
    for data, place in places.items():
        chosen = choose_run(asked(data), data, None)
        assert (str(chosen.folder), chosen.settings, chosen.sentence) == (place, None, None)


def test_runs_are_compared_by_the_options_that_have_an_effect_on_what_is_learnt() -> None:
    assert asked() == asked("photos/") == asked(os.path.abspath("photos")) == asked(workers=7, processes=2)
    assert asked(stages=["1", "2"]) == asked(stages=["1,2"])
    assert asked(setting=["a.b=1", "c=2"]) == asked(setting=["c=2", "a.b=1"])
    different = [asked(), asked("other"), asked(seed=0), asked(quick=True), asked(flip=False), asked(setting=["a=1"])]
    assert len({json.dumps(words) for words in different}) == len(different)


def test_a_run_with_other_options_gets_the_next_number_and_this_is_printed(of_photos: TrainSettings) -> None:
    begun("runs/photos", of_photos, asked())
    chosen = choose_run(asked(seed=1), "photos", None)
    assert str(chosen.folder) == "runs/photos-2"
    assert chosen.sentence is not None
    assert "runs/photos holds another run, so this one goes to runs/photos-2." in chosen.sentence
    begun("runs/photos-2", of_photos, asked(seed=1))
    assert str(choose_run(asked(seed=2), "photos", None).folder) == "runs/photos-3"
    assert str(choose_run(asked("more/photos"), "more/photos", None).folder) == "runs/photos-3"


@pytest.mark.parametrize(("stored", "workers"), [(0, 0), (1, 1), (2, 1), (5, 5)])  # 5 cannot be the default
def test_a_run_that_is_continued_with_fewer_cores_has_the_default_number_of_workers_there(
    of_photos: TrainSettings, stored: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)
    begun("runs/photos", replace(of_photos, data=replace(of_photos.data, workers=stored)), asked())
    settings = choose_run(asked(), "photos", None).settings
    assert settings is not None
    assert settings.data.workers == workers


def test_the_same_options_continue_the_run_that_was_started_with_them(of_photos: TrainSettings) -> None:
    begun("runs/photos", of_photos, asked())
    longer = replace(of_photos, seed=1, batch_size=6)  # as if chosen by the memory of another day
    begun("runs/photos-2", longer, asked(seed=1))
    begun("runs/photos-7", of_photos, asked(seed=3))
    chosen = choose_run(asked("photos/", seed=1), "photos/", None)
    assert str(chosen.folder) == "runs/photos-2"
    assert chosen.settings == replace(longer, data=replace(longer.data, source="photos/"))
    assert chosen.sentence == "the run in runs/photos-2 was started with the same options, so it is continued."
    assert str(choose_run(asked(seed=3), "photos", None).folder) == "runs/photos-7"


def test_a_folder_without_a_checkpoint_is_used_again_unless_a_process_is_training_in_it(
    of_photos: TrainSettings,
) -> None:
    begun("runs/photos", of_photos, asked(), learnt=False)
    assert str(choose_run(asked(seed=1), "photos", None).folder) == "runs/photos"
    with locked(Path("runs/photos")):
        assert str(choose_run(asked(seed=1), "photos", None).folder) == "runs/photos-2"
    Path("runs/photos-2").mkdir()
    (Path("runs/photos-2") / "letter.txt").touch()  # no run at all
    with locked(Path("runs/photos")):
        assert str(choose_run(asked(seed=1), "photos", None).folder) == "runs/photos-3"


def test_a_folder_that_was_named_is_taken(of_photos: TrainSettings) -> None:
    begun("mine", of_photos, asked())
    assert choose_run(asked(), "photos", Path("mine")).settings == of_photos
    other = choose_run(asked(seed=1), "photos", Path("mine"))
    assert (str(other.folder), other.settings) == ("mine", None)  # its settings are made, compared and refused
    with locked(Path("mine")), pytest.raises(BadRun, match="has other settings: seed was 0, now 1. Use the same"):
        prepare_folder(Path("mine"), replace(of_photos, seed=1), asked(seed=1))


def test_resume_continues_the_latest_run_of_the_data(of_photos: TrainSettings) -> None:
    first = begun("runs/photos", of_photos, asked(quick=True))
    second = begun("runs/photos-2", replace(of_photos, seed=1), asked(seed=1))
    begun("runs/photos-3", of_photos, asked("elsewhere/photos"))
    now = time.time()
    os.utime(first / "last.ckpt", (now + 10, now + 10))
    chosen = choose_run(asked(), "photos", None, resume=True)
    assert (chosen.folder, chosen.settings) == (first, of_photos)
    assert chosen.sentence == "continuing the run in runs/photos."
    os.utime(second / "last.ckpt", (now + 20, now + 20))
    assert choose_run(asked(), "photos", None, resume=True).folder == second
    assert choose_run(asked(seed=1), "photos", None, resume=True).folder == second
    said = "runs/photos-2 was started with other options: seed was 1, now 5. Leave these options out"
    with pytest.raises(BadRun, match=said):
        choose_run(asked(seed=5), "photos", None, resume=True)
    assert choose_run(asked(), "photos", Path("runs/photos"), resume=True).folder == first


def test_there_must_be_something_to_resume(of_photos: TrainSettings) -> None:
    begun("runs/photos", of_photos, asked(), learnt=False)
    with pytest.raises(BadRun, match="there is no run of photos in runs/photos to continue. Leave out --resume"):
        choose_run(asked(), "photos", None, resume=True)


@pytest.mark.parametrize("name", ["asked.json", "settings.json"])
@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000])
def test_damaged_tables_are_reported(name: str, content: str, of_photos: TrainSettings) -> None:
    begun("mine", of_photos, asked())
    (Path("mine") / name).write_text(content)
    with pytest.raises(BadRun, match=rf"{name} is damaged.*Start in another folder"):
        choose_run(asked(), "photos", Path("mine"))


def test_a_field_of_the_settings_that_is_wrong_is_named(of_photos: TrainSettings) -> None:
    begun("mine", of_photos, asked())
    plain = json.loads((Path("mine") / "settings.json").read_text())
    plain["recognise"]["epochs"] = "many"
    (Path("mine") / "settings.json").write_text(json.dumps(plain))
    with pytest.raises(BadRun, match=r"settings.json is damaged: recognise.epochs must be .* but got 'many'"):
        choose_run(asked(), "photos", Path("mine"))


def test_links_are_not_written_through(of_photos: TrainSettings) -> None:
    Path("precious").write_text("mine")
    Path("run").mkdir()
    (Path("run") / "settings.json").symlink_to("../precious-too")
    (Path("run") / "asked.json").symlink_to("../precious")
    with pytest.raises(BadRun, match=r"is not empty and holds no run|asked.json is damaged") as error:
        choose_run(asked(), "photos", Path("run"))
    (Path("run") / "asked.json").unlink()
    begun("run", of_photos, asked())
    assert Path("precious").read_text() == "mine"
    assert not Path("precious-too").exists()
    assert not (Path("run") / "settings.json").is_symlink(), error


@pytest.mark.usefixtures("_tiny_world")
def test_the_result_of_a_finished_run_is_shown_again(
    tiny_run: types.ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "signs", *tiny_run.WORDS, "--stages", "1", "--set", "recognise.epochs=1", "--rivals", "none"]
    printed = []
    for number in range(3):
        with pytest.raises(SystemExit) as end:
            main([*words, *(["--seed", "5"] if number == 2 else [])])
        assert end.value.code == 0
        said = capsys.readouterr()
        err = " ".join(said.err.split())
        assert ("the run in runs/signs is finished; this is its result." in err) == (number == 1)
        assert ("goes to runs/signs-2" in err) == (number == 2)
        assert "validation accuracy after each look" in said.out
        printed.append(said.out)
    assert printed[1] == printed[0]
