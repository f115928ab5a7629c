"""Turns rows of an outcome into answers for `gf predict`, with boxes in the picture's own pixels, and draws them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glancefocus.cli.seeing import Seen
from glancefocus.errors import BadSetting
from glancefocus.evaluation.boxes import draw_strip, looks_taken
from glancefocus.export.standalone.answers import answer
from glancefocus.files import write_file
from glancefocus.outcome import Outcome
from glancefocus.region import top_left

Box = tuple[int, int, int, int]


def answers_of(outcome: Outcome, seen: Sequence[Seen], topk: int) -> list[dict[str, Any]]:
    """What is said of each picture, see docs/predict.md."""
    costs = outcome.cost_macs.tolist()
    return [_answer(outcome, row, one, topk, int(costs[row])) for row, one in enumerate(seen)]


def _answer(outcome: Outcome, row: int, seen: Seen, topk: int, cost_macs: int) -> dict[str, Any]:
    taken = int(outcome.looks[row])
    return answer(
        seen.file,
        label=outcome.name(int(outcome.answer[row])),
        confidence=float(outcome.confidence[row]),
        looks=taken,
        sure=bool(outcome.sure[row]),
        threshold=outcome.threshold(row),
        where=outcome.where[row, : taken - 1].tolist(),
        boxes=boxes_of(outcome, row, seen),
        patch_px=outcome.patch_px[row, : taken - 1].tolist(),
        cost_macs=cost_macs,
        top=outcome.top(row, topk),
        notes=seen.notes,
    )


def boxes_of(outcome: Outcome, row: int, seen: Seen) -> list[Box]:
    """(left, top, right, bottom) of each patch in the picture's own pixels."""
    height, width = seen.image.shape[-2:]
    boxes = []
    for look in range(int(outcome.looks[row]) - 1):
        px = int(outcome.patch_px[row, look])
        top, left = top_left(outcome.where[row, look][None], height, width, px)[0].tolist()
        boxes.append(seen.placement.box_in_picture(top, left, px))
    return boxes


def make_folder(folder: Path) -> None:
    """The folder that drawings go to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadSetting(f"the folder {folder} cannot be made: {error.strerror}. Choose another one.") from None


def draw(outcome: Outcome, row: int, seen: Seen, folder: Path, number: int) -> None:
    """Write the picture into the folder with its looks, under its number and name."""
    truth = Path(seen.file).parent.name
    known = truth in (outcome.classes or ())
    scale = seen.drawn_scale
    boxes = [
        (round(a * scale), round(b * scale), round(c * scale), round(d * scale))
        for a, b, c, d in boxes_of(outcome, row, seen)
    ]
    looks = looks_taken(outcome, row, boxes, truth if known else None)
    title = f"{Path(seen.file).name}" + (f" (is {truth})" if known else "")
    notes = [f"stopped: {outcome.stopped(row)}", *seen.notes]
    picture = draw_strip(seen.pictures, looks, title=title, notes=notes)
    stem = "stdin" if seen.file == "-" else Path(seen.file).stem[:50]  # names of files have at most 255 bytes
    file = folder / f"{number:05d}-{stem}.png"
    try:
        write_file(file, lambda stream: picture.save(stream, format="PNG"))
    except OSError as error:
        raise BadSetting(f"the drawing {file} cannot be written: {error.strerror or error}.") from None
