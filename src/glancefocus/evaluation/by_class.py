"""Which classes are answered rightly, what is confused with what, and the most confident mistakes; worked out of a look record."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from glancefocus.bundle import Bundle
from glancefocus.early_exit.look_record import LookRecord
from glancefocus.evaluation.assess import look_table, own_thresholds, with_interval


@dataclass(frozen=True)
class Answers:
    """What the bundle's own thresholds make of every image of a record.

    label, answer  (N,) classes
    confidence     (N,) in the answer
    look           (N,) after which look the image stopped, 0 for the glance
    """

    classes: tuple[str, ...]
    label: NDArray[np.int64]
    answer: NDArray[np.int64]
    confidence: NDArray[np.float64]
    look: NDArray[np.int64]

    @property
    def right(self) -> NDArray[np.bool_]:
        return np.asarray(self.label == self.answer)

    def __len__(self) -> int:
        return len(self.label)


@dataclass(frozen=True)
class ClassAccuracy:
    """One class: how many images, how many of them right, and the share with its 95 % interval."""

    name: str
    images: int
    right: int
    accuracy: float
    low: float
    high: float


def answers_of(bundle: Bundle, record: LookRecord) -> Answers:
    """The answers at the look where each image stops."""
    table = look_table(bundle, record)
    nodes = table.exits(np.asarray(own_thresholds(bundle), dtype=np.float32))
    rows = np.arange(len(table))
    look_of_node = np.repeat(np.arange(table.looks), [len(level) for level in table.levels(table.macs)])
    return Answers(
        classes=tuple(bundle.classes),
        label=np.asarray(record.label, dtype=np.int64),
        answer=np.asarray(record.answer[rows, nodes], dtype=np.int64),
        confidence=np.asarray(record.confidence[rows, nodes], dtype=np.float64),
        look=look_of_node[nodes],
    )


def confusion(answers: Answers) -> NDArray[np.int64]:
    """(classes, classes) how many images of each class (row) were answered with each (column)."""
    count = len(answers.classes)
    flat = np.bincount(answers.label * count + answers.answer, minlength=count * count)
    return flat.reshape(count, count)


def accuracy_by_class(answers: Answers) -> list[ClassAccuracy]:
    """Every class that has images, the worst first."""
    table = confusion(answers)
    rows = []
    for index, name in enumerate(answers.classes):
        images, right = int(table[index].sum()), int(table[index, index])
        if images:
            point = with_interval({"accuracy": right / images}, images)
            rows.append(
                ClassAccuracy(name, images, right, right / images, point["accuracy_low"], point["accuracy_high"])
            )
    return sorted(rows, key=lambda row: (row.accuracy, -row.images, row.name))


def frequent_confusions(answers: Answers, most: int) -> list[tuple[str, str, int]]:
    """(class, answer, images) of the most frequent mistakes."""
    table = confusion(answers).copy()
    np.fill_diagonal(table, 0)
    order = np.argsort(-table, axis=None, kind="stable")[:most]
    pairs = [np.unravel_index(place, table.shape) for place in order]
    return [(answers.classes[a], answers.classes[b], int(table[a, b])) for a, b in pairs if table[a, b] > 0]


def worst_mistakes(answers: Answers, most: int) -> list[int]:
    """Images that were answered wrongly, the most confident first."""
    wrong = np.flatnonzero(~answers.right)
    return [int(row) for row in wrong[np.argsort(-answers.confidence[wrong], kind="stable")][:most]]


def examples(answers: Answers, each: int) -> list[tuple[str, list[int]]]:
    """Images that were answered rightly after each look, a few of each, of different classes as far as possible."""
    chosen = []
    for look in sorted(set(answers.look.tolist())):
        rows = np.flatnonzero(answers.right & (answers.look == look))
        words = "Answered at the glance" if look == 0 else f"Answered after {look + 1} looks"
        chosen.append((words, _mixed(rows, answers.label, each)))
    return [(words, rows) for words, rows in chosen if rows]


def _mixed(rows: NDArray[np.int64], label: NDArray[np.int64], most: int) -> list[int]:
    """A few rows, one of each class before a second of any."""
    seen: dict[int, int] = {}
    ranked: list[tuple[int, int]] = []
    for row in rows.tolist():
        seen[int(label[row])] = seen.get(int(label[row]), 0) + 1
        ranked.append((seen[int(label[row])], row))
    return [row for _, row in sorted(ranked)[:most]]


def shortened(names: Sequence[str], most: int = 18) -> list[str]:
    """Names that fit beside a figure."""
    return [name if len(name) <= most else f"{name[: most - 1]}…" for name in names]
