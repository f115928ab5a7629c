"""Say what is in pictures: a quick glance at each, then a few patches of it, until its score is above a threshold.

    python predict.py photo.jpg folder/ --budget-macs 9e6

Prints one line of JSON for each picture as it is answered; --json prints all of them as one array, --csv as CSV. The form is that
of `gf predict`. A network of clips is given folders that hold the frames of one clip each.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from glancefocus.export.standalone.answers import AnswerWriter
from glancefocus.export.standalone.graphs_onnx import Graphs
from glancefocus.export.standalone.loop import Looker
from glancefocus.export.standalone.stopping import thresholds_for
from glancefocus.export.standalone.views import Seen, find, read

MOST_BATCH_BYTES = 512 << 20
Read = Seen | str
"""A picture, or what is wrong with it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when all files were answered, 2 when some could not be read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="pictures, or folders of them")
    parser.add_argument("--budget-macs", type=float, help="average multiply-adds that an answer may cost")
    parser.add_argument("--looks", type=int, help="take exactly this many looks instead of stopping above a threshold")
    parser.add_argument("--topk", type=int, default=1, help="likely classes to name")
    parser.add_argument("--batch-size", "--batch", type=int, default=32, help="pictures looked at together")
    parser.add_argument("--threads", type=int, default=1, help="of the runtime")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent, help="where the graphs are")
    forms = parser.add_mutually_exclusive_group()
    for form, words in {
        "jsonl": "a line of JSON for each picture (the default)",
        "json": "one JSON array",
        "csv": "CSV",
    }.items():
        forms.add_argument(f"--{form}", dest="form", action="store_const", const=form, default="jsonl", help=words)
    options = parser.parse_args(arguments)
    about = json.loads((options.folder / "glancefocus.json").read_text(encoding="utf-8"))
    try:
        thresholds = thresholds_for(about, options.budget_macs, options.looks)
    except ValueError as error:
        parser.error(str(error))
    files = {graph["name"]: options.folder / graph["file"] for graph in about["graphs"]}
    looker = Looker(about, Graphs(files, options.threads))
    writer, failed = AnswerWriter(sys.stdout, options.form), 0
    for batch in _batches(find(options.files, about["frames"]), about, max(1, options.batch_size)):
        for said in _answers(looker, batch, thresholds, max(1, options.topk)):
            writer.write(said)
            failed += "error" in said
    writer.close()
    return 2 if failed else 0


def _batches(paths: Iterator[Path], about: dict[str, Any], size: int) -> Iterator[list[tuple[Path, Read]]]:
    """Files as they were read, together up to a number and an amount of memory."""
    batch: list[tuple[Path, Read]] = []
    taken = 0
    for path in paths:
        one = _read(path, about)
        taken += 0 if isinstance(one, str) else sum(frame.nbytes for frame in one.frames)
        batch.append((path, one))
        if len(batch) == size or taken >= MOST_BATCH_BYTES:
            yield batch
            batch, taken = [], 0
    if batch:
        yield batch


def _read(path: Path, about: dict[str, Any]) -> Read:
    try:
        return read(path, about)
    except (OSError, ValueError, SyntaxError, MemoryError, Image.DecompressionBombError) as error:
        return f"{path} cannot be read: {error}"


def _answers(
    looker: Looker, batch: Sequence[tuple[Path, Read]], thresholds: Any, topk: int
) -> Iterator[dict[str, Any]]:
    """What is said of each file, in order."""
    seen = [one for _, one in batch if not isinstance(one, str)]
    rows = iter(looker.look(seen, thresholds) if seen else [])
    for path, one in batch:
        if isinstance(one, str):
            yield {"file": str(path), "error": one}
        else:
            yield looker.answer(str(path), next(rows), topk)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away, as `| head` does
        sys.exit(1)
