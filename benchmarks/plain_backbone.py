"""The plain backbone as a bundle with a single look, so that `gf serve` and LitServe can serve it: the rival of serving.py.

The bundle's only look is the whole image at one size, answered by the backbone's own head. Everything else (decoding, HTTP,
runtime) is the same as for the network that it is compared with.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from glancefocus.bundle.bundle import Bundle
from glancefocus.evaluation.rivals import patch_side, rival_sizes, tuned_files
from glancefocus.network.build import build
from glancefocus.network.macs import count_costs
from glancefocus.network.weights import load_backbone_weights
from glancefocus.settings import PolicySettings


@dataclass(frozen=True)
class Plain:
    """The plain backbone at one size.

    tuned     whether it was trained at that size, instead of at full size
    accuracy  on the pictures of the comparison
    """

    bundle: Bundle
    px: int
    tuned: bool
    accuracy: float


def plain_bundle(bundle: Bundle, weights: Path, px: int) -> Bundle:
    """The backbone of a bundle with these weights, on whole images of this side."""
    settings = replace(
        bundle.settings,
        looks=1,
        glance_px=px,
        focus=(str(px),),
        first_view="glance",
        glance_resize="antialias",
        classifier="summed",
        classifier_place=False,
        first_answer="own_head",
        policy=PolicySettings(kind="random"),
        shared_encoder=True,
        own_norms=False,
        whole_encoder=False,
        zoom=False,
    )
    net = build(settings)
    load_backbone_weights(net.glance_encoder.backbone, weights)
    return Bundle(net, bundle.classes, count_costs(settings))


def accuracy(bundle: Bundle, files: Sequence[Path], **stopping: Any) -> float:
    """The share of pictures whose answer is the name of their folder."""
    answers = [label for outcome in bundle.predict_stream(files, **stopping) for label in outcome.label]
    return sum(label == file.parent.name for label, file in zip(answers, files, strict=True)) / len(files)


def sizes(bundle: Bundle, weights: Path) -> list[tuple[int, Path]]:
    """(side, weights) of the plain backbone at every usual size, cheapest first; weights trained at a size before the others."""
    view = bundle.settings.view
    if view.fit == "whole" or view.height_px != view.width_px:
        raise ValueError(
            "the plain backbone is served at square sizes only, and this bundle looks at images of another shape"
        )
    usual = rival_sizes((view.height_px, view.width_px), patch_side(bundle.net.focus_encoder))
    found = [(height, 1, weights) for height, _ in usual]
    found += [(size[0], 0, file) for size, file in tuned_files(weights.parent).items() if size[0] == size[1]]
    return [(px, file) for px, _, file in sorted(found)]


def as_accurate(bundle: Bundle, weights: Path, files: Sequence[Path], target: float) -> Plain:
    """The cheapest plain backbone that is at least as accurate on these pictures; the most accurate one if none is.

    It is chosen on the pictures that it is measured on afterwards, which favours the plain backbone a little.
    """
    tried = []
    for px, file in sizes(bundle, weights):
        plain = plain_bundle(bundle, file, px)
        found = Plain(plain, px, file != weights, accuracy(plain, files))
        if found.accuracy >= target:
            return found
        tried.append(found)
    return max(tried, key=lambda each: each.accuracy)
