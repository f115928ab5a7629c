"""The table that benchmarks/export_check.py writes from the output of `gf export --json`."""

import importlib
import types
from pathlib import Path

import pytest


@pytest.fixture
def export_check(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("export_check")


def test_a_row_shows_what_was_the_same(export_check: types.ModuleType) -> None:
    found = {
        "images": 200,
        "same_answers": 199,
        "same_looks": 197,
        "confidence_difference": 0.0289,
        "accuracy_before": 0.98,
        "accuracy_after": 0.985,
    }
    printed = {"compared": {"ways": {"stopping above thresholds": found}}, "bytes": 1_020_000}
    assert export_check.row("onnx", True, printed) == [
        *("onnx, int8", "200", "199", "197", "2.9e-02", "98.0 → 98.5", "1.02"),
    ]


def test_an_environment_that_was_not_made_is_shown(export_check: types.ModuleType) -> None:
    row = export_check.row("litert", False, None)
    assert row[:2] == ["litert", "environment not made"]
    assert len(row) == 7
