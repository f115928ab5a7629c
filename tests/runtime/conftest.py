"""What the tests of runtimes share: kinds of networks, and graphs that are written once."""

import os
from pathlib import Path
from typing import Any

import pytest

VIEWS = ("48", "0.5@48", "whole@64")
PLACE = {"units": 16, "conv_channels": 4, "place": True}
KINDS: dict[str, dict[str, Any]] = {
    "recurrent": {},
    "cascaded": {"classifier": "cascaded", "first_answer": "own_head"},
    "other glance, two looks": {"glance_px": 48, "looks": 2},
    "several sizes": {"focus": ("32", "48")},
    "zoomed out": {"focus": ("0.5@48",)},
    "a cascade of resolutions": {"focus": ("whole@48", "whole@64"), "classifier": "summed"},
    "views of every kind": {"focus": VIEWS, "policy": PLACE},
    "views of every kind, cascaded": {
        "focus": VIEWS,
        "classifier": "cascaded",
        "first_answer": "own_head",
        "shared_encoder": True,
    },
    "views of every kind, summed": {"focus": VIEWS, "classifier": "summed", "policy": PLACE},
    "place, one view": {"policy": PLACE},
    "place for the classifier": {"focus": VIEWS, "classifier_place": True, "policy": PLACE},
    "without a glance": {"first_view": "centre", "policy": PLACE},
    "at drawn places": {"first_view": "random", "policy": {"units": 16, "conv_channels": 4, "kind": "random"}},
    "drawn first places, place for the classifier": {"first_view": "random", "classifier_place": True, "policy": PLACE},
    "clips": {"frames": 2, "shift_div": 4, "classifier": "cascaded", "first_answer": "own_head"},
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The changes that make a small network one of its kind."""
    return KINDS[request.param]


@pytest.fixture(scope="session")
def graph_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that the tests share, those of other workers included: writing a graph takes seconds, and the cache has a lock."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "graph-cache"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
