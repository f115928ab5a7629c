"""A network whose parts somebody else computes. To the loop it is a network like any other."""

import functools
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from glancefocus.exits.rule import ExitRule
from glancefocus.look import Aim, Look, padded_alike, rows_by_size
from glancefocus.network.model import check_frames
from glancefocus.network.parts import aim_part, answer_part
from glancefocus.network.policy import one_hot
from glancefocus.outcome import Outcome
from glancefocus.runtime.at_once import AtOnce
from glancefocus.scene import Scene, as_scene
from glancefocus.settings import NetworkSettings


class Runner(Protocol):
    """Who computes parts: the outputs of the part of this name (see network/parts.py), in order.

    Where there are logits among them, there may be two more at the end: the confidence and the answer of each row, see Look.best.
    Inputs are not written to.
    """

    def __call__(self, part: str, *inputs: Tensor) -> Sequence[Tensor]: ...


class PartsNetwork:
    """Glance, focus and policy by a runner.

    map_sides     {px: side of the map} for the glance and for every patch size
    policy_units  of the policy's memory
    runtime       the runner's name
    at_once       who takes all looks at a single image in one go; None: nobody
    """

    def __init__(
        self,
        settings: NetworkSettings,
        run: Runner,
        map_sides: dict[int, int],
        policy_units: int,
        runtime: str | None = None,
        at_once: AtOnce | None = None,
    ) -> None:
        self.settings = settings
        self.at_once = at_once
        self.runtime = runtime
        self.run = run
        self.policy = PartsPolicy(settings, run, map_sides, policy_units)
        self.cascaded = settings.classifier == "cascaded"

    def glance(self, scene: Scene | Tensor | Sequence[Tensor]) -> Look:
        scene = as_scene(scene)
        settings = self.settings
        check_frames(scene, settings.frames)
        glances = self._clips(scene.glance(settings.glance_px, settings.glance_resize))
        logits, memory, map_, *best = self.run("glance", glances)
        return Look(
            number=1,
            scene=scene,
            rows=_every_row(logits.shape[0], logits.device),
            logits=logits,
            vector=memory,
            map=map_,
            px=settings.glance_px,
            memory=memory,
            known_best=_best(best),
        )

    def look_at_once(self, scene: Scene, exit_rule: ExitRule) -> Outcome | None:
        """See adaptive.LooksAtOnce."""
        return None if self.at_once is None else self.at_once.look(scene, exit_rule)

    def focus(self, look: Look, aim: Aim) -> Look:
        px = aim.patch_px
        if isinstance(px, int):
            logits, memory, map_, *best = self._focus_one_size(look.scene, aim.where, px, look.memory, look.number + 1)
        else:
            logits, memory, map_, *best = self._focus_by_size(look, aim, px)
        return Look(
            number=look.number + 1,
            scene=look.scene,
            rows=look.rows,
            logits=logits,
            vector=memory,
            map=map_,
            px=px,
            memory=memory,
            policy_memory=aim.memory,
            aim=aim,
            known_best=_best(best),
        )

    def _focus_one_size(self, scene: Scene, where: Tensor, px: int, memory: Tensor, number: int) -> Sequence[Tensor]:
        patches = self._clips(scene.patch(where, px))
        if not self.cascaded:
            return self.run("focus", patches, memory)
        vector, map_ = self.run("focus", patches)
        memory = torch.cat([memory, vector], dim=1)
        logits, *best = self.run(answer_part(number), memory)
        return logits, memory, map_, *best

    def _focus_by_size(self, look: Look, aim: Aim, px: Tensor) -> Sequence[Tensor]:
        groups = rows_by_size(px)
        seen = [
            self._focus_one_size(look.scene.keep(rows), aim.where[rows], size, look.memory[rows], look.number + 1)
            for size, rows in groups
        ]
        order = torch.cat([rows for _, rows in groups]).argsort()
        maps = padded_alike([outputs[2] for outputs in seen])
        logits, memory = (torch.cat([outputs[i] for outputs in seen])[order] for i in (0, 1))
        return logits, memory, torch.cat(maps)[order]

    def _clips(self, images: Tensor) -> Tensor:
        frames = self.settings.frames
        return images if frames == 1 else images.reshape(-1, frames, *images.shape[1:])


class PartsPolicy:
    """The learnt policy by a runner."""

    def __init__(self, settings: NetworkSettings, run: Runner, map_sides: dict[int, int], units: int) -> None:
        self.patch_px = settings.patch_px
        self.run = run
        self.map_sides = map_sides
        self.units = units

    def aim(self, look: Look, patch_px: int | Tensor | None = None) -> Aim:
        next_px = max(self.patch_px) if patch_px is None else patch_px
        memory = look.policy_memory
        if memory is None:
            memory = _nothing_yet(look.count, self.units, look.map.device)
        codes = (one_hot(next_px, self.patch_px, memory),) if len(self.patch_px) > 1 else ()
        if isinstance(look.px, int):
            where, memory, value = self.run(aim_part(look.px), look.map, memory, *codes)
        else:
            where, memory, value = self._aim_by_size(look, look.px, memory, codes)
        return Aim(where=where, patch_px=next_px, memory=memory, mean=where, value=value)

    def _aim_by_size(self, look: Look, px: Tensor, memory: Tensor, codes: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        groups = rows_by_size(px)
        seen = []
        for size, rows in groups:
            side = self.map_sides[size]
            map_ = look.map[rows, :, :side, :side]
            seen.append(self.run(aim_part(size), map_, memory[rows], *(code[rows] for code in codes)))
        order = torch.cat([rows for _, rows in groups]).argsort()
        return tuple(torch.cat([outputs[i] for outputs in seen])[order] for i in range(3))


def _best(outputs: Sequence[Tensor]) -> tuple[Tensor, Tensor] | None:
    return (outputs[0], outputs[1]) if outputs else None


# Made once, for a tensor takes longer to make than to use; outside of inference mode, so that they may be used there, too.


@functools.lru_cache(maxsize=64)
@torch.inference_mode(False)
def _every_row(count: int, device: torch.device) -> Tensor:
    """Of looks, which nobody writes to."""
    return torch.arange(count, device=device)


@functools.lru_cache(maxsize=8)
@torch.inference_mode(False)
def _nothing_yet(count: int, units: int, device: torch.device) -> Tensor:
    """What a policy remembers before its first aim."""
    return torch.zeros(count, units, dtype=torch.float32, device=device)
