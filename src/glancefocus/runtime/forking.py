"""Refuses to compute in a forked process with threads that exist only in the process it was forked from.

A fork copies the memory of a process, but only one of its threads. torch's pool of threads, and those of ONNX Runtime and OpenVINO,
are then gone, and whatever waits for them waits for ever. With one thread there is no pool, and everything works after a fork.
"""

import ctypes
import functools
import os
import weakref
from typing import Any, Protocol

import torch

from glancefocus.errors import ForkedThreads


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
