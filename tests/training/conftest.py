"""Settings of a run of seconds, for the tests of training."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from glancefocus.training.settings import TrainSettings

TINY_RUN = Path(__file__).with_name("tiny_run.py")


@pytest.fixture(scope="session")
def tiny_settings() -> Callable[..., TrainSettings]:
    """Makes the settings of tiny_run.py, with changes."""
    spec = importlib.util.spec_from_file_location("tiny_run", TINY_RUN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    settings: Callable[..., TrainSettings] = module.tiny_settings
    return settings


@pytest.fixture(scope="session")
def tiny_run() -> types.ModuleType:
    """tiny_run.py: a run of seconds."""
    spec = importlib.util.spec_from_file_location("tiny_run", Path(__file__).parent / "tiny_run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tiny_world(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The scenes are drawn once for all runs of a session."""
    monkeypatch.setenv("GLANCEFOCUS_CACHE", str(tmp_path_factory.getbasetemp() / "tiny-world"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
