"""The time of a batch against the share of its images that leave at the glance: what is sure must stop costing anything.

python benchmarks/early_exit.py
python benchmarks/early_exit.py --preset gf-resnet50-96 --rounds 7
"""

import argparse
import json
import math
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from results import machine, markdown_table, write_section
from torch import Tensor

import glancefocus as gf
from glancefocus.look import ImageBatch
from glancefocus.loop import ExitRule
from glancefocus.network.model import GlanceFocus
from glancefocus.network.weights import make_up_weights

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


def rule_for(confidence: Tensor, share: float, looks: int) -> ExitRule:
    """The rule by which this share of the images leaves at the glance, the surest first, and the rest takes every look.

    confidence  (B,) at the glance
    """
    leaving = round(share * confidence.shape[0])
    ranked = confidence.sort(descending=True).values.tolist()
    if 0 < leaving < len(ranked) and ranked[leaving - 1] == ranked[leaving]:
        raise ValueError(f"images {leaving} and {leaving + 1} are equally sure, so no threshold tells them apart")
    # An image leaves strictly above the threshold, so the surest one that is to stay gives it.
    first = math.inf if leaving == 0 else -1.0 if leaving == len(ranked) else ranked[leaving]
    return ExitRule([first, *[math.inf] * (looks - 1)])


def measure(
    net: GlanceFocus, images: Tensor, shares: Sequence[float] = SHARES, *, rounds: int, warm_up: int = 1
) -> dict[float, list[float]]:
    """{share leaving at the glance: milliseconds of the batch in each round}; the shares take turns within a round."""
    scene, looks = ImageBatch(images), net.settings.looks
    times: dict[float, list[float]] = {share: [] for share in shares}
    with torch.inference_mode():
        confidence = net.glance(scene).confidence
        rules = {share: rule_for(confidence, share, looks) for share in shares}
        for number in range(-warm_up, rounds):
            turn = number % len(shares)
            for share in (*shares[turn:], *shares[:turn]):
                started = time.perf_counter()
                outcome = gf.look_until_sure(net, scene, rules[share])
                elapsed_ms = 1000 * (time.perf_counter() - started)
                left = int((outcome.looks == 1).sum())
                if left != round(share * images.shape[0]) or not bool(
                    ((outcome.looks == 1) | outcome.out_of_looks).all()
                ):
                    raise RuntimeError(f"{left} of {images.shape[0]} images left at the glance instead of {share:.0%}")
                if number >= 0:
                    times[share].append(elapsed_ms)
    return times


def summarise(times: dict[float, list[float]]) -> list[dict[str, float]]:
    """One row a share: median and quartiles in ms, the ratio to the time without exits, and the focus cost saved.

    The focus cost is the time in which no image leaves at the glance minus the time in which all do. Both are taken within each
    round, where the machine was the same for all, and are medians over the rounds.
    """
    none_leave, all_leave = times[min(times)], times[max(times)]
    rows = []
    for share, values in times.items():
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        rounds = list(zip(values, none_leave, all_leave, strict=True))
        rows.append(
            {
                "share_leaving": share,
                "batch_ms": median,
                "low_ms": low,
                "high_ms": high,
                "ratio": statistics.median(own / none for own, none, _ in rounds),
                "focus_cost_saved": statistics.median((none - own) / (none - all_) for own, none, all_ in rounds),
            }
        )
    return rows


def table(rows: list[dict[str, float]]) -> str:
    cells = [
        [
            "leave at the glance",
            "ms a batch",
            "middle half of the rounds",
            "of the time without exits",
            "focus cost saved",
        ]
    ]
    for row in rows:
        cells.append(
            [
                f"{row['share_leaving']:.0%}",
                f"{row['batch_ms']:.1f}",
                f"{row['low_ms']:.1f} to {row['high_ms']:.1f}",
                f"{row['ratio']:.3f}",
                f"{row['focus_cost_saved']:.1%}",
            ]
        )
    return markdown_table(cells)


def main(arguments: list[str] | None = None) -> None:
    words = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description="The time of a batch against the share that leaves at the glance.")
    parser.add_argument("--preset", default="gf-mobilenetv3-large-100-96", help="a network of `gf models`")
    parser.add_argument("--batch", type=int, default=64, help="images in the batch")
    parser.add_argument("--rounds", type=int, default=9, help="measured rounds; every share once in each")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--write", type=Path, help="put the table into this file, such as docs/results.md")
    chosen = parser.parse_args(words)
    if chosen.rounds < 2 or chosen.batch < 4:
        parser.error("at least 2 rounds and a batch of 4 are needed")

    torch.set_num_threads(chosen.threads)
    generator = torch.Generator().manual_seed(0)
    net = gf.create(chosen.preset, seed=0).to(memory_format=torch.channels_last)
    view = net.settings.view
    images = torch.randn(chosen.batch, 3, view.height_px, view.width_px, generator=generator)
    images = images.contiguous(memory_format=torch.channels_last)
    make_up_weights(net, generator)
    rows = summarise(measure(net, images, rounds=chosen.rounds))

    where = machine(chosen.threads)
    facts: dict[str, Any] = {"preset": chosen.preset, "batch": chosen.batch, "rounds": chosen.rounds, "machine": where}
    if chosen.json:
        print(json.dumps({**facts, "rows": rows}, indent=1))
    else:
        print(table(rows))
    if chosen.write is not None:
        body = (
            f"`{chosen.preset}`, untrained, a batch of {chosen.batch} random images of {view.height_px}x{view.width_px} px, "
            f"up to {net.settings.looks} looks. Thresholds are set so that the named share leaves at the glance and the rest "
            f"takes every look. Medians of {chosen.rounds} rounds in which the shares take turns; ratios are taken within each "
            "round. Focus cost saved: 0 % is the time in which no image leaves at the glance, 100 % the time in which all do.\n\n"
            f"{table(rows)}"
        )
        write_section(
            chosen.write,
            "early_exit",
            title="Time of a batch against the share that leaves at the glance",
            command=shlex.join(["python", "benchmarks/early_exit.py", *words]),
            machine=where,
            body=body,
        )


if __name__ == "__main__":
    main()
