"""Phone runtimes, each in its own environment (docs/export.md): they answer as the network does."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glancefocus.bundle.bundle import Bundle
from glancefocus.export.contents import FORMATS
from glancefocus.export.deliver import export_bundle

KINDS: dict[str, dict[str, Any]] = {
    "recurrent": {},
    "several sizes": {"focus": ("32", "48")},
    "summed": {"focus": ("32", "0.5@48"), "classifier": "summed"},
    "clips": {"frames": 2, "shift_div": 4, "classifier": "cascaded", "first_answer": "own_head", "looks": 2},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("to", ["executorch", "litert"])
def test_a_phone_runtime_answers_as_the_network(
    small_bundle: Callable[..., Bundle], tmp_path: Path, to: str, kind: str
) -> None:
    missing = [name for name in FORMATS[to].packages if importlib.util.find_spec(name.partition(".")[0]) is None]
    if missing:
        pytest.skip(f"needs {missing[0]}, in an environment of its own: make environment-{to}")
    bundle = small_bundle(**KINDS[kind])
    views = bundle.settings.candidates
    bundle.thresholds = ((0.36, 0.34),) * 2 + ((0.0, 0.0),) if len(views) > 1 else (0.35,) * bundle.settings.looks
    about = export_bundle(bundle, tmp_path / "out", to)
    assert about["batch"] == 1
    if len(views) > 1:
        assert {candidate["graph"] for candidate in about["candidates"]} < {graph["name"] for graph in about["graphs"]}
    for found in about["compared"]["ways"].values():
        assert found["same_answers"] + found["undecided"] >= found["images"] == 32
        assert found["confidence_difference"] < 1e-5
