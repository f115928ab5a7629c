"""Every study names its runs at both scales; one is run to its page, and never trains what is there."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glancefocus.errors import BadData, BadSetting, UnknownName
from glancefocus.studies.catalogue import STUDIES, study_named
from glancefocus.studies.networks import Run
from glancefocus.studies.order import PARTS, Order, plan_study, run_study
from glancefocus.studies.runs import RunFolder
from glancefocus.training.run_folder import settings_of

Orders = Callable[..., Order]
NAMES = {
    *("main", "anytime", "phone", "gpu", "rewards", "sizes", "resolution", "traffic-signs", "video", "looks"),
    *("length-and-size", "ablation", "policies", "criteria", "sensitivity", "heatmap", "gallery", "msdnet"),
}


def trained(order: Order, folder: Path) -> list[tuple[str, str]]:
    """(run, what happened to it) of everything that a study trained."""
    happened: list[tuple[str, str]] = []
    run_study(order, folder, quiet=True, on_run=lambda run, place, what: happened.append((run.name, what)))
    return happened


def test_there_is_a_study_for_every_table_and_figure() -> None:
    assert set(STUDIES) == NAMES
    assert list(PARTS) == list(STUDIES)


def test_the_list_of_studies_is_imported_without_torch() -> None:
    code = "import sys, glancefocus.cli.study, glancefocus.studies.catalogue; print('torch' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"


@pytest.mark.parametrize("name", sorted(NAMES))
@pytest.mark.parametrize("scale", ["tiny", "paper"])
def test_every_study_names_its_runs(name: str, scale: Any) -> None:
    runs = Order(study_named(name), scale=scale, seeds=1).runs()
    assert runs
    for (run,) in runs.values():
        assert len({earlier.settings.data.source for earlier in run.with_earlier()}) == 1


def test_the_plan_of_the_papers_main_figure_has_its_14_networks(tmp_path: Path) -> None:
    order = Order(study_named("main"), scale="paper", seeds=1)
    plan = plan_study(order, tmp_path / "studies", trillions=1)
    finals = [
        run for run in plan.runs if run.stages == ("finetune",) or ("efficientnet" in run.name and "aim" in run.stages)
    ]
    assert len(finals) == 14
    assert plan.images == (1_281_167, 50_000)
    assert plan.hours == pytest.approx(plan.macs / 1e12 / 3600)
    assert not (tmp_path / "studies").exists()  # a plan trains nothing


def test_an_unknown_study_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(UnknownName, match="there is no study named 'rewrads'. Did you mean 'rewards'?"):
        study_named("rewrads")


def test_a_tiny_study_refuses_other_data() -> None:
    with pytest.raises(
        BadData, match="at scale tiny the study rewards uses the built-in data set signs, but got gestures"
    ):
        Order(study_named("rewards"), "gestures", "tiny").runs()


def test_a_study_refuses_a_built_in_data_set_of_the_other_kind() -> None:
    with pytest.raises(
        BadData, match="the study gallery needs images, so of the built-in data sets only signs, but got gestures"
    ):
        Order(study_named("gallery"), "gestures", "paper").runs()


def test_a_study_of_clips_refuses_images(tmp_path: Path, make_pictures: Callable[[Path], None]) -> None:
    make_pictures(tmp_path / "photos")
    with pytest.raises(BadData, match="the study video needs clips"):
        Order(study_named("video"), str(tmp_path / "photos")).runs()


def test_the_papers_scale_needs_data(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="at scale paper needs the paper's data"):
        run_study(Order(study_named("rewards"), scale="paper"), tmp_path)


def test_a_study_trains_each_run_once_and_others_use_it_too(quick_order: Orders, studies: Path) -> None:
    order = quick_order("gallery")
    assert [what for _, what in trained(order, studies)] == ["trained"] * 5  # backbone, glance, three stages
    assert trained(quick_order("looks"), studies) == []  # the same network
    plan = plan_study(order, studies, trillions=1)
    assert [run.state for run in plan.runs] == ["finished"] * 5
    assert plan.hours == 0
    # Each reward has a run of its own, on the network after stage I.
    assert trained(quick_order("rewards"), studies) == [
        ("mini-48-increment", "trained"),
        ("mini-48-contrastive", "trained"),
    ]


def test_a_study_writes_tables_figures_and_a_page(quick_order: Orders, studies: Path) -> None:
    run_study(quick_order("criteria"), studies, quiet=True)
    folder = studies / "criteria"
    numbers = json.loads((folder / "study.json").read_text())
    assert numbers["command"].startswith("gf study criteria --seeds 1 --set data.scenes")
    table, solvers, real = numbers["tables"]
    assert [solvers["name"], real["name"]] == ["solvers", "real-cost"]
    assert [len(row["values"][0]) for row in table["rows"]] == [5, 5, 5]
    assert table["rows"][2]["paper"] == pytest.approx([0.7264, 0.7438, 0.7512, 0.7546, 0.7567])
    assert (folder / "study.md").read_text().count("| the paper |") == 3
    page = (folder / "study.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "<svg" in page
    assert (folder / "figures" / "criteria.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "criteria.csv").read_text().count("\n") == 1 + 3 * 5


def test_a_moved_folder_is_still_known(quick_order: Orders, studies: Path, tmp_path: Path) -> None:
    trained(quick_order("looks"), studies)
    shutil.copytree(studies, tmp_path / "elsewhere")
    assert trained(quick_order("looks"), tmp_path / "elsewhere") == []


def test_runs_with_other_settings_are_left_alone(quick_order: Orders, studies: Path) -> None:
    order = quick_order("looks")
    trained(order, studies)
    before = {folder.name for folder in (studies / "runs").iterdir()}
    first = next(iter(order.runs().values()))[0]
    other = replace(first, settings=replace(first.settings, seed=7))
    runs = RunFolder(studies)
    assert runs.find(other) is None
    place = runs.train(other, quiet=True).folder
    assert place.name == "mini-48-stage3-2"
    assert {folder.name for folder in (studies / "runs").iterdir()} - before == {place.name}
    assert settings_of(place).seed == 7


def test_a_stopped_study_goes_on_where_it_stopped(
    quick_order: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import glancefocus.training.run as training

    real, finishing = training.finish_bundle, []

    def stop_at_the_second(*arguments: Any) -> Any:
        finishing.append(1)
        if len(finishing) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(training, "finish_bundle", stop_at_the_second)
    order, happened = quick_order("gallery"), list[tuple[str, str]]()

    def note(run: Run, place: Path, what: str) -> None:
        happened.append((run.name, what))

    with pytest.raises(KeyboardInterrupt):
        run_study(order, tmp_path, quiet=True, on_run=note)
    assert [what for _, what in happened] == ["trained", "trained"]
    assert [run.state for run in plan_study(order, tmp_path, 1).runs][:3] == [
        "finished",
        "begun",
        "new",
    ]
    happened.clear()
    run_study(order, tmp_path, quiet=True, on_run=note)
    assert [what for _, what in happened] == ["continued", "trained", "trained", "trained"]


def test_the_papers_scale_trains_on_a_folder(tmp_path: Path, make_pictures: Callable[[Path], None]) -> None:
    make_pictures(tmp_path / "photos")
    small: dict[str, dict[str, Any]] = {
        "network": {"backbone": '"test_resnet"', "classifier_units": 8, "glance_px": 32, "focus": '["32"]', "looks": 3},
        "network.policy": {"units": 8, "linear_units": 16},
        "network.view": {"height_px": 64, "width_px": 64},
        "data": {"workers": 0},
    }
    assignments = [f"{table}.{name}={value}" for table, values in small.items() for name, value in values.items()]
    stages = ("backbone", "glance", "recognise", "aim", "finetune")
    assignments += ["batch_size=4", *(f"{stage}.epochs=1" for stage in stages)]
    order = Order(
        study_named("criteria"), str(tmp_path / "photos"), seeds=1, weights="none", assignments=tuple(assignments)
    )
    assert order.scope.scale == "paper"
    about, result = run_study(order, tmp_path / "studies", quiet=True)
    table = result.tables[0]
    # There are no test images: all that were held out are measured on, each half with thresholds of the other.
    assert (about.scale, table.images) == ("paper", 8)
    assert len(table.rows[0].values[0]) == 5
