"""The examples in README and in the pages under docs/ run, page by page, in a folder that holds what `gf demo` leaves behind.

The demo's network is a tiny one here, and training commands get cheap settings. Examples that are not run are listed with the
reason; their options are still checked.
"""

import importlib.util
import io
import re
import shlex
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from PIL import Image

import glancefocus as gf
from glancefocus.bundle.bundle import Bundle
from glancefocus.cli.main import app, main
from glancefocus.data.clips import read_clip
from glancefocus.training.recipes import train_settings

ROOT = Path(__file__).parent.parent
PAGES = {
    page.relative_to(ROOT).as_posix(): page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}
LOOKS_OF_THE_DEMO = 4

NOT_RUN = {
    r"pip install ": "it would change the environment of the tests",
    r"make check": "it runs these tests",
    r"gf demo$": "a smaller one has been run before the first command",
    r"gf train .*--preset gf-mobilenet": "the paper's settings take days",
    r"gf train photos/ --(quick|backbone|patch-px|source-px|teacher|stages)": "tests/training has such options",
    r"gf train (signs --preset|gestures)": "tests/training trains such networks",
    r"gf train something-something": "the data is not here",
    r"gf train signs --height-px 960": "it takes an hour and 20 GB",
    r"gf train (scans/|signs --height-px 4096)": "tests/training/test_large_training.py has such runs",
    r"gf study \w+": "it takes minutes; tests/studies runs small ones",
    r"gf bench gf-resnet50-96": "a large network; tests/evaluation has small ones",
    r"gf bench .* --all": "it takes minutes; tests/evaluation measures a part of it",
    r"gf predict \S+ --camera 0$": "there may be no camera; the tests of the command have a made-up one",
    r"gf serve ": "it runs until it is stopped; tests/serving has servers",
    r"gf predict http": "it needs a server; tests/serving/test_client.py has one",
    r"import glancefocus as gf\n\nwith gf\.Client": "the same",
    r"gf predict .* --ray": "it needs the extra ray, which is not part of all; tests/serving/test_ray.py has its parts",
    r"from glancefocus\.serving\.ray_": "the same",
    r"bundle\.push_to_hub": "it needs an account; the tests of the hub have a server of their own",
}
"""Commands, and beginnings of Python examples, that are read only, as patterns, with the reason."""

TINY = "--height-px 128 --width-px 128 --batch-size 8 --rivals none" + "".join(
    f" --set {stage}.epochs=1" for stage in ("backbone", "glance", "recognise")
)
SMALL = "--backbone test_resnet --glance-px 32 --patch-px 32 --looks 2"
CHEAPER = {
    r"gf train photos/ --resume": "",
    r"gf train photos/": f"--weights none {SMALL} {TINY} --set point.epochs=1",
    r"gf train clips/": f"--weights none {SMALL} {TINY} --set aim.epochs=1",
    r"gf train signs": f"{SMALL} --scenes 24 24 24 {TINY} --set aim.epochs=1",
    r"gf export .* --int8": "--max-drop 100",
}
"""Options that make a command cheap enough for a test, for the first pattern that fits; its own options come first."""

# Runtimes keep threads of their own, which do not go well with those of other tests.
IN_A_PROCESS_OF_ITS_OWN = r"^gf bench |^gf export | --runtime |^python "
NEEDS_A_PROCESS_OF_ITS_OWN = r"onnxruntime|runtime="


