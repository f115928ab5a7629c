"""`gf predict`: answers for files, with looks, boxes and costs. Bad files are listed, good ones are still answered.

What a network looks at, pictures or clips, is read by `seeing`; everything else is the same for both.
"""

import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

from glancefocus.bundle import Bundle
from glancefocus.commands.printing import notices, output
from glancefocus.commands.seeing import Seen, find_files, see
from glancefocus.early_exit.rule import ExitRule
from glancefocus.errors import BadImage, BadSetting
from glancefocus.evaluation.boxes import draw_strip, looks_taken
from glancefocus.loading import load
from glancefocus.merging import refuse_deadline
from glancefocus.outcome import Outcome
from glancefocus.scene import top_left

Batch = list[tuple[int, Seen]]
"""Files that could be read, with their numbers."""


def predict_files(
    bundle_folder: Path,
    files: Sequence[str],
    *,
    looks: int | None,
    thresholds: Sequence[Any] | None,
    budget_macs: float | None,
    budget_ms: float | None,
    deadline_ms: float | None,
    topk: int,
    draw: Path | None,
    batch_size: int,
    merge_batches: bool | None,
    max_pixels: int | None,
    runtime: str | None,
    light_weights: bool,
    threads: int | None,
    as_json: bool,
) -> int:
    """Print the answers; 0 when all files were answered, 2 when some could not be read."""
    bundle = load(bundle_folder, runtime=runtime, threads=threads, batch=batch_size, light_weights=light_weights)
    if thresholds is not None and len(bundle.settings.patch_px) > 1:
        thresholds = _by_look(thresholds, len(bundle.settings.patch_px))
    rule = bundle.exit_rule(thresholds=thresholds, looks=looks, budget_macs=budget_macs, budget_ms=budget_ms)
    if merge_batches:
        refuse_deadline(deadline_ms)
    answers: dict[int, dict[str, Any]] = {}
    names = _names(files, answers, bundle.settings.frames)
    if draw is not None:
        try:
            draw.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadSetting(f"the folder {draw} cannot be made: {error.strerror}. Choose another one.") from None
    with Progress(console=notices(), transient=True, disable=len(names) <= batch_size) as progress:
        task = progress.add_task("looking", total=len(names))
        batches = _batches(bundle, names, max_pixels, batch_size, draw is not None, answers)
        if merge_batches is None:
            merge_batches = len(names) > batch_size and _shrinks(rule) and draw is None and deadline_ms is None
        together = _together(bundle, rule, batches, batch_size)
        for batch, outcome in together if merge_batches else _apart(bundle, rule, batches, deadline_ms):
            _answer(outcome, batch, topk, draw, answers)
            progress.update(task, completed=len(answers))
    ordered = [answers[index] for index in sorted(answers)]
    if as_json:
        print(json.dumps(ordered, indent=1))  # noqa: T201
    else:
        _print(ordered, topk)
    failed = [a for a in ordered if "error" in a]
    for answer in failed:
        print(f"gf: {answer['error']}", file=sys.stderr)  # noqa: T201
    for note in (note for answer in ordered for note in answer.get("notes", [])):
        print(f"gf: note: {note}", file=sys.stderr)  # noqa: T201
    return 2 if failed else 0


def _by_look(numbers: Sequence[float], sizes: int) -> list[list[float]]:
    """Thresholds given one after the other, as a row for each look."""
    if len(numbers) % sizes:
        raise BadSetting(
            f"this network has {sizes} patch sizes: give {sizes} thresholds for each look, but got {len(numbers)}."
        )
    return [list(numbers[start : start + sizes]) for start in range(0, len(numbers), sizes)]


def _names(files: Sequence[str], answers: dict[int, dict[str, Any]], frames: int) -> list[str]:
    """Every file, folders searched through; a folder with nothing to look at goes into the answers as an error."""
    names: list[str] = []
    for file in files:
        try:
            names += ["-"] if file == "-" else [str(path) for path in find_files(file, frames)]
        except BadImage as error:
            answers[len(names)] = {"file": file, "error": str(error)}
            names.append(file)
    if names.count("-") > 1:
        raise BadSetting("standard input can be read only once, but - was given several times.")
    return names


def _batches(
    bundle: Bundle,
    names: list[str],
    max_pixels: int | None,
    batch_size: int,
    drawing: bool,
    answers: dict[int, dict[str, Any]],
) -> Iterator[Batch]:
    """Batches of readable files; what cannot be read goes into the answers as an error at once."""
    batch: Batch = []
    for index, name in enumerate(names):
        if index in answers:
            continue
        try:
            batch.append((index, see(bundle, name, max_pixels, drawing)))
        except BadImage as error:
            message = str(error) if name == "-" or name in str(error) else f"{name}: {error}"
            answers[index] = {"file": name, "error": message}
        if len(batch) == batch_size:
            yield batch
            batch = []
    if batch:
        yield batch


