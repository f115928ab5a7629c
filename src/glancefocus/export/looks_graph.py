"""looks.onnx: all looks at one image as one ONNX graph, with the loop inside. For programs that have no loop of their own.

    images         (1, 3, H, W)     the image, normalised, of the view's size
    thresholds     (T,)             one for each look that may be taken
    ->
    logits         (1, classes)     after the last look that was taken
    answer, confidence              (1,) after the glance
    answers, confidences            (K, 1) after each of the K focus looks that were taken
    where                           (K, 1, 2) of each of them; without meaning where they see the whole image

It is assembled from the graphs of the parts, see composing.py.
"""

from pathlib import Path
from typing import Any

import numpy as np

from glancefocus.bundle.bundle import Bundle
from glancefocus.errors import BadSetting
from glancefocus.exits.curve import stay_thresholds
from glancefocus.export.compare import Sample, Tally, near_a_tie, refuse_differences, viewed
from glancefocus.export.composing import OUTPUTS, covered, one_graph
from glancefocus.export.contents import LooksGraph
from glancefocus.export.predict import Graph
from glancefocus.runtime.backends import open_session

FILE = "looks.onnx"


def fits_one_graph(bundle: Bundle) -> bool:
    """Whether the loop inside the graph can do what the bundle does: pictures, one candidate view, no drawn places,
    thresholds on the confidence."""
    settings = bundle.settings
    one_view = settings.looks > 1 and settings.frames == 1 and len(settings.candidates) == 1
    one_view = one_view and "random" not in (settings.first_view, settings.policy.kind)
    return one_view and bundle.score == "confidence" and bundle.temperatures is None


def write_looks_graph(bundle: Bundle, graphs: list[Graph], folder: Path, sample: Sample) -> LooksGraph | None:
    """Assemble the graphs of a folder to one more, and compare it with the network; returns what the manifest says about it.

    None where the parts cannot be assembled, or where no image of the sample has the view's size, which can happen when pictures
    keep their own size.
    """
    settings, view = bundle.settings, bundle.settings.view
    own = bundle.thresholds if bundle.thresholds is not None else stay_thresholds(settings.looks, 1)
    thresholds = [float(t) for t in np.ravel(np.asarray(own, dtype=np.float32))]
    try:
        graph = one_graph({graph["name"]: folder / graph["file"] for graph in graphs}, settings).SerializeToString()
        session = open_session(graph, 1)
    except BadSetting:
        return None
    found = _compare(bundle, session, sample, thresholds)
    refuse_differences(found, FILE)
    if found.images == 0:
        return None
    (folder / FILE).write_bytes(graph)
    return {
        "file": FILE,
        "inputs": [
            {"name": "images", "shape": [1, 3, view.height_px, view.width_px]},
            {"name": "thresholds", "shape": ["looks"]},
        ],
        "outputs": list(OUTPUTS),
        "thresholds": thresholds,
        "compared": {
            "images": found.images,
            "same_answers": found.answers,
            "same_looks": found.looks,
            "undecided": found.undecided,
            "confidence_difference": found.confidence_difference,
        },
    }


def _compare(bundle: Bundle, session: Any, sample: Sample, thresholds: list[float]) -> Tally:
    """Look at every picture of the view's size with the network and with the graph, one at a time."""
    found = Tally()
    rule, view = bundle.exit_rule(thresholds=thresholds), bundle.settings.view
    high, wide = covered(bundle.settings)
    room = np.array([view.height_px - high, view.width_px - wide])
    for image in (viewed(frames, bundle) for pictures in sample.batches() for frames in pictures):
        if tuple(image.shape[1:]) != (view.height_px, view.width_px):
            continue
        found.images += 1
        network = bundle.predict_images([image], rule)
        given = {"images": image[None].contiguous().numpy(), "thresholds": np.array(thresholds, np.float32)}
        _, answer, confidence, answers, confidences, _ = session.run(OUTPUTS, given)
        answered, confident = [*answer, *answers.ravel()], np.array([*confidence, *confidences.ravel()])
        looks, expected = int(network.looks), int(network.answer)
        same_answer, same_looks = int(answered[-1]) == expected, len(answered) == looks
        found.answers += same_answer
        found.looks += same_looks
        confidence_after = network.confidence_after[0, :looks].numpy()
        if same_answer and same_looks:
            gap = float(np.abs(confident - confidence_after).max())
            found.confidence_difference = max(found.confidence_difference, gap)
        elif near_a_tie(
            confidence_after.tolist(),
            thresholds,
            [(where, room) for where in network.where[0, : looks - 1].numpy()],
            network.logits[0].numpy(),
        ):
            found.undecided += 1
        else:
            found.differing.append(
                f"image {found.images} is class {expected} after {looks} looks, "
                f"in {FILE} class {int(answered[-1])} after {len(answered)}"
            )
    return found
