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
