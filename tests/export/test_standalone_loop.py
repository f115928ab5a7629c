"""The loop without torch: the same answers, looks, boxes and costs as the loop with it."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from glancefocus.bundle.bundle import Bundle
from glancefocus.errors import BadBudget, BadExport, BadSetting
from glancefocus.export.compare import Tally, compare, made_up, refuse_differences, rounding_decides, ways_of_looking
from glancefocus.export.contents import FORMATS, check_exportable, describe
from glancefocus.export.predict import Array, Looker, scene_of, thresholds_for
from glancefocus.network.parts import take_apart

VIEWS = ("48", "0.5@48", "whole@64")
PLACE = {"units": 16, "conv_channels": 4, "place": True}
KINDS: dict[str, dict[str, Any]] = {
    "recurrent": {},
    "cascaded": {"classifier": "cascaded", "first_answer": "own_head"},
    "other glance": {"glance_px": 48, "glance_resize": "bicubic"},
    "one look": {"looks": 1},
    "several sizes": {"focus": ("32", "48")},
    "zoomed out": {"focus": ("0.5@48",), "policy": PLACE},
    "a square of pixels": {"focus": ("40px@32",), "classifier": "summed"},
    "the whole image": {"focus": ("whole@48",), "policy": PLACE},
    "a cascade of resolutions": {"focus": ("whole@48", "whole@64"), "classifier": "summed"},
    "views of every kind": {"focus": VIEWS, "policy": PLACE},
    "views of every kind, place for the classifier": {"focus": VIEWS, "classifier_place": True},
    "views of every kind, cascaded": {"focus": VIEWS, "classifier": "cascaded", "first_answer": "own_head"},
    "views of every kind, summed": {"focus": VIEWS, "classifier": "summed", "policy": PLACE},
    "views of every kind, large pictures": {
        "focus": VIEWS,
        "policy": PLACE,
        "view": {"fit": "whole", "height_px": 80, "width_px": 100},
    },
    "views of clips": {"focus": ("0.5@48", "whole@64"), "frames": 2, "shift_div": 4, "policy": PLACE},
    "clips": {"frames": 2, "shift_div": 4, "classifier": "cascaded", "first_answer": "own_head"},
    "without a glance": {"first_view": "centre", "policy": PLACE},
    "at drawn places": {"first_view": "random", "policy": {**PLACE, "kind": "random"}},
    "at drawn places, place for the classifier": {
        "first_view": "random",
        "classifier_place": True,
        "policy": {**PLACE, "kind": "random"},
    },
    "clips at drawn places": {
        "first_view": "random",
        "policy": {**PLACE, "kind": "random"},
        "frames": 2,
        "shift_div": 4,
    },
    "centre and corners": {"policy": {**PLACE, "kind": "centre_corner"}},
    "large pictures": {"view": {"fit": "whole", "height_px": 80, "width_px": 100}},
}


class TorchGraphs:
    """Graphs that are still parts of the network; they count how many rows each was given."""

    def __init__(self, bundle: Bundle) -> None:
        self.parts = {part.name: part.module for part in take_apart(bundle.net)}
        self.rows: list[tuple[str, int]] = []

    def __call__(self, graph: str, *inputs: Array) -> list[Array]:
        self.rows.append((graph, len(inputs[0])))
        with torch.inference_mode():
            outputs = self.parts[graph](*(torch.from_numpy(given) for given in inputs))
        return [output.numpy() for output in ((outputs,) if isinstance(outputs, torch.Tensor) else outputs)]


def looker_of(bundle: Bundle) -> tuple[Looker, TorchGraphs]:
    names = [{"name": part.name} for part in take_apart(bundle.net)]
    graphs = TorchGraphs(bundle)
    return Looker(json.loads(json.dumps(describe(bundle, FORMATS["onnx"], names))), graphs), graphs


def scores_after(bundle: Bundle) -> Array:
    """(images, looks) how sure the bundle is of the made-up pictures after every look."""
    looker, _ = looker_of(bundle)
    images = [scene_of(frames, looker.manifest) for frames in next(made_up(bundle.settings).batches())]
    return np.array([row.scores for row in looker.look(images)])


def splitting(bundle: Bundle) -> tuple[Any, ...]:
    """Thresholds by which some of the made-up pictures leave at every look, and that no score lies on."""
    columns = np.sort(scores_after(bundle), axis=0)
    middles = [(column[19] + column[20]) / 2 for column in columns[:, :-1].T]
    views = len(bundle.settings.candidates)
    if views == 1:
        return (*middles, 0.0)
    lows = [(column[9] + column[10]) / 2 for column in columns[:, :-1].T]
    rows = []
    for i, (low, high) in enumerate(zip(lows, middles, strict=True)):
        limits = [low, (low + high) / 2, high] if views == 3 else [low, high]
        rows.append(tuple(limits if i % 2 else limits[::-1]))
    return (*rows, (0.0,) * views)


@pytest.mark.parametrize(
    ("kind", "score"), [*((kind, "confidence") for kind in KINDS), ("recurrent", "entropy"), ("recurrent", "value")]
)
def test_the_loop_answers_as_the_bundle(small_bundle: Callable[..., Bundle], kind: str, score: str) -> None:
    bundle = small_bundle(**KINDS[kind])
    looks = bundle.settings.looks
    bundle.score, bundle.temperatures = score, tuple(0.5 + 0.25 * look for look in range(looks))
    bundle.thresholds = splitting(bundle)
    looker, graphs = looker_of(bundle)
    for words, thresholds in ways_of_looking(bundle).items():
        graphs.rows.clear()
        found = compare(bundle, looker, made_up(bundle.settings), thresholds)
        assert (found.answers, found.looks, found.boxes) == (32, 32, 32)
        assert found.confidence_difference < 1e-5
        refuse_differences(found, words)
        if words != "stopping above thresholds":
            assert found.exits_per_look == {looks: 32}
        elif looks > 1:
            assert found.exits_per_look[1] == 12
            assert [rows for name, rows in graphs.rows if name.startswith("glance")] == [32]
            assert sum(rows for name, rows in graphs.rows if name.startswith("focus")) == sum(
                (look - 1) * count for look, count in found.exits_per_look.items()
            )


@pytest.mark.parametrize(
    ("kind", "score"), [("several sizes", "confidence"), ("recurrent", "value"), ("views of every kind", "confidence")]
)
def test_costs_and_boxes_are_the_same_as_the_bundles(
    small_bundle: Callable[..., Bundle], kind: str, score: str
) -> None:
    bundle = small_bundle(**KINDS[kind])
    bundle.score = score
    bundle.thresholds = splitting(bundle)
    looker, _ = looker_of(bundle)
    pictures = [frames[0] for frames in next(made_up(bundle.settings).batches())]
    outcome = bundle.predict(pictures)
    rows = looker.look([scene_of([picture], looker.manifest) for picture in pictures], looker.manifest["thresholds"])
    lines = [looker.answer("a.png", row) for row in rows]
    assert len({line["cost_macs"] for line in lines}) > 1
    assert [line["cost_macs"] for line in lines] == outcome.cost_macs.tolist()
    assert [line["label"] for line in lines] == outcome.label
    assert [line["sure"] for line in lines] == outcome.sure.tolist()
    ours = outcome.answers(1)
    for name in ("boxes", "patch_px", "views"):
        assert [line[name] for line in lines] == [one[name] for one in ours]


CURVE = [
    {"mean_macs": 5e5, "accuracy": 0.7, "thresholds": [0.5, 0.4, 0.0]},
    {"mean_macs": 4e5, "accuracy": 0.6, "thresholds": [0.3, 0.2, 0.0]},
    {"mean_macs": 6e5, "accuracy": 0.65, "thresholds": [0.9, 0.9, 0.0]},  # dearer and worse: passed over
    {"mean_macs": 7e5, "accuracy": 0.8, "thresholds": [0.7, 0.8, 0.0]},
]


def test_budgets_give_the_thresholds_that_the_bundle_gives(small_bundle: Callable[..., Bundle]) -> None:
    bundle = small_bundle()
    glance, everything = bundle.costs.macs_after_look[0], bundle.costs.macs_after_look[-1]
    step = (everything - glance) / 5
    bundle.curve = [{**point, "mean_macs": glance + (point["mean_macs"] / 1e5 - 3) * step} for point in CURVE]
    looker, _ = looker_of(bundle)
    for budget in np.linspace(glance, everything, 23).tolist():
        ours = bundle.exit_rule(budget_macs=budget).thresholds
        assert thresholds_for(looker.manifest, budget_macs=budget) == pytest.approx(list(ours), abs=1e-12)
    with pytest.raises(BadBudget):
        bundle.exit_rule(budget_macs=glance - 1)
    with pytest.raises(ValueError, match="is less than one glance"):
        thresholds_for(looker.manifest, budget_macs=glance - 1)
    with pytest.raises(ValueError, match="there are no operating points"):
        thresholds_for({**looker.manifest, "curve": []}, budget_macs=glance + step)


@pytest.mark.parametrize("kind", ["several sizes", "views of every kind"])
def test_a_number_of_looks_is_taken_exactly(small_bundle: Callable[..., Bundle], kind: str) -> None:
    bundle = small_bundle(**KINDS[kind])
    looker, _ = looker_of(bundle)
    pictures = [frames[0] for frames in next(made_up(bundle.settings, 4).batches())]
    rows = looker.look([scene_of([p], looker.manifest) for p in pictures], thresholds_for(looker.manifest, looks=2))
    assert [row.looks for row in rows] == [2] * 4
    assert {view["name"] for row in rows for view in row.views} == {bundle.settings.focus[-1]}
    assert [int(row.logits.argmax()) for row in rows] == bundle.predict(pictures, looks=2).answer.tolist()
    with pytest.raises(ValueError, match="takes 1 to 3 looks, not 4"):
        thresholds_for(looker.manifest, looks=4)


def test_graphs_of_another_network_are_refused(small_bundle: Callable[..., Bundle]) -> None:
    bundle, other = small_bundle(), small_bundle(seed=1)
    looker = Looker(looker_of(bundle)[0].manifest, TorchGraphs(other))
    found = compare(bundle, looker, made_up(bundle.settings), ways_of_looking(bundle)["every look"])
    assert found.answers < 32
    with pytest.raises(BadExport, match="do not answer as the network does on .* of 32 images"):
        refuse_differences(found, "every look")


def test_confidences_that_drift_are_refused() -> None:
    with pytest.raises(BadExport, match="differ by up to 0.002"):
        refuse_differences(Tally(images=1, answers=1, looks=1, confidence_difference=0.002), "every look")
    with pytest.raises(BadExport, match="differ by up to nan"):
        refuse_differences(Tally(images=1, answers=1, looks=1, confidence_difference=float("nan")), "every look")


def test_rounding_decides_only_on_the_very_threshold(small_bundle: Callable[..., Bundle]) -> None:
    bundle = small_bundle(looks=1)
    looker, _ = looker_of(bundle)
    picture = next(made_up(bundle.settings, 1).batches())[0]
    (row,) = looker.look([scene_of(picture, looker.manifest)])
    assert rounding_decides(row, [row.scores[0] + 5e-5])
    assert not rounding_decides(row, [row.scores[0] + 5e-4])


def test_leaving_at_random_is_not_exported(small_bundle: Callable[..., Bundle]) -> None:
    bundle = replace(small_bundle(), score="random")
    with pytest.raises(BadSetting, match="this bundle stops at random"):
        check_exportable(bundle)
