"""Where the time of looking goes: encoders and classifier, policy, cutting patches out, resizing, and the rest in Python."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from glancefocus.exits.rule import ExitRule
from glancefocus.look import Aim, Look
from glancefocus.loop import look_until_sure
from glancefocus.network.model import GlanceFocus, Runner, Seen
from glancefocus.network.policy import Aimed
from glancefocus.region import Region
from glancefocus.scene import Scene, as_scene, frames_of

SHARES = ("encoder_and_classifier", "policy", "crop", "resize", "python")
Clock = Callable[[], float]


class Stopwatch:
    """Seconds that were spent on each of several things; work on a GPU is waited for."""

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
    """A scene whose views are timed: of the whole image as "resize", of patches as "crop"."""

    def __init__(self, scene: Scene, watch: Stopwatch) -> None:
        self.scene = scene
        self.watch = watch

    @property
    def count(self) -> int:
        return self.scene.count

    @property
    def frames(self) -> int:
        return frames_of(self.scene)

    def view(self, region: Region) -> Tensor:
        seen: Tensor = self.watch.time("resize" if region.where is None else "crop", lambda: self.scene.view(region))
        return seen

    def keep(self, rows: Tensor) -> "TimedScene":
        return TimedScene(self.scene.keep(rows), self.watch)


class TimedRunner:
    """A runner whose calls are timed: the policy's, and the others."""

    def __init__(self, runner: Runner, watch: Stopwatch) -> None:
        self.runner = runner
        self.watch = watch

    def glance(self, images: Tensor) -> Seen:
        seen: Seen = self.watch.time("encoder_and_classifier", lambda: self.runner.glance(images))
        return seen

    def focus(self, patches: Tensor, memory: Tensor, number: int) -> Seen:
        seen: Seen = self.watch.time("encoder_and_classifier", lambda: self.runner.focus(patches, memory, number))
        return seen

    def aim(self, map_: Tensor, px: int, memory: Tensor | None, next_size: Tensor | None) -> Aimed:
        aimed: Aimed = self.watch.time("policy", lambda: self.runner.aim(map_, px, memory, next_size))
        return aimed


class TimedLooks:
    """A network whose looks are timed by their number, aims included; `rows` counts the rows of each."""

    def __init__(self, net: GlanceFocus, watch: Stopwatch) -> None:
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


def time_shares(
    net: GlanceFocus,
    batches: Sequence[Tensor],
    rules: Sequence[ExitRule],
    *,
    rounds: int = 3,
    clock: Clock = time.perf_counter,
) -> tuple[dict[str, float], list[float]]:
    """The share of each of SHARES in the time of looking, and the milliseconds of each look for an image that takes it.

    The shares and the looks are measured in separate passes, so that one measurement does not slow down the other.
    """
    watch, looking = Stopwatch(clock), Stopwatch(clock)
    timed = net.computed_by(TimedRunner(net.runner, watch))
    looks = TimedLooks(net, looking)
    with torch.inference_mode():
        for number in range(-1, rounds):
            for images, rule in zip(batches, rules, strict=True):
                scene = TimedScene(as_scene(images), watch)
                watch.time("all", lambda scene=scene, rule=rule: look_until_sure(timed, scene, rule))  # type: ignore[misc]
                look_until_sure(looks, as_scene(images), rule)
            if number < 0:  # a first round is not counted
                for counted in (watch.seconds, looking.seconds, looks.rows):
                    counted.clear()
    whole = watch.seconds["all"]
    shares = {name: watch.seconds[name] / whole for name in SHARES[:-1]}
    shares["python"] = 1 - sum(shares.values())
    return shares, [1000 * looking.seconds[look] / looks.rows[look] for look in sorted(looks.rows)]
