"""Time and memory of a run are known before it starts, and measuring them does not change the run."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator

from glancefocus.data.sources import Data, open_data
from glancefocus.errors import BadRun
from glancefocus.network.build import build
from glancefocus.progress import duration
from glancefocus.training import memory
from glancefocus.training.journal import TimeLeft
from glancefocus.training.loop import build_stage
from glancefocus.training.memory import bytes_per_image, parts_that_fit, training_bytes
from glancefocus.training.plan import Plan, StagePlan, measure_plan, plan_words, stored_plan, times_from
from glancefocus.training.run import train
from glancefocus.training.settings import TrainSettings
from glancefocus.training.stage import TrainingContext
from glancefocus.values import to_plain

pytestmark = pytest.mark.usefixtures("_tiny_world")
PLAN = Plan((StagePlan("backbone", 2, 3, 1.0, 4.0), StagePlan("aim", 1, 5, 2.0, 0.0)), 6.0, 3 << 30)


@pytest.fixture
def settings(tiny_settings: Callable[..., TrainSettings]) -> TrainSettings:
    return tiny_settings(stages=["backbone", "glance", "recognise", "aim", "finetune"])


@pytest.fixture
def data(settings: TrainSettings) -> Data:
    return open_data(settings.data, settings.network.view)


def test_the_parts_of_a_plan_add_up() -> None:
    assert PLAN.total_s == 2 * (3 + 4) + 10 + 6
    assert PLAN.done_s(0, epoch=1, step=2) == 7 + 2
    assert PLAN.done_s(1, step=1) == 14 + 2
    assert PLAN.done_s(2) == 24


def test_updates_at_half_of_the_size_are_planned_with_a_quarter_of_the_time() -> None:
    stage = StagePlan("backbone", epochs=10, updates=4, update_s=8.0, validation_s=1.0, half_size=0.6)
    assert stage.done_s(6) == 24 * 2 + 6
    assert stage.done_s(6, step=1) == 24 * 2 + 6 + 8
    assert stage.total_s == 24 * 2 + 16 * 8 + 10


def test_the_time_of_an_optimiser_step_is_not_counted_once_for_every_image() -> None:
    times = times_from(few=4, few_s=1.4, many=8, many_s=1.8, validation_s=0.5)
    assert times.image_s == pytest.approx(0.1)
    assert times.fixed_s == pytest.approx(1.0)
    assert times.update_s(32) == pytest.approx(4.2)


@pytest.mark.parametrize(("few_s", "image_s", "fixed_s"), [(2.5, 0.0, 2.0), (0.2, 0.25, 0.0)])
def test_measured_times_are_never_negative(few_s: float, image_s: float, fixed_s: float) -> None:
    times = times_from(few=4, few_s=few_s, many=8, many_s=2.0, validation_s=0.5)
    assert (times.image_s, times.fixed_s) == (image_s, fixed_s)


def test_updates_of_one_size_give_the_time_of_each_image_only() -> None:
    assert times_from(few=4, few_s=2.0, many=4, many_s=2.0, validation_s=0.5).update_s(8) == 4.0


def test_rivals_that_are_tuned_are_part_of_the_plan(settings: TrainSettings, data: Data) -> None:
    plans = [
        measure_plan(
            TrainingContext(build(own.network), data, own, Accelerator(cpu=True)), build_stage, parts=1, peak_bytes=1
        )
        for own in (settings, replace(settings, rivals="tuned"))
    ]
    assert plans[0].rivals_s == 0
    assert plans[1].rivals_s > 0
    assert plans[1].total_s == pytest.approx(
        sum(stage.total_s for stage in plans[1].stages) + plans[1].finish_s + plans[1].rivals_s
    )
    words = plan_words(plans[1], settings, data, Path("runs"), torch.device("cpu"))
    assert ", rivals " in words


def test_measuring_times_every_stage_and_leaves_the_network_alone(settings: TrainSettings, data: Data) -> None:
    net = build(settings.network)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    context = TrainingContext(net, data, settings, Accelerator(cpu=True))
    plan = measure_plan(context, build_stage, parts=1, peak_bytes=1)
    assert [stage.name for stage in plan.stages] == settings.plan()
    assert [stage.updates for stage in plan.stages] == [3] * 5  # 24 scenes in batches of 8
    assert all(stage.update_s > 0 and stage.validation_s > 0 for stage in plan.stages)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_a_larger_batch_takes_more_memory_and_parts_take_less(settings: TrainSettings) -> None:
    more = training_bytes(replace(settings, batch_size=800)) - training_bytes(settings)
    assert more == pytest.approx(1.25 * 792 * bytes_per_image(settings)["backbone"], rel=1e-6)
    assert training_bytes(replace(settings, batch_size=800, accumulation=100)) == training_bytes(settings)


def test_what_autograd_keeps_is_counted() -> None:
    """One 3x3 convolution keeps its input, and a ReLU behind it its output; of two images, one counts."""
    from glancefocus.training.memory import _kept

    with torch.device("meta"):
        module = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU())
    assert _kept(module, 1, 10, 10) == 4 * (3 + 8) * 100


def test_a_batch_that_does_not_fit_is_computed_in_parts(
    settings: TrainSettings, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = replace(settings, batch_size=24)  # all scenes
    whole, quarter = training_bytes(wide), training_bytes(replace(wide, accumulation=4))
    monkeypatch.setattr(memory, "available_bytes", lambda: quarter - memory.PROCESS_BYTES)
    assert parts_that_fit(wide, data) == (4, quarter)
    monkeypatch.setattr(memory, "available_bytes", lambda: whole)
    assert parts_that_fit(wide, data)[0] == 1


def test_a_run_that_does_not_fit_in_any_number_of_parts_is_refused(
    settings: TrainSettings, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: -(600 << 20))
    with pytest.raises(
        BadRun, match=r"needs about 0\.\d GB of memory even for one image at a time, but 0\.1 GB are free"
    ):
        parts_that_fit(settings, data)


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "1 s"), (45, "45 s"), (700, "12 min"), (9000, "2.5 h"), (400_000, "4.6 days")]
)
def test_durations_are_rounded(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_the_plan_has_one_line_for_each_fact(settings: TrainSettings, data: Data) -> None:
    said = plan_words(PLAN, settings, data, Path("runs/signs"), torch.device("cpu")).splitlines()
    lines = {line.split()[0]: line for line in said}
    assert list(lines) == ["data", "classes", "network", "stages", "batch", "device", "memory", "time", "folder", "or"]
    assert "24 for training, 10 for validation" in lines["data"]
    assert "backbone 2, aim 1 (epochs)" in lines["stages"]
    assert "about 3.0 GB" in lines["memory"]
    assert "about 30 s, measured on a few batches (backbone 14 s, aim 10 s, final evaluation 6 s)" in lines["time"]
    assert "shorter: --quick (about 14 s); better: --thorough (about 78 s)" in lines["or"]


def test_the_plan_names_views_that_are_not_patches_at_full_resolution(settings: TrainSettings, data: Data) -> None:
    assert "then up to 1 patches of 32 px, from" in plan_words(PLAN, settings, data, Path("runs"), torch.device("cpu"))
    focus = ("32", "0.5@32", "whole@48")
    views = replace(settings, network=replace(settings.network, focus=focus))
    said = plan_words(PLAN, views, data, Path("runs"), torch.device("cpu"))
    assert "then up to 1 looks at views 32, 0.5@32, whole@48, from" in said


def test_the_remaining_time_follows_the_measured_speed() -> None:
    left = TimeLeft(1000.0)
    left.reach(100.0, now=50.0)  # a run that goes on: nothing was measured yet
    assert left.seconds == 900
    left.reach(
        160.0, now=50.0 + 240.0
    )  # 60 expected seconds took 240, so with the first minute of the plan 300 for 120
    assert left.seconds == 840 * 300 / 120
    left.reach(1000.0, now=5000.0)
    assert left.seconds == 0


def test_a_resumed_run_keeps_its_plan(settings: TrainSettings, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    short = replace(settings, stages=("backbone", "aim"), backbone=replace(settings.backbone, epochs=2))
    short = replace(short, aim=replace(settings.aim, epochs=1))
    assert stored_plan(file, short) is None
    file.write_text(json.dumps(to_plain(PLAN)))
    assert stored_plan(file, short) == PLAN
    assert stored_plan(file, settings) is None  # of other stages
    for damaged in ("", "[1", "{}", '{"stages": 3}', json.dumps({**to_plain(PLAN), "parts": 0})):
        file.write_text(damaged)
        assert stored_plan(file, short) is None


def test_the_command_prints_the_plan_and_the_remaining_time(
    tiny_settings: Callable[..., TrainSettings], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tiny_settings(stages=["backbone", "glance"]), tmp_path / "run", planned=True)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in lines if line.startswith(("data ", "time ", "memory "))] == [
        "data",
        "memory",
        "time",
    ]
    assert sum(" left" in line for line in lines if line.startswith(("backbone", "glance"))) == 2
    assert (tmp_path / "run" / "plan.json").exists()


def test_measuring_changes_nothing_of_what_is_learnt(
    tiny_settings: Callable[..., TrainSettings], tmp_path: Path
) -> None:
    settings = tiny_settings(stages=["backbone", "recognise", "aim"])
    one, other = (
        train(settings, tmp_path / str(planned), quiet=True, planned=planned).net.state_dict()
        for planned in (False, True)
    )
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_a_batch_larger_than_the_data_is_as_large_as_the_data(settings: TrainSettings, data: Data) -> None:
    assert parts_that_fit(replace(settings, batch_size=65_536), data)[0] == 1  # 24 scenes fit in one part


def test_batches_computed_one_image_at_a_time_are_refused_for_batch_norms(settings: TrainSettings, data: Data) -> None:
    single = replace(settings, accumulation=8)
    context = TrainingContext(build(settings.network), data, single, Accelerator(cpu=True))
    with pytest.raises(BadRun, match=r"batches of 8 images are computed one image at a time \(--accumulation 8"):
        measure_plan(context, build_stage, parts=8, peak_bytes=1)


def test_first_updates_that_are_not_finite_say_what_to_lower(settings: TrainSettings, data: Data) -> None:
    net = build(settings.network)
    net.focus_encoder.backbone.get_classifier().weight.data.fill_(torch.inf)
    context = TrainingContext(net, data, settings, Accelerator(cpu=True))
    with pytest.raises(BadRun, match=r"in the first updates of the stage backbone.* Lower backbone\.lr, or check"):
        measure_plan(context, build_stage, parts=1, peak_bytes=1)
