"""Milliseconds of looking: sums by hand, and a table that is measured on this device."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from glancefocus.bundle.bundle import Bundle
from glancefocus.bundle.files import read_latency
from glancefocus.errors import BadSetting
from glancefocus.evaluation.latency import measure_latency
from glancefocus.exits.curve import Latency, patches_of
from glancefocus.machine import device_name

# A glance of 2 ms; look 2 takes 3 ms, look 3 takes 5 ms.
ONE_SIZE = Latency("a chip", 2, 1, 2.0, ((3.0,), (5.0,)))
# The same with patches of two sizes: 3 or 4 ms, then 5 or 7 ms.
TWO_SIZES = Latency("a chip", 2, 1, 2.0, ((3.0, 4.0), (5.0, 7.0)))


def test_leaving_after_each_look_takes_all_looks_so_far_with_the_largest_patches() -> None:
    assert ONE_SIZE.ms_after_look == (2.0, 5.0, 10.0)
    assert TWO_SIZES.ms_after_look == (2.0, 6.0, 13.0)


def test_every_sequence_of_sizes_has_its_time_level_by_level() -> None:
    assert ONE_SIZE.ms_of_tree() == (2.0, 5.0, 10.0)
    # small, large; small small, small large, large small, large large
    assert TWO_SIZES.ms_of_tree() == (2.0, 5.0, 6.0, 10.0, 12.0, 11.0, 13.0)


def test_a_network_that_only_glances_takes_one_glance() -> None:
    glance = Latency("a chip", 1, 1, 2.0, ())
    assert glance.ms_of_tree() == glance.ms_after_look == (2.0,)
    assert glance.mean_ms({"exits_per_look": [7]}) == 2.0


def test_the_mean_of_an_operating_point_counts_who_comes_to_each_look() -> None:
    # Ten images, six go on to look 2 and two of them to look 3: 2 + (6 x 3 + 2 x 5) / 10.
    assert ONE_SIZE.mean_ms({"exits_per_look": [4, 4, 2]}) == pytest.approx(4.8, abs=1e-12)
    assert ONE_SIZE.mean_ms({"exits_per_look": [10, 0, 0]}) == 2.0
    assert ONE_SIZE.mean_ms({"exits_per_look": [0, 0, 10]}) == 10.0


def test_with_two_sizes_every_patch_takes_the_time_of_its_size() -> None:
    point = {"exits_per_look": [4, 4, 2], "patches_per_look_and_size": [[5, 1], [0, 2]]}
    # 2 + (5 x 3 + 1 x 4 + 2 x 7) / 10
    assert TWO_SIZES.mean_ms(point) == pytest.approx(5.3, abs=1e-12)


def test_patches_follow_from_the_exits_where_there_is_one_size() -> None:
    assert patches_of({"exits_per_look": [4, 4, 2]}) == [[6], [2]]
    assert patches_of({"exits_per_look": [4, 4, 2], "patches_per_look_and_size": [[5, 1], [0, 2]]}) == [[5, 1], [0, 2]]


@pytest.mark.parametrize("latency", [ONE_SIZE, TWO_SIZES])
def test_a_table_goes_through_json_and_back(latency: Latency) -> None:
    assert read_latency(json.loads(json.dumps(latency.to_plain())), "latency") == latency


@pytest.mark.parametrize(
    "change",
    [
        {"glance_ms": None},
        {"glance_ms": "fast"},
        {"glance_ms": float("nan")},
        {"glance_ms": -1.0},
        {"focus_ms": 3},
        {"focus_ms": [1, 2]},
        {"threads": "many"},
        {"threads": 10**9},
        {"device": 3},
        {"runtime": 3},
    ],
)
def test_a_field_that_cannot_be_is_refused_by_its_name(change: dict[str, Any]) -> None:
    (name,) = change
    with pytest.raises(BadSetting, match=rf"latency\.{name}(\[0\])? must be"):
        read_latency({**ONE_SIZE.to_plain(), **change}, "latency")


def test_a_table_with_a_hole_names_what_is_missing() -> None:
    plain = ONE_SIZE.to_plain()
    del plain["device"]
    with pytest.raises(BadSetting, match="latency.device is missing"):
        read_latency(plain, "latency")


def test_the_device_has_a_name() -> None:
    assert device_name(torch.device("cpu")).strip() != ""
    assert device_name(torch.device("cpu")) == device_name(torch.device("cpu"))


@pytest.mark.parametrize(("changes", "shape"), [({}, (2, 1)), ({"patch_px": (32, 48)}, (2, 2)), ({"looks": 1}, (0, 0))])
def test_every_look_of_every_size_is_measured(
    changes: dict[str, Any], shape: tuple[int, int], small_bundle: Callable[..., Bundle]
) -> None:
    latency = measure_latency(small_bundle(**changes), batch_size=2, repeats=1, warm_up=0)
    assert len(latency.focus_ms) == shape[0]
    assert {len(row) for row in latency.focus_ms} <= {shape[1]}
    times = [latency.glance_ms, *(ms for row in latency.focus_ms for ms in row)]
    assert all(0 < ms < math.inf for ms in times)
    assert (latency.device, latency.threads) == (device_name(torch.device("cpu")), torch.get_num_threads())
    assert latency.batch_size == 2


def test_measuring_changes_neither_weights_nor_mode(small_bundle: Callable[..., Bundle]) -> None:
    bundle = small_bundle()
    before = bundle.fingerprint
    measure_latency(bundle, repeats=1, warm_up=0)
    assert bundle.fingerprint == before
    assert not bundle.net.training


@pytest.mark.parametrize("asked", [{"batch_size": 0}, {"repeats": 0}])
def test_there_is_something_to_measure(asked: dict[str, int], small_bundle: Callable[..., Bundle]) -> None:
    with pytest.raises(BadSetting, match="(batch_size|repeats) must be a whole number from 1 to .*, but got 0"):
        measure_latency(small_bundle(), **asked)
