"""Where the time of looking goes: encoders and classifier, policy, cutting patches out, resizing, and what is left for Python.

Where all looks at an image are one graph, the graph says what each of its nodes took.
"""

import itertools
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glancefocus.exits.rule import ExitRule, every_look
from glancefocus.look import Aim, Look
from glancefocus.loop import look_until_sure
from glancefocus.network.model import GlanceFocus
from glancefocus.network.parts import take_apart
from glancefocus.runtime.at_once import AtOnce
from glancefocus.runtime.network import PartsNetwork
from glancefocus.runtime.one_graph import CUTTING, LEAVING
from glancefocus.runtime.onnx import OnnxAllLooks
from glancefocus.runtime.torch import as_tuple
from glancefocus.scene import Scene, as_scene, frames_of
from glancefocus.settings import GlanceResize

SHARES = ("encoder_and_classifier", "policy", "crop", "resize", "python")
Clock = Callable[[], float]
LEAST_REPEATS = 9  # a look is the difference of two times


class Stopwatch:
    """Seconds that were spent on each of several things; what runs on a GPU is waited for."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self.clock = clock
        self.seconds: dict[Any, float] = defaultdict(float)
        self._on_gpu = torch.cuda.is_available()

    def time(self, what: Any, work: Callable[[], Any]) -> Any:
        started = self.clock()
        result = work()
        if self._on_gpu:
            torch.cuda.synchronize()
        self.seconds[what] += self.clock() - started
        return result


class TimedScene:
    """A scene whose glances and patches are timed."""

    def __init__(self, scene: Scene, watch: Stopwatch) -> None:
        self.scene = scene
        self.watch = watch

    @property
    def count(self) -> int:
        return self.scene.count

    @property
    def frames(self) -> int:
        return frames_of(self.scene)

    @property
    def lone_image(self) -> Tensor | None:
        return getattr(self.scene, "lone_image", None)

    def glance(self, px: int, resize: GlanceResize = "antialias") -> Tensor:
        seen: Tensor = self.watch.time("resize", lambda: self.scene.glance(px, resize))
        return seen

    def patch(self, where: Tensor, px: int) -> Tensor:
        seen: Tensor = self.watch.time("crop", lambda: self.scene.patch(where, px))
        return seen

    def keep(self, rows: Tensor) -> "TimedScene":
        return TimedScene(self.scene.keep(rows), self.watch)


class TimedLooks:
    """A network whose looks are timed by their number, aims included, and counted row by row."""

    def __init__(self, net: PartsNetwork, watch: Stopwatch) -> None:
        self.net = net
        self.watch = watch
        self.rows: dict[int, int] = defaultdict(int)
        self.policy = _TimedAims(self)

    def glance(self, scene: Scene) -> Look:
        look: Look = self.watch.time(1, lambda: self.net.glance(scene))
        self.rows[1] += look.count
        return look

    def focus(self, look: Look, aim: Aim) -> Look:
        number = look.number + 1
        self.rows[number] += look.count
        following: Look = self.watch.time(number, lambda: self.net.focus(look, aim))
        return following


class _TimedAims:
    def __init__(self, looks: TimedLooks) -> None:
        self.looks = looks

    def aim(self, look: Look, patch_px: int | Tensor | None = None) -> Aim:
        aim: Aim = self.looks.watch.time(look.number + 1, lambda: self.looks.net.policy.aim(look, patch_px))
        return aim


class _TimedGraph:
    """The graph of all looks, whose runs are timed."""

    def __init__(self, run: OnnxAllLooks, watch: Stopwatch) -> None:
        self.run = run
        self.watch = watch
        self.opens = run.opens

    def __call__(self, *inputs: NDArray[np.float32]) -> Sequence[Any] | None:
        outputs: Sequence[Any] | None = self.watch.time("graph", lambda: self.run(*inputs))
        return outputs


def with_timed_parts(net: GlanceFocus | PartsNetwork, watch: Stopwatch) -> PartsNetwork:
    """The same network, computed by the same runner, whose calls are timed: the policy's, and the others."""
    if isinstance(net, PartsNetwork):
        settings, run, policy = net.settings, net.run, net.policy
        sides, units = policy.map_sides, policy.units
    else:
        modules = {part.name: part.module for part in take_apart(net)}
        settings, sides, units = net.settings, net.policy.map_sides, net.policy.gru.hidden_size

        def run(part: str, *inputs: Tensor) -> Sequence[Tensor]:
            return as_tuple(modules[part](*inputs))

    def timed(part: str, *inputs: Tensor) -> Sequence[Tensor]:
        what = "policy" if part.startswith("aim_") else "encoder_and_classifier"
        outputs: Sequence[Tensor] = watch.time(what, lambda: run(part, *inputs))
        return outputs

    return PartsNetwork(settings, timed, sides, units)


