"""Sections of the report on classes: accuracy of each, the confusion matrix, the most frequent confusions."""

import html
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from glancefocus.evaluation.by_class import Answers, accuracy_by_class, confusion, frequent_confusions, shortened
from glancefocus.evaluation.figures import as_svg
from glancefocus.evaluation.report import table_html

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
    names = shortened(answers.classes)
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
