"""Which classes are answered rightly, what is confused with what, and the most confident mistakes; worked out of a look record."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from glancefocus.bundle.bundle import Bundle
from glancefocus.errors import BadData
from glancefocus.escaping import figure_text
from glancefocus.evaluation.assess import look_table, own_thresholds, wilson_interval
from glancefocus.evaluation.figures import as_svg
from glancefocus.evaluation.report import table_html
from glancefocus.exits.record import LookRecord


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
    count = len(bundle.classes)
    if int(record.label.max()) >= count or int(record.answer.max()) >= count:
        raise BadData(f"the look record has classes beyond the {count} of the bundle. Remove the record.")
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
    """(classes, classes), so only for a few of them: how many images of each class (row) were answered with each (column)."""
    count = len(answers.classes)
    flat = np.bincount(answers.label * count + answers.answer, minlength=count * count)
    return flat.reshape(count, count)


def accuracy_by_class(answers: Answers) -> list[ClassAccuracy]:
    """Every class that has images, the worst first."""
    count = len(answers.classes)
    of_class = np.bincount(answers.label, minlength=count)
    right_of_class = np.bincount(answers.label[answers.right], minlength=count)
    rows = []
    for name, images, right in zip(answers.classes, of_class.tolist(), right_of_class.tolist(), strict=True):
        if images:
            rows.append(ClassAccuracy(name, images, right, right / images, *wilson_interval(right / images, images)))
    return sorted(rows, key=lambda row: (row.accuracy, -row.images, row.name))


def frequent_confusions(answers: Answers, most: int) -> list[tuple[str, str, int]]:
    """(class, answer, images) of the most frequent mistakes."""
    wrong = ~answers.right
    pairs, counts = np.unique(np.stack([answers.label[wrong], answers.answer[wrong]]), axis=1, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:most]
    return [(answers.classes[pairs[0, i]], answers.classes[pairs[1, i]], int(counts[i])) for i in order]


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


MOST_CLASSES_DRAWN, MOST_NUMBERED, MOST_ROWS, MOST_CONFUSIONS = 40, 15, 40, 20


def class_sections(answers: Answers) -> list[str]:
    """Accuracy per class, worst first, and what is confused with what, as HTML."""
    rows = accuracy_by_class(answers)
    lines = [
        (
            html.escape(row.name),
            [
                f"{row.images:,}",
                f"{row.right:,}",
                f"{100 * row.accuracy:.1f} %",
                f"{100 * row.low:.1f} to {100 * row.high:.1f} %",
            ],
        )
        for row in rows[:MOST_ROWS]
    ]
    more = f" {len(rows) - MOST_ROWS} better ones are in classes.csv." if len(rows) > MOST_ROWS else ""
    sections = [
        "<h2>Classes</h2>",
        table_html(("images", "right", "accuracy", "95 % interval"), lines),
        f'<p class="note">With the bundle\'s own thresholds; the worst classes first.{more}</p>',
    ]
    if len(answers.classes) <= MOST_CLASSES_DRAWN:
        caption = "How many images of each class (rows) were given each answer (columns). The diagonal is right."
        sections.append(f"<figure>{as_svg(confusion_figure(answers))}<figcaption>{caption}</figcaption></figure>")
    confused = frequent_confusions(answers, MOST_CONFUSIONS)
    if confused and len(answers.classes) > MOST_NUMBERED:
        pairs = [(html.escape(true), [html.escape(answer), f"{count:,}"]) for true, answer, count in confused]
        sections += ["<h3>Most frequent confusions</h3>", table_html(("was answered", "images"), pairs)]
    return sections


def class_rows(answers: Answers) -> list[dict[str, Any]]:
    """Lines of classes.csv."""
    return [
        {
            "class": row.name,
            "images": row.images,
            "right": row.right,
            "accuracy": row.accuracy,
            "accuracy_low": row.low,
            "accuracy_high": row.high,
        }
        for row in accuracy_by_class(answers)
    ]


def confusion_figure(answers: Answers) -> Figure:
    """The confusion matrix, shaded by the share of each class; numbers where there is room for them."""
    counts = confusion(answers)
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    names = [figure_text(name) for name in shortened(answers.classes)]
    side = min(11.0, 2.6 + 0.42 * len(names))
    figure = Figure(figsize=(side + 0.8, side), layout="constrained")
    axes = figure.add_subplot()
    drawn = axes.imshow(100 * shares, cmap="Blues", vmin=0, vmax=100)
    size = 9 if len(names) <= 20 else 6
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=size)
    axes.set_yticks(range(len(names)), names, fontsize=size)
    axes.set_xlabel("answer")
    axes.set_ylabel("class")
    if len(names) <= MOST_NUMBERED:
        for row, column in np.argwhere(counts > 0).tolist():
            ink = "white" if shares[row, column] > 0.55 else "black"
            axes.text(column, row, str(int(counts[row, column])), ha="center", va="center", color=ink, fontsize=size)
    figure.colorbar(drawn, ax=axes, label="share of the class (%)", shrink=0.7)
    return figure
