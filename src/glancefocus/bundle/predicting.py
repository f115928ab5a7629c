"""How a bundle predicts: views pictures, puts them into batches that fit into memory, runs the loop, and chooses when to stop."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from glancefocus.data.arrays import view_array
from glancefocus.data.clips import frame_indexes, view_clip, view_clip_array
from glancefocus.data.file_scene import FileImage, FilePicture, FileScene, view_file
from glancefocus.data.images import MAX_PIXELS, Picture, as_rgb, is_small, normalise_small, read_picture, view_pixels
from glancefocus.data.large import ReadAhead, open_large
from glancefocus.data.video import MAX_FRAME_PIXELS, Limits
from glancefocus.errors import BadBudget, BadBundle, BadImage, BadSetting
from glancefocus.exits.curve import Latency, thresholds_within
from glancefocus.look import Scene, as_scene
from glancefocus.loop import CandidateRule, Deadline, ExitRule, every_look, fixed_looks, look_until_sure, score_named
from glancefocus.machine import batch_bytes, check_threads, is_out_of_memory
from glancefocus.network.places import SAMPLE_PX
from glancefocus.outcome import Outcome
from glancefocus.progress import Progress
from glancefocus.region import Placement
from glancefocus.settings import NetworkSettings
from glancefocus.stream import look_at_stream, without_gradients
from glancefocus.values import Looks, Milliseconds, MultiplyAdds, checked, shown

if TYPE_CHECKING:
    from glancefocus.bundle.bundle import Bundle

HELD_BATCHES = 4
"""Pooled images take at most the memory of this many batches; then all of them are finished before the next one is read."""
FRAMES_DRAWN = 4
"""Number of frames of a clip that are kept to draw on, as in the paper's figure."""
_LONGEST_DRAWN_PX = 960  # of a picture to draw on: full-size frames of a batch of clips would not fit into memory
_PILLOW_BYTES = 4  # memory of one RGB pixel in Pillow


@dataclass(frozen=True)
class Viewed:
    """A picture or clip that was read and resized for the network.

    image          (3, H, W), or (frames, 3, H, W) for a clip; normalised, or still uint8 if it is large; a FileImage if it stays in
                   its file
    placement      where the image lies in the picture
    notes          what is unusual about the file, such as "upscaled from 20x9 px"
    pictures       the picture, or some frames of the clip, to draw on; empty unless they were asked for
    picture_scale  size of these pictures divided by the size of the original
    file           the picture, if it can be read part by part, to draw the looks from; None unless pictures were asked for
    """

    image: Tensor | FileImage
    placement: Placement = Placement()  # noqa: RUF009, it is frozen
    notes: tuple[str, ...] = ()
    pictures: tuple[Image.Image, ...] = ()
    picture_scale: float = 1.0
    file: FilePicture | None = None

    @property
    def held_bytes(self) -> int:
        """Memory that the image and the pictures take."""
        return self.image.nbytes + sum(_PILLOW_BYTES * one.width * one.height for one in self.pictures)


def listed(pictures: Picture | Viewed | Sequence[Picture | Viewed], frames: int) -> list[Picture | Viewed]:
    """One picture, several of them, or a tensor with one more dimension in front, as a list."""
    if isinstance(pictures, Tensor) and pictures.dim() == (4 if frames == 1 else 5):
        return list(pictures)
    if isinstance(pictures, (str, Path, bytes, Image.Image, Tensor, np.ndarray, Viewed)):
        return [pictures]
    return list(pictures)


def least_px(settings: NetworkSettings) -> int:
    """Side of the largest square that a view cuts out by pixels; smaller pictures are upscaled until it fits."""
    views = [settings.glance_view, *(settings.candidates if settings.looks > 1 else ())]
    extents = [view.extent for view in views if isinstance(view.extent, int)]
    draws_places = "random" in (settings.first_view, settings.policy.kind)
    return max([*extents, SAMPLE_PX if draws_places else 1])


@dataclass(frozen=True)
class Reading:
    """How pictures are read; see Bundle.view."""

    max_pixels: int | None = None
    keep_pictures: bool = False
    progress: Progress | None = None


