"""Runs the parts of a network by their names: the step from a runtime's graphs to the runner that the network calls."""

import functools
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from glancefocus.network.model import GlanceFocus, Seen
from glancefocus.network.modules import Aimed
from glancefocus.network.parts import aim_part, answer_part, focus_part
from glancefocus.settings import GLANCE


class RunPart(Protocol):
    """The outputs of the part of this name (see network/parts.py), in order.

    A part that gives logits may give two more outputs at the end: the confidence and the answer of each row, see Look.best.
    Inputs are not written to.
    """

    def __call__(self, part: str, *inputs: Tensor) -> Sequence[Tensor]: ...


class PartsRunner:
    """A network's runner (network.model.Runner) that calls parts by their names.

    run           computes one part
    frames        of each clip, 1 for images
    cascaded      the classifier's memory is every vector so far, and each look has an answer part of its own
    policy_units  of the policy's memory
    aim_parts     the part that aims after each candidate, and last after the glance
    focus_parts   the part that takes a look at each candidate
    """

    def __init__(
        self,
        run: RunPart,
        *,
        frames: int,
        cascaded: bool,
        policy_units: int,
        aim_parts: tuple[str, ...],
        focus_parts: tuple[str, ...],
    ) -> None:
        self.run = run
        self.aim_parts = aim_parts
        self.focus_parts = focus_parts
        self.frames = frames
        self.cascaded = cascaded
        self.policy_units = policy_units

    @staticmethod
    def of(net: GlanceFocus, run: RunPart) -> "PartsRunner":
        """A runner for the parts of this network."""
        settings = net.settings
        cascaded = settings.classifier == "cascaded"
        aim_parts = tuple(aim_part(settings.code_of(each)) for each in (*range(len(settings.candidates)), GLANCE))
        focus_parts = tuple(focus_part(settings, each) for each in range(len(settings.candidates)))
        return PartsRunner(
            run,
            frames=settings.frames,
            cascaded=cascaded,
            policy_units=settings.policy.units,
            aim_parts=aim_parts,
            focus_parts=focus_parts,
        )

    def glance(self, images: Tensor, place: Tensor | None = None) -> Seen:
        given = [self._clips(images), *([] if place is None else [place])]
        logits, memory, map_, *best = self.run("glance", *given)
        return Seen(logits, memory, map_, best=_best(best))

    def focus(self, patches: Tensor, memory: Tensor, number: int, candidate: int, place: Tensor | None) -> Seen:
        if not self.cascaded:
            given = [self._clips(patches), memory, *([] if place is None else [place])]
            logits, memory, map_, *best = self.run(self.focus_parts[candidate], *given)
            return Seen(logits, memory, map_, best=_best(best))
        vector, map_ = self.run("focus", self._clips(patches))
        memory = torch.cat([memory, vector], dim=1)
        logits, *best = self.run(answer_part(number), memory)
        return Seen(logits, memory, map_, vector, _best(best))

    def aim(
        self, map_: Tensor, last: int, memory: Tensor | None, next_code: Tensor | None, place: Tensor | None
    ) -> Aimed:
        if memory is None:
            memory = _zeros(map_.shape[0], self.policy_units, map_.device)
        given = [each for each in (next_code, place) if each is not None]
        where, memory, value = self.run(self.aim_parts[last], map_, memory, *given)  # GLANCE is -1
        return Aimed(where, memory, value)

    def _clips(self, images: Tensor) -> Tensor:
        """(B, frames, 3, px, px) for clips, as parts take them."""
        return images if self.frames == 1 else images.reshape(-1, self.frames, *images.shape[1:])


def _best(outputs: Sequence[Tensor]) -> tuple[Tensor, Tensor] | None:
    return (outputs[0], outputs[1]) if outputs else None


@functools.lru_cache(maxsize=8)
@torch.inference_mode(False)  # a tensor made in inference mode could not be used outside of it
def _zeros(count: int, units: int, device: torch.device) -> Tensor:
    """The policy's memory before its first aim; cached, because making a tensor takes longer than using it."""
    return torch.zeros(count, units, dtype=torch.float32, device=device)
