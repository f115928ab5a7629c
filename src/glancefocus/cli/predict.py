"""`gf predict`: answers for files, with looks, boxes and costs. Bad files are listed, good ones are still answered.

What a network looks at, pictures or clips, is read by `seeing`; everything else is the same for both. Answers are written in the
order of the files, as soon as they are known, and then forgotten: memory does not grow with the number of files.
"""

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from glancefocus.bundle.bundle import Bundle
from glancefocus.bundle.loading import load
from glancefocus.cli.answering import answers_of, draw, make_folder
from glancefocus.cli.predict_output import Answer, Output, Summary, TableOutput, opened_output
from glancefocus.cli.printing import Display, display
from glancefocus.cli.seeing import Seen, find_files, see
from glancefocus.errors import BadImage, BadSetting
from glancefocus.escaping import lines_kept
from glancefocus.exits.rule import ExitRule
from glancefocus.free_memory import batch_bytes, bytes_of, in_small_batches
from glancefocus.outcome import Outcome
from glancefocus.stream import refuse_deadline

HELD_BATCHES = 4
"""Of pictures that wait for those of other batches, as many bytes are held as this many batches may have."""

Batch = list[tuple[int, Seen]]
"""Files that could be read, with their numbers."""


@dataclass(frozen=True)
class PredictAsked:
    """What the user asked for, see words_predict.

    form, output  how and where answers are written; no form: a table for people
    """

    looks: int | None = None
    thresholds: Sequence[Any] | None = None
    budget_macs: float | None = None
    budget_ms: float | None = None
    deadline_ms: float | None = None
    topk: int = 1
    draw: Path | None = None
    batch_size: int = 32
    merge_batches: bool | None = None
    max_pixels: int | None = None
    runtime: str | None = None
    light_weights: bool = False
    threads: int | None = None
    form: str | None = None
    output: Path | None = None


def open_bundle(folder: Path, asked: PredictAsked, batch: int) -> tuple[Bundle, ExitRule]:
    """The bundle in its runtime, and when it stops."""
    bundle = load(folder, runtime=asked.runtime, threads=asked.threads, batch=batch, light_weights=asked.light_weights)
    sizes, thresholds = len(bundle.settings.patch_px), asked.thresholds
    if thresholds is not None and sizes > 1:
        thresholds = _by_look(thresholds, sizes)
    rule = bundle.exit_rule(
        thresholds=thresholds, looks=asked.looks, budget_macs=asked.budget_macs, budget_ms=asked.budget_ms
    )
    if asked.draw is not None:
        make_folder(asked.draw)
    return bundle, rule


def predict_files(bundle_folder: Path, files: Sequence[str], asked: PredictAsked) -> int:
    """Write the answers; 0 when all files were answered, 2 when some could not be read."""
    if asked.merge_batches:
        refuse_deadline(asked.deadline_ms)
    bundle, rule = open_bundle(bundle_folder, asked, asked.batch_size)
    names = _names(files, bundle.settings.frames)
    summary = Summary(bundle.costs.backbone_macs, "pictures" if bundle.settings.frames == 1 else "clips")
    errors: list[str] = []
    notes: list[str] = []
    try:
        with ExitStack() as stack:
            shown = stack.enter_context(
                display(for_programs=asked.form is not None, quiet=len(names) <= asked.batch_size)
            )
            output = _output(stack, shown, asked)
            for said, stopped, remarks in _answers(bundle, rule, names, asked):
                output.write(said, stopped)
                summary.add(said)
                errors += [said["error"]] if "error" in said else []
                notes += remarks
                shown.tell("looking", summary.answered + summary.failed, len(names))
    finally:
        for text in (*errors, *(f"note: {note}" for note in notes)):
            print(f"gf: {lines_kept(text)}", file=sys.stderr)
        if len(names) > 1 and summary.answered:
            print(f"gf: {summary.words()}", file=sys.stderr)
    return 2 if errors else 0


def _output(stack: ExitStack, shown: Display, asked: PredictAsked) -> Output:
    if asked.form is not None:
        return stack.enter_context(opened_output(asked.form, asked.output))
    table = TableOutput(shown.show, asked.topk)
    stack.callback(table.close)
    return table


def _by_look(numbers: Sequence[float], sizes: int) -> list[list[float]]:
    """Thresholds given one after the other, as a row for each look."""
    if len(numbers) % sizes:
        raise BadSetting(
            f"this network has {sizes} patch sizes: give {sizes} thresholds for each look, but got {len(numbers)}."
        )
    return [list(numbers[start : start + sizes]) for start in range(0, len(numbers), sizes)]


