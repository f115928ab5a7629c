"""The built-in worlds by name: what they are called, what they are of, and their splits."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from glancefocus.data.splits import MemorySplit, Split
from glancefocus.data.worlds import gestures, signs
from glancefocus.data.worlds.gestures import GesturesSettings, make_gestures
from glancefocus.data.worlds.signs import SignsSettings, make_signs
from glancefocus.errors import BadData
from glancefocus.settings import ViewSettings

__all__ = ["WORLDS", "GesturesSettings", "SignsSettings", "World", "open_world", "world_classes"]

WORLDS = ("signs", "gestures")


@dataclass(frozen=True)
class World:
    """Which world, how many scenes of it (train, val, test), how they are drawn, and by how much training may shift them."""

    name: str
    scenes: tuple[int, int, int]
    seed: int
    signs: SignsSettings
    gestures: GesturesSettings
    shift_px: int = 0


def world_classes(name: str) -> tuple[str, ...]:
    return gestures.CLASSES if name == "gestures" else signs.CLASSES


def open_world(
    world: World, view: ViewSettings, frames: int, progress: Callable[[str, int, int], None] | None
) -> Iterator[tuple[str, Split]]:
    """train, val and test of a world; a world of images is not for a network of clips, nor the other way round."""
    of_clips = world.name == "gestures"
    if of_clips != (frames > 1):
        what, other = ("clips", "images") if of_clips else ("images", "clips")
        raise BadData(f"{world.name} is a world of {what}, but the network looks at {other}. Choose another preset.")
    if of_clips and world.gestures.frames != frames:
        raise BadData(
            f"the clips of gestures have {world.gestures.frames} frames, but the network looks at {frames}. "
            f"Draw them with as many: --set data.gestures.frames={frames}."
        )
    for name, count in zip(("train", "val", "test"), world.scenes, strict=True):
        told = None if progress is None else _named(progress, f"drawing {name} scenes")
        if of_clips:
            drawn = make_gestures(name, count, world.gestures, world.seed, progress=told)
            yield name, MemorySplit(drawn.clips, drawn.labels, view, boxes=drawn.boxes, shift_px=world.shift_px)
        else:
            made = make_signs(name, count, world.signs, world.seed, progress=told)
            yield name, MemorySplit(made.images, made.labels, view, boxes=made.boxes, shift_px=world.shift_px)


def _named(progress: Callable[[str, int, int], None], what: str) -> Callable[[int, int], None]:
    return lambda done, total: progress(what, done, total)
