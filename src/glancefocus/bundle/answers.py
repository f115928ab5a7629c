"""Answers as plain values, one table for each picture: what `gf predict --json` prints and the server sends."""

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glancefocus.outcome import Outcome

Answer = dict[str, Any]
"""The fields of one picture, as docs/predict.md lists them."""


def answers_of(outcome: "Outcome", topk: int) -> list[Answer]:
    """The answer for each picture of an outcome, in the same form as exported programs give it; `file` is empty.

    A threshold that is not finite becomes None, because JSON has no infinity.
    """
    costs, boxes, patch_px = outcome.cost_macs.tolist(), outcome.boxes, outcome.patch_px
    answers = []
    for row, taken in enumerate(outcome.looks.tolist()):
        threshold = outcome.threshold(row)
        answers.append(
            {
                "file": "",
                "label": outcome.name(int(outcome.answer[row])),
                "confidence": float(outcome.confidence[row]),
                "looks": taken,
                "sure": bool(outcome.sure[row]),
                "threshold": threshold if threshold is not None and math.isfinite(threshold) else None,
                "where": outcome.where[row, : taken - 1].tolist(),
                "boxes": [list(box) for box in boxes[row]],
                "patch_px": patch_px[row, : taken - 1].tolist(),
                "views": [outcome.views[each].name for each in outcome.candidate[row, : taken - 1].tolist()],
                "cost_macs": int(costs[row]),
                "top": [{"label": name, "confidence": share} for name, share in outcome.top(row, topk)],
                "notes": list(outcome.notes[row]) if outcome.notes else [],
            }
        )
    return answers


def steps_of(outcome: "Outcome", row: int) -> list[Answer]:
    """The answer for one picture after each look, the glance first, with its confidence."""
    taken = int(outcome.looks[row])
    labels = [outcome.name(index) for index in outcome.answer_after[row, :taken].tolist()]
    confidences = outcome.confidence_after[row, :taken].tolist()
    return [{"label": label, "confidence": share} for label, share in zip(labels, confidences, strict=True)]