def _names(files: Sequence[str], frames: int) -> list[tuple[str, str | None]]:
    """Every file, folders searched through, each with None; a folder with nothing to look at with what is wrong with it."""
    names: list[tuple[str, str | None]] = []
    for file in files:
        try:
            names += [("-", None)] if file == "-" else [(str(path), None) for path in find_files(file, frames)]
        except BadImage as error:
            names.append((file, str(error)))
    if names.count(("-", None)) > 1:
        raise BadSetting("standard input can be read only once, but - was given several times.")
    return names


def _answers(
    bundle: Bundle, rule: ExitRule, names: list[tuple[str, str | None]], asked: PredictAsked
) -> Iterator[tuple[Answer, str, Sequence[str]]]:
    """(what is said, why it stopped, remarks) of every file, in their order."""
    in_order = _InOrder()

    def failed(index: int, error: str) -> None:
        in_order.put(index, ({"file": names[index][0], "error": error}, "", ()))

    readable = _readable(bundle, names, asked, failed)
    most_bytes = batch_bytes()
    batches = in_small_batches(readable, _bytes_held, asked.batch_size, most_bytes)
    merge = asked.merge_batches
    if merge is None:
        merge = len(names) > asked.batch_size and _shrinks(rule) and asked.draw is None and asked.deadline_ms is None
    outcomes = (
        _together(bundle, rule, batches, asked.batch_size, HELD_BATCHES * most_bytes)
        if merge
        else _apart(bundle, rule, batches, asked.deadline_ms)
    )
    for batch, outcome in outcomes:
        answers = answers_of(outcome, [seen for _, seen in batch], asked.topk)
        for row, (index, seen) in enumerate(batch):
            in_order.put(index, (answers[row], outcome.stopped(row), seen.remarks))
            if asked.draw is not None and seen.pictures:
                draw(outcome, row, seen, asked.draw, index)
        del batch, outcome, seen  # before the next ones are read: they may be large
        yield from in_order.ready()
    yield from in_order.ready()


class _InOrder:
    """Answers that wait for those before them."""

    def __init__(self) -> None:
        self._next = 0
        self._waiting: dict[int, tuple[Answer, str, Sequence[str]]] = {}

    def put(self, index: int, one: tuple[Answer, str, Sequence[str]]) -> None:
        self._waiting[index] = one

    def ready(self) -> Iterator[tuple[Answer, str, Sequence[str]]]:
        while self._next in self._waiting:
            yield self._waiting.pop(self._next)
            self._next += 1


def _readable(
    bundle: Bundle, names: list[tuple[str, str | None]], asked: PredictAsked, failed: Callable[[int, str], None]
) -> Iterator[tuple[int, Seen]]:
    """Files that could be read, with their numbers; of the others is said what is wrong."""
    for index, (name, error) in enumerate(names):
        if error is not None:
            failed(index, error)
            continue
        try:
            yield index, see(bundle, name, asked.max_pixels, asked.draw is not None)
        except BadImage as problem:
            text = str(problem)
            failed(index, text if name == "-" or name in text else f"{name}: {text}")


def _bytes_held(one: tuple[int, Seen]) -> int:
    """The image, and the pictures that are drawn on, of which Pillow holds 4 bytes a pixel."""
    seen = one[1]
    return bytes_of(seen.image) + sum(4 * picture.width * picture.height for picture in seen.pictures)


def _shrinks(rule: ExitRule) -> bool:
    """Whether any picture may leave before the last look."""
    return any(rule.threshold(look) < math.inf for look in range(1, rule.looks))


def _apart(
    bundle: Bundle, rule: ExitRule, batches: Iterator[Batch], deadline_ms: float | None
) -> Iterator[tuple[Batch, Outcome]]:
    """Every batch is looked at alone, within its deadline."""
    for batch in batches:
        ends_at = None if deadline_ms is None else time.perf_counter() + deadline_ms / 1000
        yield batch, bundle.predict_images([seen.image for _, seen in batch], rule, len(batch), ends_at)
        del batch


def _together(
    bundle: Bundle, rule: ExitRule, batches: Iterator[Batch], batch_size: int, most_bytes: int
) -> Iterator[tuple[Batch, Outcome]]:
    """Undecided pictures of several batches are pooled, of so many batches as fit into the memory that they may take."""
    begun: deque[Batch] = deque()

    def images(first: Batch) -> Iterator[list[Tensor]]:
        taken, batch = 0, first
        while True:
            begun.append(batch)
            taken += sum(map(_bytes_held, batch))
            yield [seen.image for _, seen in batch]
            following = next(batches, None) if taken < most_bytes else None
            if following is None:
                return
            batch = following

    for first in batches:
        for outcome in bundle.predict_batches(images(first), rule, full_batch=batch_size):
            yield begun.popleft(), outcome
