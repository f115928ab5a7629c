"""Whatever is given to an option: an answer or one sentence with exit code 2. GLANCEFOCUS_FUZZ=2000 tries as many commands."""

import io
import os
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from glancefocus.bundle.bundle import Bundle
from glancefocus.cli import train as train_command
from glancefocus.cli.main import main

EXAMPLES = os.environ.get("GLANCEFOCUS_FUZZ")
FUZZ = settings(
    max_examples=60 if EXAMPLES is None else int(EXAMPLES),
    derandomize=EXAMPLES is None,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
VALUES = st.sampled_from(
    (
        *("0", "1", "-1", "2", "3", "8", "64", "65536", "1e3", "1.5", "-0.0", "0.5", "1e-320", "1e30", "1e400", "9" * 5000),
        *("nan", "inf", "-inf", "", " ", "a", "None", "true", "0x10", "1_000", "１", "1,2", "0.5,0.5", "9223372036854775808"),
        *("none", "eager", "onnx", "auto", "all", "val", "test_resnet", "test_resnet.x", "hf-hub:a/b", "hf://a/b", "pretrained"),
        *("/", "/dev/null", "/dev/zero", "/proc/self/mem", "x" * 300, "a\nb", "\x1b[31m", "\udcff", "..", "-", "--", "="),
        *("recognise.epochs=nan", "network.view.std=[0,0,0]", "aim.lr=-1", "network.looks=1.5", "seed=1e99", "data.augment=3"),
    )
) | st.text(st.characters(blacklist_characters="\0"), max_size=20)  # fmt: skip

OPTIONS = {
    "predict": "looks thresholds budget-macs budget-ms deadline-ms topk batch-size max-pixels max-frames threads json csv",
    "evaluate": "split batch-size threads workers max-bad-files rivals light-weights",
    "budget": "macs ms solver score on split batch-size threads workers max-bad-files calibrate curve",
    "bench": "threads budget-macs backbone set split light-policy light-weights",
    "export": "to images max-images int8 calibrate max-drop",
    "import": "model patch-px looks",
    "train": "quick thorough preset backbone weights start stages rounds glance-px focus patch-px looks frames source-px "
    "height-px width-px fit flip crop shift-px in-memory max-bad-files scenes batch-size precision "
    "accumulation workers resume seed rivals set track",
}


@pytest.fixture(scope="module")
def place(small_bundle: Callable[..., Bundle], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The current folder, with a bundle and a data set of its classes; runs are planned and not trained."""
    folder = tmp_path_factory.mktemp("options")
    bundle = small_bundle(thresholds=(0.5, 0.5, 0.0))
    bundle.save(folder / "bundle")
    for name in bundle.classes or ():
        for number in range(3):
            (folder / "data" / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((64, 64, 3), 50 * number, np.uint8)).save(folder / "data" / name / f"{number}.png")

    def planned(*_: Any, **__: Any) -> None:
        return None

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("GLANCEFOCUS_CACHE", str(folder / "cache"))
        patch.setattr(train_command, "run_training", planned)
        yield folder


def words_of(verb: str) -> list[str]:
    """A command that is right, and ends soon."""
    return {
        "predict": ["predict", "bundle", "data"],
        "evaluate": ["evaluate", "bundle", "data", "--no-latency", "--rivals", "none"],
        "budget": ["budget", "bundle", "data", "--no-store"],
        "bench": ["bench", "bundle", "--exits", "0.5,0.3,0.2", "--rounds", "1", "--batch", "1", "--runtime", "eager"],
        "export": ["export", "bundle", "-o", "exported"],
        "import": ["import", "bundle/model.safetensors", "-o", "imported"],
        "train": ["train", "data", "--weights", "none"],
    }[verb]


@pytest.mark.parametrize("verb", ["predict", "evaluate", "bench", "train"])
def test_the_commands_are_right_without_more_options(verb: str, place: Path, gf: Callable[..., Any]) -> None:
    gf(*words_of(verb))


@FUZZ
@given(data=st.data())
def test_any_value_of_any_option(data: st.DataObject, place: Path) -> None:
    verb = data.draw(st.sampled_from(sorted(OPTIONS)))
    words = words_of(verb)
    for option in data.draw(st.lists(st.sampled_from(OPTIONS[verb].split()), min_size=1, max_size=3, unique=True)):
        words += data.draw(st.sampled_from(([f"--{option}={data.draw(VALUES)}"], [f"--{option}", data.draw(VALUES)])))
    printed, out = io.StringIO(), io.StringIO()
    with redirect_stderr(printed), redirect_stdout(out), pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code in (0, 2), (words, printed.getvalue())
    assert ended.value.code == 0 or printed.getvalue().strip(), words
    assert "Traceback" not in printed.getvalue(), words
