"""Learnt aims against aims that are not learnt, on hand-made answers and on a small network."""

import json
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from glancefocus.data.splits import MemorySplit
from glancefocus.errors import BadBundle
from glancefocus.evaluation.every_look import AimsCheck, aims_check, check_aims, noted_aims
from glancefocus.network.model import GlanceFocus


def after(glance: int, *focus: int, images: int = 200) -> NDArray[np.float64]:
    """(N, looks) right on the first images, this many after each look."""
    return np.stack([np.arange(images) < right for right in (glance, *focus)], axis=1).astype(np.float64)


def test_the_difference_is_that_of_the_focus_looks_on_average() -> None:
    checked = aims_check(after(100, 160, 180), after(100, 140, 160), after(100, 130, 180))
    assert checked.over_random[0] == pytest.approx(0.1, abs=1e-12)  # 20 and 20 of 200
    assert checked.over_centre[0] == pytest.approx(0.075, abs=1e-12)  # 30 and 0 of 200
    assert checked.better
    assert checked.accuracy_learnt == (0.5, 0.8, 0.9)
    assert checked.sentence.startswith("Learnt aims improve accuracy: +10.0 points (")


@pytest.mark.parametrize(
    ("random", "centre"),
    [((140, 160), (160, 180)), ((160, 180), (140, 160)), ((159, 179), (140, 160)), ((170, 190), (170, 190))],
    ids=["as the centre", "as random", "hardly better than random", "worse than both"],
)
def test_a_warning_follows_if_learnt_aims_are_not_better_than_both_others(
    random: tuple[int, int], centre: tuple[int, int]
) -> None:
    checked = aims_check(after(100, 160, 180), after(100, *random), after(100, *centre))
    assert not checked.better
    assert "not measurably better" in checked.sentence
    assert "--focus" in checked.sentence


def test_few_images_prove_nothing() -> None:
    assert not aims_check(after(0, 8, images=10), after(0, 6, images=10), after(0, 6, images=10)).better


@pytest.mark.parametrize("frames", [1, 2])
def test_a_network_is_checked_on_a_part_of_the_images_and_its_mode_stays(
    small_net: Callable[..., GlanceFocus], frames: int
) -> None:
    net = small_net(frames=frames)
    shape = (30, 3, 64, 64) if frames == 1 else (30, frames, 3, 64, 64)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    split = MemorySplit(images, torch.arange(30) % 3, net.settings.view)
    net.train()
    checked = check_aims(net, split, most=20)
    assert net.training
    net.eval()
    assert checked.images == 20
    assert len(checked.accuracy_learnt) == len(checked.accuracy_random) == 3
    assert checked == check_aims(net, split, most=20)  # the same draws every time


def test_a_bundles_notes_may_hold_anything() -> None:
    assert noted_aims({}) is None
    for damaged in ("good", {"sentence": 3, "better": True}, {"sentence": "good"}):
        with pytest.raises(BadBundle, match="notes.aims"):
            noted_aims({"aims": damaged})
    assert noted_aims({"aims": {"sentence": "good", "better": True}}) == AimsCheck(better=True, sentence="good")


def test_what_is_noted_in_a_bundle_is_read_back() -> None:
    checked = aims_check(after(100, 160, 180), after(100, 140, 160), after(100, 130, 180))
    assert noted_aims({"aims": json.loads(json.dumps(checked.to_plain()))}) == checked
