"""Single images by ONNX Runtime: all looks in one graph against the loop around the graphs of the parts, taking turns.

python benchmarks/one_graph.py --write docs/results.md
"""

import argparse
import functools
import shlex
import statistics
import sys
from pathlib import Path
from typing import Any

from results import machine, markdown_table, write_section

from glancefocus.bench.forced_exits import forced_exits
from glancefocus.bench.wall_clock import Subject, images_needed, in_turns
from glancefocus.cli.bench import BenchOptions, preset_subject
from glancefocus.loop import look_until_sure
from glancefocus.runtime.choose import RuntimeOptions, open_runtime, runtime_words, set_threads
from glancefocus.runtime.network import PartsNetwork
from glancefocus.scene import as_scene

# The presets that are measured, and what they are asked for: exits of the paper, or a budget.
ASKED = {
    "gf-mini-48": BenchOptions("gf-mini-48", budget_macs=1.1e7),
    "gf-mobilenetv3-large-100-96": BenchOptions("gf-mobilenetv3-large-100-96"),
    "gf-resnet50-96": BenchOptions("gf-resnet50-96", light_policy=True),
}


def measure(subject: Subject, *, light_weights: bool, rounds: int, warm_up: int = 2) -> dict[str, Any]:
    """Milliseconds an image both ways, medians over the rounds, and the ratio within each round."""
    one = open_runtime(subject.net, "onnx", options=RuntimeOptions(light_weights=light_weights))
    assert isinstance(one, PartsNetwork)
    parts = PartsNetwork(one.settings, one.run, one.policy.map_sides, one.policy.units)
    assert subject.exits is not None
    rules = [forced_exits([exit_after], subject.net.settings.looks) for exit_after in subject.exits]

    def look(net: PartsNetwork) -> None:
        for image, rule in zip(subject.images, rules, strict=True):
            look_until_sure(net, as_scene(image), rule)

    ways = {"parts": functools.partial(look, parts), "one": functools.partial(look, one)}
    seconds = in_turns(ways, subject.images.device, rounds, warm_up)
    times = {name: [1000 * spent / len(rules) for spent in each] for name, each in seconds.items()}
    ratios = [parts / one for parts, one in zip(times["parts"], times["one"], strict=True)]
    return {
        "parts_ms": statistics.median(times["parts"]),
        "one_ms": statistics.median(times["one"]),
        "ratio": statistics.median(ratios),
        "least": min(ratios),
        "most": max(ratios),
    }


def main(arguments: list[str] | None = None) -> None:
    words = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", choices=ASKED, default=list(ASKED))
    parser.add_argument("--rounds", type=int, default=9, help="measured rounds; both ways once in each")
    parser.add_argument("--write", type=Path, help="put the table into this file, such as docs/results.md")
    chosen = parser.parse_args(words)
    set_threads(1)
    rows = [["network", "runtime", "parts, ms", "one graph, ms", "times faster", "slowest to fastest round"]]
    for preset in chosen.presets:
        subject = preset_subject(ASKED[preset], images_needed(1))
        for light in (False, True):
            found = measure(subject, light_weights=light, rounds=chosen.rounds)
            rows.append(
                [
                    f"`{preset}`",
                    runtime_words("onnx", light_weights=light),
                    f"{found['parts_ms']:.2f}",
                    f"{found['one_ms']:.2f}",
                    f"{found['ratio']:.2f}",
                    f"{found['least']:.2f} to {found['most']:.2f}",
                ]
            )
    body = (
        "One image after the other on one thread, networks with made-up weights, exits as in `gf bench`. Parts: the loop in Python "
        "around the graphs of the parts. One graph: all looks in one run. Milliseconds an image, medians of "
        f"{chosen.rounds} rounds in which both take turns; times faster is taken within each round.\n\n{markdown_table(rows)}"
    )
    print(body)
    if chosen.write is not None:
        write_section(
            chosen.write,
            "one_graph",
            title="All looks at an image in one graph",
            command=shlex.join(["python", "benchmarks/one_graph.py", *words]),
            machine=machine(1),
            body=body,
        )


if __name__ == "__main__":
    main()
