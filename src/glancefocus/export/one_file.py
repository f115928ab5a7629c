"""`looks.onnx` of an export to ONNX: an image in, the answer out. For programs that want no loop of their own."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from glancefocus.bundle.bundle import Bundle
from glancefocus.errors import BadSetting
from glancefocus.exits.curve import stay_thresholds
from glancefocus.export.compare import Comparison, near_a_tie, refuse_differences, viewed
from glancefocus.export.looks_graph import OUTPUTS, fits_one_graph, one_graph, outcome_of
from glancefocus.export.samples import Sample
from glancefocus.region import resized
from glancefocus.runtime.onnx import open_session
from glancefocus.settings import GlanceResize

FILE = "looks.onnx"


def fits_one_file(bundle: Bundle) -> bool:
    """Images in patches of one size that leave by their confidence as it is."""
    return fits_one_graph(bundle.settings) and bundle.score == "confidence" and bundle.temperatures is None


def write_one_file(bundle: Bundle, about: dict[str, Any], folder: Path, sample: Sample) -> dict[str, Any] | None:
    """Put the graphs of a folder together in one more, and compare it with the network; what the manifest says of it.

    It takes images of the view's size. None where its parts cannot be put together, or no image of the sample has that size, as may
    be where pictures keep theirs.
    """
    settings, view = bundle.settings, bundle.settings.view
    resize = settings.glance_resize
    own = bundle.thresholds if bundle.thresholds is not None else stay_thresholds(settings.looks, 1)
    thresholds = [float(t) for t in np.ravel(np.asarray(own, dtype=np.float32))]
    shrinking_by = {
        "rows": shrinking(view.height_px, settings.glance_px, resize),
        "columns": shrinking(view.width_px, settings.glance_px, resize, across=True),
    }
    files = {graph["name"]: folder / graph["file"] for graph in about["graphs"]}
    try:
        graph = one_graph(files, settings, settings.policy.units, shrinking_by=shrinking_by).SerializeToString()
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


def shrinking(side: int, px: int, resize: GlanceResize, *, across: bool = False) -> NDArray[np.float32]:
    """(px, side) with which a column of pixels is multiplied to be resized; across: (side, px), by which a row is."""
    if side == px:
        return np.eye(px, dtype=np.float32)
    with torch.inference_mode():
        matrix: NDArray[np.float32] = resized(torch.eye(side)[None, None], (px, side), resize)[0, 0].numpy()
    return np.ascontiguousarray(matrix.T) if across else matrix


def _compare(bundle: Bundle, session: Any, sample: Sample, thresholds: list[float]) -> Comparison:
    """Look at every picture of the view's size with both, one at a time."""
    found = Comparison()
    rule, view, px = bundle.exit_rule(thresholds=thresholds), bundle.settings.view, bundle.settings.patch_px[0]
    room = np.array([view.height_px - px, view.width_px - px])
    for image in (viewed(frames, bundle) for pictures in sample.batches() for frames in pictures):
        if tuple(image.shape[1:]) != (view.height_px, view.width_px):
            continue
        found.images += 1
        network = bundle.predict_images([image], rule)
        given = {"images": image[None].contiguous().numpy(), "thresholds": np.array(thresholds, np.float32)}
        alone = outcome_of(session.run(OUTPUTS, given), thresholds, px)
        same_answer, same_looks = int(alone.answer) == int(network.answer), int(alone.looks) == int(network.looks)
        found.answers += same_answer
        found.looks += same_looks
        looks = int(network.looks)
        sureness = network.confidence_after[0, :looks]
        if same_answer and same_looks:
            gap = (alone.confidence_after[0, :looks] - sureness).abs().max()
            found.confidence_difference = max(found.confidence_difference, float(gap))
        elif near_a_tie(
            sureness.tolist(),
            thresholds,
            [(where, room) for where in network.where[0, : looks - 1].numpy()],
            network.logits[0].numpy(),
        ):
            found.undecided += 1
        else:
            found.differing.append(
                f"image {found.images} is class {int(network.answer)} after {looks} looks, "
                f"in {FILE} class {int(alone.answer)} after {int(alone.looks)}"
            )
    return found
