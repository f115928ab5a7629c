"""Runs the parts of a network by their names: the step from a runtime's graphs to what the network asks of a runner.

Also refuses to compute in a forked process with threads that exist only in the process that it was forked from. A fork copies the
memory of a process, but only one of its threads. The thread pools of torch, ONNX Runtime and OpenVINO are then gone, and work that
waits for them waits for ever. With one thread there is no pool, and everything works after a fork.
"""

import ctypes
import functools
import os
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from glancefocus.errors import ForkedThreads
from glancefocus.network.model import GlanceFocus, Seen
from glancefocus.network.parts import aim_part, answer_part
from glancefocus.network.policy import Aimed
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
    """

    def __init__(
        self, run: RunPart, *, frames: int, cascaded: bool, policy_units: int, aim_parts: tuple[str, ...]
    ) -> None:
        self.run = run
        self.aim_parts = aim_parts
        self.frames = frames
        self.cascaded = cascaded
        self.policy_units = policy_units

    @staticmethod
    def of(net: GlanceFocus, run: RunPart) -> "PartsRunner":
        """A runner for the parts of this network."""
        settings = net.settings
        cascaded = settings.classifier == "cascaded"
        aim_parts = tuple(aim_part(settings.code_of(each)) for each in (*range(len(settings.candidates)), GLANCE))
        units = net.policy.gru.hidden_size
        return PartsRunner(run, frames=settings.frames, cascaded=cascaded, policy_units=units, aim_parts=aim_parts)

    def glance(self, images: Tensor) -> Seen:
        logits, memory, map_, *best = self.run("glance", self._clips(images))
        return Seen(logits, memory, map_, best=_best(best))

    def focus(self, patches: Tensor, memory: Tensor, number: int) -> Seen:
        if not self.cascaded:
            logits, memory, map_, *best = self.run("focus", self._clips(patches), memory)
            return Seen(logits, memory, map_, best=_best(best))
        vector, map_ = self.run("focus", self._clips(patches))
        memory = torch.cat([memory, vector], dim=1)
        logits, *best = self.run(answer_part(number), memory)
        return Seen(logits, memory, map_, vector, _best(best))

    def aim(self, map_: Tensor, last: int, memory: Tensor | None, next_code: Tensor | None) -> Aimed:
        if memory is None:
            memory = _zeros(map_.shape[0], self.policy_units, map_.device)
        codes = () if next_code is None else (next_code,)
        where, memory, value = self.run(self.aim_parts[last], map_, memory, *codes)  # GLANCE is -1
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


class Pooled(Protocol):
    """What computes with a pool of threads of its own."""

    threads: int
    lost_threads: bool

    def held(self) -> list[Any]:
        """The objects that own the threads."""
        ...


class _Torch:
    """The threads that torch has computed with: in this process, and in those that it was forked from."""

    here = 1
    lost = 1


_pooled: "weakref.WeakSet[Pooled]" = weakref.WeakSet()


def check_threads(wanted: int | None = None) -> None:
    """Refuse where torch would wait for threads that are gone; call it before torch computes.

    wanted  threads that are to be used; None: as many as torch is set to use
    """
    _register()
    threads = torch.get_num_threads() if wanted is None else wanted
    if threads > 1 and _Torch.lost > 1:
        raise ForkedThreads(_Torch.lost)
    _Torch.here = max(_Torch.here, threads)


def watch(pooled: Pooled) -> None:
    """Set `lost_threads` of this object in forked processes, where it has more than one thread."""
    _register()
    _pooled.add(pooled)


def _after_fork() -> None:
    _Torch.lost, _Torch.here = max(_Torch.lost, _Torch.here), 1
    for pooled in list(_pooled):
        pooled.lost_threads = pooled.threads > 1
        for owner in pooled.held():
            # Its destructor would wait for the threads, too, so it is never freed in this process. OpenVINO has one more thread
            # than it computes with.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))


@functools.cache
def _register() -> None:
    if hasattr(os, "register_at_fork"):  # not on Windows, where there is no fork
        os.register_at_fork(after_in_child=_after_fork)
