"""Say what is in pictures: a quick glance at each, then a few patches of it, stopping as soon as it is sure.

    python predict.py photo.jpg folder/ --budget-macs 9e6

Prints one line of JSON for each picture. A network of clips is given folders that hold the frames of one clip each.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from glancefocus.export.standalone.graphs_onnx import Graphs
from glancefocus.export.standalone.loop import Looker
from glancefocus.export.standalone.stopping import thresholds_for
from glancefocus.export.standalone.views import Seen, find, read


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when all files were answered, 2 when some could not be read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="pictures, or folders of them")
    parser.add_argument("--budget-macs", type=float, help="average multiply-adds that an answer may cost")
    parser.add_argument("--looks", type=int, help="take exactly so many looks instead of stopping when sure")
    parser.add_argument("--batch", type=int, default=32, help="pictures looked at together")
    parser.add_argument("--threads", type=int, default=1, help="of the runtime")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent, help="where the graphs are")
    options = parser.parse_args(arguments)
    about = json.loads((options.folder / "glancefocus.json").read_text(encoding="utf-8"))
    try:
        thresholds = thresholds_for(about, options.budget_macs, options.looks)
    except ValueError as error:
        parser.error(str(error))
    files = {graph["name"]: options.folder / graph["file"] for graph in about["graphs"]}
    looker = Looker(about, Graphs(files, options.threads))
    paths, batch = list(find(options.files, about["frames"])), max(1, options.batch)
    failed = 0
    for start in range(0, len(paths), batch):
        told = _answers(looker, paths[start : start + batch], thresholds)
        for line in told:
            print(json.dumps(line))  # noqa: T201
        failed += sum("error" in line for line in told)
    return 2 if failed else 0


def _answers(looker: Looker, paths: Sequence[Path], thresholds: Any) -> list[dict[str, Any]]:
    """What is said of each file, in order."""
    told: dict[Path, dict[str, Any]] = {}
    readable: dict[Path, Seen] = {}
    for path in paths:
        try:
            readable[path] = read(path, looker.about)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            told[path] = {"error": f"cannot be read: {error}"}
    rows = looker.look(list(readable.values()), thresholds) if readable else []
    told |= {path: looker.told(row) for path, row in zip(readable, rows, strict=True)}
    return [{"file": str(path), **told[path]} for path in paths]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away, as `| head` does
        sys.exit(1)
