"""Before stage II (beyond the paper): the policy learns to point at where the backbone finds the evidence for the label.

Reinforcement learns from places that it comes across, and in a large image it comes across the right one once in a hundred
patches; a policy that can point has seen where they are. It is taught along its own looks, so it also learns where to look after
a patch that missed.
"""

from typing import Any

import torch
from torch import Tensor

from glancefocus.look import Look
from glancefocus.network.policy import RandomSizes
from glancefocus.scene import as_batch
from glancefocus.training.episode import ExploringPolicy, accuracy_after, play
from glancefocus.training.evidence import BackboneEvidence, Places, aims_at, room_px
from glancefocus.training.stage import Moment, Workshop
from glancefocus.training.stage2_aim import AimStage, descend_policy

# Distances are measured in this share of a patch's side: nearer than that, what matters is well within the patch.
NEAR = 0.25


def pointing_loss(means: Tensor, looks: list[Look], places: Places, image_hw: tuple[int, int]) -> Tensor:
    """Mean over looks and images of log(1 + distance squared) between where the policy aims and the place, by its weight.

    It grows slowly far away: between two places that might be it the policy decides for one instead of aiming at the middle.

    means  (L, B, 2) of the aims between the looks
    """
    losses = []
    for mean, look in zip(means, looks[1:], strict=True):
        assert look.aim is not None
        px = look.aim.patch_px
        away = (mean - aims_at(places.centre, image_hw, px)) * room_px(image_hw, px, mean.device)
        near = NEAR * torch.as_tensor(px, device=mean.device).reshape(-1, 1)
        losses.append((places.weight * (away / near).square().sum(dim=1).log1p()).mean())
    return torch.stack(losses).mean()


class PointStage(AimStage):
    """The policy is taught places; the best one is kept as in stage II."""

    name = "point"

    def __init__(self, workshop: Workshop) -> None:
        super().__init__(workshop, workshop.settings.point)
        self.evidence = BackboneEvidence(workshop)

    def update(self, images: Tensor, labels: Tensor, moment: Moment) -> dict[str, Any]:
        net = self.workshop.net
        deviation = self.arrive_at(moment.progress)
        with torch.no_grad(), self.workshop.accelerator.autocast():
            places = self.evidence.places(images, labels, moment)
            explorer = ExploringPolicy(RandomSizes(net.policy, moment.generator), deviation, moment.generator)
            scene = as_batch(images, net.settings.view)
            looks = play(self.glances.network(scene, moment.rows), scene, net.settings.looks, explorer)
        means, values = self.step(looks)
        loss = pointing_loss(means.float(), looks, places, (images.shape[-2], images.shape[-1]))
        loss = loss + 0 * values.float().sum()  # several processes wait for gradients of every part; the critic's are 0
        descend_policy(self.workshop, self.optimizer, loss)
        return {"loss": float(loss.detach()), "accuracy": accuracy_after(looks, labels)}
