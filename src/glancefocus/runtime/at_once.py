"""Takes all looks at a single image by one run of one graph: between looks there is nothing left to wait for."""

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glancefocus.exits.rule import ExitRule
from glancefocus.outcome import Outcome
from glancefocus.scene import Scene
from glancefocus.settings import NetworkSettings


class AllLooks(Protocol):
    """Who runs the graph: its outputs in order, given its inputs in order, see one_graph.py; None where they are no numbers."""

    @property
    def opens(self) -> bool:
        """Whether there is a graph to run, which is put together when somebody first asks."""
        ...

    def __call__(self, *inputs: NDArray[np.float32]) -> Sequence[Any] | None: ...


class AtOnce:
    """All looks at a scene of one image, of a network that fits one graph.

    The first such image is left to the loop: whoever has one only, or one that is left over from batches, need not wait for the
    graph to be put together, nor hold the weights twice.
    """

    def __init__(self, settings: NetworkSettings, run: AllLooks) -> None:
        self.settings = settings
        self.run = run
        self._asked_before = False

    def look(self, scene: Scene, rule: ExitRule) -> Outcome | None:
        """None where the scene is of several images, or the rule looks at more than their confidence."""
        image: Tensor | None = getattr(scene, "lone_image", None)
        thresholds = rule.for_one_image()
        if image is None or thresholds is None or not self._takes(image, len(thresholds)):
            return None
        if not self._asked_before:
            self._asked_before = True
            return None
        if not self.run.opens:
            return None
        glance = scene.glance(self.settings.glance_px, self.settings.glance_resize)
        seen = [tensor.detach().contiguous().numpy() for tensor in (glance, image)]
        outputs = self.run(*seen, np.array(thresholds, np.float32))
        return None if outputs is None else outcome_of(outputs, thresholds, self.settings.patch_px[0])

    def _takes(self, image: Tensor, looks: int) -> bool:
        large_enough = min(image.shape[-2:]) >= self.settings.patch_px[0]
        return large_enough and image.dtype == torch.float32 and looks <= self.settings.looks


def outcome_of(outputs: Sequence[Any], thresholds: Sequence[float], patch_px: int) -> Outcome:
    """What the graph's outputs say, as the loop's recorder would have written it down. Of so few numbers lists are the fastest."""
    logits, answer, confidence, answers, confidences, where = outputs
    answered, sureness = (
        [*answer.tolist(), *answers.ravel().tolist()],
        [*confidence.tolist(), *confidences.ravel().tolist()],
    )
    looks, most = len(answered), len(thresholds)
    left = most - looks
    threshold = thresholds[looks - 1]
    sure = bool(sureness[-1] > np.float32(threshold)) and (looks < most or threshold > 0)  # see ExitRule
    aimed_at = [*where.reshape(-1, 2).tolist(), *([[math.nan, math.nan]] * left)]
    return Outcome(
        answer=torch.tensor(answered[-1:]),
        confidence=torch.tensor(sureness[-1:], dtype=torch.float32),
        looks=torch.tensor([looks]),
        sure=torch.tensor([sure]),
        logits=torch.from_numpy(logits),
        where=torch.tensor(aimed_at, dtype=torch.float32).reshape(1, most - 1, 2),
        patch_px=torch.tensor([[patch_px] * (looks - 1) + [0] * left], dtype=torch.int64),
        answer_after=torch.tensor([answered + [-1] * left]),
        confidence_after=torch.tensor([sureness + [math.nan] * left], dtype=torch.float32),
    )
