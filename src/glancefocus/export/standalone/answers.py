"""What is said of a picture, in one form: `gf predict` and exported programs write it, as JSON, JSON lines or CSV."""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

FIELDS = (
    *("file", "label", "confidence", "looks", "sure", "threshold", "where", "boxes", "patch_px", "cost_macs", "top"),
    "notes",
)
"""Of a picture that was answered, in this order; docs/predict.md says what they mean. Of one that was not: file and error."""
FRAME_FIELDS = ("frame", "seconds")
"""These come after them where frames of a camera or a stream are answered."""


def answer(
    file: str,
    *,
    label: str,
    confidence: float,
    looks: int,
    sure: bool,
    threshold: float | None,
    where: Sequence[Sequence[float]],
    boxes: Sequence[Sequence[int]],
    patch_px: Sequence[int],
    cost_macs: int,
    top: Sequence[tuple[str, float]],
    notes: Sequence[str],
) -> dict[str, Any]:
    """What is said of a picture that was answered. A threshold that is not finite is None: JSON has no such numbers."""
    return {
        "file": file,
        "label": label,
        "confidence": confidence,
        "looks": looks,
        "sure": sure,
        "threshold": threshold if threshold is not None and math.isfinite(threshold) else None,
        "where": [list(place) for place in where],
        "boxes": [list(box) for box in boxes],
        "patch_px": list(patch_px),
        "cost_macs": cost_macs,
        "top": [{"label": name, "confidence": probability} for name, probability in top],
        "notes": list(notes),
    }


class AnswerWriter:
    """Writes answers as they come; what was written is flushed, so that it can be used while there is more to come.

    form    json: one array; jsonl: an object in each line; csv: a row each, with lists as JSON
    fields  the columns of CSV; errors have a column of their own
    """

    def __init__(self, stream: TextIO, form: str, fields: Sequence[str] = FIELDS) -> None:
        self.stream = stream
        self.form = form
        self.columns = (*fields, "error")
        self.count = 0
        self._rows = csv.writer(stream, lineterminator="\n")

    def write(self, said: Mapping[str, Any]) -> None:
        if self.form == "csv":
            if self.count == 0:
                self._rows.writerow(self.columns)
            self._rows.writerow([_cell(said.get(name)) for name in self.columns])
        elif self.form == "jsonl":
            self.stream.write(json.dumps(said) + "\n")
        else:
            inner = "\n".join(f" {line}" for line in json.dumps(said, indent=1).splitlines())
            self.stream.write(("[\n" if self.count == 0 else ",\n") + inner)
        self.count += 1
        self.stream.flush()

    def close(self) -> None:
        """End the array; where nothing was written, an empty array, or the header of CSV."""
        if self.form == "json":
            self.stream.write("[]\n" if self.count == 0 else "\n]\n")
        elif self.form == "csv" and self.count == 0:
            self._rows.writerow(self.columns)
        self.stream.flush()


def _cell(value: Any) -> Any:
    """As JSON writes it, but for plain text and for what is not there."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value)
