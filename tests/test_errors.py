"""A missing extra says the command that installs it, for the way in which this program was installed."""

import importlib.metadata
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import glancefocus
from glancefocus.errors import MissingEnvironment, MissingExtra, install_command

ROOT = Path(glancefocus.__file__).resolve().parents[2]


def test_in_a_clone_extras_are_installed_out_of_it() -> None:
    command = f"pip install -c constraints.txt -e '.[export]' (in the folder {ROOT})"
    assert install_command("export") == command
    assert str(MissingExtra("onnx", "export")) == f"this needs the package 'onnx'. Install it with: {command}."
    assert "make environment-litert, and use .venv-litert/bin/gf" in str(MissingEnvironment("x", "litert"))


@pytest.mark.parametrize(
    ("came_from", "expected"),
    [
        ("a clone", "pip install -c constraints.txt '.[export]' (in the folder {clone})"),
        ("a clone that is gone", "pip install 'glancefocus[export]'"),
        ("an index", "pip install 'glancefocus[export]'"),
    ],
)
def test_elsewhere_the_command_follows_from_what_pip_noted(came_from: str, expected: str, tmp_path: Path) -> None:
    packages, clone = tmp_path / "site-packages", tmp_path / "a clone"
    (packages / "glancefocus").mkdir(parents=True)
    (packages / "glancefocus" / "__init__.py").touch()
    shutil.copy(ROOT / "src" / "glancefocus" / "errors.py", packages / "glancefocus" / "errors.py")
    notes = packages / "glancefocus-0.1.0.dist-info"
    notes.mkdir()
    (notes / "METADATA").write_text("Metadata-Version: 2.1\nName: glancefocus\nVersion: 0.1.0\n")
    if came_from != "an index":
        (notes / "direct_url.json").write_text(json.dumps({"url": clone.as_uri(), "dir_info": {}}))
    if came_from == "a clone":
        clone.mkdir()
        for name in ("pyproject.toml", "constraints.txt"):
            (clone / name).touch()
    program = "from glancefocus.errors import install_command; print(install_command('export'))"
    env = {"PYTHONPATH": str(packages)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.strip() == expected.format(clone=clone)


def test_this_program_is_known_to_pip_under_its_name() -> None:
    assert importlib.metadata.version("glancefocus") == glancefocus.__version__
