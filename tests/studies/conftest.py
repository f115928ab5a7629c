"""Shared by the tests of studies: orders for networks that are trained in seconds."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from accelerate.state import AcceleratorState
from PIL import Image

from glancefocus.studies.catalogue import study_named
from glancefocus.studies.order import Order

SECONDS = (
    "data.scenes=[20,12,12]",
    "data.signs.height=96",
    "data.signs.width=96",
    "network.view.height_px=96",
    "network.view.width_px=96",
    "batch_size=10",
    "checkpoint_minutes=60",
    *(f"{stage}.epochs=1" for stage in ("backbone", "glance", "recognise", "aim", "finetune")),
)


@pytest.fixture(autouse=True)
def _fresh_accelerate() -> Iterator[None]:
    """accelerate keeps one state a process; every test starts with none."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLANCEFOCUS_CACHE", str(tmp_path_factory.getbasetemp() / "study-cache"))


@pytest.fixture(scope="session")
def studies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of studies that several tests share, so that each network is trained once."""
    return tmp_path_factory.mktemp("studies")


@pytest.fixture
def quick_order() -> Callable[..., Order]:
    """An order of a study at scale tiny, with networks of seconds."""

    def order(name: str, **more: Any) -> Order:
        return Order(study_named(name), **{"seeds": 1, "assignments": SECONDS, **more})

    return order


@pytest.fixture
def make_pictures() -> Callable[[Path], None]:
    """Writes a folder with two classes of a few pictures of noise, which is redder or greener."""

    def make(folder: Path) -> None:
        noise = np.random.default_rng(0)
        for channel, name in enumerate(("red", "green")):
            (folder / name).mkdir(parents=True)
            for number in range(12):
                pixels = noise.integers(0, 150, (72, 72, 3), dtype=np.uint8)
                pixels[..., channel] += 60
                Image.fromarray(pixels).save(folder / name / f"{number}.png")

    return make