def view(source: Picture, settings: NetworkSettings, reading: Reading) -> Viewed:
    """Read a picture or clip; see Bundle.view."""
    check_threads()
    name = str(source) if isinstance(source, (str, Path)) else "the picture" if settings.frames == 1 else "the clip"
    try:
        if settings.frames == 1:
            return _view_picture(source, settings, reading)
        if isinstance(source, (str, Path, bytes)):
            return _view_clip(source, name, settings, reading)
        image, placement = view_clip_array(source, settings.frames, settings.view, least_px(settings))
        return Viewed(image, placement, _noted(placement))
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise BadImage(f"{name} does not fit into memory. Make it smaller, or free memory.") from None


def arrived(view: Callable[[Picture], Viewed], picture: Picture | Viewed | None) -> Viewed | None:
    """A picture of a stream, read unless it was read before; None means that no picture has arrived."""
    return picture if picture is None or isinstance(picture, Viewed) else view(picture)


def _view_picture(source: Picture, settings: NetworkSettings, reading: Reading) -> Viewed:
    if isinstance(source, (str, Path, bytes)):
        if not is_small(source):
            large = open_large(source, max_pixels=reading.max_pixels, progress=reading.progress)
            if large is not None:
                return _view_large(large, settings, reading.keep_pictures)
        picture = read_picture(source, max_pixels=reading.max_pixels or MAX_PIXELS)
    elif isinstance(source, Image.Image):
        picture = as_rgb(source)
    else:
        image, placement = view_array(source, settings.view, least_px(settings))
        return Viewed(image, placement, _noted(placement))
    pixels, placement = view_pixels(picture, settings.view, least_px(settings))
    image = normalise_small(pixels, settings.view)
    return Viewed(image, placement, _noted(placement), (picture,) if reading.keep_pictures else ())


def _view_large(picture: FilePicture, settings: NetworkSettings, keep_picture: bool) -> Viewed:
    """The image of a picture of which only parts are read."""
    image, placement = view_file(picture, settings.view, least_px(settings), settings.glance_view)
    image = normalise_small(image, settings.view) if isinstance(image, Tensor) else image
    if not keep_picture:
        return Viewed(image, placement, _noted(placement))
    overview, scale = picture.overview(_LONGEST_DRAWN_PX)
    return Viewed(image, placement, _noted(placement), (overview,), scale, picture)


def ahead(
    sources: Sequence[Picture | Viewed], view: Callable[[Picture], Viewed]
) -> AbstractContextManager[Callable[[int], Viewed]]:
    """In the block: a function that views one of the pictures, which are taken in order, and raises BadImage.

    Large files among the next few are opened meanwhile, see ReadAhead.
    view  Bundle.view, with its options
    """

    def seen(source: Picture | Viewed) -> Viewed:
        return source if isinstance(source, Viewed) else view(source)

    return ReadAhead(sources, seen) if len(sources) > 1 else nullcontext(lambda number: seen(sources[number]))


def in_order(sources: Sequence[Picture | Viewed], view: Callable[[Picture], Viewed]) -> Iterator[Viewed]:
    """All of them; the first that cannot be read raises BadImage."""
    with ahead(sources, view) as take:
        for number in range(len(sources)):
            yield take(number)


def _view_clip(source: str | Path | bytes, name: str, settings: NetworkSettings, reading: Reading) -> Viewed:
    pictures: list[Image.Image] = []
    scale = 1.0

    def see(picture: Image.Image) -> tuple[Tensor, Placement]:
        nonlocal scale
        if reading.keep_pictures:
            scale = scale if pictures else min(1.0, _LONGEST_DRAWN_PX / max(picture.size))
            width, height = round(picture.width * scale), round(picture.height * scale)
            pictures.append(picture if scale == 1 else picture.resize((width, height)))
        pixels, placement = view_pixels(picture, settings.view, least_px(settings))
        return normalise_small(pixels, settings.view), placement

    limits = Limits(pixels=reading.max_pixels or MAX_FRAME_PIXELS)
    images, placement, clip = view_clip(source, settings.frames, settings.view, limits=limits, name=name, see=see)
    drawn = [pictures[number] for number in frame_indexes(settings.frames, FRAMES_DRAWN)] if pictures else ()
    return Viewed(images, placement, (*clip.notes, *_noted(placement)), tuple(drawn), scale)


def _noted(placement: Placement) -> tuple[str, ...]:
    return (placement.note,) if placement.note else ()


