"""The benchmarks' arithmetic, on numbers worked out by hand and on a tiny network; how fast it is, is not a matter of tests."""

import argparse
import importlib
import json
import math
import random
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.images import read_picture
from glancefocus.data.sources import DataSettings
from glancefocus.evaluation.wall_clock import Timing
from glancefocus.exits.table import LookTable
from glancefocus.network.macs import count_costs
from glancefocus.network.model import GlanceFocus
from glancefocus.network.weights import make_up_weights
from glancefocus.training.checkpoint import save_weights
from glancefocus.training.recipes import train_settings
from glancefocus.training.settings import TrainSettings

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def program(name: str) -> Any:
    """A fixture: the module of one benchmark."""

    @pytest.fixture(name=name)
    def module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
        monkeypatch.syspath_prepend(str(BENCHMARKS))
        return importlib.import_module(name)

    return module


early_exit_module = program("early_exit")
import_time_module = program("import_time")
results_module = program("results")
photographs_module = program("photographs")
ingredients_module = program("ingredients")
keras_resnet50_module = program("keras_resnet50")


def two_looks(right_after: tuple[list[bool], list[bool]]) -> LookTable:
    """Four images, equally sure after each look; the looks cost 1, and 3 together."""
    confidence = np.full((4, 2), 0.5, dtype=np.float32)
    return LookTable(confidence, np.array(right_after).T, np.array([1.0, 3.0]))


def test_the_cheapest_thresholds_for_an_accuracy_are_measured_on_other_images(photographs: types.ModuleType) -> None:
    choosing = two_looks(([True, False, False, False], [True, True, True, True]))
    measuring = two_looks(([True, True, True, True], [True, True, False, False]))
    cost, (right, macs) = photographs.cheapest(choosing, measuring, 0.25)
    assert (cost, right.mean(), macs.mean()) == (1.0, 1.0, 1.0)  # a quarter is right after the glance already
    cost, (right, macs) = photographs.cheapest(choosing, measuring, 1.0)
    assert (cost, right.mean(), macs.mean()) == (3.0, 0.5, 3.0)
    assert photographs.cheapest(measuring, choosing, 1.01) is None


def test_the_named_share_leaves_at_the_glance(early_exit: types.ModuleType) -> None:
    confidence = torch.tensor([0.2, 0.9, 0.4, 0.6])
    for share, leaving in ((0.0, 0), (0.25, 1), (0.5, 2), (0.75, 3), (1.0, 4)):
        rule = early_exit.rule_for(confidence, share, looks=3)
        assert int((confidence > rule.thresholds[0]).sum()) == leaving
        assert rule.thresholds[1:] == (math.inf, math.inf)


def test_images_that_are_equally_sure_cannot_be_told_apart(early_exit: types.ModuleType) -> None:
    with pytest.raises(ValueError, match="images 2 and 3 are equally sure"):
        early_exit.rule_for(torch.tensor([0.2, 0.5, 0.5, 0.6]), 0.5, looks=2)


def test_the_saving_is_that_part_of_the_focus_cost_which_was_not_spent(early_exit: types.ModuleType) -> None:
    # The second round ran on a machine twice as slow: the ratios within each round do not see it.
    rows = early_exit.summarise({0.0: [300.0, 600.0], 0.5: [200.0, 400.0], 1.0: [100.0, 200.0]})
    assert [row["batch_ms"] for row in rows] == [450.0, 300.0, 150.0]
    assert [row["ratio"] for row in rows] == pytest.approx([1, 2 / 3, 1 / 3])
    assert [row["focus_cost_saved"] for row in rows] == [0.0, 0.5, 1.0]


def test_every_share_is_measured_once_in_each_round(
    early_exit: types.ModuleType, small_net: Callable[..., GlanceFocus]
) -> None:
    net, generator = small_net(), torch.Generator().manual_seed(0)
    images = torch.randn(8, 3, 64, 64, generator=generator)
    make_up_weights(net, generator)
    # `measure` itself checks that as many images left at the glance as should.
    times = early_exit.measure(net, images, rounds=2)
    assert list(times) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert all(len(values) == 2 and min(values) > 0 for values in times.values())


