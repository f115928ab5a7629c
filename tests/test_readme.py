"""What the README shows, runs: blocks marked `runnable` are run where a bundle, pictures and a checkpoint lie as it says.

Commands that train for long are only read, so that at least every word of them exists.
"""

import io
import re
import shlex
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

import glancefocus as gf
from glancefocus.bundle import Bundle
from glancefocus.cli import app, main
from glancefocus.network.glance_focus import GlanceFocus
from glancefocus.network.multiply_adds import count_costs

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|console)( runnable)?\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[str]:
    """The commands of a console block, with lines that end in a backslash joined."""
    return [line[2:] for line in text.replace("\\\n", " ").splitlines() if line.startswith("$ ")]


SNIPPETS = [text for kind, runnable, text in BLOCKS if kind == "python" and runnable]
COMMANDS = [line for kind, runnable, text in BLOCKS if kind == "console" and runnable for line in commands(text)]
SHOWN = [line for kind, _, text in BLOCKS if kind == "console" for line in commands(text) if line.startswith("gf ")]


@pytest.fixture(scope="module")
def place(
    tmp_path_factory: pytest.TempPathFactory, small_net: Callable[..., GlanceFocus], official: types.ModuleType
) -> Path:
    """A folder with everything that the README names."""
    folder = tmp_path_factory.mktemp("readme")
    net = small_net(classes=5, looks=3, view={"fit": "crop"})
    costs = count_costs(net.settings)
    curve = [{"thresholds": [0.5, 0.5, 0.0], "mean_macs": float(costs.macs_after_look[1]), "accuracy": 0.9}]
    classes = ("none", "30", "50", "80", "100")
    # The scenes of `signs` are drawn as they were for training: few and small ones here.
    drawn = {"source": "signs", "workers": 0, "scenes": [8, 24, 24], "signs": {"height": 96, "width": 96}}
    bundle = Bundle(net, classes, costs, (0.9, 0.8, 0.0), curve, notes={"data_settings": drawn})
    bundle.save(folder / "runs" / "signs" / "bundle")
    (folder / "photos").mkdir()
    for name in ("photo.jpg", "photos/a.jpg", "photos/b.jpg"):
        Image.effect_noise((120, 90), 60).convert("RGB").save(folder / name)
    torch.save(official.checkpoint("mobilenetv3_large_100_96"), folder / "gfnet_mobilenetv3.pth.tar")
    return folder


def test_the_readme_has_what_this_file_tests() -> None:
    assert len(SNIPPETS) >= 4
    assert len(COMMANDS) >= 10
    assert "<!-- results:demo:start -->" in README


@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_a_python_snippet_runs(snippet: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    exec(compile(snippet, "README.md", "exec"), {})


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs(
    command: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    line, _, redirected = command.partition(" < ")
    if redirected:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path(redirected).read_bytes())))
    if line.startswith("gf predict bundles/") and not Path("bundles").exists():
        run(next(other for other in COMMANDS if other.startswith("gf import ")))
    assert run(line) == 0
    captured = capsys.readouterr()
    assert captured.out
    assert captured.err == ""


def run(line: str) -> int:
    program, *words = shlex.split(line)
    assert program == "gf"
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(ended.value.code or 0)


@pytest.mark.parametrize("command", SHOWN)
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