def in_batches(items: Iterable[Viewed | None], batch_size: int) -> Iterator[list[Viewed] | None]:
    """Batches of `batch_size` images, or of fewer if these would take too much memory; a large image is a batch of its own.

    items  None: no image has arrived; images that are waiting for a full batch are then a batch. Without any, None is passed on.
    """
    most_bytes = batch_bytes()
    batch: list[Viewed] = []
    taken = 0
    for item in items:
        size = 0 if item is None else item.held_bytes
        if batch and (item is None or taken + size > most_bytes):
            yield batch
            batch, taken = [], 0
        elif item is None:
            yield None
        if item is not None:
            batch.append(item)
            taken += size
        del item  # so that it is not in memory any more when the next one is read
        if len(batch) == batch_size or (batch and taken >= most_bytes):
            yield batch
            batch, taken = [], 0
    if batch:
        yield batch


def cut(viewed: Sequence[Viewed], batch_size: int) -> list[list[Viewed]]:
    """The same for images that are all in memory already."""
    return [list(viewed[start : start + batch_size]) for start in range(0, len(viewed), batch_size)]


def joined(outcomes: Iterable[Outcome]) -> Outcome:
    """One outcome of several batches."""
    parts = list(outcomes)
    if not parts:
        raise BadImage("there are no pictures to look at.")
    outcome = parts[0] if len(parts) == 1 else Outcome.join(parts)
    for problem in filter(None, outcome.problems):
        raise BadImage(problem)
    return outcome


def run_apart(
    bundle: "Bundle",
    batches: Iterable[list[Viewed] | None],
    rule: ExitRule,
    ends_at: Callable[[], float] | None = None,
) -> Iterator[Outcome]:
    """The outcome of every batch, one after the other.

    ends_at  the time at which the looks at the next batch must end, in seconds of time.perf_counter
    """
    for batch in batches:
        if batch:
            if ends_at is not None:
                rule = replace(rule, deadline=Deadline(time.perf_counter, time.perf_counter(), ends_at()))
            with torch.inference_mode():
                outcome = look_until_sure(bundle.net, scene_of(bundle, batch), rule)
            yield described(outcome, bundle, rule, facts_of(batch))
        del batch  # so that its images are not in memory any more when the next ones are read


def run_pooled(
    bundle: "Bundle",
    batches: Iterable[list[Viewed] | None],
    rule: ExitRule,
    full_batch: int,
    wait_ms: float | None = None,
) -> Iterator[Outcome]:
    """The same, but undecided images of several batches take their next look together, so that batches stay full."""
    batches, end = iter(batches), object()
    most_bytes = HELD_BATCHES * batch_bytes()
    begun: deque[Facts] = deque()

    def scenes(batch: Any) -> Iterator[Scene | None]:
        held = 0
        while batch is not end:
            if batch:
                begun.append(facts_of(batch))
                held += sum(one.held_bytes for one in batch)
            scene = scene_of(bundle, batch) if batch else None
            del batch
            yield scene
            del scene  # so that images which stopped are not in memory any more when the next ones are read
            batch = next(batches, end) if held < most_bytes else end

    for first in batches:
        outcomes = look_at_stream(bundle.net, scenes(first), rule, full_batch=full_batch, wait_ms=wait_ms)
        del first
        for outcome in without_gradients(outcomes):
            yield described(outcome, bundle, rule, begun.popleft())


@dataclass(frozen=True)
class Facts:
    """What an outcome reports about the images of its batch."""

    placements: tuple[Placement, ...]
    notes: tuple[tuple[str, ...], ...]
    image_px: Tensor
    files: tuple[FileImage | None, ...]


def facts_of(batch: Sequence[Viewed]) -> Facts:
    notes = tuple(one.notes for one in batch)
    sizes = torch.tensor([one.image.shape[-2:] for one in batch])
    files = tuple(one.image if isinstance(one.image, FileImage) else None for one in batch)
    return Facts(tuple(one.placement for one in batch), notes if any(notes) else (), sizes, files)


def scene_of(bundle: "Bundle", batch: Sequence[Viewed]) -> Scene:
    check_threads()
    images, view = [one.image.to(bundle.device) for one in batch], bundle.settings.view
    if any(isinstance(image, FileImage) for image in images):
        return FileScene(tuple(images), view)
    return as_scene([image for image in images if isinstance(image, Tensor)], view)