def test_a_program_is_compared_with_the_baseline(import_time: types.ModuleType) -> None:
    rows = import_time.summarise({"one": [2.0, 4.0, 3.0], "other": [1.5, 9.0, 1.0]}, baseline="one")
    assert [(row["program"], row["median_s"], row["ratio"]) for row in rows] == [("one", 3.0, 1.0), ("other", 1.5, 0.5)]


def test_programs_run_in_fresh_interpreters(import_time: types.ModuleType) -> None:
    times = import_time.measure({"nothing": ["-c", "pass"], "a word": ["-c", "print('word')"]}, rounds=1)
    assert {name: len(values) for name, values in times.items()} == {"nothing": 1, "a word": 1}


def test_a_section_replaces_the_older_one_and_leaves_the_others(results: types.ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "docs" / "results.md"
    for name, body in (("one", "old"), ("two", "kept"), ("one", "new")):
        results.write_section(file, name, title=name, command=f"run {name}", machine="here", body=body)
    text = file.read_text()
    assert text.startswith("# Measured results\n")
    assert "old" not in text
    assert text.index("new") < text.index("<!-- results:one:end -->") < text.index("kept")
    assert text.count("results:one:start") == text.count("results:two:start") == 1


def test_the_benchmark_writes_json(early_exit: types.ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    early_exit.main(["--preset", "gf-mini-48", "--batch", "8", "--rounds", "2", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [row["share_leaving"] for row in found["rows"]] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert found["rows"][0]["ratio"] == 1.0


def test_reading_some_frames_is_compared_with_decoding_all(
    monkeypatch: pytest.MonkeyPatch, make_video: Callable[..., Path], tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    decode = importlib.import_module("decode")
    told = iter([{"seconds": 6.0, "grown_mib": 9.0}, {"seconds": 1.0, "grown_mib": 2.0}] * 2)
    ways: list[str] = []
    monkeypatch.setattr(decode, "read", lambda way, file: ways.append(way) or next(told))
    measured = decode.measure(tmp_path / "clip.mp4", rounds=2)
    assert ways == ["all", "some", "all", "some"]
    assert measured == {"some_s": 1.0, "all_s": 6.0, "ratio": 6.0, "some_mib": 2.0}
    assert "| 60 s, a key frame every 2 s | 1.00 | 6.00 | 6.0 | 2 |" in decode.table(
        [{"seconds": 60, "key_every": 60, **measured}]
    )


def test_signers_that_are_tested_on_are_not_learnt_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    lists = importlib.import_module("lsa64_list")
    for name in ("001_001_001", "001_008_001", "001_009_001"):
        (tmp_path / "001" / name).mkdir(parents=True)
    rows = lists.rows(tmp_path, val={"008"}, test={"009", "010"})
    assert [(Path(path).name, sign, split) for path, sign, split in rows] == [
        *(("001_001_001", "001", "train"), ("001_008_001", "001", "val"), ("001_009_001", "001", "test")),
    ]


def test_training_is_measured_both_ways_in_turns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("GLANCEFOCUS_CACHE", str(tmp_path))
    speed = importlib.import_module("training_speed")
    monkeypatch.setattr(speed, "keep_freed_memory", lambda: True)
    assert speed.summarise([{"stage": "aim", "images": 60, "before_s": [2.0, 4.0], "after_s": [3.0, 1.0]}]) == [
        {
            "stage": "aim",
            "epochs": 2,
            "before_images_per_s": 10.0,
            "after_images_per_s": 15.0,
            "times_faster": 1.5,
        }
    ]
    stages = 'stages=["recognise","aim"]'
    speed.main(["--scenes", "8", "--threads", "1", "--set", "batch_size=4", "--set", stages, "--epochs", "2", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert [(row["stage"], row["epochs"]) for row in told] == [("recognise", 2), ("aim", 2)]
    assert all(row["times_faster"] > 0 for row in told)


def test_merged_batches_are_compared_with_batches_alone(
    monkeypatch: pytest.MonkeyPatch, small_net: Callable[..., GlanceFocus]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    merged = importlib.import_module("merged_batches")
    told = merged.summary({"alone": [2.0, 4.0, 3.0], "together": [1.0, 4.0, 2.0]}, images=6)
    assert told == {
        "alone_images_per_s": 2.0,
        "together_images_per_s": 3.0,
        "times_faster": 1.5,
        "least": 1.0,
        "most": 2.0,
    }
    images = torch.randn(12, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    rows = merged.measure(small_net(), images, [3, 4], full_batch=6, rounds=1)
    assert [(row["batch"], row["different_answers"]) for row in rows] == [(3, 0), (4, 0)]
    assert merged.table(rows).count("\n") == 3


def test_speed_names_the_best_runtime_and_how_fast_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    speed = importlib.import_module("speed")

    def row(runtime: str, ms: float, quotient: float, light: bool = False) -> dict[str, Any]:
        timing = Timing(runtime, 64, 2, 4 * ms, ms, 4.0, 4.0, quotient, 3 * ms, 5 * ms, ms, ms, light, [1, 1], [ms, ms])
        shares = {"encoder_and_classifier": 0.9, "policy": 0.04, "crop": 0.03, "resize": 0.02, "python": 0.01}
        return {"network": "gf-resnet50-96", **timing.to_plain(), "shares": shares}

    rows = [row("plain", 30.0, 0.5), row("eager", 20.0, 0.97), row("onnx", 10.0, 0.9, light=True)]
    assert speed.verdicts(rows) == [
        "gf-resnet50-96, batch 64: the fastest is onnx, light weights, with a quotient of 0.90 (wanted: at least 0.95); "
        "10.0 % of its time is not encoder or classifier; it is 3.0 times as fast as torch as it comes; "
        "the best quotient is 0.97, by eager."
    ]
    assert (
        speed.ratio_table(rows).splitlines()[-1].startswith("| gf-resnet50-96 | onnx, light weights | 64 | 2 | 40.00")
    )
    assert "| 90.0 | 4.0 | 3.0 | 2.0 | 1.0 | 10.00 / 10.00 |" in speed.share_table(rows)


def test_light_weights_are_measured_beside_float_ones(
    small_bundle: Callable[..., Bundle],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    light_accuracy = importlib.import_module("light_accuracy")
    bundle = small_bundle()
    bundle.save(tmp_path / "bundle")
    colours = np.random.default_rng(0).integers(0, 256, (5, 3), dtype=np.uint8)
    for name in bundle.classes:
        (tmp_path / "data" / "test" / name).mkdir(parents=True)
        for number, colour in enumerate(colours):
            Image.new("RGB", (64, 64), tuple(colour.tolist())).save(tmp_path / "data" / "test" / name / f"{number}.png")
    words = [str(tmp_path / "bundle"), str(tmp_path / "data"), "--name", "noise", "--runtime", "onnx"]
    light_accuracy.main([*words, "--write", str(tmp_path / "results.md")])
    # The same pictures are in every class, so every answer is right once among them, however it is rounded.
    share = f"{100 / len(bundle.classes):.2f}"
    lines = (tmp_path / "results.md").read_text().splitlines()
    for weights in ("| float |", "| int8 where heavy |"):
        (row,) = [line for line in lines if line.startswith(weights)]
        assert row.count(share) == bundle.settings.looks + 1
    assert f"{5 * len(bundle.classes)} test images, runtime onnx" in capsys.readouterr().out
    assert len(list((tmp_path / "bundle-looks").iterdir())) == 2  # one record for each


def test_intervals_are_measured_on_images_that_did_not_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    intervals = importlib.import_module("budget_intervals")
    everything = intervals.made_up(2.5, count=3100)
    assert everything.score.mean() > everything.correct.mean() + 0.05  # they promise more than they keep
    rows = [intervals.measure("made up", everything, 40, share, resamplings=2) for share in (0.2, None)]
    assert rows[0]["budget_macs"] == 1.6e8
    assert all(row["cost_held"] in (0, 0.5, 1) and 0 < row["half_share"] < 1 for row in rows)
    text = intervals.table_of(rows)
    assert text.splitlines()[2].startswith("| made up | 40 | 160.0 |")
    assert text.splitlines()[3].startswith("| made up | 40 | none |")


def test_the_table_of_the_readme_leaves_out_rivals_that_cost_less_than_glancefocus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    methods = [("backbone", 0.9, 8e6), ("resized", 0.7, 4e6), ("resized", 0.5, 1e6), ("cascade", 0.6, 2e6)]
    points = [
        {"kind": kind, "name": f"{kind} {macs / 1e6:g}", "accuracy": right, "mean_macs": macs, "mean_ms": macs / 1e7}
        for kind, right, macs in (*methods, ("glancefocus", 0.95, 3e6))
    ]
    table = importlib.import_module("demo_results").readme_table({"points": points, "images": 1200, "device": "a CPU"})
    assert [line for line in table.splitlines() if line.startswith("|")][2:] == [
        "| backbone 8 | 90.0 | 8.0 | 0.80 |",
        "| resized 4 | 70.0 | 4.0 | 0.40 |",
        "| cascade 2 | 60.0 | 2.0 | 0.20 |",
        "| **glancefocus 3** | 95.0 | 3.0 | 0.30 |",
    ]
    assert "1,200 held-out scenes" in table
    assert "one image at a time (a CPU)" in table


def test_pictures_of_any_size_are_made_and_their_costs_are_put_into_a_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pyvips = pytest.importorskip("pyvips")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    large = importlib.import_module("large")
    source = pyvips.Image.black(64, 48, bands=3).copy(interpretation="srgb")
    for kind in ("jpeg", "tiff"):
        assert read_picture(large.make(tmp_path, 0.09, kind, source)).size == (300, 300)
    measured = {"first": 2.5, "seconds": 0.1234, "grown_mib": 5.6}
    rows = [
        {
            "kind": "tiff",
            "megapixels": 1024,
            "file_mb": 1.2,
            "predict": measured,
            "resize": {"error": "too large"},
            "tiles": {"seconds": 70.01, "count": 9},
        }
    ]
    last = large.table(rows).splitlines()[-1]
    assert last == "| pyramid in a TIFF | 1,024 | 1.2 | 2,500 | 123 | 6 | - | - | 70.0 |"
    (tmp_path / "rows.json").write_text(json.dumps({"rows": rows}))
    large.main(["--rows", str(tmp_path / "rows.json"), "--write", str(tmp_path / "results.md")])
    assert last in (tmp_path / "results.md").read_text()


def test_the_tables_of_a_study_become_a_section_of_the_results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    folder = tmp_path / "studies" / "rewards"
    folder.mkdir(parents=True)
    about = {"title": "Rewards", "command": "gf study rewards", "machine": "a machine"}
    (folder / "study.json").write_text(json.dumps(about))
    (folder / "study.md").write_text(
        "# Rewards\n\n    gf study rewards\n\nOne seed. a machine.\n\n## A table\n\n| | t=1 |\n\n![drawn](figures/a.png)\n"
    )
    file = tmp_path / "results.md"
    importlib.import_module("study_results").main([str(tmp_path / "studies"), "rewards", "--write", str(file)])
    text = file.read_text()
    assert "## Study `rewards`: rewards\n\n    gf study rewards\n\na machine\n\nOne seed.\n\n**A table**" in text
    assert "drawn" not in text  # figures stay in the folder of the study


def test_folders_of_large_pictures_are_made_of_photographs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("pyvips")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    large_folder = importlib.import_module("large_folder")
    (tmp_path / "photos").mkdir()
    for number in range(8):
        Image.new("RGB", (60, 40), (20 * number, 0, 0)).save(tmp_path / "photos" / f"{number}.jpg")
    options = argparse.Namespace(count=16, distinct=8, kinds="mixed", megapixels=0.0384)
    large_folder.make(tmp_path / "made", tmp_path / "photos", options)
    files = sorted((tmp_path / "made").iterdir())
    assert len({file.stat().st_ino for file in files}) == 8  # the others are links
    assert {read_picture(file).size for file in files} == {(240, 160)}


def test_one_zooming_network_is_trained_and_measured_on_scenes_of_three_sizes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("GLANCEFOCUS_CACHE", str(tmp_path / "cache"))
    wide = importlib.import_module("wide_signs")
    monkeypatch.setattr(wide, "SIZES", ((192, 256), (512, 512), (2304, 2304)))
    few = [f"--set={name}.epochs=1" for name in ("small", "glance", "recognise", "point")]
    few += ["--set=small.scenes=[12,5]", "--set=batch_size=12", "--scenes=24"]
    wide.main([str(tmp_path / "run"), *few])
    capsys.readouterr()
    wide.main([str(tmp_path / "run"), *few, "--test=6", f"--write={tmp_path / 'results.md'}"])
    assert "img/s" not in capsys.readouterr().out, "the second call only measures"
    rows = [line for line in (tmp_path / "results.md").read_text().splitlines() if line.startswith("| ")][1:]
    looks = [row.split("|")[2].count("/") + 1 for row in rows if "x" in row]
    assert looks == [2, 3, 4], "in a scene of four times the side one look more is taken"


def test_exits_of_a_zooming_network_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first image is sure at its first look and wrong, the second at its last look and right."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    wide = importlib.import_module("wide_signs")
    logits = torch.tensor([[[9.0, 0.0], [0.1, 0.0]], [[0.0, 9.0], [9.0, 0.0]]])
    assert wide.exits({"logits": logits, "labels": torch.tensor([1, 0])}, 0.9) == (0.5, 1.5)
    assert wide.exits({"logits": logits, "labels": torch.tensor([1, 0])}, 1.0) == (1.0, 2.0)


def test_answers_by_parts_are_compared_with_those_of_decoded_pictures(
    monkeypatch: pytest.MonkeyPatch, small_bundle: Callable[..., Bundle], tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    large_folder = importlib.import_module("large_folder")
    for number in range(3):
        Image.new("RGB", (70, 64), (80 * number, 0, 0)).save(tmp_path / f"{number}.png")
    parts, decoded, parts_s, decoded_s = large_folder.both_ways(small_bundle(), sorted(tmp_path.iterdir()), 2)
    assert [len(outcome) for outcome in parts] == [len(outcome) for outcome in decoded] == [2, 1]
    assert parts_s > 0
    assert decoded_s > 0
    found = large_folder.summary(parts[0], decoded[0], 2.0, 5.0)
    assert found["ratio"] == 2.5
    assert (found["by_parts_per_second"], found["same_answers"], found["same_looks"]) == (1.0, 2, 2)
    assert found["largest_difference_of_probabilities"] == 0


@pytest.mark.usefixtures("small_is_large")
def test_every_kind_of_file_is_read_by_parts_and_compared_with_the_picture_in_memory(
    monkeypatch: pytest.MonkeyPatch, small_bundle: Callable[..., Bundle], tmp_path: Path
) -> None:
    pyvips = pytest.importorskip("pyvips")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    same = importlib.import_module("same_answers")
    coarse = np.random.default_rng(0).integers(0, 256, (9, 13, 3), dtype=np.uint8)
    pixels = np.asarray(Image.fromarray(coarse).resize((301, 203), Image.Resampling.BICUBIC))
    picture = pyvips.Image.new_from_array(pixels)
    bundle = small_bundle(focus=("0.5@32", "32"), zoom=True, view={"fit": "whole"})
    found = []
    for number, (kind, save) in enumerate(same.KINDS.items()):
        file = save(picture, tmp_path / f"{number:03d}", random.Random(number))
        found.append(same.compared(bundle, kind, file))
        assert found[-1].grey_levels["32"] <= 1, kind  # at full resolution
        assert max(found[-1].grey_levels.values()) < 3, kind
    options = argparse.Namespace(weights=Path("weights.pth"))
    body = same.body_of(
        [found[0]._replace(same_label=False, looks=(2, 3), confidences=(0.61, 0.59)), *found[1:]], options
    )
    assert f"| all | {len(found)} | {len(found) - 1} |" in body
    assert "Not the same (file, memory): JPEG: 2 and 3 looks, confidence 0.6100 and 0.5900, another label." in body


def test_each_half_is_measured_with_the_weights_that_the_other_half_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    kept_weights = importlib.import_module("kept_weights")
    one, two = torch.randperm(8, generator=torch.Generator().manual_seed(0)).tensor_split(2)
    labels = torch.zeros(8, dtype=torch.long)
    start, end = torch.tensor([[0.0, 1.0]]).repeat(8, 1), torch.tensor([[0.0, 1.0]]).repeat(8, 1)
    start[one] = torch.tensor([4.0, 0.0])  # on the first half the start is right, on the second half the end
    end[two] = torch.tensor([4.0, 0.0])
    body = kept_weights.body_of({0.0: start, 1.0: end}, labels, "Made up.")
    assert "| 0 | 50.0 |" in body
    assert "chose shares of 0 and 1; with the choice of the other half the accuracy is 0.0 % (8 images)" in body


def test_a_row_of_unseen_photographs_is_what_gf_evaluate_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    unseen = importlib.import_module("unseen")
    findings = {
        "accuracy_after_look": [0.5, 0.75],
        "chosen": {"accuracy": 0.725, "mean_macs": 1.2e8},
        "verdict": {
            "images": 1200,
            "points": [
                {"kind": "resized", "accuracy": 0.1, "mean_macs": 1e6},
                {"kind": "backbone", "accuracy": 0.74, "mean_macs": 3.84e8},
            ],
            "rival_accuracy": 0.735,
            "difference": -0.01,
            "difference_low": -0.02,
            "difference_high": 0.005,
        },
    }
    row = unseen.row_of("birds", 280, findings)
    assert row == ["birds", "280", "1,200", "50.0 / 75.0", "72.5", "120", "74.0", "384", "73.5", "-1.0 (-2.0 to +0.5)"]
    assert len(row) == len(unseen.HEAD)


def test_each_variant_leaves_out_one_ingredient(ingredients: types.ModuleType, tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(4):
            Image.new("RGB", (64, 64), (40 * number, 0, 0)).save(tmp_path / name / f"{number}.png")
    settings = train_settings(
        str(tmp_path),
        backbone="test_resnet",
        network={"glance_px": 32, "focus": ["0.8@64", "whole@128"]},
        changes={"weights": "none", "teacher": "backbone.safetensors"},
        stages=["glance", "1", "point"],
    )
    settings = replace(settings, glance=replace(settings.glance, distill=0.7))
    found = {variant.without: variant.change(settings) for variant in ingredients.variants(settings)}
    assert found["distillation"] == replace(
        settings, glance=replace(settings.glance, distill=0.0), recognise=replace(settings.recognise, distill=0.0)
    )
    assert found["views of the whole image"].network.focus == ("0.8@64",)
    assert found["zoomed views (whole@64 instead)"].network.focus == ("whole@64", "whole@128")
    assert found["zoomed views (whole@64 instead)"].stages == ("glance", "recognise")
    assert found["the last view (whole@96 instead, which learns)"].network.focus == ("0.8@64", "whole@96")
    assert not found["place memory"].network.policy.place
    assert found["place memory"].network.focus == settings.network.focus
    assert found["the stage point (PPO alone instead)"].stages == ("glance", "recognise", "aim")
    assert all(other != settings for other in found.values())
    smaller = replace(settings, network=replace(settings.network, focus=("0.8@64", "whole@96")))
    names = {variant.without: variant.change(smaller) for variant in ingredients.variants(smaller)}
    assert names["the last view (whole@128 instead, the plain backbone)"].network.focus == ("0.8@64", "whole@128")


@pytest.mark.parametrize(
    ("again", "kept", "stages"), [("recognise", False, ("recognise", "point")), ("point", True, ("point",))]
)
def test_a_variant_starts_from_what_the_run_learnt_before_the_change(
    ingredients: types.ModuleType,
    small_bundle: Callable[..., Bundle],
    tmp_path: Path,
    *,
    again: str,
    kept: bool,
    stages: tuple[str, ...],
) -> None:
    bundle = small_bundle()
    net = bundle.net
    save_weights(tmp_path / "backbone.safetensors", net.focus_encoder.backbone)
    with torch.no_grad():
        net.glance_encoder.backbone.fc.bias.fill_(2.0)
        net.focus_encoder.backbone.fc.bias.fill_(3.0)
    bundle.save(tmp_path / "bundle")
    settings = TrainSettings(
        data=DataSettings(source="signs"), network=net.settings, stages=("glance", "recognise", "point")
    )
    started = ingredients.from_learnt(tmp_path, settings, again, tmp_path / "start")
    assert (started.stages, started.start) == (stages, str(tmp_path / "start"))
    start = Bundle.load(tmp_path / "start").net
    assert float(start.glance_encoder.backbone.fc.bias[0].detach()) == 2.0
    assert (float(start.focus_encoder.backbone.fc.bias[0].detach()) == 3.0) is kept


@pytest.mark.parametrize(("last", "learnt"), [("whole@64", True), ("whole@96", False)])
def test_an_encoder_of_the_whole_image_is_the_backbone_for_other_views_than_those_of_the_run(
    ingredients: types.ModuleType, small_net: Callable[..., GlanceFocus], tmp_path: Path, last: str, *, learnt: bool
) -> None:
    summed = {"classifier": "summed", "whole_encoder": True, "first_answer": "own_head"}
    net = small_net(focus=["0.8@32", "whole@64"], view={"height_px": 96, "width_px": 96}, **summed)
    assert net.whole_encoder is not None
    save_weights(tmp_path / "backbone.safetensors", net.focus_encoder.backbone)
    with torch.no_grad():
        net.whole_encoder.backbone.fc.bias.fill_(4.0)
    Bundle(net, ("cat", "dog", "eel"), count_costs(net.settings)).save(tmp_path / "bundle")
    changed = replace(net.settings, focus=("0.8@32", last))
    settings = TrainSettings(
        data=DataSettings(source="signs"), network=changed, stages=("glance", "recognise", "point")
    )
    ingredients.from_learnt(tmp_path, settings, "point", tmp_path / "start")
    start = Bundle.load(tmp_path / "start").net.whole_encoder
    assert start is not None
    assert (float(start.backbone.fc.bias[0].detach()) == 4.0) is learnt


def test_weights_for_blue_green_red_give_the_same_numbers_for_images_as_timm_prepares_them(
    keras_resnet50: types.ModuleType,
) -> None:
    generator = torch.Generator().manual_seed(0)
    kernel, bias = torch.randn(4, 3, 7, 7, generator=generator), torch.randn(4, generator=generator)
    image = torch.rand(1, 3, 16, 16, generator=generator)  # red, green, blue
    theirs = 255 * image.flip(1) - torch.tensor([103.939, 116.779, 123.68])[:, None, None]
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    ours = (image - mean[:, None, None]) / deviation[:, None, None]
    folded, folded_bias = keras_resnet50.without_preparation(kernel, bias)
    expected = torch.nn.functional.conv2d(theirs, kernel, bias)
    torch.testing.assert_close(torch.nn.functional.conv2d(ours, folded, folded_bias), expected, rtol=1e-4, atol=0.05)


def test_every_weight_of_resnet50_has_a_name_in_keras(keras_resnet50: types.ModuleType) -> None:
    names = {name for name, _ in keras_resnet50.resnet50_v1.resnet50_v1().named_parameters()}
    found = keras_resnet50.convolution_names()
    norms = {f"{keras_resnet50.norm_of(name)}.{part}" for name in found for part in ("weight", "bias")}
    assert names == {f"{name}.weight" for name in found} | norms | {"fc.weight", "fc.bias"}
    assert found["layer2.0.downsample.0"] == ("res3a_branch1", "bn3a_branch1")
