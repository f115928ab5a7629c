"""Learnt aims against aims at random and at the centre, on the same images: whether the policy has learnt anything that matters."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glancefocus.data.splits import Split, scene_batches
from glancefocus.errors import BadBundle, BadSetting
from glancefocus.evaluation.rivals import chosen_rows
from glancefocus.evaluation.verdict import paired_interval
from glancefocus.exits.rule import every_look
from glancefocus.loop import KnownGlance, Policy, look_until_sure
from glancefocus.network.model import GlanceFocus
from glancefocus.network.policy import CentreCornerPolicy, RandomPolicy
from glancefocus.scene import as_batch
from glancefocus.values import Fields, shown

MOST_IMAGES = 1000
RANDOM_DRAWS = 2
"""Passes with random aims, whose mean is compared: one alone depends on the draw."""
AT_ONCE = 64


@dataclass(frozen=True)
class AimsCheck:
    """Accuracy after each look with three ways of aiming, and how much better learnt aims are after a focus look.

    over_random, over_centre  (mean, low, high): the difference in accuracy, averaged over the focus looks, with the 95 % interval
                              of paired differences; centre: the centre first, then the corners
    better                    both intervals are above zero
    sentence                  the same in words; where learnt aims are not better, what to do
    """

    images: int
    accuracy_learnt: list[float]
    accuracy_random: list[float]
    accuracy_centre: list[float]
    over_random: tuple[float, float, float]
    over_centre: tuple[float, float, float]
    better: bool
    sentence: str

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)


def noted_aims(notes: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a bundle's notes say of its aims, checked; None where they say nothing."""
    if notes.get("aims") is None:
        return None
    try:
        fields = Fields(notes["aims"], "notes.aims")
        if not isinstance(fields.value("better"), bool):
            raise BadSetting(f"notes.aims.better must be true or false, but got {shown(fields.value('better'))}.")
        return {**fields.plain, "sentence": fields.text("sentence", 5000)}
    except BadSetting as error:
        raise BadBundle(f"the bundle is damaged: {error}") from None


def check_aims(net: GlanceFocus, split: Split, *, most: int = MOST_IMAGES, workers: int = 0) -> AimsCheck:
    """Compare the network's own policy with the two that learn nothing, on at most so many images; its mode is put back."""
    px = max(net.settings.patch_px)
    rows = chosen_rows(len(split), most)
    order = [rows[start : start + AT_ONCE].tolist() for start in range(0, len(rows), AT_ONCE)]
    generator = torch.Generator().manual_seed(1)
    ways: list[Policy] = [net.policy, CentreCornerPolicy(px), *[RandomPolicy(px, generator)] * RANDOM_DRAWS]
    was_training, device = net.training, next(net.parameters()).device
    net.eval()
    parts: list[list[Tensor]] = [[] for _ in ways]
    with torch.inference_mode():
        for images, labels in scene_batches(split, net.settings.view, order, None, workers):
            scene = as_batch(images.to(device), net.settings.view)
            known = KnownGlance(net, net.glance(scene))
            for policy, part in zip(ways, parts, strict=True):
                outcome = look_until_sure(known, scene, every_look(net.settings.looks), policy)
                part.append(outcome.answer_after.cpu() == labels[:, None])
    net.train(was_training)
    learnt, centre, *random = (torch.cat(part).numpy().astype(np.float64) for part in parts)
    return aims_check(learnt, np.mean(random, axis=0), centre)


def aims_check(learnt: NDArray[np.float64], random: NDArray[np.float64], centre: NDArray[np.float64]) -> AimsCheck:
    """What follows from (N, looks) right answers of each way of aiming; the first look is the glance, which is not aimed."""
    over_random, over_centre = (
        paired_interval((learnt[:, 1:] - other[:, 1:]).mean(axis=1)) for other in (random, centre)
    )
    better = over_random[1] > 0 and over_centre[1] > 0
    after_look = [each.mean(axis=0).tolist() for each in (learnt, random, centre)]
    return AimsCheck(
        images=len(learnt),
        accuracy_learnt=after_look[0],
        accuracy_random=after_look[1],
        accuracy_centre=after_look[2],
        over_random=over_random,
        over_centre=over_centre,
        better=better,
        sentence=_sentence(len(learnt), over_random, over_centre, better),
    )


def _sentence(
    images: int, over_random: tuple[float, float, float], over_centre: tuple[float, float, float], better: bool
) -> str:
    facts = (
        f"{_points(over_random)} over random aims, {_points(over_centre)} over the centre and the corners "
        f"(accuracy of the focus looks, {images:,} validation images)"
    )
    if better:
        return f"Learnt aims pay: {facts}."
    return (
        f"Learnt aims are not shown to be better than aims that learn nothing: {facts}. Try larger patches (--patch-px), more "
        "epochs of stage 1 (--set recognise.epochs=...), the stage point before stage 2 (--stages initialise,1,point,2,3), or "
        "wider exploration (--set aim.deviation=0.2)."
    )


def _points(interval: tuple[float, float, float]) -> str:
    mean, low, high = (100 * value for value in interval)
    return f"{mean:+.1f} points ({low:+.1f} to {high:+.1f})"