def described(outcome: Outcome, bundle: "Bundle", rule: ExitRule, facts: Facts) -> Outcome:
    """The outcome with class names, costs, thresholds and what is known about its images; NaN in the answers is refused."""
    if not bool(outcome.logits.isfinite().all()):
        raise BadBundle(
            "the network's answers are NaN or infinite: its weights are too large, or broken. Train or import it again."
        )
    return replace(
        outcome,
        classes=bundle.classes,
        costs=bundle.costs,
        thresholds=tuple(rule.threshold(look) for look in range(1, rule.looks + 1)),
        score=rule.score.name,
        notes=facts.notes,
        problems=tuple("" if one is None else next(iter(one.problems), "") for one in facts.files),
        placements=facts.placements,
        image_px=facts.image_px,
        views=bundle.net.candidates,
        first_view=bundle.settings.glance_view,
    )


def exit_rule(
    bundle: "Bundle",
    *,
    thresholds: Sequence[Any] | None,
    looks: int | None,
    budget_macs: float | None,
    budget_ms: float | None,
) -> ExitRule:
    """The rule for what a user asked for; see Bundle.exit_rule."""
    if sum(choice is not None for choice in (thresholds, looks, budget_macs, budget_ms)) > 1:
        raise BadSetting("give thresholds, or a number of looks, or a budget, not several of them.")
    most, costs = bundle.settings.looks, bundle.costs
    shape = most, bundle.settings.view_choices
    if looks is not None and checked(Looks, looks, "looks") > most:
        raise BadSetting(f"this network takes 1 to {most} looks, not {looks}.")
    if budget_macs is not None:
        budget = checked(MultiplyAdds, budget_macs, "budget_macs")
        ends: tuple[float, float] = costs.macs_after_look[0], max(costs.macs_of_tree())
        thresholds = thresholds_within(bundle.curve, budget, ends, "macs", shape)
    elif budget_ms is not None:
        budget = checked(Milliseconds, budget_ms, "budget_ms")
        latency = _measured(bundle)
        ends = latency.glance_ms, max(latency.ms_of_tree())
        thresholds = thresholds_within(bundle.curve, budget, ends, "ms", shape, latency.mean_ms)
    elif thresholds is None and looks is None:
        thresholds = bundle.thresholds
    if thresholds is None:
        number = looks or most
        # The policy of a network that zooms chooses the views.
        rule = every_look(number) if bundle.settings.zoom else fixed_looks(number, bundle.net.candidates)
        return replace(rule, temperatures=bundle.temperatures and bundle.temperatures[:number])
    if isinstance(thresholds, str) or not isinstance(thresholds, Iterable):
        raise BadSetting(f"thresholds must be a list of numbers, but got {shown(thresholds)}.")
    return _rule_of(bundle, list(thresholds))


def _rule_of(bundle: "Bundle", thresholds: list[Any]) -> ExitRule:
    most, choices = bundle.settings.looks, bundle.settings.view_choices
    if len(thresholds) == most - 1:  # the last look needs no threshold: every image stops there
        thresholds = [*thresholds, 0.0 if choices == 1 else [0.0] * choices]
    if len(thresholds) != most:
        raise BadSetting(
            f"this network takes {most} looks, so it needs {most - 1} thresholds, but got {len(thresholds)}."
        )
    if {isinstance(t, Sequence) for t in thresholds} != {choices > 1}:
        each = "one threshold" if choices == 1 else f"{choices} thresholds"
        names = ", ".join(bundle.settings.focus)
        raise BadSetting(f"a network with patches of {names} px needs {each} for each look.")
    score = score_named(bundle.score, torch.Generator().manual_seed(0))
    if score.needs_aim and bundle.settings.policy.kind != "learnt":
        raise BadSetting(
            f"the score {score.name!r} needs a learnt policy, and this one is a rule. Use confidence or entropy."
        )
    if choices > 1:
        return CandidateRule(thresholds, score, bundle.temperatures, candidates=choices)
    return ExitRule(thresholds, score, bundle.temperatures)


def _measured(bundle: "Bundle") -> Latency:
    latency = bundle.latency_here()
    if latency is None:
        raise BadBudget(
            "no milliseconds were measured on this device with this number of threads in this runtime. "
            "Run `gf budget BUNDLE DATA --ms` on it (with the same --runtime, --light-weights and --threads), "
            "or give a budget in multiply-adds."
        )
    return latency