def time_shares(
    net: GlanceFocus | PartsNetwork,
    batches: Sequence[Tensor],
    rules: Sequence[ExitRule],
    *,
    rounds: int = 3,
    clock: Clock = time.perf_counter,
) -> tuple[dict[str, float], list[float]]:
    """The share of each of SHARES in the time of looking, and the milliseconds of each look for an image that takes it.

    The shares and the looks are measured in passes of their own, so that one measurement is no part of the other.
    """
    if isinstance(net, PartsNetwork) and (graph := _one_graph_of(net, batches, rules)) is not None:
        shares = _shares_at_once(net, graph, batches, rules, rounds, clock)
        repeats = max(rounds, LEAST_REPEATS)
        return shares, ms_of_looks_at_once(net, batches[0], rules[0].looks, repeats=repeats, warm_up=1, clock=clock)
    watch, looking = Stopwatch(clock), Stopwatch(clock)
    parts = with_timed_parts(net, watch)
    plain = net if isinstance(net, PartsNetwork) else with_timed_parts(net, Stopwatch(clock))
    looks = TimedLooks(plain, looking)
    with torch.inference_mode():
        for number in range(-1, rounds):
            for images, rule in zip(batches, rules, strict=True):
                scene = TimedScene(as_scene(images), watch)
                watch.time("all", lambda scene=scene, rule=rule: look_until_sure(parts, scene, rule))  # type: ignore[misc]
                look_until_sure(looks, as_scene(images), rule)
            if number < 0:  # a first round is not counted
                for noted in (watch.seconds, looking.seconds, looks.rows):
                    noted.clear()
    whole = watch.seconds["all"]
    shares = {name: watch.seconds[name] / whole for name in SHARES[:-1]}
    shares["python"] = 1 - sum(shares.values())
    return shares, [1000 * looking.seconds[look] / looks.rows[look] for look in sorted(looks.rows)]


def takes_all_looks_at_once(net: Any, images: Tensor, rule: ExitRule) -> bool:
    """Whether the network goes through the loop by itself, see adaptive.LooksAtOnce; some begin with the second image only."""
    at_once = getattr(net, "look_at_once", None)
    with torch.inference_mode():
        return at_once is not None and any(at_once(as_scene(images), rule) is not None for _ in range(2))


def _one_graph_of(net: PartsNetwork, batches: Sequence[Tensor], rules: Sequence[ExitRule]) -> OnnxAllLooks | None:
    """The graph by which ONNX Runtime takes all looks at every one of these; None where it does not."""
    if net.at_once is None or not isinstance(net.at_once.run, OnnxAllLooks):
        return None
    alike = len({images.shape for images in batches}) == 1 and all(rule.for_one_image() is not None for rule in rules)
    return net.at_once.run if alike and takes_all_looks_at_once(net, batches[0], rules[0]) else None


def _shares_at_once(
    net: PartsNetwork,
    run: OnnxAllLooks,
    batches: Sequence[Tensor],
    rules: Sequence[ExitRule],
    rounds: int,
    clock: Clock,
) -> dict[str, float]:
    """The same where all looks are one graph, by what it notes of its nodes.

    Taking notes takes time, so that looking is timed without them; what the graph took beyond its other nodes is the encoders'.
    """
    watch = Stopwatch(clock)
    at_once = AtOnce(net.settings, _TimedGraph(run, watch))
    looking = PartsNetwork(net.settings, net.run, net.policy.map_sides, net.policy.units, at_once=at_once)
    with tempfile.TemporaryDirectory(prefix="glancefocus-profile-") as folder, torch.inference_mode():
        noting = run.profiled(Path(folder) / "looks")
        noted = AtOnce(net.settings, noting)
        noted.look(as_scene(batches[0]), rules[0])  # which is left to the loop, see AtOnce
        for number in range(-1, rounds):
            for images, rule in zip(batches, rules, strict=True):
                scene = TimedScene(as_scene(images), watch)
                watch.time("all", lambda scene=scene, rule=rule: look_until_sure(looking, scene, rule))  # type: ignore[misc]
                noted.look(as_scene(images), rule)
            if number < 0:  # a first round is not counted; all rounds are alike in what the graph does
                watch.seconds.clear()
        seconds = watch.seconds
        seconds["python"] = seconds["all"] - seconds["graph"] - seconds["resize"]
        for node, spent in noting.seconds_of_nodes():
            seconds[_purpose(node)] += spent * rounds / (rounds + 1)
    shares = {name: seconds[name] / seconds["all"] for name in SHARES[1:]}
    return {"encoder_and_classifier": 1 - sum(shares.values()), **shares}


def _purpose(node: str) -> str:
    """Which of SHARES a node of the graph of all looks is for. The runtime's own nodes, which change layouts, are the encoders'."""
    part = node.removeprefix("fused ").partition("/")[0]
    if part.startswith("aim_"):
        return "policy"
    return {CUTTING: "crop", LEAVING: "python"}.get(part, "encoder_and_classifier")


def ms_of_looks_at_once(
    net: Any, images: Tensor, looks: int, *, repeats: int, warm_up: int, clock: Clock = time.perf_counter
) -> list[float]:
    """The median milliseconds of each look where they are taken in one go: by how much one more look takes longer."""
    times: dict[int, list[float]] = {count: [] for count in range(1, looks + 1)}
    with torch.inference_mode():
        for turn in range(warm_up + repeats):
            for count, noted in times.items():
                started = clock()
                look_until_sure(net, as_scene(images), every_look(count))
                if turn >= warm_up:
                    noted.append(1000 * (clock() - started))
    turns = list(zip(*times.values(), strict=True))
    later = [[two - one for one, two in itertools.pairwise(turn)] for turn in turns]
    each = [
        statistics.median(turn[0] for turn in turns),
        *(statistics.median(spent) for spent in zip(*later, strict=True)),
    ]
    if min(each) > 0:
        return each
    # A busy moment hit some of them; how long all of them take is known better than how long each does.
    share = statistics.median(turn[-1] for turn in turns) / looks
    return [share] * looks
