"""Places that are not learnt: of the first look in a network without a glance, and of policies that follow a rule."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from glancefocus.look import Aim, Look, Scene, frames_of
from glancefocus.network.steps import next_view
from glancefocus.region import Region
from glancefocus.settings import NetworkSettings, ViewSettings, native

CENTRE_AND_CORNERS = ((0.5, 0.5), (0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0))
"""Where the centre-corner policy looks: the centre, then the corners in reading order, then the centre again and so on."""
SAMPLE_PX = 16
"""Side of the square in the middle of an image whose pixels decide on its drawn places."""
_PRIME = 2**31 - 1


def drawn_places(scene: Scene, view: ViewSettings, number: int) -> Tensor:
    """(B, 2) in [0, 1): the drawn place of look `number` in each image.

    It follows from the image's pixels, so an image is seen at the same places in every batch, by every runtime and in exported
    programs, and nothing has to be remembered. Training draws from a generator instead.
    """
    middle = torch.full((scene.count, 2), 0.5)
    pixels = scene.view(Region(native(SAMPLE_PX), middle))
    pixels = pixels[:: frames_of(scene)]  # of a clip the first frame
    mean, std = (torch.tensor(colours, device=pixels.device)[:, None, None] for colours in (view.mean, view.std))
    levels = ((pixels.float() * std + mean) * 255).round().clamp(0, 255).long()
    weights = torch.from_numpy(place_weights(number)).to(pixels.device)
    sums = (levels.reshape(levels.shape[0], 1, -1) * weights).sum(dim=2) % _PRIME
    return (sums.double() / _PRIME).float()


def place_weights(number: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """(2, values) int64: the factors of the sample's values, (3, px, px) flattened, for y and for x of look `number`."""
    return np.random.RandomState(number).randint(0, _PRIME, size=(2, 3 * SAMPLE_PX**2), dtype=np.int64)


def first_region(settings: NetworkSettings, scene: Scene, where: Tensor | None = None) -> Region:
    """What the first look sees in a network without a glance.

    where  the places of random first views; None: those that follow from the pixels
    """
    view = settings.glance_view
    if settings.first_view == "centre":
        return Region(view, torch.full((scene.count, 2), 0.5))
    return Region(view, drawn_places(scene, settings.view, 1) if where is None else where)


class UnlearntPolicy(nn.Module):
    """Aims by a rule: at drawn places, or at the centre and the corners (paper, ablation study). It has no weights and no memory.

    Without a glance, where the first look sees the centre, the corners come next.
    """

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        self.kind, self.view = settings.policy.kind, settings.view
        self.steps = settings.candidates if settings.zoom else ()
        self.candidates = range(len(settings.candidates))
        self.patches_before = 1 if settings.first_view == "centre" else 0

    def aim(self, look: Look, candidate: int | Tensor | None = None) -> Aim:
        """Where to look next; candidate: as LearntPolicy.aim."""
        if candidate is None:
            candidate = next_view(self.steps, look) if self.steps else self.candidates[-1]
        device = look.logits.device
        if self.kind == "random":
            where = drawn_places(look.scene, self.view, look.number + 1).to(device)
        else:
            where = centre_or_corner(look, self.patches_before)
        return Aim(where=where, candidate=candidate)


def centre_or_corner(look: Look, patches_before: int = 0) -> Tensor:
    """(B, 2) the place after this look; patches_before: how many of the places were seen at the first look."""
    place = CENTRE_AND_CORNERS[(look.number - 1 + patches_before) % len(CENTRE_AND_CORNERS)]
    return torch.tensor(place, device=look.logits.device).expand(look.count, 2)
