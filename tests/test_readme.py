"""What the README shows, runs: its commands one after the other, in a folder that holds what `gf demo` leaves behind.

The demo's network is a tiny one here. Commands that are not run are listed with the reason; at least every word of them exists.
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

import pytest
import torch
from accelerate.state import AcceleratorState

import glancefocus as gf
from glancefocus.bundle.bundle import Bundle
from glancefocus.cli.main import app, main
from glancefocus.data.clips import read_clip
from glancefocus.training.recipes import train_settings

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|console)( runnable)?\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
LOOKS_OF_THE_DEMO = 4

NOT_RUN = {
    r"pip install ": "it would change the environment of the tests",
    r"gf demo$": "a smaller one has been run before the first command",
    r"gf train ": "it trains for minutes to days, on data that is not here; tests/training runs tiny trainings",
    r"gf predict \S+ --camera 0$": "there may be no camera; tests/test_cli_predict.py has a made-up one",
}
"""Commands that are read only, as patterns, with the reason."""

# Runtimes keep threads of their own, which do not go well with those of other tests.
IN_A_PROCESS_OF_ITS_OWN = r"^gf bench |^gf export | --runtime "


def commands(text: str) -> list[str]:
    """The commands of a console block, with lines that end in a backslash joined."""
    return [line[2:] for line in text.replace("\\\n", " ").splitlines() if line.startswith("$ ")]


SNIPPETS = [text for kind, runnable, text in BLOCKS if kind == "python" and runnable]
COMMANDS = [line for kind, _, text in BLOCKS if kind == "console" for line in commands(text)]


def reason_not_to_run(command: str) -> str | None:
    return next((reason for pattern, reason in NOT_RUN.items() if re.match(pattern, command)), None)


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
    """A folder after `gf demo`, with the checkpoint and the clips that the README names."""
    folder = tmp_path_factory.mktemp("readme")
    AcceleratorState._reset_state(reset_partial_state=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLANCEFOCUS_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.chdir(folder)
        patch.setattr("glancefocus.cli.demo.demo_settings", lambda seed: tiny_demo())
        assert run("gf demo") == 0
        torch.save(official.checkpoint("mobilenetv3_large_100_96"), folder / "gfnet_mobilenetv3.pth.tar")
        small_bundle(frames=4, classifier="cascaded").save(folder / "runs" / "gestures" / "bundle")
        clip = make_video(folder / "clip.mp4", frames=6)
        (folder / "folder-of-frames").mkdir()
        for number, picture in enumerate(read_clip(clip, 6, lambda picture: picture).frames):
            picture.save(folder / "folder-of-frames" / f"{number}.png")
        yield folder
    AcceleratorState._reset_state(reset_partial_state=True)


def test_the_readme_has_what_this_file_tests() -> None:
    assert len(SNIPPETS) >= 4
    assert len([command for command in COMMANDS if reason_not_to_run(command) is None]) >= 20
    assert "<!-- results:demo:start -->" in README
    for pattern in NOT_RUN:
        assert any(re.match(pattern, command) for command in COMMANDS), f"no command is like {pattern}"


def test_thresholds_in_the_readme_are_as_many_as_the_demos_network_needs() -> None:
    assert train_settings("signs").network.looks == LOOKS_OF_THE_DEMO


def test_make_has_what_the_readme_names() -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert set(re.findall(r"^    make (\w+)", README, flags=re.MULTILINE)) <= set(targets)


def test_the_demo_leaves_a_bundle_a_report_and_scenes_where_the_readme_says(place: Path) -> None:
    bundle = gf.load(place / "runs" / "signs" / "bundle")
    assert (place / "demo" / "report.html").exists()
    scenes = sorted(path.relative_to(place / "demo" / "scenes") for path in (place / "demo" / "scenes").rglob("*.png"))
    assert {path.parts[0] for path in scenes} == set(bundle.classes)
    assert all(path.name in ("1.png", "2.png", "3.png", "4.png") for path in scenes)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_a_python_snippet_runs(snippet: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    exec(compile(snippet, "README.md", "exec"), {})


def test_the_commands_run_one_after_the_other(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    for command in COMMANDS:
        if reason_not_to_run(command) is not None:
            continue
        if command.startswith("python ") or re.search(IN_A_PROCESS_OF_ITS_OWN, command):
            words = shlex.split(command)[1:]
            words = words if command.startswith("python ") else ["-m", "glancefocus.cli.main", *words]
            done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
            continue
        line, _, redirected = command.partition(" < ")
        if redirected:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path(redirected).read_bytes())))
        code = run(line)
        out, err = capsys.readouterr()
        assert code == 0, f"{command}: {out}{err}"
        assert out or " -o " in command, command
        assert "Traceback" not in err


def run(line: str) -> int:
    program, *words = shlex.split(line)
    assert program == "gf"
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(ended.value.code or 0)


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("gf ")])
def test_every_word_of_a_command_exists(command: str) -> None:
    words = shlex.split(command.partition(" < ")[0])[1:]
    if words != ["--help"]:
        app.parse_args(words, exit_on_error=False, print_error=False)


def test_the_sentence_for_a_missing_file_is_the_one_shown(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    with pytest.raises(gf.GlancefocusError) as caught:
        gf.load("runs/signs/bundle").predict("missing.jpg")
    assert f"gf: {caught.value}" in README


def test_files_that_the_documents_link_to_exist() -> None:
    for document in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_what_faithfulness_names_exists() -> None:
    text = (ROOT / "docs" / "faithfulness.md").read_text(encoding="utf-8")
    named, file = 0, ""
    for path, test in re.findall(r"`([\w/]*\.py)?::(test_\w+)`", text):
        file = path or file
        assert f"def {test}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), f"{file} has no {test}"
        named += 1
    assert named > 30
    for path, names in re.findall(r"`([\w/]+\.py): ([\w.]+)`", text):
        found = [p for p in (ROOT / "src" / "glancefocus").rglob("*.py") if str(p).endswith(f"/{path}")]
        assert found, path
        assert names.rpartition(".")[2] in found[0].read_text(encoding="utf-8"), f"{path} has no {names}"
