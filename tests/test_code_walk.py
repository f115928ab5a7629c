"""The modules that one prediction passes through: few enough to read. The list is the code walk in the documentation."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from PIL import Image

import glancefocus
from glancefocus.bundle.bundle import Bundle
from glancefocus.cli.main import main
from glancefocus.exits.curve import Latency

SOURCE = Path(glancefocus.__file__).parent
CONTRIBUTING = Path(__file__).parent.parent / "docs" / "contributing.md"
# Raise a limit only for a good reason: every module more is one more hop for a reader.
MOST_IN_BUNDLE_PREDICT = 12
MOST_IN_GF_PREDICT = 18


def modules_run(call: Callable[[], Any]) -> dict[str, set[str]]:
    """{module of ours: functions of it that ran} during a call. Nothing is imported in it: the call is made once before."""
    call()
    ran: dict[str, set[str]] = {}

    def note(frame: FrameType, event: str, argument: Any) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(SOURCE):
            ran.setdefault(str(file.relative_to(SOURCE)), set()).add(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return ran


def listed(ran: dict[str, set[str]]) -> str:
    lines = (f"{module}: {', '.join(sorted(functions))}" for module, functions in sorted(ran.items()))
    return f"{len(ran)} modules ran:\n" + "\n".join(lines)


def assert_the_walk_names(ran: dict[str, set[str]]) -> None:
    """The code walk in the documentation names every module that ran."""
    walk = CONTRIBUTING.read_text(encoding="utf-8").partition("## One prediction")[2].partition("\n## ")[0]
    assert [module for module in sorted(ran) if f"`{module}`" not in walk] == []


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.jpg")
    return tmp_path / "photo.jpg"


def test_bundle_predict_runs_few_modules(small_bundle: Callable[..., Bundle], photo: Path) -> None:
    bundle = small_bundle(thresholds=(0.9, 0.9, 0.0))
    ran = modules_run(lambda: bundle.predict(photo))
    assert {"loop.py", "outcome.py"} <= set(ran)
    assert len(ran) <= MOST_IN_BUNDLE_PREDICT, listed(ran)
    assert_the_walk_names(ran)


def test_gf_predict_runs_few_modules(
    small_bundle: Callable[..., Bundle], photo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # As real bundles are: with operating points, measured milliseconds, and options of the backbone.
    curve = [{"thresholds": [0.9, 0.9, 0.0], "mean_macs": 1e6, "accuracy": 0.5, "exits_per_look": [1, 1, 1]}]
    bundle = small_bundle(thresholds=(0.9, 0.9, 0.0), curve=curve, backbone_options={"drop_rate": 0.1})
    bundle.latencies.append(Latency("this CPU", 1, 1, 2.0, ((3.0,), (3.0,))))
    folder = bundle.save(photo.with_name("bundle"))

    def command() -> None:
        with pytest.raises(SystemExit) as end:
            main(["predict", str(folder), str(photo)])
        assert end.value.code == 0

    ran = modules_run(command)
    assert "photo.jpg" in capsys.readouterr().out
    assert {"loop.py", "outcome.py"} <= set(ran)
    assert len(ran) <= MOST_IN_GF_PREDICT, listed(ran)
    assert_the_walk_names(ran)
