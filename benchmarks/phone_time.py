"""The paper's phone setting: one image, one thread, a phone's runtime; the time of every number of looks, weighted by the exits.

    make environment-litert
    .venv-litert/bin/python benchmarks/phone_time.py --write docs/results.md

Runs in the environment of the runtime. ExecuTorch takes as many threads as it may use cores: put `taskset -c 0` before it.
"""

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from results import machine, markdown_table, write_section
from torch import Tensor

from glancefocus.cli.bench import BenchOptions, preset_subject
from glancefocus.evaluation.wall_clock import Case, Subject, Timing, bench_opened, images_needed
from glancefocus.export.contents import Format, format_named, quiet, write_graphs, write_part
from glancefocus.export.predict import RUNTIMES
from glancefocus.network.model import GlanceFocus
from glancefocus.network.parts import whole_backbone
from glancefocus.runtime.runner import PartsRunner

# Networks, and whether they get the light policy.
NETWORKS = {"gf-resnet50-96": True, "gf-mobilenetv3-large-100-96": False}


def opened(subject: Subject, to: Format, folder: Path) -> tuple[GlanceFocus, Callable[[Tensor], Tensor]]:
    """The network and its plain backbone, run by the phone's runtime on one thread."""
    net = subject.net
    written = {graph["name"]: folder / graph["file"] for graph in write_graphs(net, to, folder)}
    backbone = whole_backbone(net.to(memory_format=torch.contiguous_format))  # type: ignore[call-overload]
    written["backbone"] = folder / f"backbone{to.suffix}"
    write_part(to, backbone, written["backbone"])
    with quiet():
        graphs = RUNTIMES[to.name](written, 1)

    def run(part: str, *inputs: Tensor) -> Sequence[Tensor]:
        return [torch.from_numpy(made) for made in graphs(part, *(tensor.contiguous().numpy() for tensor in inputs))]

    looking = net.computed_by(PartsRunner.of(net, run), to.name)
    return looking, lambda images: run("backbone", images)[0]


def measure(to: Format, rounds: int) -> dict[str, Timing]:
    """{network: its timing}"""
    torch.set_num_threads(1)
    timings = {}
    for name, light_policy in NETWORKS.items():
        subject = preset_subject(BenchOptions(name, light_policy=light_policy), images_needed(1))
        with tempfile.TemporaryDirectory() as folder:
            net, backbone = opened(subject, to, Path(folder))
            timings[name] = bench_opened(subject, Case(to.name, 1, 1), net, backbone, rounds=rounds)
        print(f"{name} {to.name} {timings[name].quotient:.2f}", file=sys.stderr)
    return timings


def table(timings: dict[str, Timing]) -> str:
    cells = [
        [
            "network",
            "ms after each number of looks",
            "images that stop there",
            "weighted ms",
            "backbone ms",
            "fewer macs",
            "less time",
            "quotient",
        ]
    ]
    for name, timing in timings.items():
        cells.append(
            [
                name,
                " / ".join(f"{ms:.1f}" for ms in accumulate(timing.ms_per_look)),
                " / ".join(map(str, timing.exits)),
                f"{timing.glancefocus_ms:.1f}",
                f"{timing.backbone_ms:.1f}",
                f"{timing.mac_ratio:.2f}",
                f"{timing.time_ratio:.2f}",
                f"{timing.quotient:.2f}",
            ]
        )
    return markdown_table(cells)


def main(arguments: list[str] | None = None) -> None:
    words = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description="One image, one thread, a phone's runtime.")
    parser.add_argument("--to", choices=("litert", "executorch"), default="litert")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--write", type=Path, help="put the table into this file, such as docs/results.md")
    chosen = parser.parse_args(words)
    to = format_named(chosen.to)
    to.check_installed()
    timings = measure(to, chosen.rounds)
    found: dict[str, Any] = {name: timing.to_plain() for name, timing in timings.items()}
    print(json.dumps(found, indent=1) if chosen.json else table(timings))
    if chosen.write is not None:
        body = (
            f"Batch 1, one thread, {chosen.to}, made-up weights and the paper's shares of exits (ResNet-50 with the light policy); "
            f"medians of {chosen.rounds} rounds in which backbone and glancefocus take turns.\n\n{table(timings)}"
        )
        write_section(
            chosen.write,
            f"phone_{chosen.to}",
            title=f"The phone setting: {chosen.to}",
            command=shlex.join([f".venv-{chosen.to}/bin/python", "benchmarks/phone_time.py", *words]),
            machine=machine(1),
            body=body,
        )


if __name__ == "__main__":
    main()
