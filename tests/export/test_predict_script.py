"""predict.py of an exported folder: it runs where there is neither torch nor glancefocus, and answers as the bundle does."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from glancefocus.bundle.bundle import Bundle
from glancefocus.export.formats import FORMATS
from glancefocus.export.script import predict_script

WITHOUT_OURS = """
import runpy, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in sys.stdlib_module_names | {"numpy", "PIL", "onnxruntime", "_distutils_hack"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(folder: Path, *words: object) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, lines of JSON, and standard error of predict.py without anything else that is installed here."""
    command = [sys.executable, "-c", WITHOUT_OURS, str(folder / "predict.py"), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder.parent, check=False)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_it_answers_as_the_bundle_without_torch(onnx_folder: Path, exported_bundle: Bundle, pictures: Path) -> None:
    code, lines, err = run(onnx_folder, pictures, "--batch", 7)
    assert (code, err) == (0, "")
    files = sorted(pictures.rglob("*.png"))
    outcome = exported_bundle.predict(files)
    assert len(set(outcome.looks.tolist())) > 1
    assert [line["file"] for line in lines] == [str(file) for file in files]
    assert [line["label"] for line in lines] == outcome.label
    assert [line["looks"] for line in lines] == outcome.looks.tolist()
    assert [line["cost_macs"] for line in lines] == outcome.cost_macs.tolist()
    assert [line["confidence"] for line in lines] == pytest.approx(outcome.confidence.tolist(), abs=1e-5)


def test_a_bad_file_is_told_and_the_others_are_answered(onnx_folder: Path, grey: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no picture")
    macs = json.loads((onnx_folder / "glancefocus.json").read_text())["cheapest"]["mean_macs"]
    code, lines, _ = run(onnx_folder, tmp_path / "broken.png", grey, tmp_path / "absent.png", "--budget-macs", macs)
    assert code == 2
    assert ["error" in line for line in lines] == [True, False, True]
    assert (lines[1]["looks"], lines[1]["cost_macs"], lines[1]["boxes"]) == (1, macs, [])


def test_a_budget_below_one_glance_is_refused(onnx_folder: Path, grey: Path) -> None:
    code, lines, err = run(onnx_folder, grey, "--budget-macs", 1)
    assert (code, lines) == (2, [])
    assert "a budget of 1 multiply-adds is less than one glance" in err


@pytest.mark.parametrize("to", FORMATS)
def test_the_script_needs_its_own_runtime_only(to: str) -> None:
    tree = ast.parse(predict_script(FORMATS[to]))
    names = [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    others = {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names)
    runtime = {"onnx": {"onnxruntime"}, "openvino": {"openvino"}, "litert": {"ai_edge_litert"}}
    assert others == {"numpy", "PIL"} | runtime.get(to, {"executorch", "torch"})
