"""A finished run whose bundle was changed since: one sentence."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from glancefocus.bundle.bundle import Bundle
from glancefocus.cli.train_result import print_result
from glancefocus.errors import BadBundle

RIGHT: dict[str, Any] = {"validation_accuracy_per_look": [0.5, 0.6, 0.7]}


@pytest.mark.parametrize("odd", [None, 3, "x", [], {}, ["a"], {"sentence": 3}, {"sentence": "a", "points": [{"a": 1}]}])
@pytest.mark.parametrize("name", ["aims", "verdict", "validation_accuracy_per_look"])
def test_notes_of_another_kind_are_a_sentence(name: str, odd: Any, small_bundle: Callable[..., Bundle]) -> None:
    bundle = small_bundle(notes={**RIGHT, name: odd})
    harmless = (name, odd) in (("validation_accuracy_per_look", []), ("aims", {"sentence": "a", "points": [{"a": 1}]}))
    wanted = (
        nullcontext() if harmless else pytest.raises(BadBundle, match=r"^the bundle run.bundle is damaged: .*notes\.")
    )
    with wanted:
        print_result(bundle, Path("run"), as_json=False)
