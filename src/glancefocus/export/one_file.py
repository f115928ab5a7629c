"""`looks.onnx` of an export to ONNX: an image in, the answer out. For programs that want no loop of their own."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from glancefocus.bundle import Bundle
from glancefocus.early_exit.curve import stay_thresholds
from glancefocus.errors import BadExport, BadSetting
from glancefocus.export.compare import PIXEL_TIE, SCORE_TIE, viewed
from glancefocus.export.samples import Sample
from glancefocus.outcome import Outcome
from glancefocus.runtimes.at_once import outcome_of, shrinking
from glancefocus.runtimes.one_graph import OUTPUTS, fits_one_graph, one_graph
from glancefocus.runtimes.onnx_runtime import open_session

FILE = "looks.onnx"


@dataclass(frozen=True)
class _Found:
    """How many images were looked at, and of how many answer and looks are the same, or rounding decides."""

    images: int = 0
    same: int = 0
    undecided: int = 0


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
    constants = {
        "rows": shrinking(view.height_px, settings.glance_px, resize),
        "columns": shrinking(view.width_px, settings.glance_px, resize, across=True),
    }
    files = {graph["name"]: folder / graph["file"] for graph in about["graphs"]}
    try:
        graph = one_graph(files, settings, settings.policy.units, constants=constants).SerializeToString()
        session = open_session(graph, torch.device("cpu"), 1)
    except BadSetting:
        return None
    found = _compare(bundle, session, sample, thresholds)
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
        "compared": {"images": found.images, "same": found.same, "undecided": found.undecided},
    }


def _compare(bundle: Bundle, session: Any, sample: Sample, thresholds: list[float]) -> _Found:
    rule, view = bundle.exit_rule(thresholds=thresholds), bundle.settings.view
    images = same = undecided = 0
    for pictures in sample.batches():
        for frames in pictures:
            image = viewed(frames, bundle)
            if tuple(image.shape[1:]) != (view.height_px, view.width_px):
                continue
            images += 1
            network = bundle.predict_images([image], rule)
            given = {"images": image[None].contiguous().numpy(), "thresholds": np.array(thresholds, np.float32)}
            alone = outcome_of(session.run(OUTPUTS, given), thresholds, bundle.settings.patch_px[0])
            if (int(alone.answer), int(alone.looks)) == (int(network.answer), int(network.looks)):
                same += 1
            elif _rounding_decides(network, thresholds, (image.shape[-2], image.shape[-1])):
                undecided += 1
            else:
                raise BadExport(
                    f"{FILE} does not answer as the network does: image {images} is class {int(network.answer)} after "
                    f"{int(network.looks)} looks, in the graph class {int(alone.answer)} after {int(alone.looks)}. "
                    "Nothing was written."
                )
    return _Found(images, same, undecided)


def _rounding_decides(outcome: Outcome, thresholds: list[float], image_hw: tuple[int, int]) -> bool:
    """Whether a difference in the last digits could have changed how an image was looked at."""
    looks = int(outcome.looks)
    sureness = outcome.confidence_after[0, :looks].numpy()
    near_threshold = np.abs(sureness - np.array(thresholds[:looks])) < SCORE_TIE
    room = np.array(image_hw) - outcome.patch_px[0, : looks - 1].numpy()[:, None]
    corners = outcome.where[0, : looks - 1].numpy() * room
    second, first = outcome.logits[0].softmax(dim=0).topk(2).values.flip(0).tolist()
    return bool(
        near_threshold.any() or (np.abs(corners - corners.round()) < PIXEL_TIE).any() or first - second < SCORE_TIE
    )
