"""Runs repeat by their seed, can be stopped at any time, and report what is wrong."""

import json
import math
import resource
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor

import glancefocus as gf
from glancefocus.cli.main import main
from glancefocus.errors import BadRun, BadSetting
from glancefocus.network.modules import Encoder
from glancefocus.training.initialise import glance_side
from glancefocus.training.recipes import train_settings
from glancefocus.training.run import load_backbone, train
from glancefocus.training.run_folder import differences
from glancefocus.training.settings import TrainSettings

HERE = Path(__file__).parent
KILL_AND_RESUME = HERE.parent.parent / "benchmarks" / "kill_and_resume.py"
pytestmark = pytest.mark.usefixtures("_tiny_world")
Tiny = Callable[..., TrainSettings]


@pytest.fixture(scope="module")
def whole_run(_tiny_world: None, tiny_settings: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All five stages, never stopped."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train(tiny_settings(), folder, quiet=True)
    return folder


def test_a_finished_run_holds_all_that_it_should(runs: Any, whole_run: Path, tiny_settings: Tiny) -> None:
    names = {path.name for path in whole_run.iterdir()}
    assert {"settings.json", "metrics.jsonl", "last.ckpt", "backbone.safetensors", "bundle"} <= names
    rows = runs.metrics(whole_run)
    epochs = [(row["stage"], row["epoch"]) for row in rows]
    once = [("backbone", 1), ("glance", 1), ("recognise", 1)]
    assert epochs == [*once, ("aim", 1), ("aim", 2), ("finetune", 1)]
    assert [len(row["val_accuracy"]) for row in rows] == [1, 1, 2, 2, 2, 2]
    assert all(math.isfinite(row["loss"]) for row in rows)
    assert all({"reward", "hit_rate", "aim_deviation"} <= row.keys() for row in rows if row["stage"] == "aim")
    assert [row["epoch"] for row in rows if "aims" in row] == [2]  # once, after the last epoch of the stage
    aims = rows[4]["aims"]
    assert aims["images"] == 10
    kept = max(row["val_accuracy"] for row in rows if row["stage"] == "aim")
    assert aims["accuracy_learnt"] == pytest.approx(kept, abs=1e-6)
    assert (
        aims["accuracy_learnt"][0] == aims["accuracy_random"][0] == aims["accuracy_centre"][0]
    )  # a glance is not aimed
    bundle = gf.load(whole_run / "bundle")
    assert bundle.classes == ("none", "30", "50", "80", "100")
    assert bundle.thresholds is not None
    budgets = [point["budget_macs"] for point in bundle.curve]
    assert budgets == sorted(budgets)
    assert all(point["mean_macs"] <= budget * (1 + 1e-9) for point, budget in zip(bundle.curve, budgets, strict=True))
    assert runs.same(bundle.net.state_dict(), runs.weights(whole_run))


def test_the_backbone_that_is_to_be_beaten_stays_in_the_run(
    runs: Any,
    whole_run: Path,
    tiny_settings: Tiny,
    tmp_path: Path,
) -> None:
    net = load_backbone(tiny_settings(), whole_run)
    assert net is not None
    train(tiny_settings(stages=["backbone"]), tmp_path / "alone", quiet=True)
    alone = {n: t for n, t in runs.weights(tmp_path / "alone").items() if n.startswith("focus_encoder.")}
    kept = {f"focus_encoder.{n}": t for n, t in net.focus_encoder.state_dict().items()}
    assert runs.same(alone, kept)  # also: the stages before do not depend on those that come after
    assert load_backbone(tiny_settings(), tmp_path) is None


def test_a_seed_repeats_a_run_bit_for_bit_and_another_does_not(
    runs: Any,
    whole_run: Path,
    tiny_settings: Tiny,
    tmp_path: Path,
) -> None:
    torch.manual_seed(12345)  # what happens outside does not matter
    train(tiny_settings(), tmp_path / "again", quiet=True)
    assert runs.same(runs.weights(whole_run), runs.weights(tmp_path / "again"))
    without_clock = [
        [{name: value for name, value in row.items() if name != "images_per_s"} for row in runs.metrics(run)]
        for run in (whole_run, tmp_path / "again")
    ]
    assert without_clock[0] == without_clock[1]
    train(tiny_settings(seed=1, stages=["recognise"]), tmp_path / "other", quiet=True)
    train(tiny_settings(stages=["recognise"]), tmp_path / "first", quiet=True)
    assert not runs.same(runs.weights(tmp_path / "first"), runs.weights(tmp_path / "other"))


def test_a_killed_run_ends_as_one_never_killed() -> None:
    done = subprocess.run(
        [sys.executable, str(KILL_AND_RESUME), "--kills", "3", "--seed", "1"],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "identical after 3 kills" in done.stdout


def test_ctrl_c_saves_and_prints_how_to_continue_and_the_run_then_ends_the_same(
    tiny_run: types.ModuleType,
    runs: Any,
    tiny_settings: Tiny,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["train", "signs", *tiny_run.WORDS, "--stages", "1", "--set", "recognise.epochs=2"]
    codes = []
    for folder in ("stopped", "stopped", "whole"):
        thread = None
        if not codes:
            thread = runs.interrupt_when((tmp_path / "stopped" / "last.ckpt").exists)
        with pytest.raises(SystemExit) as end:
            main([*words, "-o", str(tmp_path / folder)])
        codes.append(end.value.code)
        if thread is not None:
            thread.join()
            err = " ".join(capsys.readouterr().err.split())
            assert (
                f"stopped; everything learnt so far is saved in {tmp_path / 'stopped'}. Run the same command again"
                in err
            )
            assert not (tmp_path / "stopped" / "bundle").exists()
    assert codes == [130, 0, 0]
    assert "continuing with stage 1 of 1 (recognise)" in " ".join(capsys.readouterr().err.split())
    assert runs.same(runs.weights(tmp_path / "stopped"), runs.weights(tmp_path / "whole"))
    assert [row["epoch"] for row in runs.metrics(tmp_path / "stopped")] == [1, 2]


def test_lines_written_before_the_first_checkpoint_are_not_written_twice(
    runs: Any,
    tiny_settings: Tiny,
    tmp_path: Path,
) -> None:
    settings = tiny_settings(stages=["recognise"])
    train(settings, tmp_path / "run", quiet=True)
    (tmp_path / "run" / "last.ckpt").unlink()  # as if killed between the line and the checkpoint of the first epoch
    train(settings, tmp_path / "run", quiet=True)
    assert len(runs.metrics(tmp_path / "run")) == 1


def test_a_finished_run_started_again_only_writes_its_bundle(whole_run: Path, tiny_settings: Tiny) -> None:
    before = (whole_run / "metrics.jsonl").read_bytes(), (whole_run / "last.ckpt").read_bytes()
    train(tiny_settings(), whole_run, quiet=True)
    assert ((whole_run / "metrics.jsonl").read_bytes(), (whole_run / "last.ckpt").read_bytes()) == before


def test_a_folder_of_another_run_is_refused_and_the_difference_shown(whole_run: Path, tiny_settings: Tiny) -> None:
    with pytest.raises(
        BadRun, match=r"has other settings: aim.lr was 0.0003, now 0.001; seed was 0, now 3\. Use the same"
    ):
        train(tiny_settings(seed=3, aim={"lr": 0.001, "epochs": 2}), whole_run, quiet=True)


def test_a_folder_that_is_not_a_run_is_left_alone(tiny_settings: Tiny, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(BadRun, match="is not empty and holds no run"):
        train(tiny_settings(), tmp_path, quiet=True)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    with pytest.raises(BadRun, match="cannot be created"):
        train(tiny_settings(), tmp_path / "letter.txt" / "run", quiet=True)


def test_a_run_killed_while_it_wrote_its_settings_can_be_started(tiny_settings: Tiny, tmp_path: Path) -> None:
    (tmp_path / ".settings.json.0123456789abcdef.aside").write_text("{")
    train(tiny_settings(stages=["aim"], aim={"epochs": 0}), tmp_path, quiet=True)
    assert not (tmp_path / ".settings.json.0123456789abcdef.aside").exists()


def test_differences_name_what_was_and_what_is() -> None:
    found = {"a": 1, "b": {"c": [1, 2], "d": "x"}, "gone": True}
    wanted = {"a": 1, "b": {"c": [1, 3], "d": "x"}, "new": None, "more": 0}
    assert list(differences(found, wanted)) == [
        "b.c was [1, 2], now [1, 3]",
        "gone was True, now None",
        "more was None, now 0",
    ]


def test_a_full_disk_loses_nothing_and_the_run_can_be_resumed_when_there_is_room(
    runs: Any,
    tiny_settings: Tiny,
    tmp_path: Path,
) -> None:
    settings = tiny_settings(stages=["recognise"], recognise={"epochs": 2})
    run = tmp_path / "run"
    runs.interrupted(settings, run)
    before = (run / "last.ckpt").read_bytes()
    lines = len(runs.metrics(run)) if (run / "metrics.jsonl").exists() else 0
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))  # a checkpoint has three million bytes
    try:
        with pytest.raises(BadRun, match=r"could not be written .*The previous file is unchanged"):
            train(settings, run, quiet=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (run / "last.ckpt").read_bytes() == before
    assert not [path for path in run.iterdir() if path.name.endswith(".aside")]
    train(settings, run, quiet=True)
    train(settings, tmp_path / "whole", quiet=True)
    assert lines < 2
    assert len(runs.metrics(run)) == 2
    assert runs.same(runs.weights(run), runs.weights(tmp_path / "whole"))


@pytest.mark.parametrize("damage", ["cut short", "text", "empty", "of another program"])
def test_a_damaged_checkpoint_is_reported(damage: str, tiny_settings: Tiny, whole_run: Path, tmp_path: Path) -> None:
    settings = tiny_settings(stages=["aim"], aim={"epochs": 0})
    train(settings, tmp_path, quiet=True)
    file = tmp_path / "last.ckpt"
    content = file.read_bytes()
    if damage == "of another program":
        torch.save({"model": torch.zeros(2)}, file)
    else:
        file.write_bytes({"cut short": content[: len(content) // 2], "text": b"hello", "empty": b""}[damage])
    with pytest.raises(
        BadRun, match=r"last.ckpt .*(Delete it to start this run again|not a checkpoint of this version)"
    ):
        train(settings, tmp_path, quiet=True)


def test_damaged_settings_are_reported(tiny_settings: Tiny, tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(BadRun, match="settings.json is damaged"):
        train(tiny_settings(), tmp_path, quiet=True)


def test_stages_can_be_left_out_and_rounds_repeat_the_last_two(runs: Any, tiny_settings: Tiny, tmp_path: Path) -> None:
    settings = tiny_settings(stages=["aim", "finetune"], rounds=2, aim={"epochs": 1})
    train(settings, tmp_path / "run", quiet=True)
    rows = [(row["stage_number"], row["stage"]) for row in runs.metrics(tmp_path / "run")]
    assert rows == [(1, "aim"), (2, "finetune"), (3, "aim"), (4, "finetune")]
    assert not (tmp_path / "run" / "backbone.safetensors").exists()


class WithScaler(Accelerator):
    """As with fp16 on a GPU: the loss is scaled, and the scale grows."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=3)


def test_a_resumed_run_continues_with_its_loss_scale(
    runs: Any,
    tiny_settings: Tiny,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("glancefocus.training.run.Accelerator", WithScaler)
    settings = tiny_settings(stages=("backbone", "glance"))
    train(settings, tmp_path / "whole", quiet=True)
    runs.interrupted(settings, tmp_path / "again")
    train(settings, tmp_path / "again", quiet=True)
    whole, again = (torch.load(tmp_path / name / "last.ckpt", weights_only=True) for name in ("whole", "again"))
    assert whole["scaler"]["scale"] > 16
    assert again["scaler"] == whole["scaler"]
    assert runs.same(whole["net"], again["net"])


def test_one_stage_instead_of_three_trains_everything(runs: Any, tiny_settings: Tiny, tmp_path: Path) -> None:
    train(tiny_settings(stages=["joint"]), tmp_path / "run", quiet=True)
    train(tiny_settings(stages=["joint"], joint={"epochs": 0}), tmp_path / "fresh", quiet=True)
    trained, fresh = runs.weights(tmp_path / "run"), runs.weights(tmp_path / "fresh")
    for part in ("glance_encoder", "focus_encoder", "classifier", "policy"):
        assert any(not torch.equal(t, fresh[n]) for n, t in trained.items() if n.startswith(part)), part
    (row,) = runs.metrics(tmp_path / "run")
    assert all(math.isfinite(row[name]) for name in ("loss", "policy_loss", "reward"))
    assert len(row["accuracy"]) == len(row["val_accuracy"]) == 2


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a GPU, on which fp16 works")
def test_fp16_without_a_gpu_is_refused(tiny_settings: Tiny, tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="fp16 needs a GPU, and there is none. Use --precision bf16"):
        train(tiny_settings(precision="fp16"), tmp_path / "run", quiet=True)


def test_two_processes_agree_with_each_other_and_with_one(runs: Any, tiny_settings: Tiny, tmp_path: Path) -> None:
    # Encoders are frozen and aims are learnt: nothing depends on how a batch is shared out, so one process must get the same.
    changes = {"stages": ["finetune"], "finetune": {"freeze_encoders": True, "epochs": 2}}
    weights = runs.of_two_processes(tmp_path / "two", changes)
    train(tiny_settings(**changes), tmp_path / "one", quiet=True)
    for name, tensor in runs.weights(tmp_path / "one").items():
        torch.testing.assert_close(tensor, weights[name], rtol=0, atol=1e-5)
    assert [row["epoch"] for row in runs.metrics(tmp_path / "two")] == [1, 2]


def test_the_command_launches_processes_by_itself(tiny_run: types.ModuleType, runs: Any, tmp_path: Path) -> None:
    stages = ["backbone", "glance", "joint", "point", "finetune", "aim"]
    changes = [f"{stage}.epochs=1" for stage in stages]
    changes += ["glance.evidence_weight=1", "finetune.mistaken_glances=0.5"]
    short = ["--stages", ",".join(stages), *(word for change in changes for word in ("--set", change))]
    words = [
        "train",
        "signs",
        *tiny_run.WORDS,
        *short,
        "--rivals",
        "none",
        "--processes",
        "2",
        "--json",
        "-o",
        str(tmp_path / "run"),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "glancefocus.cli.main", *words], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    fact = json.loads(done.stdout)
    assert len(fact["validation_accuracy_per_look"]) == 2
    assert [row["stage"] for row in runs.metrics(tmp_path / "run")] == stages
    assert gf.load(fact["bundle"]).classes == ("none", "30", "50", "80", "100")


@pytest.mark.parametrize("shift_px", [0, 3], ids=["still", "shifted"])
@pytest.mark.parametrize(
    ("stage", "changes"), [("point", {"epochs": 2}), ("glance", {"epochs": 2, "evidence_weight": 1.0})]
)
def test_learning_from_evidence_is_resumed_where_it_was_stopped(
    runs: Any,
    stage: str,
    changes: dict[str, Any],
    shift_px: int,
    tiny_settings: Tiny,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = tiny_settings(stages=[stage], data={"augment": {"shift_px": shift_px}}, **{stage: changes})
    train(settings, tmp_path / "whole", quiet=True)
    runs.interrupted(settings, tmp_path / "stopped")
    monkeypatch.delattr(Encoder, "evidence")  # which takes a while and is known already
    train(settings, tmp_path / "stopped", quiet=True)
    assert runs.same(runs.weights(tmp_path / "stopped"), runs.weights(tmp_path / "whole"))
    assert runs.metrics(tmp_path / "whole")[-1]["stage"] == stage


def test_stages_added_to_a_run_are_those_of_a_run_that_had_them_from_the_start(
    runs: Any,
    tiny_settings: Tiny,
    tmp_path: Path,
) -> None:
    train(tiny_settings(stages=["glance", "recognise"]), tmp_path / "grown", quiet=True)
    train(tiny_settings(stages=["glance", "recognise", "aim"]), tmp_path / "grown", quiet=True)
    train(tiny_settings(stages=["glance", "recognise", "aim"]), tmp_path / "whole", quiet=True)
    assert runs.same(runs.weights(tmp_path / "grown"), runs.weights(tmp_path / "whole"))


def test_stages_without_those_that_a_run_has_already_run_are_refused(tiny_settings: Tiny, tmp_path: Path) -> None:
    train(tiny_settings(stages=["recognise"]), tmp_path / "run", quiet=True)
    with pytest.raises(BadRun, match="has run the stages recognise; its stages must begin with these, but got aim"):
        train(tiny_settings(stages=["aim"]), tmp_path / "run", quiet=True)


def test_a_run_starts_from_a_bundle_and_refuses_one_with_another_network(
    tiny_settings: Tiny,
    whole_run: Path,
    tmp_path: Path,
) -> None:
    start = str(whole_run / "bundle")
    changes = {"epochs": 1, "freeze_encoders": True}  # only the classifier is trained
    bundle = train(tiny_settings(stages=["finetune"], start=start, finetune=changes), tmp_path / "run", quiet=True)
    before, after = gf.load(start, device="cpu").net.state_dict(), bundle.net.state_dict()
    changed = {name.split(".")[0] for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert changed == {"classifier"}  # trained, and everything else is that of the bundle
    longer = train(tiny_settings(stages=["aim"], start=start, network={"looks": 3}), tmp_path / "longer", quiet=True)
    assert longer.settings.looks == 3  # a recurrent classifier answers alike at every look
    with pytest.raises(BadRun, match="has another network: classifier_units was 8, now 9"):
        train(
            tiny_settings(stages=["aim"], start=start, network={"classifier_units": 9}), tmp_path / "other", quiet=True
        )


def larger_scenes(stages: list[str], assignments: list[str]) -> TrainSettings:
    """Scenes of 128 px, so that there are smaller ones."""
    return train_settings(
        "signs",
        backbone="test_resnet",
        network={
            "glance_px": 32,
            "focus": ("32",),
            "looks": 2,
            "classifier_units": 8,
            "view": {"height_px": 128, "width_px": 128},
        },
        data={"scenes": [24, 10, 5]},
        stages=stages,
        changes={"batch_size": 8, "rivals": "none"},
        assignments=assignments,
    )


def test_the_backbone_may_see_small_scenes_first(runs: Any, tmp_path: Path) -> None:
    few = ["small.epochs=1", "small.scenes=[9,5]", "backbone.epochs=1"]
    train(larger_scenes(["small", "backbone"], few), tmp_path / "run", quiet=True)
    rows = runs.metrics(tmp_path / "run")
    assert [row["stage"] for row in rows] == ["small", "backbone"]
    right = [row["val_accuracy"][0] * count for row, count in zip(rows, (5, 10), strict=True)]  # each by its own scenes
    assert right == pytest.approx([round(count) for count in right], abs=1e-5)


def test_the_glance_encoder_may_see_small_scenes_first_and_continues_from_there(runs: Any, tmp_path: Path) -> None:
    def trained(name: str, *stages: str, small: int, whole: int, fresh: bool = True) -> dict[str, Tensor]:
        own = ["scenes=[9,5]", "side_px=96", f"epochs={small}", f"fresh={fresh}"]
        changes = [f"small_glance.{setting}" for setting in own]
        changes += [f"glance.epochs={whole}", "glance.fresh=true"] if "glance" in stages else []
        train(larger_scenes(list(stages), changes), tmp_path / name, quiet=True)
        if small + whole > 0:
            rows = runs.metrics(tmp_path / name)
            assert [row["stage"] for row in rows] == ["small_glance"] * small + ["glance"] * whole
        return runs.weights(tmp_path / name)

    def same(one: dict[str, Tensor], other: dict[str, Tensor], part: str) -> bool:
        return all(torch.equal(one[name], other[name]) for name in one if name.startswith(part))

    before = trained("before", "small_glance", small=0, whole=0)
    copied = trained("copied", "small_glance", small=0, whole=0, fresh=False)
    small = trained("small", "small_glance", small=1, whole=0)
    kept = trained("kept", "small_glance", "glance", small=1, whole=0)
    after = trained("after", "small_glance", "glance", small=1, whole=1)
    of_focus = {name.replace("focus_", "glance_"): tensor for name, tensor in copied.items() if "focus_encoder" in name}
    assert same(of_focus, copied, "glance_encoder")
    assert not same(before, copied, "glance_encoder")
    assert not same(before, small, "glance_encoder")
    assert same(small, kept, "glance_encoder")  # the stage glance begins with what small scenes taught
    assert not same(small, after, "glance_encoder")
    assert same(before, after, "focus_encoder")


def test_small_glances_come_before_whole_ones(tiny_settings: Tiny) -> None:
    with pytest.raises(BadSetting, match="small_glance prepares for the stage glance, so it must come before it"):
        tiny_settings(stages=["glance", "small_glance"])


def test_settings_of_stages_that_do_not_run_may_change(tiny_settings: Tiny, tmp_path: Path) -> None:
    settings = tiny_settings(stages=["backbone"])
    train(settings, tmp_path / "run", quiet=True)
    train(replace(settings, small=replace(settings.small, epochs=7)), tmp_path / "run", quiet=True)
    with pytest.raises(BadRun, match=r"backbone.lr was .*, now 7"):
        train(replace(settings, backbone=replace(settings.backbone, lr=7.0)), tmp_path / "run", quiet=True)


def test_stages_added_to_a_run_may_have_any_settings(runs: Any, tiny_settings: Tiny, tmp_path: Path) -> None:
    train(tiny_settings(stages=["recognise"]), tmp_path / "grown", quiet=True)
    longer = tiny_settings(stages=["recognise", "aim"], aim={"epochs": 1, "lr": 0.01})
    train(longer, tmp_path / "grown", quiet=True)
    train(longer, tmp_path / "whole", quiet=True)
    assert runs.same(runs.weights(tmp_path / "grown"), runs.weights(tmp_path / "whole"))
    with pytest.raises(BadRun, match=r"aim.lr was 0.01, now 0.02"):
        train(tiny_settings(stages=["recognise", "aim"], aim={"epochs": 1, "lr": 0.02}), tmp_path / "grown", quiet=True)


def test_the_joint_stage_aims_by_the_settings_of_stage_two(tiny_settings: Tiny, tmp_path: Path) -> None:
    train(tiny_settings(stages=["joint"]), tmp_path / "run", quiet=True)
    with pytest.raises(BadRun, match=r"aim.lr was 0.0003, now 0.02"):
        train(tiny_settings(stages=["joint"], aim={"lr": 0.02}), tmp_path / "run", quiet=True)


def test_objects_have_the_same_size_in_glances_of_small_and_of_whole_scenes(tiny_settings: Tiny) -> None:
    settings = tiny_settings(stages=["small_glance"])
    view = replace(settings.network.view, height_px=480, width_px=640)
    settings = replace(settings, network=replace(settings.network, view=view, glance_px=96))
    assert settings.small_glance.side_px == 96  # of scenes whose mean side is 554
    sides = [glance_side(name, settings) for name in ("small", "backbone", "small_glance", "glance")]
    assert sides == [None, None, 17, 96]


@pytest.mark.parametrize("stage", ["small", "small_glance"])
def test_small_scenes_exist_only_in_a_built_in_world(stage: str, tiny_settings: Tiny) -> None:
    settings = tiny_settings(stages=[stage])
    with pytest.raises(
        BadSetting, match=f"the stage {stage} draws small scenes of a built-in world .* pictures is not"
    ):
        replace(settings, data=replace(settings.data, source="pictures"))
    with pytest.raises(BadSetting, match=r"scenes must be a list of 2 values, but got \(5,\)"):
        replace(settings, **{stage: replace(getattr(settings, stage), scenes=(5,))})


def test_sizes_that_have_no_effect_on_whole_pictures_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("cats", "dogs"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(4):
            (tmp_path / "pets" / name / f"{number}.png").write_bytes(b"")
    words = ["--check-files", "-o", str(tmp_path / "run")]
    by_word = ["--backbone", "test_resnet", "--weights", "none", "--fit", "whole"]
    by_preset = ["--preset", "gf-mini-48"]
    for more, said in (
        ([*by_word, "--height-px", "96"], True),
        ([*by_preset, "--width-px", "96"], True),
        ([*by_preset, "--fit", "stretch", "--width-px", "96"], False),
        (by_word, False),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["train", str(tmp_path / "pets"), *words, *more])
        assert ended.value.code == 2  # none of them can be read
        assert ("images keep their own size (fit is whole)" in capsys.readouterr().err) == said