def examples(page: Path) -> list[tuple[str, str]]:
    """(python or console, text) of every example of a page; a console block gives one for each command."""
    found = []
    text = page.read_text(encoding="utf-8")
    for kind, block in re.findall(r"^```(python|console)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL):
        if kind == "python":
            found.append((kind, block))
        else:
            lines = block.replace("\\\n", " ").splitlines()
            found += [(kind, re.sub(r"\s+", " ", line[2:])) for line in lines if line.startswith("$ ")]
    return found


EXAMPLES = {name: examples(page) for name, page in PAGES.items()}
COMMANDS = sorted({text for page in EXAMPLES.values() for kind, text in page if kind == "console"})


def reason_not_to_run(example: str) -> str | None:
    return next((reason for pattern, reason in NOT_RUN.items() if re.match(pattern, example)), None)


def cheap(command: str) -> str:
    """The command with options that make it cheap, in place of those that make it expensive."""
    more = next((words for pattern, words in CHEAPER.items() if re.match(pattern, command)), "")
    command = re.sub(r"--backbone \S+", "--backbone test_resnet", command)
    words = shlex.split(more)
    for option in re.findall(r"--[a-z-]+", command):
        if option in words and option != "--set":
            place = words.index(option)
            following = next((n for n, word in enumerate(words) if n > place and word.startswith("--")), len(words))
            del words[place:following]
    return " ".join([command, *words])


def tiny_demo() -> object:
    """Settings of a demo of seconds, with as many looks as the real one."""
    spec = importlib.util.spec_from_file_location("tiny_run", Path(__file__).parent / "training" / "tiny_run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    data = {"scenes": [24, 30, 30]}
    network = {"looks": LOOKS_OF_THE_DEMO}
    return module.tiny_settings(data=data, network=network, aim={"epochs": 1}, checkpoint_minutes=60)


@pytest.fixture(scope="module")
def place(
    tmp_path_factory: pytest.TempPathFactory,
    small_bundle: Callable[..., Bundle],
    make_video: Callable[..., Path],
    official: types.ModuleType,
) -> Iterator[Path]:
    """A folder after `gf demo`, with the pictures, the clips and the checkpoint that the pages name."""
    folder = tmp_path_factory.mktemp("examples")
    AcceleratorState._reset_state(reset_partial_state=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLANCEFOCUS_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.chdir(folder)
        patch.setattr("glancefocus.cli.demo.demo_settings", lambda seed: tiny_demo())
        assert run("gf demo") == 0
        patch.undo()
        patch.setenv("GLANCEFOCUS_CACHE", str(tmp_path_factory.mktemp("cache")))
        torch.save(official.checkpoint("mobilenetv3_large_100_96"), folder / "gfnet_mobilenetv3.pth.tar")
        small_bundle(frames=4, classifier="cascaded").save(folder / "runs" / "gestures" / "bundle")
        clip = make_video(folder / "clip.mp4", frames=6)
        (folder / "folder-of-frames").mkdir()
        for number, picture in enumerate(read_clip(clip, 6, lambda picture: picture).frames):
            picture.save(folder / "folder-of-frames" / f"{number}.png")
        write_pictures(folder / "photos")
        Image.radial_gradient("L").resize((2400, 1800)).convert("RGB").save(folder / "scan.png", compress_level=1)
        for number in range(12):
            kind = folder / "clips" / ("wave" if number % 2 else "nod")
            kind.mkdir(parents=True, exist_ok=True)
            make_video(kind / f"{number}.mp4", frames=8 + number)
        yield folder
    AcceleratorState._reset_state(reset_partial_state=True)


def write_pictures(folder: Path) -> None:
    """A folder for each of three classes, whose pictures have a colour of their own."""
    noise = np.random.default_rng(0)
    for channel, name in enumerate(("red", "green", "blue")):
        (folder / name).mkdir(parents=True)
        for number in range(12):
            pixels = noise.integers(0, 120, (140, 150, 3), dtype=np.uint8)
            pixels[..., channel] += 100
            Image.fromarray(pixels).save(folder / name / f"{number}.jpg")


def run(line: str) -> int:
    program, *words = shlex.split(line)
    assert program == "gf"
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(ended.value.code or 0)


def test_the_pages_have_the_examples_that_this_file_tests() -> None:
    run_here = [text for page in EXAMPLES.values() for _, text in page if reason_not_to_run(text) is None]
    assert len(run_here) >= 45
    for page in (
        "README.md",
        "docs/index.md",
        "docs/train.md",
        "docs/budgets.md",
        "docs/video.md",
        "docs/large.md",
        "docs/fast.md",
        "docs/export.md",
    ):
        assert any(reason_not_to_run(text) is None for _, text in EXAMPLES[page]), f"{page} has no example that is run"
    every = [text for page in EXAMPLES.values() for _, text in page]
    for pattern in (*NOT_RUN, *CHEAPER):
        assert any(re.match(pattern, text) for text in every), f"no example is like {pattern}"


def test_thresholds_in_the_examples_are_as_many_as_the_demos_network_needs() -> None:
    assert train_settings("signs").network.looks == LOOKS_OF_THE_DEMO


def test_make_has_the_targets_that_the_pages_name() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    named = {
        word
        for page in PAGES.values()
        for word in re.findall(r"^    make (\w+) ", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert named
    assert named <= set(targets)


def test_the_demo_leaves_a_bundle_a_report_and_scenes_where_the_pages_say(place: Path) -> None:
    bundle = gf.load(place / "runs" / "signs" / "bundle")
    assert (place / "demo" / "report.html").exists()
    scenes = sorted(path.relative_to(place / "demo" / "scenes") for path in (place / "demo" / "scenes").rglob("*.png"))
    assert {path.parts[0] for path in scenes} == set(bundle.classes)
    assert all(path.name in ("1.png", "2.png", "3.png", "4.png") for path in scenes)


ALREADY_RUN: set[str] = set()
"""Pages repeat a few examples; each is run once in a process."""


@pytest.mark.parametrize("page", [name for name, found in EXAMPLES.items() if found])
def test_the_examples_of_a_page_run_one_after_the_other(
    page: str, place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    for kind, text in EXAMPLES[page]:
        if reason_not_to_run(text) is not None or text in ALREADY_RUN:
            continue
        ALREADY_RUN.add(text)
        if kind == "python":
            run_python(text, page)
        else:
            run_command(cheap(text), monkeypatch, capfd)


def run_python(text: str, page: str) -> None:
    if re.search(NEEDS_A_PROCESS_OF_ITS_OWN, text):
        finished = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
        assert finished.returncode == 0, f"{page}: {text}\n{finished.stderr}"
    else:
        exec(compile(text, page, "exec"), {})


def run_command(command: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    line, _, redirected = command.partition(" < ")
    if re.search(IN_A_PROCESS_OF_ITS_OWN, command):
        words = shlex.split(line)[1:]
        words = words if command.startswith("python ") else ["-m", "glancefocus", *words]
        finished = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
        assert finished.returncode == 0, f"{command}: {finished.stdout}{finished.stderr}"
        return
    if redirected:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path(redirected).read_bytes())))
    AcceleratorState._reset_state(reset_partial_state=True)
    code = run(line)
    out, err = capfd.readouterr()
    assert code == 0, f"{command}: {out}{err}"
    assert out or err or " -o " in command, command
    assert "Traceback" not in err


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("gf ")])
def test_every_option_of_a_command_exists(command: str) -> None:
    words = shlex.split(command.partition(" < ")[0])[1:]
    if words != ["--help"]:
        app.parse_args(words, exit_on_error=False, print_error=False)


def test_the_sentence_for_a_missing_file_is_the_one_shown(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    with pytest.raises(gf.GlancefocusError) as caught:
        gf.load("runs/signs/bundle").predict("missing.jpg")
    for page in ("README.md", "docs/predict.md"):
        assert f"gf: {caught.value}" in PAGES[page].read_text(encoding="utf-8")


def test_the_readme_has_one_table_with_accuracy_multiply_adds_and_milliseconds() -> None:
    text = PAGES["README.md"].read_text(encoding="utf-8")
    table = text.partition("<!-- results:demo:start -->")[2].partition("<!-- results:demo:end -->")[0]
    head = next(line for line in table.splitlines() if line.startswith("|"))
    assert [word in head for word in ("accuracy", "multiply-adds", "milliseconds")] == [True] * 3
    assert "| **glancefocus** |" in table


def test_files_that_the_pages_link_to_exist() -> None:
    for document in PAGES.values():
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_what_faithfulness_names_exists() -> None:
    """`package: name` is defined in that package or module, `test_...` is a test, `.../test_....py` is a file of tests."""
    text = PAGES["docs/faithfulness.md"].read_text(encoding="utf-8")
    source = {path: path.read_text(encoding="utf-8") for path in (ROOT / "src" / "glancefocus").rglob("*.py")}
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    names = re.findall(r"`(\w+): ([\w.]+)`", text)
    for cell in re.findall(r"^\|[^|]*\|([^|]*)\|", text, flags=re.MULTILINE):
        package = ""
        for named, name in re.findall(r"`(?:(\w+): )?([\w.]+)`", re.sub(r"\([^)]*\)", "", cell)):
            package = (
                named or package
            )  # further names of a cell are in the same package; those in brackets are settings
            names += [(package, name)] if package else []
    assert len(names) > 100
    for package, name in names:
        inside = [
            (path, code)
            for path, code in source.items()
            if path.relative_to(ROOT / "src" / "glancefocus").parts[0] in (package, f"{package}.py")
        ]
        *classes, word = name.split(".")
        defined = rf"^\s*(?:def|class) {word}\b|^\s*{word}\b[^\n(]*[:=]"
        found = [code for path, code in inside if path.stem == word or re.search(defined, code, flags=re.MULTILINE)]
        found = [code for code in found if all(f"class {each}" in code for each in classes)]
        assert found, f"there is no {name} in {package}"
    named = re.findall(r"`(test_\w+)`", text)
    assert len(named) > 30
    for name in named:
        assert f"def {name}(" in tests, f"there is no test {name}"
    for path in re.findall(r"`((?:\w+/)?test_\w+\.py)`", text):
        assert (ROOT / "tests" / path).exists(), path


def test_files_that_the_pages_on_the_code_name_exist() -> None:
    """Files and folders in backticks, and `name` in `file`; so that the pages follow the code."""
    for page in ("docs/contributing.md", "docs/security.md", "docs/how-it-works.md"):
        text = PAGES[page].read_text(encoding="utf-8")
        for other in ("`predict.py`", "`site/`"):  # of an exported folder; made by `make docs`
            text = text.replace(other, "")
        for path in re.findall(r"`((?:[\w.]+/)*\w+\.py|(?:src|tests|benchmarks|environments)/[\w/]*|\w+/)`", text):
            places = (ROOT / path, ROOT / "src" / "glancefocus" / path)
            assert any(file.exists() for file in places), f"{page} names {path}"
        for name, path in re.findall(r"`(\w+)`(?: and to `\w+`)? (?:in|of|\()\s?`([\w/]+\.py)`", text):
            source = (ROOT / "src" / "glancefocus" / path).read_text(encoding="utf-8")
            assert re.search(rf"\b{name}\b", source), f"{path} has no {name}, which {page} names"


def test_pages_that_the_code_names_exist() -> None:
    files = [path for folder in ("src", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    named = {
        (path, page) for path in files for page in re.findall(r"docs/[\w-]+\.md", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 10
    for path, page in named:
        assert (ROOT / page).exists(), f"{path.name} names {page}"
