"""Built-in worlds: data sets that are drawn from a seed, opened by name."""

from collections.abc import Iterator
from dataclasses import dataclass

from glancefocus.data.splits import MemorySplit, Split
from glancefocus.data.worlds.gestures import CLASSES as GESTURES_CLASSES
from glancefocus.data.worlds.gestures import GesturesSettings, make_gestures
from glancefocus.data.worlds.signs import CLASSES as SIGNS_CLASSES
from glancefocus.data.worlds.signs import SignsSettings, make_signs
from glancefocus.errors import BadData
from glancefocus.progress import Progress, progress_of
from glancefocus.settings import ViewSettings

__all__ = ["WORLDS", "GesturesSettings", "SignsSettings", "World", "open_world", "world_classes"]

WORLDS = ("signs", "gestures")


@dataclass(frozen=True)
class World:
    """A world by name, its number of scenes (train, val, test), how they are drawn, and how far training may shift them."""

    name: str
    scenes: tuple[int, int, int]
    seed: int
    signs: SignsSettings
    gestures: GesturesSettings
    shift_px: int = 0


def world_classes(name: str) -> tuple[str, ...]:
    """The classes of a world."""
    return GESTURES_CLASSES if name == "gestures" else SIGNS_CLASSES


def open_world(world: World, view: ViewSettings, frames: int, progress: Progress | None) -> Iterator[tuple[str, Split]]:
    """The splits train, val and test of a world. Refuses a world of images for a network of clips, and the reverse."""
    of_clips = world.name == "gestures"
    if of_clips != (frames > 1):
        what, other = ("clips", "images") if of_clips else ("images", "clips")
        raise BadData(f"{world.name} consists of {what}, but the network takes {other}. Choose another preset.")
    if of_clips and world.gestures.frames != frames:
        raise BadData(
            f"the clips of gestures have {world.gestures.frames} frames, but the network takes {frames}. "
            f"Draw them with --set data.gestures.frames={frames}."
        )
    for name, count in zip(("train", "val", "test"), world.scenes, strict=True):
        report = progress_of(progress, f"drawing {name} scenes")
        if of_clips:
            drawn = make_gestures(name, count, world.gestures, world.seed, progress=report)
            yield name, MemorySplit(drawn.clips, drawn.labels, view, boxes=drawn.boxes, shift_px=world.shift_px)
        else:
            made = make_signs(name, count, world.signs, world.seed, progress=report)
            yield name, MemorySplit(made.images, made.labels, view, boxes=made.boxes, shift_px=world.shift_px)