def _shrinks(rule: ExitRule) -> bool:
    """Whether anybody may leave before the last look."""
    return any(rule.threshold(look) < math.inf for look in range(1, rule.looks))


def _apart(
    bundle: Bundle, rule: ExitRule, batches: Iterator[Batch], deadline_ms: float | None
) -> Iterator[tuple[Batch, Outcome]]:
    """Every batch is looked at alone, within its deadline."""
    for batch in batches:
        ends_at = None if deadline_ms is None else time.perf_counter() + deadline_ms / 1000
        yield batch, bundle.predict_images([seen.image for _, seen in batch], rule, len(batch), ends_at)


def _together(
    bundle: Bundle, rule: ExitRule, batches: Iterator[Batch], batch_size: int
) -> Iterator[tuple[Batch, Outcome]]:
    """What is not sure looks on together with that of other batches."""
    begun: deque[Batch] = deque()

    def images() -> Iterator[list[Tensor]]:
        for batch in batches:
            begun.append(batch)
            yield [seen.image for _, seen in batch]

    for outcome in bundle.predict_batches(images(), rule, full_batch=batch_size):
        yield begun.popleft(), outcome


def _answer(outcome: Outcome, batch: Batch, topk: int, draw: Path | None, answers: dict[int, dict[str, Any]]) -> None:
    cost_macs = outcome.cost_macs.tolist()
    for row, (index, seen) in enumerate(batch):
        boxes = _boxes(outcome, row, seen)
        taken = int(outcome.looks[row])
        answers[index] = {
            "file": seen.file,
            "label": outcome.label[row],
            "confidence": float(outcome.confidence[row]),
            "looks": taken,
            "sure": bool(outcome.sure[row]),
            "where": [[float(v) for v in place] for place in outcome.where[row, : taken - 1].tolist()],
            "boxes": [list(box) for box in boxes],
            "patch_px": outcome.patch_px[row, : taken - 1].tolist(),
            "cost_macs": int(cost_macs[row]),
            "top": [{"label": name, "confidence": p} for name, p in outcome.top(row, topk)],
        }
        if seen.notes:
            answers[index]["notes"] = list(seen.notes)
        if draw is not None and seen.pictures:
            stem = "stdin" if seen.file == "-" else Path(seen.file).stem[:50]  # names of files have at most 255 bytes
            _draw(outcome, row, seen, boxes, draw / f"{index:05d}-{stem}.png")


def _boxes(outcome: Outcome, row: int, seen: Seen) -> list[tuple[int, int, int, int]]:
    """(left, top, right, bottom) of each patch in the picture's own pixels."""
    height, width = seen.image.shape[-2:]
    boxes = []
    for look in range(int(outcome.looks[row]) - 1):
        px = int(outcome.patch_px[row, look])
        top, left = top_left(outcome.where[row, look][None], height, width, px)[0].tolist()
        boxes.append(seen.placement.box_in_picture(top, left, px))
    return boxes


def _draw(outcome: Outcome, row: int, seen: Seen, boxes: list[tuple[int, int, int, int]], file: Path) -> None:
    truth = Path(seen.file).parent.name
    known = truth in (outcome.classes or ())
    scale = seen.drawn_scale
    in_drawing = [(round(a * scale), round(b * scale), round(c * scale), round(d * scale)) for a, b, c, d in boxes]
    drawn = looks_taken(outcome, row, in_drawing, truth if known else None)
    picture = draw_strip(seen.pictures, drawn, title=f"{Path(seen.file).name}" + (f" (is {truth})" if known else ""))
    aside = file.with_name(f".{file.name}")
    try:
        picture.save(aside, format="PNG")
        os.replace(aside, file)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise BadSetting(f"the drawing {file} cannot be written: {error.strerror or error}.") from None


def _print(answers: list[dict[str, Any]], topk: int) -> None:
    good = [a for a in answers if "error" not in a]
    if not good:
        return
    table = Table()
    table.add_column("file", overflow="fold")
    for name in ("answer", "confidence", "looks", "stopped", "multiply-adds"):
        table.add_column(name, justify="left" if name in ("answer", "stopped") else "right", no_wrap=name != "answer")
    for answer in good:
        top = "\n".join(f"{t['label']} {t['confidence']:.3f}" for t in answer["top"]) if topk > 1 else answer["label"]
        table.add_row(
            escape(answer["file"]),  # rich takes [brackets] for markup
            escape(top),
            f"{answer['confidence']:.3f}",
            str(answer["looks"]),
            "sure" if answer["sure"] else "out of looks",
            f"{answer['cost_macs'] / 1e6:,.1f}M",
        )
    output().print(table)
