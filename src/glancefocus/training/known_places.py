"""Training with known places of objects, in images of which only regions are seen: where to aim, and how far an aim is off.

A zooming network aims relative to the region that its last look saw, others relative to the whole image. So the aim that leads to
a place is computed for each look. Scenes that are drawn on demand know where their objects are (FileScene.centres).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from glancefocus.data.images import LARGE_PIXELS
from glancefocus.data.scene_splits import DrawnScenes, reads_regions
from glancefocus.data.splits import Split
from glancefocus.errors import BadSetting
from glancefocus.look import Aim, Look, size_of_first, sizes_of
from glancefocus.loop import Policy
from glancefocus.network.model import GlanceFocus
from glancefocus.network.policy import draw_candidate
from glancefocus.network.steps import next_view
from glancefocus.region import reach_px
from glancefocus.settings import View
from glancefocus.training.settings import RecogniseSettings
from glancefocus.training.stage import Moment, TrainingContext
from glancefocus.training.teacher import Places

NEAR = 0.25
"""Unit of distance, as a share of the side of the next region: an object that is nearer to the centre lies well within it."""
LED = (1.0, 0.2)
"""Share of the images whose looks are led to the known place in the stage point, at its begin and at its end."""


def places_in(images: Any) -> Places | None:
    """The known places of the objects in a batch; None: they are not known. Weight 0: there is no object."""
    centres: Tensor | None = getattr(images, "centres", None)
    if centres is None:
        return None
    return Places(centres.nan_to_num(0.0), (~centres.isnan().any(dim=1)).float())


def knows_places(split: Split) -> bool:
    """Whether the places of the objects in these images are known for training."""
    return isinstance(split, DrawnScenes)


def check_known(context: TrainingContext, stage: str, settings: RecogniseSettings) -> None:
    """Refuse settings of the stages recognise and finetune that need known places, where there are none."""
    if knows_places(context.data.train):
        return
    for name, given in (("aims=known", settings.aims == "known"), ("point_weight", settings.point_weight > 0)):
        if given:
            raise BadSetting(
                f"{stage}.{name} needs known places of objects. These are known only in scenes of signs with more than "
                f"{LARGE_PIXELS:,} pixels, which are drawn on demand. Leave it out."
            )


def check_places(context: TrainingContext) -> None:
    """Refuse the stage point where it cannot know any places, and parts of it that need whole images."""
    train, point = context.data.train, context.settings.point
    if not reads_regions(train):
        return
    if not knows_places(train):
        raise BadSetting(
            "the stage point teaches the policy the places where the backbone finds its evidence in whole images, but of these "
            "images, which are large, only regions are read. Train the policy by reinforcement, stage 2, instead, such as "
            "--stages glance,1,2; or resize the images with --fit stretch."
        )
    for name in ("crop_weight", "return_weight"):
        if getattr(point, name) > 0:
            raise BadSetting(
                f"point.{name} needs whole images, but of these only regions are drawn. Set point.{name}=0."
            )


class KnownPlaces:
    """Takes the place of teacher.BackboneEvidence where places are known."""

    def places(self, images: Any, labels: Tensor, moment: Moment) -> Places:
        """The places of a batch, as if all images had the size of the first."""
        known = places_in(images)
        assert known is not None
        scale = torch.tensor(size_of_first(images)) / torch.tensor(images.sizes)
        return Places(known.centre * scale.to(known.centre), known.weight)


class Goals(NamedTuple):
    """The aims that lead the next look to the places.

    aim        (B, 2) in [0, 1], as the policy gives it
    step_px    (B, 2) how far apart aims of 0 and 1 are
    extent_px  (B, 1) side of the next region
    reached    (B,) 1.0 if that region contains the place; 0.0: it is out of reach from the last region
    """

    aim: Tensor
    step_px: Tensor
    extent_px: Tensor
    reached: Tensor


def goals(net: GlanceFocus, look: Look, candidate: int | Tensor, places: Places) -> Goals:
    """The aims after this look that have the places in the middle of the next region, or as near as the aims allow."""
    sizes = sizes_of(look.scene)
    extent_px, centre = net.extents_px(candidate, sizes), places.centre.cpu().double()
    extent = extent_px[:, None]
    free = (sizes - extent).clamp_min(0)
    if net.settings.zoom:
        seen = net.region_of(look)
        first, step = reach_px(seen, extent_px)
        origin = seen[:, :2] + first
    else:
        origin, step = torch.zeros_like(sizes), free
    begin = torch.minimum((centre - extent / 2).clamp_min(0), free)
    whole = step.abs() < 1  # no room: every aim is the same
    aim = torch.where(whole, 0.5, (begin - origin) / torch.where(whole, 1.0, step)).clamp(0, 1)
    found = torch.minimum((origin + aim * step).clamp_min(0), free)
    reached = ((centre >= found) & (centre <= found + extent)).all(dim=1) & (extent_px > 0)
    parts = (aim, step.abs(), extent.clamp_min(1), reached)
    return Goals(*(part.to(look.logits.device, torch.float32) for part in parts))


def region_loss(net: GlanceFocus, means: Tensor, looks: list[Look], places: Places) -> Tensor:
    """Mean over looks of the weighted log(1 + squared distance) between the policy's aim and the place, see pointing_loss.

    Images whose place is out of reach do not count.

    means  (L, B, 2) of the aims between the looks
    """
    losses = []
    for mean, before, look in zip(means, looks[:-1], looks[1:], strict=True):
        assert look.aim is not None
        goal = goals(net, before, look.aim.candidate, places)
        away = (mean - goal.aim) * goal.step_px / (NEAR * goal.extent_px)
        weight = places.weight.to(mean.device) * goal.reached
        losses.append((weight * away.square().sum(dim=1).log1p()).sum() / weight.sum().clamp_min(1))
    return torch.stack(losses).mean()


class KnownAims:
    """Aims at known places, with noise, and for some of the images at random places.

    views         {number of a candidate: its view}, of which one is drawn for each look; a zooming network goes in steps
    deviation     standard deviation of the noise, as a share of the image; of a zooming network of the next region's side
    random_share  share of the images whose aim is random; those without an object always have random ones
    """

    def __init__(
        self,
        net: GlanceFocus,
        places: Places,
        views: Mapping[int, View],
        generator: torch.Generator,
        *,
        deviation: float,
        random_share: float,
    ) -> None:
        self.net = net
        self.places = places
        self.views = views
        self.generator = generator
        self.deviation = deviation
        self.random_share = random_share

    def aim(self, look: Look) -> Aim:
        generator, device = self.generator, look.logits.device
        candidate = (
            next_view(self.net.candidates, look)
            if self.net.settings.zoom
            else draw_candidate(list(self.views), look, generator)
        )
        where = self.where(look, candidate)
        anywhere = torch.rand(look.count, 2, generator=generator).to(device)
        at_random = (torch.rand(look.count, 1, generator=generator) < self.random_share).to(device)
        at_random |= self.places.weight[look.rows, None].to(device) <= 0
        return Aim(where=torch.where(at_random, anywhere, where), candidate=candidate)

    def where(self, look: Look, candidate: int | Tensor) -> Tensor:
        """(B, 2) aims of the next look at the places, with noise."""
        places = Places(self.places.centre[look.rows], self.places.weight[look.rows])
        goal = goals(self.net, look, candidate, places)
        noise = self.deviation * torch.randn(look.count, 2, generator=self.generator).to(look.logits.device)
        if self.net.settings.zoom:
            noise = noise * goal.extent_px / goal.step_px.clamp_min(1)
        return (goal.aim + noise).clamp(0, 1)


class LedPolicy:
    """Another policy, whose looks at some of the images are led to the known places instead of where it aims.

    At first a policy that learns would miss at the first look, and could not learn the later ones.

    led    (B, 1) bool: the images that are led
    known  where to
    """

    def __init__(self, policy: Policy, led: Tensor, known: KnownAims) -> None:
        self.policy = policy
        self.led = led
        self.known = known

    def aim(self, look: Look) -> Aim:
        aim = self.policy.aim(look)
        led = self.led.to(aim.where.device) & (self.known.places.weight[:, None].to(aim.where.device) > 0)
        where = torch.where(led, self.known.where(look, aim.candidate), aim.where)
        return Aim(where, aim.candidate, aim.memory, aim.mean, aim.value, aim.log_prob)


def led_at_first(policy: Policy, net: GlanceFocus, places: Places, progress: float, moment: Moment) -> Policy:
    """The policy of the stage point: fewer and fewer images are led, see LED."""
    share = LED[0] + (LED[1] - LED[0]) * progress
    led = torch.rand(len(places.weight), 1, generator=moment.generator) < share
    views = {number: view for number, view in enumerate(net.candidates) if not view.is_whole}
    known = KnownAims(net, places, views, moment.generator, deviation=0.12 * (1 - progress), random_share=0.0)
    return LedPolicy(policy, led, known)
