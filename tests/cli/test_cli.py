"""The command: answers on standard output, one sentence for a mistake, exit code 2, never a traceback."""

import io
import json
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from glancefocus.bundle.bundle import Bundle
from glancefocus.cli import train as train_verb
from glancefocus.cli.main import VERBS, app, main
from glancefocus.cli.train import TrainOptions, settings_from
from glancefocus.evaluation.boxes import RIGHT, UNKNOWN, WRONG
from glancefocus.export.predict import FIELDS
from glancefocus.look import Aim, Look
from glancefocus.network.model import GlanceFocus
from glancefocus.training.settings import TrainSettings


class Result:
    """What a command left behind."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Result]


@pytest.fixture
def gf(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: object) -> Result:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        code = ended.value.code
        assert isinstance(code, int)
        return Result(code, out, err)

    return run


@pytest.fixture(scope="module")
def bundle_folder(small_bundle: Callable[..., Bundle], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_bundle().save(tmp_path_factory.mktemp("cli") / "bundle")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """pictures/a.png, pictures/b.jpg, pictures/cat/c.png"""
    folder = tmp_path / "pictures"
    (folder / "cat").mkdir(parents=True)
    for seed, name in enumerate(("a.png", "b.jpg", "cat/c.png")):
        array = np.random.default_rng(seed).integers(0, 256, (90, 120, 3), dtype=np.uint8)
        Image.fromarray(array).save(folder / name)
    return folder


def in_a_new_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def test_no_help_page_needs_torch_or_timm() -> None:
    code = """
import sys
from glancefocus.cli.main import VERBS, main
for words in ([], *([verb] for verb in VERBS)):
    try:
        main([*words, "--help"])
    except SystemExit as ended:
        assert ended.code == 0, ended.code
print([name for name in ("torch", "timm", "torchvision", "numpy", "PIL", "matplotlib") if name in sys.modules])
"""
    out = in_a_new_process(code)
    assert "predict" in out
    assert out.strip().endswith("[]")


def test_the_help_page_describes_every_verb(gf: Run) -> None:
    lines = [line.strip("│ ").split(maxsplit=1) for line in gf("--help").out.splitlines() if line.startswith("│ ")]
    described = {words[0]: words[1] for words in lines if len(words) == 2}
    assert set(VERBS) <= set(described)
    assert "train-process" not in described


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_of_every_verb_is_explained(verb: str) -> None:
    for argument in app[verb].assemble_argument_collection(parse_docstring=True):
        assert argument.parameter.name == ("*",) or argument.parameter.help, argument.parameter.name


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, glancefocus; print([n for n in ('torch', 'timm', 'numpy') if n in sys.modules])"
    assert in_a_new_process(code).strip() == "[]"


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
    ids=["by itself", "a number of one's own", "a policy of one's own"],
)
def test_openmp_spins_briefly_unless_the_user_sets_it(
    given: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    code = """
import os
from glancefocus.cli.main import main
try:
    main(["--version"])
except SystemExit:
    print(os.environ.get("GOMP_SPINCOUNT"))
