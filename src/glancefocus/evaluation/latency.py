"""How long looking takes: milliseconds of each look and of the rivals, and the share of each part of the program."""

import functools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.scene_splits import OpenedAnew
from glancefocus.evaluation.verdict import Size
from glancefocus.exits.curve import Latency
from glancefocus.look import Aim, Look, Scene, as_scene, frames_of, sizes_of
from glancefocus.loop import ExitRule, look_until_sure
from glancefocus.machine import device_name
from glancefocus.network.model import GlanceFocus, Runner, Seen
from glancefocus.network.modules import Aimed
from glancefocus.region import Region
from glancefocus.runtime.choose import RuntimeOptions, open_backbone
from glancefocus.values import BatchSize, Count, checked

Progress = Callable[[float], None]
LEAST_ROUNDS = 3
"""At least this many rounds are measured, however long they take."""


def in_turns(
    ways: Mapping[str, Callable[[], object]],
    device: torch.device,
    rounds: int,
    warm_up: int,
    seconds: float | None = None,
    progress: Progress | None = None,
) -> dict[str, list[float]]:
    """{name: seconds of each round}: every round runs all functions once, forwards and backwards in turns.

    Warm-up rounds are not counted. Interleaving makes a busy moment of the machine affect all of them alike.
    seconds, progress  see bench
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    began = time.perf_counter()
    with torch.inference_mode():
        for number in range(-warm_up, rounds):
            if progress is not None:
                progress((number + warm_up) / (rounds + warm_up))
            spent = time.perf_counter() - began
            # The time after one more round, if that takes as long as the mean so far.
            expected = spent * (number + warm_up + 1) / max(1, number + warm_up)
            if seconds is not None and number >= LEAST_ROUNDS and expected > seconds:
                break
            for name in ways if number % 2 == 0 else reversed(list(ways)):
                started = time.perf_counter()
                ways[name]()
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                if number >= 0:
                    times[name].append(time.perf_counter() - started)
    return times


def measure_latency(bundle: Bundle, *, batch_size: int = 1, repeats: int = 15, warm_up: int = 3) -> Latency:
    """The median time of the glance, and of every later look with each candidate view that it may have, aim included.

    Reading and resizing files is not included. Looks are measured in turns, so that a busy moment affects all of them alike.
    """
    batch_size, repeats = checked(BatchSize, batch_size, "batch_size"), checked(Count, repeats, "repeats")
    settings, net = bundle.settings, bundle.net
    view = settings.view
    shape = (batch_size, settings.frames, 3, view.height_px, view.width_px)
    images = torch.zeros(shape, device=bundle.device)
    if settings.frames == 1:
        images = images[:, 0].contiguous(memory_format=torch.channels_last)
    times: dict[tuple[int, int], list[float]] = {}
    with torch.inference_mode():
        for turn in range(warm_up + repeats):
            look, spent = _timed(lambda: net.glance(images), images)
            _note(times, (1, 0), spent, turn >= warm_up)
            while look.number < settings.looks:
                looks = []
                for index in settings.next_views(look.number):
                    following, spent = _timed(functools.partial(_focus, bundle, look, index), images)
                    _note(times, (look.number + 1, index), spent, turn >= warm_up)
                    looks.append(following)
                look = looks[-1]
    median = {key: 1000 * statistics.median(values) / batch_size for key, values in times.items()}
    later = [
        tuple(median[look, each] for each in settings.next_views(look - 1)) for look in range(2, settings.looks + 1)
    ]
    return Latency(
        device=device_name(bundle.device),
        threads=torch.get_num_threads(),
        batch_size=batch_size,
        glance_ms=median[1, 0],
        focus_ms=tuple(later),
        runtime=bundle.runtime,
    )


def _focus(bundle: Bundle, look: Look, candidate: int) -> Look:
    return bundle.net.focus(look, bundle.net.policy.aim(look, candidate))


def _timed(work: Callable[[], Look], images: Tensor) -> tuple[Look, float]:
    started = time.perf_counter()
    look = work()
    if images.is_cuda:
        torch.cuda.synchronize(images.device)
    return look, time.perf_counter() - started


def _note(times: dict[tuple[int, int], list[float]], key: tuple[int, int], spent: float, counts: bool) -> None:
    if counts:
        times.setdefault(key, []).append(spent)


USUAL_RUNTIME = "eager"
"""Of rivals and network where the bundle has no runtime: torch, with folded batch norms."""


@dataclass(frozen=True)
class RivalTimes:
    """Medians for a single image, in milliseconds.

    ours     of leaving at each node of the look table
    resized  of the backbone at each image size
    device   for people
    """

    ours: tuple[float, ...]
    resized: dict[Size, float]
    device: str


def measure_rival_times(bundle: Bundle, sizes: Sequence[Size], *, rounds: int = 5, warm_up: int = 1) -> RivalTimes:
    """The times of a bundle and of its backbone at these image sizes, in turns, both in the runtime of the bundle.

    Reading and resizing files is not included.
    """
    net, frames = bundle.net, bundle.settings.frames
    own = Bundle(net, bundle.classes, bundle.costs, score=bundle.score, temperatures=bundle.temperatures)
    if own.runtime is None:
        own.use(USUAL_RUNTIME)
    words = own.runtime or USUAL_RUNTIME
    backbone_in_runtime = functools.partial(
        open_backbone, net, words.partition(",")[0], options=RuntimeOptions(light_weights=own.net.light_weights)
    )
    # A graph takes images of one size; modules take any.
    of_any_size = None if words.startswith(("onnx", "openvino")) else backbone_in_runtime()
    looks: list[tuple[float, ...]] = []

    def ours() -> None:
        looks.append(measure_latency(own, repeats=1, warm_up=0).ms_of_tree())

    ways: dict[str, Callable[[], object]] = {"ours": ours}
    for size in sizes:
        shape = (1, 3, *size) if frames == 1 else (1, frames, 3, *size)
        backbone = of_any_size or backbone_in_runtime(size=size)
        ways[str(size)] = functools.partial(backbone, torch.zeros(shape, device=bundle.device))
    times = in_turns(ways, bundle.device, rounds, warm_up)
    threads = torch.get_num_threads()
    return RivalTimes(
        ours=tuple(float(ms) for ms in np.median(np.asarray(looks[warm_up:]), axis=0)),
        resized={size: 1000 * statistics.median(times[str(size)]) for size in sizes},
        device=f"{device_name(bundle.device)}, {threads} thread{'s' if threads > 1 else ''}, batch 1, {words}",
    )


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

    @property
    def sizes(self) -> Tensor:
        return sizes_of(self.scene)

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

    def glance(self, images: Tensor, place: Tensor | None = None) -> Seen:
        seen: Seen = self.watch.time("encoder_and_classifier", lambda: self.runner.glance(images, place))
        return seen

    def focus(self, patches: Tensor, memory: Tensor, number: int, candidate: int, place: Tensor | None) -> Seen:
        compute = functools.partial(self.runner.focus, patches, memory, number, candidate, place)
        seen: Seen = self.watch.time("encoder_and_classifier", compute)
        return seen

    def aim(
        self, map_: Tensor, last: int, memory: Tensor | None, next_code: Tensor | None, place: Tensor | None
    ) -> Aimed:
        aimed: Aimed = self.watch.time("policy", lambda: self.runner.aim(map_, last, memory, next_code, place))
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

    def aim(self, look: Look, candidate: int | Tensor | None = None) -> Aim:
        aim: Aim = self.looks.watch.time(look.number + 1, lambda: self.looks.net.policy.aim(look, candidate))
        return aim


def opened(images: Tensor | OpenedAnew) -> Scene:
    """The scene of a batch whose time is measured."""
    return as_scene(images) if isinstance(images, Tensor) else images.scene()


def time_shares(
    net: GlanceFocus,
    batches: Sequence[Tensor | OpenedAnew],
    rules: Sequence[ExitRule],
    *,
    rounds: int = 3,
    clock: Clock = time.perf_counter,
) -> tuple[dict[str, float], list[float]]:
    """The share of each of SHARES in the time of looking, and the milliseconds of each look for an image that takes it.

    The shares and the looks are measured in separate passes, so that one measurement does not slow down the other. Reading the
    regions of large pictures counts as resize (of the whole image) and crop; opening them does not count.
    """
    watch, looking = Stopwatch(clock), Stopwatch(clock)
    timed = net.computed_by(TimedRunner(net.runner, watch))
    looks = TimedLooks(net, looking)
    with torch.inference_mode():
        for number in range(-1, rounds):
            for images, rule in zip(batches, rules, strict=True):
                scene = TimedScene(opened(images), watch)
                watch.time("all", lambda scene=scene, rule=rule: look_until_sure(timed, scene, rule))  # type: ignore[misc]
                look_until_sure(looks, opened(images), rule)
            if number < 0:  # a first round is not counted
                for counted in (watch.seconds, looking.seconds, looks.rows):
                    counted.clear()
    whole = watch.seconds["all"]
    shares = {name: watch.seconds[name] / whole for name in SHARES[:-1]}
    shares["python"] = 1 - sum(shares.values())
    return shares, [1000 * looking.seconds[look] / looks.rows[look] for look in sorted(looks.rows)]
