"""`gf budget` and `gf evaluate`: a budget goes in, thresholds come out and are used; a mistake leaves the bundle as it was."""

import csv
import html
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from glancefocus.bundle.bundle import Bundle
from glancefocus.evaluation.assess import look_table
from glancefocus.evaluation.choosing import within_budget
from glancefocus.exits.one_size import geometric_within
from glancefocus.exits.record import LookRecord

Run = Callable[..., Any]
CLASSES = ("cat", "dog", "eel")


def picture(file: Path, seed: int) -> None:
    """Noise, brighter or darker."""
    file.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    Image.fromarray((random.integers(0, 256, (64, 64, 3)) * random.random()).astype(np.uint8)).save(file)


@pytest.fixture(scope="module")
def made(small_bundle: Callable[..., Bundle], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bundle/, a network that is surer of some images than of others; and pets/ with val/ and test/, 12 pictures each."""
    folder = tmp_path_factory.mktemp("budget")
    bundle = small_bundle()
    with torch.no_grad():
        for parameter in bundle.net.classifier.parameters():
            parameter.mul_(4)
    bundle.save(folder / "bundle")
    for number in range(24):
        split = "val" if number % 2 else "test"
        picture(folder / "pets" / split / CLASSES[number % 3] / f"{number}.png", number)
    return folder


@pytest.fixture
def bundle(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(made / "bundle", tmp_path / "bundle"))


@pytest.fixture(scope="module")
def pets(made: Path) -> Path:
    return made / "pets"


@pytest.fixture(scope="module")
def macs(made: Path) -> list[int]:
    """After each look."""
    found: list[int] = json.loads((made / "bundle" / "bundle.json").read_text())["costs"]["macs_after_look"]
    return found


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def stored_in(bundle: Path) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads((bundle / "bundle.json").read_text())
    return plain


def mean_cost(answers: list[dict[str, Any]]) -> float:
    return float(np.mean([answer["cost_macs"] for answer in answers]))


def test_a_budget_becomes_thresholds_that_predict_uses(gf: Run, bundle: Path, pets: Path, macs: list[int]) -> None:
    budget = (macs[0] + macs[2]) / 2
    found = gf("budget", bundle, pets, "--macs", budget, "--json")
    assert {"thresholds", "score", "temperatures", "budget", "unit", "device", "every_look_fits"} <= found.keys()
    assert (found["budget"], found["unit"], found["score"], found["stored"]) == (budget, "macs", "confidence", True)
    assert (found["chosen_on"], found["measured_on"]) == (f"{pets}, val", f"{pets}, test")
    assert not found["every_look_fits"]
    assert found["on_those"]["mean_macs"] <= budget
    for point in (found["on_those"], found["on_these"]):
        assert sum(point["exits_per_look"]) == 12
        assert point["accuracy_low"] <= point["accuracy"] <= point["accuracy_high"]
    stored = stored_in(bundle)
    assert stored["thresholds"] == found["thresholds"]
    assert stored["notes"]["thresholds_chosen_on"] == f"{pets}, val"
    one_image = (macs[2] - macs[0]) / 12  # rounding may decide about the last one that leaves
    for split, point in (("val", found["on_those"]), ("test", found["on_these"])):
        answers = gf("predict", bundle, pets / split, "--json")
        assert mean_cost(answers) == pytest.approx(point["mean_macs"], abs=one_image)


def test_the_stored_curve_serves_any_other_budget(gf: Run, bundle: Path, pets: Path, macs: list[int]) -> None:
    found = gf("budget", bundle, pets, "--curve", "--json")
    assert found["budget"] is None
    budgets = [point["budget_macs"] for point in found["curve"]]
    assert budgets == pytest.approx(np.linspace(macs[0], macs[2], len(budgets)).tolist(), abs=1)
    for point in found["curve"]:
        assert {"mean_macs", "accuracy", "thresholds", "exits_per_look", "accuracy_low"} <= point.keys()
    stored = stored_in(bundle)["curve"]
    accuracies = [point["expected_accuracy"] for point in stored]
    assert np.diff(accuracies).min() > -1e-9  # a dearer budget is never expected to be worse
    assert all(point["mean_macs"] <= point["budget_macs"] * (1 + 1e-9) for point in stored)
    looks = [
        [answer["looks"] for answer in gf("predict", bundle, pets / "val", "--budget-macs", budget, "--json")]
        for budget in (macs[0], stored[20]["mean_macs"], macs[2])
    ]
    assert looks[0] == [1] * 12
    assert looks[2] == [3] * 12
    assert 12 < sum(looks[1]) < 36
    assert "a budget of 3 multiply-adds is less than one glance" in gf(
        "predict", bundle, pets, "--budget-macs", 3, code=2
    )


def test_milliseconds_are_measured_and_stored_with_the_devices_name(gf: Run, bundle: Path, pets: Path) -> None:
    assert "no milliseconds were measured on this device" in gf("predict", bundle, pets, "--budget-ms", 9, code=2)
    found = gf("budget", bundle, pets, "--ms", 1e6, "--json")
    assert (found["unit"], found["every_look_fits"]) == ("ms", True)
    assert found["on_those"]["mean_ms"] > 0
    (latency,) = stored_in(bundle)["latencies"]
    assert latency["device"] == found["device"] != ""
    gf("budget", bundle, pets, "--ms", 1e6, "--batch-size", 2)
    (latency,) = stored_in(bundle)["latencies"]  # measured again, not twice
    assert latency["batch_size"] == 2
    assert {answer["looks"] for answer in gf("predict", bundle, pets / "val", "--budget-ms", 1e6, "--json")} == {3}
    before = content(bundle)
    sentence = gf("budget", bundle, pets, "--ms", 1e-9, code=2)
    assert "a budget of 1e-09 ms is less than one glance" in sentence
    assert content(bundle) == before


def test_milliseconds_are_those_of_the_runtime_that_is_named(gf: Run, bundle: Path, pets: Path) -> None:
    eager = ("--runtime", "eager")
    gf("budget", bundle, pets, "--ms", 1e6, *eager)
    (latency,) = stored_in(bundle)["latencies"]
    assert latency["runtime"] == "eager"
    assert "no milliseconds were measured" in gf("predict", bundle, pets, "--budget-ms", 1e6, code=2)
    assert {a["looks"] for a in gf("predict", bundle, pets / "val", "--budget-ms", 1e6, *eager, "--json")} == {3}
    found_light = gf("budget", bundle, pets, "--ms", 1e6, "--runtime", "onnx", "--light-weights", "--json")
    assert [latency["runtime"] for latency in stored_in(bundle)["latencies"]] == ["eager", "onnx, light weights"]
    assert found_light["runtime"] == "onnx, light weights"
    found = gf("evaluate", bundle, pets, "--split", "val", *eager, "--json")
    assert found["device"].endswith("batch 1, eager")
    assert "light weights are for ONNX Runtime" in gf("predict", bundle, pets, "--light-weights", code=2)


def test_thresholds_can_be_shown_without_being_stored(gf: Run, bundle: Path, pets: Path, macs: list[int]) -> None:
    before = content(bundle)
    found = gf("budget", bundle, pets, "--macs", macs[1], "--no-store", "--json")
    assert found["stored"] is False
    assert content(bundle) == before


@pytest.mark.parametrize("score", ["entropy", "value", "random"])
def test_another_score_is_solved_for_stored_and_used(
    score: str, gf: Run, bundle: Path, pets: Path, macs: list[int]
) -> None:
    found = gf("budget", bundle, pets, "--macs", (macs[0] + macs[2]) / 2, "--score", score, "--json")
    assert found["score"] == stored_in(bundle)["score"] == score
    answers = gf("predict", bundle, pets / "val", "--json")
    if score != "random":  # whose exits are other ones each time
        assert mean_cost(answers) == pytest.approx(found["on_those"]["mean_macs"], abs=(macs[2] - macs[0]) / 12)
    assert gf("budget", bundle, pets, "--macs", macs[1], "--json")["score"] == score  # until another one is named


def test_calibrating_changes_confidences_and_no_answers(gf: Run, bundle: Path, pets: Path, macs: list[int]) -> None:
    before = gf("predict", bundle, pets / "val", "--looks", 3, "--json")
    found = gf("budget", bundle, pets, "--macs", macs[1], "--calibrate", "--json")
    assert stored_in(bundle)["temperatures"] == found["temperatures"]
    assert len(found["temperatures"]) == 3
    after = gf("predict", bundle, pets / "val", "--looks", 3, "--json")
    assert [answer["label"] for answer in after] == [answer["label"] for answer in before]
    warmer = found["temperatures"][2] > 1
    for one, two in zip(before, after, strict=True):
        assert (two["confidence"] < one["confidence"]) == warmer


@pytest.mark.parametrize("solver", ["direct", "geometric", "geometric-paper"])
def test_the_solver_can_be_named(solver: str, gf: Run, bundle: Path, pets: Path, macs: list[int]) -> None:
    budget = (macs[0] + macs[1]) / 2
    found = gf("budget", bundle, pets, "--macs", budget, "--solver", solver, "--json", "--no-store")
    assert found["on_those"]["mean_macs"] <= budget


def test_the_curve_is_solved_by_the_solver_that_is_named(gf: Run, bundle: Path, pets: Path) -> None:
    curves = {}
    for solver in ("direct", "geometric", "geometric-paper"):
        found = gf("budget", bundle, pets, "--curve", "--solver", solver, "--json")
        assert found["solver"] == solver
        curves[solver] = stored_in(bundle)["curve"]
    table = look_table(Bundle.load(bundle), LookRecord.load(next(bundle.parent.glob("bundle-looks/val-*"))))
    for solver, wide in (("geometric", True), ("geometric-paper", False)):
        for point in curves[solver][5::10]:
            expected = geometric_within(table, point["budget_macs"], wide=wide)
            assert point["thresholds"] == expected.astype(np.float64).tolist()
    assert curves["direct"] != curves["geometric"]


@pytest.mark.parametrize("unit", ["macs", "ms"])
def test_what_to_expect_of_new_images_is_reported_with_intervals_and_how_many_images_would_do(
    unit: str, gf: Run, bundle: Path, pets: Path, macs: list[int]
) -> None:
    budget = macs[1] if unit == "macs" else 1e6
    found = gf("budget", bundle, pets / "val", f"--{unit}", budget, "--json")
    new = found["forecast"]
    assert (new["images"], new["new_images"], new["unit"]) == (12, 3000, unit)
    assert new["cost_low"] <= new["cost"] <= new["cost_high"]
    assert new["accuracy_low"] < new["accuracy"] < new["accuracy_high"]
    if unit == "macs":
        assert macs[0] <= new["cost_low"] < new["cost_high"] <= macs[2]
        assert new["images_needed"] > 12
        printed = gf("budget", bundle, pets / "val", "--macs", budget)
        assert "expected on 3,000 new images, 95 %" in printed
        assert f"about {new['images_needed']:,} are needed for ±10 %." in printed


def test_thresholds_are_chosen_on_all_images_and_measured_by_those_of_others(
    gf: Run, bundle: Path, pets: Path, macs: list[int]
) -> None:
    found = gf("budget", bundle, pets / "val", "--macs", macs[1], "--json")
    record = LookRecord.load(next(bundle.parent.glob("bundle-looks/all-*")))
    table = look_table(Bundle.load(bundle), record)
    expected = within_budget(table, macs[1])
    assert found["thresholds"] == expected.thresholds.astype(np.float64).tolist()
    assert found["on_those"]["exits_per_look"] == table.point(expected.thresholds)["exits_per_look"]
    assert found["on_these"]["exits_per_look"] == expected.on_others["exits_per_look"]
    assert stored_in(bundle)["notes"]["thresholds_for"] == f"a budget of {macs[1] / 1e6:.2f}M multiply-adds"


def test_training_images_may_choose_as_in_the_paper(gf: Run, bundle: Path, tmp_path: Path, macs: list[int]) -> None:
    for number in range(9):
        picture(tmp_path / "pets" / ("test" if number > 5 else "train") / CLASSES[number % 3] / f"{number}.png", number)
    found = gf("budget", bundle, tmp_path / "pets", "--macs", macs[1], "--on", "train", "--json")
    assert found["chosen_on"].endswith("pets, train")
    assert found["measured_on"].endswith("pets, test")


def test_people_get_a_table(gf: Run, bundle: Path, pets: Path, macs: list[int]) -> None:
    printed = gf("budget", bundle, pets, "--macs", macs[1])
    assert "thresholds on the confidence:" in printed
    assert "stored in the bundle. gf predict uses these thresholds" in printed
    printed = gf("budget", bundle, pets, "--macs", 1e12, "--no-store")
    assert "every look for every image fits into this budget." in printed
    assert "not stored" in printed
    assert "all budgets, measured on images that did not choose the thresholds" in gf("budget", bundle, pets, "--curve")


def test_evaluate_measures_and_writes_numbers_figures_and_a_page(
    gf: Run, bundle: Path, pets: Path, tmp_path: Path, macs: list[int]
) -> None:
    before = content(bundle)
    found = gf("evaluate", bundle, pets, "-o", tmp_path / "report", "--json")
    assert content(bundle) == before
    assert len(found["accuracy_after_look"]) == 3
    assert found["macs_after_look"] == macs
    assert found["data"] == f"{pets}, test"
    assert found["chosen_on"] == f"{pets}, val"
    assert found["images"] == 12
    for point in found["curve"]:
        assert {"budget_macs", "mean_macs", "accuracy", "thresholds", "exits_per_look", "mean_ms"} <= point.keys()
        assert sum(point["exits_per_look"]) == 12
    assert set(found["scores"]) == {"confidence", "entropy", "value", "random"}
    report = tmp_path / "report"
    assert {"report.html", "findings.json", "curve.csv", "scores.csv", "reliability.csv", "figures"} <= {
        path.name for path in report.iterdir()
    }
    assert json.loads((report / "findings.json").read_text())["curve"] == found["curve"]
    with (report / "curve.csv").open() as stream:
        assert len(list(csv.DictReader(stream))) == len(found["curve"])
    assert list((report / "figures").iterdir())


def test_evaluate_ends_with_the_verdict(gf: Run, bundle: Path, pets: Path, tmp_path: Path) -> None:
    assert "No verdict: there is no plain backbone at" in gf("evaluate", bundle, pets, "--no-latency")
    net = Bundle.load(bundle).net
    safetensors.torch.save_file(net.focus_encoder.backbone.state_dict(), bundle.parent / "backbone.safetensors")
    found = gf("evaluate", bundle, pets, "-o", tmp_path / "report", "--json")
    verdict = found["verdict"]
    assert verdict["images"] == 12
    assert verdict["data"] == f"{pets}, test"
    assert [point["kind"] for point in verdict["points"]] == ["backbone", *["resized"] * 4, "tuned", "glancefocus"]
    assert [point["px"] for point in verdict["points"]][:5] == [[[px, px]] for px in (64, 56, 48, 40, 24)]
    report = tmp_path / "report"
    assert verdict["sentence"] in html.unescape((report / "report.html").read_text())
    with (report / "rivals.csv").open() as stream:
        sizes = [line["px"] for line in csv.DictReader(stream)]
    assert sizes == ["64x64", "56x56", "48x48", "40x40", "24x24", "32x32", ""]
    assert (report / "figures" / "rivals.png").exists()
    printed = gf("evaluate", bundle, pets, "--no-latency")
    assert "backbone at 40 px" in printed
    assert "Undecided with 12 images" in printed
    assert gf("evaluate", bundle, pets, "--rivals", "none", "--no-latency", "--json")["verdict"] is None
    sentence = gf("evaluate", bundle, pets, "--rivals", "tuned", code=2)
    assert "settings.json" in sentence  # there is no run to tune in


def test_evaluate_takes_the_split_that_is_named_and_may_leave_time_out(gf: Run, bundle: Path, pets: Path) -> None:
    found = gf("evaluate", bundle, pets, "--split", "val", "--no-latency", "--json")
    assert found["data"] == f"{pets}, val"
    assert found["chosen_on"] == "parts of these images for the other parts, in turns"
    assert found["ms_after_look"] is None
    sentence = gf("evaluate", bundle, pets, "--split", "train", code=2)
    assert sentence == f"gf: {pets} has no split 'train', only val, test."


def test_evaluate_shows_the_bundles_own_thresholds_on_images_that_did_not_choose_them(
    gf: Run, bundle: Path, pets: Path, macs: list[int]
) -> None:
    chosen = gf("budget", bundle, pets, "--macs", (macs[0] + macs[2]) / 2, "--json")
    found = gf("evaluate", bundle, pets, "--no-latency", "--json")
    for name in ("accuracy", "mean_macs", "exits_per_look"):
        assert found["chosen"][name] == chosen["on_these"][name]
    assert gf("evaluate", bundle, pets, "--no-latency") != ""


def test_a_look_record_that_was_made_serves_instead_of_the_data(
    gf: Run, bundle: Path, pets: Path, tmp_path: Path, macs: list[int]
) -> None:
    gf("evaluate", bundle, pets, "--split", "val", "--no-latency")
    (record,) = (tmp_path / "bundle-looks").iterdir()
    found = gf("budget", bundle, record, "--macs", macs[1], "--json")
    assert found["chosen_on"] == f"{pets}, val"
    assert found["measured_on"] == f"{pets}, val, each image with thresholds chosen on the others"
    assert sum(found["on_these"]["exits_per_look"]) == 12
    assert gf("evaluate", bundle, record, "--no-latency", "--json")["data"] == f"{pets}, val"
    assert "a look record does not contain them. Name the data" in gf(
        "budget", bundle, record, "--macs", macs[1], "--calibrate", code=2
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            (),
            "gf: give the cost that an answer may have: --macs 2e8, or --ms 12, or --curve for all budgets; exactly one of them.",
        ),
        (("--macs", 1e7, "--ms", 5), "gf: give the cost that an answer may have"),
        (("--macs", 1e7, "--curve"), "gf: give the cost that an answer may have"),
        (("--macs", 3), "gf: a budget of 3 multiply-adds is less than one glance"),
        (("--macs", 3), "Multiply-adds are counted one by one, such as 2e8; milliseconds are given with --ms"),
        (("--macs", -1), "gf: --macs must be a number above 0 and at most 1,000,000,000,000,000,000, but got -1."),
        (("--macs", "nan"), "gf: --macs must be a number above 0 and at most 1,000,000,000,000,000,000, but got nan."),
        (("--ms", "nan"), "gf: --ms must be a number above 0 and at most 1,000,000,000, but got nan."),
        (("--macs", "inf"), "gf: --macs must be a number above 0"),
        (
            ("--curve", "--solver", "genetic"),
            "gf: the solver 'genetic' is for several candidate views; this network has",
        ),
        (("--macs", 5e6, "--on", "train"), "has no training images. Leave --on out, or name data with train/."),
        (
            ("--macs", 5e6, "--solver", "genetic"),
            "gf: the solver 'genetic' is for several candidate views; this network has",
        ),
        (("--ms", 1e6, "--batch-size", 0), "gf: --batch-size must be a whole number from 1 to 65,536, but got 0."),
    ],
)
def test_a_budget_that_cannot_be_asked_for_is_one_sentence(
    words: tuple[object, ...], sentence: str, gf: Run, bundle: Path, pets: Path
) -> None:
    before = content(bundle)
    printed = gf("budget", bundle, pets, *words, code=2)
    assert printed.startswith("gf: ")
    assert sentence in printed
    assert content(bundle) == before


def bad_data(kind: str, folder: Path) -> Path:
    """Data on which no thresholds can be chosen."""
    if kind == "no such data":
        return folder / "none"
    if kind == "empty":
        (folder / "data").mkdir()
    elif kind == "unknown labels":
        for number in range(8):
            picture(folder / "data" / ("cat" if number % 2 else "fox") / f"{number}.png", number)
    elif kind == "one image":
        picture(folder / "data" / "cat" / "0.png", 0)
    elif kind == "one image a split":
        picture(folder / "data" / "val" / "cat" / "0.png", 0)
        picture(folder / "data" / "test" / "cat" / "1.png", 1)
    elif kind == "all images equal":
        for number in range(8):
            picture(folder / "data" / "cat" / f"{number}.png", 0)
    elif kind == "broken images":
        for number in range(12):
            picture(folder / "data" / "cat" / f"{number}.png", number)
            if number:
                (folder / "data" / "cat" / f"{number}.png").write_bytes(b"broken")
    return folder / "data"


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("no such data", "gf: there is no data set named"),
        ("empty", "has no class folders. Put the images of each class into a folder with the name of the class."),
        ("unknown labels", "has the label 'fox', which is not a class of the bundle. Its classes are cat, dog, eel."),
        ("one image", "has 1. Give at least 4 images; some hundreds are better."),
        ("one image a split", "gf: thresholds need at least 2 images to be chosen on, but got 1."),
        ("all images equal", "images have the same score at every look"),
        ("broken images", "gf: 11 of 12 files cannot be read; at most 10 may be skipped (--max-bad-files)."),
    ],
)
def test_data_that_cannot_choose_is_one_sentence(
    kind: str, sentence: str, gf: Run, bundle: Path, tmp_path: Path, macs: list[int]
) -> None:
    before = content(bundle)
    printed = gf("budget", bundle, bad_data(kind, tmp_path), "--macs", macs[1], code=2)
    assert printed.startswith("gf: ")
    assert sentence in printed
    assert content(bundle) == before


@pytest.mark.parametrize("kind", ["no such data", "unknown labels", "one image", "all images equal", "broken images"])
def test_data_that_cannot_be_measured_on_is_one_sentence(kind: str, gf: Run, bundle: Path, tmp_path: Path) -> None:
    printed = gf("evaluate", bundle, bad_data(kind, tmp_path), "-o", tmp_path / "report", code=2)
    assert printed.startswith("gf: ")
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize("verb", ["budget", "evaluate"])
def test_a_look_record_of_another_bundle_is_refused(
    verb: str, gf: Run, bundle: Path, pets: Path, tmp_path: Path, small_bundle: Callable[..., Bundle]
) -> None:
    gf("evaluate", bundle, pets, "--split", "val", "--no-latency")
    (record,) = (tmp_path / "bundle-looks").iterdir()
    other = small_bundle(seed=3).save(tmp_path / "other")
    before = content(other)
    printed = gf(verb, other, record, *(("--curve",) if verb == "budget" else ()), code=2)
    assert printed.startswith("gf: this look record was made with another network than the bundle's.")
    assert content(other) == before


def test_a_place_for_look_records_that_is_a_file_is_reported(gf: Run, bundle: Path, pets: Path, tmp_path: Path) -> None:
    (tmp_path / "bundle-looks").write_text("mine")
    printed = gf("budget", bundle, pets, "--curve", code=2)
    assert "the look record cannot be written to" in printed
    assert (tmp_path / "bundle-looks").read_text() == "mine"


def test_a_score_that_cannot_choose_a_size_never_gets_into_a_bundle(
    gf: Run, pets: Path, tmp_path: Path, small_bundle: Callable[..., Bundle]
) -> None:
    several = small_bundle(patch_px=(32, 48)).save(tmp_path / "several")
    before = content(several)
    printed = gf("budget", several, pets, "--curve", "--score", "value", code=2)
    assert (
        printed
        == "gf: with several candidate views the score also chooses the next size, which 'value' cannot. Use confidence or entropy."
    )
    assert content(several) == before
    assert not (tmp_path / "several-looks").exists()


@pytest.mark.parametrize("verb", ["budget", "evaluate"])
def test_the_verbs_explain_themselves_with_an_example(verb: str, gf: Run) -> None:
    assert f"Example: gf {verb}" in gf(verb, "--help")


@pytest.mark.parametrize("deadline_ms", [1e-6, 1e9])
def test_a_deadline_gives_the_best_answers_so_far(deadline_ms: float, gf: Run, bundle: Path, pets: Path) -> None:
    answers = gf("predict", bundle, pets / "val", "--deadline-ms", deadline_ms, "--json")
    assert [answer["looks"] for answer in answers] == [1 if deadline_ms < 1 else 3] * 12
    assert "--deadline-ms must be a number above 0 and at most 1,000,000,000, but got 0" in gf(
        "predict", bundle, pets, "--deadline-ms", 0, code=2
    )


def latency_file(folder: Path, **changes: Any) -> Path:
    file = folder / "phone.json"
    file.write_text(json.dumps({"device": "a phone", "glance_ms": 10, "focus_ms": [[20.0], [40.0]], **changes}))
    return file


def test_milliseconds_may_come_from_a_file(gf: Run, bundle: Path, pets: Path, tmp_path: Path) -> None:
    file = latency_file(tmp_path)
    found = gf("budget", bundle, pets, "--ms", 25, "--latency-file", file, "--json")
    assert (found["device"], found["unit"]) == ("a phone", "ms")
    one, two, three = found["on_those"]["exits_per_look"]
    assert found["on_those"]["mean_ms"] == pytest.approx((10 * one + 30 * two + 70 * three) / 12)
    assert found["on_those"]["mean_ms"] <= 25
    assert stored_in(bundle)["latencies"] == []  # those of this device are for predicting on it
    report = tmp_path / "report"
    measured = gf("evaluate", bundle, pets, "--latency-file", file, "--rivals", "none", "-o", report, "--json")
    assert measured["ms_after_look"] == [10, 30, 70]
    assert measured["device"] == "a phone, 1 thread, batch 1"
    assert (report / "figures" / "accuracy_over_ms.svg").exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"focus_ms": [[20.0]]},
            "must have focus_ms for 2 focus looks with 1 candidate view each, such as [[12.5], [12.5]]",
        ),
        ({"glance_ms": "fast"}, "glance_ms"),
        ({"device": None}, "device"),
    ],
)
def test_a_bad_file_of_latencies_gets_its_sentence(
    gf: Run, bundle: Path, pets: Path, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    before = content(bundle)
    assert sentence in gf(
        "budget", bundle, pets, "--ms", 25, "--latency-file", latency_file(tmp_path, **changes), code=2
    )
    assert content(bundle) == before


def test_files_of_latencies_that_are_none_get_their_sentence(gf: Run, bundle: Path, pets: Path, tmp_path: Path) -> None:
    missing = gf("budget", bundle, pets, "--ms", 25, "--latency-file", tmp_path / "none.json", code=2)
    assert f"there is no file {tmp_path / 'none.json'}. Check the path." in missing
    file = tmp_path / "list.json"
    file.write_text("[1, 2]")
    assert "must hold an object with device, glance_ms and focus_ms" in gf(
        "budget", bundle, pets, "--ms", 25, "--latency-file", file, code=2
    )
    file.write_text("{")
    assert "is not a file of latencies" in gf("budget", bundle, pets, "--ms", 25, "--latency-file", file, code=2)


def test_thresholds_may_be_chosen_on_augmented_training_images(
    gf: Run, bundle: Path, pets: Path, macs: list[int], tmp_path: Path
) -> None:
    data = Path(shutil.copytree(pets, tmp_path / "pets"))
    for number in range(9):
        picture(data / "train" / CLASSES[number % 3] / f"{number}.png", 100 + number)
    budget = (macs[0] + macs[2]) / 2
    found = gf("budget", bundle, data, "--macs", budget, "--on", "train", "--train-images", 20, "--json")
    assert sum(found["on_those"]["exits_per_look"]) == 20
    assert (found["chosen_on"], found["measured_on"]) == (f"{data}, train", f"{data}, test")
    assert "--train-images is for --on train" in gf(
        "budget", bundle, data, "--macs", budget, "--train-images", 20, code=2
    )