"""
    assert in_a_new_process(code).split()[-1] == expected


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself_with_an_example(verb: str, gf: Run) -> None:
    done = gf(verb, "--help")
    assert done.code == 0
    assert f"Example: gf {verb}" in " ".join(done.out.split())


def test_models_lists_every_preset_with_its_costs(gf: Run) -> None:
    done = gf("models", "--json")
    assert done.code == 0
    rows = {row["preset"]: row for row in done.json}
    assert len(rows) >= 14
    for row in rows.values():
        assert {
            "preset",
            "backbone",
            "glance_px",
            "focus",
            "looks",
            "parameters",
            "encoder_macs",
            "encoder_with_head_macs",
            "policy_macs",
            "classifier_macs",
            "macs_after_look",
        } <= set(row)
        assert len(row["macs_after_look"]) == len(row["classifier_macs"]) == row["looks"]
        assert row["macs_after_look"] == sorted(row["macs_after_look"])
    resnet = rows["gf-resnet50-96"]
    assert resnet["encoder_macs"] / 1e6 == pytest.approx(resnet["paper_encoder_macs"] / 1e6, rel=0.02)
    mobilenet = rows["gf-mobilenetv3-large-100-96"]
    assert mobilenet["encoder_with_head_macs"] == pytest.approx(mobilenet["paper_encoder_macs"], rel=0.02)
    # ResNet-50 has 25.6M parameters; twice, with a GRU of 1024 on 2048 features, 1000 classes, and the policy.
    assert resnet["parameters"] / 1e6 == pytest.approx(2 * 25.557 + 10.5 + 46.1, rel=0.01)


def test_predict_answers_files_and_folders(gf: Run, bundle_folder: Path, pictures: Path) -> None:
    done = gf("predict", bundle_folder, pictures / "b.jpg", pictures, "--json")
    assert done.code == 0
    answers = done.json
    assert [Path(a["file"]).name for a in answers] == ["b.jpg", "a.png", "b.jpg", "c.png"]
    for answer in answers:
        assert tuple(answer) == FIELDS
        assert answer["patch_px"] == [32, 32]
        assert answer["label"] in ("cat", "dog", "eel")
        assert answer["top"] == [{"label": answer["label"], "confidence": answer["confidence"]}]
        assert answer["looks"] == 3
        assert answer["sure"] is False
        assert len(answer["where"]) == len(answer["boxes"]) == 2
        for left, top, right, bottom in answer["boxes"]:
            assert 0 <= left < right <= 120
            assert 0 <= top < bottom <= 90
            # 90 px became 73, so a patch of 32 px covers 32 x 90 / 73 = 39.5 px.
            assert {right - left, bottom - top} <= {39, 40}
    assert answers[0]["confidence"] == pytest.approx(answers[2]["confidence"], abs=1e-5)


def test_predict_merges_batches_without_changing_an_answer(
    gf: Run, bundle_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    focused: list[int] = []
    focus = GlanceFocus.focus

    def noted(self: GlanceFocus, look: Look, aim: Aim) -> Look:
        focused.append(look.count)
        return focus(self, look, aim)

    monkeypatch.setattr(GlanceFocus, "focus", noted)
    for number in range(4):
        pixels = np.random.default_rng(number % 2).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    (tmp_path / "bad.png").write_bytes(b"not a picture")
    sure = [answer["confidence"] for answer in gf("predict", bundle_folder, tmp_path, "--looks", 1, "--json").json[:2]]
    # Of each batch of two the same one leaves at the glance.
    words = ("predict", bundle_folder, tmp_path, "--batch-size", 2, "--json", "--thresholds", f"{sum(sure) / 2},0.999")
    found = {way: gf(*words, f"--{way}merge-batches").json for way in ("", "no-")}
    assert focused == [2, 2, 1, 1, 1, 1]
    assert len(found[""]) == 5
    for one, other in zip(found[""], found["no-"], strict=True):
        assert one.keys() == other.keys()
        for name in set(one) - {"confidence", "where", "top"}:
            assert one[name] == other[name]
        if "error" not in one:
            assert one["confidence"] == pytest.approx(other["confidence"], abs=1e-5)
    focused.clear()
    gf(*words)
    assert focused == [2, 2]  # there are several batches, so pooling is the default


def test_predict_does_not_merge_batches_that_have_a_deadline(gf: Run, bundle_folder: Path, pictures: Path) -> None:
    found = gf("predict", bundle_folder, pictures, "--merge-batches", "--deadline-ms", 1000)
    assert found.code == 2
    assert found.err.startswith("gf: a deadline is for one batch, but pooled batches wait for each other.")
    assert gf("predict", bundle_folder, pictures, "--batch-size", 1, "--deadline-ms", 1000).code == 0


def test_predict_prints_a_table_for_people(gf: Run, bundle_folder: Path, pictures: Path) -> None:
    done = gf("predict", bundle_folder, pictures / "a.png")
    assert done.code == 0
    assert "a.png" in done.out
    assert "out of looks" in done.out
    assert done.err == ""


def test_good_files_are_answered_and_bad_ones_listed(gf: Run, bundle_folder: Path, pictures: Path) -> None:
    (pictures / "empty.png").touch()
    (pictures / "text.jpg").write_text("I am not a picture")
    whole = (pictures / "a.png").read_bytes()
    (pictures / "half.png").write_bytes(whole[: len(whole) // 2])
    (pictures / "nothing").mkdir()
    names = ["a.png", "empty.png", "text.jpg", "half.png", "missing.png", "nothing", "b.jpg"]
    done = gf("predict", bundle_folder, *(pictures / name for name in names), "--json")
    assert done.code == 2
    answers = {Path(a["file"]).name: a for a in done.json}
    assert list(answers) == names
    assert [name for name, a in answers.items() if "label" in a] == ["a.png", "b.jpg"]
    for name, word in {
        "empty.png": "is empty",
        "text.jpg": "not an image",
        "half.png": "",
        "missing.png": "there is no file",
        "nothing": "there are no images in the folder",
    }.items():
        error = answers[name]["error"]
        assert name in error
        assert word in error
        assert f"gf: {error}" in done.err.splitlines()


def test_only_bad_files_give_errors_and_no_table(gf: Run, bundle_folder: Path, tmp_path: Path) -> None:
    done = gf("predict", bundle_folder, tmp_path / "missing.png")
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("gf: there is no file")


def test_a_picture_with_too_many_pixels_is_refused(gf: Run, bundle_folder: Path, pictures: Path) -> None:
    done = gf("predict", bundle_folder, pictures / "a.png", "--max-pixels", 10_000)
    assert done.code == 2
    assert "a.png" in done.err


def test_names_in_brackets_are_no_markup(gf: Run, bundle_folder: Path, pictures: Path) -> None:
    odd = pictures / "[bold] [" / "close].png"
    odd.parent.mkdir()
    (pictures / "a.png").rename(odd)
    done = gf("predict", bundle_folder, odd)
    assert done.code == 0
    assert "[bold] [/close].png" in "".join(line.strip("│ ").split("│")[0].strip() for line in done.out.splitlines())


def test_topk_names_the_likeliest_classes(gf: Run, bundle_folder: Path, pictures: Path) -> None:
    (answer,) = gf("predict", bundle_folder, pictures / "a.png", "--topk", 2, "--json").json
    assert len(answer["top"]) == 2
    assert answer["top"][0]["confidence"] >= answer["top"][1]["confidence"]
    (answer,) = gf("predict", bundle_folder, pictures / "a.png", "--topk", 50, "--json").json
    assert sum(t["confidence"] for t in answer["top"]) == pytest.approx(1, abs=1e-5)
    table = gf("predict", bundle_folder, pictures / "a.png", "--topk", 3).out
    assert all(name in table for name in ("cat", "dog", "eel"))


@pytest.mark.parametrize("words", [("0.0", "1.0"), ("0.0,1.0",), ("0.0", "--thresholds", "1.0")])
def test_thresholds_are_given_apart_with_commas_or_one_by_one(
    words: tuple[str, ...], gf: Run, bundle_folder: Path, pictures: Path
) -> None:
    (answer,) = gf("predict", bundle_folder, pictures / "a.png", "--json", "--thresholds", *words).json
    assert answer["looks"] == 1


def test_looks_and_thresholds_say_when_to_stop(gf: Run, bundle_folder: Path, pictures: Path) -> None:
    (answer,) = gf("predict", bundle_folder, pictures / "a.png", "--looks", 2, "--json").json
    assert (answer["looks"], len(answer["boxes"])) == (2, 1)
    words = ("--thresholds", 0.0, "--thresholds", 1.0, "--json")
    (answer,) = gf("predict", bundle_folder, pictures / "a.png", *words).json
    assert (answer["looks"], answer["sure"], answer["boxes"]) == (1, True, [])


def test_the_batch_size_changes_no_answer(gf: Run, bundle_folder: Path, pictures: Path) -> None:
    one, two = (gf("predict", bundle_folder, pictures, "--batch-size", n, "--json").json for n in (1, 2))
    assert [a["label"] for a in one] == [a["label"] for a in two]
    assert [a["confidence"] for a in one] == pytest.approx([a["confidence"] for a in two], abs=1e-5)


def colours(path: Path) -> set[str]:
    picture = Image.open(path).convert("RGB")
    return {"#{:02X}{:02X}{:02X}".format(*colour) for _, colour in picture.getcolors(2**24)}  # type: ignore[misc]


def test_draw_writes_a_picture_for_each_file(gf: Run, bundle_folder: Path, pictures: Path, tmp_path: Path) -> None:
    done = gf("predict", bundle_folder, pictures, "--draw", tmp_path / "deep" / "drawn", "--json")
    drawn = sorted((tmp_path / "deep" / "drawn").iterdir())
    assert [path.name for path in drawn] == ["00000-a.png", "00001-b.png", "00002-c.png"]
    assert UNKNOWN in colours(drawn[0])
    # The folder of c.png is named like a class, so whether each look was right is known.
    known = colours(drawn[2])
    assert UNKNOWN not in known
    assert RIGHT in known or WRONG in known
    assert (RIGHT in known) or done.json[2]["label"] != "cat"


def test_a_file_with_a_long_name_is_drawn_under_a_shorter_one(
    gf: Run, bundle_folder: Path, pictures: Path, tmp_path: Path
) -> None:
    long = (pictures / "a.png").rename(pictures / f"{'å' * 120}.png")
    assert gf("predict", bundle_folder, long, "--draw", tmp_path / "drawn").code == 0
    assert [path.name for path in (tmp_path / "drawn").iterdir()] == [f"00000-{'å' * 50}.png"]


def test_a_drawing_that_cannot_be_written_is_reported(
    gf: Run, bundle_folder: Path, pictures: Path, tmp_path: Path
) -> None:
    (tmp_path / "drawn" / "00000-a.png").mkdir(parents=True)  # a folder where the drawing would go
    done = gf("predict", bundle_folder, pictures / "a.png", "--draw", tmp_path / "drawn")
    assert done.code == 2
    assert "00000-a.png cannot be written: Is a directory" in done.err
    assert [path.name for path in (tmp_path / "drawn").iterdir()] == ["00000-a.png"]


def test_a_folder_to_draw_into_that_is_a_file_is_refused(gf: Run, bundle_folder: Path, pictures: Path) -> None:
    done = gf("predict", bundle_folder, pictures / "a.png", "--draw", pictures / "b.jpg")
    assert done.code == 2
    assert "cannot be made: File exists" in done.err


def test_a_picture_comes_from_standard_input(
    gf: Run, bundle_folder: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (expected,) = gf("predict", bundle_folder, pictures / "a.png", "--json").json
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((pictures / "a.png").read_bytes())))
    done = gf("predict", bundle_folder, "-", "--json", "--draw", tmp_path / "drawn")
    assert done.code == 0
    assert done.json == [{**expected, "file": "-"}]
    assert [path.name for path in (tmp_path / "drawn").iterdir()] == ["00000-stdin.png"]


def test_nothing_on_standard_input_is_reported(gf: Run, bundle_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    done = gf("predict", bundle_folder, "-")
    assert done.code == 2
    assert "the image on standard input is empty" in done.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--looks", 9), "gf: this network takes 1 to 3 looks, not 9."),
        (("--thresholds", 0.5), "gf: this network takes 3 looks, so it needs 2 thresholds, but got 1."),
        (("--looks", 2, "--budget-macs", 1e9), "gf: give thresholds, or a number of looks, or a budget"),
        (("--topk", 0), "gf: --topk must be a whole number from 1 to 1,000,000, but got 0."),
        (("--max-pixels", 0), "gf: --max-pixels must be a whole number from 64 to 17,179,869,184, but got 0."),
        (("--batch-size", 0), "gf: --batch-size must be a whole number from 1 to 65,536, but got 0."),
        (("-", "-"), "gf: standard input can be read only once"),
        (("--lokos", 3), "gf: there is no option named '--lokos'. Did you mean '--looks'"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(
    words: tuple[object, ...], sentence: str, gf: Run, bundle_folder: Path, pictures: Path
) -> None:
    done = gf("predict", bundle_folder, pictures / "a.png", *words)
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith(sentence)


def test_a_missing_bundle_is_reported(gf: Run, tmp_path: Path, pictures: Path) -> None:
    done = gf("predict", tmp_path / "none", pictures / "a.png")
    assert done.code == 2
    assert done.err.startswith(f"gf: there is no bundle at {tmp_path / 'none'}.")


def test_an_unknown_verb_gets_a_suggestion(gf: Run) -> None:
    done = gf("predcit")
    assert done.code == 2
    assert "predict" in done.out + done.err


@pytest.mark.parametrize("words", [("predict",), ("predict", "a", "b", "--looks", "x"), ("models", "--jsn")])
def test_a_wrong_word_is_reported(words: tuple[str, ...], gf: Run) -> None:
    done = gf(*words)
    assert done.code == 2
    assert done.out + done.err != ""


def test_the_version_is_printed(gf: Run) -> None:
    assert gf("--version").out.strip() == "0.1.0"


def test_a_checkpoint_of_the_paper_becomes_a_bundle_that_answers(
    gf: Run, official: types.ModuleType, tmp_path: Path, pictures: Path
) -> None:
    checkpoint, bundle = tmp_path / "model.pth.tar", tmp_path / "bundle"
    torch.save(official.checkpoint("mobilenetv3_large_100_96", told=False), checkpoint)
    done = gf("import", checkpoint, "-o", bundle)
    assert done.code == 2
    assert "does not say its model. Give it: --model" in done.err
    assert not bundle.exists()
    found = ("--model", "mobilenetv3_large_100", "--patch-px", 96, "--looks", 3)
    done = gf("import", checkpoint, "-o", bundle, *found, "--json")
    assert done.code == 0
    fact = done.json
    assert (fact["backbone"], fact["focus"], fact["looks"], fact["classes"]) == (
        "mobilenetv3_large_100",
        ["96"],
        3,
        1000,
    )
    assert len(fact["macs_after_look"]) == 3
    done = gf("predict", bundle, pictures / "a.png", "--json", "--topk", 5)
    assert done.code == 0
    assert len(done.json[0]["top"]) == 5
    done = gf("import", checkpoint, "-o", bundle, *found)
    assert done.code == 0
    assert "mobilenetv3_large_100, 96 px, 3 looks, 1000 classes, no thresholds" in " ".join(done.out.split())


def test_what_is_no_checkpoint_is_not_imported(gf: Run, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty.pth.tar").touch()
    for name, sentence in {
        "notes.txt": "is not a torch checkpoint, or it is damaged",
        "empty.pth.tar": "is empty",
        "none": "there is no checkpoint at",
        ".": "is a folder, not a checkpoint",
    }.items():
        done = gf("import", tmp_path / name, "-o", tmp_path / "bundle")
        assert done.code == 2
        assert sentence in done.err
    assert not (tmp_path / "bundle").exists()


@pytest.fixture
def class_folders(tmp_path: Path) -> Path:
    """pets/cat and pets/dog with two pictures each"""
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(2):
            Image.new("RGB", (40, 40), (80 * number, 0, 0)).save(tmp_path / "pets" / name / f"{number}.png")
    return tmp_path / "pets"


@pytest.mark.parametrize(("words", "holds"), [((), True), (("--in-memory",), True), (("--no-in-memory",), False)])
def test_no_in_memory_reads_the_files_in_every_epoch(
    words: tuple[str, ...], class_folders: Path, monkeypatch: pytest.MonkeyPatch, *, holds: bool
) -> None:
    started: list[TrainSettings] = []
    monkeypatch.chdir(class_folders.parent)
    monkeypatch.setattr(train_verb, "run_training", lambda settings, *_, **__: started.append(settings))
    with pytest.raises(SystemExit):
        main(["train", str(class_folders), "--backbone", "test_resnet", "--weights", "none", *words])
    (settings,) = started
    assert settings.data.in_memory is (words == ("--in-memory",))
    assert (settings.data.hold_mib > 0) is holds


def test_source_px_is_the_height_and_the_width_of_the_image_that_is_looked_at(class_folders: Path) -> None:
    options = TrainOptions(
        str(class_folders),
        backbone="test_resnet",
        weights="none",
        source_px=448,
        glance_px=96,
        focus=["96", "whole@160"],
    )
    network = settings_from(options).network
    assert (network.view.height_px, network.view.width_px) == (448, 448)
    assert (network.glance_px, network.focus) == (96, ("96", "whole@160"))
    # Sizes that are not named grow with it: 3/7 and 4/7 of the side, and the whole.
    fitted = settings_from(
        TrainOptions(str(class_folders), backbone="test_resnet", weights="none", source_px=448)
    ).network
    assert (fitted.glance_px, fitted.focus) == (192, ("0.8@256", "whole@448"))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--quick", "--thorough"), "gf: --quick and --thorough exclude each other."),
        (("--preset", "gf-resnet5-96"), "gf: there is no preset named 'gf-resnet5-96'. Did you mean 'gf-resnet50-96'"),
        (("--backbone", "resnet81"), "gf: there is no backbone named 'resnet81'. Did you mean 'resnet"),
        (("--backbone", "test_resnet", "--patch-px", 300), "gf: the view 300 is larger than the image (64 px)."),
        (("--patch-px", 64, "--focus", "64"), "gf: --focus and --patch-px both name the views of the focus looks."),
        (
            ("--backbone", "test_resnet", "--focus", "half"),
            "gf: focus names views such as 96 (a patch of 96 px as it is)",
        ),
        (("--source-px", 448, "--width-px", 448), "gf: --source-px is both --height-px and --width-px. Leave it out"),
        (("--source-px", 4), "gf: --source-px must be a whole number from 8 to 16,384, but got 4."),
        (("--backbone", "test_resnet", "--looks", 65), "gf: --looks must be a whole number from 1 to 64, but got 65."),
        (("--backbone", "test_resnet", "--stages", "4"), "gf: there is no stage named '4'."),
        (
            ("--backbone", "test_resnet", "--set", "aim.lrr=1"),
            "gf: there is no setting in aim named 'lrr'. Did",
        ),
        (
            ("--backbone", "test_resnet", "--processes", 0),
            "gf: --processes must be a whole number from 1 to ",
        ),
        (("--backbone", "test_resnet", "--weights", "none.pth"), "gf: there is no checkpoint at none.pth"),
        (
            ("--backbone", "test_resnet", "--batch-size", 1),
            "gf: --batch-size must be a whole number from 2 to 65,536, but got 1.",
        ),
    ],
)
def test_what_cannot_be_trained_is_reported(
    words: tuple[object, ...], sentence: str, gf: Run, class_folders: Path, tmp_path: Path
) -> None:
    done = gf("train", class_folders, "-o", tmp_path / "run", *words)
    assert done.code == 2
    assert done.out == ""
    assert " ".join(done.err.split()).startswith(sentence)


def test_data_that_is_nothing_gets_a_suggestion_or_a_sentence(gf: Run, tmp_path: Path) -> None:
    done = gf("train", "sings", "--backbone", "test_resnet", "-o", tmp_path / "run")
    assert done.code == 2
    assert done.err.startswith("gf: there is no data set named 'sings'. Did you mean 'signs'?")
    (tmp_path / "empty").mkdir()
    done = gf("train", tmp_path / "empty", "--backbone", "test_resnet", "-o", tmp_path / "run")
    assert done.code == 2
    assert "has no class folders" in done.err
    assert not (tmp_path / "run").exists()
