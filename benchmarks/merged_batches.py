"""A stream of small batches of which half leaves at the glance: images a second batch by batch, and with undecided images pooled.

python benchmarks/merged_batches.py --bundle demo/run/bundle
python benchmarks/merged_batches.py --preset gf-mobilenetv3-large-100-96 --batches 4 8
"""

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from early_exit import rule_for
from results import machine, markdown_table, write_section
from torch import Tensor

import glancefocus as gf
from glancefocus.look import ImageBatch
from glancefocus.loop import ExitRule
from glancefocus.network.model import GlanceFocus
from glancefocus.network.weights import make_up_weights
from glancefocus.outcome import Outcome
from glancefocus.runtime.choose import RUNTIMES, open_runtime
from glancefocus.stream import look_at_stream


def alone(net: Any, scenes: list[ImageBatch], rule: ExitRule, full_batch: int) -> list[Outcome]:
    return [gf.look_until_sure(net, scene, rule) for scene in scenes]


def together(net: Any, scenes: list[ImageBatch], rule: ExitRule, full_batch: int) -> list[Outcome]:
    return list(look_at_stream(net, scenes, rule, full_batch=full_batch))


WAYS: dict[str, Callable[..., list[Outcome]]] = {"alone": alone, "together": together}


def measure(
    net: Any, images: Tensor, batches: list[int], *, full_batch: int, rounds: int, warm_up: int = 1
) -> list[dict[str, Any]]:
    """One row a batch size: images a second of both ways, which take turns, and how many times faster together is in each round."""
    rows = []
    with torch.inference_mode():
        confidence = net.glance(ImageBatch(images)).confidence
        rule = rule_for(confidence, 0.5, net.settings.looks)
        for batch in batches:
            scenes = [ImageBatch(images[start : start + batch]) for start in range(0, images.shape[0], batch)]
            seconds: dict[str, list[float]] = {way: [] for way in WAYS}
            answers: dict[str, Outcome] = {}
            for number in range(-warm_up, rounds):
                for way in WAYS if number % 2 else reversed(WAYS):
                    started = time.perf_counter()
                    outcomes = WAYS[way](net, scenes, rule, full_batch)
                    if number >= 0:
                        seconds[way].append(time.perf_counter() - started)
                    answers[way] = Outcome.join(outcomes)
            rows.append({"batch": batch, **summary(seconds, images.shape[0]), **agreement(answers)})
    return rows


def summary(seconds: dict[str, list[float]], images: int) -> dict[str, float]:
    ratios = [one / both for one, both in zip(seconds["alone"], seconds["together"], strict=True)]
    return {
        "alone_images_per_s": images / statistics.median(seconds["alone"]),
        "together_images_per_s": images / statistics.median(seconds["together"]),
        "times_faster": statistics.median(ratios),
        "least": min(ratios),
        "most": max(ratios),
    }


def agreement(answers: dict[str, Outcome]) -> dict[str, int]:
    one, other = answers["alone"], answers["together"]
    different = (one.answer != other.answer) | (one.looks != other.looks)
    return {"different_answers": int(different.sum())}


def table(rows: list[dict[str, Any]]) -> str:
    cells = [
        ["batch", "images/s alone", "images/s pooled", "times faster", "slowest to fastest round", "other answers"]
    ]
    for row in rows:
        cells.append(
            [
                str(row["batch"]),
                f"{row['alone_images_per_s']:.1f}",
                f"{row['together_images_per_s']:.1f}",
                f"{row['times_faster']:.2f}",
                f"{row['least']:.2f} to {row['most']:.2f}",
                str(row["different_answers"]),
            ]
        )
    return markdown_table(cells)


def network(bundle: Path | None, preset: str, images: int) -> tuple[GlanceFocus, Tensor]:
    """A trained network, or one with made-up weights; and noise to look at, of different strength so that scores differ."""
    net = gf.load(bundle, device="cpu").net if bundle is not None else gf.create(preset, seed=0)
    net = net.to(memory_format=torch.channels_last).eval()
    view, generator = net.settings.view, torch.Generator().manual_seed(0)
    noise = torch.randn(images, 3, view.height_px, view.width_px, generator=generator)
    noise = noise * torch.linspace(0.5, 2, images)[torch.randperm(images, generator=generator)].reshape(-1, 1, 1, 1)
    if bundle is None:
        make_up_weights(net, generator)
    return net, noise


def main(arguments: list[str] | None = None) -> None:
    words = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description="Small batches, one by one and with undecided images pooled.")
    parser.add_argument("--bundle", type=Path, help="a trained network")
    parser.add_argument(
        "--preset", default="gf-mobilenetv3-large-100-96", help="a network of `gf models`, without a bundle"
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[4, 8, 16], help="images in a batch of the stream")
    parser.add_argument("--full-batch", type=int, default=32, help="rows of a pooled batch")
    parser.add_argument("--images", type=int, default=256, help="in the stream")
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds; both ways once in each")
    parser.add_argument("--runtime", choices=RUNTIMES, default="eager", help="inference backend")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--write", type=Path, help="put the table into this file, such as docs/results.md")
    chosen = parser.parse_args(words)

    torch.set_num_threads(chosen.threads)
    net, images = network(chosen.bundle, chosen.preset, chosen.images)
    looking = open_runtime(net, chosen.runtime)
    rows = measure(looking, images, chosen.batches, full_batch=chosen.full_batch, rounds=chosen.rounds)
    print(json.dumps(rows, indent=1) if chosen.json else table(rows))
    if chosen.write is not None:
        name = (
            "The trained network of `signs`" if chosen.bundle is not None else f"`{chosen.preset}` with made-up weights"
        )
        body = (
            f"{name}, in the runtime {chosen.runtime}, a stream of {chosen.images} images in small batches. Half of them leave at "
            f"the glance, the others take all of {net.settings.looks} looks: batch by batch, or pooled with the undecided images "
            f"of other batches into batches of about {chosen.full_batch} (`merge=True`, `predict_stream`, "
            "`gf predict --merge-batches`). "
            f"Medians of {chosen.rounds} rounds in which both take turns; times faster is taken within each round. Other answers: "
            f"images that got another answer or another number of looks.\n\n{table(rows)}"
        )
        write_section(
            chosen.write,
            "merged_batches",
            title="Pooled batches",
            command=shlex.join(["python", "benchmarks/merged_batches.py", *words]),
            machine=machine(chosen.threads),
            body=body,
        )


if __name__ == "__main__":
    main()
