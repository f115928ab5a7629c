"""Encoders that learnt from the backbone end at the best point between its weights and their own, by the held-out loss.

Few images can make an encoder worse than it was at the start, because it memorises them. The straight line between both weights
contains the start, so on held-out images no stage ends worse than it began. Points in the middle are often better than both ends
(Wortsman et al., 2022, "Robust fine-tuning of zero-shot models"). With many images the end is the best.
"""

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from glancefocus.data.splits import in_order, scene_batches
from glancefocus.evaluation.choosing import best_temperature
from glancefocus.evaluation.every_look import seen_at_once
from glancefocus.interrupts import interruptible
from glancefocus.look import as_batch
from glancefocus.network.modules import Encoder, SummedClassifier
from glancefocus.region import Region
from glancefocus.settings import View
from glancefocus.training.settings import RecogniseSettings
from glancefocus.training.stage import TrainingContext
from glancefocus.training.teacher import TaughtAims, Teacher

BETWEEN = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The shares of the learnt weights that are compared; the backbone's have the rest."""
MOST_HELD_OUT = 1000
"""Largest number of held-out images whose views are kept in memory to compare focus encoders."""


def keep_best_between(start: Encoder, learnt: Encoder, loss: Callable[[], float]) -> float:
    """Give an encoder the best weights between those of its start and its own; returns the share of its own.

    loss  of the encoder as it is then, on held-out images
    """
    first = start.state_dict()
    last = {name: weight.clone() for name, weight in learnt.state_dict().items()}

    def move(share: float) -> None:
        for name, weight in learnt.state_dict().items():
            # Counters of batches are integers, and mean nothing here.
            between = (
                first[name].to(weight.device).lerp(last[name], share) if weight.is_floating_point() else last[name]
            )
            weight.copy_(last[name] if share == 1 else between)

    losses = {}
    with torch.no_grad():
        for share in BETWEEN:
            move(share)
            found = loss()
            losses[share] = found if math.isfinite(found) else math.inf
        # Of equals the last one: what was learnt.
        best = min(reversed(BETWEEN), key=lambda share: losses[share])
        move(best)
    return best


def calibrated_loss(answers: Tensor, labels: Tensor) -> float:
    """Cross-entropy of answers (N, classes) at their best temperature, so that the level of its confidences does not matter."""
    return float(F.cross_entropy(answers / best_temperature(answers, labels), labels))


def kept_words(part: str, share: float) -> str | None:
    """A sentence for the journal; None: the part keeps what it learnt."""
    if share == 1:
        return None
    if share == 0:
        return f"{part}: the weights of the backbone are better on held-out images than what was learnt, and are kept."
    return (
        f"{part}: a mix of what was learnt ({100 * share:.0f} %) and of the backbone's weights is best on held-out images, and is "
        "kept."
    )


def keep_best_encoders(context: TrainingContext, teacher: Teacher, settings: RecogniseSettings) -> str | None:
    """The same for each encoder that learnt candidate views in stage I; returns sentences for the journal.

    Only where the encoders' own heads give the answers: other classifiers have learnt to read the features as they are.
    """
    net = context.net
    groups = net.learning_views()
    if not isinstance(net.classifier, SummedClassifier) or net.settings.shared_encoder or not groups:
        return None
    net.eval()
    at_once, said = seen_at_once(net.settings), []
    with interruptible():
        views = {number: view for each in groups.values() for number, view in each.items()}
        seen, labels = _held_out_views(context, teacher, views, settings)
        for encoder, own in groups.items():

            def loss(encoder: Encoder = encoder, own: dict[int, View] = own) -> float:
                total = 0.0
                for number in own:
                    parts = torch.split(seen[number], at_once)
                    answers = [encoder.own_head(encoder(some).vector).float() for some in parts]
                    total += calibrated_loss(torch.cat(answers), labels)
                return total

            share = keep_best_between(teacher.encoder, encoder, loss)
            said.append(kept_words(f"recognise, {' and '.join(view.name for view in own.values())}", share))
    return " ".join(filter(None, said)) or None


@torch.no_grad()
def _held_out_views(
    context: TrainingContext, teacher: Teacher, views: Mapping[int, View], settings: RecogniseSettings
) -> tuple[dict[int, Tensor], Tensor]:
    """What is seen of the held-out images in each of these views, aimed as in training, and (N,) the labels."""
    net, split = context.net, context.data.val
    device, generator = context.accelerator.device, torch.Generator().manual_seed(0)
    rows = range(len(split))[:: -(-len(split) // MOST_HELD_OUT)]
    order = [[rows[i] for i in batch] for batch in in_order(len(rows), seen_at_once(net.settings))]
    seen: dict[int, list[Tensor]] = {number: [] for number in views}
    truth = []
    for images, labels in scene_batches(split, net.settings.view, order, None, context.workers):
        scene = as_batch(images.to(device), net.settings.view)
        places = teacher.see(images.to(device), labels.to(device)).places
        glance, image_hw = net.glance(scene), (int(images.shape[-2]), int(images.shape[-1]))
        for number, view in views.items():
            noise = {"deviation": settings.deviation, "random_share": settings.random_share}
            aim = TaughtAims(places, image_hw, {number: view}, generator, **noise).aim(glance)
            seen[number].append(scene.view(Region(view, None if view.is_whole else aim.where)))
        truth.append(labels.to(device))
    return {number: torch.cat(found) for number, found in seen.items()}, torch.cat(truth)
