"""Where a policy looks after a patch that missed: runs on `signs` beside one another, on scenes that none of them has seen.

    gf train signs -o runs/signs
    gf train signs --stages initialise,1,2,3,2 -o runs/reinforced
    python benchmarks/misses.py runs/signs runs/reinforced --scenes 6000 --write docs/results.md

All looks are taken at every scene. A patch misses a sign whose centre it does not contain. Seen again: of the patches that follow a
miss, the share that covers more than half of the same place.
"""

import argparse
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from results import machine, markdown_table, write_section
from torch import Tensor

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.sources import open_data
from glancefocus.evaluation.every_look import evaluate_every_look
from glancefocus.training.run_folder import BUNDLE_FOLDER, settings_of


def measured(run: Path, scenes: int) -> list[str]:
    """The row of the table for a run: every look of its network at new scenes."""
    settings = settings_of(run)
    # The test scenes of a data set do not depend on the number of its training scenes.
    data = open_data(replace(settings.data, scenes=(32, 32, scenes)), settings.network.view)
    assert data.test is not None
    assert data.test.boxes is not None
    boxes = data.test.boxes
    seen = evaluate_every_look(Bundle.load(run / BUNDLE_FOLDER).net, data.test)
    return [
        run.name,
        " / ".join(f"{100 * right:.1f}" for right in seen.accuracy_per_look),
        " / ".join(f"{100 * hits:.1f}" for hits in seen.hit_rate_per_focus(boxes)),
        " / ".join(f"{100 - 100 * hits:.2f}" for hits in seen.hit_rate_per_focus(centres(boxes))),
        " / ".join(f"{100 * share:.0f}" for share in seen.misses_seen_again(boxes)),
    ]


def centres(boxes: Tensor) -> Tensor:
    """(N, 4) the centre of each box as a box without extent."""
    return ((boxes[:, :2] + boxes[:, 2:]) / 2).repeat(1, 2)


def main(arguments: list[str] | None = None) -> None:
    words = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description="Where policies look after a patch that missed.")
    parser.add_argument("runs", type=Path, nargs="+", help="folders of runs on signs")
    parser.add_argument("--scenes", type=int, default=6000, help="number of new scenes")
    parser.add_argument("--about", default="", help="how the runs were made")
    parser.add_argument("--write", type=Path, help="put the table into this file, such as docs/results.md")
    chosen = parser.parse_args(words)
    cells = [["run", "accuracy after each look, %", "patches with the whole sign, %", "misses, %", "seen again, %"]]
    cells += [measured(run, chosen.scenes) for run in chosen.runs]
    about = f"{chosen.about} " if chosen.about else ""
    body = (
        f"{about}{chosen.scenes:,} new scenes, all looks taken. A patch misses a sign whose centre it does not contain; seen "
        "again: of the patches that follow a miss, the share that covers more than half of the same place.\n\n"
        + markdown_table(cells)
    )
    print(body)
    if chosen.write is not None:
        command = shlex.join(["python", "benchmarks/misses.py", *words])
        title = "After a patch that missed, on `signs`"
        write_section(chosen.write, "misses", title=title, command=command, machine=machine(), body=body)


if __name__ == "__main__":
    main()
