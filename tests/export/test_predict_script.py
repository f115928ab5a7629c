"""predict.py of an exported folder: it runs without torch and without glancefocus, and answers as the bundle does."""

import ast
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from glancefocus.bundle.bundle import Bundle
from glancefocus.export import predict
from glancefocus.export.contents import FORMATS

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


def test_a_bad_file_is_reported_and_the_others_are_answered(onnx_folder: Path, grey: Path, tmp_path: Path) -> None:
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


def test_the_program_is_copied_byte_for_byte(onnx_folder: Path) -> None:
    assert (onnx_folder / "predict.py").read_bytes() == Path(predict.__file__).read_bytes()


def test_the_program_has_a_class_for_the_runtime_of_every_format() -> None:
    assert predict.RUNTIMES.keys() == FORMATS.keys()
    for name, one in FORMATS.items():
        assert f"{name}  {one.runtime}" in (predict.__doc__ or "")


def test_the_program_imports_a_runtime_only_where_it_is_used() -> None:
    tree = ast.parse(Path(predict.__file__).read_text(encoding="utf-8"))
    assert imported(tree.body) == {"numpy", "PIL"}
    inside = {
        node.name: imported(list(ast.walk(node)))
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    assert {name: packages for name, packages in inside.items() if packages} == {
        "OnnxGraphs": {"onnxruntime"},
        "OpenvinoGraphs": {"openvino"},
        "ExecutorchGraphs": {"executorch", "torch"},
        "LitertGraphs": {"ai_edge_litert"},
    }


def imported(nodes: Sequence[ast.AST]) -> set[str]:
    """Packages outside the standard library that these statements import."""
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names)
