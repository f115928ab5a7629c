"""`gf study` lists studies, plans them without training, and answers mistakes with a sentence."""

import json
from pathlib import Path

import pytest

from glancefocus.cli.main import main
from glancefocus.studies.catalogue import STUDIES


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["study", *words])
    return int(ended.value.code or 0)


def test_without_a_name_all_studies_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in listed] == list(STUDIES)
    assert all(row["paper"].startswith(("Figure", "Table")) for row in listed)


def test_a_plan_trains_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("rewards", "--plan", "--seeds", "2", "--json", "-o", str(tmp_path / "studies")) == 0
    plan = json.loads(capsys.readouterr().out)
    # One backbone, glance encoder and stage I for all; two rewards with two seeds each.
    assert [(run["seed"], run["state"]) for run in plan["runs"]] == [(0, "new")] * 4 + [
        (1, "new"),
        (0, "new"),
        (1, "new"),
    ]
    assert plan["hours"] > 0
    assert not (tmp_path / "studies").exists()


def test_a_plan_takes_the_speed_of_other_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("heatmap", "--plan", "--speed", "2", "--json", "-o", str(tmp_path)) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["where"] == "at 2T multiply-adds a second"
    assert plan["hours"] == pytest.approx(plan["macs"] / 2e12 / 3600)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["ablatoin"], "there is no study named 'ablatoin'. Did you mean 'ablation' or 'main'?"),
        (["heatmap", "--plan", "--speed", "0"], "--speed must be a number above 0"),
        (["video", "signs"], "at scale tiny the study video uses the built-in data set gestures, but got signs."),
        (["rewards", "--scale", "paper"], "at scale paper needs the paper's data."),
        (["rewards", "nowhere/"], "there is no data set named 'nowhere'"),
        (["gallery", "--speed", "3"], "--speed only changes the estimate of --plan."),
        (
            ["gallery", "--weights", "mine.pth"],
            "at scale tiny networks are trained from random initialisation, but got --weights",
        ),
        (["gallery", "--latency-file", "phone.json"], "--latency-file is only for the study named phone."),
        (
            ["phone", "--latency-file", "nowhere.json"],
            "there is no file nowhere.json, which must have the milliseconds",
        ),
        (["rewards", "--set", "aim.epoch=3"], "there is no setting in aim named 'epoch'. Did you mean 'epochs'?"),
    ],
)
def test_a_mistake_gives_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words, "-o", str(tmp_path / "studies")) == 2
    error = capsys.readouterr().err
    assert error.startswith("gf: ")
    assert sentence in error
    assert not (tmp_path / "studies").exists()
